//! The client of the server's figures: one thread, many connections, pipelines of one kind of command; the same for
//! every server.
//!
//! Each connection has one pipeline under way. When all its replies have arrived, the time is recorded and the next
//! pipeline is sent. Requests are built before the clock starts, and replies are recognised by their length, so that
//! the client costs little beside the server.
//!
//! All connections together request every key once, in a random-looking order, before any key is requested again. A
//! value begins with its key. Of each pipeline of GETs the last value, if it arrives whole, is compared with the key
//! that was requested.
//!
//! Thread safety: one thread.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream as BlockingStream};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::target::{Error, Result};
use crate::workload::permutation::Permutation;

/// Length of every value in bytes.
pub const VALUE_BYTES: usize = 100;
/// The reply to a SET, and the length of the reply to a GET of a value of [`VALUE_BYTES`].
const SET_REPLY: &[u8] = b"+OK\r\n";
const GET_REPLY_BYTES: usize = "$100\r\n".len() + VALUE_BYTES + 2;

/// The command to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// SET of a value.
    Set,
    /// GET of an existing key.
    Get,
    /// GET from a server that has one value for all keys.
    GetAny,
}

/// A run of the client.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The server's address.
    pub address: SocketAddr,
    /// The command to send.
    pub ask: Ask,
    /// Number of connections.
    pub clients: usize,
    /// Number of commands in a pipeline.
    pub pipeline: usize,
    /// Number of different keys.
    pub keys: u64,
    /// Duration of the run.
    pub lasts: Duration,
}

/// The result of a run.
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
    /// The pipelines, which are sent in turn.
    requests: Vec<Vec<u8>>,
    next: usize,
    /// Bytes of the current request already sent, and bytes of its replies still missing.
    sent: usize,
    missing: usize,
    since: Instant,
}

fn network(what: &str) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::io(what.to_owned(), error)
}

