//! Commands, family by family, through sessions without a socket: replies and errors as Redis gives them.

use crate::common::{Client, script, shared, until};

#[test]
fn strings() {
    script(
        "GET a => nil
        SET a 1 => OK
        GET a => 1
        SET a 2 NX => nil
        SET a 2 XX => OK
        SET b 2 XX => nil
        SET a 3 GET => 2
        SET a 4 NX GET => 3
        GET a => 3
        SET a 1 NX XX => !ERR syntax error
        SET a 1 EX 0 => !ERR invalid expire time in 'set' command
        SET a 1 EX x => !ERR value is not an integer or out of range
        SET a 1 EX 10 PX 10 => !ERR syntax error
        SET a 1 EX 10 KEEPTTL => !ERR syntax error
        SETNX a 9 => 0
        SETNX new 9 => 1
        SETEX e 100 v => OK
        TTL e => 100
        SET e w KEEPTTL => OK
        TTL e => 100
        SET e w => OK
        TTL e => -1
        SET gone x PXAT 1 => OK
        EXISTS gone => 0
        PSETEX e 0 v => !ERR invalid expire time in 'psetex' command
        GETSET a 5 => 3
        GETDEL a => 5
        GETDEL a => nil
        GETEX e EX 50 => w
        TTL e => 50
        GETEX e PERSIST => w
        TTL e => -1
        GETEX e PERSIST EX 5 => !ERR syntax error
        MSET x 1 y 2 => OK
        MGET x nothing y => [1 nil 2]
        MSET x 1 y => !ERR wrong number of arguments for 'mset' command
        MSETNX z 1 x 9 => 0
        EXISTS z => 0
        MSETNX z 1 w 2 => 1
        INCR n => 1
        INCRBY n 41 => 42
        DECR n => 41
        DECRBY n 2 => 39
        INCRBYFLOAT n 0.1 => 39.1
        INCR n => !ERR value is not an integer or out of range
        SET n 9223372036854775807 => OK
        INCR n => !ERR increment or decrement would overflow
        DECRBY n -9223372036854775808 => !ERR decrement would overflow
        APPEND t abc => 3
        APPEND t def => 6
        STRLEN t => 6
        STRLEN nothing => 0
        GETRANGE t 1 -2 => bcde
        GETRANGE t 5 2 => ''
        SETRANGE t 8 X => 9
        STRLEN t => 9
        SETRANGE t -1 X => !ERR offset is out of range
        SETRANGE nothing 3 '' => 0
        GET => !ERR wrong number of arguments for 'get' command
        NOTHING a b => !ERR unknown command 'NOTHING', with args beginning with: 'a' 'b' ",
    );
}

#[test]
fn keys() {
    script(
        "MSET a 1 b 2 c 3 => OK
        DBSIZE => 3
        EXISTS a b b x => 3
        DEL a x => 1
        UNLINK b => 1
        TYPE c => string
        TYPE x => none
        EXPIRE c 100 => 1
        EXPIRE x 100 => 0
        TTL c => 100
        TTL x => -2
        EXPIRE c 50 GT => 0
        EXPIRE c 50 LT => 1
        EXPIRE c 60 NX => 0
        PERSIST c => 1
        PERSIST c => 0
        EXPIRE c 60 XX => 0
        EXPIRE c 60 GT => 0
        EXPIRE c 60 NX GT => !ERR NX and XX, GT or LT options at the same time are not compatible
        EXPIRE c 60 YY => !ERR Unsupported option YY
        EXPIREAT c 4102444800 => 1
        EXPIRETIME c => 4102444800
        PEXPIRETIME c => 4102444800000
        EXPIRE c -1 => 1
        EXISTS c => 0
        SET r 1 EX 100 => OK
        RENAME r s => OK
        TTL s => 100
        RENAME r s => !ERR no such key
        SET t 2 => OK
        RENAMENX s t => 0
        RENAMENX s u => 1
        COPY u v => 1
        COPY u v => 0
        COPY t v REPLACE => 1
        GET v => 2
        COPY t t => !ERR source and destination objects are the same
        COPY t t DB 1 => 1
        MOVE u 1 => 1
        MOVE u 1 => 0
        SET u own => OK
        MOVE u 1 => 0
        GET u => own
        DEL u => 1
        SELECT 1 => OK
        KEYS * => [t u]
        SELECT 16 => !ERR DB index is out of range
        SELECT x => !ERR value is not an integer or out of range
        FLUSHDB => OK
        DBSIZE => 0
        RANDOMKEY => nil
        SELECT 0 => OK
        KEYS * => [t v]
        KEYS [uv] => [v]
        FLUSHALL ASYNC => OK
        DBSIZE => 0",
    );
}

