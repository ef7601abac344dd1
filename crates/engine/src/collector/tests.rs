use super::*;
use crate::keyspace::with_index;
use crate::{Kind, Options, Store};
use hither_index::{Index, Ref};
use hither_log::{TakeBack, Wait};
use hither_topology::Topology;
use std::sync::{Arc, Barrier};
use std::time::Duration;

pub(super) fn small_options() -> Options {
    Options {
        in_memory: true,
        capacity: 1 << 20,
        max_capacity: 1 << 20,
        segment_bytes: 16 << 10,
        shards: 1,
        topology: Some(Arc::new(Topology::single())),
        background: false,
        ..Options::default()
    }
}

pub(super) fn small() -> Store {
    Store::open(small_options()).unwrap()
}

/// A batch counts what it replaces as garbage before it is durable itself. A collector that passed over it must not free it before then.
#[test]
fn victims_are_freed_only_when_sections_under_way_have_ended() {
    let store = small();
    let keyspace = store.create_keyspace("keys", Kind::Hash).unwrap();
    for key in 0..4000u64 {
        store.write_wait(&keyspace, &(key % 1000).to_be_bytes(), Some(&[7; 48])).unwrap();
    }
    let core = &store.core;
    core.seal(TakeBack::All).unwrap();
    let wanted = Wanted { node: None, need: Need::Any, least: 0.1, first: false, turn: Turn::Pass(None) };
    let mut passes = core.begin_passes(&wanted, Growth::None).unwrap();
    assert!(passes.len() == 1 && core.run_pass(&passes[0], Growth::None, None).unwrap());
    let (begun, ended) = (Barrier::new(2), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _section = epoch::pin_writer();
            begun.wait();
            std::thread::sleep(Duration::from_millis(50));
            ended.store(true, Ordering::SeqCst);
        });
        begun.wait();
        assert_eq!(core.free_victims(std::mem::take(&mut passes)).unwrap(), 1);
        assert!(ended.load(Ordering::SeqCst), "a section is under way still");
    });
}

/// The rest of a collector's chunk, left when another took the next, may fit no entry. It must not keep its segment from being sealed.
#[test]
fn a_rest_that_nothing_fits_into_is_given_back() {
    let store = small();
    let keyspace = store.create_keyspace("keys", Kind::Hash).unwrap();
    store.write_wait(&keyspace, b"short", Some(&[1; 700])).unwrap();
    store.write_wait(&keyspace, b"long", Some(&[2; 3000])).unwrap();
    let log = &store.core.log;
    let mut entries = Vec::new();
    log.visit_all(|reference, version, keyspace, entry| entries.push((reference, version, keyspace, *entry)));
    entries.sort_by_key(|(.., entry)| entry.size);
    let [short, long] = &entries[..] else { panic!("two entries") };
    let copy = |relocator: &mut hither_log::Relocator<'_>,
                (reference, version, keyspace, entry): &(u64, u64, u32, hither_log::EntryView<'_>)| {
        relocator.append(*reference, entry, *version, *keyspace, false).unwrap()
    };
    let (mut one, mut other) = (log.relocator(0), log.relocator(0));
    let first = copy(&mut one, short);
    copy(&mut other, short);
    // A chunk is half a segment.
    let more = (8 << 10) / short.3.size - 1;
    let last = (0..more).map(|_| copy(&mut one, short)).last().unwrap();
    assert_eq!(log.segment_of(first), log.segment_of(last));
    drop(one);
    drop(other);
    let mut next = log.relocator(0);
    let beyond = (0..6).map(|_| copy(&mut next, long)).last().unwrap();
    assert_ne!(log.segment_of(first), log.segment_of(beyond));
    drop(next);
    store.core.seal(TakeBack::All).unwrap();
    let sealed = log.candidates(Tombstones::Swept, |_| true);
    assert!(sealed.iter().any(|candidate| (candidate.node, candidate.index) == log.segment_of(first)), "{sealed:?}");
}

