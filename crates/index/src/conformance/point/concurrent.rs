//! The concurrent tests: each key has one writer at a time, and readers know which writes have been acknowledged.

use super::Bench;
use crate::conformance::Rng;
use crate::{Conflict, Index, Ref};
use hither_sync::epoch;
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

const WRITERS: usize = 2;
const READERS: usize = 2;

/// Stops the other threads when the scope's work is done, or a thread panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs writers to their end, and readers until all writers have ended. A panic of any thread ends the test.
fn run_threads(writer: impl Fn(usize) + Sync, reader: impl Fn(&mut Rng) + Sync) {
    let (stop, running) = (AtomicBool::new(false), AtomicUsize::new(WRITERS));
    std::thread::scope(|scope| {
        for number in 0..WRITERS {
            let (writer, stop, running) = (&writer, &stop, &running);
            scope.spawn(move || {
                let ending = Stop(stop);
                writer(number);
                if running.fetch_sub(1, Ordering::Relaxed) > 1 {
                    std::mem::forget(ending);
                }
            });
        }
        for seed in 0..READERS as u64 {
            let (reader, stop) = (&reader, &stop);
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                while !stop.load(Ordering::Relaxed) {
                    reader(&mut rng);
                }
            });
        }
    });
}

/// Writers insert keys of their own, and delete every fourth one a little later. A reader that knows that a key is
/// present must find it, even during splits.
pub fn present_keys_are_never_missed<I: Index>(index: I, keys: usize) {
    let bench = Bench::new(index);
    let done: [AtomicU64; WRITERS] = [const { AtomicU64::new(0) }; WRITERS];
    let key = |writer: usize, i: u64| (i << 8 | writer as u64).to_le_bytes();
    let writer = |number: usize| {
        for i in 0..keys as u64 {
            let entry = bench.put(&key(number, i));
            assert_eq!(bench.get(&key(number, i)), entry);
            done[number].store(i + 1, Ordering::Release);
            if i % 4 == 0 && i >= 1000 {
                assert!(bench.write(&key(number, i - 1000), Ref::NONE).is_some());
                assert!(bench.get(&key(number, i - 1000)).is_none());
            }
        }
    };
    run_threads(writer, |rng| {
        let number = rng.below(WRITERS);
        let upto = done[number].load(Ordering::Acquire);
        if upto == 0 {
            return;
        }
        // Half of the lookups go to the newest keys, where the splits are.
        let pick = |rng: &mut Rng| {
            (if rng.below(2) == 0 { upto - 1 - rng.below(upto.min(64) as usize) as u64 } else { rng.below(upto as usize) as u64 }) | 1
        };
        let bytes: Vec<_> = (0..20).map(|_| key(number, pick(rng).min(upto - 1))).collect();
        let hashed: Vec<_> = bytes.iter().map(|bytes| bench.log.key_of(bytes)).collect();
        let mut found = vec![Ref::NONE; hashed.len()];
        let _pin = epoch::pin();
        bench.index.get_many(&hashed, &mut found, &bench.log);
        for (bytes, found) in bytes.iter().zip(found) {
            let i = u64::from_le_bytes(*bytes) >> 8;
            if i % 4 != 0 {
                assert!(found.is_some(), "get_many misses key {i} of {upto}");
                assert_eq!(bench.get(bytes), found, "key {i} of {upto}");
                assert_eq!(bench.located(bytes).1, found, "key {i} of {upto}");
            }
        }
        assert!(bench.get(&key(number, u64::MAX >> 9)).is_none());
    });
    let left = (0..keys).filter(|i| i % 4 != 0 || i + 1000 >= keys).count();
    bench.check(WRITERS * left);
}

/// The meaning of the entries of a run: a version per entry, copies included.
struct Versions(Vec<AtomicU64>);

impl Versions {
    fn of(&self, reference: Ref) -> &AtomicU64 {
        &self.0[(reference.0 & ((1 << 44) - 1)) as usize]
    }
}

