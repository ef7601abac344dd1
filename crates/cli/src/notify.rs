//! What a service manager is told of a server (systemd, `Type=notify`): the variable NOTIFY_SOCKET names a socket, and each datagram to it is a message. Without the variable nothing is told.
//!
//! Thread safety: any thread.

use hither_server::events::{Level, log};
use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The server is ready.
pub const READY: &str = "READY=1";
/// It ends.
pub const STOPPING: &str = "STOPPING=1";
/// It needs so long from now on, and will say so again before.
const EXTEND: &str = "EXTEND_TIMEOUT_USEC=120000000";
/// How often that is said.
const EXTEND_EVERY: Duration = Duration::from_secs(30);

/// Tells the service manager, if there is one.
pub fn tell(state: &str) {
    if let Some(path) = std::env::var_os("NOTIFY_SOCKET") {
        tell_at(&path, state);
    }
}

/// Whether it could be told; if not, the log is.
fn tell_at(path: &OsStr, state: &str) -> bool {
    let sent = send(path, state);
    if let Err(error) = &sent {
        log(Level::Warn, "notify-failed", &[("state", &state), ("why", error)]);
    }
    sent.is_ok()
}

/// One datagram; a path that begins with `@` is a name without a file.
fn send(path: &OsStr, state: &str) -> std::io::Result<()> {
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

/// As long as this lives, the service manager is told to have patience: how long a large store takes to recover, or to be closed, no unit can know. A kill makes the next start longer, which
/// would be killed again.
pub struct Patience(Option<(Sender<()>, JoinHandle<()>)>);

impl Patience {
    /// Begins to tell, if there is a service manager.
    pub fn begin() -> Patience {
        let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return Patience(None) };
        let (end, ended) = channel();
        let tell = move || while tell_at(&path, EXTEND) && ended.recv_timeout(EXTEND_EVERY) == Err(RecvTimeoutError::Timeout) {};
        // Without a thread there is no more time than the unit gives.
        Patience(std::thread::Builder::new().name("hither-notify".into()).spawn(tell).ok().map(|thread| (end, thread)))
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.0.take() {
            drop(end);
            // What is told next comes behind what it has told.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_manager_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        assert!(tell_at(path.as_os_str(), READY));
        let mut text = [0; 32];
        let length = socket.recv(&mut text).unwrap();
        assert_eq!(&text[..length], b"READY=1");
        assert!(!tell_at(OsStr::new("/nowhere/at/all"), READY));
    }

    #[test]
    fn patience_is_asked_for_again_before_it_ends() {
        let microseconds = EXTEND.strip_prefix("EXTEND_TIMEOUT_USEC=").unwrap().parse().unwrap();
        assert!(Duration::from_micros(microseconds) > 2 * EXTEND_EVERY);
    }
}
