//! One byte before the key of one entry is damaged, each in turn, where a restart does not read. No operation panics;
//! each read is right or is refused as damage; and what is not damaged reads right, whatever is written beside it.

use crate::common;
use hither_engine::{
    Batch, Condition, Direction, Error, ErrorKind, KeyspaceHandle, Kind, Options, RestartSource, Result, ScanRange, Store, WriteOptions,
};
use hither_pmem::MediumChoice;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::path::Path;

/// Shapes of keys and values.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    /// Eight bytes each.
    Pairs,
    /// Keys of eight bytes with longer values.
    Words,
    /// Keys of eight bytes with longer values, which expire some day.
    Expiring,
    /// Groups of one, two, three or many keys that begin with the same eight bytes.
    Share8,
    /// Likewise, and all keys of a group begin with the same sixteen bytes.
    Share16,
}

const KEYS: u64 = 400;
/// Sizes of the groups of keys that begin alike, one group after the other.
const GROUPS: [u64; 4] = [1, 2, 3, 90];
/// A key that stands alone, one that begins a group of two, one that begins a group of many, and one in the midst of
/// many.
const VICTIMS: [u64; 4] = [0, 1, 6, 50];

/// Where a key is: its group, and its position in the group.
fn group_of(number: u64) -> (u64, u64) {
    let (round, mut rest) = (number / GROUPS.iter().sum::<u64>(), number % GROUPS.iter().sum::<u64>());
    for (group, members) in GROUPS.iter().enumerate() {
        if rest < *members {
            return (round * GROUPS.len() as u64 + group as u64, rest);
        }
        rest -= members;
    }
    unreachable!("the rest is in one of the groups")
}

fn key_of(number: u64, shape: Shape) -> Vec<u8> {
    let (group, member) = group_of(number);
    match shape {
        Shape::Pairs | Shape::Words | Shape::Expiring => (number << 8 | 0x5a).to_be_bytes().to_vec(),
        Shape::Share8 => format!("gr{group:06}member{member:04}").into_bytes(),
        Shape::Share16 => format!("sixteen of bytesgr{group:06}member{member:04}").into_bytes(),
    }
}

fn value_of(number: u64, shape: Shape) -> Vec<u8> {
    match shape {
        Shape::Pairs => (number ^ 0x7ad1_55b3_9e02_4c00).to_le_bytes().to_vec(),
        _ => format!("the value of key {number:016} and no other").into_bytes(),
    }
}

fn options(dir: &Path) -> Options {
    Options {
        paths: vec![(None, dir.to_owned())],
        capacity: 1 << 20,
        max_capacity: 1 << 20,
        segment_bytes: 16 << 10,
        shards: 1,
        medium: MediumChoice::Volatile,
        ..common::small()
    }
}

/// The files of a closed store that nobody has damaged yet.
fn made(kind: Kind, shape: Shape) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path())).unwrap();
    let keyspace = store.create_keyspace("k", kind).unwrap();
    let mut write = WriteOptions::new();
    if shape == Shape::Expiring {
        write = write.expires_at_ms(u64::MAX >> 8);
    }
    for number in 0..KEYS {
        let (applied, ..) =
            store.write(&keyspace, &key_of(number, shape), Some(&value_of(number, shape)), Condition::None, &write).unwrap();
        assert!(applied);
    }
    drop((store, keyspace));
    dir
}

/// Where the entry of a key begins in the pool, and how many bytes come before its key.
fn place_of(pool: &[u8], number: u64, shape: Shape) -> (usize, usize) {
    let head = match shape {
        Shape::Pairs => 16,
        Shape::Expiring => 40,
        _ => 24,
    };
    let content = [key_of(number, shape), value_of(number, shape)].concat();
    let at = pool.windows(content.len()).position(|window| window == content).unwrap();
    (at - head, head)
}

/// Which byte of a head is changed, and how. The mark of a dead entry is left out: the checksum does not cover it.
fn flips(head: usize) -> Vec<(usize, u8)> {
    let bits = (0..8).filter(|bit| *bit != 2).map(|bit| (4, 1 << bit));
    (0..head).map(|byte| (byte, 0xff)).chain(bits).collect()
}

fn is_damage(error: &Error) -> bool {
    error.kind() == ErrorKind::Damaged
}

