//! The histories that the tests explore.

use crate::explorer::Subject;
use crate::explorer_script::{Config, Level, Life};
use hither_engine::Kind;

/// Random operations over few keys: overwrites, batches, runs, and keyspaces that are created and dropped.
pub fn mixed(config: &Config, operations: usize) -> Subject {
    let mut life = Life::begin(config);
    life.create("one", Kind::Ordered);
    life.create("two", Kind::Hash);
    for _ in 0..operations {
        life.random();
    }
    life.finish(0)
}

/// Loads enough keys for splits and syncs; then writes 70 new keys and does a few random operations. Only crashes after
/// the sync are explored.
pub fn large(config: &Config, operations: usize) -> Subject {
    let mut life = Life::begin(config);
    let (one, two) = (life.create("one", Kind::Ordered), life.create("two", Kind::Hash));
    for part in 0..15u64 {
        let changes: Vec<_> = (0..32u64)
            .map(|i| (if i < 6 { one } else { two }, (part << 40 | i << 8).to_le_bytes().to_vec(), Some(life.value(8))))
            .collect();
        assert!(life.batch(&changes, Level::Process), "there is room");
    }
    life.sync();
    let from = life.recorder.position();
    for i in 0..70u64 {
        let value = life.value(8);
        life.write(if i % 5 == 0 { one } else { two }, &(1 << 50 | i).to_le_bytes(), Some(value), Level::Process, false);
    }
    for _ in 0..operations {
        life.random();
    }
    life.finish(from)
}

/// Fills a small store with batches until one finds no room, tries a single key, deletes everything with collections in
/// between, and uses the store again.
pub fn full(config: &Config) -> Subject {
    let config = Config { max_segments: 6, ..config.clone() };
    let mut life = Life::begin(&config);
    let (one, two) = (life.create("one", Kind::Ordered), life.create("two", Kind::Hash));
    let mut filled = 0u64;
    loop {
        let changes: Vec<_> =
            (0..5).map(|i| (if i % 2 == 0 { one } else { two }, format!("{filled} {i}").into_bytes(), Some(life.value(300)))).collect();
        if !life.batch(&changes, Level::Sync) {
            break;
        }
        filled += 1;
    }
    let value = life.value(20);
    life.write(one, b"after the failed batch", Some(value), Level::Sync, false);
    for batch in 0..filled {
        for i in 0..5 {
            life.write(if i % 2 == 0 { one } else { two }, format!("{batch} {i}").as_bytes(), None, Level::Sync, false);
        }
        life.reclaim();
    }
    for _ in 0..20 {
        life.random();
    }
    life.finish(0)
}

/// A batch over several segments, most of whose members are overwritten and collected; a batch over two keyspaces, one
/// of which is dropped; keys that expire; runs that replace each other.
pub fn batches(config: &Config) -> Subject {
    let mut life = Life::begin(config);
    let (one, two, gone) = (life.create("one", Kind::Ordered), life.create("two", Kind::Hash), life.create("gone", Kind::Hash));
    let key = |i: usize| format!("member {i}").into_bytes();
    let changes: Vec<_> = (0..24).map(|i| (if i % 2 == 0 { one } else { two }, key(i), Some(life.value(500)))).collect();
    assert!(life.batch(&changes, Level::Sync), "there is room");
    for i in 0..22 {
        let value = life.value(500);
        life.write(if i % 2 == 0 { one } else { two }, &key(i), Some(value), Level::Sync, false);
    }
    life.reclaim();
    life.reclaim();
    let pair = [(one, b"stays".to_vec(), Some(life.value(9))), (gone, b"goes".to_vec(), Some(life.value(9)))];
    assert!(life.batch(&pair, Level::Sync), "there is room");
    life.drop_keyspace(gone);
    for i in 0..12 {
        life.write(if i % 2 == 0 { one } else { two }, &key(i), None, Level::Sync, false);
    }
    for (keyspace, level) in [(one, Level::Sync), (two, Level::Process)] {
        for expired in [false, true] {
            let value = life.value(30);
            life.write(keyspace, b"short-lived", Some(value), level, expired);
        }
    }
    life.sweep();
    life.get(one, b"short-lived");
    life.get(two, b"short-lived");
    for (len, level) in [(9000, Level::Sync), (5000, Level::Process), (4090, Level::Sync), (8100, Level::Sync)] {
        let value = life.value(len);
        life.write(two, b"run", Some(value), level, false);
        life.reclaim();
    }
    for _ in 0..10 {
        let value = life.value(900);
        life.write(one, b"filler", Some(value), Level::Sync, false);
    }
    life.reclaim();
    life.finish(0)
}

