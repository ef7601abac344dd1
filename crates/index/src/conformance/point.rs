//! Point operations of any [`Index`]: the properties that an engine may rely on.
//!
//! [`run_all`] runs every test; each is also a function of its own. Single-threaded tests follow the engine's protocol
//! through [`Bench`]: locate, append, install. The model test compares random histories with a `BTreeMap`. In the
//! concurrent tests each key has one writer at a time (which the engine's latch ensures), and readers know which writes
//! have been acknowledged.

use super::{FakeLog, Rng};
use crate::{Conflict, Index, Located, Ref, Resolver};
use hither_sync::epoch;
use std::collections::{BTreeMap, HashSet};

/// Runs all tests of this module on fresh indexes.
pub fn run_all<I: Index>(make: impl Fn() -> I) {
    run_sequential(&make);
    run_concurrent(&make, 30_000);
}

/// Runs the concurrent tests; `keys` scales them.
pub fn run_concurrent<I: Index>(make: &impl Fn() -> I, keys: usize) {
    present_keys_are_never_missed(make(), keys);
    updates_with_a_cleaner(make(), keys);
    deletes_during_growth(make(), keys);
}

/// Runs the single-threaded tests.
pub fn run_sequential<I: Index>(make: &impl Fn() -> I) {
    empty(make());
    insert_get_update_delete(make());
    key_sizes(make());
    zero_bytes_and_prefixes(make());
    conflicts(make());
    stale_tokens(make());
    candidates(make());
    get_many_equals_get(make());
    peeks_find_what_gets_find(make());
    references_are_known(make());
    visiting(make());
    reserve(make());
    slots_are_reused(make());
    growth(make(), 300_000);
    for mask in [0, 0xff, 0xff << 24, 0x1f << 7 | 1, 0x1ff00, u64::MAX << 60, 0xffff_ffff, u64::MAX << 32] {
        equal_hashes(make(), mask, 700);
    }
    for seed in 0..6 {
        model(make(), &FakeLog::new(seed), seed, 6_000);
        model(make(), &FakeLog::degenerate(seed, 0x7 << 61 | 0x7 << 24), seed, 3_000);
    }
}

/// An index, its log, and the engine's way of using them.
pub struct Bench<I> {
    /// The index under test.
    pub index: I,
    /// The log to which its references lead.
    pub log: FakeLog,
}

impl<I: Index> Bench<I> {
    /// The index over an empty log.
    pub fn new(index: I) -> Self {
        Bench { index, log: FakeLog::new(42) }
    }

    /// Looks `key` up, verified against the log.
    pub fn get(&self, key: &[u8]) -> Ref {
        let _pin = epoch::pin();
        let found = self.index.get(self.log.key_of(key), &self.log);
        assert!(found.is_none() || self.log.peek(found) == key, "{found:?} is not an entry of {key:x?}");
        found
    }

    /// The key's reference found by `locate`, resolved as a caller must.
    pub fn located(&self, key: &[u8]) -> (I::Token, Ref) {
        let _pin = epoch::pin();
        self.resolve(key, self.index.locate(self.log.key_of(key), &self.log))
    }

    fn resolve(&self, key: &[u8], located: Located<I::Token>) -> (I::Token, Ref) {
        let Located { token, candidate, verified } = located;
        assert!(verified || candidate.is_some(), "an absent candidate is always certain");
        let matches = candidate.is_some() && self.log.peek(candidate) == key;
        assert!(!verified || matches == candidate.is_some(), "a verified candidate must be the key's");
        (token, if matches { candidate } else { Ref::NONE })
    }

