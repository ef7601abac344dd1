//! Several threads: keys that stay are seen, once and in order; writes are not lost.

use super::super::{FakeLog, Rng};
use super::{delete, put, show};
use crate::{OrderedIndex, Ref, SortedPiece, Start};
use hither_sync::epoch;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;

/// Makes a test's keys from numbers.
type Maker = fn(u64) -> Vec<u8>;

/// Eight-byte words, and strings that need layers, in turn by round.
const MAKERS: [Maker; 3] = [
    |i| ((i << 16) | (i % 7)).to_be_bytes().to_vec(),
    |i| format!("dir-{:03}/file-{:05}", i % 50, i).into_bytes(),
    |i| {
        let mut key = (i / 16).to_be_bytes().to_vec();
        key.extend_from_slice(&b"abcdefghijklmnop"[..(i % 16) as usize]);
        key
    },
];

/// Sets the flag when dropped, even by a panic, so that the other threads end.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writers insert and delete odd numbers while scans run in both directions: every even number appears exactly once, in order.
pub fn scans_see_what_stays<I: OrderedIndex>(make: impl Fn() -> I, round: usize) {
    let (index, log, maker) = (make(), FakeLog::new(3), MAKERS[round % MAKERS.len()]);
    let n = 4000u64;
    for i in (0..n).step_by(2) {
        put(&index, &log, &maker(i));
    }
    let stays = |key: &[u8]| (0..n).step_by(2).any(|i| maker(i) == key);
    let mut expected: Vec<Vec<u8>> = (0..n).step_by(2).map(maker).collect();
    expected.sort();
    debug_assert!(stays(&expected[0]));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..2u64 {
            let (index, log, stop) = (&index, &log, &stop);
            scope.spawn(move || {
                let mut rng = Rng::new(writer + 10 * round as u64);
                while !stop.load(Ordering::Relaxed) {
                    // Clusters, so that leaves split and become empty.
                    let from = rng.below(n as usize) as u64;
                    let mine = |i: &u64| i % 2 == 1 && i / 2 % 2 == writer;
                    for i in (from..(from + 300).min(n)).filter(mine) {
                        put(index, log, &maker(i));
                    }
                    for i in (from..(from + 300).min(n)).filter(mine) {
                        delete(index, log, &maker(i));
                    }
                }
            });
        }
        let _stop = StopOnDrop(&stop);
        let mut rng = Rng::new(77);
        for turn in 0..120 {
            let backward = turn % 2 == 1;
            let chunk = if turn % 3 == 0 { usize::MAX } else { 1 + rng.below(300) };
            check_scan(&index, &log, &expected, backward, chunk);
        }
    });
    index.check(&log).expect("the index's invariants hold");
}

/// Copies taken while writers insert, update and delete hold every key that stays, once and in order, with a reference that it had.
pub fn copies_see_what_stays<I: OrderedIndex>(make: impl Fn() -> I) {
    for maker in MAKERS {
        let (index, log) = (make(), FakeLog::new(3));
        let n = 3000u64;
        for i in (0..n).step_by(2) {
            put(&index, &log, &maker(i));
        }
        let mut expected: Vec<Vec<u8>> = (0..n).step_by(2).map(maker).collect();
        expected.sort();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for writer in 0..2u64 {
                let (index, log, stop) = (&index, &log, &stop);
                scope.spawn(move || {
                    let mut rng = Rng::new(writer);
                    while !stop.load(Ordering::Relaxed) {
                        let i = rng.below(n as usize / 2) as u64 / 2 * 2 + writer;
                        put(index, log, &maker(2 * i));
                        put(index, log, &maker(2 * i + 1));
                        delete(index, log, &maker(2 * i + 1));
                    }
                });
            }
            let _stop = StopOnDrop(&stop);
            for limit in [1000, 17, 4000, 300] {
                check_copy(&index, &log, &expected, limit);
            }
        });
    }
}

fn check_copy<I: OrderedIndex>(index: &I, log: &FakeLog, expected: &[Vec<u8>], limit: usize) {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    loop {
        let _pin = epoch::pin();
        let mut piece = SortedPiece::default();
        index.copy_sorted(keys.last().map_or(Start::Edge, |last| Start::After(last)), limit, &mut piece, log);
        for i in 0..piece.len() {
            let key = piece.key(i, &mut [0; 8]).to_vec();
            assert_eq!(log.peek(piece.refs()[i]), key, "a reference belongs to its key");
            assert!(keys.last().is_none_or(|last| *last < key), "copied keys ascend");
            keys.push(key);
        }
        if piece.len() < limit {
            break;
        }
    }
    for key in expected {
        assert!(keys.binary_search(key).is_ok(), "{} was not copied", show(key));
    }
}

