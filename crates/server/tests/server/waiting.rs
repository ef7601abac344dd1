//! Commands that wait: first through sessions, where the test controls every step, then through a whole server.

use crate::common;
use crate::common::{Client, FOR_EVER, Stop, connect, receive, say, send, shared, start, until, until_waiting};
use hither::Db;
use hither_resp::Value;
use hither_server::{Config, Server, Shared};
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs a command that must wait.
fn waits(client: &mut Client, line: &str) {
    let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    assert!(client.raw(&words).is_empty() && client.session.is_waiting(), "{line} does not wait");
}

/// Three clients, the first two of which are to wait; each has a connection slot of its own.
fn three() -> (Arc<Shared>, [Client; 3]) {
    let shared = shared();
    let clients = [0, 1, 2].map(|slot| {
        let client = Client::new(&shared);
        client.session.client.slot.store(slot, std::sync::atomic::Ordering::Relaxed);
        client
    });
    (shared, clients)
}

/// Regression: each attempt was a call in the histogram, and its time that of an attempt which found nothing.
#[test]
fn a_command_that_has_waited_is_one_call_with_one_time() {
    let (_shared, [mut first, mut second, _]) = three();
    waits(&mut first, "BZPOPMIN z 0");
    waits(&mut first, "BZPOPMIN z 0");
    second.script("LATENCY HISTOGRAM bzpopmin => []\nZADD z 1 m => 1");
    assert_eq!(first.run("BZPOPMIN z 0"), "[z m 1]");
    let histogram = second.run("LATENCY HISTOGRAM bzpopmin");
    assert!(histogram.starts_with("[bzpopmin [calls 1 "), "{histogram}");
}

#[test]
fn who_came_first_is_served_first() {
    let (shared, [mut first, mut second, mut third]) = three();
    waits(&mut first, "BZPOPMIN a b 0");
    waits(&mut second, "BZPOPMAX b c 0");
    assert_eq!(shared.waiting.len(), 2);
    third.script("ZADD b 1 x 2 y => 2");
    assert_eq!(shared.waiting.take_woken(0), [0], "one member of the queue at a time");
    // The second finds the set, but is not first; nor is the one that comes now.
    waits(&mut second, "BZPOPMAX b c 0");
    waits(&mut third, "BZPOPMIN b 0");
    first.script("BZPOPMIN a b 0 => [b x 1]");
    assert_eq!(shared.waiting.take_woken(0), [0, 1], "a set is left, and who leaves wakes the next");
    second.script("BZPOPMAX b c 0 => [b y 2]");
    assert_eq!(shared.waiting.take_woken(0), [2], "the last member is gone, but the third has to see for itself");
    waits(&mut third, "BZPOPMIN b 0");
    assert_eq!(shared.waiting.len(), 1);
    first.script("EXISTS b => 0");
}

/// Regression: a client that came later waited until the first was gone, whatever was at the key then.
#[test]
fn something_else_at_a_key_is_an_error_for_who_comes_later() {
    const WRONG: &str = "!WRONGTYPE Operation against a key holding the wrong kind of value";
    let (shared, [mut first, mut second, mut third]) = three();
    waits(&mut first, "BZPOPMIN k 0");
    third.script("SET k v => OK");
    assert_eq!(second.run("BZPOPMIN k 0"), WRONG);
    assert_eq!(second.run("BZMPOP 0 2 other k MIN"), WRONG);
    waits(&mut first, "BZPOPMIN k 0");
    assert_eq!(shared.waiting.len(), 1, "who came before goes on");
    third.script("DEL k => 1\nZADD k 1 m => 1");
    waits(&mut second, "BZPOPMIN k 0");
    first.script("BZPOPMIN k 0 => [k m 1]");
}

