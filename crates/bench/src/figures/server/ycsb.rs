//! YCSB A–F over the wire: the operations of YCSB's workloads, with the data layout of its binding for Redis.
//!
//! A record is a hash of ten fields. One sorted set holds the keys of all records for scans; the score of a key is the
//! hash of its name. The operations are:
//!
//! * a read: HGETALL;
//! * an update: HMSET of one field;
//! * an insertion: HMSET of all fields, and ZADD;
//! * a scan: ZRANGEBYSCORE, and HGETALL of each key that it returns.
//!
//! Every client is a thread with a connection of its own that waits for each reply, as YCSB's clients do. Every record
//! read must have its ten fields, each with bytes that were written. A scan must return at least one key, because it
//! begins at the score of an existing one. Requests are built within the measured time, for all servers alike.
//!
//! Thread safety: [`run`] starts the threads and joins them; a [`Connection`] belongs to one thread.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::load::{Outcome, command};
use crate::target::{Error, Result};
use crate::workload::stream::{Op, OpKind, Place, Stream};
use crate::workload::{Workload, zipf::ycsb_fnv64};

const FIELDS: u64 = 10;
const FIELD_BYTES: usize = 100;
/// The field values that an insertion and an update write.
const INSERTED: [u8; FIELD_BYTES] = [b'v'; FIELD_BYTES];
const UPDATED: [u8; FIELD_BYTES] = [b'w'; FIELD_BYTES];
const INDEX: &[u8] = b"_indices";
/// Number of clients that run at a time.
const CLIENTS: usize = 16;
/// Number of operations drawn for each client: more than it can do in the measured time.
const DRAWN: u64 = 400_000;

/// A run of one workload.
#[derive(Clone, Debug)]
pub struct Run {
    /// The server's address.
    pub address: SocketAddr,
    /// The workload's letter, `a` to `f`.
    pub letter: char,
    /// Number of loaded records.
    pub records: u64,
    /// Duration of the run.
    pub lasts: Duration,
}

/// A reply, with as much of it as is needed.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Status,
    Integer(i64),
    Bulk(Vec<u8>),
    Array(Vec<Vec<u8>>),
}

/// One client.
struct Connection {
    stream: BufReader<TcpStream>,
    request: Vec<u8>,
}

fn wrong(what: impl Into<String>) -> Error {
    Error::WrongData(what.into())
}

fn network(error: std::io::Error) -> Error {
    Error::io("talking to the server", error)
}

impl Connection {
    fn open(address: SocketAddr) -> Result<Connection> {
        let stream = TcpStream::connect(address).map_err(network)?;
        stream.set_nodelay(true).map_err(network)?;
        Ok(Connection { stream: BufReader::with_capacity(64 << 10, stream), request: Vec::new() })
    }

    /// Adds a command to the request that [`Connection::send`] sends.
    fn add(&mut self, words: &[&[u8]]) {
        command(words, &mut self.request);
    }

    fn send(&mut self) -> Result<()> {
        let sent = self.stream.get_mut().write_all(&self.request).map_err(network);
        self.request.clear();
        sent
    }

    fn ask(&mut self, words: &[&[u8]]) -> Result<Reply> {
        self.add(words);
        self.send()?;
        self.receive()
    }

    fn receive(&mut self) -> Result<Reply> {
        receive(&mut self.stream)
    }
}

