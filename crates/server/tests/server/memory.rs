//! What one client can make the server hold: allocated bytes, counted for each thread by a global allocator.

use crate::common::{Client, show};
use hither::Db;
use hither_resp::Value;
use hither_server::{Config, Shared};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

mod held;

struct Counting;

thread_local! {
    /// Bytes that the thread has allocated and not freed, and their maximum since [`peak`] began.
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // Late in a thread's life the cells are gone, and nothing is counted.
    let held = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        held.get()
    });
    let _ = held.and_then(|held| PEAK.try_with(|peak| peak.set(peak.get().max(held))));
}

// SAFETY: every call is passed on to the system's allocator; counting allocates nothing (const-initialised cells
// without destructors).
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`, which is the system allocator's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller upholds the contract of `GlobalAlloc`, which is the system allocator's.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`, which is the system allocator's.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `f`, and returns how many bytes it held at most beyond what was held before.
fn peak<R>(f: impl FnOnce() -> R) -> (R, usize) {
    let before = HELD.get();
    PEAK.set(before);
    let result = f();
    (result, (PEAK.get() - before).max(0) as usize)
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// Number of strings, and of fields of the hash `h`.
const VALUES: usize = 24;
const VALUE_BYTES: usize = 256 * KIB;
/// Number of keys, of fields of `f`, and of members of `z`.
const NAMES: usize = 160;
const NAME_BYTES: usize = 48 * KIB;

/// Strings `s0`… and a hash `h` of large values; keys, a hash `f` and a sorted set `z` of large names: 6 MiB each, or a
/// little more.
fn filled(max_output_bytes: usize) -> (Arc<Shared>, Client) {
    filled_with(Config::default(), max_output_bytes)
}

fn filled_with(config: Config, max_output_bytes: usize) -> (Arc<Shared>, Client) {
    let db = Db::builder().in_memory().open().unwrap();
    let shared = Shared::new(db, Config { max_output_bytes: 0, ..config }, 1).unwrap();
    let mut client = Client::new(&shared);
    for number in 0..VALUES {
        let (key, value) = (format!("s{number}"), vec![number as u8; VALUE_BYTES]);
        client.call(&[b"SET", key.as_bytes(), &value]);
        client.call(&[b"HSET", b"h", key.as_bytes(), &value]);
    }
    for number in 0..NAMES {
        let name = format!("{number:0NAME_BYTES$}");
        client.call(&[b"SELECT", b"1"]);
        client.call(&[b"SET", name.as_bytes(), b"v"]);
        client.call(&[b"SELECT", b"0"]);
        client.call(&[b"HSET", b"f", name.as_bytes(), b"v"]);
        client.call(&[b"ZADD", b"z", number.to_string().as_bytes(), name.as_bytes()]);
    }
    client.call(&[b"ZADD", b"few", b"1", b"0", b"2", b"1"]);
    shared.settings.max_output_bytes.store(max_output_bytes, Ordering::Relaxed);
    (shared, client)
}

fn words(line: &str) -> Vec<&[u8]> {
    line.split(' ').map(str::as_bytes).collect()
}

const TOO_LARGE: &[u8] = b"-ERR the reply is larger than max-output, so nothing was done\r\n";

/// Regression: MGET of 1500 keys of 1 MB built 2 GB before its size was checked.
#[test]
fn a_reply_that_can_never_leave_is_not_even_made() {
    let (_shared, mut client) = filled(MIB);
    client.call(&[b"SET", b"long", &vec![0; 6 * MIB]]);
    let lines = [
        format!("MGET{}", " s0".repeat(100)),
        format!("HMGET h{}", " s0".repeat(100)),
        "HGETALL h".into(),
        "HVALS h".into(),
        "HKEYS f".into(),
        "HRANDFIELD h 24 WITHVALUES".into(),
        "HRANDFIELD h -1000 WITHVALUES".into(),
        "HRANDFIELD f -1000000".into(),
        "HSCAN h 0 COUNT 1000".into(),
        "DUMP long".into(),
        "DUMP h".into(),
        "DUMP f".into(),
        "DUMP z".into(),
        "HITHER.RANGE - + VALUES".into(),
        "HITHER.PREFIX s VALUES".into(),
        format!("SORT few BY nosort{}", " GET s*".repeat(100)),
        "ZRANGE z 0 -1".into(),
        "ZRANGE z 0 -1 REV WITHSCORES".into(),
        "ZRANGE z -1000 -2".into(),
        "ZRANGEBYSCORE z -inf +inf".into(),
        "ZRANGEBYLEX z - +".into(),
        "ZUNION 2 z few".into(),
        "ZRANDMEMBER z 160".into(),
        "ZRANDMEMBER z -1000000 WITHSCORES".into(),
        "ZSCAN z 0 COUNT 1000".into(),
        "ZPOPMIN z 1000".into(),
        "ZMPOP 1 z MAX COUNT 1000".into(),
        "SELECT 1".into(),
        "KEYS *".into(),
        "SCAN 0 COUNT 1000".into(),
        "HITHER.RANGE - +".into(),
        "SELECT 0".into(),
    ];
    for version in ["HELLO 2", "HELLO 3"] {
        client.raw(&words(version));
        for line in &lines {
            let (reply, held) = peak(|| client.raw(&words(line)));
            let expected: &[u8] = if line.starts_with("SELECT") { b"+OK\r\n" } else { TOO_LARGE };
            let shown = &line[..line.len().min(40)];
            assert!(reply == expected, "{shown}: {} bytes", reply.len());
            assert!(held < 4 * MIB, "{shown}: held {held} bytes");
        }
    }
    assert_eq!(client.run("ZCARD z"), NAMES.to_string(), "a command that fails so has done nothing");
    assert_eq!(client.raw(&words("GET s1")).len(), VALUE_BYTES + "$262144\r\n\r\n".len(), "what fits is answered");
    assert_eq!(client.raw(&words("MGET s0 s1 s2")).len(), 3 * VALUE_BYTES + "*3\r\n".len() + 3 * "$262144\r\n\r\n".len());
}

#[test]
fn the_replies_of_a_transaction_are_bounded_as_a_whole() {
    let (_shared, mut client) = filled(MIB);
    client.script("MULTI => OK\nSET new 1 => QUEUED");
    (0..100).for_each(|_| assert_eq!(client.run("GET s0"), "QUEUED"));
    let (reply, held) = peak(|| client.raw(&[b"EXEC"]));
    assert!(reply == TOO_LARGE && held < 4 * MIB, "{} bytes, held {held}", reply.len());
    client.script("EXISTS new => 0\nMULTI => OK\nSET new 1 => QUEUED\nSTRLEN s0 => QUEUED\nEXEC => [OK 262144]");
    // Errors are replies, too.
    client.run("MULTI");
    (0..20_000).for_each(|_| assert_eq!(client.run("HGET s0 f"), "QUEUED"));
    let reply = client.raw(&[b"EXEC"]);
    assert!(reply == TOO_LARGE, "{} bytes", reply.len());
}

#[test]
fn without_a_limit_replies_are_as_large_as_they_are() {
    let (_shared, mut client) = filled(0);
    assert_eq!(client.raw(&words(&format!("MGET{}", " s0".repeat(100)))).len(), 6 + 100 * (VALUE_BYTES + 11));
    let Value::Array(all) = client.call(&[b"HGETALL", b"h"]) else { panic!() };
    assert_eq!(all.len(), 2 * VALUES);
    let Value::Array(all) = client.call(&[b"HRANDFIELD", b"h", b"-50", b"WITHVALUES"]) else { panic!() };
    assert!(all.len() == 100 && matches!(&all[1], Value::Bulk(value) if value.len() == VALUE_BYTES));
}

/// The client cannot learn that its command was not done, and would go on as if it were.
#[test]
fn who_takes_no_replies_is_closed_when_one_is_too_large() {
    let (shared, mut client) = filled(MIB);
    assert_eq!(client.raw(&words("CLIENT REPLY OFF")), b"");
    assert_eq!(client.raw(&words("ZPOPMIN z 10")), b"");
    assert!(!client.session.closing);
    assert_eq!(client.raw(&words("ZPOPMIN z 1000")), b"");
    assert!(client.session.closing);
    assert_eq!(Client::new(&shared).run("ZCARD z"), (NAMES - 10).to_string());
}

#[test]
fn a_few_random_fields_do_not_take_the_whole_hash() {
    let (_shared, mut client) = filled(0);
    for line in ["HRANDFIELD h", "HRANDFIELD h 1 WITHVALUES", "HRANDFIELD h -1 WITHVALUES", "HRANDFIELD f 2", "ZRANDMEMBER z"] {
        let (_, held) = peak(|| client.raw(&words(line)));
        assert!(held < MIB + MIB / 2, "{line}: held {held} bytes");
    }
}

/// As in Redis: scores are added from the smallest set to the largest, whatever the order of the keys, and sums of
/// fractions show it.
#[test]
fn scores_are_added_from_the_smallest_set_on() {
    let mut client = Client::new(&crate::common::shared());
    client.script(
        "ZADD a 0.1 m => 1
        ZADD b 0.2 m 1 x => 2
        ZADD c 0.3 m 1 x 1 y => 3
        ZUNION 3 c b a WITHSCORES => [m 0.6000000000000001 y 1 x 2]
        ZINTER 3 c b a WITHSCORES => [m 0.6000000000000001]
        ZINTER 3 c b a WITHSCORES WEIGHTS 10 1 1 => [m 3.3]
        ZINTER 3 c b a WITHSCORES AGGREGATE MAX WEIGHTS -1 1 1 => [m 0.2]
        ZUNIONSTORE to 3 c none a WEIGHTS inf -1 -inf => 3
        ZRANGE to 0 -1 WITHSCORES => [m 0 x inf y inf]
        ZINTERSTORE to 3 c none a => 0
        ZINTERSTORE to 2 c c WEIGHTS 1 2 => 3
        ZRANGE to 0 -1 WITHSCORES => [m 0.8999999999999999 x 3 y 3]
        ZDIFF 2 c b WITHSCORES => [y 1]
        ZDIFF 2 c c => []
        ZDIFF 2 none c => []
        ZDIFFSTORE to 3 c none a => 2",
    );
}

/// Regression: names of any length were kept, and copied into every entry of SLOWLOG and ACL LOG.
#[test]
fn names_of_clients_are_bounded() {
    let (_shared, mut client) = filled(0);
    let long = "n".repeat(MIB);
    for line in ["CLIENT SETNAME ", "CLIENT SETINFO lib-name ", "CLIENT SETINFO lib-ver ", "HELLO 2 SETNAME "] {
        let reply = client.run(&format!("{line}{long}"));
        assert_eq!(reply, "!ERR names of clients and libraries have at most 1024 bytes", "{line}");
    }
    let fits = "n".repeat(1024);
    assert_eq!(client.run(&format!("CLIENT SETNAME {fits}")), "OK");
    assert_eq!(client.run("CLIENT GETNAME"), fits);
    client.run("CONFIG SET slowlog-log-slower-than 0");
    client.run("GET a");
    let log = client.run("SLOWLOG GET 1");
    assert!(log.contains("... (896 more bytes)") && log.len() < 1024, "{log}");
}

/// Regression: if the short replies fit and the head of EXEC's reply did not, they left without it.
#[test]
fn execs_reply_is_whole_or_an_error_whatever_fits() {
    let shared = Shared::new(Db::builder().in_memory().open().unwrap(), Config::default(), 1).unwrap();
    let mut client = Client::new(&shared);
    for limit in 1..80 {
        shared.settings.max_output_bytes.store(0, Ordering::Relaxed);
        client.script("DEL k => 0\nMULTI => OK\nSET k 1 => QUEUED\nGET none => QUEUED\nSET k 1 => QUEUED\n");
        shared.settings.max_output_bytes.store(limit, Ordering::Relaxed);
        let reply = client.raw(&[b"EXEC"]);
        shared.settings.max_output_bytes.store(0, Ordering::Relaxed);
        let done = reply == b"*3\r\n+OK\r\n$-1\r\n+OK\r\n";
        assert!(done || reply == TOO_LARGE, "{limit}: {:?}", String::from_utf8_lossy(&reply));
        assert_eq!(client.run("DEL k"), if done { "1" } else { "0" }, "{limit}");
    }
}

/// A payload for RESTORE around `body`.
fn sealed(body: &[u8]) -> Vec<u8> {
    let payload = [body, &10u16.to_le_bytes()].concat();
    let sum = payload.iter().fold(0u64, |sum, byte| {
        (0..8).fold(sum ^ u64::from(*byte), |sum, _| if sum & 1 == 1 { sum >> 1 ^ 0x95ac_9329_ac4b_c9b5 } else { sum >> 1 })
    });
    [&payload[..], &sum.to_le_bytes()].concat()
}

/// A compressed string of a payload: `head`, then its last two bytes `times` times for 264 bytes each, then `tail`.
fn compressed(head: &[u8], times: usize, tail: &[u8]) -> Vec<u8> {
    let mut packed = [&[head.len() as u8 - 1], head].concat();
    packed.extend_from_slice(&[0xe0, 0xff, 1].repeat(times));
    if let Some(last) = tail.len().checked_sub(1) {
        packed.push(last as u8);
        packed.extend_from_slice(tail);
    }
    let lengths =
        [packed.len(), head.len() + 264 * times + tail.len()].map(|length| [&[0x80], &(length as u32).to_be_bytes()[..]].concat());
    [&[0xc3], &lengths.concat()[..], &packed].concat()
}

/// Regression: a few MiB that compress well took many GiB: large strings, and small numbers of a packed hash.
#[test]
fn what_restore_unpacks_is_bounded() {
    let db = Db::builder().in_memory().open().unwrap();
    let shared = Shared::new(db, Config { max_request_bytes: 8 * MIB, ..Config::default() }, 1).unwrap();
    let mut client = Client::new(&shared);
    let times = MIB / 264;
    let mut strings = vec![4, 40];
    for number in 0..40 {
        strings.extend_from_slice(&[1, b'a' + number]);
        strings.extend_from_slice(&compressed(b"xx", times, b""));
    }
    // Two entries of two bytes each, repeated again and again.
    let numbers = 264 * 4 * times + 4;
    let mut head = (numbers as u32 + 7).to_le_bytes().to_vec();
    head.extend_from_slice(&[0xff, 0xff, 5, 1, 5, 1]);
    let packed = [&[16], &compressed(&head, 4 * times, &[0xff])[..]].concat();
    for body in [strings, packed] {
        let payload = sealed(&body);
        assert!(payload.len() < MIB);
        let (reply, held) = peak(|| client.raw(&[b"RESTORE", b"k", b"0", &payload]));
        assert!(held < 3 * 8 * MIB, "held {held} bytes");
        assert_eq!(String::from_utf8_lossy(&reply), "-ERR the value takes more memory than max-request\r\n");
    }
    // What fits is accepted.
    let payload = sealed(&[&[0], &compressed(b"xx", 2 * times, b"")[..]].concat());
    assert_eq!(client.call(&[b"RESTORE", b"k", b"0", &payload]), Value::Simple(b"OK".to_vec()));
    assert_eq!(client.run("STRLEN k"), (2 * 264 * times + 2).to_string());
}

/// A payload of a hash or sorted set with `count` members of four bytes.
fn of_members(kind: u8, count: u32, value: &[u8]) -> Vec<u8> {
    let mut body = [&[kind, 0x80], &count.to_be_bytes()[..]].concat();
    for member in 0..count {
        body.push(4);
        body.extend_from_slice(&member.to_be_bytes());
        body.extend_from_slice(value);
    }
    sealed(&body)
}

/// Regression: only the strings counted, and not the rows made of them: a MiB of short members took more than twenty.
#[test]
fn what_restore_writes_is_bounded() {
    let db = Db::builder().in_memory().open().unwrap();
    let shared = Shared::new(db, Config { max_request_bytes: MIB, ..Config::default() }, 1).unwrap();
    let mut client = Client::new(&shared);
    for (kind, value) in [(5, &[0; 8][..]), (4, &[1, b'v'])] {
        let (too_large, fits) = (of_members(kind, 17_000, value), of_members(kind, 2_000, value));
        let (reply, held) = peak(|| client.raw(&[b"RESTORE", b"k", b"0", &too_large, b"REPLACE"]));
        assert!(held < 4 * MIB, "held {held} bytes");
        assert_eq!(String::from_utf8_lossy(&reply), "-ERR the value takes more memory than max-request\r\n");
        let (reply, held) = peak(|| client.raw(&[b"RESTORE", b"k", b"0", &fits, b"REPLACE"]));
        assert!(reply == b"+OK\r\n" && held < 4 * MIB, "held {held} bytes");
    }
    client.script("HLEN k => 2000");
}

const TOO_MUCH: &[u8] =
    b"-ERR what the commands of the transaction write, with the keys that they read, is more than max-request, so nothing was done: divide them among several\r\n";

/// A client of a server that takes 8 MiB for a request, and for what EXEC writes.
fn with_narrow_requests() -> Client {
    let db = Db::builder().in_memory().open().unwrap();
    Client::new(&Shared::new(db, Config { max_request_bytes: 8 * MIB, ..Config::default() }, 1).unwrap())
}

/// Regression: a few KiB of commands wrote 512 MiB each, all of which EXEC held until its end.
#[test]
fn what_exec_writes_is_bounded_as_a_whole() {
    let mut client = with_narrow_requests();
    let end = 4 * MIB - 1;
    client.script("SET kept 1 => OK\nMULTI => OK\nINCR kept => QUEUED");
    (0..100).for_each(|number| assert_eq!(client.run(&format!("SETRANGE k{number} {end} x")), "QUEUED"));
    let (reply, held) = peak(|| client.raw(&[b"EXEC"]));
    assert_eq!(String::from_utf8_lossy(&reply), String::from_utf8_lossy(TOO_MUCH));
    assert!(held < 24 * MIB, "held {held} bytes");
    client.script("GET kept => 1\nEXISTS k0 k1 => 0");
    // Rows count, and so do copies.
    client.script(&format!("SETRANGE k {end} x => 4194304\nMULTI => OK"));
    (0..100).for_each(|number| assert_eq!(client.run(&format!("COPY k k{number}")), "QUEUED"));
    let (reply, held) = peak(|| client.raw(&[b"EXEC"]));
    assert!(reply == TOO_MUCH && held < 32 * MIB, "held {held} bytes");
    client.call(&[b"HSET", b"h", b"f", &vec![b'x'; 4 * MIB]]);
    client.script("MULTI => OK\nCOPY h 1 => QUEUED\nCOPY h 2 => QUEUED\nCOPY h 3 => QUEUED\nCOPY h 4 => QUEUED");
    assert!(client.raw(&[b"EXEC"]) == TOO_MUCH);
    client.script("KEYS * => [h k kept]");
}

#[test]
fn what_exec_may_write_is_what_it_holds_besides_its_largest_command() {
    let mut client = with_narrow_requests();
    let end = 12 * MIB - 1;
    // One command may write whatever it may write alone.
    client.script(&format!("MULTI => OK\nSET a 1 => QUEUED\nSETRANGE k {end} x => QUEUED\nINCR a => QUEUED\nEXEC => [OK 12582912 2]"));
    // What is overwritten or deleted again is not held.
    client.script("MULTI => OK");
    (0..5).for_each(|_| client.script(&format!("SETRANGE k {end} y => QUEUED\nSETRANGE l 4194303 x => QUEUED\nDEL l => QUEUED")));
    assert_eq!(client.run("EXEC"), format!("[{}]", ["12582912 4194304 1"; 5].join(" ")));
    client.script("DEL k => 1");
    // Nor is what a failed command would have written.
    let value = vec![b'x'; 39 * MIB / 10];
    client.script("DEL a => 1\nMULTI => OK");
    [b"a", b"d"].iter().for_each(|key| assert_eq!(show(&client.call(&[b"MSET", *key, &value, b"", b"x"])), "QUEUED"));
    client.script("SETRANGE b 4194303 x => QUEUED\nSETRANGE c 4194303 x => QUEUED\nEXISTS a d => QUEUED");
    let empty = "!ERR an empty key was given; keys have 1 to 65536 bytes";
    assert_eq!(client.run("EXEC"), format!("[{empty} {empty} 4194304 4194304 0]"));
}

/// Regression: places for all members, and room for all rows, were allocated before the size of the reply was checked.
#[test]
fn random_members_are_bounded_before_they_are_drawn() {
    const FIELDS: usize = 50_000;
    let mut client = Client::new(&crate::common::shared());
    let names: Vec<String> = (0..FIELDS).map(|number| number.to_string()).collect();
    let of = |command: &'static str| [command.as_bytes(), b"k"].into_iter().chain(names.iter().flat_map(|name| [name.as_bytes(); 2]));
    for (fill, command) in [("HSET", "HRANDFIELD"), ("ZADD", "ZRANDMEMBER")] {
        client.call(&of(fill).collect::<Vec<_>>());
        client.shared.settings.max_output_bytes.store(64 * KIB, Ordering::Relaxed);
        for count in [FIELDS, 20_000, usize::MAX >> 2] {
            let (reply, held) = peak(|| client.raw(&words(&format!("{command} k {count}"))));
            assert!(reply == TOO_LARGE && held < 256 * KIB, "{command} {count}: {} bytes, held {held}", reply.len());
        }
        let Value::Array(some) = client.call(&words(&format!("{command} k 4000"))) else { panic!() };
        assert_eq!(some.len(), 4000);
        client.shared.settings.max_output_bytes.store(0, Ordering::Relaxed);
        client.run("DEL k");
    }
}

/// Regression: only their number was bounded, although each may have 64 KiB.
#[test]
fn the_keys_that_a_command_waits_for_are_bounded_in_bytes() {
    let mut client = Client::new(&crate::common::shared());
    let key = |number: usize| format!("{number:065535}");
    for count in [17, 16] {
        let keys = (0..count).map(key).collect::<Vec<_>>().join(" ");
        for line in [format!("BZPOPMIN {keys} 0"), format!("BZPOPMAX {keys} 0"), format!("BZMPOP 0 {count} {keys} MIN")] {
            let (reply, held) = peak(|| client.raw(&words(&line)));
            let expected: &[u8] = if count == 17 { b"-ERR a command waits for keys of at most 1048576 bytes in all\r\n" } else { b"" };
            assert!(reply == expected, "{:?}", String::from_utf8_lossy(&reply));
            assert!(held < 4 * MIB + MIB / 2, "{held} bytes for {count}");
            assert_eq!(client.session.is_waiting(), count == 16);
            client.session.wait = None;
        }
    }
}

/// Regression: all rows were read before checking whether the copy is to be made.
#[test]
fn a_copy_that_is_not_made_reads_nothing() {
    let (_shared, mut client) = filled(0);
    client.script("SET there 1 => OK\nSELECT 1 => OK\nSET z 1 => OK\nSELECT 0 => OK");
    for line in ["COPY z there", "MOVE z 1"] {
        let (reply, held) = peak(|| client.raw(&words(line)));
        assert!(reply == b":0\r\n" && held < MIB, "{line}: held {held} bytes");
    }
    client.script("COPY z there REPLACE => 1\nZCARD there => 160\nSELECT 1 => OK\nGET z => 1\nDEL z => 1\nSELECT 0 => OK\nMOVE z 1 => 1\nEXISTS z => 0");
}

/// Regression: a batch had two rows for each member, where the key alone would do.
#[test]
fn removing_all_members_removes_the_key() {
    for (line, most) in [("ZREMRANGEBYRANK z 0 -1", MIB), ("ZREMRANGEBYRANK z -1000 1000", MIB), ("ZREMRANGEBYSCORE z -inf inf", 9 * MIB)] {
        let (_shared, mut client) = filled(0);
        let (reply, held) = peak(|| client.raw(&words(line)));
        assert!(reply == b":160\r\n" && held < most, "{line}: held {held} bytes");
        client.script("EXISTS z => 0\nZADD z 1 m => 1\nZRANGE z 0 -1 => [m]");
        client.script("MULTI => OK\nZADD z 2 n => QUEUED\nZREMRANGEBYRANK z 0 1 => QUEUED\nZADD z 1 o => QUEUED\nEXEC => [1 2 1]\nZRANGE z 0 -1 => [o]");
    }
}

/// Regression: the first set was held as a whole, however little of it could leave.
#[test]
fn sets_are_combined_in_portions() {
    let (_shared, mut client) = filled(MIB);
    for line in ["ZDIFF 2 z few", "ZDIFF 2 z none", "ZINTER 2 z z", "ZINTER 1 z"] {
        let (reply, held) = peak(|| client.raw(&words(line)));
        assert!(reply == TOO_LARGE && held < 3 * MIB, "{line}: {} bytes, held {held}", reply.len());
    }
}

/// Regression: a monitor was shown arguments of any size, quoted in full (four bytes for each that cannot be printed),
/// before its output limit was checked.
#[test]
fn a_monitor_is_not_shown_what_it_may_not_be_sent() {
    let settings = Config { max_output_bytes: MIB, ..Config::default() };
    let shared = Shared::new(Db::builder().in_memory().open().unwrap(), settings, 1).unwrap();
    let (mut client, mut monitor) = (Client::new(&shared), Client::new(&shared));
    assert_eq!(monitor.raw(&[b"MONITOR"]), b"+OK\r\n");
    let value = vec![0; 8 * MIB];
    let (reply, held) = peak(|| client.raw(&[b"SET", b"k", &value]));
    assert_eq!(reply, b"+OK\r\n");
    assert!(held < 20 * MIB, "{held} bytes");
}
