//! SIGKILL of the real server under load, again and again. After the restart nothing that was acknowledged over the
//! wire is missing, and the effects of each EXEC are there entirely or not at all.
//!
//! Several connections write at once, in pipelines, each to keys of its own: strings in sequence, a counter, a hash, a
//! sorted set, and pairs of keys in MULTI/EXEC. Each connection remembers how many replies it got. After the kill the
//! server is started again on the same store, and the test reads the data back. `HITHER_KILLS` (6) sets the number of
//! kills, `HITHER_SEED` (printed) their moments.

use crate::common::Store;
use crate::common::wire::{Client, Random, Server, push, seed, text};
use hither_resp::Value;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WRITERS: usize = 4;
/// Rounds per pipeline.
const PIPELINE: u64 = 8;
/// Replies per round.
const REPLIES: u64 = 8;
/// More rounds than this are acknowledged before each kill.
const LEAST: u64 = 20;

#[test]
fn on_file() {
    kills_under_load(&Store::on_file());
}

#[test]
fn on_dax() {
    if let Some(store) = Store::on_dax() {
        kills_under_load(&store);
    }
}

/// A writer's knowledge: rounds acknowledged completely, and rounds sent.
#[derive(Clone, Copy, Default)]
struct Known {
    acknowledged: u64,
    sent: u64,
}

fn kills_under_load(store: &Store) {
    let kills: usize = std::env::var("HITHER_KILLS").map_or(6, |text| text.parse().unwrap());
    let mut random = Random(seed());
    let mut known = [Known::default(); WRITERS];
    let (mut progress, mut killed) = (0, 0);
    for kill in 0..kills {
        let server = Server::start(store, &[]);
        verify(&mut server.client(), &mut known, &format!("before kill {kill}"));
        let acknowledged = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let writers: Vec<_> = known
                .iter()
                .enumerate()
                .map(|(writer, known)| {
                    let mut client = server.client();
                    let (mut known, acknowledged) = (*known, &acknowledged);
                    scope.spawn(move || {
                        write(&mut client, writer, &mut known, acknowledged);
                        known
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(50 + random.below(400) as u64));
            // Where each sync takes long, the first replies do.
            let end = Instant::now() + Duration::from_secs(60);
            while acknowledged.load(Ordering::Relaxed) <= LEAST && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1 + random.below(20) as u64));
            }
            server.kill();
            killed += 1;
            for (known, writer) in known.iter_mut().zip(writers) {
                *known = writer.join().unwrap();
            }
        });
        progress += acknowledged.into_inner();
    }
    println!("HITHER_COUNT kill_runs 1\nHITHER_COUNT kills {killed}");
    assert!(progress > LEAST * kills as u64, "only {progress} rounds were acknowledged: the kills met no load");
    let server = Server::start(store, &[]);
    verify(&mut server.client(), &mut known, "at the end");
    assert_eq!(server.terminate(), 0);
    store.run(&["check"]).done();
}

/// Writes rounds until the connection ends, and counts those that all writers got acknowledged.
fn write(client: &mut Client, writer: usize, known: &mut Known, acknowledged: &AtomicU64) {
    loop {
        let mut out = Vec::new();
        for round in known.sent..known.sent + PIPELINE {
            let number = round.to_string();
            push(&mut out, &["SET", &format!("s{writer}:{round}"), &number]);
            push(&mut out, &["INCR", &format!("c{writer}")]);
            push(&mut out, &["HSET", &format!("h{writer}"), &format!("f{round}"), &number]);
            push(&mut out, &["ZADD", &format!("z{writer}"), &number, &format!("m{round}")]);
            push(&mut out, &["MULTI"]);
            push(&mut out, &["SET", &format!("a{writer}"), &number]);
            push(&mut out, &["SET", &format!("b{writer}"), &number]);
            push(&mut out, &["EXEC"]);
        }
        known.sent += PIPELINE;
        if client.stream.write_all(&out).is_err() {
            return;
        }
        for _ in 0..PIPELINE {
            for _ in 0..REPLIES {
                match client.receive() {
                    None => return,
                    Some(Value::Error(text)) => panic!("{}", String::from_utf8_lossy(&text)),
                    Some(_) => {}
                }
            }
            known.acknowledged += 1;
            acknowledged.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Reads everything back, and resets the keys.
fn verify(client: &mut Client, known: &mut [Known], when: &str) {
    for (writer, known) in known.iter_mut().enumerate() {
        let at = format!("{when}, writer {writer}, {} acknowledged of {}", known.acknowledged, known.sent);
        for round in 0..known.acknowledged {
            let value = client.run(&format!("GET s{writer}:{round}"));
            assert_eq!(value, Value::Bulk(round.to_string().into_bytes()), "{at}: s{writer}:{round} is lost");
        }
        let range = known.acknowledged as i64..=known.sent as i64;
        let counter = client.number(&format!("GET c{writer}"));
        assert!(range.contains(&counter), "{at}: the counter is {counter}");
        verify_members(client, known, writer, &at);
        let pair = ["a", "b"].map(|name| client.run(&format!("GET {name}{writer}")));
        assert_eq!(pair[0], pair[1], "{at}: EXEC is there by halves");
        if let Value::Bulk(text) = &pair[0] {
            let round: u64 = String::from_utf8_lossy(text).parse().unwrap();
            assert!(round + 1 >= known.acknowledged && round < known.sent, "{at}: EXEC of round {round}");
        } else {
            assert_eq!((&pair[0], known.acknowledged), (&Value::Null, 0), "{at}: every EXEC is lost");
        }
        // Writes that were sent but not acknowledged may be there or not. Start again from nothing, so that counts are
        // exact.
        for key in ["c", "h", "z", "a", "b"] {
            client.run(&format!("DEL {key}{writer}"));
        }
        for round in 0..known.sent {
            client.run(&format!("DEL s{writer}:{round}"));
        }
        *known = Known::default();
    }
}

/// Reads the hash and the sorted set back: each acknowledged round is in them, and nothing but what was sent.
fn verify_members(client: &mut Client, known: &Known, writer: usize, at: &str) {
    for (length, all, letter) in
        [("HLEN h", format!("HGETALL h{writer}"), 'f'), ("ZCARD z", format!("ZRANGE z{writer} 0 -1 WITHSCORES"), 'm')]
    {
        let count = client.number(&format!("{length}{writer}"));
        assert!((known.acknowledged as i64..=known.sent as i64).contains(&count), "{at}: {length} is {count}");
        let Value::Array(members) = client.run(&all) else { panic!("{at}: {all}") };
        assert_eq!(members.len() as i64, 2 * count, "{at}: {all} does not agree with its head");
        let found: BTreeMap<String, String> = members.chunks(2).map(|pair| (text(&pair[0]), text(&pair[1]))).collect();
        assert_eq!(found.len() as i64, count, "{at}: {all} has a member twice");
        for (name, value) in &found {
            let round = name.strip_prefix(letter).filter(|round| round.parse::<u64>().is_ok_and(|round| round < known.sent));
            assert_eq!(Some(value.as_str()), round, "{at}: {all} has {name}");
        }
        for round in 0..known.acknowledged {
            assert!(found.contains_key(&format!("{letter}{round}")), "{at}: {all} has lost round {round}");
        }
    }
}
