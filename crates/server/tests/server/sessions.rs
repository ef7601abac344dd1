//! Commands, family by family, through sessions without a socket: replies and errors as Redis gives them.

use crate::common::{Client, shared, show, until};
use hither_resp::Value;

fn script(text: &str) {
    Client::new(&shared()).script(text);
}

/// Regression: SKIP ended OFF, and the client took what came then for the answers to what it asked next.
#[test]
fn who_takes_no_replies_gets_none_until_it_says_so() {
    let mut client = Client::new(&shared());
    let mut replies = |lines: &str| {
        let all = lines.split("; ").map(|line| client.raw(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>()));
        String::from_utf8(all.collect::<Vec<_>>().concat()).unwrap().replace("\r\n", " ")
    };
    assert_eq!(replies("CLIENT REPLY OFF; CLIENT REPLY SKIP; PING; PING; CLIENT REPLY ON; PING"), "+OK +PONG ");
    assert_eq!(
        replies("CLIENT REPLY SKIP; PING; TIME x; CLIENT REPLY SKIP; CLIENT REPLY SKIP; PING; ECHO a"),
        "-ERR wrong number of arguments for 'time' command $1 a "
    );
}

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

/// Regression: the line had no commas, and clients gave it as text and not as numbers.
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

/// Regression: what fits into no float was taken for infinity, or for nothing.
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

#[test]
fn transactions() {
    script(
        "EXEC => !ERR EXEC without MULTI
        DISCARD => !ERR DISCARD without MULTI
        MULTI => OK
        MULTI => !ERR MULTI calls can not be nested
        DISCARD => OK
        MULTI => OK
        SET a 1 => QUEUED
        INCR a => QUEUED
        GET a => QUEUED
        LPUSHX => !ERR unknown command 'LPUSHX', with args beginning with: 
        EXEC => !EXECABORT Transaction discarded because of previous errors.
        GET a => nil
        MULTI => OK
        SET a x => QUEUED
        INCR a => QUEUED
        APPEND a y => QUEUED
        KEYS * => QUEUED
        DEL a => QUEUED
        EXISTS a => QUEUED
        SELECT 1 => QUEUED
        SET b 2 => QUEUED
        EXEC => [OK !ERR value is not an integer or out of range 2 [a] 1 0 OK OK]
        GET b => 2
        SELECT 0 => OK
        DBSIZE => 0
        MULTI => OK
        EXEC => []
        MULTI => OK
        FLUSHALL => !ERR Command not allowed inside a transaction
        EXEC => !EXECABORT Transaction discarded because of previous errors.
        MULTI => OK
        EXEC now => !EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command
        EXEC => !ERR EXEC without MULTI
        MULTI => OK
        WATCH a => !ERR WATCH inside MULTI is not allowed
        DISCARD => OK",
    );
}

#[test]
fn watched_keys_abort() {
    let shared = shared();
    let (mut one, mut other) = (Client::new(&shared), Client::new(&shared));
    for (meanwhile, expected) in [
        ("GET k", "[OK]"),
        ("SET k 1", "nil"),
        ("SET k 1", "nil"),
        ("DEL k", "nil"),
        ("DEL k", "[OK]"),
        ("SETBIT other 3 1", "nil"),
        ("SETBIT other 3 1", "[OK]"),
        ("SETBIT other 8 0", "nil"),
        ("FLUSHALL", "nil"),
    ] {
        assert_eq!(one.run("WATCH k other"), "OK");
        other.run(meanwhile);
        one.run("MULTI");
        one.run("SET done 1");
        assert_eq!(one.run("EXEC"), expected, "{meanwhile}");
    }
    one.run("WATCH k");
    other.run("SET k 1");
    one.run("UNWATCH");
    one.run("MULTI");
    assert_eq!(one.run("EXEC"), "[]");
    one.run("WATCH k");
    one.run("SET k own");
    one.run("MULTI");
    assert_eq!(one.run("EXEC"), "nil", "own changes count, too");
}

