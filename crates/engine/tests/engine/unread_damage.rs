//! Damage in what a clean restart does not read. Whoever asks for it gets an error that names the place, whatever the
//! operation; nobody gets wrong data, nobody panics, and everything else stays usable. (A learned index takes keys that
//! are no words from the log when it is loaded, so there the store is refused at once.)

use crate::common::{self, DESCRIPTOR, TABLE};
use hither_engine::{
    Batch, CheckpointMode, CollectorKind, Condition, Direction, Durability, ErrorKind, KeyspaceHandle, Kind, MediumChoice, Options,
    OrderedKind, RestartSource, Result, ScanRange, Store, WriteOptions,
};
use std::ops::{Bound, ControlFlow};
use std::path::Path;

const KEYS: u64 = 300;
const VICTIM: u64 = 123;

/// Which bytes of the victim are damaged.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Damage {
    /// Header and key are zeros, as after a lost block.
    Zeros,
    /// Header and key are ones: lengths beyond everything.
    Ones,
    KeyBit,
    ValueBit,
}

const ALL: [Damage; 4] = [Damage::Zeros, Damage::Ones, Damage::KeyBit, Damage::ValueBit];

/// Forms of keys: those that an index holds whole, and those of which it reads the rest from the log.
fn key_of(number: u64, long: bool) -> Vec<u8> {
    if long {
        format!("a long beginning that all keys share {number:016}").into_bytes()
    } else {
        (number << 8 | 0x5a).to_be_bytes().to_vec()
    }
}

fn value_of(number: u64) -> Vec<u8> {
    format!("the value of key {number:016} and no other").into_bytes()
}

fn options(dir: &Path, ordered_index: OrderedKind) -> Options {
    Options { paths: vec![(None, dir.to_owned())], ordered_index, ..common::small() }
}

/// A store that was closed in order, and then damaged.
fn damaged(dir: &Path, kind: Kind, ordered: OrderedKind, long: bool, damage: Damage) -> Result<(Store, KeyspaceHandle)> {
    let store = Store::open(options(dir, ordered)).unwrap();
    let keyspace = store.create_keyspace("k", kind).unwrap();
    for number in 0..KEYS {
        store.write_wait(&keyspace, &key_of(number, long), Some(&value_of(number))).unwrap();
    }
    drop((store, keyspace));
    let path = dir.join("node0.hither");
    let mut bytes = std::fs::read(&path).unwrap();
    let value = value_of(VICTIM);
    let at = bytes.windows(value.len()).position(|window| window == value).unwrap();
    let key = at - key_of(VICTIM, long).len().next_multiple_of(8);
    match damage {
        Damage::Zeros => bytes[key - 16..at].fill(0),
        Damage::Ones => bytes[key - 16..at].fill(0xff),
        Damage::KeyBit => {
            let found = bytes[..at].windows(8).rposition(|window| window == &key_of(VICTIM, long)[..8]).unwrap();
            bytes[found + 3] ^= 4;
        }
        Damage::ValueBit => bytes[at + 20] ^= 1,
    }
    std::fs::write(&path, bytes).unwrap();
    let store = Store::open(options(dir, ordered))?;
    assert_eq!(store.recovery().source, RestartSource::Clean, "nothing was read");
    let keyspace = store.open_keyspace("k").unwrap();
    Ok((store, keyspace))
}

fn each(mut f: impl FnMut(&Store, &KeyspaceHandle, bool, &str)) {
    for (kind, ordered) in [(Kind::Hash, OrderedKind::BTree), (Kind::Ordered, OrderedKind::BTree), (Kind::Ordered, OrderedKind::Learned)] {
        for long in [false, true] {
            // A learned index takes long keys from the log.
            for damage in ALL.into_iter().filter(|_| !long || ordered == OrderedKind::BTree) {
                let dir = tempfile::tempdir().unwrap();
                let (store, keyspace) = damaged(dir.path(), kind, ordered, long, damage).unwrap();
                f(&store, &keyspace, long, &format!("{kind:?} {ordered:?} long {long} {damage:?}"));
            }
        }
    }
}

