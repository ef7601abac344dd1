//! Both servers, which get the same commands.

use crate::common::Store;
use crate::common::wire::{Client, Random, Server};
use crate::normal::{is_close, normal};
use hither_resp::Value;
use tempfile::TempDir;

/// Number of commands of a run.
pub fn length() -> usize {
    std::env::var("HITHER_COMMANDS").map_or(20_000, |text| text.parse().unwrap())
}

/// The generator from which the commands are drawn.
pub fn random() -> Random {
    Random(std::env::var("HITHER_SEED").map_or(1, |text| text.parse().unwrap()))
}

/// Both servers, initially empty.
pub struct Servers {
    // In this order: the servers end before their directories are removed.
    ours: Server,
    theirs: Server,
    _store: Store,
    _dir: TempDir,
}

impl Servers {
    /// Starts both servers.
    pub fn start() -> Servers {
        let (store, dir) = (Store::any(), tempfile::tempdir().unwrap());
        Servers { ours: Server::start(&store, &[]), theirs: Server::redis(dir.path()), _store: store, _dir: dir }
    }

    /// Opens a new connection to each server.
    pub fn connect(&self) -> Pair {
        Pair { clients: [self.ours.client(), self.theirs.client()], queued: None, log: Vec::new() }
    }
}

/// A client of each server, hither's first.
pub struct Pair {
    pub clients: [Client; 2],
    /// The commands queued within MULTI: EXEC answers with a reply for each, whose command must be known.
    pub queued: Option<Vec<String>>,
    log: Vec<String>,
}

impl Pair {
    /// Runs a command on both servers, which must give the same reply. Returns it.
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
            // Only digits beyond Redis' precision differ. The same value is written to both, so that they agree from
            // here on.
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

    /// Compares all stored data.
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

/// Regression: a Redis that another test had started on the port would have passed for one that could not get its port.
#[test]
fn a_redis_at_a_port_of_somebody_else_is_none() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = Server::redis(one.path());
    assert!(Server::redis_at(other.path(), first.port).is_none());
    assert_eq!(first.client().run("PING"), Value::Simple(b"PONG".into()));
}