#[test]
fn the_connection() {
    script(
        "PING => PONG
        PING hi => hi
        PING a b => !ERR wrong number of arguments for 'ping' command
        ECHO x => x
        CLIENT GETNAME => nil
        CLIENT SETNAME me => OK
        CLIENT GETNAME => me
        CLIENT SETINFO lib-name test => OK
        CLIENT SETINFO what test => !ERR Unrecognized option 'what'
        CLIENT WHAT => !ERR unknown subcommand 'WHAT'. Try CLIENT HELP.
        CLIENT => !ERR wrong number of arguments for 'client' command
        CLIENT KILL ID 99 => 0
        CLIENT KILL nobody => !ERR No such client
        HELLO 4 => !NOPROTO unsupported protocol version
        HELLO x => !ERR Protocol version is not an integer or out of range
        HELLO 3 SETNAME => !ERR Syntax error in HELLO option 'SETNAME'
        AUTH x y => !WRONGPASS invalid username-password pair or user is disabled.
        AUTH default anything => OK
        HITHER.DURABILITY => default
        HITHER.DURABILITY interval 20 => OK
        HITHER.DURABILITY => interval 20
        HITHER.DURABILITY never => !ERR syntax error
        RESET => RESET
        HITHER.DURABILITY => default
        CLIENT GETNAME => nil
        CONFIG GET timeout => [timeout 0]
        CONFIG SET timeout 5 => OK
        CONFIG GET timeou? => [timeout 5]
        CONFIG SET port 5 => !ERR CONFIG SET failed (possibly related to argument 'port') - can't set immutable config
        CONFIG SET nothing 5 => !ERR Unknown option or number of arguments for CONFIG SET - 'nothing'
        SLOWLOG RESET => OK
        SLOWLOG LEN => 0
        SLOWLOG GET => []
        COMMAND GETKEYS MSET a 1 b 2 => [a b]
        COMMAND GETKEYS PING x => !ERR The command has no key arguments
        COMMAND INFO nothing => [nil]
        DEBUG SLEEP 0 => OK
        MEMORY USAGE nothing => nil
        QUIT => OK",
    );
}

#[test]
fn version_3_of_the_protocol() {
    let mut client = Client::new(&shared());
    assert!(client.run("HELLO 3").starts_with("{server:redis version:7"));
    assert_eq!(client.run("CONFIG GET timeout"), "{timeout:0}");
    assert_eq!(client.raw(&[b"GET", b"x"]), b"_\r\n");
    assert!(client.run("INFO server").starts_with("# Server\r\nredis_version:"));
    let docs = client.run("COMMAND DOCS get");
    assert_eq!(docs, "{get:{summary:Returns the string value of a key. since:1.0.0 group:string}}");
    assert!(client.run("COMMAND INFO get").starts_with("[[get 2 (readonly fast) 1 1 1 (@read @string @fast)"));
    client.run("HELLO 2");
    assert_eq!(client.raw(&[b"GET", b"x"]), b"$-1\r\n");
}

#[test]
fn passwords() {
    let shared = shared();
    let mut admin = Client::new(&shared);
    assert_eq!(
        admin.run("AUTH x"),
        "!ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?"
    );
    admin.run("CONFIG SET requirepass secret");
    let mut client = Client::new(&shared);
    client.script(
        "PING => !NOAUTH Authentication required.
        GET a => !NOAUTH Authentication required.
        AUTH wrong => !WRONGPASS invalid username-password pair or user is disabled.
        AUTH secret => OK
        PING => PONG
        RESET => RESET
        PING => !NOAUTH Authentication required.",
    );
    assert!(client.run("HELLO 3").starts_with("!NOAUTH HELLO must be called"));
    assert!(client.run("HELLO 3 AUTH default secret").starts_with("{server:"));
    assert_eq!(client.run("PING"), "PONG");
}

#[test]
fn replies_can_be_switched_off() {
    let mut client = Client::new(&shared());
    assert_eq!(client.raw(&[b"CLIENT", b"REPLY", b"OFF"]), b"");
    assert_eq!(client.raw(&[b"SET", b"a", b"1"]), b"");
    assert_eq!(client.raw(&[b"CLIENT", b"REPLY", b"ON"]), b"+OK\r\n");
    assert_eq!(client.raw(&[b"CLIENT", b"REPLY", b"SKIP"]), b"");
    assert_eq!(client.raw(&[b"GET", b"a"]), b"");
    assert_eq!(client.raw(&[b"GET", b"a"]), b"$1\r\n1\r\n");
}