/// What a store holds, as far as it is known.
struct Known<'a> {
    store: &'a Store,
    keyspace: &'a KeyspaceHandle,
    /// Keys that were not damaged.
    whole: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The damaged key, and what may be read of it.
    victim: Vec<u8>,
    may_be: Vec<Option<Vec<u8>>>,
    what: String,
}

impl Known<'_> {
    /// Checks what a read of the victim returns, if it returns anything.
    fn check_victim(&self, read: &str, outcome: Result<Option<Vec<u8>>>) {
        match outcome {
            Ok(value) => assert!(self.may_be.contains(&value), "{}: {read} gives {value:?}", self.what),
            Err(error) => assert!(is_damage(&error), "{}: {read}: {error}", self.what),
        }
    }

    fn reads(&self) {
        let (store, keyspace, victim) = (self.store, self.keyspace, &self.victim);
        let copy = |value: &[u8]| value.to_vec();
        let snapshot = store.snapshot();
        self.check_victim("get", store.get_with(keyspace, victim, copy));
        self.check_victim("versioned", store.get_versioned(keyspace, victim).map(|found| found.map(|(value, _)| value)));
        self.check_victim("pinned", store.get_pinned(keyspace, victim).map(|found| found.map(|guard| guard.to_vec())));
        self.check_victim("peek", store.peek_with(keyspace, victim, |value, _| value.to_vec()).map(|(value, _)| value));
        self.check_victim("snapshot", snapshot.get_with(keyspace, victim, copy));
        let mut many = None;
        self.check_victim("many", store.multi_get_with(keyspace, &[victim], |_, value| many = value.map(copy)).map(|()| many));
        for (key, value) in &self.whole {
            assert_eq!(store.get_with(keyspace, key, copy).unwrap().as_ref(), Some(value), "{}: {key:?}", self.what);
            assert_eq!(snapshot.get_with(keyspace, key, copy).unwrap().as_ref(), Some(value), "{}: {key:?}", self.what);
        }
        if keyspace.info().kind == Kind::Ordered {
            for direction in [Direction::Forward, Direction::Backward] {
                self.scan(direction, Bound::Unbounded, usize::MAX);
                for start in self.whole.keys().chain([victim]).step_by(37).chain([victim]) {
                    self.scan(direction, Bound::Included(start), 3);
                    self.scan(direction, Bound::Excluded(start), 3);
                }
            }
        } else {
            let _ = snapshot.sorted_keys(keyspace).inspect_err(|error| assert!(is_damage(error)));
        }
    }

    /// Scans up to `limit` pairs from `start` on: they must be the right ones, up to where the scan meets damage.
    fn scan(&self, direction: Direction, start: Bound<&Vec<u8>>, limit: usize) {
        let start = start.map(Vec::as_slice);
        let (from, to) = if direction == Direction::Forward { (start, Bound::Unbounded) } else { (Bound::Unbounded, start) };
        let range = ScanRange { from, to, direction, expect: usize::MAX };
        let mut expected: Vec<_> = self.whole.range::<[u8], _>((from, to)).collect();
        if direction == Direction::Backward {
            expected.reverse();
        }
        let snapshot = self.store.snapshot();
        for way in ["scan", "snapshot", "deferred"] {
            let (mut seen, mut met_victim) = (Vec::new(), 0);
            let mut visit = |key: &[u8], value: &[u8]| {
                if key == self.victim {
                    assert!(self.may_be.contains(&Some(value.to_vec())), "{}: {way}", self.what);
                    met_victim = 1;
                } else {
                    seen.push((key.to_vec(), value.to_vec()));
                }
                if seen.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            let outcome = match way {
                "scan" => self.store.scan(self.keyspace, &range, visit),
                "snapshot" => snapshot.scan(self.keyspace, &range, visit),
                _ => self.store.scan_deferred(self.keyspace, &range, |key, value, _| visit(key, value)).map(|_| ()),
            };
            let at = || format!("{}: {way} {direction:?} from {start:?}, {met_victim} victims, {outcome:?}", self.what);
            assert!(seen.len() <= expected.len() && seen.iter().zip(&expected).all(|(a, b)| (&a.0, &a.1) == *b), "{}", at());
            match &outcome {
                Ok(()) => assert_eq!(seen.len(), expected.len().min(limit), "{}", at()),
                Err(error) => assert!(is_damage(error), "{}", at()),
            }
        }
    }

    /// Makes writes that may be refused; records what they made.
    fn writes(&mut self, shape: Shape) {
        let (store, keyspace, victim) = (self.store, self.keyspace, self.victim.clone());
        let old = self.may_be[0].clone();
        for condition in
            [Condition::Version(Some(7)), Condition::Value(Some(b"no")), Condition::Value(old.as_deref()), Condition::Value(None)]
        {
            let outcome = store.write(keyspace, &victim, Some(b"swapped"), condition, &WriteOptions::new()).map(|(applied, ..)| applied);
            self.note(&victim, Some(b"swapped"), &outcome, matches!(outcome, Ok(true)));
        }
        // New keys before, behind and below the victim and its group; some end in the midst of what others share.
        let mut fresh: Vec<_> = (1..victim.len()).step_by(3).map(|len| victim[..len].to_vec()).collect();
        fresh.extend([[&victim[..], b"more"].concat(), [&victim[..], b"\0"].concat(), [&victim[..victim.len() - 1], b"zz"].concat()]);
        fresh.extend((1..victim.len()).step_by(3).map(|len| [&victim[..len], &[0xfe; 20]].concat()));
        fresh.extend((KEYS..KEYS + 100).map(|number| key_of(number, shape)));
        for key in &fresh {
            let outcome = store.write_wait(keyspace, key, Some(b"fresh")).map(|_| true);
            self.note(key, Some(b"fresh"), &outcome, outcome.is_ok());
        }
        let mut batch = Batch::default();
        let member = [&victim[..], b"batch"].concat();
        batch.put(keyspace, &member, b"batch", 0);
        let outcome = store.commit_wait(&batch).map(|_| true);
        self.note(&member, Some(b"batch"), &outcome, outcome.is_ok());
        self.reads();
        for value in [Some(&b"put"[..]), None] {
            let outcome = store.write_wait(keyspace, &victim, value).map(|_| true);
            self.note(&victim, value, &outcome, outcome.is_ok());
        }
    }

    fn note(&mut self, key: &[u8], value: Option<&[u8]>, outcome: &Result<bool>, applied: bool) {
        if let Err(error) = outcome {
            assert!(is_damage(error), "{}: {error}", self.what);
        }
        let value = value.map(<[u8]>::to_vec);
        match value {
            _ if !applied => {}
            value if key == self.victim => self.may_be.insert(0, value),
            Some(value) => drop(self.whole.insert(key.to_vec(), value)),
            None => drop(self.whole.remove(key)),
        }
    }
}

