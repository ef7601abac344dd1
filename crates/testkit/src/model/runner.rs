//! Runs operations on a store and on its model.

use super::{Expect, Expiry, KEYS, Model, Op, Pairs, SPACES, Value, key_bytes};
use hither::{
    CheckpointMode, Db, Durability, Error, Keyspace, KeyspaceOptions, Kind, OrderedKind, Snapshot, Topology, ValueGuard, WriteOptions,
};
use hither_engine::MediumChoice;
use std::fmt::Debug;
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;

/// Where the store under test lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Medium {
    /// In memory: it cannot be opened again.
    Memory,
    /// In a directory, on the given medium.
    Files(PathBuf, MediumChoice),
}

/// A configuration of the store under test.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the store lies.
    pub medium: Medium,
    /// Shards per node.
    pub shards: u32,
    /// Segment size in bytes.
    pub segment_bytes: u64,
    /// Emulated nodes.
    pub nodes: usize,
    /// The store's durability level.
    pub durability: Durability,
}

impl Config {
    /// Opens the store.
    pub fn open(&self) -> hither::Result<Db> {
        let builder = Db::builder()
            .topology(Arc::new(Topology::emulated(self.nodes)))
            .shards(self.shards)
            .segment_bytes(self.segment_bytes)
            .capacity(1 << 20)
            .max_capacity(64 << 20)
            .threads(2)
            // As often as possible: whenever a segment was opened.
            .checkpoints(CheckpointMode::Every(self.segment_bytes))
            // Media do not depend on the index: a store may be opened with another index than the one it was filled
            // with.
            .ordered_index(if self.shards.is_multiple_of(2) { OrderedKind::Learned } else { OrderedKind::BTree })
            .durability(self.durability);
        match &self.medium {
            Medium::Memory => builder.in_memory().open(),
            Medium::Files(dir, choice) => builder.path(dir).with_options(|options| options.medium = *choice).open(),
        }
    }
}

/// A store with its model, its snapshots and its pinned values.
pub struct Runner {
    config: Config,
    model: Model,
    spaces: Vec<Keyspace>,
    snapshots: Vec<(Snapshot, Model)>,
    pins: Vec<(ValueGuard, Vec<u8>)>,
    db: Option<Db>,
}

type Outcome = Result<(), String>;
type Pair = (Vec<u8>, Vec<u8>);

fn same<T: PartialEq + Debug>(what: &str, found: &T, expected: &T) -> Outcome {
    if found == expected {
        return Ok(());
    }
    let short = |value: &T| format!("{value:?}").chars().take(200).collect::<String>();
    Err(format!("{what}: {} instead of {}", short(found), short(expected)))
}

fn failed(what: &'static str) -> impl Fn(Error) -> String {
    move |error| format!("{what}: {error}")
}

fn name(space: usize) -> String {
    format!("space {space}")
}

fn options(kind: Kind) -> KeyspaceOptions {
    if kind == Kind::Hash { KeyspaceOptions::hash() } else { KeyspaceOptions::ordered() }
}

impl Runner {
    /// Creates a store.
    pub fn new(config: Config) -> Result<Runner, String> {
        Runner::open(config, Model::default())
    }

    /// Opens a store that was left by `ops`: it must hold their result.
    pub fn after(config: Config, ops: &[Op]) -> Result<Runner, String> {
        let mut model = Model::default();
        ops.iter().for_each(|op| model.apply(op));
        Runner::open(config, model)
    }