/// Regression: for half a millisecond after the writers' counts were folded, new garbage was not seen, and a full store refused to write.
#[test]
fn what_became_garbage_just_now_is_seen() {
    let store = small();
    let keyspace = store.create_keyspace("keys", Kind::Hash).unwrap();
    // One entry to a segment.
    for key in 0..8u64 {
        store.write_wait(&keyspace, &key.to_be_bytes(), Some(&[1; 12 << 10])).unwrap();
    }
    store.core.seal(TakeBack::All).unwrap();
    let wholly_dead = || store.core.log.candidates(Tombstones::Swept, |candidate| candidate.live == 0).len();
    for key in 0..7u64 {
        assert_eq!(wholly_dead(), key as usize);
        store.write_wait(&keyspace, &key.to_be_bytes(), Some(b"short")).unwrap();
    }
}

/// A store that holds only tombstones has room again once they are swept. A write that finds another thread sweeping waits for that.
#[test]
fn a_write_without_space_waits_for_a_sweep_under_way() {
    let store = small();
    let keyspace = store.create_keyspace("keys", Kind::Hash).unwrap();
    let collections = &store.core.collections;
    let sweeping = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _at_it = collections.sweeping.lock();
            sweeping.wait();
            while collections.stalls.load(Ordering::Relaxed) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            // Long enough that writes fail or wait.
            std::thread::sleep(Duration::from_millis(100));
        });
        sweeping.wait();
        for key in 0..40_000u64 {
            store.write_wait(&keyspace, &key.to_be_bytes(), Some(b"")).unwrap_or_else(|error| panic!("key {key}: {error}"));
            store.write_wait(&keyspace, &key.to_be_bytes(), None).unwrap();
        }
    });
    assert!(collections.sweeps.load(Ordering::Relaxed) > 0 && store.check().unwrap().is_sound());
}

/// Collects in a store with entries of a hash and of an ordered keyspace side by side, with values of this length; after `others` other
/// copies there is no space left. Checks that every key is there, and returns how many of those copies there were.
fn collect_without_space(length: usize, others: usize) -> usize {
    let store = small();
    let keyspaces = [("hash", Kind::Hash), ("ordered", Kind::Ordered)].map(|(name, kind)| store.create_keyspace(name, kind).unwrap());
    let put = |key: u64| {
        for keyspace in &keyspaces {
            store.write_wait(keyspace, &key.to_be_bytes(), Some(&[key as u8; 48][..length])).unwrap();
        }
    };
    (0..2000).for_each(put);
    (0..2000).filter(|key| key % 3 == 0).for_each(put);
    let (core, log) = (&store.core, &store.core.log);
    core.seal(TakeBack::All).unwrap();
    let wanted = Wanted { node: None, need: Need::Any, least: 0.1, first: false, turn: Turn::Pass(None) };
    let passes = core.begin_passes(&wanted, Growth::ByKeyspaceOrVersion).unwrap();
    let pass = &passes[0];
    let mut some = None;
    log.visit_segment(pass.node(), pass.segment(), |reference, version, keyspace, entry| {
        some = Some((reference, version, keyspace, *entry))
    });
    let (reference, version, keyspace, entry) = some.unwrap();
    let mut relocator = log.relocator(0);
    let copy = || relocator.append(reference, &entry, version, keyspace, true).ok();
    let copies: Vec<u64> = std::iter::from_fn(copy).take(others).collect();
    copies.iter().for_each(|&copy| log.count_dead(copy, log.size_of(copy), false));
    relocator.persist();
    drop(relocator);
    let outcome = core.collector.empty(core, pass, &mut Emptied::default());
    assert!(outcome.unwrap_err().kind().is_lack_of_space());
    drop(passes);
    for key in 0..2000u64 {
        for keyspace in &keyspaces {
            let found = store.get_with(keyspace, &key.to_be_bytes(), <[u8]>::to_vec).unwrap();
            assert_eq!(found.as_deref(), Some(&[key as u8; 48][..length]), "{} key {key} after {others} copies", keyspace.0.info.name);
        }
    }
    let report = store.check().unwrap();
    assert!(report.is_sound(), "{report:?}");
    copies.len()
}

