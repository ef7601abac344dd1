//! Lives of a store, compared with maps: keyspaces are dropped, made again and exchanged, beside snapshots, pinned
//! values, batches, values larger than a segment, checkpoints, verification and collections. Each life ends with a
//! close or a crash of the process.

use crate::common::{Random, crash, get, small};
use hither_engine::{Batch, CollectorKind, KeyspaceHandle, Kind, Options, Snapshot, Store, ValueGuard};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SPACES: usize = 4;
const KEYS: u64 = 1_500;
const STEPS: usize = 2_500;
const LIVES: usize = 3;

type Maps = [BTreeMap<Vec<u8>, Vec<u8>>; SPACES];

fn name(space: usize) -> String {
    format!("space {space}")
}

fn kind(space: usize) -> Kind {
    if space.is_multiple_of(2) { Kind::Hash } else { Kind::Ordered }
}

fn key(number: u64) -> Vec<u8> {
    if number.is_multiple_of(3) { format!("a somewhat longer key {number:06}").into_bytes() } else { number.to_be_bytes().to_vec() }
}

/// A store, what it must hold, and the snapshots and values that are held of it.
struct Life<'a> {
    what: String,
    store: &'a Store,
    random: &'a mut Random,
    maps: &'a mut Maps,
    spaces: [KeyspaceHandle; SPACES],
    snapshots: Vec<(Snapshot, [KeyspaceHandle; SPACES], Maps)>,
    pinned: Vec<(ValueGuard, Vec<u8>)>,
}

impl<'a> Life<'a> {
    fn begin(what: String, store: &'a Store, random: &'a mut Random, maps: &'a mut Maps) -> Life<'a> {
        let spaces = std::array::from_fn(|at| store.open_keyspace(&name(at)).unwrap());
        let life = Life { what, store, random, maps, spaces, snapshots: Vec::new(), pinned: Vec::new() };
        for (space, map) in life.spaces.iter().zip(&*life.maps) {
            assert_eq!(space.len(), map.len(), "{}: {}", life.what, space.info().name);
            for (key, value) in map {
                assert!(get(store, space, key).as_ref() == Some(value), "{}: {}, key {key:?}", life.what, space.info().name);
            }
        }
        life
    }

    fn step(&mut self) {
        let (at, number) = (self.random.below(SPACES as u64) as usize, self.random.below(KEYS));
        match self.random.below(1000) {
            0..300 => self.delete(at, &key(number)),
            300..303 => {
                let value = vec![number as u8; 20_000 + 1000 * self.random.below(40) as usize];
                self.put(at, key(number), value);
            }
            303..400 => self.batch(),
            400..404 => self.make_again(at),
            404..408 => self.exchange(at, (at + 2) % SPACES),
            408..413 if self.snapshots.len() < 3 => {
                self.snapshots.push((self.store.snapshot(), self.spaces.clone(), self.maps.clone()));
            }
            413..425 if !self.snapshots.is_empty() => self.end_snapshot(),
            425..430 => self.pin(at, &key(number)),
            _ => {
                let value = vec![number as u8; self.random.below(90) as usize];
                self.put(at, key(number), value);
            }
        }
    }

    fn delete(&mut self, at: usize, key: &[u8]) {
        let there = self.store.write_wait(&self.spaces[at], key, None).unwrap();
        assert_eq!(there, self.maps[at].remove(key).is_some(), "{}: {key:?} is deleted", self.what);
    }

    /// If there is no space, nothing has changed.
    fn put(&mut self, at: usize, key: Vec<u8>, value: Vec<u8>) {
        match self.store.write_wait(&self.spaces[at], &key, Some(&value)) {
            Ok(_) => drop(self.maps[at].insert(key, value)),
            Err(error) => assert!(error.kind().is_lack_of_space(), "{}: {error}", self.what),
        }
    }

    fn batch(&mut self) {
        let (mut batch, mut then) = (Batch::default(), self.maps.clone());
        for member in 0..1 + self.random.below(6) {
            let (at, key) = (self.random.below(SPACES as u64) as usize, self.random.below(KEYS).to_be_bytes().to_vec());
            if self.random.below(3) == 0 {
                batch.delete(&self.spaces[at], &key);
                then[at].remove(&key);
            } else {
                let value = vec![member as u8; self.random.below(60) as usize];
                batch.put(&self.spaces[at], &key, &value, 0);
                then[at].insert(key, value);
            }
        }
        match self.store.commit_wait(&batch) {
            Ok(()) => *self.maps = then,
            Err(error) => assert!(error.kind().is_lack_of_space(), "{}: {error}", self.what),
        }
    }

    fn make_again(&mut self, at: usize) {
        assert!(self.store.drop_keyspace(&name(at)).unwrap());
        self.spaces[at] = self.store.create_keyspace(&name(at), kind(at)).unwrap();
        self.maps[at].clear();
    }

    fn exchange(&mut self, a: usize, b: usize) {
        assert!(self.store.swap_keyspaces(&[(&name(a), &name(b))]).unwrap());
        self.maps.swap(a, b);
        for at in [a, b] {
            self.spaces[at] = self.store.open_keyspace(&name(at)).unwrap();
        }
    }

    /// A snapshot shows what it showed, as far as the keyspaces are still there, under whatever name.
    fn end_snapshot(&mut self) {
        let which = self.random.below(self.snapshots.len() as u64) as usize;
        let (snapshot, then, shown) = self.snapshots.swap_remove(which);
        for (space, map) in then.iter().zip(&shown) {
            let Some(now) = self.spaces.iter().find(|now| now.info().id == space.info().id) else { continue };
            for (key, value) in map.iter().step_by(7) {
                let same = snapshot.get_with(now, key, |found| found == value).unwrap();
                assert_eq!(same, Some(true), "{}: a snapshot of {key:?}", self.what);
            }
        }
    }

    fn pin(&mut self, at: usize, key: &[u8]) {
        if let Some(guard) = self.store.get_pinned(&self.spaces[at], key).unwrap() {
            self.pinned.push((guard, self.maps[at][key].clone()));
            if self.pinned.len() > 3 {
                let (guard, value) = self.pinned.remove(0);
                assert!(*guard == *value, "{}: a pinned value", self.what);
            }
        }
    }
}

/// Collects, verifies and takes checkpoints until `stop` is set; the store may be closed meanwhile.
fn disturb(store: &Store, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let _ = store.reclaim();
        store.verify_unread();
    }
}