#[test]
fn whatever_makes_a_sorted_set_wakes() {
    let (shared, [mut waiter, mut other, _]) = three();
    other.script("ZADD src 1 m => 1");
    for (line, reply, key) in [
        ("ZADD k 1 m", "1", "k"),
        ("ZINCRBY k 1 m", "1", "k"),
        ("ZUNIONSTORE k 1 src", "1", "k"),
        ("ZRANGESTORE k src 0 -1", "1", "k"),
        ("COPY src k", "1", "k"),
        ("RENAME src k", "OK", "k"),
    ] {
        waits(&mut waiter, &format!("BZPOPMIN {key} 0"));
        assert_eq!(other.run(line), reply);
        assert_eq!(shared.waiting.take_woken(0), [0], "{line}");
        assert_eq!(waiter.run(&format!("BZPOPMIN {key} 0")), "[k m 1]");
    }
    waits(&mut waiter, "BZMPOP 0 2 other k MAX COUNT 5");
    // Others do not see it, so no client is woken before EXEC, and by EXEC only if something is left.
    other.script(
        "MULTI => OK
        ZADD k 1 a 2 b => QUEUED
        DEL k => QUEUED
        EXEC => [2 1]",
    );
    assert_eq!(shared.waiting.take_woken(0), [0; 0]);
    other.script(
        "SET k text => OK
        MULTI => OK
        DEL k => QUEUED
        ZADD k 1 a 2 b => QUEUED",
    );
    waits(&mut waiter, "BZMPOP 0 2 other k MAX COUNT 5");
    other.script("EXEC => [1 2]");
    assert_eq!(shared.waiting.take_woken(0), [0]);
    waiter.script("BZMPOP 0 2 other k MAX COUNT 5 => [k [[b 2] [a 1]]]");
    waits(&mut waiter, "BZPOPMIN k 0");
    other.script("MOVE src 1 => 0");
    other.script("SELECT 1 => OK\nZADD k 1 m => 1");
    assert_eq!(shared.waiting.take_woken(0), [1], "another database; the other one itself has waited for it to be made");
    other.script("MOVE k 0 => 1");
    assert_eq!(shared.waiting.take_woken(0), [0]);
    waiter.script("BZPOPMIN k 0 => [k m 1]");
}

#[test]
fn waits_end() {
    let (shared, [mut waiter, mut other, _]) = three();
    waits(&mut waiter, "BZPOPMIN a 0.02");
    std::thread::sleep(Duration::from_millis(25));
    waiter.script("BZPOPMIN a 0.02 => nil");
    let id = waiter.session.client.id;
    other.script(&format!("CLIENT UNBLOCK {id} => 0"));
    waits(&mut waiter, "BZPOPMIN a 0");
    assert!(other.run("CLIENT LIST").contains(" flags=b "));
    assert!(other.run("INFO clients").contains("blocked_clients:1"));
    other.script(&format!("CLIENT UNBLOCK {id} => 1\nCLIENT UNBLOCK {id} => 0"));
    assert_eq!(shared.waiting.take_woken(0), [0]);
    waiter.script("BZPOPMIN a 0 => nil");
    waits(&mut waiter, "WAIT 1 0");
    other.script(&format!("CLIENT UNBLOCK {id} ERROR => 1"));
    waiter.script("WAIT 1 0 => !UNBLOCKED client unblocked via CLIENT UNBLOCK");
    assert!(shared.waiting.is_empty());
    // The end of the client, too.
    let mut second = Client::new(&shared);
    second.session.client.slot.store(7, std::sync::atomic::Ordering::Relaxed);
    waits(&mut waiter, "BZPOPMIN a 0");
    waits(&mut second, "BZPOPMIN a 0");
    shared.waiting.take_woken(0);
    drop(waiter);
    assert_eq!((shared.waiting.take_woken(0), shared.waiting.len()), (vec![7], 1));
}