/// Regression: the line had no commas, and clients returned it as text and not as numbers.
#[test]
fn keys_and_those_that_expire_are_counted() {
    let shared = shared();
    let mut client = Client::new(&shared);
    client.script("MSET a 1 b 2 c 3 => OK\nPEXPIREAT a 99999999999999 => 1\nEXPIRE b 1000 => 1\nSELECT 1 => OK\nSET d 4 => OK");
    // The store's own threads sweep once a second.
    let counted = std::cell::RefCell::new(client);
    until(|| {
        counted.borrow_mut().run("INFO keyspace") == "# Keyspace\r\ndb0:keys=3,expires=2,avg_ttl=0\r\ndb1:keys=1,expires=0,avg_ttl=0\r\n"
    });
    counted.borrow_mut().script("SELECT 0 => OK\nPERSIST a => 1\nDEL b => 1");
    until(|| counted.borrow_mut().run("INFO keyspace").contains("db0:keys=2,expires=0,"));
}

/// Regression: a number that fits into no float was taken for infinity, or for zero.
#[test]
fn numbers_that_do_not_fit_are_refused() {
    script(
        "ZADD z 1e400 a => !ERR value is not a valid float
        ZADD z -1e400 a => !ERR value is not a valid float
        ZADD z 1e-400 a => !ERR value is not a valid float
        ZADD z 0e5 a inf b => 2
        ZINCRBY z 1e400 a => !ERR value is not a valid float
        ZUNIONSTORE d 1 z WEIGHTS 1e400 => !ERR weight value is not a float
        ZRANGEBYSCORE z -1e400 1e400 => [a b]",
    );
}

/// Regression: the errors were others than Redis', or there were none.
#[test]
fn words_that_are_missing_or_too_many_are_errors_of_syntax() {
    script(
        "ZADD z 1 a => 1
        ZUNION 2 z z WEIGHTS x => !ERR syntax error
        ZUNION 2 z z WEIGHTS x 1 => !ERR weight value is not a float
        ZINCRBY z NX m => !ERR syntax error
        ZINCRBY z nix m => !ERR value is not a valid float
        COMMAND LIST FILTERBY MODULE x => []
        COMMAND LIST FILTERBY PATTERN get => [get]
        COMMAND LIST FILTERBY PATTERN get a => !ERR syntax error",
    );
}

#[test]
fn hashes() {
    script(
        "HSET h a 1 b 2 => 2
        HSET h a 3 c 4 => 1
        HSET h a => !ERR wrong number of arguments for 'hset' command
        HMSET h d 5 => OK
        HGET h a => 3
        HGET h x => nil
        HGET x x => nil
        HMGET h a x b => [3 nil 2]
        HMGET x a => [nil]
        HGETALL h => [a 3 b 2 c 4 d 5]
        HKEYS h => [a b c d]
        HVALS h => [3 2 4 5]
        HLEN h => 4
        HEXISTS h a => 1
        HSTRLEN h a => 1
        HSETNX h a 9 => 0
        HSETNX h e 9 => 1
        HINCRBY h a 2 => 5
        HINCRBY h new -2 => -2
        HINCRBYFLOAT h a 0.5 => 5.5
        HINCRBY h a 1 => !ERR hash value is not an integer
        HSCAN h 0 => [0 [a 5.5 b 2 c 4 d 5 e 9 new -2]]
        HSCAN x 0 => [0 []]
        HDEL h a x => 1
        TYPE h => hash
        GET h => !WRONGTYPE Operation against a key holding the wrong kind of value
        APPEND h x => !WRONGTYPE Operation against a key holding the wrong kind of value
        SET s 1 => OK
        HSET s a 1 => !WRONGTYPE Operation against a key holding the wrong kind of value
        HGET s a => !WRONGTYPE Operation against a key holding the wrong kind of value
        EXPIRE h 100 => 1
        HSET h z 1 => 1
        TTL h => 100
        COPY h i => 1
        TTL i => 100
        RENAME h j => OK
        HLEN h => 0
        HGETALL j => [b 2 c 4 d 5 e 9 new -2 z 1]
        HGETALL i => [b 2 c 4 d 5 e 9 new -2 z 1]
        HDEL j b c d e new z => 6
        EXISTS j => 0
        SET i 1 => OK
        GET i => 1
        HSET m f 1 => 1
        DEL m => 1
        HGET m f => nil
        HSET m g 1 => 1
        HGETALL m => [g 1]
        HRANDFIELD m 5 WITHVALUES => [g 1]
        HRANDFIELD m -2 => [g g]
        HRANDFIELD x => nil",
    );
}