    /// Writes once as the engine does: as a batch or, half of the time, as a single write. `new` may be `NONE`. Returns
    /// the key's previous reference.
    pub fn write(&self, key: &[u8], new: Ref) -> Ref {
        let _pin = epoch::pin();
        if self.log.len().is_multiple_of(2) {
            return self.write_at_place(key, new);
        }
        let hashed = self.log.key_of(key);
        self.index.prefetch(hashed);
        let (token, old) = self.resolve(key, self.index.locate(hashed, &self.log));
        let done = self.index.install(token, hashed, old, new, &self.log);
        assert_eq!(done, Ok(()), "{key:x?}: {old:?} -> {new:?}");
        old
    }

    /// A single write: prepares, locks the place, installs.
    fn write_at_place(&self, key: &[u8], new: Ref) -> Ref {
        let hashed = self.log.key_of(key);
        let prepared = self.index.prepare_write(hashed, &self.log);
        let (located, locked) = self.index.lock_place(hashed, prepared, &self.log);
        let (token, old) = self.resolve(key, located);
        match (locked, old == new) {
            (true, true) => self.index.unlock_place(token),
            (true, false) => self.index.install_locked(token, hashed, old, new, &self.log),
            (false, _) => assert_eq!(self.index.install(token, hashed, old, new, &self.log), Ok(()), "{key:x?}: {old:?} -> {new:?}"),
        }
        old
    }

    /// Appends an entry for `key`, installs it and returns it.
    pub fn put(&self, key: &[u8]) -> Ref {
        let new = self.log.append(key);
        self.write(key, new);
        new
    }

    /// Installs with a token of the caller's choice.
    pub fn install(&self, token: I::Token, key: &[u8], old: Ref, new: Ref) -> Result<(), Conflict> {
        let _pin = epoch::pin();
        self.index.install(token, self.log.key_of(key), old, new, &self.log)
    }

    /// Checks every invariant, and that the index holds exactly `keys` keys.
    pub fn check(&self, keys: usize) {
        let _pin = epoch::pin();
        self.index.check(&self.log).expect("all invariants hold");
        assert_eq!(self.index.len(), keys);
        assert_eq!(self.index.is_empty(), keys == 0);
    }
}

/// An index without keys.
pub fn empty<I: Index>(index: I) {
    let bench = Bench::new(index);
    bench.check(0);
    assert_eq!(bench.get(b"a"), Ref::NONE);
    assert_eq!(bench.located(b"a").1, Ref::NONE);
    assert!(bench.index.memory_bytes() < 64 << 10, "an empty index costs {} B", bench.index.memory_bytes());
    let any = bench.index.any_token();
    assert_eq!(bench.install(any, b"a", Ref::NONE, Ref::NONE), Ok(()), "removing what is absent changes nothing");
    bench.check(0);
}

/// The life of a key.
pub fn insert_get_update_delete<I: Index>(index: I) {
    let bench = Bench::new(index);
    let first = bench.put(b"key");
    assert_eq!(bench.get(b"key"), first);
    let second = bench.put(b"key");
    assert_eq!((bench.get(b"key"), bench.index.len()), (second, 1));
    assert_eq!(bench.get(b"kez"), Ref::NONE);
    assert_eq!(bench.write(b"key", Ref::NONE), second);
    assert_eq!(bench.get(b"key"), Ref::NONE);
    bench.check(0);
    let third = bench.put(b"key");
    assert_eq!(bench.get(b"key"), third);
    bench.check(1);
}

/// Keys of 1 B to 64 KiB.
pub fn key_sizes<I: Index>(index: I) {
    let bench = Bench::new(index);
    let sizes = [1, 2, 7, 8, 9, 15, 16, 17, 255, 256, 4096, 65_535, 65_536];
    let keys: Vec<Vec<u8>> =
        sizes.iter().flat_map(|size| [vec![0u8; *size], vec![0xff; *size], (0..*size).map(|i| i as u8).collect()]).collect();
    let distinct: HashSet<_> = keys.iter().collect();
    for key in &keys {
        let reference = bench.put(key);
        assert_eq!(bench.get(key), reference);
    }
    bench.check(distinct.len());
    for key in &distinct {
        assert!(bench.write(key, Ref::NONE).is_some());
        assert_eq!(bench.get(key), Ref::NONE);
    }
    bench.check(0);
}