#[test]
fn what_does_not_wait() {
    let mut client = Client::new(&shared());
    client.script(
        "ZADD z 1 a 2 b 3 c => 3
        SET s text => OK
        BZPOPMIN nothing z 0 => [z a 1]
        BZPOPMAX z nothing 0 => [z c 3]
        BZPOPMIN s z 0 => !WRONGTYPE Operation against a key holding the wrong kind of value
        BZPOPMIN z x => !ERR timeout is not a float or out of range
        BZPOPMIN z -1 => !ERR timeout is negative
        BZPOPMIN z inf => !ERR timeout is out of range
        BZMPOP 0 0 z MIN => !ERR numkeys should be greater than 0
        BZMPOP 0 1 z MIDDLE => !ERR syntax error
        BZMPOP 0 2 nothing z MIN COUNT 3 => [z [[b 2]]]
        MULTI => OK
        BZPOPMIN z 0 => QUEUED
        BZMPOP 0 1 z MIN => QUEUED
        WAIT 3 0 => QUEUED
        EXEC => [nil nil 0]
        WAIT 0 0 => 0
        WAIT x 0 => !ERR value is not an integer or out of range
        WAIT 1 -1 => !ERR timeout is negative
        WAITAOF 0 0 0 => [0 0]
        WAITAOF 1 0 0 => [1 0]
        WAITAOF 2 0 0 => !ERR value is out of range, value must between 0 and 1
        WAITAOF -1 0 0 => !ERR value is out of range, must be positive",
    );
}

#[test]
fn waitaof_rests_on_writes_of_every_level() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::builder().path(dir.path()).medium(hither::MediumChoice::File).open().unwrap();
    let mut client = Client::new(&common::shared_on(db));
    client.script("HITHER.DURABILITY PROCESS => OK\nSET a 1 => OK");
    assert_eq!(client.rests_on, 0);
    client.script("WAITAOF 0 0 0 => [0 0]");
    assert_eq!(client.rests_on, 0);
    client.script("WAITAOF 1 0 0 => [1 0]");
    let db = &client.shared.databases.db;
    assert!(client.rests_on > db.durable_version());
    db.ticket_at(client.rests_on).wait().unwrap();
    assert!(client.rests_on <= db.durable_version());
}

