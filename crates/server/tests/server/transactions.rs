//! The effects of a transaction if one of its commands, or all of it, fails.

use crate::common;
use crate::common::{Client, shared, shared_on};
use hither::Db;
use hither_server::data::reaper;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Regression: one of these failed the transaction as a whole.
#[test]
fn what_no_store_can_hold_is_an_error_of_its_command_alone() {
    let shared = shared();
    let mut client = Client::new(&shared);
    let long = "x".repeat(65_537);
    client.script("SELECT 1 => OK\nSET there 1 => OK\nSELECT 0 => OK\nHSET h f v => 1\nSET s kept => OK");
    client.script("MULTI => OK\nSET a 1 => QUEUED\nSET '' x => QUEUED\nMSET b 1 '' 2 c 3 => QUEUED\nMSETNX b 1 '' 2 => QUEUED");
    for line in [
        format!("SET {long} 1"),
        format!("MSET b 1 {long} 2"),
        format!("DEL h {long}"),
        format!("RENAME h {long}"),
        format!("HSET h f w g w {long} w"),
        format!("HSET new f w {long} w"),
        format!("ZADD z 1 a 2 {long}"),
        format!("COPY h {long} DB 1"),
        format!("GET {long}"),
    ] {
        assert_eq!(client.run(&line), "QUEUED");
    }
    client.script("INCR a => QUEUED\nHGETALL h => QUEUED\nINCR there => QUEUED");
    let empty = "!ERR an empty key was given; keys have 1 to 65536 bytes";
    let too_long = "!ERR a key of 65537 bytes is too long; keys have 1 to 65536 bytes";
    let field = "!ERR a field of 65537 bytes is too long; fields have up to 65526 bytes";
    let member = "!ERR a member of 65537 bytes is too long; members have up to 65518 bytes";
    let errors =
        format!("{}{} {field} {field} {member} {too_long} {too_long}", format!(" {empty}").repeat(3), format!(" {too_long}").repeat(4));
    assert_eq!(client.run("EXEC"), format!("[OK{errors} 2 [f v] 1]"));
    client.script(
        "KEYS * => [a h s there]
        HGETALL h => [f v]
        GET s => kept
        SELECT 1 => OK
        KEYS * => [there]",
    );
    assert_eq!(common::rows(&shared), [2, 0], "a hash with a field, and where it is");
    assert_eq!(reaper::sweep(&shared.databases).unwrap(), 0);
}

/// Regression: the database that a transaction had chosen stayed in force when it failed as a whole.
#[test]
fn nothing_of_a_transaction_that_fails_as_a_whole_stays_in_force() {
    let db = Db::builder().in_memory().capacity(1 << 20).max_capacity(1 << 20).space_patience(Duration::ZERO).open().unwrap();
    let shared = shared_on(db);
    let (mut client, large) = (Client::new(&shared), "x".repeat(1 << 20));
    client.script("SET where 0 => OK\nMULTI => OK\nSELECT 1 => QUEUED\nSET where 1 => QUEUED");
    assert_eq!(client.run(&format!("SET large {large}")), "QUEUED");
    let reply = client.run("EXEC");
    assert!(reply.starts_with("!OOM"), "{reply}");
    client.script("GET where => 0\nSELECT 1 => OK\nEXISTS where => 0");
}

/// Whatever is watched afterwards, and whatever becomes of the databases.
#[test]
fn a_watch_is_broken_once_its_database_is_replaced() {
    let shared = shared();
    let [mut one, mut other] = [(); 2].map(|()| Client::new(&shared));
    for (change, end) in [("FLUSHDB", "EXEC => nil"), ("SWAPDB 0 1", "EXEC => nil"), ("FLUSHDB", "DISCARD => OK"), ("PING", "EXEC => [OK]")]
    {
        one.script("WATCH k => OK");
        other.run(change);
        one.script("WATCH k l => OK\nSELECT 1 => OK\nWATCH k => OK\nSELECT 0 => OK");
        other.run(change);
        one.script(&format!("MULTI => OK\nSET n 1 => QUEUED\n{end}"));
        one.script("WATCH k => OK\nMULTI => OK\nSET n 2 => QUEUED\nEXEC => [OK]");
    }
}

/// Regression: the kill stayed in force from the attempt that had to wait, so EXEC did not run again.
#[test]
fn exec_that_waits_for_a_database_and_kills_its_client_runs() {
    let server = common::start();
    let mut client = common::connect(&server);
    let id = common::say(&mut client, "CLIENT ID");
    common::send(&mut client, &format!("MULTI; SET k 1; CLIENT KILL ID {id} SKIPME no; COPY k k DB 9; EXEC; SET k 2"));
    assert_eq!(common::receive(&mut client, 5)[4], "[OK 1 1]");
    assert_eq!(std::io::Read::read(&mut client, &mut [0]).unwrap(), 0, "it is closed then");
    assert_eq!(common::say(&mut common::connect(&server), "GET k"), "1");
    server.stop();
}