/// Where space ends, no entry without a copy is replaced. (A batch copies entries of hash keyspaces first, and pairs while it is gathered.)
#[test]
fn where_space_ends_nothing_is_replaced() {
    for length in [8, 48] {
        let most = collect_without_space(length, usize::MAX);
        (1..60).step_by(7).for_each(|room| assert_eq!(collect_without_space(length, most - room), most - room));
    }
}

/// Regression: an entry that was gathered before a snapshot was taken, and overwritten before its batch ran, was not moved for the
/// snapshot. (Apart from tombstones, only hash keyspaces go the short way. For pairs, which go a shorter one: `pair_tests`.)
#[test]
fn a_snapshot_taken_while_a_batch_is_gathered_keeps_what_it_shows() {
    const KEYS: u64 = 2000;
    for length in [1, 48] {
        let store = small();
        let keyspace = store.create_keyspace("keys", Kind::Hash).unwrap();
        let put = |key: u64, value: u8| {
            store.write_wait(&keyspace, &key.to_be_bytes(), Some(&vec![value; length])).unwrap();
        };
        (0..KEYS).for_each(|key| put(key, 1));
        (0..KEYS).step_by(5).for_each(|key| put(key, 2));
        let (core, log) = (&store.core, &store.core.log);
        core.seal(TakeBack::All).unwrap();
        let wanted = Wanted { node: None, need: Need::Any, least: 0.1, first: false, turn: Turn::Pass(None) };
        let passes = core.begin_passes(&wanted, Growth::None).unwrap();
        let keyspaces = core.keyspaces_by_id();
        let mut batch = batched::Batch::new(core, &passes[0], None);
        log.visit_segment(passes[0].node(), passes[0].segment(), |reference, version, id, entry| {
            batch.add(Ref(reference), version, entry, &keyspaces[&id]);
        });
        let snapshot = store.snapshot();
        (0..KEYS).for_each(|key| put(key, 3));
        let mut emptied = Emptied::default();
        batch.run(&mut emptied).unwrap();
        drop(batch);
        core.free_victims(passes).unwrap();
        core.reuse_freed(Wait::Yes).unwrap();
        (0..KEYS).for_each(|key| put(key, 4));
        for key in 0..KEYS {
            let shown = snapshot.get_with(&keyspace, &key.to_be_bytes(), <[u8]>::to_vec).unwrap();
            assert_eq!(shown, Some(vec![if key % 5 == 0 { 2 } else { 1 }; length]), "key {key}");
        }
        assert!(emptied.moved == 0 && emptied.for_snapshots > 50, "{emptied:?}");
        drop(snapshot);
        let report = store.check().unwrap();
        assert!(report.is_sound(), "{report:?}");
    }
}

