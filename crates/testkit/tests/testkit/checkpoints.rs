//! Checkpoints of the indexes: what a restart makes of sound, damaged, old and planted ones.
//!
//! The stories are told with the explorer's [`Life`]. It records the store's pools, so their content at any moment can
//! be opened again beside any checkpoint.
//!
//! A violation of the protocol is planted by editing a checkpoint or an image, so that it holds what a broken program
//! would have written or made of it. Each has a sound twin: the same story without the edit.

#![forbid(unsafe_code)]

use crate::common;
use hither_engine::checkpoint::format::{HEADER_BYTES, Header, Index, TRAILER_BYTES, Trailer};
use hither_engine::{CheckpointDraft, CheckpointImage, CheckpointMode, CheckpointStore, Kind, MediumChoice, Options, RestartSource, Store};
use hither_pmem::{Emulate, FailAt, Failpoints, OpenOptions, Pool};
use hither_testkit::checkpoints::{Checkpoints, Kept};
use hither_testkit::explorer_script::{Config, Level, Life, open_pools, store_options};
use hither_testkit::images::Machine;
use hither_testkit::oracle::{Dump, sound};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const CONFIG: Config = Config { rules: Emulate::Adr, nodes: 1, shards: 1, max_segments: 60, seed: 5 };

fn key(i: u64) -> Vec<u8> {
    if i.is_multiple_of(3) { format!("a longer key {i}").into_bytes() } else { i.to_be_bytes().to_vec() }
}

/// A life with an ordered and a hash keyspace that hold the keys `0..keys`.
fn life(keys: u64) -> Life {
    let mut life = Life::begin(&CONFIG);
    life.create("one", Kind::Ordered);
    life.create("two", Kind::Hash);
    put(&mut life, 0..keys);
    life
}

fn put(life: &mut Life, keys: std::ops::Range<u64>) {
    for i in keys {
        for keyspace in 0..2 {
            let value = life.value(40);
            assert!(life.write(keyspace, &key(i), Some(value), Level::Sync, false), "there is room");
        }
    }
}

fn delete(life: &mut Life, keys: std::ops::Range<u64>) {
    for i in keys {
        for keyspace in 0..2 {
            assert!(life.write(keyspace, &key(i), None, Level::Sync, false), "there is room");
        }
    }
}

/// The current content of the pools.
fn images(life: &Life) -> Vec<Vec<u8>> {
    let mut machine = Machine::new(&life.recorder.recording());
    machine.advance_to(usize::MAX);
    machine.visible()
}

fn open(images: &[Vec<u8>], kept: &Kept) -> Result<Store, String> {
    let life = store_options(
        open_pools(images, CONFIG.rules, None).map_err(|error| error.to_string())?,
        &Arc::new(hither_topology::Topology::emulated(1)),
        CONFIG.shards,
        2,
        Some(&Checkpoints::new(kept.clone(), None)),
    );
    Store::open(life).map_err(|error| error.to_string())
}

/// The content that a restart finds, and its source. An error or a panic counts as an error.
fn restart(images: &[Vec<u8>], kept: &Kept) -> Result<(Dump, RestartSource), String> {
    let read = || {
        let store = open(images, kept)?;
        sound(&store)?;
        Ok((Dump::read(&store)?, store.recovery().source))
    };
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| Err("panic".into()))
}

fn dump(life: &Life) -> Dump {
    Dump::read(&life.store).unwrap()
}

#[test]
fn after_a_crash_only_what_is_newer_is_scanned() {
    let mut life = life(300);
    life.checkpoint();
    put(&mut life, 250..320);
    delete(&mut life, 0..20);
    let store = open(&images(&life), &life.checkpoints.latest()).unwrap();
    let report = store.recovery();
    assert_eq!((report.source, report.checkpoint_refused.as_str()), (RestartSource::Checkpoint, ""));
    assert!(report.segments_skipped > 5 && report.segments < report.segments_skipped, "{report:?}");
    assert!((500..=600).contains(&report.checkpoint_keys), "{report:?}");
    assert_eq!(Dump::read(&store).unwrap(), dump(&life));
    sound(&store).unwrap();
}

#[test]
fn after_a_clean_close_nothing_is_scanned() {
    let mut life = life(100);
    delete(&mut life, 5..9);
    let (before, place) = (dump(&life), life.checkpoints.clone());
    life.store.close().unwrap();
    let kept = place.latest();
    let store = open(&images(&life), &kept).unwrap();
    let report = store.recovery();
    assert_eq!((report.source, report.segments, report.clean), (RestartSource::Clean, 0, true));
    assert_eq!(Dump::read(&store).unwrap(), before);
    sound(&store).unwrap();
    // Segments that were open are filled further from their tails.
    let keyspace = store.open_keyspace("one").unwrap();
    store.write_wait(&keyspace, b"after", Some(b"x")).unwrap();
    sound(&store).unwrap();
}

