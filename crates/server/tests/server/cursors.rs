//! Iterations over keys and members: by the cursors of the SCAN family, and by ranges of keys.

use crate::common::{Client, script, shared, shared_on, show};
use hither::{Db, WriteOptions};
use hither_resp::Value;

#[test]
fn scans_return_every_key_once_while_others_come_and_go() {
    let mut client = Client::new(&shared());
    for number in 0..250 {
        client.run(&format!("SET stay:{number:03} x"));
    }
    let (mut cursor, mut seen, mut round) = ("0".to_owned(), Vec::new(), 0);
    loop {
        let Value::Array(reply) = client.call(&[b"SCAN", cursor.as_bytes(), b"MATCH", b"s*", b"COUNT", b"17"]) else { panic!() };
        let [next, Value::Array(keys)] = &reply[..] else { panic!() };
        seen.extend(keys.iter().map(show).filter(|key| key.starts_with("stay")));
        cursor = show(next);
        if cursor == "0" {
            break;
        }
        round += 1;
        client.run(&format!("SET stir:{round} x"));
        client.run(&format!("SET a:{round} x"));
        client.run(&format!("DEL stir:{}", round - 1));
    }
    assert_eq!(seen, (0..250).map(|number| format!("stay:{number:03}")).collect::<Vec<_>>());
    assert!(client.run("SCAN 999999").starts_with("!ERR invalid cursor"));
    assert_eq!(client.run("SCAN x"), "!ERR invalid cursor");
    assert_eq!(client.run("SCAN 0 COUNT 0"), "!ERR syntax error");
    assert_eq!(client.run("SCAN 0 TYPE hash COUNT 1000"), "[0 []]");
}

/// Regression: one call passed over all keys that had expired and were not swept yet.
#[test]
fn scans_pass_over_few_expired_keys_at_a_time() {
    // Nothing is swept.
    let db = Db::builder().in_memory().with_options(|options| options.background = false).open().unwrap();
    let mut client = Client::new(&shared_on(db));
    let database = client.shared.databases.get(0).unwrap();
    let (live, expired) = (WriteOptions::new(), WriteOptions::new().expires_at_ms(1));
    for number in 0..5000 {
        let options = if number % 1000 == 999 { &live } else { &expired };
        database.keys.put_with(format!("k{number:04}").as_bytes(), b"\0value", options).unwrap().wait().unwrap();
    }
    assert_eq!(database.keys.len(), 5000);
    for (count, pages) in [("1", 50), ("10", 50), ("100", 5), ("9223372036854775807", 1)] {
        let (mut cursor, mut seen, mut calls) = ("0".to_owned(), Vec::new(), 0);
        while calls == 0 || cursor != "0" {
            let Value::Array(reply) = client.call(&[b"SCAN", cursor.as_bytes(), b"MATCH", b"k*", b"COUNT", count.as_bytes()]) else {
                panic!()
            };
            let [next, Value::Array(keys)] = &reply[..] else { panic!() };
            seen.extend(keys.iter().map(show));
            (cursor, calls) = (show(next), calls + 1);
        }
        assert_eq!(seen, ["k0999", "k1999", "k2999", "k3999", "k4999"], "{count}");
        assert!((pages..=pages + 6).contains(&calls), "{count}: {calls}");
    }
    // Within MULTI, too.
    assert_eq!(client.run("MULTI"), "OK");
    assert_eq!(client.run("DEL k0999"), "QUEUED");
    assert_eq!(client.run("SCAN 0 COUNT 100"), "QUEUED");
    assert!(client.run("EXEC").ends_with(" []]]"));
}

#[test]
fn ordered_access() {
    script(
        "MSET a 1 b 2 c 3 ca 4 cb 5 d 6 => OK
        HITHER.RANGE - + => [a b c ca cb d]
        HITHER.RANGE [b (d => [b c ca cb]
        HITHER.RANGE (d [b REV LIMIT 2 => [cb ca]
        HITHER.RANGE - + LIMIT 2 VALUES => [a 1 b 2]
        HITHER.RANGE (b + LIMIT 2 => [c ca]
        HITHER.RANGE - + MATCH *a* => [a ca]
        HITHER.RANGE + - => []
        HITHER.RANGE a b => !ERR a bound is -, +, [key or (key
        HITHER.PREFIX c => [c ca cb]
        HITHER.PREFIX c REV => [cb ca c]
        HITHER.PREFIX c AFTER c LIMIT 1 => [ca]
        HITHER.PREFIX c AFTER ca REV => [c]
        HITHER.PREFIX c AFTER d => !ERR AFTER needs a key with the prefix
        HITHER.PREFIX c LIMIT x => !ERR value is not an integer or out of range",
    );
}

/// Regression: if the hash had been replaced, its cursor was an error, and clients gave up in the middle of their
/// iteration.
#[test]
fn an_iteration_goes_on_in_what_has_taken_the_place() {
    let mut client = Client::new(&shared());
    for (fill, scan) in [("HSET k a 1 b 2 c 3 d 4", "HSCAN"), ("ZADD k 1 a 2 b 3 c 4 d", "ZSCAN")] {
        client.run(fill);
        let cursor = |reply: &str| reply[1..].split(' ').next().unwrap().to_owned();
        let begun = cursor(&client.run(&format!("{scan} k 0 COUNT 2")));
        client.run("DEL k");
        assert_eq!(client.run(&format!("{scan} k {begun}")), "[0 []]");
        client.run(fill);
        assert_eq!(client.run(&format!("{scan} k {begun}")), "[0 [c 3 d 4]]");
        client.run("DEL k");
        assert!(client.run(&format!("SCAN {begun}")).starts_with("!ERR invalid cursor"), "that is one of members");
    }
}

/// Regression: a cursor of another key was accepted, and the reply revealed where the names of that key's members lie,
/// whoever may read them.
#[test]
fn a_cursor_leads_on_in_its_own_key_only() {
    let shared = shared();
    let (mut admin, mut eve) = (Client::new(&shared), Client::new(&shared));
    admin.run("ACL SETUSER eve on nopass +@all ~pub:*");
    eve.run("AUTH eve x");
    let cursor = |reply: &str| reply[1..].split(' ').next().unwrap().to_owned();
    for (fill, scan) in [("HSET KEY a 1 m 2 z 3", "HSCAN"), ("ZADD KEY 1 a 2 m 3 z", "ZSCAN")] {
        admin.run(&fill.replace("KEY", "secret"));
        eve.run(&fill.replace("KEY", "pub:p"));
        let of_secret = cursor(&admin.run(&format!("{scan} secret 0 COUNT 2")));
        let reply = eve.run(&format!("{scan} pub:p {of_secret}"));
        assert!(reply.starts_with("!ERR invalid cursor"), "{reply}");
        let own = cursor(&eve.run(&format!("{scan} pub:p 0 COUNT 2")));
        assert_eq!(eve.run(&format!("{scan} pub:p {own}")), "[0 [z 3]]");
        admin.run("DEL secret pub:p");
    }
}
