//! Names of members and fields: ranges of sorted sets by name, compared with the members that a filter leaves, and names
//! that are too long.

use crate::common::{Client, shared, show};
use hither_resp::Value;
use hither_server::data::encoding::Type;
use hither_server::rdb::Payload;

const NAMES: [&[u8]; 8] = [b"", b"\0", b"a", b"a\0", b"ab", b"b", b"\xff", b"\xff\xff"];

/// Every bound that can be formed from these names.
fn bounds() -> Vec<Vec<u8>> {
    let mut all = vec![b"-".to_vec(), b"+".to_vec()];
    for name in NAMES {
        all.extend([[b"[", name].concat(), [b"(", name].concat()]);
    }
    all
}

fn is_in(name: &[u8], from: &[u8], to: &[u8]) -> bool {
    let above = match from {
        b"-" => true,
        b"+" => false,
        [b'[', bound @ ..] => name >= bound,
        bound => name > &bound[1..],
    };
    let below = match to {
        b"-" => false,
        b"+" => true,
        [b'[', bound @ ..] => name <= bound,
        bound => name < &bound[1..],
    };
    above && below
}

fn names(reply: Value) -> Vec<Vec<u8>> {
    let Value::Array(items) = reply else { panic!("{reply:?}") };
    items.into_iter().map(|item| if let Value::Bulk(name) = item { name } else { panic!("{item:?}") }).collect()
}

/// Queries all ranges of the set `z`, whose members are these in the order of their scores.
fn compare(client: &mut Client, members: &[&[u8]]) {
    for (from, to) in bounds().iter().flat_map(|from| bounds().into_iter().map(move |to| (from, to))) {
        let mut wanted: Vec<_> = members.iter().filter(|name| is_in(name, from, &to)).map(|name| name.to_vec()).collect();
        let what = format!("{} {}", from.escape_ascii(), to.escape_ascii());
        assert_eq!(names(client.call(&[b"ZRANGEBYLEX", b"z", from, &to])), wanted, "{what}");
        assert_eq!(client.call(&[b"ZLEXCOUNT", b"z", from, &to]), Value::Integer(wanted.len() as i64), "{what}");
        let two: Vec<_> = wanted.iter().skip(1).take(2).cloned().collect();
        assert_eq!(names(client.call(&[b"ZRANGEBYLEX", b"z", from, &to, b"LIMIT", b"1", b"2"])), two, "{what}");
        wanted.reverse();
        assert_eq!(names(client.call(&[b"ZREVRANGEBYLEX", b"z", &to, from])), wanted, "{what}");
    }
}

fn filled(score: impl Fn(&[u8]) -> &'static [u8]) -> Client {
    let mut client = Client::new(&shared());
    // Neighbouring sets, whose members must not be seen.
    for key in [b"y", b"z", b"~"] {
        for name in NAMES {
            client.call(&[b"ZADD", key, score(name), name]);
        }
    }
    client
}

#[test]
fn stretches_by_name_where_all_have_one_score() {
    for score in [&b"0"[..], b"-0.0", b"-7.5", b"inf", b"-inf"] {
        compare(&mut filled(|_| score), &NAMES);
    }
}

#[test]
fn stretches_by_name_where_scores_differ() {
    let mut client = filled(|name| if name == b"a" { b"9" } else { b"1" });
    compare(&mut client, &[b"", b"\0", b"a\0", b"ab", b"b", b"\xff", b"\xff\xff", b"a"]);
}

#[test]
fn stretches_by_name_of_what_a_transaction_has_written() {
    let mut client = filled(|_| b"3");
    client.script(
        "MULTI => OK
        ZADD z 3 aa => QUEUED
        ZREM z b => QUEUED
        ZRANGEBYLEX z [a [b => QUEUED
        ZADD z 4 c => QUEUED
        ZLEXCOUNT z - + => QUEUED
        ZRANGEBYLEX z [ab [c => QUEUED",
    );
    assert_eq!(client.run("EXEC"), "[1 1 [a a\0 aa ab] 1 9 [ab c]]");
}

#[test]
fn removes_by_name() {
    let mut client = filled(|_| b"1");
    assert_eq!(client.run("ZREMRANGEBYLEX z [a (b"), "3");
    compare(&mut client, &[b"", b"\0", b"b", b"\xff", b"\xff\xff"]);
    assert_eq!(client.run("ZREMRANGEBYLEX z - +"), "5");
    assert_eq!(client.run("EXISTS z"), "0");
    assert_eq!(client.run("ZCARD y"), "8");
}

/// Regression: the error was that of a key which nobody had given, with the length of a row.
#[test]
fn names_that_are_too_long_are_refused_as_such() {
    let mut client = Client::new(&shared());
    let name = |bytes: usize| "x".repeat(bytes);
    let (field, member) = (name(65_526), name(65_518));
    assert_eq!([client.run(&format!("HSET h {field} 1")), client.run(&format!("ZADD z 1 {member}"))], ["1", "1"]);
    assert_eq!([client.run(&format!("HGET h {field}")), client.run(&format!("ZSCORE z {member}"))], ["1", "1"]);
    let (field, member) = (name(65_527), name(65_519));
    for line in [
        format!("HSET h {field} 1"),
        format!("HMSET new a 1 {field} 1"),
        format!("HSETNX h {field} 1"),
        format!("HGET h {field}"),
        format!("HMGET h a {field}"),
        format!("HEXISTS h {field}"),
        format!("HSTRLEN h {field}"),
        format!("HDEL h a {field}"),
        format!("HINCRBY h {field} 1"),
        format!("HINCRBYFLOAT h {field} 1"),
    ] {
        let what = line.split(' ').next().unwrap();
        assert_eq!(client.run(&line), "!ERR a field of 65527 bytes is too long; fields have up to 65526 bytes", "{what}");
    }
    for line in [
        format!("ZADD z 1 {member}"),
        format!("ZADD new 1 a 1 {member}"),
        format!("ZADD z INCR 1 {member}"),
        format!("ZINCRBY z 1 {member}"),
        format!("ZREM z a {member}"),
        format!("ZSCORE z {member}"),
        format!("ZMSCORE z a {member}"),
        format!("ZRANK z {member}"),
        format!("ZREVRANK z {member}"),
    ] {
        let what = line.split(' ').next().unwrap();
        assert_eq!(client.run(&line), "!ERR a member of 65519 bytes is too long; members have up to 65518 bytes", "{what}");
    }
    client.script("KEYS * => [h z]\nHLEN h => 1\nZCARD z => 1");
    assert_eq!([client.run(&format!("ZRANGEBYLEX z [{member} +")), client.run(&format!("ZLEXCOUNT z - ({member}"))], ["[]", "1"]);
    // A payload may bring them, too.
    let payload = |name: &str, of: Payload| {
        let mut payload = of;
        payload.text(name.as_bytes());
        payload
    };
    let mut hash = payload(&field, Payload::collection(Type::Hash, 1));
    hash.text(b"v");
    let mut set = payload(&member, Payload::collection(Type::SortedSet, 1));
    set.score(1.0);
    for (payload, expected) in [
        (hash.finish(), "!ERR a field of 65527 bytes is too long; fields have up to 65526 bytes"),
        (set.finish(), "!ERR a member of 65519 bytes is too long; members have up to 65518 bytes"),
    ] {
        assert_eq!(show(&client.call(&[b"RESTORE", b"new", b"0", &payload])), expected);
    }
}