/// What a crash leaves of a store on files.
fn crash(dir: &std::path::Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(dir).unwrap().map(Result::unwrap).filter(|file| file.path().is_file()) {
        std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    copy
}

/// Regression: a later opening forgot which segments a crash had torn. Once a pass of the chain collector had begun over such a segment,
/// its descriptor said that it was whole, and the store refused to open after the next crash.
#[test]
fn a_segment_that_a_crash_has_torn_stays_so_through_a_pass_cut_short() {
    const KEYS: u64 = 100;
    let open = |dir: &std::path::Path| {
        let options = Options { in_memory: false, paths: vec![(None, dir.to_owned())], ..small_options() };
        let options = Options { collector: CollectorKind::Chain, checkpoints: crate::CheckpointMode::Off, ..options };
        let store = Store::open(options).unwrap();
        let keyspace = store.open_keyspace("keys").unwrap_or_else(|| store.create_keyspace("keys", Kind::Hash).unwrap());
        (store, keyspace)
    };
    let dir = tempfile::tempdir().unwrap();
    let (store, keyspace) = open(dir.path());
    let put = |store: &Store, keyspace: &crate::KeyspaceHandle, key: u64, value: u64| {
        store.write_wait(keyspace, &key.to_be_bytes(), Some(&value.to_le_bytes())).unwrap();
    };
    (0..KEYS).for_each(|key| put(&store, &keyspace, key, key));
    // Behind the last entry lies something that never became one.
    let log = &store.core.log;
    let mut torn = (0, 0);
    log.visit_all(|reference, _, _, entry| torn = torn.max((hither_log::address::unpack(reference).offset + entry.size, reference)));
    log.pool(0).store_u64(torn.0, u64::MAX / 3);
    let segment = log.segment_of(torn.1);
    let second = crash(dir.path());
    let (store, keyspace) = open(second.path());
    // The torn segment is filled further, and sealed.
    (0..20 * KEYS).for_each(|key| put(&store, &keyspace, key, key));
    store.core.seal(TakeBack::All).unwrap();
    let third = crash(second.path());
    let (store, _) = open(third.path());
    let candidates = store.core.log.candidates(Tombstones::Buried, |_| true);
    let candidate = candidates.iter().find(|candidate| (candidate.node, candidate.index) == segment).unwrap();
    let pass = store.core.log.begin_pass(candidate, Tombstones::Buried).unwrap().unwrap();
    let fourth = crash(third.path());
    drop(pass);
    let (store, keyspace) = open(fourth.path());
    for key in 0..KEYS {
        assert_eq!(store.get_with(&keyspace, &key.to_be_bytes(), <[u8]>::to_vec).unwrap().unwrap(), key.to_le_bytes(), "{key}");
    }
    assert!(store.check().unwrap().is_sound());
}

/// Regression: a tombstone with a key longer than a segment lies in a run and fits no segment of moved entries. If a checkpoint begins just
/// after its run was chosen as a victim, it has to stay. The collector then opened segment after segment for it, until none was free.
#[test]
fn a_tombstone_longer_than_a_segment_that_must_stay_after_all_takes_no_space() {
    let store = small();
    let keyspace = store.create_keyspace("keys", Kind::Hash).unwrap();
    let long = [7; 20 << 10];
    store.write_wait(&keyspace, &long, Some(b"value")).unwrap();
    store.write_wait(&keyspace, &long, None).unwrap();
    let core = &store.core;
    core.seal(TakeBack::All).unwrap();
    core.sweep_all().unwrap();
    let wanted = Wanted { node: None, need: Need::Any, least: 0.1, first: false, turn: Turn::Round };
    let passes = core.begin_passes(&wanted, Growth::None).unwrap();
    let holds_tombstone: Vec<_> = passes.iter().filter(|pass| pass.has_tombstones()).collect();
    assert_eq!(holds_tombstone.len(), 1, "the tombstone's run is a victim");
    // A checkpoint begins.
    core.log.keep_tombstones_after(0);
    let free = core.log.room_to_move(0);
    let outcome = core.run_pass(holds_tombstone[0], Growth::None, None);
    assert!(outcome.as_ref().is_err_and(|error| error.kind().is_lack_of_space()), "it is not freed: {outcome:?}");
    assert_eq!(core.log.room_to_move(0), free, "nothing was opened for it");
    drop(passes);
    core.log.keep_tombstones_after(u64::MAX);
    store.reclaim().unwrap();
    assert!(core.log.room_to_move(0).fresh > free.fresh && keyspace.is_empty() && store.check().unwrap().is_sound());
}

/// Regression: a pass that ended without freeing its victim counted as ended before the victim was back among the full segments. A
/// checkpoint begun just then did not cover it. If it held moved entries, a crash would have brought back those that a covered tombstone
/// deleted.
#[test]
fn a_victim_is_back_before_its_pass_counts_as_ended() {
    let store = small();
    let keyspace = store.create_keyspace("keys", Kind::Hash).unwrap();
    for key in 0..2000u64 {
        store.write_wait(&keyspace, &(key % 500).to_be_bytes(), Some(&[7; 48])).unwrap();
    }
    let (core, log) = (&store.core, &store.core.log);
    core.seal(TakeBack::All).unwrap();
    let victim = log.candidates(Tombstones::Swept, |_| true)[0];
    let (begins, ended) = (Mutex::new(()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..50_000 {
                let pass = {
                    let _one_begins = begins.lock();
                    log.begin_pass(&victim, Tombstones::Swept).unwrap()
                };
                drop(pass);
            }
            ended.store(true, Ordering::Relaxed);
        });
        while !ended.load(Ordering::Relaxed) {
            let _none_begins = begins.lock();
            while log.passes_in_progress(None) > 0 {
                std::thread::yield_now();
            }
            assert!(log.begin_pass(&victim, Tombstones::Swept).unwrap().is_some(), "the victim is not among the full segments");
        }
    });
}