    fn open(config: Config, model: Model) -> Result<Runner, String> {
        let runner = Runner { config, model, spaces: Vec::new(), snapshots: Vec::new(), pins: Vec::new(), db: None };
        runner.reopened()
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    fn db(&self) -> &Db {
        self.db.as_ref().expect("a runner holds an open store")
    }

    fn reopened(mut self) -> Result<Runner, String> {
        let db = self.config.open().map_err(failed("open"))?;
        self.spaces = (0..SPACES)
            .map(|at| match db.open_keyspace(&name(at))? {
                Some(space) => Ok(space),
                None => db.create_keyspace(&name(at), options(self.model.kinds[at])),
            })
            .collect::<hither::Result<_>>()
            .map_err(failed("keyspaces"))?;
        self.db = Some(db);
        for at in 0..SPACES {
            same("kind after opening", &self.spaces[at].kind(), &self.model.kinds[at])?;
        }
        self.check()?;
        Ok(self)
    }

    fn reopen(&mut self) -> Outcome {
        if self.config.medium == Medium::Memory {
            return Ok(());
        }
        let model = self.model.clone();
        self.snapshots.clear();
        self.pins.clear();
        self.spaces.clear();
        self.db.take().expect("a runner holds an open store").close().map_err(failed("close"))?;
        // Opens with another number of shards: recovery must not depend on it.
        self.config.shards = if self.config.shards == 1 { 4 } else { 1 };
        *self = Runner::open(self.config.clone(), model)?;
        Ok(())
    }

    /// Applies one step to the store and to the model, and compares the answers.
    pub fn step(&mut self, op: &Op) -> Outcome {
        let done = match op {
            Op::Put(..) | Op::PutRelaxed(..) | Op::PutExpiring(..) | Op::Delete(..) | Op::Cas(..) | Op::Update(..) | Op::Batch(..) => {
                self.write(op)?
            }
            _ => {
                self.other(op)?;
                true
            }
        };
        if done {
            self.model.apply(op);
        }
        Ok(())
    }

    /// Makes a write; returns false if the store was full, in which case nothing may have changed.
    fn write(&mut self, op: &Op) -> Result<bool, String> {
        match self.try_write(op) {
            Ok(outcome) => outcome.map(|()| true),
            Err(Error::Full { .. } | Error::NotAdjacent { .. }) if self.half_full() => Ok(false),
            Err(error) => Err(format!("{op:?}: {error}")),
        }
    }

    /// Whether at least half of some pool's limit is in use. Below that, every write finds space.
    fn half_full(&self) -> bool {
        self.db().stats().pools.iter().any(|pool| 2 * (pool.segments - pool.segments_free) * pool.segment_bytes >= pool.max_bytes)
    }

    fn try_write(&mut self, op: &Op) -> hither::Result<Outcome> {
        let model = &self.model;
        let ks = |space: &u8| &self.spaces[Model::space(*space)];
        Ok(match op {
            Op::Put(space, key, value) => {
                ks(space).put(&key_bytes(*key), &value.bytes())?;
                Ok(())
            }
            Op::PutRelaxed(space, key, value) => {
                let options = WriteOptions::new().durability(Durability::Process);
                // Nobody waits for it, so it is still pending when the next step begins.
                drop(ks(space).put_with(&key_bytes(*key), &value.bytes(), &options)?);
                Ok(())
            }
            Op::PutExpiring(space, key, value, expiry) => {
                let options = WriteOptions::new().expires_at_ms(if *expiry == Expiry::Past { 1 } else { Model::far_ms(*value) });
                ks(space).put_with(&key_bytes(*key), &value.bytes(), &options)?.wait()?;
                Ok(())
            }
            Op::Delete(space, key) => {
                let existed = ks(space).delete(&key_bytes(*key))?;
                same("delete", &existed, &model.get(*space, *key).is_some())
            }
            Op::Cas(space, key, expect, new) => {
                let expected = model.expected(*space, *key, *expect);
                let new = new.map(Value::bytes);
                let applied = ks(space).compare_and_swap(&key_bytes(*key), expected.as_deref(), new.as_deref())?;
                same("compare and swap", &applied, &model.holds(*space, *key, *expect))
            }
            Op::Update(space, key, remove) => {
                let new = ks(space).update(&key_bytes(*key), |old| Model::updated(old, *remove))?;
                same("update", &new, &Model::updated(model.get(*space, *key).map(Vec::as_slice), *remove))
            }
            Op::Batch(writes, expect) => self.batch(writes, *expect)?,
            _ => unreachable!("not a write"),
        })
    }

    fn batch(&self, writes: &[(u8, u8, Option<Value>)], expect: Option<Expect>) -> hither::Result<Outcome> {
        let mut batch = self.db().batch();
        let mut holds = true;
        if let (Some((space, key, _)), Some(expect)) = (writes.first(), expect) {
            let ks = &self.spaces[Model::space(*space)];
            let version = match expect {
                Expect::Current => ks.get_versioned(&key_bytes(*key))?.map(|(_, version)| version),
                Expect::Absent => None,
                Expect::Wrong => Some(u64::MAX >> 9),
            };
            batch.require_version(ks, &key_bytes(*key), version);
            holds = self.model.holds(*space, *key, expect);
        }
        for (space, key, value) in writes {
            let ks = &self.spaces[Model::space(*space)];
            match value {
                Some(value) => batch.put(ks, &key_bytes(*key), &value.bytes()),
                None => batch.delete(ks, &key_bytes(*key)),
            };
        }
        match batch.commit() {
            Ok(()) => Ok(same("batch applied", &true, &holds)),
            Err(Error::PreconditionFailed { .. }) => Ok(same("batch applied", &false, &holds)),
            Err(error) => Err(error),
        }
    }

    fn other(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Get(space, key) => self.get(*space, *key),
            Op::MultiGet(space, keys) => self.multi_get(*space, keys),
            Op::Range(space, from, to, reverse) => self.range(*space, *from, *to, *reverse),
            Op::Prefix(space, key, len) => self.prefix(*space, *key, *len),
            Op::BothEnds(space, stride) => self.both_ends(*space, *stride),
            Op::Snapshot => {
                self.snapshots.push((self.db().snapshot(), self.model.clone()));
                if self.snapshots.len() > 3 {
                    self.snapshots.remove(0);
                }
                Ok(())
            }
            Op::ReadSnapshots => self.read_snapshots(),
            Op::DropSnapshot => {
                drop((!self.snapshots.is_empty()).then(|| self.snapshots.remove(0)));
                Ok(())
            }
            Op::Pin(space, key) => {
                let guard = self.spaces[Model::space(*space)].get_pinned(&key_bytes(*key)).map_err(failed("pin"))?;
                same("pinned", &guard.as_deref(), &self.model.get(*space, *key).map(Vec::as_slice))?;
                self.pins.extend(guard.map(|guard| (guard, self.model.get(*space, *key).cloned().unwrap_or_default())));
                Ok(())
            }
            Op::Recreate(space, hash) => self.recreate(Model::space(*space), if *hash { Kind::Hash } else { Kind::Ordered }),
            Op::Swap(a, b) => self.swap(Model::space(*a), Model::space(*b)),
            Op::Reclaim => self.db().reclaim().map(drop).map_err(failed("reclaim")),
            Op::Sync => self.db().sync().map_err(failed("sync")),
            Op::Reopen => self.reopen(),
            Op::Check => self.check(),
            _ => unreachable!("a write"),
        }
    }