#[test]
fn a_store_that_was_only_read_keeps_its_checkpoint() {
    let life = life(50);
    life.store.close().unwrap();
    let (images, kept) = (images(&life), life.checkpoints.latest());
    let place = Checkpoints::new(kept.clone(), None);
    let pools = open_pools(&images, CONFIG.rules, None).unwrap();
    let store = Store::open(store_options(pools, &life.topology, CONFIG.shards, 1, Some(&place))).unwrap();
    store.close().unwrap();
    assert!(Arc::ptr_eq(&kept.unwrap(), &place.latest().unwrap()), "it was written anew");
}

/// Damages the checkpoint at many places, every byte of header and trailer included. It must be refused, and the log
/// must still give everything.
#[test]
fn a_damaged_checkpoint_loses_nothing() {
    let mut life = life(120);
    life.checkpoint();
    put(&mut life, 100..130);
    let (images, wanted) = (images(&life), dump(&life));
    let bytes = life.checkpoints.latest().unwrap();
    let step = (bytes.len() / 300).max(1);
    let ends = (0..HEADER_BYTES).chain(bytes.len() - TRAILER_BYTES..bytes.len());
    for at in ends.chain((HEADER_BYTES..bytes.len()).step_by(step)) {
        let mut harmed = bytes.to_vec();
        harmed[at] ^= 1 << (at % 8);
        judge_refused(&images, harmed, &wanted, &format!("byte {at}"));
    }
    for len in [0, 10, HEADER_BYTES, bytes.len() / 2, bytes.len() - 1] {
        judge_refused(&images, bytes[..len].to_vec(), &wanted, &format!("cut at {len}"));
    }
}

fn judge_refused(images: &[Vec<u8>], checkpoint: Vec<u8>, wanted: &Dump, what: &str) {
    let place = Checkpoints::new(Some(Arc::new(checkpoint)), None);
    let pools = open_pools(images, CONFIG.rules, None).unwrap();
    let store = Store::open(store_options(pools, &Arc::new(hither_topology::Topology::emulated(1)), 1, 2, Some(&place))).unwrap();
    let report = store.recovery();
    assert!(report.source == RestartSource::Scan && !report.checkpoint_refused.is_empty(), "{what}: {report:?}");
    assert_eq!(&Dump::read(&store).unwrap(), wanted, "{what}");
    assert!(place.latest().is_none(), "{what}: what does not hold is removed");
}

#[test]
fn a_checkpoint_of_another_store_or_newer_than_the_pools_is_refused() {
    let mut life = life(100);
    let (older, held) = (images(&life), dump(&life));
    put(&mut life, 100..140);
    life.checkpoint();
    judge_refused(&older, life.checkpoints.latest().unwrap().to_vec(), &held, "older pools");
    let mut other = self::life(10);
    other.checkpoint();
    judge_refused(&older, other.checkpoints.latest().unwrap().to_vec(), &held, "another store");
}

/// Takes a checkpoint, deletes keys, writes others until segments were freed and used again, and crashes. At every
/// stage the deleted keys must stay absent.
#[test]
fn deleted_keys_do_not_return_when_segments_are_reused() {
    let mut life = life(150);
    life.checkpoint();
    delete(&mut life, 0..60);
    for round in 0..6 {
        put(&mut life, 60..150);
        life.reclaim();
        life.reclaim();
        let (found, source) = restart(&images(&life), &life.checkpoints.latest()).unwrap();
        assert_eq!(source, RestartSource::Checkpoint);
        assert_eq!(found, dump(&life), "round {round}");
    }
    let reused: u64 = life.store.stats().pools.iter().map(|pool| pool.usage.reused).sum();
    assert!(reused > 5, "only {reused} segments were used again");
}

/// A full store gives up its checkpoint rather than refuse a write; then its tombstones may go.
#[test]
fn lack_of_space_removes_the_checkpoint() {
    let mut life = Life::begin(&Config { max_segments: 14, ..CONFIG });
    life.create("one", Kind::Ordered);
    life.create("two", Kind::Hash);
    put(&mut life, 0..60);
    life.checkpoint();
    let mut removed = false;
    for round in 0..200u64 {
        let value = life.value(300);
        life.write(0, &key(round % 4), Some(value), Level::Sync, false);
        life.write(0, &key(round % 4), None, Level::Sync, false);
        removed |= life.checkpoints.latest().is_none();
    }
    assert!(removed, "the store never ran short of space");
    assert_eq!(restart(&images(&life), &life.checkpoints.latest()).unwrap().0, dump(&life));
}