/// Keys that differ by zero bytes at the end, or are prefixes of each other: no key value is special.
pub fn zero_bytes_and_prefixes<I: Index>(index: I) {
    let bench = Bench::new(index);
    let mut keys: Vec<Vec<u8>> = (1..=40).map(|len| vec![0; len]).collect();
    keys.extend((1..=40).map(|len| vec![b'p'; len]));
    keys.extend((1..=16).map(|len| [vec![b'p'; len], vec![0; len]].concat()));
    keys.extend([u64::MAX.to_le_bytes().to_vec(), 1u64.to_le_bytes().to_vec(), 1u64.to_be_bytes().to_vec()]);
    let refs: Vec<Ref> = keys.iter().map(|key| bench.put(key)).collect();
    for (key, reference) in keys.iter().zip(&refs) {
        assert_eq!(bench.get(key), *reference);
    }
    bench.check(keys.len());
}

/// `install` compares with the old reference.
pub fn conflicts<I: Index>(index: I) {
    let bench = Bench::new(index);
    let [first, second, third] = [(); 3].map(|()| bench.log.append(b"key"));
    let any = bench.index.any_token();
    let conflict = |current| Err(Conflict { current });
    assert_eq!(bench.install(any, b"key", first, second), conflict(Ref::NONE), "nothing to update");
    assert_eq!(bench.install(any, b"key", first, Ref::NONE), conflict(Ref::NONE), "nothing to remove");
    assert_eq!(bench.install(any, b"key", Ref::NONE, first), Ok(()));
    for token in [any, bench.located(b"key").0] {
        assert_eq!(bench.install(token, b"key", Ref::NONE, second), conflict(first), "present already");
        assert_eq!(bench.install(token, b"key", second, third), conflict(first));
        assert_eq!(bench.install(token, b"key", second, Ref::NONE), conflict(first));
        assert_eq!(bench.install(token, b"key", Ref::NONE, Ref::NONE), conflict(first));
        assert_eq!(bench.get(b"key"), first);
    }
    assert_eq!(bench.install(any, b"key", first, second), Ok(()));
    bench.check(1);
}

/// Tokens made before the index changed lead to the right result: after a cleaner's move, a deletion, another key in
/// the slot, growth.
pub fn stale_tokens<I: Index>(index: I) {
    let bench = Bench::new(index);
    let (absent, _) = bench.located(b"key");
    let first = bench.put(b"key");
    let (token, old) = bench.located(b"key");
    assert_eq!(old, first);
    let moved = bench.log.append(b"key");
    assert_eq!(bench.install(bench.index.any_token(), b"key", first, moved), Ok(()));
    let fresh = bench.log.append(b"key");
    for stale in [absent, token] {
        assert_eq!(bench.install(stale, b"key", first, fresh), Err(Conflict { current: moved }));
        assert_eq!(bench.install(stale, b"key", Ref::NONE, fresh), Err(Conflict { current: moved }));
    }
    assert_eq!(bench.install(token, b"key", moved, fresh), Ok(()));
    assert_eq!(bench.install(absent, b"key", fresh, Ref::NONE), Ok(()));
    for i in 0..3000u32 {
        bench.put(&i.to_le_bytes());
    }
    for stale in [absent, token] {
        assert_eq!(bench.install(stale, b"key", fresh, first), Err(Conflict { current: Ref::NONE }));
        assert_eq!(bench.install(stale, b"key", Ref::NONE, fresh), Ok(()));
        assert_eq!(bench.install(stale, b"key", fresh, Ref::NONE), Ok(()));
    }
    // Every key's token from before the growth below still installs.
    let tokens: Vec<_> = (0..3000u32).map(|i| bench.located(&i.to_le_bytes())).collect();
    for i in 3000..12_000u32 {
        bench.put(&i.to_le_bytes());
    }
    for (i, (token, old)) in (0u32..).zip(tokens) {
        let new = bench.log.append(&i.to_le_bytes());
        assert_eq!(bench.install(token, &i.to_le_bytes(), old, new), Ok(()));
        assert_eq!(bench.get(&i.to_le_bytes()), new);
    }
    bench.check(12_000);
}