fn take_checkpoints(store: &Store, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let _ = store.checkpoint();
        std::thread::sleep(Duration::from_millis(3));
    }
}

fn live(seed: u64, collector: CollectorKind, capacity: u64) {
    let options = |dir: &Path| Options {
        paths: vec![(None, dir.to_owned())],
        collector,
        capacity,
        max_capacity: capacity,
        segment_bytes: 16 << 10,
        space_patience: Duration::from_secs(5),
        ..small()
    };
    let (mut random, mut maps, mut dir) = (Random(seed * 7919), Maps::default(), tempfile::tempdir().unwrap());
    {
        let store = Store::open(options(dir.path())).unwrap();
        (0..SPACES).for_each(|at| drop(store.create_keyspace(&name(at), kind(at)).unwrap()));
    }
    for number in 0..LIVES {
        let what = format!("seed {seed}, life {number}, {collector:?}, {capacity} bytes");
        let (stop, closes) = (AtomicBool::new(false), random.below(2) == 0);
        // Files that are copied one after the other show a state after a crash only if nothing is moved meanwhile.
        let options = Options { background: closes && seed.is_multiple_of(3), ..options(dir.path()) };
        let store = Store::open(options).unwrap_or_else(|error| panic!("{what}: {error}"));
        std::thread::scope(|scope| {
            scope.spawn(|| disturb(&store, &stop));
            scope.spawn(|| take_checkpoints(&store, &stop));
            let mut life = Life::begin(what.clone(), &store, &mut random, &mut maps);
            (0..STEPS).for_each(|_| life.step());
            drop(life);
            if closes {
                store.close().unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
        let report = store.check().unwrap();
        assert!(report.is_sound(), "{what}: {report:?}");
        if !closes {
            dir = crash(dir.path());
        }
    }
}

/// `HITHER_LIVES` raises the number of stores.
fn stores() -> u64 {
    std::env::var("HITHER_LIVES").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

#[test]
fn with_room_by_chains() {
    (0..stores()).for_each(|seed| live(2 * seed + 1, CollectorKind::Chain, 4 << 20));
}

#[test]
fn with_room_in_batches() {
    (0..stores()).for_each(|seed| live(2 * seed + 3, CollectorKind::Batched, 4 << 20));
}

#[test]
fn nearly_full() {
    for seed in 0..stores() {
        live(2 * seed + 5, CollectorKind::Chain, 3 << 19);
        live(2 * seed + 6, CollectorKind::Batched, 3 << 19);
    }
}