/// Writers, batches and collections run in other threads while checkpoints are taken. Each restart must find what the
/// store holds when they have stopped.
#[test]
fn checkpoints_under_writers_hold() {
    for round in 0..6u64 {
        let life = life(40);
        let store = &life.store;
        let handles = ["one", "two"].map(|name| store.open_keyspace(name).unwrap());
        std::thread::scope(|scope| {
            for thread in 0..2u64 {
                let handles = &handles;
                scope.spawn(move || {
                    for i in 0..150 {
                        let at = (i * 7 + round) % 40 * 2 + thread;
                        let handle = &handles[(i % 2) as usize];
                        match i % 5 {
                            0 => drop(store.write_wait(handle, &key(at), None)),
                            1 => {
                                let mut batch = hither_engine::Batch::default();
                                handles.iter().for_each(|handle| batch.put(handle, &key(at), &i.to_le_bytes(), 0));
                                let _ = store.commit(&batch, &Default::default());
                            }
                            _ => drop(store.write_wait(handle, &key(at), Some(&[i as u8; 60]))),
                        }
                    }
                });
            }
            for _ in 0..4 {
                store.checkpoint().unwrap();
                store.reclaim().unwrap();
            }
        });
        let (found, _) = restart(&images(&life), &life.checkpoints.latest()).unwrap();
        assert_eq!(found, dump(&life), "round {round}");
    }
}

/// A place for checkpoints that runs `what` once, at the first append to a draft: the checkpoint has begun, but the
/// indexes are not copied yet.
struct Meanwhile<F> {
    place: Checkpoints,
    what: Arc<Mutex<Option<F>>>,
}

struct MeanwhileDraft<F>(Box<dyn CheckpointDraft>, Arc<Mutex<Option<F>>>);

impl<F: FnOnce() + Send + 'static> CheckpointStore for Meanwhile<F> {
    fn open(&self) -> io::Result<Option<Box<dyn CheckpointImage>>> {
        self.place.open()
    }

    fn draft(&self) -> io::Result<Box<dyn CheckpointDraft>> {
        Ok(Box::new(MeanwhileDraft(self.place.draft()?, self.what.clone())))
    }

    fn remove(&self) -> io::Result<()> {
        self.place.remove()
    }
}

impl<F: FnOnce() + Send> CheckpointDraft for MeanwhileDraft<F> {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.append(bytes)?;
        let what = self.1.lock().unwrap().take();
        what.into_iter().for_each(|what| what());
        Ok(())
    }

    fn harden(&mut self) -> io::Result<()> {
        self.0.harden()
    }

    fn publish(self: Box<Self>) -> io::Result<()> {
        self.0.publish()
    }
}

/// Pools that were copied while a checkpoint was being taken, and after a collection had begun: the checkpoint may name
/// entries that are newer than the copies.
///
/// Regression: the settled version of such pools was not below the checkpoint's version, so the checkpoint was used.
/// Keys that were overwritten after the copy of the pools was made were then missing.
#[test]
fn pools_from_the_midst_of_a_checkpoint_do_without_it() {
    let first = life(100);
    let wanted = dump(&first);
    first.store.close().unwrap();
    let recorded = hither_testkit::images::Recorder::new(CONFIG.rules, 1);
    let (recorder, place) = (recorded.clone(), Checkpoints::new(None, Some(recorded.clone())));
    let what = Arc::new(Mutex::new(None));
    let pools = open_pools(&images(&first), CONFIG.rules, Some(&recorded)).unwrap();
    let options = store_options(pools, &first.topology, 1, 1, None);
    let meanwhile = Meanwhile { place: place.clone(), what: what.clone() };
    let store = Arc::new(Store::open(Options { checkpoint_store: Some(Arc::new(meanwhile)), ..options }).unwrap());
    let (at, copied) = (store.clone(), Arc::new(AtomicUsize::new(0)));
    let position = copied.clone();
    *what.lock().unwrap() = Some(move || {
        position.store(recorder.position(), Ordering::Relaxed);
        for name in ["one", "two"] {
            let keyspace = at.open_keyspace(name).unwrap();
            (0..100).for_each(|i| assert!(at.write_wait(&keyspace, &key(i), Some(b"later")).is_ok()));
        }
    });
    store.checkpoint().unwrap();
    let kept = place.latest();
    let version = parts(kept.as_ref().unwrap()).0.version;
    let mut machine = Machine::new(&recorded.recording());
    machine.advance_to(copied.load(Ordering::Relaxed));
    let image = machine.visible();
    // The version that a collection that began meanwhile persists first.
    let recorder = hither_testkit::images::Recorder::new(CONFIG.rules, 1);
    open_pools(&image, CONFIG.rules, Some(&recorder)).unwrap()[0].set_settled(version + 1).unwrap();
    let mut machine = Machine::new(&recorder.recording());
    machine.advance_to(usize::MAX);
    assert_eq!(restart(&machine.visible(), &kept).unwrap(), (wanted, RestartSource::Scan));
}