/// Each command goes on where those before it have stopped: no member is taken twice, and none is left out.
#[test]
fn many_members_are_taken_one_by_one_in_one_transaction() {
    const MEMBERS: usize = 8000;
    let mut client = Client::new(&shared());
    let all: Vec<String> = (0..MEMBERS).map(|member| format!("{member} m{member}")).collect();
    client.run(&format!("ZADD z {}", all.join(" ")));
    client.run("MULTI");
    (0..MEMBERS / 2 - 1).for_each(|_| drop(["ZPOPMIN z", "ZPOPMIN z"].map(|line| client.run(line))));
    let reply = client.run("EXEC");
    let expected: Vec<String> = (0..MEMBERS - 2).map(|member| format!("[m{member} ,{member}]")).collect();
    assert_eq!(reply.replace(" ,", " "), format!("[{}]", expected.join(" ")).replace(" ,", " "));
    assert_eq!(client.run("ZCARD z"), "2");
}

/// The same from both ends of several sets in turn, more than are remembered.
#[test]
fn members_are_taken_from_many_ends_in_turn_in_one_transaction() {
    const SETS: usize = 12;
    const TURNS: usize = 50;
    let mut client = Client::new(&shared());
    let all: Vec<String> = (0..2 * TURNS + 1).map(|member| format!("{member} m{member}")).collect();
    (0..SETS).for_each(|set| drop(client.run(&format!("ZADD z{set} {}", all.join(" ")))));
    client.run("MULTI");
    let (mut expected, last) = (Vec::new(), 2 * TURNS);
    for turn in 0..TURNS {
        for set in 0..SETS {
            client.run(&format!("ZPOPMIN z{set}"));
            client.run(&format!("ZPOPMAX z{set}"));
            expected.push(format!("[m{turn} {turn}] [m{} {}]", last - turn, last - turn));
        }
    }
    assert_eq!(client.run("EXEC").replace(',', ""), format!("[{}]", expected.join(" ")));
    (0..SETS).for_each(|set| assert_eq!(client.run(&format!("ZRANGE z{set} 0 -1")), format!("[m{TURNS}]")));
}

/// A member that comes back where members were taken is found.
#[test]
fn members_that_come_back_within_a_transaction_are_found() {
    let mut client = Client::new(&shared());
    client.script("ZADD z 1 a 2 b 3 c 4 d 5 e 6 f => 6\nZADD y 1 q 2 r => 2\nMULTI => OK");
    let (takes, gives) = (["ZPOPMIN z", "ZPOPMAX z", "ZPOPMIN y"], ["ZADD z 2.5 b", "ZADD z 0 n", "ZADD z 9 a"]);
    for line in takes.iter().chain(&takes).chain(&gives).chain(&takes[..2]).chain(&["ZRANGE z 0 -1", "ZRANGE z 0 0 REV", "EXISTS y"]) {
        assert_eq!(client.run(line), "QUEUED");
    }
    let reply = client.run("EXEC").replace(",", "");
    assert_eq!(reply, "[[a 1] [f 6] [q 1] [b 2] [e 5] [r 2] 1 1 1 [n 0] [a 9] [b c d] [d] 0]");
    client.script("ZRANGE z 0 -1 => [b c d]\nZCARD z => 3");
}

/// Commands with effects outside the store.
const OUTSIDE: &str = "CLIENT SETNAME new => QUEUED
    CLIENT SETINFO lib-name lib => QUEUED
    CLIENT KILL ID 2 => QUEUED
    CLIENT PAUSE 1000000 WRITE => QUEUED
    CONFIG RESETSTAT => QUEUED
    SLOWLOG RESET => QUEUED
    LATENCY RESET => QUEUED
    ACL LOG RESET => QUEUED";