/// Wants every victim that there is.
const EVERY_VICTIM: Wanted = Wanted { node: None, need: Need::Any, least: 0.0, first: false, turn: Turn::Round };

/// Runs a pass; returns how much room its copies took.
fn run_measured(core: &Core, pass: &Pass<'_>, growth: Growth) -> u64 {
    let before = core.log.room_to_move(0);
    assert!(core.run_pass(pass, growth, None).unwrap());
    let after = core.log.room_to_move(0);
    before.fresh + before.rest - after.fresh - after.rest
}

/// Regression: a pass got room for just the bytes that it moves; a copy of an old pair is half as long again if a snapshot is as old.
#[test]
fn a_pass_is_given_room_for_the_versions_of_old_entries() {
    for keyspaces in 1..=2 {
        let store = small();
        let all: Vec<_> = (0..keyspaces).map(|number| store.create_keyspace(&number.to_string(), Kind::Hash).unwrap()).collect();
        let core = &store.core;
        let fill = |keyspace, keys| {
            for key in 0..keys {
                store.write_wait(keyspace, &u64::to_be_bytes(key), Some(b"a value!")).unwrap();
            }
            core.log.close_open(Tombstones::Swept, |_| false);
            core.seal(TakeBack::All).unwrap();
        };
        fill(&all[keyspaces - 1], 400);
        fill(&all[0], 400);
        let _old = store.snapshot();
        core.log.clock.raise(1 << 33);
        // Some garbage in each; what is moved of the second keyspace goes to a segment of the first.
        all.iter().for_each(|keyspace| fill(keyspace, 100));
        let mut most = 0;
        let growth = core.growth_of_copies();
        for pass in core.begin_passes(&EVERY_VICTIM, growth).unwrap() {
            let permitted = growth.most_of(pass.bytes_to_move());
            let taken = run_measured(core, &pass, growth);
            // Each of two chunks is filled up to the end of a line.
            assert!(taken < permitted + 128, "{keyspaces} keyspaces: {taken} bytes of {permitted}");
            most = taken.max(most);
        }
        assert!(most > 300 * 48, "{most} bytes, of 300 old pairs at least");
    }
}

/// Regression: a copy made more than 2^32 writes after its source took 16 bytes more from then on, because its version lay below the base
/// of its new segment. A store that was full of pairs of eight bytes, and overwritten slowly, had no room for them any more.
#[test]
fn copies_of_old_pairs_are_no_longer() {
    for collector in [CollectorKind::Batched, CollectorKind::Chain] {
        let store = Store::open(Options { collector, ..small_options() }).unwrap();
        let keyspace = store.create_keyspace("keys", Kind::Hash).unwrap();
        let put_all = |keys: std::ops::Range<u64>| {
            keys.for_each(|key| _ = store.write_wait(&keyspace, &key.to_be_bytes(), Some(b"a value!")).unwrap());
        };
        let core = &store.core;
        put_all(0..400);
        for round in 0..3 {
            core.log.close_open(Tombstones::Swept, |_| false);
            core.seal(TakeBack::All).unwrap();
            store.skip_versions(1 << 33);
            // Some garbage in each segment.
            put_all(100 * round..100 * round + 40);
            let growth = core.growth_of_copies();
            assert_eq!(growth, Growth::None, "round {round}");
            let (mut passes, mut moved) = (Vec::new(), 0);
            for pass in core.begin_passes(&EVERY_VICTIM, growth).unwrap() {
                let live = pass.bytes_to_move();
                let taken = run_measured(core, &pass, growth);
                assert!(taken < live + 128, "round {round}: {taken} bytes for {live}");
                moved += live;
                passes.push(pass);
            }
            assert!(moved > 0, "round {round}");
            core.free_victims(passes).unwrap();
            core.reuse_freed(Wait::Yes).unwrap();
        }
        let report = store.check().unwrap();
        assert!(report.is_sound() && keyspace.len() == 400, "{report:?}");
    }
}

