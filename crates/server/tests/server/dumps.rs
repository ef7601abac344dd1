//! SAVE and related commands, DUMP and RESTORE, SORT, COMMAND GETKEYSANDFLAGS: through sessions.

use crate::common;
use crate::common::{Client, shared, shared_on};
use hither::Db;
use hither_resp::Value;
use std::time::{Duration, Instant};

/// The payload in the reply to DUMP.
fn dump(client: &mut Client, key: &str) -> Vec<u8> {
    match client.call(&[b"DUMP", key.as_bytes()]) {
        Value::Bulk(payload) => payload,
        other => panic!("{other:?}"),
    }
}

fn restore(client: &mut Client, words: &str, payload: &[u8]) -> String {
    let mut words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
    words.insert(3, payload);
    common::show(&client.call(&words))
}

#[test]
fn what_is_dumped_can_be_restored() {
    let mut client = Client::new(&shared());
    client.script(
        "SET s text EX 100 => OK
        HSET h a 1 b 2 => 2
        ZADD z -inf a 1.5 b 1.5 c => 3
        DUMP nothing => nil",
    );
    let (s, h, z) = (dump(&mut client, "s"), dump(&mut client, "h"), dump(&mut client, "z"));
    assert_eq!(restore(&mut client, "RESTORE s 0", &h), "!BUSYKEY Target key name already exists.");
    assert_eq!(restore(&mut client, "RESTORE s 0 REPLACE", &h), "OK");
    assert_eq!(restore(&mut client, "RESTORE h 5000 REPLACE FREQ 3", &z), "OK");
    assert_eq!(restore(&mut client, "RESTORE z 4102444800000 REPLACE ABSTTL IDLETIME 9", &s), "OK");
    client.script(
        "HGETALL s => [a 1 b 2]
        TTL s => -1
        ZRANGE h 0 -1 WITHSCORES => [a -inf b 1.5 c 1.5]
        TTL h => 5
        GET z => text
        EXPIRETIME z => 4102444800
        ZADD h 0 d => 1
        ZRANK h d => 1
        HSET s a 2 c 3 => 1",
    );
    // The expiry has passed already, so the key goes.
    assert_eq!(restore(&mut client, "RESTORE h 1 ABSTTL REPLACE", &z), "OK");
    assert_eq!(restore(&mut client, "RESTORE x 1 ABSTTL", &z), "OK");
    client.script("EXISTS h x => 0");
}

#[test]
fn a_payload_that_is_refused_changes_nothing() {
    let mut client = Client::new(&shared());
    client.script("SET s text => OK\nHSET h a 1 => 1");
    let payload = dump(&mut client, "h");
    let mut damaged = payload.clone();
    damaged[3] ^= 1;
    let footer = "!ERR DUMP payload version or checksum are wrong";
    for (words, payload, reply) in [
        ("RESTORE s 0 REPLACE", &damaged, footer),
        ("RESTORE s 0 REPLACE", &payload[..5].to_vec(), footer),
        ("RESTORE new 0", &damaged, footer),
        ("RESTORE s -1 REPLACE", &payload, "!ERR Invalid TTL value, must be >= 0"),
        ("RESTORE s x REPLACE", &payload, "!ERR value is not an integer or out of range"),
        ("RESTORE s 0 REPLACE BAD", &payload, "!ERR syntax error"),
        ("RESTORE s 0 REPLACE FREQ 256", &payload, "!ERR Invalid FREQ value, must be >= 0 and <= 255"),
        ("RESTORE s 0 REPLACE IDLETIME -1", &payload, "!ERR Invalid IDLETIME value, must be >= 0"),
        ("RESTORE s 0 REPLACE IDLETIME 1 FREQ 1", &payload, "!ERR syntax error"),
    ] {
        assert_eq!(restore(&mut client, words, payload), reply, "{words}");
    }
    client.script("GET s => text\nHGETALL h => [a 1]\nDBSIZE => 2");
}

