//! Compares a store with a model, step by step, over sequences of operations.
//!
//! A [`Model`] is a list of keyspaces, each a `BTreeMap`. A [`Runner`] applies [`Op`]s to a real store through the
//! public interface and to the model, and compares every answer. Operations name keys by number; [`key_bytes`] turns
//! numbers into keys that are hard on indexes. Not `Sync`: one thread runs a sequence.

mod runner;

pub use runner::{Config, Medium, Runner};

use hither::Kind;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// Number of keyspaces of a model.
pub const SPACES: usize = 3;
/// Number of different keys.
pub const KEYS: u8 = 128;

/// The bytes of a key: plain 8-byte keys, long common prefixes, runs of zeros, keys that are prefixes of others, keys
/// of about 64 KiB.
pub fn key_bytes(number: u8) -> Vec<u8> {
    let n = number % KEYS;
    match n {
        0..40 => u64::from(n).to_be_bytes().to_vec(),
        40..64 => [&[b'p'; 40][..], &[n]].concat(),
        64..80 => vec![0; usize::from(n) - 63],
        80..96 => [&b"prefix"[..], &vec![0xff; usize::from(n) - 80]].concat(),
        96..108 => [&b"12345678"[..], &vec![0; usize::from(n) - 96]].concat(),
        108..112 => {
            let mut key = vec![b'L'; 65_536];
            key[65_535] = n;
            key
        }
        112..114 => vec![b'L'; usize::from(n) - 112 + 65_534],
        _ => vec![b'0' + (n & 3), n],
    }
}

/// A value: `len` bytes that depend on `fill`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// Length in bytes.
    pub len: u32,
    /// Determines the bytes.
    pub fill: u8,
}

impl Value {
    /// The bytes.
    pub fn bytes(self) -> Vec<u8> {
        (0..self.len).map(|i| self.fill.wrapping_add((i % 251) as u8)).collect()
    }
}

/// What a compare-and-swap or a batch expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The current content of the key.
    Current,
    /// That the key is absent.
    Absent,
    /// A value that the key never has.
    Wrong,
}

/// When a key expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// Long ago.
    Past,
    /// In a far future.
    Future,
}

/// One step of a sequence. The first number is a keyspace, the second a key, unless stated otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Put.
    Put(u8, u8, Value),
    /// Put at process level, not awaited.
    PutRelaxed(u8, u8, Value),
    /// Put of a value that expires.
    PutExpiring(u8, u8, Value, Expiry),
    /// Delete.
    Delete(u8, u8),
    /// Compare and swap, with the new value; `None` deletes.
    Cas(u8, u8, Expect, Option<Value>),
    /// Read-modify-write with [`Model::updated`]; `true` removes an existing value.
    Update(u8, u8, bool),
    /// A batch of puts and deletes; the expectation is about its first key.
    Batch(Vec<(u8, u8, Option<Value>)>, Option<Expect>),
    /// Every way of reading one key.
    Get(u8, u8),
    /// Looks up many keys at once.
    MultiGet(u8, Vec<u8>),
    /// Reads a range between two keys; `true` from its upper end.
    Range(u8, u8, u8, bool),
    /// Reads a prefix: the key's first bytes, as many as the third number says.
    Prefix(u8, u8, u8),
    /// Reads from both ends of an iterator, alternating by a pattern that the second number chooses.
    BothEnds(u8, u8),
    /// Takes a snapshot; at most three are kept.
    Snapshot,
    /// Compares each snapshot with what it must show.
    ReadSnapshots,
    /// Drops the oldest snapshot.
    DropSnapshot,
    /// Pins a value until the store is closed.
    Pin(u8, u8),
    /// Drops a keyspace and creates it again; `true` as a hash keyspace.
    Recreate(u8, bool),
    /// Exchanges the names of two keyspaces.
    Swap(u8, u8),
    /// Collects garbage.
    Reclaim,
    /// Makes everything durable.
    Sync,
    /// Closes the store and opens it again.
    Reopen,
    /// A full check of the store and of every pair.
    Check,
}