    fn get(&self, space: u8, key: u8) -> Outcome {
        let (ks, bytes, expected) = (&self.spaces[Model::space(space)], key_bytes(key), self.model.get(space, key));
        same("get", &ks.get(&bytes).map_err(failed("get"))?.as_ref(), &expected)?;
        same("get_with", &ks.get_with(&bytes, <[u8]>::len).map_err(failed("get_with"))?, &expected.map(Vec::len))?;
        same("contains", &ks.contains(&bytes).map_err(failed("contains"))?, &expected.is_some())?;
        let entry = ks.get_entry(&bytes).map_err(failed("get_entry"))?;
        let expiry = self.model.expiry_ms(Model::space(space), &bytes);
        same("get_entry", &entry.map(|entry| (entry.value, entry.expires_at_ms)), &expected.cloned().zip(expiry))?;
        let versioned = ks.get_versioned(&bytes).map_err(failed("get_versioned"))?;
        same("get_versioned", &versioned.map(|(value, _)| value).as_ref(), &expected)
    }

    fn multi_get(&self, space: u8, keys: &[u8]) -> Outcome {
        let bytes: Vec<Vec<u8>> = keys.iter().map(|&key| key_bytes(key)).collect();
        let found = self.spaces[Model::space(space)].multi_get(&bytes).map_err(failed("multi_get"))?;
        let expected: Vec<_> = keys.iter().map(|&key| self.model.get(space, key).cloned()).collect();
        same("multi_get", &found, &expected)
    }

    fn range(&self, space: u8, from: u8, to: u8, reverse: bool) -> Outcome {
        let ks = &self.spaces[Model::space(space)];
        let (from, to) = (key_bytes(from), key_bytes(to));
        let bounds = (Bound::Excluded(from.as_slice()), Bound::Included(to.as_slice()));
        if ks.kind() == Kind::Hash {
            return same("a range of a hash keyspace is refused", &matches!(ks.range(bounds), Err(Error::NotOrdered(_))), &true);
        }
        let iter = ks.range(bounds).map_err(failed("range"))?;
        let mut found = if reverse { collect(iter.rev())? } else { collect(iter)? };
        if reverse {
            found.reverse();
        }
        let pairs = &self.model.spaces[Model::space(space)];
        let expected: Vec<_> =
            pairs.iter().filter(|(key, _)| **key > from && **key <= to).map(|(key, value)| (key.clone(), value.clone())).collect();
        same("range", &found, &expected)
    }

    fn prefix(&self, space: u8, key: u8, len: u8) -> Outcome {
        let ks = &self.spaces[Model::space(space)];
        if ks.kind() == Kind::Hash {
            return Ok(());
        }
        let mut prefix = key_bytes(key);
        prefix.truncate(usize::from(len));
        let found = collect(ks.prefix(&prefix).map_err(failed("prefix"))?)?;
        let pairs = &self.model.spaces[Model::space(space)];
        let expected: Vec<_> =
            pairs.iter().filter(|(key, _)| key.starts_with(&prefix)).map(|(key, value)| (key.clone(), value.clone())).collect();
        same("prefix", &found, &expected)
    }

