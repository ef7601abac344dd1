//! Images of tables: made, loaded, refused, and copied while writers go on.

use super::image;
use super::tests::Damaged;
use super::*;
use crate::conformance::FakeLog;
use crate::conformance::point::Bench;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

/// Images of a whole table, in stretches of `bytes`.
fn images_of(index: &HashIndex, bytes: usize) -> (Vec<Vec<u8>>, u64) {
    let (mut stretches, mut next, mut keys) = (Vec::new(), Some(0), 0);
    while let Some(position) = next {
        let mut out = Vec::new();
        let copied = index.copy_images(position, bytes, &mut out);
        next = copied.0;
        keys += copied.1;
        stretches.push(out);
    }
    (stretches, keys)
}

/// A table made of images; a second thread builds every other stretch.
fn table_of(stretches: &[Vec<u8>], keep: impl Fn(Ref) -> bool + Sync) -> Result<HashIndex, image::BadImage> {
    let table = HashIndex::new();
    let build = |start: usize| {
        let mut part = image::Images::default();
        stretches.iter().skip(start).step_by(2).try_for_each(|stretch| table.rebuild_images(stretch, &mut part, &keep)).map(|()| part)
    };
    let parts = std::thread::scope(|scope| {
        let other = scope.spawn(|| build(1));
        Ok([build(0)?, other.join().unwrap()?])
    })?;
    table.adopt_images(parts.into())?;
    Ok(table)
}

#[test]
fn a_table_of_images_is_like_any_other() {
    for (mask, keys, bytes) in
        [(u64::MAX, 0, 1), (u64::MAX, 300, 1), (u64::MAX, 30_000, 100_000), (0x7 << 61 | line::TAG_BITS, 3000, 5000), (0, 700, 1)]
    {
        let bench = Bench { index: HashIndex::new(), log: FakeLog::degenerate(1, mask) };
        let refs: Vec<_> = (0..keys as u64).map(|i| bench.put(&i.to_be_bytes())).collect();
        for i in (0..keys as u64).step_by(5) {
            bench.write(&i.to_be_bytes(), Ref::NONE);
        }
        let (stretches, copied) = images_of(&bench.index, bytes);
        assert_eq!(copied as usize, bench.index.len());
        let dropped = |reference: Ref| reference.0.is_multiple_of(3);
        let index = table_of(&stretches, |reference| !dropped(reference)).unwrap();
        let loaded = Bench { index, log: bench.log };
        let mut left = 0;
        for (i, reference) in refs.iter().enumerate() {
            let there = i % 5 != 0 && !dropped(*reference);
            assert_eq!(loaded.get(&(i as u64).to_be_bytes()), if there { *reference } else { Ref::NONE }, "key {i}");
            left += usize::from(there);
        }
        loaded.check(left);
        for i in 0..keys as u64 {
            loaded.put(&i.to_be_bytes());
        }
        loaded.check(keys);
    }
}

#[test]
fn images_of_no_table_are_refused() {
    let bench = Bench::new(HashIndex::new());
    for i in 0..5000u64 {
        bench.put(&i.to_be_bytes());
    }
    let (stretches, _) = images_of(&bench.index, 1);
    assert!(table_of(&stretches, |_| true).is_ok());
    // A segment is missing, occurs twice or is cut off, or its header is nonsense.
    assert!(table_of(&stretches[1..], |_| true).is_err());
    assert!(table_of(&[&stretches[..], &stretches[..1]].concat(), |_| true).is_err());
    for (at, byte) in [(0, 0xff), (4, 0xff), (5, 1), (5, 0xff), (6, 2), (7, 1), (8, 1)] {
        let mut harmed = stretches.clone();
        harmed[0][at] = byte;
        assert!(table_of(&harmed, |_| true).is_err(), "byte {at}");
    }
    let mut cut = stretches.clone();
    cut[0].truncate(100);
    assert!(table_of(&cut, |_| true).is_err());
}

/// The images of a table that has these prefixes and no keys.
fn empty_images(prefixes: &[(u32, u8)]) -> Vec<Vec<u8>> {
    let (root, _) = images_of(&HashIndex::new(), 1);
    let headed = |&(prefix, depth): &(u32, u8)| {
        let mut image = root[0].clone();
        image[..4].copy_from_slice(&prefix.to_le_bytes());
        image[4] = depth;
        image
    };
    prefixes.iter().map(headed).collect()
}

#[test]
fn images_cover_three_quarters() {
    let accepted: [&[(u32, u8)]; 4] = [&[(0, 0)], &[(0, 1), (0b10, 2)], &[(0, 2), (1, 2), (2, 2)], &[(0, 1), (0b100, 3), (0b101, 3)]];
    for prefixes in accepted {
        let bench = Bench { index: table_of(&empty_images(prefixes), |_| true).unwrap(), log: FakeLog::new(1) };
        bench.check(0);
        (0..3000u64).for_each(|i| _ = bench.put(&i.to_be_bytes()));
        bench.check(3000);
    }
    let mut one_too_deep: Vec<_> = (1..=29).map(|depth| (1, depth + 1)).collect();
    one_too_deep.extend([(0, 30), (0b10, 2)]);
    let refused: [&[(u32, u8)]; 8] = [
        &[(0, 1), (1, 1)],
        &[(0, 1), (0b10, 2), (0b11, 2)],
        &[(0, 1)],
        &[(0b10, 2)],
        &[(0, 0), (0b10, 2)],
        &[(0, 0), (0, 1), (0b10, 2)],
        &[(0, 1), (0b100, 3)],
        &one_too_deep,
    ];
    for prefixes in refused {
        assert!(table_of(&empty_images(prefixes), |_| true).is_err(), "{prefixes:?}");
    }
}

