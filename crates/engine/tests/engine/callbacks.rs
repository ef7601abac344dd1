//! Callbacks of tickets run where nothing of the store is locked, whichever thread led the commit.

use crate::common::small;
use hither_engine::{Condition, Durability, KeyspaceHandle, Kind, MediumChoice, Options, Store, WriteOptions};
use hither_pmem::{FailAt, Failpoints};
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// A store on files, in which only the calls of a test lead commits.
fn open(dir: &Path) -> Arc<Store> {
    let sizes = Options { capacity: 2 << 20, max_capacity: 2 << 20, shards: 1, ..small() };
    let options = Options { paths: vec![(None, dir.to_owned())], medium: MediumChoice::File, durability: Durability::Sync, ..sizes };
    Arc::new(Store::open(options).unwrap())
}

/// Writes without waiting.
fn put_relaxed(store: &Store, keyspace: &KeyspaceHandle, key: u64) -> hither_engine::Result<hither_engine::Ticket> {
    let options = WriteOptions::new().durability(Durability::Sync);
    store.write(keyspace, &key.to_be_bytes(), Some(&[7; 1_000]), Condition::None, &options).map(|(_, _, ticket)| ticket)
}

/// Calls `f` when what was written so far is durable; sends the result of `f`.
fn when_durable<R: Send + 'static>(
    store: &Arc<Store>,
    keyspace: &KeyspaceHandle,
    f: impl FnOnce(&Store) -> R + Send + 'static,
) -> Receiver<R> {
    let (tell, told) = channel();
    let mine = store.clone();
    put_relaxed(store, keyspace, 0).unwrap().on_durable(move |outcome| {
        outcome.unwrap();
        tell.send(f(&mine)).unwrap();
    });
    told
}

/// Leads commits with locks held, and then one without, after which the callbacks run that no thread in the background
/// runs.
fn reclaim_and_sync(store: Arc<Store>) {
    std::thread::spawn(move || {
        store.reclaim().unwrap();
        put_relaxed(&store, &store.open_keyspace("k").unwrap(), 0).unwrap().wait().unwrap();
    });
}

/// A store with some entries that are not durable yet. A callback asks for the number of pools when they are.
fn ask_for_statistics(dir: &Path) -> (Arc<Store>, Receiver<usize>) {
    let store = open(dir);
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    (1..200).for_each(|key| drop(put_relaxed(&store, &keyspace, key).unwrap()));
    let told = when_durable(&store, &keyspace, |store| store.stats().pools.len());
    (store, told)
}

/// A store of which nearly all is garbage.
fn open_with_garbage(dir: &Path) -> (Arc<Store>, KeyspaceHandle) {
    let store = open(dir);
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    (1..1_200).for_each(|number| drop(put_relaxed(&store, &keyspace, number % 300).unwrap()));
    (store, keyspace)
}

/// Overwrites more in a callback than there is space for without garbage.
fn overwrite_when_durable(store: &Arc<Store>, keyspace: &KeyspaceHandle) -> Receiver<hither_engine::Result<()>> {
    let mine = keyspace.clone();
    when_durable(store, keyspace, move |store| (0..2_000).try_for_each(|number| put_relaxed(store, &mine, number % 300).map(drop)))
}

fn receive<R>(told: &Receiver<R>) -> R {
    told.recv_timeout(Duration::from_secs(60)).expect("it waits for its own thread")
}

/// Regression: a thread that seals segments leads a commit while it holds what statistics lock, too.
#[test]
fn statistics_are_had_in_a_callback() {
    let dir = tempfile::tempdir().unwrap();
    let (store, told) = ask_for_statistics(dir.path());
    reclaim_and_sync(store);
    assert_eq!(receive(&told), 1);
}

/// Regression: a thread that collects leads a commit while it holds what a write locks that finds no space.
#[test]
fn a_write_makes_space_in_a_callback() {
    let dir = tempfile::tempdir().unwrap();
    let (store, keyspace) = open_with_garbage(dir.path());
    let told = overwrite_when_durable(&store, &keyspace);
    reclaim_and_sync(store);
    receive(&told).unwrap();
}

/// Regression: a read that waits for the durability of what it returns leads a commit. A write in a callback behind it
/// found no space, because it could not wait for readers.
#[test]
fn a_write_makes_space_in_a_callback_behind_a_read() {
    let dir = tempfile::tempdir().unwrap();
    let (store, keyspace) = open_with_garbage(dir.path());
    let told = overwrite_when_durable(&store, &keyspace);
    assert!(store.get_with(&keyspace, &0u64.to_be_bytes(), |_| ()).unwrap().is_some());
    store.sync().unwrap();
    receive(&told).unwrap();
}

/// Regression: a checkpoint leads a commit while it holds what statistics lock, too.
#[test]
fn a_callback_that_is_due_at_a_close_runs() {
    let dir = tempfile::tempdir().unwrap();
    let (store, told) = ask_for_statistics(dir.path());
    let closing = std::thread::spawn(move || {
        assert!(store.checkpoint().unwrap());
        store.close().unwrap();
    });
    assert_eq!(receive(&told), 1);
    closing.join().unwrap();
}