/// Opens the store in `dir`, if that is not refused, and tries every operation on it.
fn exercise(
    dir: &Path,
    shape: Shape,
    (victim, may_be): (u64, Vec<Option<Vec<u8>>>),
    whole: BTreeMap<Vec<u8>, Vec<u8>>,
    what: String,
) -> bool {
    let store = match Store::open(options(dir)) {
        Ok(store) => store,
        Err(error) => {
            assert!(is_damage(&error) && error.to_string().contains("segment"), "{what}: {error}");
            return false;
        }
    };
    assert_ne!(store.recovery().source, RestartSource::Scan, "{what}: damage was passed over");
    let keyspace = store.open_keyspace("k").unwrap();
    let mut known = Known { store: &store, keyspace: &keyspace, whole, victim: key_of(victim, shape), may_be, what };
    known.reads();
    let _ = store.check();
    known.what += ", after writes";
    known.writes(shape);
    known.what += " and a compaction";
    let _ = store.compact(0.01, |_| ControlFlow::Continue(()));
    known.reads();
    let _ = store.check();
    let Known { whole, victim, may_be, what, .. } = known;
    drop((store, keyspace));
    if let Ok(store) = Store::open(options(dir)).inspect_err(|error| assert!(is_damage(error), "{what}: {error}")) {
        let keyspace = store.open_keyspace("k").unwrap();
        Known { store: &store, keyspace: &keyspace, whole, victim, may_be, what: format!("{what}, again") }.reads();
    }
    true
}

/// All keys as they were written.
fn all(shape: Shape) -> BTreeMap<Vec<u8>, Vec<u8>> {
    (0..KEYS).map(|number| (key_of(number, shape), value_of(number, shape))).collect()
}