/// Asserts that the outcome is an error that reports damage: never wrong data.
fn assert_damaged<T: std::fmt::Debug>(what: &str, outcome: Result<T>) {
    assert!(matches!(&outcome, Err(error) if error.kind() == ErrorKind::Damaged), "{what}: {outcome:?}");
}

#[test]
fn reads_of_damage_are_refused() {
    each(|store, keyspace, long, what| {
        let key = key_of(VICTIM, long);
        let copy = |value: &[u8]| value.to_vec();
        assert_damaged(&format!("{what}: get"), store.get_with(keyspace, &key, copy));
        assert_damaged(&format!("{what}: versioned"), store.get_versioned(keyspace, &key));
        assert_damaged(&format!("{what}: pinned"), store.get_pinned(keyspace, &key).map(|guard| guard.map(|guard| guard.to_vec())));
        assert_damaged(&format!("{what}: peek"), store.peek_with(keyspace, &key, |value, _| value.to_vec()));
        assert_damaged(&format!("{what}: many"), store.multi_get_with(keyspace, &[&key, &key], |_, value| drop(value.map(copy))));
        let snapshot = store.snapshot();
        assert_damaged(&format!("{what}: snapshot"), snapshot.get_with(keyspace, &key, copy));
        for number in (0..KEYS).filter(|number| *number != VICTIM) {
            assert_eq!(store.get_with(keyspace, &key_of(number, long), copy).unwrap(), Some(value_of(number)), "{what}");
            assert_eq!(snapshot.get_with(keyspace, &key_of(number, long), copy).unwrap(), Some(value_of(number)), "{what}");
        }
    });
}

#[test]
fn scans_end_at_damage_with_an_error() {
    each(|store, keyspace, long, what| {
        let snapshot = store.snapshot();
        let seen = std::cell::Cell::new(0);
        let visit = |key: &[u8], value: &[u8]| {
            let number = (0..KEYS).find(|number| key == key_of(*number, long)).unwrap_or_else(|| panic!("{what}: {key:?}"));
            assert_eq!(value, value_of(number), "{what}");
            seen.set(seen.get() + 1);
            ControlFlow::Continue(())
        };
        assert_damaged(&format!("{what}: all"), store.for_each(keyspace, visit));
        if keyspace.info().kind == Kind::Hash {
            assert_damaged(&format!("{what}: keys"), snapshot.sorted_keys(keyspace));
            return;
        }
        for direction in [Direction::Forward, Direction::Backward] {
            let range = ScanRange { from: Bound::Unbounded, to: Bound::Unbounded, direction, expect: usize::MAX };
            assert_damaged(&format!("{what}: scan"), store.scan(keyspace, &range, visit));
            assert_damaged(&format!("{what}: snapshot"), snapshot.scan(keyspace, &range, visit));
            assert_damaged(&format!("{what}: deferred"), store.scan_deferred(keyspace, &range, |key, value, _| visit(key, value)));
        }
        assert!(seen.get() > KEYS);
    });
}

#[test]
fn conditions_on_damage_are_refused_and_a_check_tells_of_it() {
    each(|store, keyspace, long, what| {
        let report = store.check().unwrap();
        assert!(!report.is_sound(), "{what}");
        let key = key_of(VICTIM, long);
        for condition in [Condition::Value(None), Condition::Value(Some(b"x")), Condition::Version(None), Condition::Version(Some(7))] {
            let outcome = store.write(keyspace, &key, Some(b"new"), condition, &WriteOptions::new()).map(|(applied, ..)| applied);
            assert_damaged(&format!("{what}: {condition:?}"), outcome);
        }
        for version in [None, Some(7)] {
            let mut batch = Batch::default();
            batch.require_version(keyspace, &key, version);
            batch.put(keyspace, &key_of(0, long), b"new", 0);
            assert_damaged(&format!("{what}: a batch that requires {version:?}"), store.commit_wait(&batch));
        }
    });
}

