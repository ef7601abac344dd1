//! Notifications to a service manager (systemd, `Type=notify`). The variable NOTIFY_SOCKET names a socket, and each
//! datagram sent to it is a message. Without the variable nothing is sent.
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
/// The server is stopping.
pub const STOPPING: &str = "STOPPING=1";
/// The server needs this long from now on; it repeats the message before that time is over.
const EXTEND: &str = "EXTEND_TIMEOUT_USEC=120000000";
/// Interval at which `EXTEND` is repeated.
const EXTEND_EVERY: Duration = Duration::from_secs(30);

/// Sends a message to the service manager, if there is one.
pub fn tell(state: &str) {
    if let Some(path) = std::env::var_os("NOTIFY_SOCKET") {
        tell_at(&path, state);
    }
}

/// Sends a message, and returns whether that succeeded. A failure goes to the log.
fn tell_at(path: &OsStr, state: &str) -> bool {
    let sent = send(path, state);
    if let Err(error) = &sent {
        log(Level::Warn, "notify-failed", &[("state", &state), ("why", error)]);
    }
    sent.is_ok()
}

/// Sends one datagram. A path that begins with `@` is an abstract name without a file.
fn send(path: &OsStr, state: &str) -> std::io::Result<()> {
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

/// Asks the service manager for more time as long as it lives. No unit file can know how long a large store takes to
/// recover or to close. A kill would make the next start take longer, and the service manager would kill that one
/// again.
/// would be killed again.
pub struct Patience(Option<(Sender<()>, JoinHandle<()>)>);

impl Patience {
    /// Starts to ask, if there is a service manager.
    pub fn begin() -> Patience {
        let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return Patience(None) };
        let (end, ended) = channel();
        let tell = move || while tell_at(&path, EXTEND) && ended.recv_timeout(EXTEND_EVERY) == Err(RecvTimeoutError::Timeout) {};
        // If the thread cannot be started, the unit's own time limit applies.
        Patience(std::thread::Builder::new().name("hither-notify".into()).spawn(tell).ok().map(|thread| (end, thread)))
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.0.take() {
            drop(end);
            // Messages sent from now on come after those of the thread.
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