/// Header and tables of a checkpoint, and the offset at which its blocks end.
fn parts(bytes: &[u8]) -> (Header, Index, usize) {
    let header = Header::decode(bytes[..HEADER_BYTES].try_into().unwrap()).unwrap();
    let trailer = Trailer::decode(bytes[bytes.len() - TRAILER_BYTES..].try_into().unwrap(), bytes.len() as u64).unwrap();
    let end = trailer.index_offset as usize;
    (header, Index::decode(&trailer, &bytes[end..end + trailer.index_bytes]).unwrap(), end)
}

/// The blocks of `bytes` with another header and other tables.
fn with_tables(bytes: &[u8], header: &Header, index: &Index) -> Kept {
    let end = parts(bytes).2;
    Some(Arc::new([&header.encode(), &bytes[HEADER_BYTES..end], &index.encode(end as u64)].concat()))
}

/// Planted: a loader that does not compare generations. The checkpoint's table gets the present generations of the
/// segments.
#[test]
fn a_loader_that_ignores_generations_is_caught() {
    let mut life = life(150);
    life.checkpoint();
    delete(&mut life, 0..30);
    for _ in 0..5 {
        put(&mut life, 30..150);
        life.reclaim();
        life.reclaim();
    }
    // Into segments that were freed; these are then sealed.
    put(&mut life, 30..150);
    life.reclaim();
    let (images, bytes, wanted) = (images(&life), life.checkpoints.latest().unwrap(), dump(&life));
    assert_eq!(restart(&images, &Some(bytes.clone())).unwrap(), (wanted.clone(), RestartSource::Checkpoint));
    let (header, mut index, _) = parts(&bytes);
    let pools = open_pools(&images, CONFIG.rules, None).unwrap();
    let mut differ = 0;
    for row in &mut index.segments {
        let descriptor = pools[0].descriptor(row.index).unwrap();
        differ += u32::from(row.generation != descriptor.generation);
        (row.generation, row.entries, row.written_bytes) = (descriptor.generation, descriptor.entries, descriptor.sealed_bytes);
    }
    assert!(differ > 5, "the story reuses segments");
    let found = restart(&images, &with_tables(&bytes, &header, &index));
    assert!(found.is_err() || found.is_ok_and(|(found, _)| found != wanted), "the planted loader was not caught");
}

/// Planted: the covered segments and S are taken after the indexes were copied. Blocks of an earlier checkpoint get the
/// tables of a later one.
#[test]
fn a_capture_behind_the_copy_is_caught() {
    let mut life = life(100);
    life.checkpoint();
    let copied = life.checkpoints.latest().unwrap();
    put(&mut life, 90..180);
    delete(&mut life, 0..10);
    life.checkpoint();
    let captured = life.checkpoints.latest().unwrap();
    let (images, wanted) = (images(&life), dump(&life));
    assert_eq!(restart(&images, &Some(captured.clone())).unwrap().0, wanted);
    let ((_, early, _), (header, late, _)) = (parts(&copied), parts(&captured));
    let mut index = Index { segments: late.segments, newest_version: late.newest_version, ..early };
    let seed = parts(&copied).0.hash_seed;
    assert_eq!(seed, header.hash_seed, "one process, one seed");
    index.keyspaces.truncate(2);
    let found = restart(&images, &with_tables(&copied, &header, &index));
    assert!(found.is_err() || found.is_ok_and(|(found, _)| found != wanted), "the planted capture was not caught");
}

