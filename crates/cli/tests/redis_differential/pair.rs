//! Both servers, told the same.

use crate::common::Store;
use crate::common::wire::{Client, Random, Server};
use crate::normal::{is_close, normal};
use hither_resp::Value;
use tempfile::TempDir;

/// How many commands a run has.
pub fn length() -> usize {
    std::env::var("HITHER_COMMANDS").map_or(20_000, |text| text.parse().unwrap())
}

/// What the commands are drawn from.
pub fn random() -> Random {
    Random(std::env::var("HITHER_SEED").map_or(1, |text| text.parse().unwrap()))
}

/// Both servers, with nothing in them.
pub struct Servers {
    // In this order: they end before their directories do.
    ours: Server,
    theirs: Server,
    _store: Store,
    _dir: TempDir,
}

impl Servers {
    /// Starts them.
    pub fn start() -> Servers {
        let (store, dir) = (Store::any(), tempfile::tempdir().unwrap());
        Servers { ours: Server::start(&store, &[]), theirs: Server::redis(dir.path()), _store: store, _dir: dir }
    }

    /// A new connection to each.
    pub fn connect(&self) -> Pair {
        Pair { clients: [self.ours.client(), self.theirs.client()], queued: None, log: Vec::new() }
    }
}

/// A client of each, hither's first.
pub struct Pair {
    pub clients: [Client; 2],
    /// Within MULTI: what EXEC answers is many replies, whose commands have to be known.
    pub queued: Option<Vec<String>>,
    log: Vec<String>,
}

impl Pair {
    /// Runs a command on both, which must answer the same; the answer.
    pub fn run(&mut self, words: &[String]) -> Value {
        let name = words[0].clone();
        self.log.push(words.join(" "));
        let [ours, theirs] = &mut self.clients;
        for client in [&mut *ours, &mut *theirs] {
            client.send(words).unwrap_or_else(|_| client.ended());
        }
        let replies = [ours, theirs].map(|client| client.receive().unwrap_or_else(|| client.ended()));
        let queued = matches!(&replies[1], Value::Simple(text) if text == b"QUEUED");
        let [ours, theirs] = replies.map(|reply| match (&self.queued, name.as_str(), reply) {
            (Some(names), "EXEC", Value::Array(items)) => {
                Value::Array(names.iter().zip(items).map(|(name, item)| normal(name, item)).collect())
            }
            (_, name, reply) => normal(name, reply),
        });
        if let (Value::Bulk(our), Value::Bulk(their)) = (&ours, &theirs)
            && name.ends_with("INCRBYFLOAT")
            && our != their
            && is_close(our, their)
        {
            // Only the digits beyond Redis' precision differ: from here on both have the same.
            let same = String::from_utf8(our.clone()).unwrap();
            let mut words: Vec<String> = words.to_vec();
            words[0] = if words.len() == 4 { "HSET" } else { "SET" }.into();
            *words.last_mut().unwrap() = same;
            if words.len() == 3 {
                words.push("KEEPTTL".into());
            }
            self.run(&words);
            return theirs;
        }
        let recent = self.log[self.log.len().saturating_sub(30)..].join("\n");
        assert_eq!(ours, theirs, "left hither, right Redis, after\n{recent}");
        match (name.as_str(), &theirs) {
            ("MULTI", Value::Simple(_)) => self.queued = Some(Vec::new()),
            ("EXEC", _) | ("DISCARD", Value::Simple(_)) => self.queued = None,
            _ if queued => self.queued.get_or_insert_default().push(name),
            _ => {}
        }
        theirs
    }

    /// As [`Pair::run`], for words without spaces.
    pub fn line(&mut self, line: &str) -> Value {
        self.run(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    /// Everything that is stored.
    pub fn compare_data(&mut self) {
        self.line("DISCARD");
        for database in 0..2 {
            self.line(&format!("SELECT {database}"));
            let Value::Array(keys) = self.line("KEYS *") else { panic!() };
            for key in keys {
                let Value::Bulk(key) = key else { panic!() };
                let key = String::from_utf8(key).unwrap();
                let Value::Simple(kind) = self.line(&format!("TYPE {key}")) else { panic!() };
                match kind.as_slice() {
                    b"hash" => self.line(&format!("HGETALL {key}")),
                    b"zset" => self.line(&format!("ZRANGE {key} 0 -1 WITHSCORES")),
                    _ => self.line(&format!("GET {key}")),
                };
                self.line(&format!("TTL {key}"));
            }
        }
        self.line("SELECT 0");
    }
}

/// Regression: the Redis of another test would have been taken for one that could not have its port.
#[test]
fn a_redis_at_a_port_of_somebody_else_is_none() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = Server::redis(one.path());
    assert!(Server::redis_at(other.path(), first.port).is_none());
    assert_eq!(first.client().run("PING"), Value::Simple(b"PONG".into()));
}