#[test]
fn sorted_sets() {
    script(
        "ZADD z 1 a 2 b 3 c => 3
        ZADD z XX CH 5 a 9 x => 1
        ZADD z NX 7 a 4 d => 1
        ZADD z GT 1 a => 0
        ZADD z INCR 2 b => 4
        ZADD z NX INCR 2 b => nil
        ZADD z inf i => 1
        ZADD z NX INCR -inf i => nil
        ZADD z INCR -inf i => !ERR resulting score is not a number (NaN)
        ZREM z i => 1
        ZADD z NX XX 1 a => !ERR XX and NX options at the same time are not compatible
        ZADD z GT LT 1 a => !ERR GT, LT, and/or NX options at the same time are not compatible
        ZADD z 1 => !ERR wrong number of arguments for 'zadd' command
        ZADD z x a => !ERR value is not a valid float
        ZRANGE z 0 -1 WITHSCORES => [c 3 b 4 d 4 a 5]
        ZRANGE z 1 2 => [b d]
        ZRANGE z -2 -1 => [d a]
        ZRANGE z 0 1 REV => [a d]
        ZREVRANGE z 0 0 WITHSCORES => [a 5]
        ZRANGE z (3 4 BYSCORE => [b d]
        ZRANGE z (3 4 BYSCORE LIMIT 1 1 => [d]
        ZRANGE z 4 -inf BYSCORE REV => [d b c]
        ZRANGE z 0 1 LIMIT 0 1 => !ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX
        ZRANGEBYSCORE z -inf +inf WITHSCORES LIMIT 0 2 => [c 3 b 4]
        ZREVRANGEBYSCORE z 4 (3 => [d b]
        ZRANGEBYSCORE z x 1 => !ERR min or max is not a float
        ZCOUNT z 4 5 => 3
        ZCARD z => 4
        ZSCORE z a => 5
        ZSCORE z x => nil
        ZMSCORE z a x c => [5 nil 3]
        ZRANK z a => 3
        ZREVRANK z a => 0
        ZRANK z x => nil
        ZINCRBY z -1.5 a => 3.5
        ZINCRBY z inf i => inf
        ZADD z INCR -inf i => !ERR resulting score is not a number (NaN)
        ZREM z i x => 1
        ZPOPMIN z => [c 3]
        ZPOPMAX z 2 => [d 4 b 4]
        ZPOPMIN x => []
        ZADD l 0 a 0 b 0 c 0 d => 4
        ZRANGEBYLEX l [b + => [b c d]
        ZRANGEBYLEX l - (c => [a b]
        ZREVRANGEBYLEX l + [b LIMIT 0 2 => [d c]
        ZLEXCOUNT l - + => 4
        ZRANGEBYLEX l b c => !ERR min or max not valid string range item
        ZREMRANGEBYLEX l [a [b => 2
        ZREMRANGEBYRANK l 0 0 => 1
        ZREMRANGEBYSCORE l 0 0 => 1
        EXISTS l => 0
        ZADD u 1 a 2 b => 2
        ZADD v 10 b 20 c => 2
        ZUNION 2 u v WITHSCORES => [a 1 b 12 c 20]
        ZINTER 2 u v WITHSCORES AGGREGATE MAX => [b 10]
        ZDIFF 2 u v => [a]
        ZUNIONSTORE w 2 u v WEIGHTS 2 1 => 3
        ZRANGE w 0 -1 WITHSCORES => [a 2 b 14 c 20]
        ZINTERSTORE w 2 u none => 0
        ZADD far inf a -inf b => 2
        ZADD near 5 a 5 b 5 c => 3
        ZINTER 2 far near WITHSCORES WEIGHTS 0 1 => [a 5 b 5]
        ZINTER 2 near far WITHSCORES WEIGHTS 1 0 => [a 5 b 5]
        ZADD far 1 c 1 d => 2
        ZINTER 2 near far WITHSCORES WEIGHTS 1 0 => [a 0 b 0 c 5]
        ZINTER 2 near far WITHSCORES WEIGHTS 1 0 AGGREGATE MIN => [c 0 a 5 b 5]
        ZUNION 2 near far WITHSCORES WEIGHTS 1 0 => [d 0 a 5 b 5 c 5]
        EXISTS w => 0
        ZUNION 0 a => !ERR at least 1 input key is needed for 'zunion' command
        ZRANGESTORE w u 0 0 => 1
        ZRANGE w 0 -1 => [a]
        ZSCAN u 0 => [0 [a 1 b 2]]
        TYPE u => zset
        HGET u a => !WRONGTYPE Operation against a key holding the wrong kind of value
        ZRANDMEMBER w -2 => [a a]
        MULTI => OK
        ZADD t 1 a 2 b => QUEUED
        ZRANGE t 0 -1 => QUEUED
        ZREM t a => QUEUED
        ZRANGE t 0 -1 REV WITHSCORES => QUEUED
        ZCARD t => QUEUED
        EXEC => [2 [a b] 1 [b 2] 1]
        ZRANGE t 0 -1 => [b]",
    );
}

#[test]
fn bits() {
    script(
        "SETBIT b 7 1 => 0
        SETBIT b 7 1 => 1
        SETBIT b 23 1 => 0
        STRLEN b => 3
        GETBIT b 7 => 1
        GETBIT b 1000 => 0
        SETBIT b 4294967288 1 => !ERR bit offset is not an integer or out of range
        SETBIT b 4294967288 2 => !ERR bit is not an integer or out of range
        GETBIT b 4294967295 => 0
        GETBIT b 4294967296 => !ERR bit offset is not an integer or out of range
        BITFIELD b GET u8 4294967288 => [0]
        BITFIELD b SET u8 4294967281 1 => !ERR bit offset is not an integer or out of range
        BITFIELD_RO b GET u8 #536870912 => !ERR bit offset is not an integer or out of range
        SETBIT b -1 1 => !ERR bit offset is not an integer or out of range
        SETBIT b 1 2 => !ERR bit is not an integer or out of range
        BITCOUNT b => 2
        BITCOUNT b 0 0 => 1
        BITCOUNT b 8 23 BIT => 1
        BITCOUNT b 1 => !ERR syntax error
        BITPOS b 1 => 7
        BITPOS b 1 1 => 23
        BITPOS b 0 0 0 => 0
        BITPOS b 2 => !ERR The bit argument must be 1 or 0.
        BITPOS nothing 1 => -1
        BITPOS nothing 0 => 0
        SET x abc => OK
        SET y ab => OK
        BITOP XOR z x y => 3
        GETRANGE z 2 2 => c
        BITCOUNT z 0 1 => 0
        BITOP NOT z x y => !ERR BITOP NOT must be called with a single source key.
        BITOP AND z nothing => 0
        EXISTS z => 0
        BITFIELD f SET u8 0 255 GET i8 0 => [0 -1]
        BITFIELD f INCRBY u8 0 2 OVERFLOW SAT INCRBY u8 0 -9 OVERFLOW FAIL INCRBY u8 0 -1 => [1 0 nil]
        BITFIELD f SET u16 #1 258 GET u8 24 => [0 2]
        BITFIELD_RO f GET u8 24 => [2]
        BITFIELD_RO f SET u8 24 1 => !ERR BITFIELD_RO only supports the GET subcommand
        BITFIELD f GET u64 0 => !ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.
        BITFIELD nothing GET i64 5 => [0]
        EXISTS nothing => 0
        HSET h f v => 1
        GETBIT h 0 => !WRONGTYPE Operation against a key holding the wrong kind of value
        BITOP OR x x h => !WRONGTYPE Operation against a key holding the wrong kind of value
        BITOP OR h x y => 3
        TYPE h => string",
    );
}

#[test]
fn common_subsequences() {
    script(
        "MSET a ohmytext b mynewtext => OK
        LCS a b => mytext
        LCS a b LEN => 6
        LCS a b IDX => [matches [[[4 7] [5 8]] [[2 3] [0 1]]] len 6]
        LCS a b IDX MINMATCHLEN 4 WITHMATCHLEN => [matches [[[4 7] [5 8] 4]] len 6]
        LCS a b IDX LEN => !ERR If you want both the length and indexes, please just use IDX.
        LCS a b MINMATCHLEN => !ERR syntax error
        LCS a nothing => ''
        HSET h f v => 1
        LCS a h => !ERR The specified keys must contain string values",
    );
}

/// Regression: ZINCRBY answered -0, and a later ZSCORE 0.
#[test]
fn a_score_is_answered_as_it_is_stored() {
    script(
        "ZINCRBY z -0 new => 0
        ZSCORE z new => 0
        ZADD z INCR -0.0 other => 0
        ZADD z -0 third => 1
        ZINCRBY z -0 third => 0
        ZADD z 1 third => 0
        ZADD z INCR -1 third => 0
        ZRANGE z 0 -1 WITHSCORES => [new 0 other 0 third 0]
        ZRANGEBYSCORE z (-0 0 => []",
    );
}

#[test]
fn several_sorted_sets() {
    script(
        "ZADD a 1 x 2 y 3 z => 3
        ZADD b 5 y 6 z 7 w => 3
        ZINTERCARD 2 a b => 2
        ZINTERCARD 2 a b LIMIT 1 => 1
        ZINTERCARD 2 a nothing => 0
        ZINTERCARD 2 a b LIMIT -1 => !ERR LIMIT can't be negative
        ZMPOP 2 nothing a MAX COUNT 2 => [a [[z 3] [y 2]]]
        ZMPOP 1 a MIN => [a [[x 1]]]
        EXISTS a => 0
        ZMPOP 1 a MIN => nil
        ZMPOP 0 a MIN => !ERR numkeys should be greater than 0
        ZMPOP 1 b MIN COUNT 0 => !ERR count should be greater than 0
        ZMPOP 3 a b MIN => !ERR syntax error
        ZCARD b => 3",
    );
}

/// Regression: ZADD with XX took a number for a set that it did not make.
#[test]
fn who_makes_no_collection_draws_no_number() {
    let shared = shared();
    let mut client = Client::new(&shared);
    client.script("SET s 1 => OK");
    let next = shared.databases.next_number().unwrap() + 1;
    client.script(
        "ZADD none XX 1 m => 0
        ZADD none XX CH 1 m 2 n => 0
        ZADD none XX INCR 1 m => nil
        ZADD none XX 1 m x n => !ERR value is not a valid float
        ZADD s XX 1 m => !WRONGTYPE Operation against a key holding the wrong kind of value
        ZREM none m => 0
        ZPOPMIN none => []
        ZUNIONSTORE to 1 none => 0
        ZRANGESTORE to none 0 -1 => 0
        HDEL none f => 0
        COPY none to => 0
        MULTI => OK
        ZADD none XX 1 m => QUEUED
        EXEC => [0]",
    );
    assert_eq!(shared.databases.next_number().unwrap(), next);
    client.script("ZADD none GT 1 m => 1");
    assert_eq!(shared.databases.next_number().unwrap(), next + 2, "a set has one");
}

#[test]
fn stretches_and_common_members_of_large_sets() {
    let mut client = Client::new(&shared());
    for number in 0..700 {
        client.run(&format!("ZADD a {number} m{number:03}"));
        client.run(&format!("ZADD b {} m{:03}", number % 7, number + 300));
    }
    client.script(
        "ZINTERCARD 2 a b => 400
        ZINTERCARD 2 a b LIMIT 399 => 399
        ZINTERCARD 2 a b LIMIT 401 => 400
        ZINTERCARD 2 a a => 700
        ZINTERCARD 3 a a a LIMIT 5 => 5
        ZINTERCARD 3 b a b => 400
        ZINTERCARD 2 a none => 0
        ZDIFF 3 a none a => []
        ZDIFF 2 none none => []
        ZDIFFSTORE to 2 a a => 0
        ZDIFFSTORE to 2 a b => 300
        SORT a BY nosort LIMIT 698 9 => [m698 m699]
        SORT a BY nosort DESC LIMIT 1 2 => [m698 m697]
        SORT a BY nosort LIMIT 0 0 => []
        SORT a BY nosort LIMIT 900 3 => []
        SORT a BY nosort LIMIT -5 1 => [m000]
        SORT a ALPHA LIMIT 3 2 => [m003 m004]
        SORT a ALPHA DESC LIMIT 698 -1 => [m001 m000]
        MEMORY USAGE none SAMPLES -1 => !ERR syntax error",
    );
    // All members have the same length.
    let usage = client.run("MEMORY USAGE a");
    assert_eq!((client.run("MEMORY USAGE a SAMPLES 0"), client.run("MEMORY USAGE a SAMPLES 1")), (usage.clone(), usage.clone()));
    client.run(&format!("ZADD a 0 {}", "n".repeat(1000)));
    let all = client.run("MEMORY USAGE a SAMPLES 0").parse::<usize>().unwrap();
    let some = client.run("MEMORY USAGE a").parse::<usize>().unwrap();
    assert!(all > some + 1900 && some > usage.parse().unwrap(), "{all} {some}");
}