/// Reads one reply. Nested arrays and null replies are errors.
fn receive(stream: &mut impl BufRead) -> Result<Reply> {
    let mut line = String::new();
    stream.read_line(&mut line).map_err(network)?;
    let (kind, rest) = line.split_at_checked(1).ok_or_else(|| wrong("the server closed a connection"))?;
    let number = || rest.trim_end().parse::<i64>().map_err(|_| wrong(format!("an unexpected reply: {line}")));
    let length = || number().and_then(|length| usize::try_from(length).map_err(|_| wrong("something is missing")));
    match kind {
        "+" => Ok(Reply::Status),
        ":" => Ok(Reply::Integer(number()?)),
        "$" => {
            let mut bytes = vec![0; length()? + 2];
            stream.read_exact(&mut bytes).map_err(network)?;
            bytes.truncate(bytes.len() - 2);
            Ok(Reply::Bulk(bytes))
        }
        "*" => {
            let item = |_| match receive(stream)? {
                Reply::Bulk(bytes) => Ok(bytes),
                other => Err(wrong(format!("an unexpected reply: {other:?}"))),
            };
            Ok(Reply::Array((0..length()?).map(item).collect::<Result<_>>()?))
        }
        _ => Err(wrong(format!("an unexpected reply: {line}"))),
    }
}

/// The key of a record, in the form of YCSB.
fn key(id: u64) -> String {
    format!("user{}", ycsb_fnv64(id))
}

/// The score of a key, computed as Java's `hashCode`.
fn score(key: &str) -> i32 {
    key.bytes().fold(0, |hash: i32, byte| hash.wrapping_mul(31).wrapping_add(i32::from(byte)))
}

/// Adds HMSET of all fields, and ZADD.
fn add_insertion(connection: &mut Connection, key: &str) {
    let names: Vec<String> = (0..FIELDS).map(|field| format!("field{field}")).collect();
    let mut words: Vec<&[u8]> = vec![b"HMSET", key.as_bytes()];
    names.iter().for_each(|name| words.extend([name.as_bytes(), &INSERTED]));
    connection.add(&words);
    connection.add(&[b"ZADD", INDEX, score(key).to_string().as_bytes(), key.as_bytes()]);
}

fn read(connection: &mut Connection, key: &[u8]) -> Result<()> {
    match connection.ask(&[b"HGETALL", key])? {
        Reply::Array(fields) if is_whole(&fields) => Ok(()),
        other => Err(wrong(format!("{} is not whole: {other:?}", String::from_utf8_lossy(key)))),
    }
}

/// Whether names and values form a whole record: each field once, with a value that was written.
fn is_whole(fields: &[Vec<u8>]) -> bool {
    let number = |name: &[u8]| match name.strip_prefix(b"field") {
        Some(&[digit @ b'0'..=b'9']) => Some(digit - b'0'),
        _ => None,
    };
    let seen = fields.chunks(2).try_fold(0u32, |seen, field| match field {
        [name, value] if *value == INSERTED || *value == UPDATED => Some(seen | 1 << number(name)?),
        _ => None,
    });
    fields.len() as u64 == 2 * FIELDS && seen == Some((1 << FIELDS) - 1)
}

fn update(connection: &mut Connection, key: &[u8], field: u64) -> Result<()> {
    let name = format!("field{}", field % FIELDS);
    match connection.ask(&[b"HMSET", key, name.as_bytes(), &UPDATED])? {
        Reply::Status => Ok(()),
        other => Err(wrong(format!("HMSET was answered by {other:?}"))),
    }
}

fn insert(connection: &mut Connection, key: &str) -> Result<()> {
    add_insertion(connection, key);
    connection.send()?;
    match (connection.receive()?, connection.receive()?) {
        (Reply::Status, Reply::Integer(0 | 1)) => Ok(()),
        other => Err(wrong(format!("an insertion was answered by {other:?}"))),
    }
}

fn scan(connection: &mut Connection, key: &str, length: u32) -> Result<()> {
    let (from, limit) = (score(key).to_string(), length.to_string());
    let asked = connection.ask(&[b"ZRANGEBYSCORE", INDEX, from.as_bytes(), b"+inf", b"LIMIT", b"0", limit.as_bytes()])?;
    let Reply::Array(keys) = asked else { return Err(wrong("ZRANGEBYSCORE was not answered by keys")) };
    if !(1..=length as usize).contains(&keys.len()) {
        return Err(wrong(format!("a scan of {length} from {key} gave {} keys", keys.len())));
    }
    keys.iter().try_for_each(|key| read(connection, key))
}

