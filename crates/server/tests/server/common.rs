//! Sessions without a socket, and clients of a whole server, for tests.

#![allow(dead_code)]

use hither::Db;
use hither_resp::{Args, Limits, Value, decode};
use hither_server::data::Database;
use hither_server::data::encoding::MARKER;
use hither_server::{Config, Server, Session, Shared};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The state of a server without threads, in memory.
pub fn shared() -> Arc<Shared> {
    shared_on(Db::builder().in_memory().open().unwrap())
}

/// The same on a given store.
pub fn shared_on(db: Db) -> Arc<Shared> {
    Shared::new(db, Config::default(), THREADS).unwrap()
}

/// Number of threads that clients without a socket may be on.
pub const THREADS: usize = 4;

/// A client without a socket.
pub struct Client {
    pub shared: Arc<Shared>,
    pub session: Session,
    /// The version that the last reply rests on.
    pub rests_on: u64,
}

impl Client {
    pub fn new(shared: &Arc<Shared>) -> Client {
        Client::on(shared, 0)
    }

    /// A client on this thread of the server: clients of one thread never run at the same time.
    pub fn on(shared: &Arc<Shared>, thread: usize) -> Client {
        let client = shared.clients.add("test".into(), "test".into(), thread);
        Client { shared: shared.clone(), session: Session::new(shared.clone(), client), rests_on: 0 }
    }

    /// Runs a command and returns the bytes of its reply.
    pub fn raw(&mut self, words: &[&[u8]]) -> Vec<u8> {
        let bytes = words.concat();
        let mut ranges = Vec::new();
        words.iter().fold(0, |at, word| {
            ranges.push(at..at + word.len());
            at + word.len()
        });
        let mut out = Vec::new();
        self.rests_on = self.session.execute(&self.shared, Args::new(&bytes, &ranges), &mut out);
        // A thread of the server makes the change that the command asked for, and then wakes the client; here nobody
        // sees the wake.
        while self.session.wait.as_ref().is_some_and(|wait| wait.change.is_some()) {
            std::thread::yield_now();
            self.rests_on = self.session.execute(&self.shared, Args::new(&bytes, &ranges), &mut out);
        }
        out
    }

    /// Runs a command and returns its reply.
    pub fn call(&mut self, words: &[&[u8]]) -> Value {
        let out = self.raw(words);
        let (value, length) = decode(&out, &Limits::default()).unwrap().unwrap();
        assert_eq!(length, out.len(), "one command, one reply");
        value
    }

    /// Runs a command given as words; returns its reply in short form: see [`show`].
    pub fn run(&mut self, line: &str) -> String {
        let words: Vec<&[u8]> = line.split(' ').map(|word| if word == "''" { b"" } else { word.as_bytes() }).collect();
        show(&self.call(&words))
    }

    /// Runs the command before each `=>` and compares the reply with the text behind it.
    pub fn script(&mut self, script: &str) {
        for (number, line) in script.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (command, expected) = line.split_once(" =>").unwrap_or_else(|| panic!("line {number} has no reply: {line}"));
            assert_eq!(self.run(command.trim()).trim(), expected.trim(), "line {number}: {command}");
        }
    }
}

/// A reply in short form: `text` for bulk and simple strings, numbers as they are, `nil`, `[a b]`, `{a:b}`, `!message`
/// for errors.
pub fn show(value: &Value) -> String {
    let all = |items: &[Value]| items.iter().map(show).collect::<Vec<_>>().join(" ");
    match value {
        Value::Simple(text) | Value::Bulk(text) | Value::BigNumber(text) | Value::Verbatim(_, text) => {
            if text.is_empty() {
                "''".into()
            } else {
                String::from_utf8_lossy(text).into_owned()
            }
        }
        Value::Error(text) => format!("!{}", String::from_utf8_lossy(text)),
        Value::Integer(number) => number.to_string(),
        Value::Null => "nil".into(),
        Value::Array(items) | Value::Push(items) => format!("[{}]", all(items)),
        Value::Set(items) => format!("({})", all(items)),
        Value::Map(pairs) => {
            format!("{{{}}}", pairs.iter().map(|(key, value)| format!("{}:{}", show(key), show(value))).collect::<Vec<_>>().join(" "))
        }
        Value::Double(number) => format!(",{number}"),
        Value::Boolean(value) => value.to_string(),
    }
}

/// Counts a test that cannot run here. Prints to standard output itself, because the captured output of a passing test
/// is not shown. An error is ignored: the reader may be gone.
pub fn skipped(why: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stdout(), format!("HITHER_COUNT skipped_{why} 1\n").as_bytes());
}

/// Long enough for whatever ends at all: a sync can take long where much else is written.
pub const FOR_EVER: Duration = Duration::from_secs(200);

/// A server of two threads, in memory.
pub fn start() -> Server {
    start_with(Config { threads: 2, ..Config::default() })
}

/// A server with these settings at any free port, in memory.
pub fn start_with(config: Config) -> Server {
    Server::start(Db::builder().in_memory().open().unwrap(), Config { port: 0, ..config }).unwrap()
}

/// A connection to the server.
pub fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(FOR_EVER)).unwrap();
    stream
}

/// Receives at least `count` replies, in the form of [`show`].
pub fn receive(stream: &mut TcpStream, count: usize) -> Vec<String> {
    let (mut bytes, mut chunk, mut replies) = (Vec::new(), vec![0; 64 << 10], Vec::new());
    loop {
        while let Some((value, length)) = decode(&bytes, &Limits::default()).unwrap() {
            bytes.drain(..length);
            replies.push(show(&value));
        }
        if replies.len() >= count {
            return replies;
        }
        match read_some(stream, &mut chunk).unwrap() {
            0 => panic!("it was closed after {replies:?}"),
            read => bytes.extend_from_slice(&chunk[..read]),
        }
    }
}

/// Reads what there is. A read with a time limit may be interrupted without a signal (signal(7)), when the process or
/// the machine is stopped and continued.
pub fn read_some(stream: &mut impl Read, bytes: &mut [u8]) -> std::io::Result<usize> {
    loop {
        match stream.read(bytes) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

/// Sends commands separated by `; `.
pub fn send(stream: &mut TcpStream, lines: &str) {
    stream.write_all(format!("{}\r\n", lines.replace("; ", "\r\n")).as_bytes()).unwrap();
}

/// Sends a command and returns its reply.
pub fn say(stream: &mut TcpStream, line: &str) -> String {
    send(stream, line);
    receive(stream, 1).remove(0)
}

/// Waits until something holds.
#[track_caller]
pub fn until(holds: impl Fn() -> bool) {
    let end = Instant::now() + FOR_EVER;
    while !holds() {
        assert!(Instant::now() < end, "it does not come to that");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until this many clients wait.
#[track_caller]
pub fn until_waiting(server: &Server, count: usize) {
    until(|| server.shared().waiting.len() == count);
}

/// Stops the other threads of a test, even if this one fails.
pub struct Stop<'a>(pub &'a std::sync::atomic::AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Runs a script ([`Client::script`]) in a session of its own.
pub fn script(text: &str) {
    Client::new(&shared()).script(text);
}

/// For each database, the number of its rows that belong to collections.
pub fn rows(shared: &Shared) -> Vec<usize> {
    let of = |database: &Database| database.rows.iter().filter(|pair| pair.as_ref().unwrap().0 != MARKER).count();
    shared.databases.existing().iter().map(|database| of(database)).collect()
}