#[test]
fn sort() {
    let mut client = Client::new(&shared());
    client.script(
        "ZADD z 3 1 2 10 1 9 => 3
        SORT z => [1 9 10]
        SORT z DESC => [10 9 1]
        SORT z ALPHA => [1 10 9]
        SORT z ALPHA DESC LIMIT 0 2 => [9 10]
        SORT z LIMIT 1 1 => [9]
        SORT z LIMIT 5 1 => []
        SORT z LIMIT -1 2 => [1 9]
        SORT z BY nosort => [9 10 1]
        SORT z BY nosort DESC LIMIT 1 2 => [10 9]
        MSET w1 3 w9 1 => OK
        SORT z BY w* => [10 9 1]
        SORT_RO z BY w* GET # GET w* => [10 nil 9 1 1 3]
        HSET h1 f 5 g x => 2
        HSET h9 f 4 => 1
        SORT z BY h*->f DESC GET h*->g GET h*->-> => [x nil nil nil nil nil]
        SET w9 text => OK
        SORT z BY w* => !ERR One or more scores can't be converted into double
        SORT z BY w* ALPHA => [10 1 9]
        SORT z STORE => !ERR syntax error
        SORT_RO z STORE d => !ERR syntax error
        SORT z STORE d => !ERR there are no lists: SORT cannot STORE its result
        SET d kept => OK
        SORT nothing STORE d => !ERR there are no lists: SORT cannot STORE its result
        GET d => kept
        SORT z LIMIT 0 => !ERR syntax error
        SORT z LIMIT 0 x => !ERR value is not an integer or out of range
        SORT w1 => !WRONGTYPE Operation against a key holding the wrong kind of value
        SORT nothing => []
        ACL SETUSER low on nopass +sort +sort_ro +auth ~* => OK
        ACL SETUSER lower on nopass +sort +sort_ro +auth ~z ~w* => OK
        AUTH low x => OK
        SORT z BY h*->f => [10 9 1]
        AUTH lower x => OK
        SORT z BY nosort => [9 10 1]
        SORT z BY w* => !ERR BY option of SORT denied due to insufficient ACL permissions.
        SORT_RO z GET # => !ERR GET option of SORT denied due to insufficient ACL permissions.",
    );
}

/// As in Redis. Regression: blanks alone were the number 0.
#[test]
fn sort_takes_blanks_alone_for_no_number() {
    let mut client = Client::new(&shared());
    let none = "!ERR One or more scores can't be converted into double";
    for (text, is_number) in [
        ("", true),
        (" 1", true),
        ("\r\n1", true),
        ("\x0b\x0c1", true),
        (" ", false),
        ("  ", false),
        ("\r\n", false),
        ("\x0b", false),
        ("1 ", false),
    ] {
        client.run("DEL z m w");
        client.call(&[b"ZADD", b"z", b"1", text.as_bytes()]);
        assert_eq!(client.run("SORT z") != none, is_number, "{text:?} as a member");
        client.call(&[b"SET", b"w", text.as_bytes()]);
        client.call(&[b"ZADD", b"m", b"1", b"w"]);
        assert_eq!(client.run("SORT m BY *"), if is_number { "[w]" } else { none }, "{text:?} as a weight");
    }
}

/// As in Redis. Regression: the last BY alone counted.
#[test]
fn sort_leaves_the_order_as_it_is_after_any_by_without_a_star() {
    Client::new(&shared()).script(
        "ZADD z 3 c 1 a 2 b => 3
        MSET w_a 3 w_b 2 w_c 1 => OK
        SORT z BY w_* => [c b a]
        SORT z BY nosort BY w_* => [a b c]
        SORT z BY w_* BY nosort => [a b c]
        SORT z BY nosort BY w_* DESC => [c b a]
        SORT z BY nosort BY w_* LIMIT 1 1 => [b]
        SORT z BY nosort BY w_* ALPHA GET w_* => [3 2 1]",
    );
}

/// Regression: they were a set, but the sets of many clients cannot hold such members.
#[test]
fn subcommands_are_an_array_unless_there_are_none() {
    let mut client = Client::new(&shared());
    for (protocol, set) in [("2", "*0"), ("3", "~0")] {
        client.raw(&[b"HELLO", protocol.as_bytes()]);
        let [with, without] = ["config", "get"].map(|name| String::from_utf8(client.raw(&[b"COMMAND", b"INFO", name.as_bytes()])).unwrap());
        assert!(with.contains("\r\n*5\r\n*10\r\n$10\r\nconfig|"), "{with:?}");
        assert!(without.ends_with(&format!("\r\n{set}\r\n")), "{without:?}");
    }
}

#[test]
fn keys_and_flags() {
    Client::new(&shared()).script(
        "COMMAND GETKEYSANDFLAGS SET a b => [[a [OW update]]]
        COMMAND GETKEYSANDFLAGS SET a b GET => [[a [RW access update]]]
        COMMAND GETKEYSANDFLAGS OBJECT FREQ a => [[a [RO]]]
        COMMAND GETKEYSANDFLAGS SORT a STORE b => [[a [RO access]] [b [OW update]]]
        COMMAND GETKEYS TIME x => !ERR The command has no key arguments
        COMMAND GETKEYSANDFLAGS PING x => !ERR The command has no key arguments
        COMMAND GETKEYSANDFLAGS GET a b => !ERR Invalid number of arguments specified for command
        COMMAND GETKEYSANDFLAGS NOTHING a => !ERR Invalid command specified
        COMMAND GETKEYS BZMPOP 0 2 a b MIN => [a b]
        COMMAND GETKEYS MEMORY USAGE a => [a]
        COMMAND GETKEYSANDFLAGS BITFIELD k => [[k [RO access]]]
        COMMAND GETKEYSANDFLAGS BITFIELD k OVERFLOW sat GET u8 0 => [[k [RO access]]]
        COMMAND GETKEYSANDFLAGS BITFIELD k GET u8 set => [[k [RO access]]]
        COMMAND GETKEYSANDFLAGS BITFIELD k GET u8 0 SET u8 0 1 => [[k [RW access update]]]
        COMMAND GETKEYSANDFLAGS BITFIELD k x => [[k [RW access update]]]
        COMMAND GETKEYSANDFLAGS BITFIELD k GET u8 => [[k [RW access update]]]
        COMMAND GETKEYSANDFLAGS BITFIELD k GET u8 0 x => [[k [RW access update]]]
        COMMAND GETKEYSANDFLAGS BITFIELD k OVERFLOW => [[k [RW access update]]]
        REPLICAOF no one => OK
        SLAVEOF localhost 6379 => !ERR there is no replication: only NO ONE can be replicated",
    );
}