fn copy_with(pool: &[u8], dir: &Path, (at, mask): (usize, u8)) -> tempfile::TempDir {
    let copy = common::crash(dir);
    let mut bytes = pool.to_vec();
    bytes[at] ^= mask;
    std::fs::write(copy.path().join("node0.hither"), bytes).unwrap();
    copy
}

/// Tries all damage after an orderly close; returns how many stores opened.
fn after_a_close(kind: Kind, shape: Shape) -> usize {
    let dir = made(kind, shape);
    let pool = std::fs::read(dir.path().join("node0.hither")).unwrap();
    let mut opened = 0;
    for (turn, (byte, mask)) in flips(place_of(&pool, 0, shape).1).into_iter().enumerate() {
        // Where keys begin alike, it matters which of them is damaged.
        let victims = if matches!(shape, Shape::Share8 | Shape::Share16) { 2 } else { 1 };
        for victim in (turn..turn + victims).map(|number| VICTIMS[number % 4]) {
            let copy = copy_with(&pool, dir.path(), (place_of(&pool, victim, shape).0 + byte, mask));
            let mut whole = all(shape);
            let value = whole.remove(&key_of(victim, shape));
            let what = format!("{kind:?} {shape:?}, key {victim}, byte {byte} ^ {mask:#x}");
            opened += usize::from(exercise(copy.path(), shape, (victim, vec![value]), whole, what));
        }
    }
    opened
}

/// Tries all damage after a crash, with the victim overwritten or deleted behind what the checkpoint covers; returns
/// how many stores opened.
fn after_a_crash(kind: Kind, shape: Shape) -> usize {
    let dir = made(kind, shape);
    let store = Store::open(options(dir.path())).unwrap();
    let keyspace = store.open_keyspace("k").unwrap();
    for (victim, value) in VICTIMS.iter().zip([None, Some(&b"newer"[..]), Some(b"newer"), None]) {
        store.write_wait(&keyspace, &key_of(*victim, shape), value).unwrap();
    }
    let crashed = common::crash(dir.path());
    let pool = std::fs::read(crashed.path().join("node0.hither")).unwrap();
    let mut opened = 0;
    for (turn, (byte, mask)) in flips(place_of(&pool, 0, shape).1).into_iter().enumerate() {
        let number = (turn + usize::from(mask != 0xff)) % 4;
        let copy = copy_with(&pool, crashed.path(), (place_of(&pool, VICTIMS[number], shape).0 + byte, mask));
        let mut whole = all(shape);
        for (victim, deleted) in VICTIMS.iter().zip([true, false, false, true]) {
            whole.remove(&key_of(*victim, shape));
            if !deleted && *victim != VICTIMS[number] {
                whole.insert(key_of(*victim, shape), b"newer".to_vec());
            }
        }
        let may_be = vec![[None, Some(b"newer".to_vec()), Some(b"newer".to_vec()), None][number].clone()];
        let what = format!("{kind:?} {shape:?} crashed, key {}, byte {byte} ^ {mask:#x}", VICTIMS[number]);
        opened += usize::from(exercise(copy.path(), shape, (VICTIMS[number], may_be), whole, what));
    }
    opened
}

#[test]
fn hash_keyspaces_bear_it() {
    for shape in [Shape::Pairs, Shape::Words, Shape::Share16] {
        assert!(after_a_close(Kind::Hash, shape) > 0);
        after_a_crash(Kind::Hash, shape);
    }
}

#[test]
fn ordered_words_bear_it() {
    for shape in [Shape::Pairs, Shape::Words, Shape::Expiring] {
        assert!(after_a_close(Kind::Ordered, shape) > 0);
    }
}

#[test]
fn ordered_keys_that_begin_alike_bear_it() {
    for shape in [Shape::Share8, Shape::Share16] {
        assert!(after_a_close(Kind::Ordered, shape) > 0);
    }
}

/// Regression: recovery compared what it had scanned with what the checkpoint led to, and panicked where the latter was
/// damaged.
#[test]
fn ordered_keyspaces_bear_it_after_a_crash() {
    for shape in [Shape::Pairs, Shape::Words, Shape::Share8, Shape::Share16] {
        after_a_crash(Kind::Ordered, shape);
    }
}
