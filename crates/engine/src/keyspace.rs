//! Keyspaces: named maps inside a store, each with an index of its own.

use crate::error::{Error, Result};
use crate::expiries::Expiries;
use hither_index::btree::BTreeIndex;
use hither_index::hash::HashIndex;
use hither_index::learned::LearnedIndex;
use hither_index::{Hasher, Index, OrderedIndex, Ref, Resolver, Start};
use hither_sync::epoch;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The kinds of keyspaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Keys in bytewise order: ranges, prefixes, iteration.
    Ordered,
    /// Point access only; less memory, faster.
    Hash,
}

impl Kind {
    /// Its name in output.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Ordered => "ordered",
            Kind::Hash => "hash",
        }
    }
}

/// What the catalogue says of a keyspace.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyspaceInfo {
    /// Its name.
    pub name: String,
    /// Its number, never used again.
    pub id: u32,
    /// Its kind.
    pub kind: Kind,
}

/// The index of ordered keyspaces. Media do not depend on it: it may differ from open to open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OrderedKind {
    /// A layered B+-tree (`docs/adr/0007`).
    #[default]
    BTree,
    /// A learned index (`docs/adr/0012`): faster lookups where keys of eight bytes are spread evenly, slower where they are clustered.
    Learned,
}

/// The index of a keyspace.
pub(crate) enum AnyIndex {
    Ordered(BTreeIndex),
    Learned(LearnedIndex),
    Hash(HashIndex),
}

impl AnyIndex {
    pub fn new(kind: Kind, ordered: OrderedKind) -> AnyIndex {
        match kind {
            Kind::Ordered if ordered == OrderedKind::Learned => AnyIndex::Learned(LearnedIndex::new()),
            Kind::Ordered => AnyIndex::Ordered(BTreeIndex::new()),
            Kind::Hash => AnyIndex::Hash(HashIndex::new()),
        }
    }
}

/// Runs `$body` with `$index` bound to the concrete index: one branch, then static dispatch.
macro_rules! with_index {
    ($keyspace:expr, $index:ident => $body:expr) => {
        match &*$keyspace.index {
            $crate::keyspace::AnyIndex::Ordered($index) => $body,
            $crate::keyspace::AnyIndex::Hash($index) => $body,
            $crate::keyspace::AnyIndex::Learned($index) => $body,
        }
    };
}
pub(crate) use with_index;

/// An open keyspace.
pub(crate) struct Keyspace {
    pub info: KeyspaceInfo,
    /// Of its own, but for who still holds it under the name that it had before ([`Keyspace::renamed`]) and may not use it.
    pub index: Arc<AnyIndex>,
    hasher: Hasher,
    pub dropped: AtomicBool,
    /// Its entries are garbage, under whatever name it is held: collectors move them no more.
    pub discarded: Arc<AtomicBool>,
    /// Whether the sweeper has to look here.
    pub expiries: Arc<Expiries>,
    /// Version of its newest delete, or above it, while reads check: what a scan found absent rests on it. Elsewhere than what every operation reads.
    pub last_delete: Arc<AtomicU64>,
}

impl Keyspace {
    /// A keyspace of a store that hashes with `hasher`.
    pub fn new(info: KeyspaceInfo, hasher: Hasher, ordered: OrderedKind) -> Keyspace {
        let index = Arc::new(AnyIndex::new(info.kind, ordered));
        let (discarded, expiries, last_delete) = Default::default();
        Keyspace { index, info, hasher, dropped: AtomicBool::new(false), discarded, expiries, last_delete }
    }

    /// The same keyspace under another name. This one must be marked as dropped, and all that used it must have finished.
    pub fn renamed(&self, name: &str) -> Keyspace {
        let info = KeyspaceInfo { name: name.to_owned(), ..self.info.clone() };
        Keyspace {
            info,
            index: self.index.clone(),
            hasher: self.hasher,
            dropped: AtomicBool::new(false),
            discarded: self.discarded.clone(),
            expiries: self.expiries.clone(),
            last_delete: self.last_delete.clone(),
        }
    }

    /// How the store hashes.
    pub fn hasher(&self) -> Hasher {
        self.hasher
    }

    /// Starts loading what a write of `key` will touch first; returns the key's hash.
    #[inline(always)]
    pub fn prefetch_for_write(&self, key: &[u8]) -> u64 {
        let key = self.hasher.key(key);
        // The index follows pointers even for a hint.
        let _pin = epoch::pin();
        with_index!(self, index => index.prefetch_for_write(key));
        key.hash
    }

    pub fn len(&self) -> usize {
        with_index!(self, index => index.len())
    }

    pub fn memory_bytes(&self) -> usize {
        with_index!(self, index => index.memory_bytes())
    }

    #[inline(always)]
    pub fn ensure_usable(&self) -> Result<()> {
        if self.is_dropped() { Err(Error::KeyspaceDropped(self.info.name.clone())) } else { Ok(()) }
    }

    /// Whether [`Keyspace::ensure_usable`] refuses.
    #[inline(always)]
    pub fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Whether its entries are garbage. In a writer section: false holds until the section ends.
    #[inline(always)]
    pub fn is_discarded(&self) -> bool {
        self.discarded.load(Ordering::Relaxed)
    }

    /// Whether it keeps its keys in order.
    pub fn ensure_ordered(&self) -> Result<()> {
        if self.info.kind == Kind::Ordered { Ok(()) } else { Err(Error::NotOrdered(self.info.name.clone())) }
    }

    /// See [`OrderedIndex::scan`].
    pub fn scan<R: Resolver>(&self, start: Start<'_>, backward: bool, limit: usize, out: &mut Vec<Ref>, resolver: &R) {
        match &*self.index {
            AnyIndex::Ordered(index) => index.scan(start, backward, limit, out, resolver),
            AnyIndex::Learned(index) => index.scan(start, backward, limit, out, resolver),
            AnyIndex::Hash(_) => {}
        }
    }
}

/// A handle of an open keyspace. Cheap to clone; valid as long as the store.
#[derive(Clone)]
pub struct KeyspaceHandle(pub(crate) Arc<Keyspace>);

impl KeyspaceHandle {
    /// What the catalogue says of it.
    pub fn info(&self) -> &KeyspaceInfo {
        &self.0.info
    }

    /// Number of keys, expired ones that were not swept yet included.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it holds no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
