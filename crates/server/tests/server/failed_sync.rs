//! A failed sync, as clients see it: an error for what waited for it and for every later write, while reads of durable
//! data go on.

use crate::common::read_some;
use hither::{Db, MediumChoice};
use hither_pmem::{FailAt, Failpoints};
use hither_resp::{Limits, Value, decode};
use hither_server::{Config, Server};
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::Ordering;

const EIO: i32 = 5;

fn open(dir: &Path, points: Option<&std::sync::Arc<Failpoints>>) -> Db {
    let builder = Db::builder().path(dir).medium(MediumChoice::File).capacity(8 << 20).max_capacity(64 << 20);
    builder.with_options(|options| options.failpoints = points.cloned()).open().unwrap()
}

fn serve(db: &Db) -> Server {
    Server::start(db.clone(), Config { port: 0, threads: 2, ..Config::default() }).unwrap()
}

struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    fn of(server: &Server) -> Client {
        let stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(crate::common::FOR_EVER)).unwrap();
        Client { stream, buffer: Vec::new() }
    }

    fn receive(&mut self) -> String {
        loop {
            if let Some((value, length)) = decode(&self.buffer, &Limits::default()).unwrap() {
                self.buffer.drain(..length);
                return match value {
                    Value::Simple(text) | Value::Bulk(text) | Value::Error(text) => String::from_utf8(text).unwrap(),
                    other => format!("{other:?}"),
                };
            }
            let mut chunk = [0; 4096];
            let count = read_some(&mut self.stream, &mut chunk).unwrap();
            assert!(count > 0, "the connection ended");
            self.buffer.extend_from_slice(&chunk[..count]);
        }
    }

    fn run(&mut self, lines: &str) -> Vec<String> {
        self.stream.write_all(format!("{}\r\n", lines.replace('\n', "\r\n")).as_bytes()).unwrap();
        lines.lines().map(|_| self.receive()).collect()
    }
}

#[test]
fn a_failed_sync_is_told_and_reads_go_on() {
    let (dir, points) = (tempfile::tempdir().unwrap(), Failpoints::new());
    let db = open(dir.path(), Some(&points));
    let server = serve(&db);
    let (mut client, mut other) = (Client::of(&server), Client::of(&server));
    assert_eq!(client.run("SET kept 1\nHSET h f v"), ["OK", "Integer(1)"]);

    points.arm("sync", FailAt { skip: 0, count: 1, errno: EIO });
    // Behind the write in one pipeline: the PING keeps its place and is answered.
    let replies = client.run("SET lost 1\nPING");
    assert!(replies[0].starts_with("MISCONF"), "{replies:?}");
    assert_eq!(replies[0].matches("read-only").count(), 1, "{replies:?}");
    assert_eq!(replies[1], "PONG");
    assert!(points.reached("sync") >= 1);

    // The next sync would not fail; nobody may take it for a success.
    for write in
        ["SET later 1", "INCR kept", "HSET h f w", "DEL kept", "ZADD z 1 m", "EXPIRE kept 100", "SELECT 9", "FLUSHDB", "SWAPDB 0 1"]
    {
        for client in [&mut client, &mut other] {
            let reply = client.run(write).remove(0);
            assert!(reply.starts_with("MISCONF") && reply.matches("read-only").count() == 1, "{write}: {reply}");
        }
    }
    let replies = client.run("MULTI\nSET a 1\nSET b 1\nEXEC");
    assert!(replies[3].starts_with("MISCONF"), "{replies:?}");
    assert_eq!(other.run("GET kept\nHGET h f\nGET later\nPING"), ["1", "v", "Null", "PONG"]);
    // Commands that look at several entries, which must have been so at one moment: a batch of conditions checks that,
    // and writes nothing.
    assert_eq!(
        other.run("MGET kept kept\nEXISTS kept h\nHGETALL h\nLCS kept kept"),
        ["Array([Bulk([49]), Bulk([49])])", "Integer(2)", "Array([Bulk([102]), Bulk([118])])", "1"]
    );
    assert_eq!(other.run("WATCH kept\nMULTI\nGET kept\nEXEC")[3], "Array([Bulk([49])])");
    assert!(other.run("WATCH kept\nMULTI\nINCR kept\nEXEC")[3].starts_with("MISCONF"));
    server.stop();
    drop(db);

    let db = open(dir.path(), None);
    let server = serve(&db);
    let mut client = Client::of(&server);
    assert_eq!(client.run("GET kept\nHGET h f\nGET later\nSET later 2\nGET later"), ["1", "v", "Null", "OK", "2"]);
    server.stop();
}