/// Does one operation; `number` differs for each.
fn operate(connection: &mut Connection, run: &Run, op: Op, number: u64) -> Result<()> {
    let inserted = op.id() >= run.records;
    // Each workload inserts records of its own.
    let id = if inserted { op.id() + (u64::from(u32::from(run.letter)) << 40) } else { op.id() };
    let key = key(id);
    match op.kind() {
        OpKind::Put if inserted => insert(connection, &key),
        OpKind::Put => update(connection, key.as_bytes(), number),
        OpKind::Scan => scan(connection, &key, op.length()),
        OpKind::Rmw => read(connection, key.as_bytes()).and_then(|()| update(connection, key.as_bytes(), number)),
        OpKind::Get | OpKind::Delete => read(connection, key.as_bytes()),
    }
}

/// Loads the records.
///
/// # Errors
/// The network's, and replies that are not as expected.
pub fn fill(address: SocketAddr, records: u64) -> Result<()> {
    const GROUP: u64 = 100;
    let mut connection = Connection::open(address)?;
    for first in (0..records).step_by(GROUP as usize) {
        let ids = first..records.min(first + GROUP);
        ids.clone().for_each(|id| add_insertion(&mut connection, &key(id)));
        connection.send()?;
        for id in ids {
            let replies = (connection.receive()?, connection.receive()?);
            if replies != (Reply::Status, Reply::Integer(1)) {
                return Err(wrong(format!("the insertion of record {id} was answered by {replies:?}")));
            }
        }
    }
    Ok(())
}

/// Runs one client; returns the times of its operations, and when it ended.
fn client(run: &Run, thread: usize, mut stream: Stream, began: Instant) -> Result<(Histogram<u64>, Instant)> {
    let mut connection = Connection::open(run.address)?;
    let made = Histogram::new_with_max(60_000_000_000, 3);
    let mut latencies: Histogram<u64> = made.map_err(|error| Error::Config(error.to_string()))?;
    let end = began + run.lasts;
    let mut now = Instant::now();
    while now < end && stream.remaining() > 0 {
        let before = now;
        operate(&mut connection, run, stream.take(), latencies.len() + thread as u64)?;
        now = Instant::now();
        latencies.saturating_record(now.duration_since(before).as_nanos() as u64);
    }
    Ok((latencies, now))
}

