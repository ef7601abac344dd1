//! Collections that a loss of power has left half changed: what a client finds at the next start. The tests make such
//! states by hand.

use crate::common::{Client, shared_on};
use hither::{Db, Durability, MediumChoice};
use hither_server::data::encoding::{Head, MARKER, Type, members_prefix, part, registry_row, row, score_row};
use hither_server::data::{Database, reaper};
use hither_server::{Config, Server};
use std::path::Path;
use std::sync::Arc;

fn open(dir: &Path) -> Db {
    let builder = Db::builder().path(dir).medium(MediumChoice::File).capacity(8 << 20).max_capacity(64 << 20);
    builder.durability(Durability::Process).open().unwrap()
}

/// A copy of an open store as a crash would leave it.
fn copy_of(db: &Db, dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    db.sync().unwrap();
    for file in std::fs::read_dir(dir).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    copy
}

/// A client of database 0 at the next start after a crash; `lose` makes the state that the crash leaves.
fn after(lose: impl FnOnce(&mut Client, &Database)) -> Client {
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path());
    let mut client = Client::new(&shared_on(db.clone()));
    let database = database(&client);
    lose(&mut client, &database);
    let copy = copy_of(&db, dir.path());
    let db = open(copy.path());
    assert!(!db.recovery().clean);
    Client::new(&shared_on(db))
}

fn database(client: &Client) -> Arc<Database> {
    client.shared.databases.get(0).unwrap()
}

fn head(database: &Database, key: &str) -> Head {
    Head::decode(&database.keys.get(key.as_bytes()).unwrap().unwrap()).unwrap()
}

/// Checks that no rows are left once these keys are deleted.
fn leaves_nothing(client: &mut Client, keys: &str) {
    client.run(&format!("DEL {keys}"));
    reaper::sweep(&client.shared.databases).unwrap();
    assert!(database(client).keys.is_empty());
    assert_eq!(crate::common::rows(&client.shared), [0]);
}

/// Regression: a head counted fields whose write was lost, so HGETALL announced more than it sent.
#[test]
fn a_hash_counts_what_is_there() {
    let mut client = after(|client, database| {
        client.run("HSET h f1 v f2 v");
        client.run("HSET h f3 v f4 v");
        client.run("HSET other f v");
        client.run("EXPIRE h 1000");
        database.rows.delete(&row(head(database, "h").number, part::FIELD, b"f3")).unwrap();
    });
    client.script(
        "HLEN h => 3
         HGETALL h => [f1 v f2 v f4 v]
         HDEL h f1 => 1
         HLEN other => 1
         TTL other => -1",
    );
    assert!(client.run("TTL h").parse::<i64>().unwrap() > 900);
    assert_eq!(client.run("HDEL h f2 f4"), "2");
    assert_eq!(client.run("EXISTS h"), "0");
    leaves_nothing(&mut client, "other");
}

/// Regression: a collection that had lost every row still had a head.
#[test]
fn a_collection_without_rows_is_gone() {
    let mut client = after(|client, database| {
        client.run("HSET h f v");
        database.rows.delete(&row(head(database, "h").number, part::FIELD, b"f")).unwrap();
    });
    client.script("EXISTS h => 0");
    leaves_nothing(&mut client, "h");
}

/// Regression: the write that made the only collection of a database was lost, and the expiry that it was given was
/// kept. Without a row the database passed for one of strings.
#[test]
fn a_database_of_which_all_rows_are_lost_is_mended() {
    let mut client = after(|client, database| {
        client.script("HSET h f v => 1\nEXPIRE h 1000 => 1");
        let number = head(database, "h").number;
        database.rows.delete(&registry_row(number)).unwrap();
        database.rows.delete(&row(number, part::FIELD, b"f")).unwrap();
    });
    client.script("EXISTS h => 0\nHSET h g v => 1\nHGETALL h => [g v]");
    leaves_nothing(&mut client, "h");
}

