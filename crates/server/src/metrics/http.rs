//! `/metrics`, `/healthz` and `/readyz`: GET and HEAD of HTTP/1.1 on one thread, one answer per connection.
//!
//! # Bounds
//!
//! [`MAX_CONNECTIONS`] at a time (the oldest gives way), [`MAX_REQUEST`] bytes of a request, [`TIME`] for all of it: a
//! slow client holds up nobody. What follows the request is discarded, up to [`MAX_REST`] bytes.

use super::{text, unhealthy, unready};
use crate::shared::Shared;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maximum number of connections at a time.
pub const MAX_CONNECTIONS: usize = 32;
/// Maximum bytes of a request.
pub const MAX_REQUEST: usize = 8 << 10;
/// Maximum bytes that are discarded behind a request.
pub const MAX_REST: usize = 1 << 20;
/// Time limit from connecting to the last byte of the answer.
pub const TIME: Duration = Duration::from_secs(5);
const LISTENER: Token = Token(0);
const TICK: Duration = Duration::from_millis(200);

struct Connection {
    stream: TcpStream,
    since: Instant,
    request: Vec<u8>,
    answer: Vec<u8>,
    sent: usize,
    /// The answer has left and writing is shut down, so that the other side sees the end; set by
    /// [`Connection::read_rest`].
    ended: bool,
    /// Bytes discarded behind the request.
    rest: usize,
}

/// What happens to a connection next.
#[derive(PartialEq, Eq)]
enum Next {
    Wait,
    Close,
}

/// Serves until `ended` is set; while the server stops, it reports that.
///
/// # Errors
/// The system's, if it refuses an event queue.
pub fn run(shared: &Arc<Shared>, mut listener: TcpListener, ended: &AtomicBool) -> std::io::Result<()> {
    let mut poll = Poll::new()?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut events = Events::with_capacity(64);
    // By number, so the oldest comes first.
    let mut connections: BTreeMap<usize, Connection> = BTreeMap::new();
    let mut next = 1;
    while !ended.load(Ordering::Acquire) {
        if let Err(error) = poll.poll(&mut events, Some(TICK))
            && error.kind() != ErrorKind::Interrupted
        {
            return Err(error);
        }
        for event in &events {
            let Token(number) = event.token();
            if connections.get_mut(&number).is_some_and(|connection| connection.go_on(shared) == Next::Close) {
                connections.remove(&number);
            }
        }
        // Accepts in every round, because no event tells after a failure (no descriptors left) that accepting may work
        // again. The number per round is bounded, however many clients connect meanwhile.
        for _ in 0..MAX_CONNECTIONS {
            let Ok((mut stream, _)) = listener.accept() else { break };
            if connections.len() >= MAX_CONNECTIONS {
                connections.pop_first();
            }
            if poll.registry().register(&mut stream, Token(next), Interest::READABLE | Interest::WRITABLE).is_ok() {
                connections.insert(next, Connection::new(stream));
                next += 1;
            }
        }
        connections.retain(|_, connection| connection.since.elapsed() < TIME);
    }
    Ok(())
}

impl Connection {
    fn new(stream: TcpStream) -> Connection {
        Connection { stream, since: Instant::now(), request: Vec::new(), answer: Vec::new(), sent: 0, ended: false, rest: 0 }
    }

    fn go_on(&mut self, shared: &Shared) -> Next {
        if self.answer.is_empty() && self.read(shared) == Next::Close {
            return Next::Close;
        }
        while self.sent < self.answer.len() {
            match self.stream.write(&self.answer[self.sent..]) {
                Ok(0) => return Next::Close,
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Next::Wait,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Next::Close,
            }
        }
        if self.answer.is_empty() { Next::Wait } else { self.read_rest() }
    }

    /// Handles a connection whose answer has left. Closing it while there is something to read would lose the answer,
    /// so the other side closes first.
    fn read_rest(&mut self) -> Next {
        // Only once: a shutdown makes the system report room to write, which leads here again.
        if !std::mem::replace(&mut self.ended, true) {
            // If this fails, the connection is closed later.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
        let mut buffer = [0; 2048];
        while self.rest < MAX_REST {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Next::Close,
                Ok(count) => self.rest += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Next::Wait,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Next::Close,
            }
        }
        Next::Close
    }

    /// Reads the request; once it is whole, makes the answer.
    fn read(&mut self, shared: &Shared) -> Next {
        let mut buffer = [0; 2048];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Next::Close,
                Ok(count) => self.request.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Next::Wait,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return Next::Close,
            }
            if self.request.windows(4).any(|end| end == b"\r\n\r\n") || self.request.windows(2).any(|end| end == b"\n\n") {
                self.answer = answer(shared, &self.request);
                return Next::Wait;
            }
            if self.request.len() > MAX_REQUEST {
                self.answer = response("431 Request Header Fields Too Large", "text/plain", "the request is too long\n", true);
                return Next::Wait;
            }
        }
    }
}

/// The answer to a request.
fn answer(shared: &Shared, request: &[u8]) -> Vec<u8> {
    let line = request.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    let body = match method {
        b"GET" => true,
        b"HEAD" => false,
        _ => return response("405 Method Not Allowed", "text/plain", "only GET and HEAD\n", true),
    };
    let verdict = |why: Option<String>| match why {
        None => response("200 OK", "text/plain", "ok\n", body),
        Some(why) => response("503 Service Unavailable", "text/plain", &(why + "\n"), body),
    };
    match path {
        b"/metrics" => response("200 OK", "text/plain; version=0.0.4; charset=utf-8", &text(shared), body),
        b"/healthz" => verdict(unhealthy(shared)),
        b"/readyz" => verdict(unready(shared)),
        _ => response("404 Not Found", "text/plain", "there are /metrics, /healthz and /readyz\n", body),
    }
}

fn response(status: &str, kind: &str, body: &str, with_body: bool) -> Vec<u8> {
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Cache-Control: no-store\r\nConnection: close\r\n\r\n",
        body.len()
    );
    if with_body { (head + body).into_bytes() } else { head.into_bytes() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use hither::Db;

    /// Found by hand: a client that kept its end open after the answer kept the thread busy, because each event of its
    /// connection caused the next.
    #[test]
    fn who_does_not_close_brings_no_events() {
        let shared = Shared::new(Db::builder().in_memory().open().unwrap(), Config::default(), 1).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepted = listener.accept().unwrap().0;
        accepted.set_nonblocking(true).unwrap();
        let mut connection = Connection::new(TcpStream::from_std(accepted));
        let (mut poll, mut events) = (Poll::new().unwrap(), Events::with_capacity(8));
        poll.registry().register(&mut connection.stream, Token(1), Interest::READABLE | Interest::WRITABLE).unwrap();
        client.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = [0; 12];
        let mut rounds = 0;
        loop {
            poll.poll(&mut events, Some(TICK)).unwrap();
            if events.is_empty() {
                break;
            }
            assert!(connection.go_on(&shared) == Next::Wait, "the other end is open");
            rounds += 1;
            assert!(rounds < 100, "an end to the events");
        }
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
    }
}