#[test]
fn a_learned_index_is_not_built_from_damaged_keys() {
    for damage in ALL {
        let dir = tempfile::tempdir().unwrap();
        let outcome = damaged(dir.path(), Kind::Ordered, OrderedKind::Learned, true, damage);
        assert_damaged(&format!("{damage:?}"), outcome.map(|_| ()));
    }
}

/// Regression: a write beside a key that could not be read looked for its place for ever, with the whole process
/// waiting for it.
#[test]
fn writes_over_damage_end_and_harm_nothing_else() {
    each(|store, keyspace, long, what| {
        let key = key_of(VICTIM, long);
        let copy = |value: &[u8]| value.to_vec();
        let mut batch = Batch::default();
        batch.put(keyspace, &key, b"new", 0);
        batch.put(keyspace, &key_of(KEYS, long), b"new", 0);
        if keyspace.info().kind == Kind::Ordered {
            assert_damaged(&format!("{what}: put"), store.write_wait(keyspace, &key, Some(b"new")));
            assert_damaged(&format!("{what}: delete"), store.write_wait(keyspace, &key, None));
            assert_damaged(&format!("{what}: batch"), store.commit_wait(&batch));
            assert_damaged(&format!("{what}: get"), store.get_with(keyspace, &key, copy));
        } else {
            // A hash index has a place for it.
            store.commit_wait(&batch).unwrap();
            assert_eq!(store.get_with(keyspace, &key, copy).unwrap().as_deref(), Some(&b"new"[..]), "{what}");
        }
        for number in (0..2 * KEYS).filter(|number| *number != VICTIM) {
            store.write_wait(keyspace, &key_of(number, long), Some(b"newer")).unwrap();
            assert_eq!(store.get_with(keyspace, &key_of(number, long), copy).unwrap().as_deref(), Some(&b"newer"[..]), "{what}");
        }
    });
}

/// A delete that finds an entry whose key is damaged cannot know that it is another key's: what is under the damage must
/// not come back when the store is salvaged.
#[test]
fn a_delete_of_what_may_be_its_key_is_written() {
    let (mut written, mut all) = (0, 0);
    each(|store, keyspace, long, _| {
        if keyspace.info().kind == Kind::Hash {
            let version = |number: u64, value: Option<&[u8]>| {
                let key = key_of(number, long);
                store.write(keyspace, &key, value, Condition::None, &WriteOptions::new()).unwrap().2.version()
            };
            let newest = version(KEYS, Some(b"newest"));
            written += u32::from(version(VICTIM, None) > newest);
            all += 1;
        }
    });
    // One time in thirty another key has the same tag, so that the index reads the entries of both, and finds neither.
    assert!(all == 8 && written >= 4, "{written} of {all}");
}

fn change_file(path: &Path, change: impl FnOnce(&mut [u8])) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

/// Makes and closes a store with so many keys that they take several segments; returns the numbers of those segments.
fn several_segments(options: &Options) -> Vec<usize> {
    let store = Store::open(options.clone()).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Ordered).unwrap();
    for number in 0..5_000 {
        store.write_wait(&keyspace, &key_of(number, true), Some(&value_of(number))).unwrap();
    }
    drop((store, keyspace));
    let bytes = std::fs::read(options.paths[0].1.join("node0.hither")).unwrap();
    let used = |segment: &usize| bytes[TABLE + segment * DESCRIPTOR..][..DESCRIPTOR].iter().any(|byte| *byte != 0);
    let segments: Vec<_> = (0..128).filter(used).collect();
    assert!(segments.len() > 5, "{segments:?}");
    segments
}

/// The content of some segments: all segments lie at the end of the file.
fn content_of(path: &Path, segments: &[usize]) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    let of = |segment: &usize| bytes[bytes.len() - (128 - segment) * (64 << 10)..][..64 << 10].to_vec();
    segments.iter().map(of).collect()
}