    fn both_ends(&self, space: u8, stride: u8) -> Outcome {
        let mut iter = self.spaces[Model::space(space)].iter();
        let (mut front, mut back) = (Vec::new(), Vec::new());
        for turn in 0u32.. {
            let forward = turn % (u32::from(stride % 7) + 2) != 0;
            let next = if forward { iter.next() } else { iter.next_back() };
            let Some(pair) = next else { break };
            (if forward { &mut front } else { &mut back }).push(pair.map_err(failed("iterating"))?);
        }
        front.extend(back.into_iter().rev());
        if self.spaces[Model::space(space)].kind() == Kind::Hash {
            front.sort();
        }
        let expected: Vec<_> = self.model.spaces[Model::space(space)].clone().into_iter().collect();
        same("both ends", &front, &expected)
    }

    fn read_snapshots(&self) -> Outcome {
        for (snapshot, model) in &self.snapshots {
            for at in (0..SPACES).filter(|&at| model.incarnations[at] == self.model.incarnations[at]) {
                let ks = &self.spaces[at];
                let expected: Vec<_> = model.spaces[at].clone().into_iter().collect();
                same("snapshot forward", &collect(snapshot.iter(ks))?, &expected)?;
                let mut backward = collect(snapshot.iter(ks).rev())?;
                backward.reverse();
                same("snapshot backward", &backward, &expected)?;
                for key in (0..KEYS).step_by(5).map(key_bytes) {
                    same("snapshot get", &snapshot.get(ks, &key).map_err(failed("snapshot get"))?.as_ref(), &model.spaces[at].get(&key))?;
                    let entry = snapshot.get_entry(ks, &key).map_err(failed("snapshot get_entry"))?;
                    same("snapshot's expiry", &entry.map(|entry| entry.expires_at_ms), &model.expiry_ms(at, &key))?;
                }
            }
        }
        Ok(())
    }

    fn recreate(&mut self, at: usize, kind: Kind) -> Outcome {
        let db = self.db.as_ref().expect("a runner holds an open store");
        same("dropped", &db.drop_keyspace(&name(at)).map_err(failed("drop"))?, &true)?;
        let refused = matches!(self.spaces[at].put(b"key", b"value"), Err(Error::KeyspaceDropped(_)));
        same("a write to a dropped keyspace is refused", &refused, &true)?;
        self.spaces[at] = db.create_keyspace(&name(at), options(kind)).map_err(failed("create"))?;
        same("empty when created", &self.spaces[at].is_empty(), &true)
    }

    fn swap(&mut self, a: usize, b: usize) -> Outcome {
        if a == b {
            return Ok(());
        }
        same("swapped", &self.db().swap_keyspaces(&[(&name(a), &name(b))]).map_err(failed("swap"))?, &true)?;
        for at in [a, b] {
            let refused = matches!(self.spaces[at].put(b"key", b"value"), Err(Error::KeyspaceDropped(_)));
            same("a write under the old name is refused", &refused, &true)?;
            self.spaces[at] = self.db().open_keyspace(&name(at)).map_err(failed("open"))?.ok_or("a swapped keyspace is gone")?;
        }
        // A snapshot refers to the keyspace, whatever its name is.
        self.snapshots.iter_mut().for_each(|(_, model)| model.swap(a, b));
        Ok(())
    }

    fn check(&self) -> Outcome {
        for (at, ks) in self.spaces.iter().enumerate() {
            let mut found = collect(ks.iter())?;
            found.sort();
            let expected: Pairs = self.model.spaces[at].clone();
            same("all pairs", &found, &expected.into_iter().collect())?;
            for key in self.model.spaces[at].keys() {
                let entry = ks.get_entry(key).map_err(failed("get_entry"))?;
                same("expiry", &entry.map(|entry| entry.expires_at_ms), &self.model.expiry_ms(at, key))?;
            }
            let (len, lens) = (ks.len(), self.model.lens(at));
            same("len", &len, &len.clamp(*lens.start(), *lens.end()))?;
        }
        for (guard, value) in &self.pins {
            same("a pinned value", &&guard[..], &value.as_slice())?;
        }
        let report = self.db().check().map_err(failed("check"))?;
        same("problems", &report.problems, &Vec::new())
    }
}

fn collect(iter: impl Iterator<Item = hither::Result<Pair>>) -> Result<Vec<Pair>, String> {
    iter.collect::<hither::Result<_>>().map_err(failed("iterating"))
}