/// One pass over everything in chunks: the keys are strictly monotonic, and all of `expected` are among them.
fn check_scan<I: OrderedIndex>(index: &I, log: &FakeLog, expected: &[Vec<u8>], backward: bool, chunk: usize) {
    let _pin = epoch::pin();
    let mut keys: Vec<&[u8]> = Vec::new();
    loop {
        let mut out = Vec::new();
        let start = keys.last().map_or(Start::Edge, |last| Start::After(last));
        index.scan(start, backward, chunk, &mut out, log);
        keys.extend(out.iter().map(|reference| log.peek(*reference)));
        if out.len() < chunk {
            break;
        }
    }
    if backward {
        keys.reverse();
    }
    if let Some(pair) = keys.windows(2).find(|pair| pair[0] >= pair[1]) {
        panic!("{} comes before {} (backward {backward})", show(pair[0]), show(pair[1]));
    }
    let mut seen = keys.iter();
    for key in expected {
        assert!(seen.any(|seen| seen == key), "the scan (backward {backward}) leaves out {}", show(key));
    }
}

/// The result of a peek at a key, if the key is eight bytes long and the peek finds anything.
fn peek<I: OrderedIndex>(index: &I, log: &FakeLog, key: &[u8]) -> Option<Ref> {
    let word = u64::from_ne_bytes(key.try_into().ok()?);
    let look = |reference: Ref, _: u64| log.is_entry_of(reference, key).then_some(());
    Some(index.peek(word, (log.hasher(), look)).0).filter(|seen| seen.is_some())
}

/// Splits, merges and layers around a key never hide it from lookups.
pub fn gets_see_what_stays<I: OrderedIndex>(make: impl Fn() -> I, round: usize) {
    let (index, log, maker) = (make(), FakeLog::new(4), MAKERS[round % MAKERS.len()]);
    let n = 6000u64;
    let refs: Vec<_> = (0..n).step_by(8).map(|i| (maker(i), put(&index, &log, &maker(i)))).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..2usize {
            let (index, log, stop, refs) = (&index, &log, &stop, &refs);
            scope.spawn(move || {
                let mut rng = Rng::new(reader as u64);
                while !stop.load(Ordering::Relaxed) {
                    let _pin = epoch::pin();
                    let chosen: Vec<_> = (0..16).map(|_| &refs[rng.below(refs.len())]).collect();
                    let keys: Vec<_> = chosen.iter().map(|(key, _)| log.key_of(key)).collect();
                    let mut found = vec![Ref::NONE; 16];
                    index.get_many(&keys, &mut found, log);
                    for (i, (key, reference)) in chosen.iter().enumerate() {
                        assert_eq!(found[i], *reference, "get_many of {}", show(key));
                        assert_eq!(index.get(keys[i], log), *reference, "get of {}", show(key));
                        assert!(peek(index, log, key).is_none_or(|seen| seen == *reference), "peek of {}", show(key));
                    }
                }
            });
        }
        let _stop = StopOnDrop(&stop);
        for _ in 0..6 {
            for i in (0..n).filter(|i| i % 8 != 0) {
                put(&index, &log, &maker(i));
            }
            for i in (0..n).filter(|i| i % 8 != 0) {
                assert!(delete(&index, &log, &maker(i)));
            }
        }
    });
    index.check(&log).expect("the index's invariants hold");
    assert_eq!(index.len(), refs.len());
}

