//! One thread: load orders, bulk load, draining, odd references, stale tokens and hints, memory under churn.

use super::super::Rng;
use super::keys::Shape;
use super::{World, delete, put};
use crate::{Conflict, Key, OrderedIndex, PieceSource, Ref, Resolver, SortedPiece, Start};
use hither_sync::epoch;

fn word(n: u64) -> Vec<u8> {
    n.to_be_bytes().to_vec()
}

/// Ascending, descending, from both ends, in clusters, and at random: all load orders end in the same set.
pub fn load_orders<I: OrderedIndex>(make: impl Fn() -> I) {
    let n = 5000u64;
    let orders: [Box<dyn Fn(u64) -> u64>; 5] = [
        Box::new(|i| i),
        Box::new(move |i| n - i),
        Box::new(move |i| if i % 2 == 0 { i } else { 2 * n - i }),
        // Twenty ascending runs in turn.
        Box::new(|i| (i % 20) << 32 | i),
        Box::new(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
    ];
    for order in orders {
        let mut world = World::new(make());
        for i in 0..n {
            world.put(&word(order(i)));
        }
        world.check_all();
        for i in (0..n).step_by(3) {
            world.delete(&word(order(i)));
        }
        world.check_all();
    }
}

/// A bulk-loaded index behaves like any other.
pub fn bulk_then_modify<I: OrderedIndex>(make: impl Fn() -> I) {
    for shape in Shape::ALL {
        let mut rng = Rng::new(shape as u64);
        let pool = shape.pool(&mut rng);
        let mut world = World::new(make());
        for key in &pool {
            let reference = world.log.append(key);
            world.model.insert(key.clone(), reference);
        }
        {
            let _pin = epoch::pin();
            world.index.bulk_load(&mut world.model.values().copied(), &world.log);
        }
        world.check_all();
        for _ in 0..shape.steps() {
            let mut key = pool[rng.below(pool.len())].clone();
            if rng.below(2) == 0 {
                super::keys::mutate(&mut key, &mut rng);
            }
            if !key.is_empty() && key.len() <= 65_536 {
                if rng.below(3) == 0 { world.delete(&key) } else { world.put(&key) }
            }
        }
        world.check_all();
    }
}

/// The keys copied out of an index, and loaded into another in pieces of any size, are the same set; the new index
/// behaves like any other.
pub fn copy_and_load<I: OrderedIndex>(make: impl Fn() -> I) {
    for (round, shape) in Shape::ALL.into_iter().enumerate() {
        let mut rng = Rng::new(77 + shape as u64);
        let mut world = World::new(make());
        shape.pool(&mut rng).iter().for_each(|key| world.put(key));
        let pieces = copy_all(&world, [1, 7, 56, 300, 5000][round % 5]);
        let copied = pieces.iter().map(SortedPiece::len).sum::<usize>();
        assert_eq!(copied, world.model.len(), "every key is copied once");
        world.index = make();
        {
            let _pin = epoch::pin();
            let mut rest = pieces.iter();
            world.index.load_pieces(&mut |piece: &mut SortedPiece| rest.next().map(|next| piece.clone_from(next)).is_some(), &world.log);
        }
        world.check_all();
        modify(&mut world, &shape.pool(&mut rng), shape.steps() / 2);
    }
    for (keys, runs) in [(0, 1), (0, 3), (1, 2), (55, 1), (56, 1), (57, 2), (3400, 3), (40_000, 2), (250_000, 4)] {
        load_word_runs(&make, keys, runs);
    }
}

/// Copies the whole index, in pieces of at most `limit` keys.
fn copy_all<I: OrderedIndex>(world: &World<I>, limit: usize) -> Vec<SortedPiece> {
    let mut pieces = Vec::new();
    let mut last: Option<Vec<u8>> = None;
    loop {
        let _pin = epoch::pin();
        let mut piece = SortedPiece::default();
        let start = last.as_deref().map_or(Start::Edge, Start::After);
        world.index.copy_sorted(start, limit, &mut piece, &world.log);
        for i in 0..piece.len() {
            let key = piece.key(i, &mut [0; 8]).to_vec();
            assert!(last.as_ref().is_none_or(|last| *last < key), "copied keys ascend");
            assert_eq!(world.model.get(&key), Some(&piece.refs()[i]));
            last = Some(key);
        }
        let ended = piece.len() < limit;
        pieces.push(piece);
        if ended {
            return pieces;
        }
    }
}

/// Loads `keys` keys of eight bytes in `runs` runs. The pieces differ in size, and some are empty.
fn load_word_runs<I: OrderedIndex>(make: impl Fn() -> I, keys: u64, runs: u64) {
    let mut world = World::new(make());
    let mut rng = Rng::new(keys);
    let mut pieces: Vec<Vec<SortedPiece>> = vec![Vec::new(); runs as usize];
    for i in 0..keys {
        let (key, run) = (word(i * 3 + 1), &mut pieces[(i * runs / keys.max(1)) as usize]);
        let reference = world.log.append(&key);
        if run.is_empty() || rng.below(700) == 0 {
            run.push(SortedPiece::default());
            run.push(SortedPiece::default());
        }
        run.last_mut().expect("just pushed").push(&key, reference);
        world.model.insert(key, reference);
    }
    let mut sources: Vec<_> = pieces
        .iter()
        .map(|run| {
            let mut rest = run.iter();
            move |piece: &mut SortedPiece| rest.next().map(|next| piece.clone_from(next)).is_some()
        })
        .collect();
    let mut sources: Vec<&mut dyn PieceSource> = sources.iter_mut().map(|source| source as &mut dyn PieceSource).collect();
    {
        let _pin = epoch::pin();
        world.index.load_words(&mut sources, &world.log);
    }
    world.check_all();
    let pool: Vec<_> = (0..keys.min(3000) + 10).map(|_| word(rng.word() % (keys * 3 + 5))).collect();
    modify(&mut world, &pool, 3000);
}

fn modify<I: OrderedIndex>(world: &mut World<I>, pool: &[Vec<u8>], steps: usize) {
    let mut rng = Rng::new(pool.len() as u64);
    for _ in 0..steps {
        let key = &pool[rng.below(pool.len())];
        if rng.below(2) == 0 { world.delete(key) } else { world.put(key) }
    }
    world.check_all();
}

/// Deletes everything in several orders, then fills again: no key is lost when leaves become empty.
pub fn drain_and_refill<I: OrderedIndex>(make: impl Fn() -> I) {
    let mut world = World::new(make());
    let mut rng = Rng::new(99);
    for round in 0..6 {
        for _ in 0..4000 {
            world.put(&word(rng.word() >> 20));
        }
        let mut keys: Vec<_> = world.model.keys().cloned().collect();
        match round % 3 {
            0 => keys.reverse(),
            1 => (1..keys.len()).for_each(|i| keys.swap(i, rng.below(i + 1))),
            _ => {}
        }
        let keep = [0, 3, 500][round % 3];
        for (i, key) in keys[keep..].iter().enumerate() {
            world.delete(key);
            if i % 500 == 0 {
                world.check_all();
                world.check_scan(Start::At(key), i % 1000 == 0, 20);
            }
        }
        world.check_all();
    }
}

/// References that use every bit: for an index, only zero has a meaning.
pub fn odd_references<I: OrderedIndex>(make: impl Fn() -> I) {
    struct Odd(Vec<(Ref, Vec<u8>)>);
    impl Resolver for Odd {
        fn prefetch(&self, _reference: Ref) {}
        fn key(&self, reference: Ref) -> &[u8] {
            &self.0.iter().find(|(r, _)| *r == reference).expect("a reference of the test").1
        }
        fn hash(&self, _reference: Ref) -> u64 {
            0
        }
    }
    let bits = [1, 2, 3, 1 << 63, u64::MAX, u64::MAX - 1, 1 << 47, 1 << 48, 10, 9 << 60];
    let keys =
        [&b"\0"[..], b"\0\0", b"\0\0\0\0\0\0\0\0", b"\0\0\0\0\0\0\0\0\0", b"a", b"aaaaaaaa", b"aaaaaaaaa", b"aaaaaaaab", b"b", b"\xff"];
    let log = Odd(bits.into_iter().map(Ref).zip(keys.map(<[u8]>::to_vec)).collect());
    let index = make();
    let _pin = epoch::pin();
    for (reference, key) in &log.0 {
        assert_eq!(index.install(index.any_token(), Key { bytes: key, hash: 0 }, Ref::NONE, *reference, &log), Ok(()));
    }
    index.check(&log).expect("the index's invariants hold");
    let mut out = Vec::new();
    index.scan(Start::Edge, false, 100, &mut out, &log);
    assert_eq!(out, bits.map(Ref));
    for (reference, key) in &log.0 {
        assert_eq!(index.get(Key { bytes: key, hash: 0 }, &log), *reference);
    }
}

/// Tokens of any age do no harm: a stale one costs only a search.
pub fn stale_tokens<I: OrderedIndex>(make: impl Fn() -> I) {
    let mut world = World::new(make());
    let mut rng = Rng::new(5);
    let keys: Vec<_> = (0..600).map(|_| word(rng.word())).chain((0..300).map(|i| format!("prefix-{i:09}").into_bytes())).collect();
    let mut tokens = Vec::new();
    for round in 0..12 {
        for key in &keys {
            let _pin = epoch::pin();
            tokens.push((key.clone(), world.index.locate(world.log.key_of(key), &world.log).token));
        }
        for (key, token) in &tokens {
            let old = world.model.get(key).copied().unwrap_or(Ref::NONE);
            let new = if rng.below(3) == 0 { Ref::NONE } else { world.log.append(key) };
            let hashed = world.log.key_of(key);
            let _pin = epoch::pin();
            let wrong = world.log.append(key);
            assert_eq!(world.index.install(*token, hashed, wrong, new, &world.log), Err(Conflict { current: old }));
            assert_eq!(world.index.install(*token, hashed, old, new, &world.log), Ok(()));
            if new.is_some() {
                world.model.insert(key.clone(), new)
            } else {
                world.model.remove(key)
            };
        }
        world.check_all();
        if round % 4 == 3 {
            // Tokens of four rounds, thousands of structure changes old.
            tokens.clear();
        }
    }
}

/// Hints find a slot that is there and never change another one, however old or wrong they are: stale after splits,
/// merges, removals and the end of layers, from another index of the same family, or random words.
pub fn hints<I: OrderedIndex>(make: impl Fn() -> I) {
    let mut world = World::new(make());
    let foreign = hints_of_another(make());
    let mut rng = Rng::new(6);
    let mut hints: Vec<(Vec<u8>, u64)> = Vec::new();
    let (mut found, mut replaced) = (0, 0);
    for round in 0..40_000usize {
        let key = if rng.below(4) == 0 { format!("shared/{:05}", rng.below(900)).into_bytes() } else { word(rng.below(3000) as u64) };
        if rng.below(5) < if round % 10_000 < 6000 { 1 } else { 4 } {
            world.delete(&key)
        } else {
            world.put(&key)
        }
        let _pin = epoch::pin();
        if let Some(hint) = world.index.hint(world.index.locate(world.log.key_of(&key), &world.log).token) {
            assert!(hint < 1 << 48, "a hint has 48 bits");
            hints.push((key.clone(), hint));
        }
        let (key, hint) = match rng.below(10) {
            0 => (key, rng.word() >> 16),
            // Small numbers lead to nodes that exist.
            1 => (key, rng.below(1 << 12) as u64 | (rng.below(1 << 16) as u64) << 32),
            2 if !foreign.is_empty() => (key, foreign[rng.below(foreign.len())]),
            _ if hints.is_empty() => (key, 0),
            _ => hints[rng.below(hints.len())].clone(),
        };
        world.index.prefetch_hint(hint);
        let (found_it, replaced_it) = follow(&mut world, &key, hint);
        found += usize::from(found_it);
        replaced += usize::from(replaced_it);
    }
    world.check_all();
    assert!(found > 1000 && replaced > 1000 || hints.is_empty(), "only {found} and {replaced} hints led anywhere");
}

/// Follows one hint for `key`, to look and to replace; returns whether each of the two led to the key.
fn follow<I: OrderedIndex>(world: &mut World<I>, key: &[u8], hint: u64) -> (bool, bool) {
    let hashed = world.log.key_of(key);
    let (wrong, new) = (world.log.append(key), world.log.append(key));
    assert_eq!(world.index.find_at_hint(hint, hashed, wrong), None, "a reference that the index does not hold");
    assert!(!world.index.update_at_hint(hint, hashed, wrong, new), "a reference that the index does not hold");
    let Some(old) = world.model.get(key).copied() else {
        assert_eq!(world.index.find_at_hint(hint, hashed, Ref::NONE), None, "nothing is nowhere");
        assert!(!world.index.update_at_hint(hint, hashed, Ref::NONE, new), "a hint inserts nothing");
        return (false, false);
    };
    assert!(!world.index.update_at_hint(hint, hashed, old, Ref::NONE), "a hint removes nothing");
    let hinted = world.index.find_at_hint(hint, hashed, old);
    if let Some(there) = hinted {
        let again = world.index.find_at_hint(there.hint, hashed, old);
        assert_eq!(again.map(|again| (again.hint, again.sibling)), Some((there.hint, false)), "a hint that is right stays so");
    }
    let replaced = world.index.update_at_hint(hint, hashed, old, new);
    assert_eq!(replaced, hinted.is_some(), "with no other writer both see the same");
    if replaced {
        assert_eq!(world.index.get(hashed, &world.log), new);
        world.model.insert(key.to_vec(), new);
    }
    (hinted.is_some(), replaced)
}

/// Hints that another index of the family returned for other keys.
fn hints_of_another<I: OrderedIndex>(index: I) -> Vec<u64> {
    let log = super::FakeLog::new(9);
    let mut rng = Rng::new(8);
    let mut hints = Vec::new();
    for _ in 0..20_000 {
        let key = word(rng.word());
        super::put(&index, &log, &key);
        let _pin = epoch::pin();
        hints.extend(index.hint(index.locate(log.key_of(&key), &log).token));
    }
    hints
}

/// Memory stays bounded while keys come and go: a moving window, and random keys of one size.
pub fn churn<I: OrderedIndex>(make: impl Fn() -> I) {
    let window = 4000u64;
    let log = super::FakeLog::new(1);
    type Maker = fn(u64) -> Vec<u8>;
    let makers: [Maker; 3] = [
        word,
        |i| word(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        // Every key has a sibling in a layer of its own.
        |i| format!("{:016x}/{}", (i / 2).wrapping_mul(0x9e37_79b9_7f4a_7c15), i).into_bytes(),
    ];
    for make_key in makers {
        let index = make();
        let mut bound = 0;
        for i in 0..window * 25 {
            put(&index, &log, &make_key(i));
            if i >= window {
                assert!(delete(&index, &log, &make_key(i - window)));
            }
            if i == window * 6 {
                bound = index.memory_bytes();
            }
            if i % 2048 == 0 {
                // Pins of other tests keep what this one has retired.
                epoch::synchronize();
            }
            if i % 256 == 0 {
                epoch::collect();
            }
        }
        let _pin = epoch::pin();
        index.check(&log).expect("the index's invariants hold");
        let spare = 6 << 20;
        assert!(index.memory_bytes() <= 2 * bound + spare, "{} bytes, and {bound} early on", index.memory_bytes());
    }
}

/// Two, then a hundred keys that share 65,000 bytes cost little.
pub fn deep_prefixes<I: OrderedIndex>(make: impl Fn() -> I) {
    let mut world = World::new(make());
    let before = world.index.memory_bytes();
    for i in 0..100usize {
        let mut key = vec![b'x'; 65_000 + i * 5];
        let end = key.len() - 1;
        key[end] = (i * 37) as u8;
        world.put(&key);
    }
    world.check_all();
    assert!(world.index.memory_bytes() < before + (1 << 20), "{} bytes", world.index.memory_bytes());
    let keys: Vec<_> = world.model.keys().cloned().collect();
    for key in &keys {
        world.check_scan(Start::At(key), false, 3);
        world.check_scan(Start::After(key), true, 3);
        world.check_scan(Start::After(&key[..key.len() - 1]), false, 2);
    }
    for key in keys.iter().step_by(2) {
        world.delete(key);
    }
    world.check_all();
}