/// Candidates are verified, or the only possible ones.
pub fn candidates<I: Index>(index: I) {
    let bench = Bench::new(index);
    let refs: Vec<Ref> = (0..20_000u32).map(|i| bench.put(&i.to_le_bytes())).collect();
    for (i, reference) in (0u32..).zip(&refs) {
        assert_eq!(bench.located(&i.to_le_bytes()).1, *reference);
    }
    for i in 20_000..60_000u32 {
        assert_eq!(bench.located(&i.to_le_bytes()).1, Ref::NONE);
    }
    // A caller whose candidate turned out to be another key's inserts with the same token.
    for i in 20_000..30_000u32 {
        bench.put(&i.to_le_bytes());
    }
    bench.check(30_000);
}

/// `get_many` finds what `get` finds, in groups of any size.
pub fn get_many_equals_get<I: Index>(index: I) {
    let bench = Bench::new(index);
    for i in (0..20_000u32).step_by(2) {
        bench.put(&i.to_le_bytes());
    }
    let bytes: Vec<[u8; 4]> = (0..20_500u32).map(u32::to_le_bytes).collect();
    let keys: Vec<_> = bytes.iter().map(|bytes| bench.log.key_of(bytes)).collect();
    let _pin = epoch::pin();
    for size in [0, 1, 2, 15, 16, 17, 31, 32, 33, 100, keys.len()] {
        let keys = &keys[keys.len() - size..];
        let mut found = vec![Ref(77); size];
        bench.index.get_many(keys, &mut found, &bench.log);
        for (key, found) in keys.iter().zip(found) {
            assert_eq!(found, bench.index.get(*key, &bench.log));
        }
    }
    let uneven = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| bench.index.get_many(&keys, &mut [], &bench.log)));
    assert!(uneven.is_err(), "slices of different lengths are refused");
}

/// `peek` returns nothing, or the result of `get`; for most keys it returns that, if the index implements it.
pub fn peeks_find_what_gets_find<I: Index>(index: I) {
    let bench = Bench::new(index);
    // Two of three keys end in a zero byte, so that their slice equals that of their first seven bytes, padded.
    let key_of = |i: u64| ((i * i) << 9 | (i % 3) << 7).to_be_bytes();
    // Keys of other lengths that begin alike lie beside them.
    for i in 0..5_000 {
        bench.put(&key_of(i));
        if i % 9 == 0 {
            bench.put(&key_of(i)[..7]);
        }
        // Two such keys make a layer of a tree, beside which the eight bytes may be no key.
        if i % 9 <= 1 {
            bench.put(&[&key_of(i)[..], b"more"].concat());
            bench.put(&[&key_of(i)[..], b"less"].concat());
        }
    }
    for i in 0..5_000 {
        match i % 5 {
            0 => drop(bench.put(&key_of(i))),
            1 => drop(bench.write(&key_of(i), Ref::NONE)),
            _ => {}
        }
    }
    let (_pin, mut found) = (epoch::pin(), 0);
    for bytes in (0..6_000).map(key_of) {
        let look = |reference: Ref, word: u64| bench.log.is_entry_of(reference, &word.to_ne_bytes()).then_some(word);
        let (reference, seen) = bench.index.peek(u64::from_ne_bytes(bytes), (bench.log.hasher(), look));
        if reference.is_some() {
            assert_eq!((reference, seen), (bench.index.get(bench.log.key_of(&bytes), &bench.log), u64::from_ne_bytes(bytes)));
            found += 1;
        }
    }
    assert!((if I::PEEKS { 3_000..=4_000 } else { 0..=0 }).contains(&found), "{found} of 4,000 keys");
}