/// Regression: threads requested durability only for the writes of clients that were still connected at that time.
#[test]
fn what_is_written_without_a_reply_is_synced_although_its_client_has_gone() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::builder().path(dir.path()).medium(hither::MediumChoice::File).capacity(8 << 20).max_capacity(64 << 20).open().unwrap();
    let server = Server::start(db.clone(), Config { port: 0, threads: 2, ..Config::default() }).unwrap();
    for number in 0..50 {
        let before = db.stats().commit_groups;
        let mut stream = connect(&server);
        stream.write_all(format!("CLIENT REPLY OFF\r\nSET key {number}\r\n").as_bytes()).unwrap();
        drop(stream);
        let end = Instant::now() + FOR_EVER;
        while db.stats().commit_groups == before {
            assert!(Instant::now() < end, "the write of client {number} is not synced");
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    server.stop();
}

#[test]
fn clients_of_all_threads_are_woken_in_order() {
    let server = start();
    let mut writer = connect(&server);
    let mut waiters: Vec<TcpStream> = (0..8)
        .map(|number| {
            let mut stream = connect(&server);
            // What follows waits, too.
            send(&mut stream, "PING; BZPOPMIN a b 0; PING again");
            assert_eq!(receive(&mut stream, 1), ["PONG"]);
            until_waiting(&server, number + 1);
            stream
        })
        .collect();
    for (number, waiter) in waiters.iter_mut().enumerate() {
        assert_eq!(say(&mut writer, &format!("ZADD b 5 m{number}")), "1");
        assert_eq!(receive(waiter, 2), [format!("[b m{number} 5]"), "again".into()]);
    }
    // All at once.
    for (number, waiter) in waiters.iter_mut().enumerate() {
        send(waiter, "BZPOPMIN a 0");
        until_waiting(&server, number + 1);
    }
    let members: Vec<String> = (0..8).map(|number| format!("{number} m{number}")).collect();
    assert_eq!(say(&mut writer, &format!("ZADD a {}", members.join(" "))), "8");
    for (number, waiter) in waiters.iter_mut().enumerate() {
        assert_eq!(receive(waiter, 1), [format!("[a m{number} {number}]")]);
    }
    until_waiting(&server, 0);
    server.stop();
}

#[test]
fn time_runs_out_and_clients_hang_up() {
    let server = start();
    let (mut a, mut b, mut operator) = (connect(&server), connect(&server), connect(&server));
    let began = Instant::now();
    send(&mut a, "BZPOPMIN k 0.15");
    send(&mut b, "WAIT 2 30");
    assert_eq!(receive(&mut b, 1), ["0"]);
    assert!(began.elapsed() >= Duration::from_millis(30), "{:?}", began.elapsed());
    assert_eq!(receive(&mut a, 1), ["nil"]);
    assert!(began.elapsed() >= Duration::from_millis(150), "{:?}", began.elapsed());
    // A client that has hung up takes nothing, even if it hung up before its command was read.
    send(&mut a, "BZPOPMIN k 0");
    until_waiting(&server, 1);
    drop(a);
    send(&mut b, "BZPOPMIN k 0");
    drop(b);
    until(|| server.shared().clients.len() == 1);
    assert_eq!(say(&mut operator, "ZADD k 1 m"), "1");
    assert_eq!(say(&mut operator, "ZCARD k"), "1");
    // A client that is killed, one that is unblocked, and one that waits for the end of a pause as well.
    let (mut a, mut b) = (connect(&server), connect(&server));
    let id = say(&mut a, "CLIENT ID");
    send(&mut a, "BZPOPMIN x 0; PING");
    let other = say(&mut b, "CLIENT ID");
    send(&mut b, "BZPOPMIN x 0; PING");
    until_waiting(&server, 2);
    assert_eq!(say(&mut operator, &format!("CLIENT UNBLOCK {id} ERROR")), "1");
    assert_eq!(receive(&mut a, 2), ["!UNBLOCKED client unblocked via CLIENT UNBLOCK", "PONG"]);
    assert_eq!(say(&mut operator, &format!("CLIENT KILL ID {other}")), "1");
    until_waiting(&server, 0);
    send(&mut a, "BZPOPMIN x 1");
    until_waiting(&server, 1);
    assert_eq!(say(&mut operator, "CLIENT PAUSE 60000 WRITE"), "OK");
    std::thread::sleep(Duration::from_millis(1_150));
    assert_eq!(say(&mut operator, "CLIENT UNPAUSE"), "OK");
    assert_eq!(receive(&mut a, 1), ["nil"]);
    server.stop();
}

#[test]
fn a_stop_does_not_wait_for_waiting_clients() {
    // Some three seconds is what a stop waits for clients that do not take their replies. A busy machine may make one as
    // long.
    let stops_at_once = |_: &i32| {
        let server = start();
        let mut client = connect(&server);
        send(&mut client, "BZPOPMIN x 0");
        until_waiting(&server, 1);
        let began = Instant::now();
        server.stop();
        began.elapsed() < Duration::from_secs(2)
    };
    assert!((0..5).filter(stops_at_once).count() >= 3);
}

#[test]
fn every_member_goes_to_one_client() {
    const ROUNDS: usize = 300;
    let server = start();
    let mut taken: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let mut stream = connect(&server);
                scope.spawn(move || {
                    let mut taken = Vec::new();
                    loop {
                        let reply = say(&mut stream, "BZPOPMIN low high 0");
                        let member = reply.trim_matches(['[', ']']).split(' ').nth(1).unwrap().to_owned();
                        if member.starts_with("end") {
                            return taken;
                        }
                        taken.push(member);
                    }
                })
            })
            .collect();
        let mut writers = [connect(&server), connect(&server)];
        for round in 0..ROUNDS {
            for (number, writer) in writers.iter_mut().enumerate() {
                let key = if round % 3 == 0 { "high" } else { "low" };
                send(writer, &format!("ZADD {key} {round} {number}:{round}; ZADD {key} {round} {number}:{round}:again"));
            }
            writers.iter_mut().for_each(|writer| drop(receive(writer, 2)));
        }
        (0..4).for_each(|number| assert_eq!(say(&mut writers[0], &format!("ZADD high 100000 end{number}")), "1"));
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert_eq!(taken.len(), ROUNDS * 4);
    taken.sort();
    taken.dedup();
    assert_eq!(taken.len(), ROUNDS * 4, "a member was answered twice");
    server.stop();
}