impl Op {
    /// Whether the step writes a key that has already expired. Such a key may be swept at any time, and counts until
    /// then.
    pub fn leaves_expired(&self) -> bool {
        matches!(self, Op::PutExpiring(.., Expiry::Past))
    }
}

/// One keyspace of a model.
pub type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// What a store must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Pairs by keyspace.
    pub spaces: Vec<Pairs>,
    /// Kinds by keyspace.
    pub kinds: Vec<Kind>,
    /// How often each keyspace was created again.
    pub incarnations: Vec<u32>,
    /// By keyspace, the keys whose last put had already expired. The store may or may not have swept them.
    pub expired: Vec<BTreeSet<Vec<u8>>>,
    /// By keyspace, the keys that expire in a far future, and when.
    pub expires: Vec<BTreeMap<Vec<u8>, u64>>,
}

impl Default for Model {
    fn default() -> Model {
        let kinds = vec![Kind::Ordered, Kind::Hash, Kind::Ordered];
        let (expired, expires) = (vec![BTreeSet::new(); SPACES], vec![BTreeMap::new(); SPACES]);
        Model { spaces: vec![Pairs::new(); SPACES], kinds, incarnations: vec![0; SPACES], expired, expires }
    }
}

impl Model {
    /// The position of the keyspace that an operation names by `number`.
    pub fn space(number: u8) -> usize {
        usize::from(number) % SPACES
    }

    /// The value of a key.
    pub fn get(&self, space: u8, key: u8) -> Option<&Vec<u8>> {
        self.spaces[Self::space(space)].get(&key_bytes(key))
    }

    /// When a value that is put with a future expiry expires, in milliseconds since 1970: different values mostly at
    /// different times.
    pub fn far_ms(value: Value) -> u64 {
        (1 << 45) + (u64::from(value.len) << 8) + u64::from(value.fill)
    }

    /// When a key expires; `None` if the keyspace at `at` does not hold it, 0 if it does not expire.
    pub fn expiry_ms(&self, at: usize, key: &[u8]) -> Option<u64> {
        self.spaces[at].get(key).map(|_| self.expires[at].get(key).copied().unwrap_or(0))
    }

    /// The numbers of pairs that the keyspace at `at` may count.
    pub fn lens(&self, at: usize) -> RangeInclusive<usize> {
        let certain = self.spaces[at].len();
        certain..=certain + self.expired[at].len()
    }

    /// Sets a key, or removes it if `value` is `None`.
    pub fn set(&mut self, space: u8, key: u8, value: Option<Vec<u8>>) {
        self.replace(space, key, value);
        self.settle(space, key);
    }

    fn replace(&mut self, space: u8, key: u8, value: Option<Vec<u8>>) {
        self.expires[Self::space(space)].remove(&key_bytes(key));
        let pairs = &mut self.spaces[Self::space(space)];
        match value {
            Some(value) => pairs.insert(key_bytes(key), value),
            None => pairs.remove(&key_bytes(key)),
        };
    }

    /// A current value of a key replaces an expired one, which then no longer counts. A delete does not find an expired
    /// value and need not remove it.
    fn settle(&mut self, space: u8, key: u8) {
        if self.get(space, key).is_some() {
            self.expired[Self::space(space)].remove(&key_bytes(key));
        }
    }

    /// The content that `expect` stands for, given the key's current content.
    pub fn expected(&self, space: u8, key: u8, expect: Expect) -> Option<Vec<u8>> {
        match expect {
            Expect::Current => self.get(space, key).cloned(),
            Expect::Absent => None,
            Expect::Wrong => Some(b"a value that is never written".to_vec()),
        }
    }

    /// Whether the key's current content is the expected one.
    pub fn holds(&self, space: u8, key: u8, expect: Expect) -> bool {
        self.expected(space, key, expect).as_ref() == self.get(space, key)
    }