/// Threads fill and empty interleaved ranges. Each finds its own keys after every step (Masstree: keys lost when leaves empty).
pub fn leaves_empty_and_fill<I: OrderedIndex>(make: impl Fn() -> I, round: usize) {
    let (index, log, maker) = (make(), FakeLog::new(5), MAKERS[round % MAKERS.len()]);
    let threads = 3u64;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (index, log) = (&index, &log);
            scope.spawn(move || {
                let mut rng = Rng::new(thread ^ (round as u64) << 8);
                for _ in 0..40 {
                    let from = rng.below(2000) as u64;
                    let mine: Vec<_> = (from..from + 400).filter(|i| i % threads == thread).map(maker).collect();
                    let refs: Vec<_> = mine.iter().map(|key| put(index, log, key)).collect();
                    let _pin = epoch::pin();
                    for (key, reference) in mine.iter().zip(&refs) {
                        assert_eq!(index.get(log.key_of(key), log), *reference, "get of {}", show(key));
                    }
                    for key in &mine {
                        assert!(delete(index, log, key), "{} is lost", show(key));
                        assert!(index.get(log.key_of(key), log).is_none(), "{} is still there", show(key));
                    }
                }
            });
        }
    });
    let _pin = epoch::pin();
    index.check(&log).expect("the index's invariants hold");
    assert!(index.is_empty());
}

/// Several threads write keys with long common prefixes, few at a time: layers are made, cut in two and removed all the time.
pub fn layers_come_and_go<I: OrderedIndex>(make: impl Fn() -> I, round: usize) {
    let (index, log) = (make(), FakeLog::new(6));
    let key_of = |rng: &mut Rng, thread: u8| {
        let mut key = b"common-prefix-of-many-bytes-".to_vec();
        key.truncate([3, 8, 16, 28][rng.below(4)]);
        key.extend((0..rng.below(5)).map(|_| b"01234567"[rng.below(2)]).flat_map(|c| [c; 5]));
        key.push(thread);
        key
    };
    std::thread::scope(|scope| {
        for thread in 0..3u8 {
            let (index, log) = (&index, &log);
            scope.spawn(move || {
                let mut rng = Rng::new(u64::from(thread) ^ (round as u64) << 9);
                let mut mine = std::collections::BTreeMap::new();
                for _ in 0..15_000 {
                    let _pin = epoch::pin();
                    let key = key_of(&mut rng, thread);
                    assert_eq!(index.get(log.key_of(&key), log), mine.get(&key).copied().unwrap_or(Ref::NONE), "get of {}", show(&key));
                    if rng.below(2) == 0 {
                        mine.insert(key.clone(), put(index, log, &key));
                    } else {
                        assert_eq!(delete(index, log, &key), mine.remove(&key).is_some(), "delete of {}", show(&key));
                    }
                }
                for key in mine.keys() {
                    assert!(delete(index, log, key));
                }
            });
        }
    });
    let _pin = epoch::pin();
    index.check(&log).expect("the index's invariants hold");
    assert!(index.is_empty());
}

/// The tree passes through its smallest sizes again and again while another thread looks (root split and collapse).
pub fn roots_grow_and_shrink<I: OrderedIndex>(make: impl Fn() -> I, round: usize) {
    let (index, log, maker) = (make(), FakeLog::new(8), MAKERS[round % MAKERS.len()]);
    let middle = maker(500);
    let reference = put(&index, &log, &middle);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (index, log, stop, middle) = (&index, &log, &stop, &middle);
        scope.spawn(move || {
            let (mut out, mut backward) = (Vec::new(), false);
            while !stop.load(Ordering::Relaxed) {
                let _pin = epoch::pin();
                assert_eq!(index.get(log.key_of(middle), log), reference, "the root hides {}", show(middle));
                out.clear();
                backward = !backward;
                index.scan(Start::At(middle), backward, 1, &mut out, log);
                assert_eq!(out, [reference]);
            }
        });
        let _stop = StopOnDrop(stop);
        let mut rng = Rng::new(round as u64);
        for turn in 0..80 {
            let n = 30 + turn * 11 % 170;
            let mut others: Vec<u64> = (500 - n..500 + n).filter(|i| *i != 500).collect();
            // In random order, lest all splits be at the edge.
            (1..others.len()).for_each(|i| others.swap(i, rng.below(i + 1)));
            for i in &others {
                put(index, log, &maker(*i));
            }
            for i in others {
                assert!(delete(index, log, &maker(i)), "{} is lost", show(&maker(i)));
            }
        }
    });
    index.check(&log).expect("the index's invariants hold");
    assert_eq!(index.len(), 1);
}

