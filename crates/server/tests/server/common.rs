//! Sessions without a socket, for tests.

#![allow(dead_code)]

use hither::Db;
use hither_resp::{Args, Limits, Value, decode};
use hither_server::{Config, Session, Shared};
use std::sync::Arc;

/// A server's state without threads, in memory.
pub fn shared() -> Arc<Shared> {
    shared_on(Db::builder().in_memory().open().unwrap())
}

/// The same on a store.
pub fn shared_on(db: Db) -> Arc<Shared> {
    Shared::new(db, Config::default(), 1).unwrap()
}

/// One client.
pub struct Client {
    pub shared: Arc<Shared>,
    pub session: Session,
    /// What the last reply rests on.
    pub rests_on: u64,
}

impl Client {
    pub fn new(shared: &Arc<Shared>) -> Client {
        let client = shared.clients.add("test".into(), "test".into(), 0);
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
        // What it asked for is done by a thread of the server's. It is woken then, which nobody sees here.
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

    /// Runs a command given as words; shows its reply in short: see [`show`].
    pub fn run(&mut self, line: &str) -> String {
        let words: Vec<&[u8]> = line.split(' ').map(|word| if word == "''" { b"" } else { word.as_bytes() }).collect();
        show(&self.call(&words))
    }

    /// Runs each command before `=>` and compares the reply with what stands behind.
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

/// A reply in short: `text` for bulk and simple strings, numbers as they are, `nil`, `[a b]`, `{a:b}`, `!message` for errors.
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
