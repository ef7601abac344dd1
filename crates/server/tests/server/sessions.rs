//! Sessions without a socket: the connection's commands, transactions, limits, and commands of no particular family.

use crate::common::{Client, connect, receive, say, script, send, shared, show, start};
use hither_resp::Value;
use hither_server::config::DebugCommand;
use hither_server::{Config, Session, Shared};

/// Regression: SKIP ended OFF, and the client took the replies that followed for the answers to its next commands.
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

/// Regression: EXEC announced a reply for it that never came.
#[test]
fn replies_are_not_switched_off_within_a_transaction() {
    for mode in ["ON", "OFF", "SKIP"] {
        let mut client = Client::new(&shared());
        client.run("MULTI");
        assert_eq!(client.run(&format!("CLIENT REPLY {mode}")), "!ERR Command not allowed inside a transaction");
        assert_eq!(client.run("EXEC"), "!EXECABORT Transaction discarded because of previous errors.");
        assert_eq!(client.run("PING"), "PONG");
    }
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
        HITHER.DURABILITY interval 0 => !ERR value is not an integer or out of range
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
        SLOWLOG GET 1 2 => !ERR unknown subcommand or wrong number of arguments for 'GET'. Try SLOWLOG HELP.
        LOLWUT VERSION x => !ERR value is not an integer or out of range
        ACL LOG 1 2 => !ERR unknown subcommand or wrong number of arguments for 'LOG'. Try ACL HELP.
        ACL DRYRUN default CONFIG => !ERR wrong number of arguments for 'config' command
        COMMAND GETKEYS MSET a 1 b 2 => [a b]
        COMMAND GETKEYS PING x => !ERR The command has no key arguments
        COMMAND INFO nothing => [nil]
        CONFIG GET enable-debug-command => [enable-debug-command no]
        MEMORY USAGE nothing => nil
        QUIT => OK",
    );
}