/// Regression: a change of a score was lost and the next one kept, and the member had two scores.
#[test]
fn a_member_has_one_score() {
    let mut client = after(|client, database| {
        client.run("ZADD z 5 m 1 n 9 o");
        client.run("ZADD z 7 m");
        let number = head(database, "z").number;
        database.rows.put(&score_row(number, 6.0, b"m"), b"").unwrap();
        database.rows.delete(&score_row(number, 1.0, b"n")).unwrap();
        database.rows.put(&score_row(number, 2.0, b"nobody"), b"").unwrap();
    });
    client.script(
        "ZCARD z => 3
         ZRANGE z 0 -1 WITHSCORES => [n 1 m 7 o 9]
         ZREVRANGE z 0 -1 => [o m n]
         ZCOUNT z -inf +inf => 3
         ZSCORE z m => 7
         ZRANGEBYSCORE z 6 6 => []",
    );
    leaves_nothing(&mut client, "z");
}

/// More rows than are looked at together.
#[test]
fn a_large_set_is_mended_in_portions() {
    let mut client = after(|client, database| {
        for member in 0..1000 {
            client.run(&format!("ZADD z {member} m{member}"));
        }
        let number = head(database, "z").number;
        for member in 0..1000 {
            database.rows.put(&score_row(number, 2000.0, format!("m{member}").as_bytes()), b"").unwrap();
        }
        database.rows.delete(&row(number, part::MEMBER, b"m999")).unwrap();
    });
    client.script("ZCARD z => 999\nZCOUNT z -inf +inf => 999\nZRANGE z -1 -1 WITHSCORES => [m998 998]");
    leaves_nothing(&mut client, "z");
}

/// Regression: the write that made a collection was lost and the next one kept, so nothing in the registry led to its
/// rows.
#[test]
fn a_collection_is_registered() {
    let mut client = after(|client, database| {
        client.run("HSET h f1 v");
        client.run("HSET h f2 v");
        let number = head(database, "h").number;
        database.rows.delete(&registry_row(number)).unwrap();
        database.rows.delete(&row(number, part::FIELD, b"f1")).unwrap();
    });
    client.script("HGETALL h => [f2 v]");
    leaves_nothing(&mut client, "h");
}

/// Regression: rows to which neither a head nor the registry led stayed for ever.
#[test]
fn rows_of_nobody_are_removed() {
    let mut client = after(|client, database| {
        client.run("HSET h f1 v");
        client.run("HSET h f2 v");
        database.rows.delete(&registry_row(head(database, "h").number)).unwrap();
        database.keys.delete(b"h").unwrap();
        client.run("HSET kept f v");
    });
    reaper::sweep(&client.shared.databases).unwrap();
    let database = database(&client);
    let rows = database.rows.iter().map(|pair| pair.unwrap().0).collect::<Vec<_>>();
    let number = head(&database, "kept").number;
    assert_eq!(rows, [registry_row(number).to_vec(), [&members_prefix(number)[..], b"ff"].concat(), MARKER.to_vec()]);
    leaves_nothing(&mut client, "kept");
}

/// Regression: a RENAME was lost and the next write to the new name kept. Two keys had the same rows, and DEL of one
/// took those of the other.
#[test]
fn of_two_heads_the_later_one_keeps_the_rows() {
    for (old, new) in [("a", "b"), ("b", "a")] {
        let mut client = after(|client, database| {
            client.run(&format!("HSET {old} f v"));
            let number = head(database, old).number;
            database.rows.put(&row(number, part::FIELD, b"g"), b"w").unwrap();
            database.keys.put(new.as_bytes(), &Head { kind: Type::Hash, number, count: 2 }.encode()).unwrap();
        });
        assert_eq!(client.run(&format!("DEL {old}")), "0");
        reaper::sweep(&client.shared.databases).unwrap();
        assert_eq!(client.run(&format!("HGETALL {new}")), "[f v g w]");
        leaves_nothing(&mut client, new);
    }
}

/// Regression: the same with a second RENAME, which was kept: the registry names the third key.
#[test]
fn of_three_heads_the_last_one_keeps_the_rows() {
    let mut client = after(|client, database| {
        client.run("HSET b f v");
        let number = head(database, "b").number;
        for (count, key) in [(2, "c"), (3, "a")] {
            database.keys.put(key.as_bytes(), &Head { kind: Type::Hash, number, count }.encode()).unwrap();
        }
        database.rows.put(&registry_row(number), b"c").unwrap();
    });
    client.script("HGETALL a => [f v]\nEXISTS b c => 0");
    leaves_nothing(&mut client, "a");
}