/// Tombstones keep their versions, and have room for them: a raised one could pass what only a failed batch deletes (`RaisedTombstone`).
#[test]
fn copies_of_old_tombstones_keep_their_versions() {
    let store = small();
    let keyspace = store.create_keyspace("keys", Kind::Hash).unwrap();
    let core = &store.core;
    for key in 0..600u64 {
        store.write_wait(&keyspace, &(key % 300).to_be_bytes(), (key < 300).then_some(b"a value!".as_slice())).unwrap();
    }
    core.log.close_open(Tombstones::Swept, |_| false);
    core.seal(TakeBack::All).unwrap();
    let versions = || {
        let mut versions = Vec::new();
        core.log.visit_all(|_, version, _, entry| {
            versions.extend((entry.op() == hither_log::Op::Delete && !entry.is_dead()).then_some(version))
        });
        versions.sort_unstable();
        versions.dedup();
        versions
    };
    let before = versions();
    store.skip_versions(1 << 33);
    let growth = core.growth_of_copies();
    let passes = core.begin_passes(&EVERY_VICTIM, growth).unwrap();
    for pass in &passes {
        let permitted = growth.most_of(pass.bytes_to_move());
        let taken = run_measured(core, pass, growth);
        assert!(taken < permitted + 128, "{taken} bytes of {permitted}");
    }
    core.free_victims(passes).unwrap();
    assert_eq!((before.len(), versions()), (300, before));
    assert!(store.stats().collections.moved_tombstones > 0, "{:?}", store.stats().collections);
}

/// Regression: after a scan, tombstones that had lost to newer entries counted as garbage, but a pass still copied them, beyond its room.
#[test]
fn tombstones_that_have_lost_are_garbage_after_a_scan() {
    let dir = tempfile::tempdir().unwrap();
    let open = |dir: &std::path::Path| {
        let options = Options { in_memory: false, paths: vec![(None, dir.to_owned())], ..small_options() };
        Store::open(Options { checkpoints: crate::CheckpointMode::Off, durability: crate::Durability::Process, ..options }).unwrap()
    };
    let store = open(dir.path());
    let keyspace = store.create_keyspace("keys", Kind::Hash).unwrap();
    for round in 0..3u64 {
        for step in 0..1_200 {
            let (key, lives) = (step % 300, step % 40 == 39);
            let key = if lives { 10_000 + 2_000 * round + step } else { key };
            let value = (lives || step / 300 % 2 == 0).then_some(b"a value!".as_slice());
            store.write_wait(&keyspace, &key.to_be_bytes(), value).unwrap();
        }
    }
    let copy = crash(dir.path());
    drop((keyspace, store));
    let store = open(copy.path());
    assert_eq!(store.recovery().source, crate::RestartSource::Scan);
    let core = &store.core;
    core.log.close_open(Tombstones::Swept, |_| false);
    core.seal(TakeBack::All).unwrap();
    let growth = core.growth_of_copies();
    let passes = core.begin_passes(&EVERY_VICTIM, growth).unwrap();
    assert!(!passes.is_empty());
    for pass in &passes {
        let permitted = growth.most_of(pass.bytes_to_move());
        let taken = run_measured(core, pass, growth);
        assert!(taken < permitted + 128, "{taken} bytes of {permitted}");
    }
    core.free_victims(passes).unwrap();
    let moved = store.stats().collections.moved_tombstones;
    assert!((1..=300).contains(&moved), "{moved} tombstones of 300 keys");
    assert!(store.check().unwrap().is_sound());
}

