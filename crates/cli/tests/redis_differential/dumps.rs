//! The output of DUMP.

use crate::common::wire::Random;
use crate::pair::{Pair, Servers, length, random};
use hither_resp::Value;

/// Creates a key of some type and size on both servers.
fn make(pair: &mut Pair, key: &str, random: &mut Random) {
    pair.line(&format!("DEL {key}"));
    let text = |random: &mut Random| match random.below(5) {
        0 => random.below(1 << 20).to_string(),
        1 => format!("-{}", random.below(1 << 40)),
        2 => "ab".repeat(random.below(200)),
        3 => "q".repeat(random.below(5_000)),
        _ => format!("text {}", random.below(1 << 30)),
    };
    match random.below(3) {
        0 => drop(pair.run(&["SET".into(), key.into(), text(random)])),
        kind => {
            let mut words = vec![if kind == 1 { "HSET" } else { "ZADD" }.to_owned(), key.to_owned()];
            // Small collections are packed in a dump, large ones are not.
            for _ in 0..=[3, 40, 200][random.below(3)] {
                let (name, value) = (text(random), text(random));
                let score = [format!("{}", random.below(1000)), format!("-{}.25", random.below(1 << 30)), "1e300".into(), "-inf".into()];
                words.extend(if kind == 1 { [name, value] } else { [score[random.below(4)].clone(), name] });
            }
            pair.run(&words);
        }
    }
}

#[test]
fn dumps_are_understood_by_both() {
    let (count, mut random, servers) = (length(), random(), Servers::start());
    let mut pair = servers.connect();
    for round in 0..count / 200 {
        make(&mut pair, "source", &mut random);
        if random.below(2) == 0 {
            make(&mut pair, "target", &mut random);
        }
        let payloads = pair.clients.each_mut().map(|client| match client.run("DUMP source") {
            Value::Bulk(payload) => payload,
            other => panic!("{other:?}"),
        });
        for (origin, mut payload) in payloads.into_iter().enumerate() {
            if random.below(4) == 0 {
                let bit = random.below(payload.len() * 8);
                payload[bit / 8] ^= 1 << (bit % 8);
            }
            let ttl = random.of(&["0", "1000000", "-1", "x"]);
            let more = random.of(&["REPLACE", "REPLACE ABSTTL", "REPLACE IDLETIME 5", "REPLACE FREQ 256", "FREQ 7", "BAD"]);
            let words = ["RESTORE", "target", ttl].into_iter().map(str::as_bytes).chain([payload.as_slice()]);
            let words: Vec<&[u8]> = words.chain(more.split(' ').map(str::as_bytes)).collect();
            let [ours, theirs] = pair.clients.each_mut().map(|client| client.call(&words));
            assert_eq!(ours, theirs, "round {round}, payload of {}: {ttl} {more}", ["hither", "Redis"][origin]);
            pair.compare_data();
        }
    }
    println!("HITHER_COUNT redis_dumps {}", count / 100);
}