/// Planted: the clean flag is not cleared before the first write. The flag is set again in the image of a store that
/// was written to and then crashed.
#[test]
fn a_clean_flag_that_stays_is_caught() {
    let first = life(60);
    first.store.close().unwrap();
    let (images, kept) = (images(&first), first.checkpoints.latest());
    let recorder = hither_testkit::images::Recorder::new(CONFIG.rules, 1);
    let place = Checkpoints::new(kept, Some(recorder.clone()));
    let pools = open_pools(&images, CONFIG.rules, Some(&recorder)).unwrap();
    let store = Store::open(store_options(pools, &first.topology, 1, 1, Some(&place))).unwrap();
    let keyspace = store.open_keyspace("one").unwrap();
    // Few enough writes to stay in the segment that was open.
    store.write_wait(&keyspace, b"a new key", Some(b"a value")).unwrap();
    store.write_wait(&keyspace, &key(1), None).unwrap();
    let wanted = Dump::read(&store).unwrap();
    let mut machine = Machine::new(&recorder.recording());
    machine.advance_to(usize::MAX);
    let crashed = machine.visible();
    assert_eq!(restart(&crashed, &place.latest()).unwrap(), (wanted.clone(), RestartSource::Checkpoint));
    let recorder = hither_testkit::images::Recorder::new(CONFIG.rules, 1);
    open_pools(&crashed, CONFIG.rules, Some(&recorder)).unwrap()[0].mark_clean().unwrap();
    let mut machine = Machine::new(&recorder.recording());
    machine.advance_to(usize::MAX);
    let found = restart(&machine.visible(), &place.latest());
    assert!(found.is_err() || found.is_ok_and(|(found, _)| found != wanted), "the planted flag was not caught");
}

fn on_files(dir: &std::path::Path, checkpoints: CheckpointMode, failpoints: Option<Arc<Failpoints>>) -> Store {
    let options = Options {
        paths: vec![(None, dir.to_owned())],
        medium: MediumChoice::File,
        capacity: 1 << 20,
        max_capacity: 16 << 20,
        segment_bytes: 4096,
        checkpoints,
        failpoints,
        ..Options::default()
    };
    Store::open(options).unwrap()
}

/// No space for the checkpoint, or another failure: the store continues and reports the failure, and the next restart
/// scans.
#[test]
fn a_checkpoint_that_cannot_be_written_costs_nothing_but_time() {
    for point in ["checkpoint_create", "checkpoint_write", "checkpoint_sync", "checkpoint_rename"] {
        let (dir, failpoints) = (common::shm(), Failpoints::new());
        let store = on_files(dir.path(), CheckpointMode::Auto, Some(failpoints.clone()));
        let keyspace = store.create_keyspace("one", Kind::Hash).unwrap();
        for i in 0..200u64 {
            store.write_wait(&keyspace, &i.to_le_bytes(), Some(b"value")).unwrap();
        }
        failpoints.arm(point, FailAt { skip: 0, count: u64::MAX, errno: 28 });
        assert!(store.checkpoint().is_err());
        assert!(!store.stats().checkpoints.failure.is_empty());
        store.write_wait(&keyspace, b"later", Some(b"value")).unwrap();
        drop((store, keyspace));
        assert!(!dir.path().join("checkpoint.hither").exists() && !dir.path().join("checkpoint.hither.tmp").exists(), "{point}");
        let store = on_files(dir.path(), CheckpointMode::Auto, None);
        assert_eq!((store.recovery().source, store.recovery().clean, store.recovery().keys), (RestartSource::Scan, true, 201), "{point}");
    }
}

#[test]
fn files_restart_fast_and_leftovers_go() {
    let dir = common::shm();
    let store = on_files(dir.path(), CheckpointMode::Every(64 << 10), None);
    let keyspace = store.create_keyspace("one", Kind::Ordered).unwrap();
    for i in 0..4000u64 {
        store.write_wait(&keyspace, &i.to_be_bytes(), Some(&[7; 50])).unwrap();
    }
    while store.stats().checkpoints.taken == 0 {
        // The background checks every few milliseconds; the loop ends as soon as it has taken a checkpoint.
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let stats = store.stats().checkpoints;
    drop((store, keyspace));
    assert!(stats.enabled && stats.taken > 0 && stats.present, "the background takes checkpoints: {stats:?}");
    std::fs::write(dir.path().join("checkpoint.hither.tmp"), b"left over").unwrap();
    let store = on_files(dir.path(), CheckpointMode::Auto, None);
    // The last checkpoint of the background may have sufficed for the close.
    assert_ne!(store.recovery().source, RestartSource::Scan);
    assert_eq!((store.recovery().keys, store.recovery().clean), (4000, true));
    assert!(!dir.path().join("checkpoint.hither.tmp").exists());
    drop(store);
    let store = on_files(dir.path(), CheckpointMode::Off, None);
    assert_eq!((store.recovery().source, store.recovery().keys), (RestartSource::Scan, 4000));
    drop(store);
    assert!(!dir.path().join("checkpoint.hither").exists(), "switched off, there is none");
    let pool = Pool::open(&dir.path().join("node0.hither"), &OpenOptions::new()).unwrap();
    assert!(pool.was_clean());
}