#[test]
fn replies_in_version_3_have_null_and_doubles() {
    let mut client = Client::new(&shared());
    client.run("HELLO 3");
    client.run("ZADD z 1.5 a");
    assert_eq!(
        client.call(&[b"BZPOPMIN", b"z", b"0"]),
        Value::Array(vec![Value::Bulk(b"z".to_vec()), Value::Bulk(b"a".to_vec()), Value::Double(1.5)])
    );
    let words: [&[u8]; 3] = [b"BZPOPMIN", b"z", b"0.3"];
    assert!(client.raw(&words).is_empty());
    std::thread::sleep(Duration::from_millis(310));
    assert_eq!(client.call(&words), Value::Null);
}

#[test]
fn databases_are_exchanged_for_everybody() {
    let (shared, [mut waiter, mut other, mut watcher]) = three();
    other.script(
        "SET k zero => OK
        HSET h a 1 => 1
        SELECT 1 => OK
        ZADD z 1 m => 1
        SET k one => OK
        SELECT 0 => OK
        SWAPDB 0 x => !ERR invalid second DB index
        SWAPDB 99999999999 1 => !ERR invalid first DB index
        SWAPDB 0 16 => !ERR DB index is out of range
        SWAPDB -1 0 => !ERR DB index is out of range
        SWAPDB 0 0 => OK
        GET k => zero",
    );
    waits(&mut waiter, "BZPOPMIN z 0");
    watcher.script("WATCH k => OK\nMULTI => OK\nSET k mine => QUEUED");
    other.script("SWAPDB 0 1 => OK");
    assert!(shared.waiting.take_woken(0).contains(&0));
    waiter.script("BZPOPMIN z 0 => [z m 1]");
    watcher.script("EXEC => nil");
    other.script(
        "GET k => one
        EXISTS h => 0
        HSET h a 2 => 1
        SWAPDB 1 0 => OK
        HGETALL h => [a 1]
        GET k => zero
        SWAPDB 3 1 => OK
        SELECT 3 => OK
        HGETALL h => [a 2]
        DEL h => 1
        MULTI => OK
        SWAPDB 0 1 => !ERR Command not allowed inside a transaction
        DISCARD => OK",
    );
    // Rows without a head are found wherever they are now.
    other.script("SWAPDB 3 0 => OK");
    hither_server::data::reaper::sweep(&shared.databases).unwrap();
    let rows = common::rows(&shared);
    assert_eq!(rows.iter().sum::<usize>(), 2, "one hash with one field: {rows:?}");
}

#[test]
fn what_overlaps_with_an_exchange_happens_before_it_or_after() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let shared = shared();
    let stop = AtomicBool::new(false);
    // Each database holds its identity, and the number of its writes.
    Client::new(&shared).script("MSET id x n 0 => OK\nSELECT 1 => OK\nMSET id y n 0 => OK");
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|number| {
                let (shared, stop) = (&shared, &stop);
                scope.spawn(move || {
                    let mut client = Client::on(shared, 1 + number);
                    let mut made = [0, 0];
                    client.run(&format!("SELECT {number}"));
                    while !stop.load(Ordering::Relaxed) {
                        for line in ["MULTI", "GET id", "INCR n"] {
                            client.run(line);
                        }
                        match client.run("EXEC").chars().nth(1) {
                            Some('x') => made[0] += 1,
                            Some('y') => made[1] += 1,
                            other => panic!("{other:?}"),
                        }
                    }
                    made
                })
            })
            .collect();
        let mut operator = Client::new(&shared);
        let stopping = Stop(&stop);
        for round in 1..=200 {
            operator.script("SWAPDB 0 1 => OK");
            assert_eq!(operator.run("GET id"), if round % 2 == 0 { "x" } else { "y" });
        }
        drop(stopping);
        let made = workers.into_iter().map(|worker| worker.join().unwrap()).fold([0, 0], |all, made| [all[0] + made[0], all[1] + made[1]]);
        operator.script(&format!("GET n => {}\nSELECT 1 => OK\nGET n => {}", made[0], made[1]));
    });
}