/// Deletes a key by a batch that may be lost, and then again by one that may not. After a crash the second delete may
/// be the only one left.
pub fn deletes_in_batches(config: &Config) -> Subject {
    let mut life = Life::begin(config);
    let keyspace = life.create("one", Kind::Hash);
    for round in 0..4 {
        let [gone, first, second] = ["gone", "first", "second"].map(|name| format!("{name} {round}").into_bytes());
        let value = life.value(30);
        life.write(keyspace, &gone, Some(value), Level::Sync, false);
        for (other, level) in [(first, Level::Process), (second, Level::Sync)] {
            let changes = [(keyspace, gone.clone(), None), (keyspace, other, Some(life.value(700)))];
            assert!(life.batch(&changes, level), "there is room");
        }
    }
    life.finish(0)
}

/// Collects segments that are half garbage again and again, with awaited and unawaited writes. At first a snapshot
/// shows old entries while keys are deleted and put again; then the snapshot is gone. In both phases some entries are
/// too old for the versions of new segments.
pub fn collections(config: &Config) -> Subject {
    let mut life = Life::begin(config);
    let (one, two) = (life.create("one", Kind::Ordered), life.create("two", Kind::Hash));
    let key = |i: usize| format!("key {i}").into_bytes();
    for i in 0..24 {
        let value = life.value(60 + i * 5);
        life.write(if i % 2 == 0 { one } else { two }, &key(i), Some(value), Level::Sync, false);
    }
    // The snapshot shows none of these four keys: two are gone, and two come after it.
    let (deleted, new) = ([(one, b"deleted"), (two, b"deleted")], [(one, b"new"), (two, b"new")]);
    for value in [Some(life.value(50)), None] {
        for (keyspace, key) in deleted {
            life.write(keyspace, key, value.clone(), Level::Sync, false);
        }
    }
    let snapshot = life.snapshot();
    for (keyspace, key) in new {
        let value = life.value(50);
        life.write(keyspace, key, Some(value), Level::Sync, false);
    }
    for round in 0..6 {
        if round == 3 {
            life.skip_versions();
        }
        let level = if round % 3 == 1 { Level::Process } else { Level::Sync };
        for i in (0..24).filter(|i| (i + round) % 3 != 0) {
            let keyspace = if i % 2 == 0 { one } else { two };
            if (i + round) % 5 == 0 {
                life.write(keyspace, &key(i), None, level, false);
            }
            if (i + round) % 7 != 0 {
                let value = life.value(40 + (i * 37 + round * 11) % 150);
                life.write(keyspace, &key(i), Some(value), level, false);
            }
        }
        life.reclaim();
        life.show_snapshot(&snapshot);
    }
    drop(snapshot);
    life.skip_versions();
    life.reclaim();
    for i in 0..24 {
        life.write(if i % 2 == 0 { one } else { two }, &key(i), None, Level::Sync, false);
    }
    life.reclaim();
    life.reclaim();
    life.finish(0)
}

/// Keyspaces exchange their names, one pair or two at once. Unawaited writes come before each exchange and more writes
/// after it; a checkpoint, a drop and a new keyspace come in between. `in_two_steps` is wrong: see
/// [`Life::swap_keyspaces`].
pub fn swaps(config: &Config, in_two_steps: bool) -> Subject {
    let mut life = Life::begin(config);
    let kinds = [("one", Kind::Ordered), ("two", Kind::Hash), ("three", Kind::Ordered), ("four", Kind::Hash)];
    let [one, two, three, four] = kinds.map(|(name, kind)| life.create(name, kind));
    let write_all = |life: &mut Life, round: u8| {
        for (number, keyspace) in [one, two, three, four].into_iter().enumerate() {
            let (value, level) =
                (life.value(40), if (number + usize::from(round)).is_multiple_of(2) { Level::Process } else { Level::Sync });
            life.write(keyspace, b"everywhere", Some(value), level, false);
            let value = life.value(200);
            life.write(keyspace, &[b'k', round], Some(value), Level::Process, false);
        }
        let pair = [(one, b"pair".to_vec(), Some(life.value(9))), (three, b"pair".to_vec(), Some(life.value(9)))];
        assert!(life.batch(&pair, Level::Process), "there is room");
    };
    for (round, pairs) in [&[(one, two)][..], &[(one, three), (four, two)], &[(two, one), (three, four)]].into_iter().enumerate() {
        write_all(&mut life, round as u8);
        life.swap_keyspaces(pairs, in_two_steps);
        life.get(one, b"everywhere");
        if round == 1 {
            life.checkpoint();
        }
    }
    life.drop_keyspace(two);
    let again = life.create("again", Kind::Hash);
    let value = life.value(30);
    life.write(again, b"k", Some(value), Level::Process, false);
    life.swap_keyspaces(&[(again, four)], in_two_steps);
    life.finish(0)
}

