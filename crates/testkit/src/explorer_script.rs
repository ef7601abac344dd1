//! Seeded histories: the production engine at work on recorded pools.
//!
//! A [`Life`] opens a new store on shadow pools and performs one operation after the other. For each it notes what the
//! operation did and between which steps of the recording it ran. The seed determines the history, including the
//! store's generations and hash seeds. Only the times on media come from the clock.

use crate::checkpoints::Checkpoints;
use crate::coverage::{Coverage, Item};
use crate::images::Recorder;
use crate::oracle::{Deed, Done, Effect, History};
use hither_engine::{
    Batch, CollectorKind, Condition, Durability, Error, Expiry, KeyspaceHandle, Kind, Options, OrderedKind, Store, WriteOptions,
};
use hither_pmem::shadow::ShadowRng;
use hither_pmem::{CreateOptions, Emulate, OpenOptions, Pool, Randomness};
use hither_topology::Topology;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Bytes of a segment in the histories.
pub const SEGMENT: u64 = 4096;
const FIRST_SEGMENTS: u64 = 8;

/// A configuration of a store.
#[derive(Clone, Debug)]
pub struct Config {
    /// The rules of the emulated medium.
    pub rules: Emulate,
    /// Number of nodes, with one pool each.
    pub nodes: usize,
    /// Number of shards.
    pub shards: u32,
    /// Growth limit of each pool, in segments.
    pub max_segments: u64,
    /// Seed of the history.
    pub seed: u64,
}

impl Config {
    /// Whether each second deed is done by another thread, whose fences make nothing of the first one's durable; so with
    /// half of the seeds. Not where the caches are durable: what another thread has seen is in the caches, and so needs
    /// no fence, but the replay does not know what it has seen.
    pub fn alternates(&self) -> bool {
        self.rules != Emulate::Eadr && self.seed / 2 % 2 == 1
    }
}

/// How a write asks for durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Sync, awaited.
    Sync,
    /// Sync, the ticket dropped.
    Ticket,
    /// Process.
    Process,
}

/// Keyspace, key and new value (`None` deletes) of a batch's member.
pub type Change = (usize, Vec<u8>, Option<Vec<u8>>);

/// Values by keyspace and key, and whether they are expired.
pub type Shown = BTreeMap<(usize, Vec<u8>), (Vec<u8>, bool)>;

/// A store at work, with its recording and its history.
pub struct Life {
    /// The store's configuration.
    pub config: Config,
    /// The nodes.
    pub topology: Arc<Topology>,
    /// The recorder of its pools.
    pub recorder: Arc<Recorder>,
    /// Its checkpoints, by position.
    pub checkpoints: Checkpoints,
    /// The store.
    pub store: Store,
    /// The operations done so far.
    pub history: History,
    /// What the life covered so far.
    pub coverage: Coverage,
    /// Steps until the creation of the pools was complete.
    pub born: usize,
    /// Keyspaces by number; `None` if dropped.
    pub(crate) handles: Vec<Option<KeyspaceHandle>>,
    pub(crate) now: Shown,
    /// Whether versions were skipped.
    skipped: bool,
    pub(crate) rng: ShadowRng,
}

/// Options of a store on the given pools: without background threads, and without checkpoints unless `checkpoints` is
/// given.
pub fn store_options(
    pools: Vec<Pool>,
    topology: &Arc<Topology>,
    shards: u32,
    threads: usize,
    checkpoints: Option<&Checkpoints>,
) -> Options {
    let pools = Mutex::new(Some(pools));
    let take = move || Ok(pools.lock().unwrap_or_else(PoisonError::into_inner).take().expect("a test opens its pools once"));
    Options {
        pools: Some(Arc::new(take)),
        checkpoint_store: checkpoints.map(|place| Arc::new(place.clone()) as Arc<dyn hither_engine::CheckpointStore>),
        topology: Some(topology.clone()),
        background: false,
        hugepages: false,
        latches: 64,
        shards,
        ordered_index: if shards == 2 { OrderedKind::Learned } else { OrderedKind::BTree },
        // Over the tests, each medium meets both collectors with both indexes.
        collector: if (shards as usize + topology.node_count() as usize).is_multiple_of(2) {
            CollectorKind::Chain
        } else {
            CollectorKind::Batched
        },
        threads,
        shortcut_from_bytes: Some(32),
        ..Options::default()
    }
}