/// Of several installs with the same old reference exactly one succeeds.
pub fn installs_exclude<I: OrderedIndex>(make: impl Fn() -> I, round: usize) {
    let (index, log, maker) = (make(), FakeLog::new(9), MAKERS[round % MAKERS.len()]);
    let n = 64u64;
    for i in 0..n {
        put(&index, &log, &maker(i));
    }
    let wins = AtomicUsize::new(0);
    let attempts = 20_000;
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let (index, log, wins) = (&index, &log, &wins);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                for _ in 0..attempts {
                    let _pin = epoch::pin();
                    let key = maker(rng.below(n as usize) as u64);
                    let hashed = log.key_of(&key);
                    let old = index.get(hashed, log);
                    let token = if rng.below(2) == 0 { index.any_token() } else { index.locate(hashed, log).token };
                    let new = log.append(&key);
                    match index.install(token, hashed, old, new, log) {
                        Ok(()) => drop(wins.fetch_add(1, Ordering::Relaxed)),
                        Err(conflict) => assert_ne!(conflict.current, old),
                    }
                }
            });
        }
    });
    assert!(wins.into_inner() > attempts / 2);
    index.check(&log).expect("the index's invariants hold");
    assert_eq!(index.len(), n as usize);
}

/// Writers of neighbouring keys, which lock their places where the index supports it, run beside a collector that installs. Nothing is
/// lost, and the reference with which a place was locked stays there until the holder replaces it.
pub fn places_exclude<I: OrderedIndex>(make: impl Fn() -> I, round: usize) {
    let (index, log, maker) = (make(), FakeLog::new(11), MAKERS[round % MAKERS.len()]);
    let n = 200u64;
    for i in 0..n {
        put(&index, &log, &maker(i));
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (index, log, stop) = (&index, &log, &stop);
        scope.spawn(move || {
            let mut rng = Rng::new(77);
            while !stop.load(Ordering::Relaxed) {
                let _pin = epoch::pin();
                let key = maker(rng.below(n as usize) as u64);
                let hashed = log.key_of(&key);
                let old = index.get(hashed, log);
                if old.is_some() {
                    let _ = index.install(index.any_token(), hashed, old, log.append(&key), log);
                }
            }
        });
        let _stop = StopOnDrop(stop);
        std::thread::scope(|scope| {
            for writer in 0..2u64 {
                scope.spawn(move || write_at_places(index, log, maker, (writer, n)));
            }
        });
    });
    index.check(&log).expect("the index's invariants hold");
    assert_eq!(index.len(), n as usize);
}

/// Updates, deletes and inserts the keys of `writer`.
fn write_at_places<I: OrderedIndex>(index: &I, log: &FakeLog, maker: Maker, (writer, n): (u64, u64)) {
    let mut rng = Rng::new(writer);
    for step in 0..6000 {
        let key = maker(rng.below(n as usize / 2) as u64 * 2 + writer);
        if step % 3 == 0 {
            assert!(write_at_place(index, log, &key, Ref::NONE, step % 7 == 0).is_some(), "{} is lost", show(&key));
            assert!(write_at_place(index, log, &key, log.append(&key), step % 5 == 0).is_none(), "{} is back", show(&key));
        } else {
            assert!(write_at_place(index, log, &key, log.append(&key), step % 7 == 0).is_some(), "{} is lost", show(&key));
        }
    }
}

/// A single write beside a collector; with `pause`, pauses as long as a slow flush takes. Returns the reference that it replaced.
fn write_at_place<I: OrderedIndex>(index: &I, log: &FakeLog, key: &[u8], new: Ref, pause: bool) -> Ref {
    let _pin = epoch::pin();
    let hashed = log.key_of(key);
    let (located, locked) = index.lock_place(hashed, index.prepare_write(hashed, log), log);
    let present = located.candidate.is_some() && (located.verified || log.peek(located.candidate) == key);
    let mut old = if present { located.candidate } else { Ref::NONE };
    if pause {
        std::thread::yield_now();
    }
    if locked {
        assert_eq!(index.get(hashed, log), old, "a locked place has changed, or readers see its lock");
        index.install_locked(located.token, hashed, old, new, log);
        return old;
    }
    while let Err(conflict) = index.install(located.token, hashed, old, new, log) {
        old = conflict.current;
    }
    old
}

