//! Clients that interfere with each other: commands that others are always faster than, and clients that are killed.

use crate::common::{Client, Stop, connect, receive, say, send, shared, start, until, until_waiting};
use hither_server::shared::CoreStats;
use hither_server::turns::ATTEMPTS_BESIDE_OTHERS;
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Regression: HGETALL of 50,000 fields beside two writers had no answer after 30 s, nor had other clients of its
/// thread.
#[test]
fn a_large_read_beside_writers_ends_after_a_few_attempts() {
    const FIELDS: usize = 5000;
    let shared = shared();
    let mut reader = Client::new(&shared);
    for part in 0..FIELDS / 100 {
        let fields: Vec<String> = (part * 100..(part + 1) * 100).map(|field| format!("f{field} 0")).collect();
        assert_eq!(reader.run(&format!("HSET h {}", fields.join(" "))), "100");
    }
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let stopping = Stop(&stop);
        for number in 1..=2 {
            let (shared, stop, written) = (&shared, &stop, &written);
            scope.spawn(move || {
                let mut writer = Client::on(shared, number);
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(writer.run(&format!("HINCRBY h f{number} 1")).parse::<u64>().ok(), Some(written_by(writer.session.stats())));
                    written.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut tried_alone = 0;
        while tried_alone < 5 {
            let (retries, before) = (reader.session.stats().retries.load(Ordering::Relaxed), written.load(Ordering::Relaxed));
            // A single command, and a transaction that writes as well.
            let told = reader.run("HGETALL h");
            assert_eq!(told.split(' ').count(), 2 * FIELDS, "each field once");
            reader.script("MULTI => OK\nHLEN h => QUEUED\nHSET other a 1 => QUEUED\nHKEYS h => QUEUED");
            assert!(reader.run("EXEC").starts_with(&format!("[{FIELDS} ")));
            let retries = reader.session.stats().retries.load(Ordering::Relaxed) - retries;
            assert!(retries <= 2 * u64::from(ATTEMPTS_BESIDE_OTHERS), "{retries}");
            tried_alone += u64::from(retries >= u64::from(ATTEMPTS_BESIDE_OTHERS));
            until(|| written.load(Ordering::Relaxed) > before);
        }
        drop(stopping);
    });
}

/// Regression: a command that had read the number of members, and then found more members than that, counted down below
/// zero and ended the server.
#[test]
fn members_that_come_while_others_are_taken_are_no_surprise() {
    let shared = shared();
    let mut taker = Client::new(&shared);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stopping = Stop(&stop);
        let (shared, stop) = (&shared, &stop);
        scope.spawn(move || {
            let mut giver = Client::on(shared, 1);
            while !stop.load(Ordering::Relaxed) {
                for line in ["ZADD z 1 a", "ZADD z 2 b 3 c", "HSET h a 1", "HSET h b 1 c 1"] {
                    giver.run(line);
                }
            }
        });
        for _ in 0..5000 {
            for line in ["ZPOPMIN z 3", "ZREMRANGEBYRANK z 0 -1", "ZREM z a b c", "HDEL h a b c"] {
                taker.run(line);
            }
        }
        drop(stopping);
    });
}

/// Regression: after RENAME, an HINCRBY that had read the hash at its key reported a value that only the hash's next
/// key ever had.
#[test]
fn an_error_tells_of_what_the_key_had() {
    let shared = shared();
    let mut reader = Client::new(&shared);
    reader.run("HSET a f 1");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stopping = Stop(&stop);
        let (shared, stop) = (&shared, &stop);
        scope.spawn(move || {
            let mut writer = Client::on(shared, 1);
            while !stop.load(Ordering::Relaxed) {
                for line in ["MULTI", "RENAME a b", "HSET b f x", "EXEC", "MULTI", "HSET b f 1", "RENAME b a", "EXEC"] {
                    writer.run(line);
                }
            }
        });
        for _ in 0..20_000 {
            let told = reader.run("HINCRBY a f 1");
            assert!(told.parse::<u64>().is_ok(), "{told}");
        }
        drop(stopping);
    });
}

/// Number of commands that a thread has run: each of them incremented one field.
fn written_by(stats: &CoreStats) -> u64 {
    stats.calls.iter().map(|calls| calls.load(Ordering::Relaxed)).sum()
}

/// Regression: a killed client took what came before its thread noticed the kill, up to a tenth of a second later, and
/// nobody got it.
#[test]
fn who_is_killed_takes_nothing_any_more() {
    let server = start();
    for _ in 0..10 {
        let (mut victim, mut operator) = (connect(&server), connect(&server));
        let id = say(&mut victim, "CLIENT ID");
        send(&mut victim, "BZPOPMIN z 0");
        until_waiting(&server, 1);
        send(&mut operator, &format!("CLIENT KILL ID {id}; ZADD z 1 m; PING; ZREM z m"));
        assert_eq!(receive(&mut operator, 4), ["1", "1", "PONG", "1"], "the member is still there");
        assert_eq!(victim.read(&mut [0; 100]).unwrap(), 0, "closed without a reply");
    }
    until_waiting(&server, 0);
    server.stop();
}

#[test]
fn who_is_killed_runs_nothing_any_more() {
    let server = start();
    for number in 0..10 {
        let (mut victim, mut operator) = (connect(&server), connect(&server));
        let id = say(&mut victim, "CLIENT ID");
        assert_eq!(say(&mut operator, &format!("CLIENT KILL ID {id}")), "1");
        // The connection may be closed already.
        let _ = std::io::Write::write_all(&mut victim, format!("SET k {number}\r\n").as_bytes());
        assert!(matches!(victim.read(&mut [0; 100]), Ok(0) | Err(_)), "closed without a reply");
        assert_eq!(say(&mut operator, "GET k"), "nil");
    }
    server.stop();
}

/// A client that kills itself gets its reply first, as in Redis; the commands queued behind it do not run.
#[test]
fn who_kills_itself_gets_an_answer() {
    let server = start();
    let mut client = connect(&server);
    let id = say(&mut client, "CLIENT ID");
    send(&mut client, &format!("CLIENT KILL ID {id} SKIPME no; SET k 1"));
    assert_eq!(receive(&mut client, 1), ["1"]);
    assert_eq!(client.read(&mut [0; 100]).unwrap(), 0);
    let mut client = connect(&server);
    assert_eq!(say(&mut client, "GET k"), "nil");
    // Within a transaction, too: the transaction is applied.
    send(&mut client, "CLIENT ID; MULTI; SET k 2");
    let id = receive(&mut client, 3).remove(0);
    send(&mut client, &format!("CLIENT KILL ID {id} SKIPME no; EXEC"));
    assert_eq!(receive(&mut client, 2), ["QUEUED", "[OK 1]"]);
    assert_eq!(client.read(&mut [0; 100]).unwrap(), 0);
    assert_eq!(say(&mut connect(&server), "GET k"), "2");
    // A user that deletes itself.
    let mut client = connect(&server);
    send(&mut client, "ACL SETUSER u on nopass ~* +@all; AUTH u x; ACL DELUSER u; SET k 3");
    assert_eq!(receive(&mut client, 3), ["OK", "OK", "1"]);
    assert_eq!(client.read(&mut [0; 100]).unwrap(), 0);
    assert_eq!(say(&mut connect(&server), "GET k"), "2");
    server.stop();
}
