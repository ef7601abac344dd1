//! The client of the server's figures: one thread, many connections, pipelines of one command; the same for every server.
//!
//! Each connection has one pipeline under way: when all its replies are there, the time is recorded and the next one is sent. Requests are built
//! before the clock starts, and replies are recognised by their length, so that the client costs little beside the server.
//!
//! Thread safety: one thread.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream as BlockingStream};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::target::{Error, Result};

/// Bytes of every value.
pub const VALUE_BYTES: usize = 100;
/// A reply to a SET, and to a GET of a value of [`VALUE_BYTES`].
const SET_REPLY: &[u8] = b"+OK\r\n";
const GET_REPLY_BYTES: usize = "$100\r\n".len() + VALUE_BYTES + 2;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// SET of a value.
    Set,
    /// GET of a key that is there.
    Get,
}

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The server.
    pub address: SocketAddr,
    /// What is asked.
    pub ask: Ask,
    /// Connections.
    pub clients: usize,
    /// Commands of one pipeline.
    pub pipeline: usize,
    /// Keys are drawn from so many.
    pub keys: u64,
    /// How long.
    pub lasts: Duration,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Commands answered per second.
    pub rate: f64,
    /// Commands answered.
    pub requests: u64,
    /// Microseconds from sending a pipeline to its last reply, at 50, 99, 99.9 and 99.99 %.
    pub latency_us: [f64; 4],
}

/// A connection with a pipeline under way.
struct Connection {
    stream: TcpStream,
    /// The pipelines that it sends in turn.
    requests: Vec<Vec<u8>>,
    next: usize,
    /// Bytes of the current request that are sent, and of replies that are missing.
    sent: usize,
    missing: usize,
    since: Instant,
}

fn network(what: &str) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::io(what.to_owned(), error)
}