/// While writers split segments everywhere, images hold every key that stays exactly once, with a reference that it
/// had.
#[test]
fn images_taken_under_writers_hold_what_stays() {
    let bench = Bench::new(HashIndex::new());
    let (stay, come) = (2000u64, 60_000u64);
    for i in 0..stay {
        bench.put(&i.to_be_bytes());
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (bench, done) = (&bench, &done);
        for writer in 0..2 {
            scope.spawn(move || {
                for i in (stay..stay + come).filter(|i| i % 2 == writer) {
                    bench.put(&i.to_be_bytes());
                    if i % 3 == 0 {
                        bench.put(&(i % stay / 2 * 2 + writer).to_be_bytes());
                    }
                }
                done.store(true, Ordering::Relaxed);
            });
        }
        let mut rounds = 0;
        while !done.load(Ordering::Relaxed) || rounds < 2 {
            rounds += 1;
            let (stretches, _) = images_of(&bench.index, 20_000);
            let seen = parking_lot::Mutex::new(BTreeMap::new());
            let loaded = table_of(&stretches, |reference| {
                *seen.lock().entry(bench.log.peek(reference).to_vec()).or_insert(0) += 1;
                true
            });
            assert!(loaded.is_ok(), "the images cover every position once");
            let seen = seen.into_inner();
            assert!(seen.values().all(|count| *count == 1), "a key was copied twice");
            (0..stay).for_each(|i| assert!(seen.contains_key(&i.to_be_bytes()[..]), "key {i} was not copied"));
        }
    });
}

/// A log that counts how often it is asked about an entry, before and while the segment of the entry's key is frozen.
struct Asked<'a> {
    bench: &'a Bench<HashIndex>,
    before: AtomicU64,
    behind: AtomicU64,
}

impl Resolver for Asked<'_> {
    fn prefetch(&self, _reference: Ref) {}
    fn key(&self, reference: Ref) -> &[u8] {
        self.bench.log.key(reference)
    }
    fn hash(&self, reference: Ref) -> u64 {
        self.bench.log.hash(reference)
    }
    fn doubts(&self) -> bool {
        true
    }
    fn is_sound(&self, reference: Ref) -> bool {
        let hash = self.bench.log.hash_of(self.bench.log.peek(reference));
        // SAFETY: the segment was read from the directory under the caller's pin.
        let is_frozen = unsafe { self.bench.index.segment(hash).pair(0) }.flags() & line::FROZEN != 0;
        if is_frozen { &self.behind } else { &self.before }.fetch_add(1, Ordering::Relaxed);
        true
    }
}

/// Regression: a split verified all entries of its segment, values included, while writers of the segment waited for
/// it.
#[test]
fn what_is_loaded_is_verified_before_its_segment_is_frozen() {
    const KEYS: u64 = 2000;
    let original = Bench::new(HashIndex::new());
    (0..KEYS).for_each(|i| _ = original.put(&i.to_be_bytes()));
    let index = table_of(&images_of(&original.index, 1).0, |_| true).unwrap();
    let bench = Bench { index, log: original.log };
    let asked = Asked { bench: &bench, before: AtomicU64::new(0), behind: AtomicU64::new(0) };
    let _pin = hither_sync::epoch::pin();
    for key in (KEYS..3 * KEYS).map(u64::to_be_bytes) {
        let new = bench.log.append(&key);
        assert_eq!(bench.index.install(bench.index.any_token(), bench.log.key_of(&key), Ref::NONE, new, &asked), Ok(()));
    }
    let [before, behind] = [asked.before, asked.behind].map(AtomicU64::into_inner);
    assert!(before >= KEYS && behind == 0, "{before} before, {behind} while writers wait");
    bench.check(3 * KEYS as usize);
}

/// Regression: unreadable entries of segments that were divided were counted once for each copy after a reload.
#[test]
fn copies_of_what_cannot_be_read_count_once() {
    const KEYS: u32 = 5000;
    let bench = Bench::new(HashIndex::new());
    let refs: Vec<_> = (0..400).map(|i: u32| bench.put(&i.to_le_bytes())).collect();
    let damaged = Damaged { log: &bench.log, damaged: &refs[..20], doubts: false };
    let pin = hither_sync::epoch::pin();
    for key in (400..KEYS).map(u32::to_le_bytes) {
        let new = bench.log.append(&key);
        assert_eq!(bench.index.install(bench.index.any_token(), bench.log.key_of(&key), Ref::NONE, new, &damaged), Ok(()));
    }
    drop(pin);
    let (images, copied) = images_of(&bench.index, 5000);
    assert!(bench.index.len() == KEYS as usize && copied > u64::from(KEYS), "there are {copied} references");
    let loaded = table_of(&images, |_| true).unwrap();
    assert_eq!(loaded.len(), KEYS as usize);
    let again = table_of(&images_of(&loaded, 1).0, |reference| reference != refs[0] && reference != refs[399]).unwrap();
    assert_eq!(again.len(), KEYS as usize - 2);
}