#[test]
fn monitors_are_shown_commands() {
    let server = start();
    let (mut monitor, mut client) = (connect(&server), connect(&server));
    assert_eq!(say(&mut monitor, "MONITOR"), "OK");
    send(&mut client, "SET a 1; CONFIG GET port; AUTH someone secret; SELECT 3; GET \"\\x00\\\"\"; MULTI; INCR n; EXEC; NOTHING");
    receive(&mut client, 9);
    let lines = receive(&mut monitor, 7);
    let address = client.local_addr().unwrap();
    let shown = |index: u8, words: &str| format!("[{index} {address}] {words}");
    for (line, expected) in lines.iter().zip([
        shown(0, "\"SET\" \"a\" \"1\""),
        shown(0, "\"AUTH\" \"(redacted)\""),
        shown(0, "\"SELECT\" \"3\""),
        shown(3, "\"GET\" \"\\x00\\\"\""),
        shown(3, "\"MULTI\""),
        shown(3, "\"EXEC\""),
        shown(3, "\"INCR\" \"n\""),
    ]) {
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(time.parse::<f64>().unwrap() > 1e9 && rest == expected, "{line}, not {expected}");
    }
    assert_eq!(lines.len(), 7);
    // Its own commands, too, until it ends MONITOR.
    send(&mut monitor, "PING");
    let own = receive(&mut monitor, 2);
    assert!(own[0] == "PONG" && own[1].ends_with("\"PING\""), "{own:?}");
    assert_eq!(say(&mut monitor, "RESET"), "RESET");
    assert!(server.shared().monitors.is_empty());
    server.stop();
}

#[test]
fn a_monitor_that_does_not_read_is_closed() {
    let server = Server::start(
        Db::builder().in_memory().open().unwrap(),
        Config { port: 0, threads: 2, max_output_bytes: 1 << 20, ..Config::default() },
    )
    .unwrap();
    let (mut monitor, mut client) = (connect(&server), connect(&server));
    assert_eq!(say(&mut monitor, "MONITOR"), "OK");
    let text = "x".repeat(60_000);
    let end = Instant::now() + Duration::from_secs(20);
    while !server.shared().monitors.is_empty() {
        assert_eq!(say(&mut client, &format!("ECHO {text}")), text);
        assert!(Instant::now() < end);
    }
    assert_eq!(say(&mut client, "PING"), "PONG");
    server.stop();
}

/// Regression: clients that gave up during a pause and came again held their places until its end, when all of their attempts were run.
#[test]
fn who_hangs_up_during_a_pause_has_gone() {
    let server = start();
    let mut operator = connect(&server);
    assert_eq!(say(&mut operator, "CLIENT PAUSE 600000 WRITE"), "OK");
    for lines in ["INCR n", "PING; INCR n; INCR n", "MULTI; INCR n; EXEC", "BZPOPMIN z 0"] {
        let mut stream = connect(&server);
        send(&mut stream, lines);
        until(|| server.shared().clients.len() == 2);
        drop(stream);
        until(|| server.shared().clients.len() == 1);
    }
    assert_eq!(say(&mut operator, "CLIENT UNPAUSE"), "OK");
    assert_eq!(say(&mut operator, "INCR n"), "1");
    server.stop();
}

/// Regression: a million keys had a million places in the queues, all entered under their one lock.
#[test]
fn keys_that_one_command_waits_for_are_bounded() {
    const MOST: usize = 65_536;
    let shared = shared();
    let (mut client, mut other) = (Client::new(&shared), Client::new(&shared));
    let keys: Vec<String> = (0..=MOST).map(|number| number.to_string()).collect();
    let (fits, too_many) = (keys[1..].join(" "), keys.join(" "));
    let mpop = |count: usize, keys: &str| format!("BZMPOP 0 {count} {keys} MIN");
    for line in [format!("BZPOPMIN {too_many} 0"), format!("BZPOPMAX {too_many} 0"), mpop(MOST + 1, &too_many)] {
        assert_eq!(client.run(&line), "!ERR a command waits for at most 65536 keys");
        assert!(shared.waiting.is_empty());
    }
    for line in [format!("BZPOPMIN {fits} 0"), format!("BZPOPMAX {fits} 0"), mpop(MOST, &fits)] {
        waits(&mut client, &line);
        assert_eq!(other.run("ZADD 65536 1 m"), "1");
        assert!(client.run(&line).starts_with("[65536 "));
        assert!(shared.waiting.is_empty());
    }
}