/// Opens the pools of an image.
pub fn open_pools(images: &[Vec<u8>], rules: Emulate, recorder: Option<&Arc<Recorder>>) -> hither_pmem::Result<Vec<Pool>> {
    let open = |(node, image): (usize, &Vec<u8>)| {
        let tracer = recorder.map(|recorder| recorder.tracer(node));
        Pool::from_image(image, &OpenOptions { emulate: Some(rules), tracer, ..OpenOptions::default() })
    };
    images.iter().enumerate().map(open).collect()
}

fn create_pools(config: &Config, recorder: &Arc<Recorder>, random: &Randomness) -> hither_pmem::Result<Vec<Pool>> {
    let store = random.uuid();
    let members: Vec<_> = (0..config.nodes).map(|_| random.uuid()).collect();
    let create = |node: usize| {
        Pool::create_in_memory(&CreateOptions {
            segment_bytes: SEGMENT,
            max_bytes: config.max_segments * SEGMENT,
            hugepages: false,
            emulate: Some(config.rules),
            tracer: Some(recorder.tracer(node)),
            ..CreateOptions::member(store, members.clone(), node as u32, FIRST_SEGMENTS.min(config.max_segments) * SEGMENT)
        })
    };
    let pools = (0..config.nodes).map(create).collect::<hither_pmem::Result<Vec<_>>>()?;
    for pool in pools.iter().rev() {
        pool.finish_creation()?;
    }
    Ok(pools)
}

/// Accepts `error` if it reports a full store and the store may be full: with `bytes` more, over half of the segment
/// limit of some pool would be in use.
///
/// # Errors
/// A description of any other error, or of a full store that should have had room.
pub fn lacks_space(store: &Store, error: &Error, bytes: usize) -> Result<(), String> {
    let more = bytes as u64 / SEGMENT + 1;
    let tight = store.stats().pools.iter().any(|pool| 2 * (pool.usage.segments - pool.usage.free + more) > pool.usage.max_segments);
    match error {
        Error::Full { .. } | Error::NotAdjacent { .. } if tight => Ok(()),
        _ => Err(format!("a write fails only for lack of space: {error}")),
    }
}

impl Life {
    /// Creates a store.
    ///
    /// # Panics
    /// If the creation fails: nothing may fail before anything was written.
    pub fn begin(config: &Config) -> Life {
        let topology = Arc::new(Topology::emulated(config.nodes));
        topology.bind_current_thread(0).expect("node 0 exists");
        let recorder = Recorder::new(config.rules, config.nodes);
        let random = Randomness::seeded(config.seed);
        let pools = create_pools(config, &recorder, &random).expect("pools in memory can be made");
        let born = recorder.position();
        let checkpoints = Checkpoints::new(None, Some(recorder.clone()));
        let options = Options { random, ..store_options(pools, &topology, config.shards, 1, Some(&checkpoints)) };
        let store = Store::open(options).expect("an empty store opens");
        let mut coverage = Coverage::default();
        coverage.hit(Item::PoolCreation);
        Life {
            config: config.clone(),
            topology,
            recorder,
            checkpoints,
            store,
            history: History::default(),
            coverage,
            born,
            handles: Vec::new(),
            now: BTreeMap::new(),
            skipped: false,
            rng: ShadowRng::new(config.seed),
        }
    }

    fn note<R: Send>(&mut self, work: impl FnOnce(&mut Life) -> (R, Deed) + Send) -> R {
        let begin = self.recorder.position();
        let is_handed_over = self.config.alternates() && self.history.deeds.len() % 2 == 1;
        let (result, deed) = if is_handed_over { self.hand_over(work) } else { work(self) };
        self.history.deeds.push(Done { begin, end: self.recorder.position(), deed });
        result
    }