/// Collectors follow hints beside a writer whose keys come and go between theirs: every key keeps its newest reference, whatever moves.
pub fn hints_beside_writers<I: OrderedIndex>(make: impl Fn() -> I, round: usize) {
    let (index, log, maker) = (make(), FakeLog::new(13), MAKERS[round % MAKERS.len()]);
    let n = 2000u64;
    (0..n).step_by(2).for_each(|i| {
        put(&index, &log, &maker(i));
    });
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (index, log, stop) = (&index, &log, &stop);
        scope.spawn(move || {
            let mut rng = Rng::new(78 + round as u64);
            while !stop.load(Ordering::Relaxed) {
                // Clusters, so that leaves split and become empty.
                let from = rng.below(n as usize) as u64 | 1;
                for i in (from..(from + 150).min(n)).step_by(2) {
                    put(index, log, &maker(i));
                }
                for i in (from..(from + 150).min(n)).step_by(2) {
                    delete(index, log, &maker(i));
                }
            }
        });
        let _stop = StopOnDrop(stop);
        std::thread::scope(|scope| {
            for collector in 0..2 {
                scope.spawn(move || follow_hints(index, log, maker, (collector, n)));
            }
        });
    });
    index.check(&log).expect("the index's invariants hold");
}

/// Moves the keys of this collector, by hints that age, and compares them with what the collector has written.
fn follow_hints<I: OrderedIndex>(index: &I, log: &FakeLog, maker: Maker, (collector, n): (u64, u64)) {
    let mut rng = Rng::new(collector);
    let mine: Vec<Vec<u8>> = (0..n).step_by(2).filter(|i| i / 2 % 2 == collector).map(maker).collect();
    let mut known: Vec<(Ref, Option<u64>)> = mine.iter().map(|_| (Ref::NONE, None)).collect();
    let mut followed = 0;
    for step in 0..30_000 {
        let at = rng.below(mine.len());
        let _pin = epoch::pin();
        let (key, (reference, hint)) = (log.key_of(&mine[at]), &mut known[at]);
        let current = index.get(key, log);
        assert!(reference.is_none() || current == *reference, "{} was changed by another's hint", show(key.bytes));
        let new = log.append(key.bytes);
        let hinted = hint.and_then(|hint| index.find_at_hint(hint, key, current));
        let by_hint = hinted.is_some_and(|hinted| index.update_at_hint(hinted.hint, key, current, new));
        if by_hint {
            followed += 1;
        } else {
            assert_eq!(index.install(index.any_token(), key, current, new, log), Ok(()), "nobody else writes {}", show(key.bytes));
        }
        *reference = new;
        if hint.is_none() || step % 3 == 0 {
            *hint = index.hint(index.locate(key, log).token);
        }
    }
    assert!(followed > 1000 || known.iter().all(|(_, hint)| hint.is_none()), "only {followed} hints led anywhere");
}

/// A writer that locks one place again and again lets others write beside it: a thread that waits for the place comes next.
pub fn nobody_is_shut_out<I: OrderedIndex>(make: impl Fn() -> I) {
    const ROUNDS: u64 = 20;
    let (index, log) = (make(), FakeLog::new(12));
    // Behind a slice that all share: where slices have arrays, their places are not claimed.
    let key = |low: u64| [[7; 8], low.to_be_bytes()].concat();
    (0..60u64).for_each(|i| {
        put(&index, &log, &key(i << 20));
    });
    let hot = key(30 << 20);
    let hashed = log.key_of(&hot);
    let (mut claimed, mut overtaken) = (0, 0);
    for round in 0..ROUNDS {
        let _pin = epoch::pin();
        let lock = || index.lock_place(hashed, index.prepare_write(hashed, &log), &log);
        let (located, locked) = lock();
        let neighbour = key((30 << 20) + 1 + round);
        if !locked {
            put(&index, &log, &neighbour);
            continue;
        }
        claimed += 1;
        let (come, has_come) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                come.send(()).expect("the test is waiting");
                put(&index, &log, &neighbour)
            });
            has_come.recv().expect("the thread runs");
            // Long enough for the other thread to reach the place, whatever else the machine does.
            std::thread::sleep(std::time::Duration::from_millis(5));
            index.install_locked(located.token, hashed, located.candidate, log.append(&hot), &log);
            let (located, locked) = lock();
            if locked {
                overtaken += u64::from(index.get(log.key_of(&neighbour), &log).is_none());
                index.unlock_place(located.token);
            }
        });
    }
    assert!(claimed > ROUNDS / 2, "only {claimed} of {ROUNDS} places were claimed");
    assert!(overtaken <= ROUNDS / 2, "a writer that waited was overtaken in {overtaken} of {ROUNDS} rounds");
    index.check(&log).expect("the index's invariants hold");
    assert_eq!(index.len(), 60 + ROUNDS as usize);
}
