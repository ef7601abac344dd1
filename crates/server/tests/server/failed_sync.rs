//! A sync that fails, as clients see it: an error for what waited for it and for every later write, while reads of what is durable go on.

use hither::{Db, MediumChoice};
use hither_pmem::{FailAt, Failpoints};
use hither_resp::{Limits, Value, decode};
use hither_server::{Config, Server};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

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
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
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
            let count = self.stream.read(&mut chunk).unwrap();
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
    assert_eq!(replies[1], "PONG");
    assert!(points.reached("sync") >= 1);

    // The next sync would not fail; nobody may take it for a success.
    for write in ["SET later 1", "INCR kept", "HSET h f w", "DEL kept", "ZADD z 1 m", "EXPIRE kept 100"] {
        for client in [&mut client, &mut other] {
            let reply = client.run(write).remove(0);
            assert!(reply.starts_with("MISCONF"), "{write}: {reply}");
        }
    }
    let replies = client.run("MULTI\nSET a 1\nSET b 1\nEXEC");
    assert!(replies[3].starts_with("MISCONF"), "{replies:?}");
    assert_eq!(other.run("GET kept\nHGET h f\nGET later\nPING"), ["1", "v", "Null", "PONG"]);
    server.stop();
    drop(db);

    let db = open(dir.path(), None);
    let server = serve(&db);
    let mut client = Client::of(&server);
    assert_eq!(client.run("GET kept\nHGET h f\nGET later\nSET later 2\nGET later"), ["1", "v", "Null", "OK", "2"]);
    server.stop();
}
