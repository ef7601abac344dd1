//! A server whose store has reached the bound of its live bytes: it starts, and deletes give space back.

use crate::common::{Client, shared_on};
use hither::{Db, Durability, MediumChoice};
use hither_server::data::encoding::{Head, registry_row};
use hither_server::data::reaper;
use hither_server::{Config, Server};
use std::path::Path;
use std::time::Duration;

const CAPACITY: u64 = 8 << 20;
const VALUE: [u8; 16 << 10] = [b'v'; 16 << 10];

fn open(dir: &Path, utilization: Option<u32>) -> Db {
    let builder = Db::builder().path(dir).medium(MediumChoice::File).capacity(CAPACITY).max_capacity(CAPACITY);
    let builder = builder.durability(Durability::Process);
    utilization.into_iter().fold(builder, |builder, percent| builder.utilization(percent)).open().unwrap()
}

fn start(db: &Db) -> Server {
    Server::start(db.clone(), Config { port: 0, threads: 1, ..Config::default() }).unwrap()
}

/// Adds fields to hash `h` until one is refused or there are `most`; returns how many were added.
fn fill(client: &mut Client, most: usize) -> usize {
    for number in 0..most {
        let reply = client.raw(&[b"HSET", b"h", format!("f{number}").as_bytes(), &VALUE]);
        if reply.starts_with(b"-OOM") {
            return number;
        }
        assert_eq!(reply, b":1\r\n");
    }
    most
}

/// Checks that there is no room, and that deleting makes some.
fn gives_space_back(mut client: Client) {
    let put = |client: &mut Client| client.raw(&[b"SET", b"k", &VALUE]);
    assert!(put(&mut client).starts_with(b"-OOM"));
    assert_eq!(client.run("DEL h"), "1");
    reaper::sweep(&client.shared.databases).unwrap();
    // The server's own reaper may be at work as well.
    crate::common::until(|| crate::common::rows(&client.shared) == [0]);
    assert_eq!(put(&mut client), b"+OK\r\n");
}

/// Regression: an orderly end deleted the note that collections are whole, and no later start could write it again:
/// each ended with the status of a full store.
#[test]
fn a_server_at_the_bound_starts_again_after_an_orderly_end() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..2 {
        let db = open(dir.path(), Some(25));
        let server = start(&db);
        let mut client = Client::new(server.shared());
        match round {
            0 => assert!((100..160).contains(&fill(&mut client, 1000))),
            _ => gives_space_back(client),
        }
        server.stop();
        db.close().unwrap();
    }
}

/// Regression: the same in a store that never had the note, or whose bound is lower than it was.
#[test]
fn a_server_starts_where_nothing_of_its_own_is_there_yet() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path(), None);
    fill(&mut Client::new(&shared_on(db.clone())), 200);
    let own = db.keyspace("server").unwrap();
    own.delete(b"collections whole").unwrap();
    own.delete(b"next collection").unwrap();
    drop(own);
    db.close().unwrap();
    gives_space_back(Client::new(&shared_on(open(dir.path(), Some(25)))));
}

/// Regression: what mending has to write was refused, and from then on nothing that was deleted gave its rows back.
#[test]
fn a_store_at_the_bound_is_mended() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path(), Some(25));
    let shared = shared_on(db.clone());
    let mut client = Client::new(&shared);
    client.run("HSET other f v");
    fill(&mut client, 1000);
    let database = shared.databases.get(0).unwrap();
    let number = Head::decode(&database.keys.get(b"other").unwrap().unwrap()).unwrap().number;
    database.rows.delete(&registry_row(number)).unwrap();
    drop((database, client, shared));
    db.close().unwrap();
    let mut client = Client::new(&shared_on(open(dir.path(), Some(25))));
    assert_eq!(client.shared.databases.mended.map(|mended| mended.rows), Some(1));
    assert_eq!(client.run("DEL other"), "1");
    gives_space_back(client);
}

/// A field is deleted together with a put of its collection's count, which must find room in a full store as the delete
/// does.
#[test]
fn members_are_deleted_one_by_one_in_a_full_store() {
    let sizes = Db::builder().in_memory().capacity(4 << 20).max_capacity(4 << 20).segment_bytes(64 << 10);
    let db = sizes.durability(Durability::Process).space_patience(Duration::from_secs(2)).open().unwrap();
    let mut client = Client::new(&shared_on(db));
    let mut stored = [0, 0];
    for (collection, most) in [(0, 8_000), (1, usize::MAX), (0, usize::MAX)] {
        let fits = |number: &usize| {
            let (field, member) = (format!("f{number}"), format!("m{number}"));
            let lines: [[&[u8]; 4]; 2] = [[b"HSET", b"h", field.as_bytes(), b"12345678"], [b"ZADD", b"z", b"1", member.as_bytes()]];
            !client.raw(&lines[collection]).starts_with(b"-OOM")
        };
        stored[collection] = (stored[collection]..most.min(100_000)).take_while(fits).last().map_or(stored[collection], |last| last + 1);
    }
    assert!(stored[0] >= 8_000 && stored[1] > 1_000 && stored[1] < 100_000, "{stored:?}");
    for (command, count) in [("HDEL h f", stored[0]), ("ZREM z m", stored[1])] {
        (0..count).for_each(|number| assert_eq!(client.run(&format!("{command}{number}")), "1"));
    }
    assert_eq!(client.run("EXISTS h z"), "0");
    assert_eq!(client.raw(&[b"SET", b"k", &VALUE]), b"+OK\r\n");
}