/// Regression: RENAME a b was lost; HDEL b, RENAME b c and DEL c were kept. The head at the old name was as before all
/// that, so its rows were not counted.
#[test]
fn a_head_that_lost_its_rename_is_counted() {
    let mut client = after(|client, database| {
        client.run("HSET a f v g v");
        client.shared.databases.mark.raise(&client.shared.databases.db).unwrap();
        let number = head(database, "a").number;
        database.rows.delete(&row(number, part::FIELD, b"f")).unwrap();
        database.rows.put(&registry_row(number), b"c").unwrap();
    });
    client.script("HLEN a => 1\nHGETALL a => [g v]");
    leaves_nothing(&mut client, "a");
}

#[test]
fn all_databases_are_mended_also_those_that_are_not_served() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path());
    let mut client = Client::new(&shared_on(db.clone()));
    client.script("SELECT 5 => OK\nHSET h f v g v => 2");
    let database = client.shared.databases.get(5).unwrap();
    database.rows.delete(&row(head(&database, "h").number, part::FIELD, b"f")).unwrap();
    let copy = copy_of(&db, dir.path());
    let db = open(copy.path());
    let few = hither_server::Shared::new(db.clone(), Config { databases: 1, ..Config::default() }, 1).unwrap();
    assert_eq!(few.databases.mended.unwrap().heads, 1);
    drop(few);
    let mut client = Client::new(&shared_on(db));
    client.script("SELECT 5 => OK\nHLEN h => 1");
}

#[test]
fn after_an_orderly_end_nothing_is_walked() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path());
    let server = Server::start(db.clone(), Config { port: 0, threads: 1, ..Config::default() }).unwrap();
    Client::new(server.shared()).script("HSET h f v => 1");
    assert_eq!(server.shared().databases.mended, None);
    server.stop();
    db.close().unwrap();
    let shared = shared_on(open(dir.path()));
    assert_eq!(shared.databases.mended, None);
    // This server has not marked an orderly end; that the store is closed in order changes nothing.
    Client::new(&shared).script("HSET h g v => 1");
    drop(shared);
    let shared = shared_on(open(dir.path()));
    let mended = shared.databases.mended.unwrap();
    assert_eq!((mended.keys, mended.collections, mended.heads, mended.rows), (2, 1, 0, 0));
}

/// Between a crash and the next start of the server, something else may open the store, which settles everything that
/// is there.
#[test]
fn what_was_opened_in_between_is_mended_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path());
    let mut client = Client::new(&shared_on(db.clone()));
    client.script("HSET h f v g v => 2");
    let database = database(&client);
    database.rows.delete(&row(head(&database, "h").number, part::FIELD, b"f")).unwrap();
    let copy = copy_of(&db, dir.path());
    let between = open(copy.path());
    assert!(!between.recovery().clean);
    between.close().unwrap();
    let db = open(copy.path());
    assert!(db.recovery().clean);
    Client::new(&shared_on(db)).script("HGETALL h => [g v]");
}

/// A server of an earlier version has not noted up to where everything is whole: what the store has settled is.
#[test]
fn stores_of_before_are_mended() {
    let mut client = after(|client, database| {
        client.run("HSET h f v g v");
        database.rows.delete(&row(head(database, "h").number, part::FIELD, b"f")).unwrap();
        client.shared.databases.db.keyspace("server").unwrap().delete(b"collections whole").unwrap();
    });
    client.script("HGETALL h => [g v]");
}

/// What was durable when the server last raised the mark is not counted again.
#[test]
fn what_was_whole_before_is_not_counted() {
    let client = after(|client, _| {
        client.run("HSET h f v");
        client.shared.databases.mark.raise(&client.shared.databases.db).unwrap();
        client.run("HSET i f v");
    });
    let mended = client.shared.databases.mended.unwrap();
    assert_eq!((mended.keys, mended.collections), (4, 1));
}

/// Regression: HGETALL announced the head's number of fields, whatever followed.
#[test]
fn a_reply_has_as_many_fields_as_it_says() {
    let mut client = Client::new(&crate::common::shared());
    client.script("HSET h f v g v => 2");
    let database = database(&client);
    database.rows.delete(&row(head(&database, "h").number, part::FIELD, b"f")).unwrap();
    client.script("HGETALL h => [g v]\nHKEYS h => [g]\nHVALS h => [v]");
    client.script("MULTI => OK\nHGETALL h => QUEUED\nEXEC => [[g v]]");
}