/// Regression: the log did not report it.
#[test]
fn a_failed_sync_is_logged_once() {
    let mut test = std::process::Command::new(std::env::current_exe().unwrap());
    test.args(["--exact", "failed_sync::a_failed_sync_is_told_and_reads_go_on", "--nocapture"]);
    let output = test.output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("event=sync-failed")).collect();
    assert!(output.status.success() && lines.len() == 1 && lines[0].contains("level=error"), "{log}");
}

/// Regression: the thread asked for the database again and again.
#[test]
fn a_flush_that_fails_half_way_is_an_error() {
    let mut replies = Vec::new();
    for skip in 0.. {
        let (dir, points) = (tempfile::tempdir().unwrap(), Failpoints::new());
        let db = open(dir.path(), Some(&points));
        let server = serve(&db);
        let (mut client, mut other) = (Client::of(&server), Client::of(&server));
        assert_eq!(client.run("SELECT 1\nSET k 1\nSELECT 0\nSET k 1"), ["OK"; 4]);
        assert_eq!(other.run("SELECT 1\nGET k"), ["OK", "1"]);
        points.arm("sync", FailAt { skip, count: u64::MAX, errno: EIO });
        let flushed = client.run("FLUSHDB").remove(0);
        replies.push(client.run("GET k").remove(0));
        if flushed == "OK" {
            break;
        }
        for reply in [client.run("SET k 1"), other.run("SET k 2\nSWAPDB 0 1")].concat() {
            assert!(reply.starts_with("MISCONF"), "{skip}: {reply}");
        }
        assert_eq!(other.run("GET k"), ["1"]);
        // Regression: a new client was refused whatever it asked for.
        let mut fresh = Client::of(&server);
        assert_eq!(fresh.run("PING\nSELECT 1\nGET k\nSELECT 0"), ["PONG", "OK", "1", "OK"], "{skip}");
        assert_eq!(fresh.run("GET k"), replies[replies.len() - 1..], "{skip}");
        assert!(fresh.run("INFO keyspace")[0].contains("db1:keys=1"), "{skip}");
        // Regression: the number of keys was the earlier one, although there were none.
        let (count, key) = (fresh.run("DBSIZE").remove(0), &replies[replies.len() - 1]);
        assert_eq!(count == "Integer(1)", key == "1", "{skip}: {count} keys, {key}");
        server.stop();
    }
    assert_eq!((replies.first().unwrap().as_str(), replies.last().unwrap().as_str()), ("1", "Null"));
    assert!(replies.iter().any(|reply| reply.starts_with("MISCONF")), "{replies:?}");
}

/// Regression: the reply named the store's files and had no code, and nobody else learned that the sync had failed.
#[test]
fn a_sync_that_fails_under_save_is_told_like_any_other() {
    let (dir, points) = (tempfile::tempdir().unwrap(), Failpoints::new());
    let db = open(dir.path(), Some(&points));
    let server = serve(&db);
    let (mut client, mut other) = (Client::of(&server), Client::of(&server));
    assert_eq!(client.run("SET kept 1\nHITHER.DURABILITY process\nSET k 1"), ["OK"; 3]);
    points.arm("sync", FailAt { skip: 0, count: u64::MAX, errno: EIO });
    let reply = client.run("SAVE").remove(0);
    assert!(reply.starts_with("MISCONF ") && !reply.contains(".hither") && !reply.contains("node"), "{reply}");
    assert!(server.shared().failed.load(Ordering::Relaxed), "readyz and the metrics go by that");
    assert!(other.run("SET k 2").remove(0).starts_with("MISCONF "));
    assert_eq!(other.run("GET kept"), ["1"]);
    server.stop();
}

/// Regression: a stop waited for all changes that had been asked for, by clients that were gone.
#[test]
fn changes_that_have_not_begun_when_the_server_stops_are_refused() {
    let shared = crate::common::shared();
    let mut client = crate::common::Client::new(&shared);
    assert_eq!(client.run("SET key value"), "OK");
    shared.stopping.store(true, Ordering::SeqCst);
    for line in ["FLUSHALL", "SWAPDB 0 1", "SELECT 5"] {
        assert!(client.run(line).starts_with('!'), "{line}");
    }
    assert_eq!(client.run("GET key"), "value");
}