/// Regression: a thread that exchanges names leads a commit with the catalogue locked.
#[test]
fn names_are_exchanged_with_no_callback_under_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    store.create_keyspace("l", Kind::Hash).unwrap();
    // The callback waits for a thread that wants the catalogue, as it may by way of a lock of its own.
    let told = when_durable(&store, &keyspace, |store| {
        std::thread::scope(|scope| {
            let (tell, told) = channel();
            scope.spawn(move || {
                let _ = tell.send(store.create_keyspace("m", Kind::Hash).is_ok());
            });
            told.recv_timeout(Duration::from_secs(60)).unwrap()
        })
    });
    std::thread::spawn(move || {
        store.swap_keyspaces(&[("k", "l")]).unwrap();
        let keyspace = store.open_keyspace("k").unwrap();
        put_relaxed(&store, &keyspace, 0).unwrap().wait().unwrap();
    });
    assert!(receive(&told));
}

/// Regression: a callback had to wait for the close if the last write met a failed sync, of the segment that it opened.
#[test]
fn a_write_that_meets_a_failed_sync_calls_back() {
    let (dir, points) = (tempfile::tempdir().unwrap(), Failpoints::new());
    let store = Store::open(Options {
        paths: vec![(None, dir.path().to_owned())],
        medium: MediumChoice::File,
        durability: Durability::Sync,
        shards: 1,
        failpoints: Some(points.clone()),
        ..small()
    });
    let store = Arc::new(store.unwrap());
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    let (tell, told) = channel();
    put_relaxed(&store, &keyspace, 0).unwrap().on_durable(move |outcome| tell.send(outcome.is_err()).unwrap());
    points.arm("sync", FailAt { skip: 0, count: u64::MAX, errno: 5 });
    // More than the open segment has room for.
    assert!((1..200).any(|key| put_relaxed(&store, &keyspace, key).is_err()));
    assert_eq!(told.try_recv(), Ok(true));
}

thread_local! {
    /// Number of links of a chain of callbacks that this thread is in.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// A chain of callbacks. Each makes a write that calls the next one, and another write that makes the first one
/// durable.
#[derive(Clone)]
struct Chain {
    store: Arc<Store>,
    keyspace: KeyspaceHandle,
    deepest: Arc<AtomicUsize>,
    ended: Sender<()>,
}

impl Chain {
    fn follow(self, links: u64) {
        DEPTH.set(DEPTH.get() + 1);
        self.deepest.fetch_max(DEPTH.get(), Ordering::Relaxed);
        if links == 0 {
            self.ended.send(()).unwrap();
        } else {
            let next = self.clone();
            put_relaxed(&self.store, &self.keyspace, links).unwrap().on_durable(move |_| next.follow(links - 1));
            self.store.write_wait(&self.keyspace, b"marker", Some(b"value")).unwrap();
        }
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// Regression: each link of a chain ran inside the one before, until the stack was used up.
#[test]
fn callbacks_do_not_run_inside_each_other() {
    for (in_memory, background) in [(false, false), (false, true), (true, false), (true, true)] {
        let dir = tempfile::tempdir().unwrap();
        let place = if in_memory { small() } else { Options { paths: vec![(None, dir.path().to_owned())], ..small() } };
        let options = Options { in_memory, medium: MediumChoice::File, durability: Durability::Sync, background, ..place };
        let store = Arc::new(Store::open(options).unwrap());
        let (ended, end) = channel();
        let deepest = Arc::new(AtomicUsize::new(0));
        let chain = Chain { keyspace: store.create_keyspace("k", Kind::Hash).unwrap(), store, deepest: deepest.clone(), ended };
        chain.follow(200);
        receive(&end);
        // The first link was no callback.
        let deepest = deepest.load(Ordering::Relaxed);
        assert!(deepest <= 2, "{deepest} (in memory: {in_memory}, background: {background})");
    }
}

/// Regression: a thread that led a commit which made the first link durable went on with the rest of the chain, however
/// long that was.
#[test]
fn a_chain_of_callbacks_keeps_no_stranger() {
    let dir = tempfile::tempdir().unwrap();
    let options =
        Options { paths: vec![(None, dir.path().to_owned())], medium: MediumChoice::File, durability: Durability::Sync, ..small() };
    let store = Arc::new(Store::open(Options { background: true, ..options }).unwrap());
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    let goes_on = Arc::new(AtomicBool::new(true));
    let (tell, told) = channel();
    endless(store.clone(), keyspace.clone(), goes_on.clone(), tell);
    let (return_, returned) = channel();
    std::thread::spawn(move || {
        for key in 0..50u64 {
            store.write_wait(&keyspace, &key.to_le_bytes(), Some(b"value")).unwrap();
        }
        return_.send(()).unwrap();
    });
    let outcome = returned.recv_timeout(Duration::from_secs(200));
    goes_on.store(false, Ordering::Relaxed);
    receive(&told);
    outcome.expect("it runs callbacks of others for ever");
}

/// A link that calls the next one as long as the chain goes on.
fn endless(store: Arc<Store>, keyspace: KeyspaceHandle, goes_on: Arc<AtomicBool>, ended: Sender<()>) {
    if !goes_on.load(Ordering::Relaxed) {
        return ended.send(()).unwrap();
    }
    let ticket = put_relaxed(&store, &keyspace, 1_000).unwrap();
    store.write_wait(&keyspace, b"marker", Some(b"value")).unwrap();
    // The write is already durable.
    ticket.on_durable(move |_| endless(store, keyspace, goes_on, ended));
}