/// Runs a workload on records that are loaded.
///
/// # Errors
/// The network's, and replies that are not as expected.
pub fn run(run: &Run) -> Result<Outcome> {
    let workload: Workload = format!("ycsb-{}", run.letter).parse().map_err(Error::Config)?;
    // Several workloads run on one store one after the other; each inserts ids of its own.
    let inserted = u64::from(u32::from(run.letter) - u32::from('a')) * CLIENTS as u64 * DRAWN;
    let place = |thread| Place { keys: run.records, threads: CLIENTS, thread, inserted, seed: u64::from(u32::from(run.letter)) };
    let streams: Vec<Stream> = (0..CLIENTS).map(|thread| Stream::new(&workload, &place(thread), DRAWN)).collect();
    let began = Instant::now();
    let done = std::thread::scope(|scope| {
        let clients = streams.into_iter().enumerate();
        let clients: Vec<_> = clients.map(|(thread, stream)| scope.spawn(move || client(run, thread, stream, began))).collect();
        let joined = clients.into_iter().map(|client| client.join().unwrap_or_else(|_| Err(wrong("a client has ended in a panic"))));
        joined.collect::<Result<Vec<_>>>()
    })?;
    let ended = done.iter().map(|(_, ended)| *ended).max().unwrap_or(began);
    let mut latencies: Histogram<u64> = Histogram::new_with_max(60_000_000_000, 3).map_err(|error| Error::Config(error.to_string()))?;
    for (of_client, _) in &done {
        latencies.add(of_client).map_err(|error| Error::Config(error.to_string()))?;
    }
    let requests = latencies.len();
    let latency_us = [0.5, 0.99, 0.999, 0.9999].map(|quantile| latencies.value_at_quantile(quantile) as f64 / 1e3);
    Ok(Outcome { rate: requests as f64 / ended.duration_since(began).as_secs_f64(), requests, latency_us })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_those_of_java() {
        assert_eq!(score(""), 0);
        assert_eq!(score("abc"), 96_354);
        assert_eq!(score("user6284781860667377211"), java("user6284781860667377211"));
    }

    /// The definition: the sum of s[i] * 31^(n-1-i), modulo 2^32.
    fn java(text: &str) -> i32 {
        let power = |exponent: usize| (0..exponent).fold(1u32, |power, _| power.wrapping_mul(31));
        let terms = text.bytes().enumerate().map(|(at, byte)| u32::from(byte).wrapping_mul(power(text.len() - 1 - at)));
        terms.fold(0u32, u32::wrapping_add) as i32
    }

    /// A connection to a server that sends these replies, whatever it is asked.
    fn answered(replies: Vec<u8>) -> Connection {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            // A client that has refused the first reply may already be gone.
            let _ = stream.write_all(&replies);
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        });
        Connection::open(address).expect("a connection")
    }

    fn array(words: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        command(words, &mut out);
        out
    }

    /// The fields of a record, one of which has this name and value.
    fn record(name: &str, value: &[u8]) -> Vec<u8> {
        let names: Vec<String> = (0..9).map(|field| format!("field{field}")).chain([name.to_owned()]).collect();
        let words: Vec<&[u8]> = names.iter().flat_map(|of| [of.as_bytes(), if of == name { value } else { &INSERTED }]).collect();
        array(&words)
    }

    /// Regression: any ten names and values counted as a record.
    #[test]
    fn fields_are_those_that_were_written() {
        let good = |name, value: &[u8]| read(&mut answered(record(name, value)), b"user7").is_ok();
        assert!(good("field9", &INSERTED) && good("field9", &UPDATED));
        assert!(!good("field9", &[0; FIELD_BYTES]) && !good("field9", &UPDATED[1..]), "nobody wrote it");
        assert!(!good("field8", &INSERTED) && !good("field10", &INSERTED), "a field is missing");
        assert!(read(&mut answered(array(&[])), b"user7").is_err());
    }

    /// Regression: a scan that found nothing passed, and was fast.
    #[test]
    fn a_scan_gives_one_key_at_least_and_no_more_than_it_was_asked_for() {
        let scanned = |keys: &[&[u8]]| {
            let records = keys.iter().flat_map(|_| record("field9", &UPDATED));
            scan(&mut answered(array(keys).into_iter().chain(records).collect()), "user7", 2).is_ok()
        };
        assert!(scanned(&[b"user7"]) && scanned(&[b"user7", b"user8"]));
        assert!(!scanned(&[]) && !scanned(&[b"user7", b"user8", b"user9"]));
    }

    #[test]
    fn replies_are_read_whole() {
        let mut bytes = &b"+OK\r\n:7\r\n*2\r\n$1\r\na\r\n$0\r\n\r\n-ERR no\r\n$-1\r\n"[..];
        assert_eq!(receive(&mut bytes).expect("a status"), Reply::Status);
        assert_eq!(receive(&mut bytes).expect("a number"), Reply::Integer(7));
        assert_eq!(receive(&mut bytes).expect("an array"), Reply::Array(vec![b"a".to_vec(), Vec::new()]));
        assert!(receive(&mut bytes).is_err_and(|error| error.to_string().contains("ERR no")));
        assert!(receive(&mut bytes).is_err(), "nothing may be missing");
        assert!(receive(&mut bytes).is_err(), "it has ended");
    }
}