/// Writers update hot keys among growing cold ones while a cleaner moves entries by comparing, without a latch. No
/// update is lost, and no read returns an older version than the one acknowledged before it began.
pub fn updates_with_a_cleaner<I: Index>(index: I, keys: usize) {
    const HOT: usize = 64;
    const MOVES: usize = 20_000;
    let bench = Bench::new(index);
    let versions = Versions((0..=WRITERS * keys * 2 + WRITERS * HOT + MOVES).map(|_| AtomicU64::new(0)).collect());
    let acknowledged: Vec<AtomicU64> = (0..WRITERS * HOT).map(|_| AtomicU64::new(0)).collect();
    let moves = AtomicUsize::new(0);
    let hot = |number: usize| (number as u64 | 1 << 63).to_le_bytes();
    let update = |number: usize, version: u64| {
        let _pin = epoch::pin();
        let (token, mut old) = bench.located(&hot(number));
        let new = bench.log.append(&hot(number));
        versions.of(new).store(version, Ordering::Relaxed);
        while let Err(Conflict { current }) = bench.install(token, &hot(number), old, new) {
            assert!(current.is_some() && current != old, "hot keys are never removed");
            old = current;
        }
        let before = if old.is_some() { versions.of(old).load(Ordering::Relaxed) } else { 0 };
        assert_eq!(before + 1, version, "an update was lost");
        acknowledged[number].store(version, Ordering::Release);
    };
    (0..WRITERS * HOT).for_each(|number| update(number, 1));
    let writer = |number: usize| {
        for i in 0..keys {
            bench.put(&((i * WRITERS + number) as u64).to_le_bytes());
            update(number * HOT + i % HOT, 2 + (i / HOT) as u64);
        }
    };
    run_threads(writer, |rng| {
        let number = rng.below(WRITERS * HOT);
        let least = acknowledged[number].load(Ordering::Acquire);
        let _pin = epoch::pin();
        let found = bench.get(&hot(number));
        assert!(found.is_some(), "hot key {number} is missing");
        let version = versions.of(found).load(Ordering::Relaxed);
        assert!(version >= least, "hot key {number}: version {version} was read after {least} was acknowledged");
        if moves.fetch_add(1, Ordering::Relaxed) < MOVES {
            let copy = bench.log.append(&hot(number));
            versions.of(copy).store(version, Ordering::Relaxed);
            if let Err(Conflict { current }) = bench.install(bench.index.any_token(), &hot(number), found, copy) {
                assert!(current.is_some() && versions.of(current).load(Ordering::Relaxed) >= version);
            }
        }
    });
    bench.check(WRITERS * (HOT + keys));
    for (number, acknowledged) in acknowledged.iter().enumerate() {
        let version = versions.of(bench.get(&hot(number))).load(Ordering::Relaxed);
        assert_eq!(version, acknowledged.load(Ordering::Relaxed), "the last update of hot key {number} is gone");
    }
}

/// Writers insert and delete at random while the index grows. Each writer knows exactly which of its keys are present.
/// A visitor sees the keys that stay, each exactly once.
pub fn deletes_during_growth<I: Index>(index: I, keys: usize) {
    const STAY: u32 = 500;
    let bench = Bench::new(index);
    let staying: HashSet<Ref> = (0..STAY).map(|i| bench.put(&i.to_le_bytes())).collect();
    let kept = AtomicUsize::new(0);
    let writer = |number: usize| {
        let mut rng = Rng::new(number as u64 + 99);
        let mut own: BTreeMap<u64, Ref> = BTreeMap::new();
        for i in 0..keys * 2 {
            // Grow in the first half of the time, shrink in the second.
            let grow = rng.below(8) < if i < keys { 6 } else { 3 };
            let i = (rng.below(keys) * WRITERS + number) as u64;
            let key = (i | 1 << 40).to_le_bytes();
            let new = if grow { bench.log.append(&key) } else { Ref::NONE };
            assert_eq!(bench.write(&key, new), own.get(&i).copied().unwrap_or(Ref::NONE), "key {i}");
            if grow {
                own.insert(i, new)
            } else {
                own.remove(&i)
            };
            assert_eq!(bench.get(&key), new, "key {i}");
        }
        for (i, reference) in &own {
            assert_eq!(bench.get(&(i | 1 << 40).to_le_bytes()), *reference, "key {i} at the end");
        }
        kept.fetch_add(own.len(), Ordering::Relaxed);
    };
    run_threads(writer, |_| {
        let _pin = epoch::pin();
        let mut seen = HashSet::new();
        bench.index.for_each(&bench.log, &mut |reference| {
            assert!(!staying.contains(&reference) || seen.insert(reference), "visited twice");
            true
        });
        assert_eq!(seen.len(), staying.len(), "a key that stays was not visited");
    });
    bench.check(STAY as usize + kept.load(Ordering::Relaxed));
}