#[test]
fn slow_commands_are_kept_without_secrets() {
    let mut client = Client::new(&shared());
    client.run("CONFIG SET slowlog-log-slower-than 0");
    client.run("GET a");
    client.run("AUTH default secret");
    let log = client.run("SLOWLOG GET");
    assert!(log.contains("[GET a]") && log.contains("[AUTH (redacted)]") && !log.contains("secret"), "{log}");
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

/// A server's state with room for so many bytes of a request.
fn narrow(max_request_bytes: usize) -> std::sync::Arc<hither_server::Shared> {
    let config = hither_server::Config { max_request_bytes, ..hither_server::Config::default() };
    hither_server::Shared::new(hither::Db::builder().in_memory().open().unwrap(), config, 1).unwrap()
}

#[test]
fn a_transaction_is_bounded_as_a_whole() {
    let mut client = Client::new(&narrow(10_000));
    let line = format!("SET k {}", "v".repeat(1000));
    client.run("MULTI");
    for _ in 0..8 {
        assert_eq!(client.run(&line), "QUEUED");
    }
    let described = client.run("CLIENT INFO");
    assert_eq!(described, "QUEUED", "it is a command like others");
    let told = client.session.client.describe();
    assert!(told.contains(" flags=x ") && told.contains(" multi=9 ") && !told.contains(" multi-mem=0 "), "{told}");
    assert_eq!(client.run(&line), "!ERR the commands of the transaction are larger than max-request");
    assert_eq!(client.session.client.held_bytes(), 0, "what waited is given back at once");
    for _ in 0..1000 {
        assert_eq!(client.run(&line), "QUEUED", "as in Redis, though it is not kept");
    }
    assert_eq!(client.session.client.held_bytes(), 0);
    assert_eq!(client.run("EXEC"), "!EXECABORT Transaction discarded because of previous errors.");
    assert_eq!(client.run("GET k"), "nil");
    let told = client.session.client.describe();
    assert!(told.contains(" flags=N ") && told.contains(" multi=-1 "), "{told}");
    client.script(
        "MULTI => OK
        SET k v => QUEUED
        EXEC => [OK]
        GET k => v",
    );
}

#[test]
fn watched_keys_count_against_the_same_bound() {
    let mut client = Client::new(&narrow(10_000));
    assert_eq!(client.run("WATCH a"), "OK");
    let one = client.session.client.held_bytes();
    assert_eq!(client.run("WATCH a a"), "OK");
    assert_eq!(client.session.client.held_bytes(), one, "each key counts once");
    let line = format!("WATCH {}", "k".repeat(4000));
    assert_eq!(client.run(&line), "OK");
    let told = client.session.client.describe();
    assert!(told.contains(" watch=2 "), "{told}");
    assert_eq!(client.run(&format!("{line}x {line}y")), "!ERR the watched keys are larger than max-request");
    client.run("MULTI");
    assert_eq!(client.run(&format!("SET k {}", "v".repeat(4000))), "!ERR the commands of the transaction are larger than max-request");
    assert_eq!(client.run("DISCARD"), "OK");
    assert_eq!(client.session.client.held_bytes(), 0);
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

#[test]
fn every_container_has_help() {
    let mut client = Client::new(&shared());
    let containers: Vec<_> = hither_server::commands::table::TABLE.top().filter(|command| !command.subcommands.is_empty()).collect();
    assert!(containers.len() >= 9);
    for container in containers {
        let Value::Array(lines) = client.call(&[container.name.as_bytes(), b"HELP"]) else { panic!("{}", container.name) };
        assert_eq!(lines.len(), 1 + 2 * container.subcommands.len(), "{}", container.name);
        assert!(show(&lines[0]).starts_with(&container.name.to_ascii_uppercase()), "{}", show(&lines[0]));
        for (sub, lines) in container.subcommands.iter().zip(lines[1..].chunks(2)) {
            assert_eq!(show(&lines[0]), sub.name.to_ascii_uppercase());
            assert!(show(&lines[1]).starts_with("    ") && show(&lines[1]).ends_with('.'));
        }
    }
}

#[test]
fn answers_of_operations_that_change_nothing_here() {
    let mut client = Client::new(&shared());
    client.script(
        "SET k v => OK
        OBJECT REFCOUNT k => 1
        OBJECT REFCOUNT nothing => nil
        OBJECT IDLETIME k => !ERR idle times are not kept: nothing is ever evicted
        OBJECT FREQ nothing => nil
        MEMORY PURGE => OK
        MEMORY MALLOC-STATS => Stats not supported for the current allocator
        ROLE => [master 0 []]
        CONFIG REWRITE => !ERR settings are not written to a file: change the file that --config names
        CLIENT TRACKING OFF => OK
        CLIENT TRACKING ON => !ERR client-side caching is not supported: CLIENT TRACKING can only be OFF
        CLIENT TRACKINGINFO => [flags [off] redirect -1 prefixes []]
        CLIENT GETREDIR => -1
        CLIENT UNBLOCK 5 => 0
        CLIENT UNBLOCK 5 NOW => !ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR
        CLIENT PAUSE x => !ERR timeout is not an integer or out of range
        CLIENT PAUSE -1 => !ERR timeout is negative
        CLIENT PAUSE 5 SOME => !ERR CLIENT PAUSE mode must be WRITE or ALL
        LATENCY GRAPH command => !ERR No samples available for event 'command'",
    );
    let Value::Array(amounts) = client.call(&[b"MEMORY", b"STATS"]) else { panic!() };
    let at = amounts.iter().position(|name| show(name) == "keys.count").unwrap();
    assert_eq!(amounts[at + 1], Value::Integer(1));
    assert!(client.run("MEMORY DOCTOR").contains("keys.count: 1"));
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

/// The expectations are what Redis answers.
#[test]
fn small_things_are_as_in_redis() {
    let mut client = Client::new(&shared());
    client.script(
        "MULTI => OK
        HELLO 3 => QUEUED
        GET nothing => QUEUED
        HELLO 9 => QUEUED",
    );
    let reply = String::from_utf8(client.raw(&[b"EXEC"])).unwrap();
    let hello = format!(
        "%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:{}\r\n",
        client.session.client.id
    );
    assert!(
        reply.starts_with(&format!("*3\r\n{hello}")) && reply.ends_with("*0\r\n_\r\n-NOPROTO unsupported protocol version\r\n"),
        "{reply}"
    );
    assert!(String::from_utf8(client.raw(&[b"COMMAND", b"INFO", b"get", b"x"])).unwrap().ends_with("~0\r\n~0\r\n~0\r\n_\r\n"));
    client.run("HELLO 2");
    assert!(client.raw(&[b"COMMAND", b"INFO", b"get", b"x"]).ends_with(b"*0\r\n*0\r\n*0\r\n$-1\r\n"));
    for cursor in ["00", "+0", "-0", "''"] {
        assert_eq!([client.run(&format!("SCAN {cursor}")), client.run(&format!("HSCAN h {cursor}"))], ["[0 []]"; 2], "{cursor}");
    }
    for cursor in ["x", "-", "1.5", "18446744073709551616", "0x"] {
        assert_eq!(client.run(&format!("SCAN {cursor}")), "!ERR invalid cursor", "{cursor}");
    }
    assert!(client.run("SCAN -1").starts_with("!ERR invalid cursor: it is too old"), "no end that nobody notices");
    client.script(
        "CLIENT KILL TYPE foo => !ERR Unknown client type 'foo'
        CLIENT LIST TYPE foo => !ERR Unknown client type 'foo'
        CLIENT LIST TYPE pubsub => ''
        CLIENT KILL TYPE master => 0
        CLIENT LIST ID x => !ERR Invalid client ID
        CLIENT KILL ID x => !ERR client-id should be greater than 0
        CONFIG SET timeout 1 Timeout 2 => !ERR CONFIG SET failed (possibly related to argument 'Timeout') - duplicate parameter
        CONFIG GET timeout => [timeout 0]
        INCRBYFLOAT f 1e-18 => 0
        INCRBYFLOAT f 1.1 => 1.1
        INCRBYFLOAT f 1e17 => 100000000000000001.1015625
        HINCRBYFLOAT h f 1.5e-10 => 0.00000000015",
    );
}