    fn batch_holds(&self, writes: &[(u8, u8, Option<Value>)], expect: Option<Expect>) -> bool {
        writes.first().is_none_or(|(space, key, _)| expect.is_none_or(|expect| self.holds(*space, *key, expect)))
    }

    /// The value that an update makes of `old`; `remove` removes an existing value.
    pub fn updated(old: Option<&[u8]>, remove: bool) -> Option<Vec<u8>> {
        match old {
            Some(_) if remove => None,
            Some(old) => Some(old.iter().rev().take(100).copied().chain([7]).collect()),
            None => Some(vec![1, 2, 3]),
        }
    }

    /// Exchanges the names of two keyspaces.
    pub fn swap(&mut self, a: usize, b: usize) {
        self.spaces.swap(a, b);
        self.kinds.swap(a, b);
        self.incarnations.swap(a, b);
        self.expired.swap(a, b);
        self.expires.swap(a, b);
    }

    /// Applies a step to the model; steps that change nothing are ignored.
    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Put(space, key, value) | Op::PutRelaxed(space, key, value) => self.set(*space, *key, Some(value.bytes())),
            Op::PutExpiring(space, key, value, Expiry::Future) => {
                self.set(*space, *key, Some(value.bytes()));
                self.expires[Self::space(*space)].insert(key_bytes(*key), Self::far_ms(*value));
            }
            Op::PutExpiring(space, key, _, Expiry::Past) => {
                self.set(*space, *key, None);
                self.expired[Self::space(*space)].insert(key_bytes(*key));
            }
            Op::Delete(space, key) => self.set(*space, *key, None),
            Op::Cas(space, key, expect, new) if self.holds(*space, *key, *expect) => {
                self.set(*space, *key, new.map(Value::bytes));
            }
            Op::Update(space, key, remove) => {
                let new = Self::updated(self.get(*space, *key).map(Vec::as_slice), *remove);
                let kept = self.expires[Self::space(*space)].get(&key_bytes(*key)).copied().filter(|_| new.is_some());
                self.set(*space, *key, new);
                self.expires[Self::space(*space)].extend(kept.map(|at_ms| (key_bytes(*key), at_ms)));
            }
            Op::Batch(writes, expect) if self.batch_holds(writes, *expect) => {
                // Of several writes of one key only the last one is made.
                writes.iter().for_each(|(space, key, value)| self.replace(*space, *key, value.map(Value::bytes)));
                writes.iter().for_each(|(space, key, _)| self.settle(*space, *key));
            }
            Op::Recreate(space, hash) => {
                let at = Self::space(*space);
                self.spaces[at].clear();
                self.expired[at].clear();
                self.expires[at].clear();
                self.kinds[at] = if *hash { Kind::Hash } else { Kind::Ordered };
                self.incarnations[at] += 1;
            }
            Op::Swap(a, b) => self.swap(Self::space(*a), Self::space(*b)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: one key that had expired, in any keyspace, made every count right from then on.
    #[test]
    fn only_keys_that_have_expired_make_a_count_uncertain() {
        let (mut model, value) = (Model::default(), Value { len: 3, fill: 1 });
        let mut after = |op: Op| {
            model.apply(&op);
            [model.lens(0), model.lens(1)]
        };
        assert_eq!(after(Op::PutExpiring(0, 1, value, Expiry::Past)), [0..=1, 0..=0]);
        assert_eq!(after(Op::PutExpiring(0, 2, value, Expiry::Past)), [0..=2, 0..=0]);
        assert_eq!(after(Op::Put(0, 1, value)), [1..=2, 0..=0]);
        assert_eq!(after(Op::Delete(0, 1)), [0..=1, 0..=0]);
        assert_eq!(after(Op::Delete(0, 2)), [0..=1, 0..=0]);
        assert_eq!(after(Op::Batch(vec![(0, 2, Some(value)), (0, 2, None)], None)), [0..=1, 0..=0]);
        assert_eq!(after(Op::Swap(0, 1)), [0..=0, 0..=1]);
        assert_eq!(after(Op::Recreate(1, false)), [0..=0, 0..=0]);
    }
}
