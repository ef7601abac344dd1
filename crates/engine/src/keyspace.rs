//! Keyspaces: named maps inside a store, each with an index of its own.
//!
//! Thread safety: any number of threads use a keyspace. Two flags, read in writer sections, end its use: `dropped` and
//! `discarded`. Crash: name, number and kind are in the catalogue; the index is in DRAM and is rebuilt by recovery.

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
    /// Keys in bytewise order: ranges, prefixes, ordered iteration.
    Ordered,
    /// Point access only; takes less memory and is faster.
    Hash,
}

impl Kind {
    /// Name of the kind in output.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Ordered => "ordered",
            Kind::Hash => "hash",
        }
    }
}

/// A keyspace's record in the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyspaceInfo {
    /// Name of the keyspace.
    pub name: String,
    /// Number of the keyspace, which is never assigned again.
    pub id: u32,
    /// Kind of the keyspace.
    pub kind: Kind,
}

/// The index of ordered keyspaces. The format of the media does not depend on it, so it may differ from opening to
/// opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OrderedKind {
    /// A layered B+-tree (`docs/adr/0007`).
    #[default]
    BTree,
    /// A learned index (`docs/adr/0012`): faster lookups where keys of eight bytes are spread evenly, slower where they
    /// are clustered.
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
    /// Shared only with the object of a former name ([`Keyspace::renamed`]), whose holders may not use it any more.
    pub index: Arc<AnyIndex>,
    hasher: Hasher,
    pub dropped: AtomicBool,
    /// The entries are garbage, under whatever name the keyspace is held: collectors no longer move them.
    pub discarded: Arc<AtomicBool>,
    /// Whether the sweeper must look here.
    pub expiries: Arc<Expiries>,
    /// While reads check durability: the version of the newest delete, or a higher one. What a scan finds absent rests
    /// on it. Allocated apart from the fields that every operation reads.
    pub last_delete: Arc<AtomicU64>,
}

impl Keyspace {
    /// Creates an empty keyspace for a store that hashes with `hasher`.
    pub fn new(info: KeyspaceInfo, hasher: Hasher, ordered: OrderedKind) -> Keyspace {
        let index = Arc::new(AnyIndex::new(info.kind, ordered));
        let (discarded, expiries, last_delete) = Default::default();
        Keyspace { index, info, hasher, dropped: AtomicBool::new(false), discarded, expiries, last_delete }
    }

    /// Returns the same keyspace under another name. `self` must be marked as dropped, and all operations that used it
    /// must have finished.
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

    /// The store's hasher.
    pub fn hasher(&self) -> Hasher {
        self.hasher
    }

    /// Starts loading what a write of `key` will touch first. Returns the key's hash.
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

    /// Whether the entries are garbage. A writer section that reads false can rely on it until it ends.
    #[inline(always)]
    pub fn is_discarded(&self) -> bool {
        self.discarded.load(Ordering::Relaxed)
    }

    /// Fails unless the keyspace is ordered.
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

/// A handle of an open keyspace. Cheap to clone; valid for as long as the store is open and the keyspace has its name.
#[derive(Clone)]
pub struct KeyspaceHandle(pub(crate) Arc<Keyspace>);

impl KeyspaceHandle {
    /// The keyspace's record in the catalogue.
    pub fn info(&self) -> &KeyspaceInfo {
        &self.0.info
    }

    /// Number of keys, including expired ones that are not swept yet.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the keyspace holds no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