/// Appends a command in the format of the protocol.
pub fn command(words: &[&[u8]], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// The key of a number, in the form of redis-benchmark.
pub fn key(number: u64) -> String {
    format!("key:{number:012}")
}

fn last_key(request: &[u8]) -> &[u8] {
    &request[request.len() - key(0).len()..]
}

/// The value of a key: the key, padded to the length of a value.
fn value(key: &str) -> [u8; VALUE_BYTES] {
    let mut value = [b'v'; VALUE_BYTES];
    value[..key.len()].copy_from_slice(key.as_bytes());
    value
}

impl Load {
    fn reply_bytes(&self) -> usize {
        match self.ask {
            Ask::Set => SET_REPLY.len(),
            Ask::Get | Ask::GetAny => GET_REPLY_BYTES,
        }
    }

    /// The pipelines of a connection. All connections together have enough for all keys.
    fn requests(&self, keys: &mut impl Iterator<Item = u64>) -> Vec<Vec<u8>> {
        let one = |keys: &mut dyn Iterator<Item = u64>| {
            let mut out = Vec::new();
            for key in keys.take(self.pipeline).map(key) {
                match self.ask {
                    Ask::Set => command(&[b"SET", key.as_bytes(), &value(&key)], &mut out),
                    Ask::Get | Ask::GetAny => command(&[b"GET", key.as_bytes()], &mut out),
                }
            }
            out
        };
        let pipelines = self.keys.div_ceil((self.clients * self.pipeline) as u64);
        (0..pipelines).map(|_| one(keys)).collect()
    }

    fn connect(&self, poll: &Poll) -> Result<Vec<Connection>> {
        let order = Permutation::new(self.keys, 1);
        let mut keys = (0..self.keys).cycle().map(|i| order.at(i));
        let mut connections = Vec::new();
        for number in 0..self.clients {
            let stream = BlockingStream::connect(self.address).map_err(network("connecting"))?;
            stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true)).map_err(network("connecting"))?;
            let mut stream = TcpStream::from_std(stream);
            let both = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(&mut stream, Token(number), both).map_err(network("connecting"))?;
            let requests = self.requests(&mut keys);
            connections.push(Connection { stream, requests, next: 0, sent: 0, missing: 0, since: Instant::now() });
        }
        Ok(connections)
    }

    /// Runs the load.
    ///
    /// # Errors
    /// Errors of the network, and unexpected replies.
    pub fn run(&self) -> Result<Outcome> {
        let mut poll = Poll::new().map_err(network("waiting for replies"))?;
        let mut connections = self.connect(&poll)?;
        // Up to a minute; longer times count as a minute.
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

    /// Whether the last bytes of a reply are the value of the key that was requested last; true if the value did not
    /// arrive whole.
    fn ends_with_its_value(&self, received: &[u8]) -> bool {
        let (key, end) = (self.requests[self.next].strip_suffix(b"\r\n").map_or(&[][..], last_key), VALUE_BYTES + 2);
        received.len() < end || received[received.len() - end..].starts_with(key)
    }

    /// Reads the available bytes; returns true if the pipeline is answered.
    fn receive(&mut self, buffer: &mut [u8], ask: Ask) -> Result<bool> {
        while self.missing > 0 {
            match self.stream.read(buffer) {
                Ok(0) => return Err(Error::WrongData("the server closed a connection".into())),
                Ok(count) => {
                    let expected = if ask == Ask::Set { b"+OK\r\n".as_slice() } else { b"$0123456789key:vV\r\n".as_slice() };
                    let refused = count > self.missing || !expected.contains(&buffer[0]) || buffer[..count].contains(&b'-');
                    self.missing = self.missing.saturating_sub(count);
                    if refused || (ask == Ask::Get && self.missing == 0 && !self.ends_with_its_value(&buffer[..count])) {
                        let text = String::from_utf8_lossy(&buffer[count.saturating_sub(GET_REPLY_BYTES)..count]).into_owned();
                        return Err(Error::WrongData(format!("an unexpected reply: {text}")));
                    }
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
/// Errors of the network, and replies other than `+OK`.
pub fn fill(address: SocketAddr, keys: u64) -> Result<()> {
    const GROUP: u64 = 500;
    let mut stream = BlockingStream::connect(address).map_err(network("connecting"))?;
    let mut replies = vec![0; GROUP as usize * SET_REPLY.len()];
    let mut first = 0;
    while first < keys {
        let group = GROUP.min(keys - first);
        let mut out = Vec::new();
        (first..first + group).map(key).for_each(|key| command(&[b"SET", key.as_bytes(), &value(&key)], &mut out));
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

/// Checks that a restarted server holds the keys below `keys` and no others: by their number, and by the values of some
/// of them, including the first and the last.
///
/// # Errors
/// Errors of the network, and content that differs from what [`fill`] wrote.
pub fn read_back(address: SocketAddr, keys: u64) -> Result<()> {
    const SOME: u64 = 500;
    let some: Vec<String> = (0..SOME.min(keys)).map(|at| key(at * (keys - 1) / (SOME.min(keys) - 1).max(1))).collect();
    let (mut out, mut expected) = (Vec::new(), format!(":{keys}\r\n").into_bytes());
    command(&[b"DBSIZE"], &mut out);
    for key in &some {
        command(&[b"GET", key.as_bytes()], &mut out);
        expected.extend_from_slice(&[format!("${VALUE_BYTES}\r\n").as_bytes(), &value(key), b"\r\n"].concat());
    }
    let mut stream = BlockingStream::connect(address).map_err(network("connecting"))?;
    stream.write_all(&out).map_err(network("sending"))?;
    let mut buffer = [0; 4096];
    let mut missing = expected.as_slice();
    while !missing.is_empty() {
        let count = stream.read(&mut buffer).map_err(network("receiving"))?;
        match missing.strip_prefix(&buffer[..count]) {
            Some(rest) if count > 0 => missing = rest,
            _ => {
                let text = String::from_utf8_lossy(&buffer[..count.min(GET_REPLY_BYTES)]);
                return Err(Error::WrongData(format!("of {keys} keys came back: {text}")));
            }
        }
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

    /// Loads servers that give this reply, for longer and longer, until there is an answer: in a moment a busy machine may
    /// give none.
    fn answer_of(reply: &[u8], ask: Ask) -> Result<Outcome> {
        let run = |millis| {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = listener.local_addr().expect("an address");
            let reply = reply.to_vec();
            std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("a client");
                let mut buffer = [0; 4096];
                // Requests of 147 bytes arrive whole over loopback, one at a time.
                while stream.read(&mut buffer).is_ok_and(|count| count > 0) && stream.write_all(&reply).is_ok() {}
            });
            Load { address, ask, clients: 1, pipeline: 1, keys: 1, lasts: Duration::from_millis(millis) }.run()
        };
        let is_answer = |outcome: &Result<Outcome>| !matches!(outcome, Ok(outcome) if outcome.requests == 0);
        [50, 500].into_iter().map(run).find(is_answer).unwrap_or_else(|| run(10_000))
    }

    #[test]
    fn a_server_that_answers_is_counted_and_one_that_refuses_is_an_error() {
        for (reply, good) in [(&b"+OK\r\n"[..], true), (b"-NO\r\n", false)] {
            assert_eq!(answer_of(reply, Ask::Set).is_ok_and(|outcome| outcome.requests > 0 && outcome.rate > 0.0), good);
        }
    }

    /// The result of [`read_back`] from a server that reports `counted` keys and, if `spoiled`, has a wrong value for
    /// that key.
    fn came_back(keys: u64, counted: u64, spoiled: Option<u64>) -> Result<()> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let mut reply = format!(":{counted}\r\n").into_bytes();
        for number in 0..keys {
            let other = if spoiled == Some(number) { number + 1 } else { number };
            reply.extend_from_slice(&[b"$100\r\n", &value(&key(other))[..], b"\r\n"].concat());
        }
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut request = [0; 16];
            stream.read_exact(&mut request).expect("DBSIZE");
            // The client may already have refused the reply and closed the connection.
            let _ = stream.write_all(&reply);
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        });
        let read = read_back(address, keys);
        server.join().expect("the server ends with its client");
        read
    }

    /// Regression: the first answer ended a restart, whatever data had come back.
    #[test]
    fn what_comes_back_is_counted_and_compared() {
        for keys in [1, 2, 300] {
            came_back(keys, keys, None).unwrap_or_else(|error| panic!("{keys}: {error}"));
            assert!(came_back(keys, keys - 1, None).is_err_and(|error| matches!(error, Error::WrongData(_))), "{keys}");
            assert!(came_back(keys, keys, Some(keys - 1)).is_err_and(|error| matches!(error, Error::WrongData(_))), "{keys}");
        }
    }

    #[test]
    fn all_connections_together_ask_for_every_key() {
        for (clients, pipeline) in [(50, 1), (50, 16), (50, 64), (7, 3)] {
            let address = "127.0.0.1:1".parse().expect("an address");
            let load = Load { address, ask: Ask::Get, clients, pipeline, keys: 10_000, lasts: Duration::ZERO };
            let order = Permutation::new(load.keys, 1);
            let mut keys = (0..load.keys).cycle().map(|i| order.at(i));
            let asked: Vec<u8> = (0..clients).flat_map(|_| load.requests(&mut keys)).flatten().collect();
            let mut asked: Vec<&[u8]> = asked.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"key:")).collect();
            asked.sort_unstable();
            asked.dedup();
            assert_eq!(asked.len(), 10_000, "{clients} {pipeline}");
        }
    }

    #[test]
    fn the_value_of_another_key_is_an_error() {
        for (ask, of, good) in [(Ask::Get, 0, true), (Ask::Get, 1, false), (Ask::GetAny, 1, true)] {
            let reply = [b"$100\r\n", &value(&key(of))[..], b"\r\n"].concat();
            assert_eq!(answer_of(&reply, ask).is_ok_and(|outcome| outcome.requests > 0), good);
        }
    }
}