/// Random operations on few keys, with checkpoints and reuse of segments in between: entries are deleted, overwritten
/// and freed around a checkpoint.
pub fn checkpoints(config: &Config, operations: usize) -> Subject {
    let mut life = Life::begin(config);
    life.create("one", Kind::Ordered);
    life.create("two", Kind::Hash);
    for i in 0..operations {
        life.random();
        if i % 4 == 1 {
            life.checkpoint();
        }
        if i % 9 == 5 {
            life.reclaim();
            life.reclaim();
        }
    }
    life.finish(0)
}

/// Pairs of eight bytes each are put, overwritten and deleted by calls that wait, over several segments; they are
/// collected and put again. Then come whole segments of deletes. At last unawaited writes run beside the pairs and send
/// them the general way instead of the lean path.
pub fn pairs(config: &Config) -> Subject {
    let mut life = Life::begin(config);
    let (hash, ordered) = (life.create("hash", Kind::Hash), life.create("ordered", Kind::Ordered));
    for round in 0..5u64 {
        for i in 0..48u64 {
            let keyspace = if i % 8 == 7 { ordered } else { hash };
            let value = if (i + round) % 6 == 5 { None } else { Some(round << 32 | i) };
            assert!(life.pair(keyspace, i * i % 53, value), "there is room");
        }
        if round % 2 == 1 {
            life.skip_versions();
        }
        life.reclaim();
    }
    // Puts more keys than a segment of the hash index holds; then writes whole segments of tombstones, so that a sweep
    // is due.
    for value in [Some(1), None] {
        for i in 100..620u64 {
            assert!(life.pair(hash, i, value), "there is room");
        }
        life.observe();
    }
    life.reclaim();
    life.reclaim();
    for len in [8, 100, 100, 100] {
        let value = life.value(len);
        life.write(hash, &7u64.to_be_bytes(), Some(value), Level::Process, false);
    }
    for i in 0..24u64 {
        assert!(life.pair(hash, i % 12, (i % 3 != 0).then_some(i)), "there is room");
    }
    life.finish(0)
}

/// Batches of pairs of eight bytes each, which go the lean path of batches: new keys and known ones, keys that single
/// writes or other batches wrote, now and then the same key twice; beside single puts, deletes and collections. Some go
/// to another keyspace, whose entries need an extension in the open segment.
pub fn batches_of_pairs(config: &Config) -> Subject {
    let mut life = Life::begin(config);
    let (first_keyspace, second) = (life.create("hash", Kind::Hash), life.create("other", Kind::Hash));
    for round in 0..26u64 {
        let hash = if round % 9 == 8 { second } else { first_keyspace };
        let (first, members) = (life.rng.below(60) as u64, 2 + life.rng.below(12) as u64);
        // Keys that differ, unless the last one is to be the first one again.
        let number = |i: u64| if round % 6 == 5 && i + 1 == members { first } else { first + 7 * i };
        let changes: Vec<_> = (0..members).map(|i| (hash, number(i).to_be_bytes().to_vec(), Some(life.value(8)))).collect();
        assert!(life.batch(&changes, Level::Sync), "there is room");
        for i in 0..4 {
            let key = life.rng.below(160) as u64;
            assert!(life.pair(hash, key, (i > 0).then_some(round << 32 | key)), "there is room");
        }
        if round % 8 == 7 {
            life.skip_versions();
            life.reclaim();
        }
    }
    life.finish(0)
}