/// Regression: they took effect although EXEC failed, and again at each attempt.
#[test]
fn what_is_done_outside_the_store_is_done_only_if_exec_is() {
    let shared = shared();
    let (mut client, other) = (Client::new(&shared), Client::new(&shared));
    shared.settings.latency.threshold_ms.store(1 << 40, Ordering::Relaxed);
    shared.settings.latency.note("loop", Duration::from_millis(1 << 40));
    client.script(
        "CONFIG SET slowlog-log-slower-than 0 => OK
        SETRANGE large 100000 x => 100001
        CONFIG SET slowlog-log-slower-than -1 => OK
        AUTH nobody x => !WRONGPASS invalid username-password pair or user is disabled.",
    );
    let seen = || {
        let client = shared.clients.get(1).unwrap();
        let names = (client.name.lock().clone(), client.library.lock().0.clone());
        let is_paused = shared.pause.at(|| 0).is_some();
        let logs = (shared.slowlog.is_empty(), shared.settings.latency.events().is_empty(), shared.acl().log.newest(1).is_empty());
        (names, other.session.client.is_killed(), is_paused, logs)
    };
    let before = seen();
    client.script(&format!("MULTI => OK\n{OUTSIDE}\nGET large => QUEUED"));
    shared.settings.max_output_bytes.store(10_000, Ordering::Relaxed);
    client.script("EXEC => !ERR the reply is larger than max-output, so nothing was done");
    assert_eq!(seen(), before);
    assert_eq!(shared.total(|core| &core.errors), 2, "the counters go on");
    client.script(&format!("MULTI => OK\n{OUTSIDE}\nEXEC => [OK OK 1 OK OK OK 1 OK]"));
    assert_eq!(seen(), (("new".to_owned(), "lib".to_owned()), true, true, (true, true, true)));
    assert_eq!(shared.total(|core| &core.errors), 0);
    // These cannot be deferred: their answers depend on what they do.
    for line in ["CONFIG SET timeout 77", "CLIENT UNBLOCK 2"] {
        client.script("MULTI => OK");
        assert_eq!(client.run(line), "!ERR Command not allowed inside a transaction");
        client.script("DISCARD => OK");
    }
}

/// Nor does a command take effect that fails within EXEC; and those that follow do not see the effects yet.
#[test]
fn what_is_done_outside_the_store_is_done_behind_exec() {
    let shared = shared();
    let (mut client, other) = (Client::new(&shared), Client::new(&shared));
    client.script(
        "MULTI => OK
        CLIENT PAUSE x => QUEUED
        CLIENT PAUSE 1000 => QUEUED
        CLIENT UNPAUSE => QUEUED
        CLIENT KILL ID 2 => QUEUED
        CLIENT KILL 127.0.0.1:9 => QUEUED
        CLIENT KILL TYPE normal => QUEUED
        CLIENT SETNAME a => QUEUED
        CLIENT GETNAME => QUEUED
        EXEC => [!ERR timeout is not an integer or out of range OK OK 1 !ERR No such client 1 OK nil]
        CLIENT GETNAME => a",
    );
    assert!(other.session.client.is_killed() && !client.session.client.is_killed());
    assert!(shared.pause.at(|| 0).is_none());
}

/// Regression: these wrote the same value again, which failed the transactions of others who watched the key.
#[test]
fn commands_that_change_nothing_write_nothing() {
    let shared = shared();
    let (mut client, mut other) = (Client::new(&shared), Client::new(&shared));
    client.script("ZADD z 1.5 m => 1\nSETRANGE s 0 abc => 3");
    for line in [
        "ZINCRBY z 0 m",
        "ZINCRBY z -0 m",
        "BITFIELD s SET u8 0 97",
        "BITFIELD s OVERFLOW FAIL INCRBY u8 8 200 GET u8 0",
        "BITFIELD s INCRBY u4 0 0",
    ] {
        client.script("WATCH z s => OK");
        other.run(line);
        client.script("MULTI => OK\nPING => QUEUED\nEXEC => [PONG]");
    }
    for line in ["ZINCRBY z 1 m", "BITFIELD s SET u8 0 98", "BITFIELD s OVERFLOW FAIL INCRBY u8 24 300"] {
        client.script("WATCH z s => OK");
        other.run(line);
        client.script("MULTI => OK\nPING => QUEUED\nEXEC => nil");
    }
    client.script("GETRANGE s 0 -1 => bbc\u{0}\nBITFIELD new OVERFLOW FAIL INCRBY u8 8 300 => [nil]\nSTRLEN new => 2");
}