/// `name_many` knows the newest reference of each key, even in places where many keys have the same tag, and never
/// takes an older one for it.
pub fn references_are_known<I: Index>(index: I) {
    let bench = Bench::new(index);
    let bytes: Vec<[u8; 4]> = (0..20_000u32).map(u32::to_le_bytes).collect();
    let older: Vec<Ref> = bytes.iter().map(|bytes| bench.put(bytes)).collect();
    // Every third key is written again, and every fifth is removed.
    let newest: Vec<Ref> =
        bytes.iter().zip(&older).enumerate().map(|(i, (bytes, old))| if i % 3 == 0 { bench.put(bytes) } else { *old }).collect();
    for bytes in bytes.iter().step_by(5) {
        bench.write(bytes, Ref::NONE);
    }
    let keys: Vec<_> = bytes.iter().map(|bytes| bench.log.key_of(bytes)).collect();
    let _pin = epoch::pin();
    let mut names = vec![false; keys.len()];
    bench.index.name_many(&keys, &newest, &mut names, &bench.log);
    assert!(names.iter().enumerate().all(|(i, named)| *named == (i % 5 != 0)));
    bench.index.name_many(&keys, &older, &mut names, &bench.log);
    assert!(names.iter().enumerate().all(|(i, named)| *named == (i % 5 != 0 && i % 3 != 0)));
    let uneven = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| bench.index.name_many(&keys, &older, &mut [], &bench.log)));
    assert!(uneven.is_err(), "slices of different lengths are refused");
}

/// `for_each` meets every key once, and stops when `visit` returns false.
pub fn visiting<I: Index>(index: I) {
    let bench = Bench::new(index);
    let refs: HashSet<Ref> = (0..5_000u32).map(|i| bench.put(&i.to_le_bytes())).collect();
    let mut seen = HashSet::new();
    bench.index.for_each(&bench.log, &mut |reference| seen.insert(reference));
    assert_eq!(seen, refs);
    let mut count = 0;
    bench.index.for_each(&bench.log, &mut |_| {
        count += 1;
        count < 10
    });
    assert_eq!(count, 10);
}

/// Reserving has no visible effect, at any time.
pub fn reserve<I: Index>(index: I) {
    let bench = Bench::new(index);
    bench.index.reserve(20_000);
    bench.check(0);
    for i in 0..20_000u32 {
        bench.put(&i.to_le_bytes());
    }
    bench.index.reserve(10);
    bench.index.reserve(60_000);
    bench.check(20_000);
    for i in 0..20_000u32 {
        assert!(bench.get(&i.to_le_bytes()).is_some());
    }
}

/// Inserting and deleting for ever at a constant number of keys does not need ever more memory.
pub fn slots_are_reused<I: Index>(index: I) {
    let bench = Bench::new(index);
    let mut after_first = 0;
    for round in 0..12u32 {
        for i in 0..3_000u32 {
            bench.put(&(round * 3_000 + i).to_le_bytes());
            if round > 0 {
                assert!(bench.write(&((round - 1) * 3_000 + i).to_le_bytes(), Ref::NONE).is_some());
            }
        }
        // Pins of other tests keep what this one has retired.
        epoch::synchronize();
        epoch::collect();
        if round == 2 {
            after_first = bench.index.memory_bytes();
        }
    }
    bench.check(3_000);
    assert!(bench.index.memory_bytes() <= 2 * after_first, "{} B, {after_first} B after two rounds", bench.index.memory_bytes());
}