/// A command as the protocol has it.
pub fn command(words: &[&[u8]], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// The key of a number, as redis-benchmark makes them.
pub fn key(number: u64) -> String {
    format!("key:{number:012}")
}

impl Load {
    fn reply_bytes(&self) -> usize {
        match self.ask {
            Ask::Set => SET_REPLY.len(),
            Ask::Get => GET_REPLY_BYTES,
        }
    }

    fn requests(&self, random: &mut u64) -> Vec<Vec<u8>> {
        // Enough that keys repeat rarely, few enough to stay in the caches.
        const PIPELINES: usize = 64;
        let value = [b'v'; VALUE_BYTES];
        let mut one = || {
            let mut out = Vec::new();
            for _ in 0..self.pipeline {
                *random ^= *random << 13;
                *random ^= *random >> 7;
                *random ^= *random << 17;
                let key = key(*random % self.keys);
                match self.ask {
                    Ask::Set => command(&[b"SET", key.as_bytes(), &value], &mut out),
                    Ask::Get => command(&[b"GET", key.as_bytes()], &mut out),
                }
            }
            out
        };
        (0..PIPELINES).map(|_| one()).collect()
    }

    fn connect(&self, poll: &Poll) -> Result<Vec<Connection>> {
        let mut random = 0x9e37_79b9_7f4a_7c15;
        let mut connections = Vec::new();
        for number in 0..self.clients {
            let stream = BlockingStream::connect(self.address).map_err(network("connecting"))?;
            stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true)).map_err(network("connecting"))?;
            let mut stream = TcpStream::from_std(stream);
            let both = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(&mut stream, Token(number), both).map_err(network("connecting"))?;
            let requests = self.requests(&mut random);
            connections.push(Connection { stream, requests, next: 0, sent: 0, missing: 0, since: Instant::now() });
        }
        Ok(connections)
    }

    /// Runs it.
    ///
    /// # Errors
    /// The network's, and replies that are not as expected.
    pub fn run(&self) -> Result<Outcome> {
        let mut poll = Poll::new().map_err(network("waiting for replies"))?;
        let mut connections = self.connect(&poll)?;
        // Up to a minute; what takes longer is as bad.
        let made = Histogram::new_with_max(60_000_000_000, 3);
        let mut latencies: Histogram<u64> = made.map_err(|error| Error::Config(error.to_string()))?;
        let mut events = Events::with_capacity(self.clients);
        let mut buffer = vec![0; 256 << 10];
        let expected = self.reply_bytes() * self.pipeline;
        let started = Instant::now();
        let end = started + self.lasts;
        let mut requests = 0;
        for connection in &mut connections {
            connection.begin(expected)?;
        }
        while Instant::now() < end {
            match poll.poll(&mut events, Some(Duration::from_millis(100))) {
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(network("waiting for replies")(error)),
                _ => {}
            }
            for event in &events {
                let connection = &mut connections[event.token().0];
                connection.send()?;
                while connection.receive(&mut buffer, self.ask)? {
                    requests += self.pipeline as u64;
                    latencies.saturating_record(connection.since.elapsed().as_nanos() as u64);
                    connection.begin(expected)?;
                }
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        let latency_us = [0.5, 0.99, 0.999, 0.9999].map(|quantile| latencies.value_at_quantile(quantile) as f64 / 1e3);
        Ok(Outcome { rate: requests as f64 / seconds, requests, latency_us })
    }
}

impl Connection {
    fn begin(&mut self, expected: usize) -> Result<()> {
        self.next = (self.next + 1) % self.requests.len();
        (self.sent, self.missing, self.since) = (0, expected, Instant::now());
        self.send()
    }

    fn send(&mut self) -> Result<()> {
        while self.sent < self.requests[self.next].len() {
            match self.stream.write(&self.requests[self.next][self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(network("sending")(error)),
            }
        }
        Ok(())
    }

    /// Reads what is there; true if the pipeline is answered.
    fn receive(&mut self, buffer: &mut [u8], ask: Ask) -> Result<bool> {
        while self.missing > 0 {
            match self.stream.read(buffer) {
                Ok(0) => return Err(Error::WrongData("the server closed a connection".into())),
                Ok(count) => {
                    let expected = if ask == Ask::Set { b"+OK\r\n".as_slice() } else { b"$100vV\r\n".as_slice() };
                    if count > self.missing || !expected.contains(&buffer[0]) || buffer[..count].contains(&b'-') {
                        let text = String::from_utf8_lossy(&buffer[..count.min(80)]).into_owned();
                        return Err(Error::WrongData(format!("an unexpected reply: {text}")));
                    }
                    self.missing -= count;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(network("receiving")(error)),
            }
        }
        Ok(true)
    }
}

/// Writes the keys below `keys` in long pipelines.
///
/// # Errors
/// The network's, and replies that are not `+OK`.
pub fn fill(address: SocketAddr, keys: u64) -> Result<()> {
    const GROUP: u64 = 500;
    let mut stream = BlockingStream::connect(address).map_err(network("connecting"))?;
    let value = [b'v'; VALUE_BYTES];
    let mut replies = vec![0; GROUP as usize * SET_REPLY.len()];
    let mut first = 0;
    while first < keys {
        let group = GROUP.min(keys - first);
        let mut out = Vec::new();
        (first..first + group).for_each(|number| command(&[b"SET", key(number).as_bytes(), &value], &mut out));
        stream.write_all(&out).map_err(network("sending"))?;
        let replies = &mut replies[..group as usize * SET_REPLY.len()];
        stream.read_exact(replies).map_err(network("receiving"))?;
        if !replies.chunks(SET_REPLY.len()).all(|reply| reply == SET_REPLY) {
            return Err(Error::WrongData(format!("a SET was refused: {}", String::from_utf8_lossy(&replies[..80.min(replies.len())]))));
        }
        first += group;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_as_the_protocol_has_them() {
        let mut out = Vec::new();
        command(&[b"GET", key(7).as_bytes()], &mut out);
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000007\r\n");
    }

    #[test]
    fn a_server_that_answers_is_counted_and_one_that_refuses_is_an_error() {
        for (reply, good) in [(&b"+OK\r\n"[..], true), (b"-NO\r\n", false)] {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = listener.local_addr().expect("an address");
            std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("a client");
                let mut buffer = [0; 4096];
                // Requests of 147 bytes arrive whole over loopback, one at a time.
                while stream.read(&mut buffer).is_ok_and(|count| count > 0) && stream.write_all(reply).is_ok() {}
            });
            let load = Load { address, ask: Ask::Set, clients: 1, pipeline: 1, keys: 10, lasts: Duration::from_millis(50) };
            let outcome = load.run();
            assert_eq!(outcome.is_ok_and(|outcome| outcome.requests > 0 && outcome.rate > 0.0), good);
        }
    }
}