/// Regression: the effects of a transaction outside the store happened at each attempt, and even if EXEC failed;
/// commands were counted when they were queued.
#[test]
fn what_a_transaction_counts_and_keeps_it_does_once_it_is_applied() {
    let shared = shared();
    let (mut client, mut other) = (Client::new(&shared), Client::new(&shared));
    let figure = |client: &mut Client, section: &str, name: &str| {
        let text = client.run(&format!("INFO {section}"));
        text.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned)).unwrap_or_default()
    };
    client.script("SET k 1 => OK\nMSET a 1 b 2 => OK\nSET s x => OK");
    let queue = "MULTI => OK\nGET k => QUEUED\nGET none => QUEUED\nINCR s => QUEUED\nSCAN 0 COUNT 1 => QUEUED\nAUTH nobody x => QUEUED";
    client.script(&format!("{queue}\nDISCARD => OK"));
    client.script(&format!("WATCH k => OK\n{queue}"));
    other.script("CONFIG RESETSTAT => OK\nACL LOG RESET => OK\nAPPEND k 1 => 2");
    client.script("EXEC => nil");
    for (section, name, expected) in [
        ("commandstats", "cmdstat_get:", ""),
        ("commandstats", "cmdstat_incr:", ""),
        ("stats", "total_error_replies:", "0"),
        ("stats", "keyspace_hits:", "0"),
    ] {
        assert_eq!(figure(&mut other, section, name), expected, "{name}");
    }
    assert_eq!(other.run("ACL LOG"), "[]");
    client.script(queue);
    let scanned = client.run("EXEC");
    assert!(scanned.starts_with("[11 nil !ERR value is not an integer or out of range [1 [a]] !WRONGPASS "), "{scanned}");
    assert!(figure(&mut other, "commandstats", "cmdstat_get:").starts_with("calls=2,"));
    let incr = figure(&mut other, "commandstats", "cmdstat_incr:");
    assert!(incr.starts_with("calls=1,") && incr.ends_with(",rejected_calls=0,failed_calls=1"), "{incr}");
    assert_eq!(figure(&mut other, "stats", "total_error_replies:"), "2");
    assert_eq!((figure(&mut other, "stats", "keyspace_hits:"), figure(&mut other, "stats", "keyspace_misses:")), ("1".into(), "1".into()));
    assert_eq!(shared.acl().log.newest(9).len(), 1);
    client.script("GET => !ERR wrong number of arguments for 'get' command");
    assert!(figure(&mut other, "commandstats", "cmdstat_get:").ends_with(",rejected_calls=1,failed_calls=0"));
}

#[test]
fn the_slow_log_has_the_commands_of_a_transaction() {
    let shared = shared();
    let mut client = Client::new(&shared);
    client.script(
        "CONFIG SET slowlog-log-slower-than 0 => OK\nMULTI => OK\nSET k 1 => QUEUED\nINCR k => QUEUED\nDISCARD => OK\nSLOWLOG RESET => OK",
    );
    client.script("MULTI => OK\nSET k 1 => QUEUED\nAPPEND k 2 => QUEUED\nEXEC => [OK 2]");
    let words: Vec<_> = shared.slowlog.newest(9).into_iter().map(|slow| String::from_utf8(slow.arguments[0].clone()).unwrap()).collect();
    assert_eq!(words, ["APPEND", "SET", "MULTI", "SLOWLOG"]);
}

/// Regression: setting the same expiry again was no change, although GETEX is a change for clients that watch the key.
#[test]
fn getex_is_a_change_also_to_the_expiry_of_before() {
    let shared = shared();
    let (mut client, mut other) = (Client::new(&shared), Client::new(&shared));
    client.script("SET k v PXAT 33177117420000 => OK\nWATCH k => OK");
    other.script("GETEX k PXAT 33177117420000 => v");
    client.script("MULTI => OK\nPING => QUEUED\nEXEC => nil\nWATCH k => OK");
    other.script("GETEX k => v\nSET plain v => OK");
    client.script("MULTI => OK\nPING => QUEUED\nEXEC => [PONG]\nWATCH plain => OK");
    other.script("GETEX plain PERSIST => v");
    client.script("MULTI => OK\nPING => QUEUED\nEXEC => [PONG]\nPEXPIRETIME k => 33177117420000");
}

/// Errors are counted by their code, those of a transaction once it is applied. INFO shows errors by default, and
/// commands only if asked.
#[test]
fn errors_are_counted_by_their_code() {
    let mut client = Client::new(&shared());
    client.script(
        "SET s x => OK
        INCR s => !ERR value is not an integer or out of range
        ZCARD s => !WRONGTYPE Operation against a key holding the wrong kind of value
        MULTI => OK
        ZCARD s => QUEUED
        GET s => QUEUED
        EXEC => [!WRONGTYPE Operation against a key holding the wrong kind of value x]
        GET => !ERR wrong number of arguments for 'get' command",
    );
    let errors = client.run("INFO errorstats");
    assert_eq!(errors, "# Errorstats\r\nerrorstat_ERR:count=2\r\nerrorstat_WRONGTYPE:count=2\r\n");
    assert!(client.run("INFO").contains("errorstat_ERR:") && client.run("INFO everything").contains("# Commandstats"));
    assert!(!client.run("INFO").contains("# Commandstats") && !client.run("INFO default").contains("# Commandstats"));
    client.script("CONFIG RESETSTAT => OK");
    assert_eq!(client.run("INFO errorstats"), "# Errorstats\r\n");
}
