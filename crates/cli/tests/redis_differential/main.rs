//! The same generated commands for `hither serve` and Debian's Redis 7: the same replies, errors included, and the same data in the end.
//!
//! Arguments are drawn from small sets that hold good, bad and borderline ones; keys are shared by all types, so wrong types are common; now and then
//! an argument is missing or too many. Compared are whole replies, but for what differs by design: the order of fields of a hash and of KEYS (Redis'
//! is unspecified), the digits of scores (compared as numbers), seconds that pass between the two. WATCH is not generated: hither lets EXEC run if a
//! watched key that was absent is absent again (`docs/server.md`); the sessions' tests have it. `HITHER_SEED` (1) changes the commands,
//! `HITHER_COMMANDS` (20,000) sets its length.
//!
//! What DUMP gives is restored by both, whoever gave it, whole and damaged.
//!
//! Corners that generated arguments seldom reach stand in a script.
//!
//! Rights, too: what every command needs, what is refused and how, and what the log of refusals tells.

#[path = "../common/mod.rs"]
mod common;

mod commands;
mod corners;
mod dumps;
mod normal;
mod pair;
mod rights;

use commands::generate;
use pair::{Servers, length, random};

#[test]
fn replies_are_those_of_redis() {
    let (count, mut random, servers) = (length(), random(), Servers::start());
    for version in ["2", "3"] {
        let mut pair = servers.connect();
        for client in &mut pair.clients {
            client.run(&format!("HELLO {version}"));
            client.run("FLUSHALL");
        }
        for number in 0..count / 2 {
            let words = generate(&mut random);
            // Inside MULTI some things are refused by design, and the digits of sums cannot be made equal.
            let apart = ["FLUSHDB", "SWAPDB", "SCAN", "DBSIZE", "INCRBYFLOAT", "HINCRBYFLOAT"];
            if pair.queued.is_some() && apart.contains(&words[0].as_str()) {
                continue;
            }
            // Without a count these are random.
            if matches!(words[0].as_str(), "HRANDFIELD" | "ZRANDMEMBER") && words.len() == 2 {
                continue;
            }
            if words[0] == "DBSIZE" {
                // Redis counts what has expired until it meets it.
                pair.line("EXISTS k1 k2 k3 k4 k5 k6 l1 l2");
            }
            pair.run(&words);
            if number % 500 == 499 {
                pair.compare_data();
            }
        }
        pair.compare_data();
    }
    println!("HITHER_COUNT redis_commands {count}");
}