/// Runs a command that may wait, until it answers.
fn finish(client: &mut Client, word: &[u8]) -> Vec<u8> {
    // A sync can take long where much else is written.
    let end = Instant::now() + Duration::from_secs(200);
    loop {
        let reply = client.raw(&[word]);
        if !reply.is_empty() {
            return reply;
        }
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn saves_take_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::builder().path(dir.path()).open().unwrap();
    let mut client = Client::new(&shared_on(db.clone()));
    let taken = || db.stats().checkpoints.taken;
    let started: u64 = client.run("LASTSAVE").parse().unwrap();
    client.script("HITHER.DURABILITY PROCESS => OK\nSET a 1 => OK");
    let before = taken();
    assert_eq!(finish(&mut client, b"SAVE"), b"+OK\r\n");
    // The store also takes checkpoints on its own.
    assert!(taken() > before);
    assert!(client.run("LASTSAVE").parse::<u64>().unwrap() >= started);
    client.script(
        "BGSAVE BAD => !ERR syntax error
        BGSAVE SCHEDULE EXTRA => !ERR syntax error
        BGSAVE => Background saving started",
    );
    client.shared.saving.join();
    assert!(taken() > before + 1);
    client.script(
        "BGREWRITEAOF => Background append only file rewriting started
        MULTI => OK
        SAVE => !ERR Command not allowed inside a transaction
        DISCARD => OK
        MULTI => OK
        BGSAVE => QUEUED
        EXEC => [Background saving scheduled]",
    );
    client.shared.saving.join();
    assert!(taken() > before + 2);
    let persistence = client.run("INFO persistence");
    assert!(persistence.contains("rdb_last_bgsave_status:ok") && persistence.contains("rdb_bgsave_in_progress:0"), "{persistence}");
}

/// Regression: a checkpoint that could not be written was answered as if the store had failed and took no more writes.
#[test]
fn a_save_that_fails_is_no_failure_of_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::builder().path(dir.path()).open().unwrap();
    let mut client = Client::new(&shared_on(db));
    client.script("SET a 1 => OK");
    std::fs::create_dir(dir.path().join("checkpoint.hither.tmp")).unwrap();
    assert_eq!(finish(&mut client, b"SAVE"), b"-ERR the save failed; the log of the server says more\r\n");
    assert!(client.run("INFO persistence").contains("rdb_last_bgsave_status:err"));
    client.script("SET a 2 => OK");
    std::fs::remove_dir(dir.path().join("checkpoint.hither.tmp")).unwrap();
    assert_eq!(finish(&mut client, b"SAVE"), b"+OK\r\n");
}

/// Regression: an expiry beyond the range of a signed number made PTTL negative.
#[test]
fn an_expiry_of_restore_can_be_told() {
    let mut client = Client::new(&shared());
    client.run("SET a 1");
    let hither_resp::Value::Bulk(payload) = client.call(&[b"DUMP", b"a"]) else { panic!("a string has one") };
    assert_eq!(client.raw(&[b"RESTORE", b"b", b"9223372036854775807", &payload]), b"+OK\r\n");
    client.script("PEXPIRETIME b => 9223372036854775807\nGET b => 1");
    assert!(client.run("PTTL b").parse::<i64>().unwrap() > 0);
}

/// Regression: a member that led to a key which no store can hold failed the whole command.
#[test]
fn sort_finds_nothing_where_no_key_can_be() {
    let mut client = Client::new(&shared());
    client.script("ZADD z 1 a 2 bb => 2\nHSET ha f 1 => 1\nHSET hbb f 0 => 1");
    // With one more letter it is as long as a key may be.
    let long = "x".repeat(65_535);
    assert_eq!(client.run(&format!("SET {long}a 5")), "OK");
    assert_eq!(client.run(&format!("SORT z BY {long}* GET # GET {long}*")), "[bb nil a 5]");
    assert_eq!(client.run(&format!("SORT z BY h*->f GET h*->f GET h*->{long} GET {long}*->f")), "[0 nil nil 1 nil nil]");
    assert_eq!(client.run(&format!("SORT_RO z ALPHA BY {long}y* GET # GET {long}y*")), "[a nil bb nil]");
}