/// Regression: a batched pass was cut short and its copy was moved on, so an entry and a copy of it lay side by side without a link. The
/// chain collector's first sweep passed over both because their versions are equal, and the one not current came back after a delete.
#[test]
fn what_passes_cut_short_left_twice_does_not_come_back() {
    const KEY: [u8; 8] = *b"a victim";
    let dir = tempfile::tempdir().unwrap();
    let open = |collector| {
        let options = Options { in_memory: false, paths: vec![(None, dir.path().to_owned())], collector, ..small_options() };
        let options = Options { checkpoints: crate::CheckpointMode::Off, durability: crate::Durability::Process, ..options };
        let store = Store::open(options).unwrap();
        let keyspace = store.open_keyspace("keys").unwrap_or_else(|| store.create_keyspace("keys", Kind::Hash).unwrap());
        (store, keyspace)
    };
    let put = |store: &Store, keyspace: &crate::KeyspaceHandle, key: &[u8]| store.write_wait(keyspace, key, Some(&[1; 48])).unwrap();
    let (store, keyspace) = open(CollectorKind::Batched);
    put(&store, &keyspace, &KEY);
    (0..100u64).for_each(|key| _ = put(&store, &keyspace, &key.to_be_bytes()));
    let core = &store.core;
    let current = || {
        let _pin = epoch::pin();
        with_index!(keyspace.0, index => index.get(core.hasher.key(&KEY), &core.resolver()))
    };
    let first = current();
    {
        let pass = begin(core, first);
        let (mut batch, entry) = (batched::Batch::new(core, &pass, None), core.log.entry(first.0));
        batch.add(first, core.log.version_of(first.0, &entry), &entry, &keyspace.0);
        batch.run(&mut Emptied::default()).unwrap();
    }
    let second = current();
    let pass = begin(core, second);
    assert!(second != first && core.run_pass(&pass, Growth::None, None).unwrap());
    assert_eq!(core.free_victims(vec![pass]).unwrap() + core.reuse_freed(Wait::Yes).unwrap(), 2);
    assert!(![first, second].contains(&current()));
    drop((store, keyspace));

    let (store, keyspace) = open(CollectorKind::Chain);
    let core = &store.core;
    core.collector.prepare(core).unwrap();
    let report = store.check().unwrap();
    assert!(report.is_sound(), "{report:?}");
    store.write_wait(&keyspace, &KEY, None).unwrap();
    let mut tombstone = Ref::NONE;
    core.log.visit_all(|reference, _, _, entry| {
        if entry.op() == hither_log::Op::Delete {
            tombstone = Ref(reference);
        }
    });
    let pass = begin(core, tombstone);
    assert!(core.run_pass(&pass, Growth::None, None).unwrap());
    assert_eq!(core.free_victims(vec![pass]).unwrap(), 1);
    drop((store, keyspace));
    let (store, keyspace) = open(CollectorKind::Chain);
    assert_eq!(store.get_with(&keyspace, &KEY, <[u8]>::len).unwrap(), None, "it was deleted");
}

/// Begins a pass over the segment of an entry; closes the segment for that.
pub(super) fn begin(core: &Core, reference: Ref) -> Pass<'_> {
    let tombstones = core.collector.tombstones();
    core.log.close_open(tombstones, |_| true);
    core.seal(TakeBack::All).unwrap();
    core.log.settle(&core.make_durable()).unwrap();
    let candidates = core.log.candidates(tombstones, |_| true);
    let candidate = candidates.iter().find(|candidate| (candidate.node, candidate.index) == core.log.segment_of(reference.0)).unwrap();
    core.log.begin_pass(candidate, tombstones).unwrap().unwrap()
}