#[test]
fn every_setting_that_can_be_changed_is() {
    let changes = [
        ("acllog-max-len", "7"),
        ("client-output-buffer-limit", "normal 1048576 0 0"),
        ("latency-monitor-threshold", "8"),
        ("loglevel", "warn"),
        ("maxclients", "9"),
        ("protected-mode", "no"),
        ("requirepass", "secret"),
        ("slowlog-log-slower-than", "10"),
        ("slowlog-max-len", "11"),
        ("timeout", "12"),
    ];
    let mut client = Client::new(&shared());
    let set = |client: &mut Client, name: &str, value: &str| show(&client.call(&[b"CONFIG", b"SET", name.as_bytes(), value.as_bytes()]));
    let Value::Array(before) = client.call(&[b"CONFIG", b"GET", b"*"]) else { panic!() };
    let before: Vec<String> = before.iter().map(show).collect();
    for pair in before.chunks(2) {
        let is_fixed = set(&mut client, &pair[0], &pair[1]).contains("can't set immutable config");
        let listed = changes.iter().find(|(name, _)| *name == pair[0]);
        assert_eq!(listed.is_none(), is_fixed, "{}", pair[0]);
        assert!(listed.is_none_or(|(_, value)| *value != pair[1]), "{} has this value already", pair[0]);
    }
    for (name, value) in changes {
        assert_eq!(set(&mut client, name, value), "OK", "{name}");
    }
    for (name, value) in changes {
        assert_eq!(client.run(&format!("CONFIG GET {name}")), format!("[{name} {value}]"));
    }
    // Regression: the names of levels that tools for Redis send were refused.
    for (given, level) in [("warning", "warn"), ("verbose", "debug"), ("NOTICE", "info")] {
        assert_eq!(set(&mut client, "loglevel", given), "OK", "{given}");
        assert_eq!(client.run("CONFIG GET loglevel"), format!("[loglevel {level}]"));
    }
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

/// The state of a server with room for this many bytes of a request.
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
fn every_container_has_help() {
    let mut client = client_who_may_debug(DebugCommand::Yes, "test");
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
        CLIENT UNBLOCK 5 ERROR now => !ERR unknown subcommand or wrong number of arguments for 'UNBLOCK'. Try CLIENT HELP.
        CONFIG SET timeout 5 maxclients => !ERR syntax error
        CONFIG SET timeout => !ERR wrong number of arguments for 'config|set' command
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
    // In the order given, and as often.
    let other = Client::new(&client.shared);
    let ids = [other.session.client.id, client.session.client.id].map(|id| id.to_string());
    let list = client.run(&format!("CLIENT LIST ID {0} 99 -1 {1} {0}", ids[0], ids[1]));
    let listed: Vec<&str> = list.lines().filter_map(|line| line.strip_prefix("id=")?.split(' ').next()).collect();
    assert_eq!(listed, [&ids[0], &ids[1], &ids[0]]);
}

/// Regression: the list had the subcommand's name alone.
#[test]
fn lists_of_clients_name_commands_as_a_whole() {
    let mut client = Client::new(&shared());
    assert!(client.run("CLIENT INFO").contains(" cmd=client|info "));
    let mut other = Client::new(&client.shared);
    assert!(client.run("CLIENT LIST").contains(" cmd=NULL "));
    other.script("GET a => nil");
    let list = client.run("CLIENT LIST");
    assert!(list.contains(" cmd=client|list ") && list.contains(" cmd=get "), "{list}");
}

/// As in Redis. Regression: a monitor was shown like any other client.
#[test]
fn a_monitor_is_one_in_lists_of_clients() {
    let mut monitor = Client::new(&shared());
    let mut client = Client::new(&monitor.shared);
    let id = monitor.session.client.id;
    let mut has_flags = |flags: &str| client.run(&format!("CLIENT LIST ID {id}")).contains(&format!(" flags={flags} "));
    monitor.script("MONITOR => OK\nMONITOR => OK");
    assert!(has_flags("O"));
    monitor.script("MULTI => OK");
    assert!(has_flags("Ox"));
    monitor.script("RESET => RESET");
    assert!(has_flags("N"));
}

/// Regression: all commands of a transaction were shown with the last one's database.
#[test]
fn monitors_are_shown_each_command_of_a_transaction_in_its_database() {
    let server = start();
    let (mut monitor, mut client) = (connect(&server), connect(&server));
    assert_eq!(say(&mut monitor, "MONITOR"), "OK");
    send(&mut client, "SELECT 1; MULTI; SET a 1; SELECT 99; SELECT 2; SET b 1; EXEC; PING");
    receive(&mut client, 8);
    let lines = receive(&mut monitor, 8);
    let shown: Vec<String> = lines
        .iter()
        .map(|line| {
            let (index, words) = line.split_once('[').and_then(|(_, rest)| rest.split_once(' ')).unwrap();
            format!("{index}{}", words.split_once(']').unwrap().1.replace('"', ""))
        })
        .collect();
    assert_eq!(shown, ["0 SELECT 1", "1 MULTI", "1 EXEC", "1 SET a 1", "1 SELECT 99", "1 SELECT 2", "2 SET b 1", "2 PING"]);
    server.stop();
}

fn client_who_may_debug(who: DebugCommand, address: &str) -> Client {
    let config = Config { enable_debug_command: who, ..Config::default() };
    let shared = Shared::new(hither::Db::builder().in_memory().open().unwrap(), config, 1).unwrap();
    let session = Session::new(shared.clone(), shared.clients.add(address.into(), "test".into(), 0));
    Client { shared, session, rests_on: 0 }
}

/// Regression: every client could have its thread sleep for a minute.
#[test]
fn debug_is_for_those_whom_the_setting_allows_it() {
    let refused = "!ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", ";
    let answers = |who: DebugCommand, address: &str| {
        let mut client = client_who_may_debug(who, address);
        assert_eq!(client.run("CONFIG GET enable-debug-command"), format!("[enable-debug-command {}]", who.name()));
        let reply = client.run("DEBUG SLEEP 0");
        assert!(reply == "OK" || reply.starts_with(refused), "{reply}");
        assert_eq!(client.run("DEBUG HELP").starts_with(refused), reply != "OK");
        reply == "OK"
    };
    assert!(!answers(DebugCommand::No, "127.0.0.1:5000"));
    assert!(answers(DebugCommand::Local, "127.0.0.1:5000") && answers(DebugCommand::Local, "[::1]:5000"));
    assert!(!answers(DebugCommand::Local, "192.0.2.1:5000"));
    assert!(answers(DebugCommand::Yes, "192.0.2.1:5000"));
}

#[test]
fn info_has_what_clients_look_for() {
    let server = start();
    let mut client = connect(&server);
    let mut figures = || {
        send(&mut client, "INFO");
        receive(&mut client, 1).remove(0)
    };
    let text = figures();
    for line in ["cluster_enabled:0", "async_loading:0", "master_repl_offset:0"] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    assert!(text.contains("\r\nused_memory_human:"));
    let shared = server.shared();
    crate::common::until(|| {
        shared.cores[0].calls[0].fetch_add(1 << 20, std::sync::atomic::Ordering::Relaxed);
        shared.rate.per_second() > 1000
    });
    let ops = figures().lines().find_map(|line| line.strip_prefix("instantaneous_ops_per_sec:")?.parse::<u64>().ok());
    assert!(ops.is_some());
    server.stop();
}