/// Growth to many keys, with checks on the way.
pub fn growth<I: Index>(index: I, keys: u64) {
    let bench = Bench::new(index);
    let mut next = 1;
    for i in 0..keys {
        bench.put(&i.to_le_bytes());
        if i + 1 == next {
            bench.check(next as usize);
            next *= 4;
        }
    }
    bench.check(keys as usize);
    for i in 0..keys {
        assert!(bench.get(&i.to_le_bytes()).is_some());
        assert!(bench.get(&(i + keys).to_le_bytes()).is_none());
    }
}

/// Hashes that differ only in the bits in `mask`: all equal, equal tags, equal directories … (CCEH: "65 inserts of one
/// hash crash it").
pub fn equal_hashes<I: Index>(index: I, mask: u64, keys: u32) {
    let bench = Bench { index, log: FakeLog::degenerate(7, mask) };
    let refs: Vec<Ref> = (0..keys).map(|i| bench.put(&i.to_le_bytes())).collect();
    bench.check(keys as usize);
    for (i, reference) in (0u32..).zip(&refs) {
        assert_eq!(bench.get(&i.to_le_bytes()), *reference);
    }
    assert!(bench.get(&keys.to_le_bytes()).is_none());
    let bytes: Vec<[u8; 4]> = (0..keys).map(u32::to_le_bytes).collect();
    let hashed: Vec<_> = bytes.iter().map(|bytes| bench.log.key_of(bytes)).collect();
    let mut found = vec![Ref::NONE; hashed.len()];
    {
        let _pin = epoch::pin();
        bench.index.get_many(&hashed, &mut found, &bench.log);
    }
    assert_eq!(found, refs);
    for i in (0..keys).step_by(2) {
        assert_eq!(bench.write(&i.to_le_bytes(), Ref::NONE), refs[i as usize]);
    }
    bench.check(keys as usize / 2);
    for i in 0..keys {
        assert_eq!(bench.get(&i.to_le_bytes()).is_some(), i % 2 == 1);
    }
    assert!(bench.index.memory_bytes() < 4 << 20, "equal hashes must not deepen the directory: {} B", bench.index.memory_bytes());
}

/// Random operations, compared with a map after each.
pub fn model<I: Index>(index: I, log: &FakeLog, seed: u64, operations: usize) {
    let mut rng = Rng::new(seed);
    let mut map: BTreeMap<Vec<u8>, Ref> = BTreeMap::new();
    // A token once seen for each key: it may be stale by any number of changes.
    let mut tokens = BTreeMap::new();
    for _ in 0..operations {
        let _pin = epoch::pin();
        let bytes = vec![rng.below(3) as u8; 1 + rng.below(600)];
        let key = log.key_of(&bytes);
        let current = map.get(&bytes).copied().unwrap_or(Ref::NONE);
        let token = match (rng.below(4), tokens.get(&bytes)) {
            (0, _) => index.any_token(),
            (1, Some(stale)) => *stale,
            _ => index.locate(key, log).token,
        };
        let new = if rng.below(3) == 0 { Ref::NONE } else { log.append(&bytes) };
        let old = if rng.below(8) == 0 { log.append(&bytes) } else { current };
        let done = index.install(token, key, old, new, log);
        if old == current {
            assert_eq!(done, Ok(()));
            if new.is_some() {
                map.insert(bytes.clone(), new)
            } else {
                map.remove(&bytes)
            };
        } else {
            assert_eq!(done, Err(Conflict { current }));
        }
        assert_eq!(index.get(key, log), map.get(&bytes).copied().unwrap_or(Ref::NONE));
        if rng.below(4) == 0 {
            tokens.insert(bytes.clone(), index.locate(key, log).token);
        }
    }
    index.check(log).expect("all invariants hold");
    assert_eq!(index.len(), map.len());
    let mut seen = BTreeMap::new();
    index.for_each(log, &mut |reference| seen.insert(log.key(reference).to_vec(), reference).is_none());
    assert_eq!(seen, map);
}

mod concurrent;

pub use concurrent::{deletes_during_growth, present_keys_are_never_missed, updates_with_a_cleaner};