/// Blanks the descriptors of some segments, opens the store with salvage, and writes to it.
fn assert_blank_is_damage(options: &Options, blank: &[usize]) {
    let path = options.paths[0].1.join("node0.hither");
    let content = content_of(&path, blank);
    change_file(&path, |bytes| blank.iter().for_each(|segment| bytes[TABLE + segment * DESCRIPTOR..][..DESCRIPTOR].fill(0)));
    assert_damaged(&format!("{blank:?}"), Store::open(options.clone()).map(|_| ()));
    assert!(options.checkpoints == CheckpointMode::Off || path.with_file_name("checkpoint.hither").exists(), "it knows how much was there");
    let unwaited = WriteOptions::new().durability(Durability::Process);
    for round in 1..3 {
        let store = Store::open(Options { salvage: true, ..options.clone() }).unwrap();
        assert!(store.recovery().salvaged.iter().any(|what| what.contains("is blank")), "{blank:?}: {:?}", store.recovery().salvaged);
        let keyspace = store.open_keyspace("k").unwrap();
        for number in round * 5_000..round * 5_000 + 5_000 {
            let _ = store.write(&keyspace, &key_of(number, true), Some(&value_of(number)), Condition::None, &unwaited).unwrap();
        }
        store.reclaim().unwrap();
        assert!(store.check().unwrap().is_sound(), "{blank:?}");
        drop((store, keyspace));
        assert!(content_of(&path, blank) == content, "{blank:?} were written over");
        assert_damaged(&format!("{blank:?} after a salvage"), Store::open(options.clone()).map(|_| ()));
    }
}

/// Regression: a descriptor that had become zeros passed for that of a segment never used. The segment's data were
/// missing, a check found the store sound, and new entries would have been written over the data. With salvage they
/// were, on persistent memory between what was left of the old ones; the next opening found nothing wrong, or took that
/// for damage.
#[test]
fn a_blank_descriptor_is_damage() {
    let (dir, in_memory) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
    let on_file = Options { medium: MediumChoice::File, ..options(dir.path(), OrderedKind::BTree) };
    let dax =
        Options { medium: MediumChoice::ForcedDax, checkpoints: CheckpointMode::Off, ..options(in_memory.path(), OrderedKind::BTree) };
    // Where writes wait for syncs, segments are zeroed before their first use.
    for (options, level) in [(on_file, Durability::Sync), (dax, Durability::Process)] {
        let segments = several_segments(&options);
        let files = ["node0.hither", "checkpoint.hither"].map(|name| options.paths[0].1.join(name));
        for blank in [&segments[..1], &segments[2..3], &segments[..]] {
            let there: Vec<_> = files.iter().filter(|path| path.exists()).map(|path| (path, std::fs::read(path).unwrap())).collect();
            assert_blank_is_damage(&Options { durability: level, ..options.clone() }, blank);
            there.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
        }
    }
}

/// Regression: with one bit of one descriptor wrong, nothing of the store could be saved.
#[test]
fn a_damaged_descriptor_costs_its_own_segment_only() {
    let dir = tempfile::tempdir().unwrap();
    let segments = several_segments(&options(dir.path(), OrderedKind::BTree));
    change_file(&dir.path().join("node0.hither"), |bytes| bytes[TABLE + segments[2] * DESCRIPTOR] ^= 1);
    assert_damaged("open", Store::open(options(dir.path(), OrderedKind::BTree)).map(|_| ()));
    for _ in 0..2 {
        let store = Store::open(Options { salvage: true, ..options(dir.path(), OrderedKind::BTree) }).unwrap();
        assert!(store.recovery().salvaged[0].contains("descriptor of segment"), "{:?}", store.recovery().salvaged);
        let keyspace = store.open_keyspace("k").unwrap();
        let mut kept = 0;
        for number in 0..5_000 {
            let value = store.get_with(&keyspace, &key_of(number, true), <[u8]>::to_vec).unwrap();
            assert!(value.is_none() || value == Some(value_of(number)));
            kept += usize::from(value.is_some());
        }
        assert!(kept > 3_000 && kept < 5_000, "{kept} keys");
    }
}

