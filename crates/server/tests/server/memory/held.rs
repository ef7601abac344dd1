//! What commands hold while they run, besides their replies.

use super::{MIB, NAME_BYTES, NAMES, TOO_MUCH, VALUE_BYTES, filled, filled_with, peak, words};
use crate::common::show;
use hither_resp::Value;
use hither_server::Config;
use hither_server::cursors::MOST_BYTES;

const HELD_TOO_MUCH: &[u8] = b"-ERR the command would hold more than max-request of the store in memory, so nothing was done\r\n";

/// Regression: an EXISTS that named the same large key a million times copied it as often, and so did each read within
/// a transaction; DEL and SET copied what they removed.
#[test]
fn what_is_asked_about_a_key_or_put_in_its_place_does_not_take_its_value() {
    let (_shared, mut client) = filled(0);
    let dumped = client.call(&[b"DUMP", b"few"]);
    let Value::Bulk(dumped) = dumped else { panic!("{dumped:?}") };
    let restore: [&[u8]; 4] = [b"RESTORE", b"s1", b"0", &dumped];
    let lines = [
        ("EXISTS s0 s0 h s1", ":4\r\n"),
        ("TOUCH s0 s1 none", ":2\r\n"),
        ("SETNX s1 x", ":0\r\n"),
        ("MSETNX none x s1 x", ":0\r\n"),
        ("SET s1 x NX", "$-1\r\n"),
        ("RENAMENX few s1", ":0\r\n"),
        ("COPY few s1", ":0\r\n"),
        ("PERSIST s1", ":0\r\n"),
        ("MEMORY USAGE s1", ":262195\r\n"),
        ("HGET s1 f", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
        ("ZADD s1 1 m", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
        ("SET s1 x", "+OK\r\n"),
        ("SET s2 x XX KEEPTTL", "+OK\r\n"),
        ("MSET s3 x s4 x", "+OK\r\n"),
        ("RENAME s2 s5", "+OK\r\n"),
        ("DEL s6", ":1\r\n"),
        ("UNLINK s7 s8", ":2\r\n"),
    ];
    let (reply, held) = peak(|| client.raw(&restore));
    assert!(reply.starts_with(b"-BUSYKEY") && held < VALUE_BYTES / 2, "held {held} bytes");
    for (line, expected) in lines {
        let (reply, held) = peak(|| client.raw(&words(line)));
        assert_eq!(String::from_utf8_lossy(&reply), expected, "{line}");
        assert!(held < VALUE_BYTES / 2, "{line}: held {held} bytes");
    }
    client.run("MULTI");
    for line in ["STRLEN s9", "GETBIT s9 0", "GETRANGE s9 0 1", "TYPE s9", "PTTL s9", "EXISTS s9", "OBJECT ENCODING s9", "DEL s9"] {
        assert_eq!(client.run(line), "QUEUED", "{line}");
    }
    let (reply, held) = peak(|| client.raw(&[b"EXEC"]));
    assert!(reply.starts_with(b"*8\r\n:262144\r\n:0\r\n$2\r\n\t\t\r\n+string\r\n:-1\r\n:1\r\n"), "{}", String::from_utf8_lossy(&reply));
    assert!(held < VALUE_BYTES / 2, "held {held} bytes");
}

/// Regression: only replies were bounded, and not what a command keeps meanwhile or stores.
#[test]
fn what_a_command_holds_besides_its_reply_is_bounded() {
    let (_shared, mut client) = filled_with(Config { max_request_bytes: MIB, ..Config::default() }, 0);
    let many = format!("ZUNIONSTORE to 20{}", " z".repeat(20));
    let lines = [
        "SORT z ALPHA LIMIT 0 1",
        "SORT few BY s* ALPHA GET #",
        "ZDIFFSTORE to 2 z none",
        "ZINTERSTORE to 2 z z",
        "ZRANGESTORE to z 0 -1",
        "ZREMRANGEBYRANK z 1 -1",
        "ZREMRANGEBYSCORE z 1 inf",
        "ZREMRANGEBYLEX z (0 +",
        "ZRANGESTORE to short 0 -1",
        "COPY h to",
        "COPY z to",
        "MOVE h 1",
        &many,
    ];
    client.run("ZADD few 0 0 1 1 2 2 3 3 4 4");
    for number in 0..NAMES - 1 {
        client.call(&[b"ZADD", b"other", b"1", format!("{number:0width$}", width = NAME_BYTES - 1).as_bytes()]);
    }
    // With short members, it is not the bytes that take the room.
    for first in (0..20_000u32).step_by(100) {
        client.run(&format!("ZADD short{}", (first..first + 100).map(|number| format!(" 1 {number}")).collect::<String>()));
    }
    let before = client.raw(&words("HITHER.RANGE - +"));
    for line in lines {
        let (reply, held) = peak(|| client.raw(&words(line)));
        assert!(reply == HELD_TOO_MUCH, "{line}: {}", String::from_utf8_lossy(&reply[..reply.len().min(200)]));
        assert!(held < 3 * MIB, "{line}: held {held} bytes");
    }
    assert!(client.raw(&words("HITHER.RANGE - +")) == before && client.run("ZCARD z") == NAMES.to_string());
    // What can be done without holding too much is done.
    client.run(&format!("ZADD mid{}", (0..1_000).map(|number| format!(" 1 {number}")).collect::<String>()));
    let (reply, held) = peak(|| client.raw(&words("ZDIFFSTORE to 2 mid z")));
    assert!(reply == b":1000\r\n" && held < 3 * MIB, "held {held} bytes: {}", String::from_utf8_lossy(&reply));
    for line in ["ZREMRANGEBYSCORE short -inf inf", "ZREMRANGEBYLEX other - +"] {
        let (reply, held) = peak(|| client.raw(&words(line)));
        assert!(reply.starts_with(b":") && held < MIB, "{line}: held {held} bytes");
    }
    client.script("ZRANGESTORE to z 0 9 => 10\nZREMRANGEBYRANK z 0 9 => 10\nCOPY to again => 1\nZDIFF 2 to again => []");
}

/// Regression: BITOP held all its sources, as often as they were named.
#[test]
fn bitop_holds_one_source_at_a_time() {
    let (_shared, mut client) = filled(0);
    for operation in ["AND", "OR", "XOR"] {
        let line = format!("BITOP {operation} to{}", " s1 s2 s3".repeat(20));
        let (reply, held) = peak(|| client.raw(&words(&line)));
        assert_eq!(reply, format!(":{VALUE_BYTES}\r\n").as_bytes());
        assert!(held < 3 * MIB, "{operation}: held {held} bytes");
    }
    client.script(
        "SETRANGE a 0 abc => 3
        BITOP AND to a s1 => 262144
        BITCOUNT to => 2
        GETRANGE to 0 2 => \x01\x00\x01
        BITOP OR to nothing a => 3
        GET to => abc
        BITOP XOR to a nothing a a => 3
        GET to => abc
        BITOP AND to a nothing => 3
        BITCOUNT to => 0
        BITOP NOT to a => 3
        BITCOUNT to => 14
        BITOP AND to nothing nothing => 0
        EXISTS to => 0
        BITOP AND to a z => !WRONGTYPE Operation against a key holding the wrong kind of value",
    );
}

/// Regression: all sets were in memory at once.
#[test]
fn sets_are_combined_one_by_one() {
    let (_shared, mut client) = filled(0);
    let many = format!("ZUNION 20{}", " z".repeat(20));
    let lines = [("ZINTERSTORE to 3 z z few", MIB), ("ZDIFFSTORE to 3 few z z", MIB), ("ZINTER 2 few z", MIB), (many.as_str(), 45 * MIB)];
    for (line, most) in lines {
        let (_, held) = peak(|| client.raw(&words(line)));
        assert!(held < most, "{line}: held {held} bytes");
    }
}

/// Regression: EXEC held the cursors of all its SCANs, with a key each, although most are forgotten as soon as they are
/// known.
#[test]
fn no_more_cursors_are_held_than_are_kept() {
    let (_shared, mut client) = filled(0);
    let lines = ["SCAN 0 COUNT 1 TYPE hash", "HSCAN f 0 COUNT 1 MATCH none", "ZSCAN z 0 COUNT 1 MATCH none"];
    client.script("SELECT 1 => OK\nMULTI => OK");
    (0..2_000).for_each(|_| assert_eq!(client.run(lines[0]), "QUEUED"));
    client.run("SELECT 0");
    (0..1_000).for_each(|number| assert_eq!(client.run(lines[1 + number % 2]), "QUEUED"));
    let (reply, held) = peak(|| client.call(&[b"EXEC"]));
    assert!(held < MOST_BYTES + 4 * MIB, "held {held} bytes");
    let Value::Array(replies) = reply else { panic!("{reply:?}") };
    let cursor = |reply: &Value| show(reply)[1..].split(' ').next().unwrap().to_owned();
    client.script(&format!("HSCAN f {} COUNT 1000 MATCH x => [0 []]", cursor(&replies[2_999])));
}

/// Regression: the keys that the patterns of SORT lead to are kept until the commit, whether they exist or not, but
/// were not counted.
#[test]
fn the_keys_that_sort_follows_are_bounded() {
    let (_shared, mut client) = filled_with(Config { max_request_bytes: MIB, ..Config::default() }, 0);
    client.run(&format!("ZADD short{}", (0..1_000).map(|number| format!(" 1 {number}")).collect::<String>()));
    let pattern = "p".repeat(NAME_BYTES);
    for line in ["SORT short BY PATTERN*", "SORT short BY nosort GET PATTERN*", "SORT short BY nosort GET # GET PATTERN*->f"] {
        let (reply, held) = peak(|| client.raw(&words(&line.replace("PATTERN", &pattern))));
        assert_eq!(String::from_utf8_lossy(&reply), String::from_utf8_lossy(HELD_TOO_MUCH), "{line}");
        assert!(held < 3 * MIB, "{line}: held {held} bytes");
    }
    client.script("SORT few BY none* GET none* GET # => [nil 0 nil 1]\nSORT short BY w* LIMIT 0 2 GET # => [0 1]");
    // Those of all commands of a transaction.
    client.run("MULTI");
    (0..100).for_each(|number| assert_eq!(client.run(&format!("SORT few BY {}", format!("{number}*").repeat(200))), "QUEUED"));
    assert!(client.run("EXEC").starts_with("[[0 1] [0 1]"));
    client.run("MULTI");
    for number in 0..20 {
        assert_eq!(client.run(&format!("SORT few BY {number}{pattern}*")), "QUEUED");
    }
    let (reply, held) = peak(|| client.raw(&[b"EXEC"]));
    assert_eq!(String::from_utf8_lossy(&reply), String::from_utf8_lossy(TOO_MUCH));
    assert!(held < 3 * MIB, "held {held} bytes");
}

/// Regression: for what is written, hardly more than the names counted; for what is popped, only the reply.
#[test]
fn members_that_are_written_count_with_what_their_rows_take() {
    let (_shared, mut client) = filled_with(Config { max_request_bytes: MIB, ..Config::default() }, 0);
    for first in (0..15_000u32).step_by(100) {
        let numbers = first..first + 100;
        client.run(&format!("ZADD short{}", numbers.clone().map(|number| format!(" {number} {number}")).collect::<String>()));
        client.run(&format!("HSET fields{}", numbers.map(|number| format!(" {number} v")).collect::<String>()));
    }
    let refused = [
        "ZRANGESTORE to short 0 -1",
        "ZUNIONSTORE to 1 short",
        "ZINTERSTORE to 1 short",
        "ZDIFFSTORE to 1 short",
        "ZPOPMIN short 14999",
        "ZPOPMAX short 15000",
        "ZMPOP 1 short MIN COUNT 15000",
        "BZMPOP 0 1 short MAX COUNT 15000",
        "ZREMRANGEBYRANK short 1 -1",
        "COPY short to",
        "COPY fields to",
    ];
    for line in refused {
        let (reply, held) = peak(|| client.raw(&words(line)));
        assert!(held < 3 * MIB, "{line}: held {held} bytes");
        assert_eq!(String::from_utf8_lossy(&reply), String::from_utf8_lossy(HELD_TOO_MUCH), "{line}");
    }
    client.script("ZCARD short => 15000\nEXISTS to => 0");
    let done = [
        "ZRANGESTORE to short 0 999",
        "ZUNIONSTORE to 2 to none",
        "COPY to again",
        "ZPOPMIN short 1000",
        "ZPOPMAX short 1000",
        "ZMPOP 1 short MIN COUNT 1000",
        "ZREMRANGEBYRANK short 0 999",
    ];
    for line in done {
        let (reply, held) = peak(|| client.raw(&words(line)));
        assert!(!reply.starts_with(b"-") && held < 3 * MIB, "{line}: held {held} bytes");
    }
    client.script("ZCARD to => 1000\nZCARD again => 1000\nZCARD short => 11000");
}

/// Regression: both strings were copied before their lengths were checked.
#[test]
fn strings_that_are_too_long_to_compare_are_not_copied() {
    let (_shared, mut client) = filled(0);
    for line in ["LCS s0 s1", "LCS s0 s1 IDX"] {
        let (reply, held) = peak(|| client.raw(&words(line)));
        assert!(reply.starts_with(b"-ERR Insufficient memory"), "{}", String::from_utf8_lossy(&reply));
        assert!(held < VALUE_BYTES / 2, "held {held} bytes");
    }
    client.script("MSET a abc b bxc => OK\nLCS a b => bc\nLCS a none => ''\nLCS a h => !ERR The specified keys must contain string values");
}

/// Regression: EXEC failed as a whole.
#[test]
fn what_one_command_of_a_transaction_may_not_hold_is_its_own_error() {
    let (_shared, mut client) = filled_with(Config { max_request_bytes: MIB, ..Config::default() }, 0);
    client
        .script("SET to kept => OK\nMULTI => OK\nSET a 1 => QUEUED\nZRANGESTORE to z 0 -1 => QUEUED\nMOVE h 1 => QUEUED\nINCR a => QUEUED");
    let refused = show(&Value::Error(HELD_TOO_MUCH[1..HELD_TOO_MUCH.len() - 2].to_vec()));
    let (reply, held) = peak(|| client.run("EXEC"));
    assert_eq!(reply, format!("[OK {refused} {refused} 2]"));
    assert!(held < 3 * MIB, "held {held} bytes");
    client.script("GET a => 2\nGET to => kept\nHLEN h => 24\nSELECT 1 => OK\nEXISTS h => 0");
}