    /// Has another thread do the work.
    fn hand_over<R: Send>(&mut self, work: impl FnOnce(&mut Life) -> R + Send) -> R {
        let work = || {
            self.topology.bind_current_thread(0).expect("node 0 exists");
            work(self)
        };
        std::thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Creates a keyspace; returns its number.
    pub fn create(&mut self, name: &str, kind: Kind) -> usize {
        let number = self.handles.len();
        self.history.keyspaces.push((name.to_owned(), kind));
        self.coverage.hit(Item::CatalogueChange);
        self.note(|life| {
            let handle = life.store.create_keyspace(name, kind).expect("a new keyspace can be created");
            life.handles.push(Some(handle));
            (number, Deed::Create(number))
        })
    }

    /// Drops a keyspace.
    pub fn drop_keyspace(&mut self, number: usize) {
        self.note(|life| {
            let name = life.name(number);
            assert!(life.store.drop_keyspace(&name).expect("a keyspace can be dropped"), "it was there");
            life.handles[number] = None;
            life.now.retain(|slot, _| slot.0 != number);
            ((), Deed::Drop(number))
        });
    }

    /// Exchanges the names of keyspaces, all pairs by one call of the store. With `in_two_steps` each pair has its own
    /// call. That is a planted mistake: the history notes one atomic exchange, but a crash may come between the calls.
    pub fn swap_keyspaces(&mut self, pairs: &[(usize, usize)], in_two_steps: bool) {
        self.coverage.hit(Item::KeyspaceSwap);
        self.note(|life| {
            let names: Vec<(String, String)> = pairs.iter().map(|(a, b)| (life.name(*a), life.name(*b))).collect();
            let names: Vec<(&str, &str)> = names.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
            for call in names.chunks(if in_two_steps { 1 } else { names.len() }) {
                assert!(life.store.swap_keyspaces(call).expect("names can be exchanged"), "both are there");
            }
            for ((a, b), (name_of_a, name_of_b)) in pairs.iter().zip(names) {
                // The old handles are refused.
                life.handles[*a] = life.store.open_keyspace(name_of_b);
                life.handles[*b] = life.store.open_keyspace(name_of_a);
            }
            ((), Deed::Swap(pairs.to_vec()))
        });
    }

    /// The name that a keyspace has now.
    pub(crate) fn name(&self, number: usize) -> String {
        self.handle(number).info().name.clone()
    }

    fn handle(&self, number: usize) -> KeyspaceHandle {
        self.handles[number].clone().expect("scripts use keyspaces that are there")
    }

    fn options(level: Level, expired: bool) -> WriteOptions {
        let durability = if level == Level::Process { Durability::Process } else { Durability::Sync };
        WriteOptions { durability: Some(durability), expiry: expired.then_some(Expiry::AtMs(1)) }
    }

    /// Puts or deletes a key; returns false if the store was full.
    pub fn write(&mut self, keyspace: usize, key: &[u8], value: Option<Vec<u8>>, level: Level, expired: bool) -> bool {
        let handle = self.handle(keyspace);
        if value.as_ref().is_some_and(|value| value.len() as u64 > SEGMENT) {
            self.coverage.hit(Item::Run);
        }
        self.note(|life| {
            let options = Life::options(level, expired);
            match life.store.write(&handle, key, value.as_deref(), Condition::None, &options) {
                Ok((_, _, ticket)) => {
                    if level == Level::Sync {
                        ticket.wait().expect("nothing makes a sync fail");
                    }
                    let durable = level == Level::Sync || level == Level::Ticket && ticket.is_durable();
                    let absent = value.is_none() && !life.now.contains_key(&(keyspace, key.to_vec()));
                    let effect = Effect { keyspace, key: key.to_vec(), value: value.clone(), expired };
                    life.apply(&effect);
                    // Deleting an absent key writes nothing; it only answers that the key is absent.
                    (true, if absent { Deed::Answer(keyspace, key.to_vec()) } else { Deed::Write(vec![effect], durable) })
                }
                Err(error) => life.refused(&error, key.len() + value.as_ref().map_or(0, Vec::len)),
            }
        })
    }

    /// The result of a write that found no space.
    fn refused(&self, error: &Error, bytes: usize) -> (bool, Deed) {
        lacks_space(&self.store, error, bytes).unwrap_or_else(|what| panic!("{what}"));
        (false, Deed::Other)
    }

    /// Puts or deletes a pair by the call that waits, as most applications do; mostly that takes the lean path. Returns
    /// false if the store was full.
    pub fn pair(&mut self, keyspace: usize, key: u64, value: Option<u64>) -> bool {
        let (handle, key) = (self.handle(keyspace), key.to_be_bytes());
        let value = value.map(u64::to_be_bytes);
        self.note(|life| match life.store.write_wait(&handle, &key, value.as_ref().map(|value| &value[..])) {
            Ok(existed) => {
                assert_eq!(existed, life.now.contains_key(&(keyspace, key.to_vec())), "whether the key was there");
                if value.is_none() && !existed {
                    return (true, Deed::Answer(keyspace, key.to_vec()));
                }
                let effect = Effect { keyspace, key: key.to_vec(), value: value.map(Vec::from), expired: false };
                life.apply(&effect);
                (true, Deed::Write(vec![effect], true))
            }
            Err(error) => life.refused(&error, 16),
        })
    }

    fn apply(&mut self, effect: &Effect) {
        let slot = (effect.keyspace, effect.key.clone());
        match &effect.value {
            Some(value) => self.now.insert(slot, (value.clone(), effect.expired)),
            None => self.now.remove(&slot),
        };
    }

    /// Compares and swaps; `right` decides whether the expectation is the current value or a wrong one.
    pub fn swap(&mut self, keyspace: usize, key: &[u8], new: Option<Vec<u8>>, right: bool) {
        let handle = self.handle(keyspace);
        let current = self.now.get(&(keyspace, key.to_vec())).filter(|(_, expired)| !expired).map(|(value, _)| value.clone());
        let expected = if right { current.clone() } else { Some(b"never written".to_vec()) };
        self.note(|life| {
            let condition = Condition::Value(expected.as_deref());
            match life.store.write(&handle, key, new.as_deref(), condition, &WriteOptions::new()) {
                Ok((applied, _, ticket)) => {
                    assert_eq!(applied, right, "compare-and-swap of {key:?}");
                    ticket.wait().expect("nothing makes a sync fail");
                    if !applied || new.is_none() && !life.now.contains_key(&(keyspace, key.to_vec())) {
                        return ((), Deed::Answer(keyspace, key.to_vec()));
                    }
                    let effect = Effect { keyspace, key: key.to_vec(), value: new.clone(), expired: false };
                    life.apply(&effect);
                    ((), Deed::Write(vec![effect], true))
                }
                Err(error) => ((), life.refused(&error, key.len() + new.as_ref().map_or(0, Vec::len)).1),
            }
        });
    }

    /// Commits a batch of puts and deletes; returns false if the store was full.
    pub fn batch(&mut self, changes: &[Change], level: Level) -> bool {
        let mut batch = Batch::default();
        let mut effects: BTreeMap<(usize, Vec<u8>), Effect> = BTreeMap::new();
        for (keyspace, key, value) in changes {
            match value {
                Some(value) => batch.put(&self.handle(*keyspace), key, value, 0),
                None => batch.delete(&self.handle(*keyspace), key),
            }
            let effect = Effect { keyspace: *keyspace, key: key.clone(), value: value.clone(), expired: false };
            effects.insert((*keyspace, key.clone()), effect);
        }
        self.note(|life| match life.store.commit(&batch, &Life::options(level, false)) {
            Ok(ticket) => {
                if level == Level::Sync {
                    ticket.wait().expect("nothing makes a sync fail");
                }
                let durable = level == Level::Sync || level == Level::Ticket && ticket.is_durable();
                // Deletes of absent keys count, too: an earlier delete may still be lost, and then the one in the batch
                // keeps the key absent.
                let effects: Vec<Effect> = effects.into_values().collect();
                effects.iter().for_each(|effect| life.apply(effect));
                life.coverage.hit(Item::Batch);
                (true, Deed::Write(effects, durable))
            }
            Err(error) => {
                life.coverage.hit(Item::FullStore);
                life.refused(&error, changes.iter().map(|(_, key, value)| key.len() + value.as_ref().map_or(0, Vec::len)).sum())
            }
        })
    }

    /// Reads a key at the store's level and compares the result with what was written.
    pub fn get(&mut self, keyspace: usize, key: &[u8]) {
        let handle = self.handle(keyspace);
        self.note(|life| {
            let found = life.store.get_with(&handle, key, <[u8]>::to_vec).expect("reads do not fail");
            let wanted = life.now.get(&(keyspace, key.to_vec())).filter(|(_, expired)| !expired).map(|(value, _)| value);
            assert_eq!(found.as_ref(), wanted, "a get of {key:?} before any crash");
            ((), Deed::Answer(keyspace, key.to_vec()))
        });
    }

    /// Syncs the store.
    pub fn sync(&mut self) {
        self.note(|life| (life.store.sync().expect("nothing makes a sync fail"), Deed::Sync));
    }

    /// Collects garbage.
    pub fn reclaim(&mut self) {
        let before = self.store.stats().collections;
        self.note(|life| {
            life.store.reclaim().expect("reclaiming does not fail");
            ((), Deed::Other)
        });
        let after = self.store.stats().collections;
        let grown = [
            (Item::Moved, before.moved_entries, after.moved_entries),
            (Item::MovedTombstone, before.moved_tombstones, after.moved_tombstones),
            (Item::Swept, before.swept, after.swept),
            (Item::ShortcutFollowed, before.shortcut_hits, after.shortcut_hits),
        ];
        grown.into_iter().filter(|(_, before, after)| after > before).for_each(|(item, ..)| self.coverage.hit(item));
        if self.skipped && after.moved_entries > before.moved_entries {
            self.coverage.hit(Item::MovedOld);
        }
    }

    /// Skips so many versions that no segment can hold entries from both before and after.
    pub fn skip_versions(&mut self) {
        self.store.skip_versions(1 << 33);
        self.skipped = true;
    }

    /// Takes a checkpoint.
    pub fn checkpoint(&mut self) {
        self.note(|life| {
            assert!(life.store.checkpoint().expect("nothing makes a checkpoint fail"), "nobody makes it void");
            ((), Deed::Other)
        });
    }

    /// Deletes expired keys one by one, in no promised order.
    pub fn sweep(&mut self) {
        // A sweep stores the time if it is later than the last one stored. The sleep makes it later in every run;
        // otherwise a history could not be repeated.
        std::thread::sleep(Duration::from_millis(2));
        let begin = self.recorder.position();
        if self.store.sweep_expired() > 0 {
            self.coverage.hit(Item::Sweep);
        }
        let end = self.recorder.position();
        let gone: Vec<_> = self.now.iter().filter(|(_, (_, expired))| *expired).map(|(slot, _)| slot.clone()).collect();
        for (keyspace, key) in gone {
            let effect = Effect { keyspace, key, value: None, expired: false };
            self.apply(&effect);
            self.history.deeds.push(Done { begin, end, deed: Deed::Sweep(effect) });
        }
    }

    /// Moves this thread to a node.
    pub fn bind(&mut self, node: usize) {
        self.topology.bind_current_thread((node % self.config.nodes) as u32).expect("the node exists");
    }

    /// A value of `len` bytes (at least 8) that identifies this write.
    pub fn value(&mut self, len: usize) -> Vec<u8> {
        let number = (self.history.deeds.len() as u64) << 16 | self.rng.next_u64() & 0xffff;
        let mut value = number.to_be_bytes().to_vec();
        value.extend((8..len).map(|i| (i as u8) ^ (number as u8)));
        value
    }

    /// Counts what the store's statistics and the recording show.
    pub fn observe(&mut self) {
        for pool in self.store.stats().pools {
            if pool.usage.closed > 0 || pool.usage.reused > 0 {
                self.coverage.hit(Item::SegmentSwitch);
            }
            if pool.usage.reused > 0 {
                self.coverage.hit(Item::SegmentReuse);
            }
        }
        for keyspace in self.store.stats().keyspaces {
            self.coverage.index(keyspace.kind, keyspace.keys);
        }
        self.coverage.steps(&self.recorder.recording().steps);
    }
}