/// The leaves of a learned index hold whole keys of eight bytes, and a checkpoint has those, whatever has become of the
/// entries.
///
/// Regression: a checkpoint took what it read in the log for keys. A key that seemed to be larger hid those in between
/// from everybody who loaded that checkpoint into a tree. Afterwards no checkpoint was taken beside damage, and a store
/// that was closed like that might not open again.
#[test]
fn a_checkpoint_of_a_learned_index_has_the_words_of_its_leaves() {
    for (later, damage) in [OrderedKind::BTree, OrderedKind::Learned].into_iter().flat_map(|later| ALL.map(|damage| (later, damage))) {
        let dir = tempfile::tempdir().unwrap();
        let (store, keyspace) = damaged(dir.path(), Kind::Ordered, OrderedKind::Learned, false, damage).unwrap();
        let is_sound = |number: &u64| *number != VICTIM;
        store.checkpoint().unwrap();
        for number in (KEYS..3 * KEYS).filter(is_sound) {
            store.write_wait(&keyspace, &key_of(number, false), Some(&value_of(number))).unwrap();
        }
        store.close().unwrap();
        drop((store, keyspace));
        let store = Store::open(options(dir.path(), later)).unwrap();
        let keyspace = store.open_keyspace("k").unwrap();
        let copy = |value: &[u8]| value.to_vec();
        assert_damaged(&format!("{later:?} {damage:?}"), store.get_with(&keyspace, &key_of(VICTIM, false), copy));
        for number in (0..3 * KEYS).filter(is_sound) {
            assert_eq!(store.get_with(&keyspace, &key_of(number, false), copy).unwrap(), Some(value_of(number)), "{later:?} {damage:?}");
        }
    }
}

/// Regression: the only long key of a keyspace had become zeros. It was copied as a key of eight bytes, which came
/// behind greater ones, and nothing was verified.
#[test]
fn a_checkpoint_is_not_taken_of_a_damaged_key_that_passes_for_a_word() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Store::open(options(dir.path(), OrderedKind::BTree)).unwrap();
    let store = open();
    let keyspace = store.create_keyspace("k", Kind::Ordered).unwrap();
    (0..KEYS).for_each(|number| common::put(&store, &keyspace, &key_of(number, false), &value_of(number)));
    let (key, value) = (key_of(KEYS, true), value_of(KEYS));
    common::put(&store, &keyspace, &key, &value);
    drop((store, keyspace));
    change_file(&dir.path().join("node0.hither"), |bytes| {
        let at = bytes.windows(value.len()).position(|window| window == value).unwrap();
        bytes[at - key.len().next_multiple_of(8) - 16..at].fill(0);
    });
    let store = open();
    assert_eq!(store.recovery().source, RestartSource::Clean, "nothing was read");
    let refused = store.checkpoint().unwrap_err();
    assert!(refused.kind() == ErrorKind::Damaged && refused.to_string().contains("checksum does not match"), "{refused}");
}

/// A hash index that splits a segment with a damaged entry keeps the entry in both halves, because nobody can tell
/// which one is its key's. When that key is overwritten, the entry leaves one of them.
///
/// Regression: the log's segment was reused once everything in it was overwritten. The other half then led to whatever
/// was written there.
#[test]
fn what_an_index_keeps_for_damaged_is_not_written_over() {
    for collector in [CollectorKind::Batched, CollectorKind::Chain] {
        let dir = tempfile::tempdir().unwrap();
        let open = || Store::open(Options { collector, ..options(dir.path(), OrderedKind::BTree) }).unwrap();
        let put_all = |store: &Store, name: &str, numbers: std::ops::Range<u64>| {
            let keyspace = store.open_keyspace(name).unwrap();
            numbers.for_each(|number| common::put(store, &keyspace, &key_of(number, false), &value_of(number)));
        };
        let store = open();
        ["k", "other"].iter().for_each(|name| drop(store.create_keyspace(name, Kind::Hash).unwrap()));
        put_all(&store, "k", 0..2_000);
        drop(store);
        change_file(&dir.path().join("node0.hither"), |bytes| {
            let value = value_of(VICTIM);
            let at = bytes.windows(value.len()).position(|window| window == value).unwrap();
            bytes[at + 20] ^= 1;
        });
        let store = open();
        assert_eq!(store.recovery().source, RestartSource::Clean);
        // Splits each of the index's segments many times, then leaves nothing alive where the damage is.
        put_all(&store, "k", 2_000..20_000);
        put_all(&store, "k", 0..2_000);
        while store.reclaim().is_ok_and(|segments| segments > 0) {}
        put_all(&store, "other", 1_000_000..1_040_000);
        let keyspace = store.open_keyspace("k").unwrap();
        let outcome = store.for_each(&keyspace, |key, value| {
            let number = u64::from_be_bytes(key.try_into().unwrap()) >> 8;
            assert!(number < 20_000 && value == value_of(number), "{collector:?}: key {number} is none of this keyspace");
            ControlFlow::Continue(())
        });
        assert_damaged("all", outcome);
        assert!((0..20_000).all(|number| common::get(&store, &keyspace, &key_of(number, false)) == Some(value_of(number))));
    }
}

/// Regression: a sweep took a damaged entry that nobody had verified for one that superseded an older entry, and marked
/// the older one dead. A salvage, which falls back to it, no longer found it.
#[test]
fn what_is_damaged_supersedes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { medium: MediumChoice::File, shards: 1, ..options(dir.path(), OrderedKind::default()) };
    let store = Store::open(options.clone()).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    let put = |store: &Store, keyspace: &KeyspaceHandle, key: &[u8], value: &[u8]| store.write_wait(keyspace, key, Some(value)).unwrap();
    let fill = |store: &Store, keyspace: &KeyspaceHandle| {
        (0..400u64).for_each(|number| assert!(!put(store, keyspace, &number.to_be_bytes(), &[7; 300])));
        (0..400u64).for_each(|number| assert!(store.write_wait(keyspace, &number.to_be_bytes(), None).unwrap()));
    };
    // The key has been deleted once, so that sweeps look at its entries.
    put(&store, &keyspace, b"key", b"first");
    store.write_wait(&keyspace, b"key", None).unwrap();
    put(&store, &keyspace, b"key", b"the one before");
    // Live entries, which keep the segments of both from being emptied.
    (1_000..1_200u64).for_each(|number| assert!(!put(&store, &keyspace, &number.to_be_bytes(), &[7; 300])));
    put(&store, &keyspace, b"key", b"the newest value of the key");
    (1_200..1_500u64).for_each(|number| assert!(!put(&store, &keyspace, &number.to_be_bytes(), &[7; 300])));
    store.close().unwrap();
    drop((store, keyspace));
    common::damage(&dir.path().join("node0.hither"), b"the newest value of the key", |value| value[5] ^= 1);

    let store = Store::open(options.clone()).unwrap();
    assert_eq!(store.recovery().source, RestartSource::Clean, "nothing was read");
    let keyspace = store.open_keyspace("k").unwrap();
    for _ in 0..4 {
        fill(&store, &keyspace);
        // This call may come upon the damage.
        let _ = store.reclaim();
    }
    assert!(store.stats().collections.sweeps > 0);
    drop((store, keyspace));
    let store = Store::open(Options { medium: MediumChoice::PrivateCopy, salvage: true, ..options }).unwrap();
    let found = common::get(&store, &store.open_keyspace("k").unwrap(), b"key");
    assert_eq!(found.as_deref(), Some(&b"the one before"[..]), "{:?}", store.recovery().salvaged);
}
