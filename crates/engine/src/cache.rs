//! Gets through the cache of entries (NStore, section III-B).
//!
//! The index is asked in any case: it is in DRAM, and its answer decides whether a copy counts (see `hither_cache` for
//! the proof). The cache saves the access to the log: to the value, and to the key, which the index otherwise verifies
//! in the log.
//!
//! # Coherence
//!
//! * C1: everything offered to the cache was read under the get's epoch pin, from the entry that the index named. The
//!   generation of its segment was read under the same pin.
//! * A copy answers a get only if the index, asked under the get's pin, names the copy's reference, and the segment
//!   there has the copy's generation. By L3 of the log the segment is not reused while the pin lives, so copy and index
//!   name the same entry. By L1 an entry never changes. So such a get cannot be told from one that reads the log.
//!
//! Therefore whatever changes the index changes what the cache answers. Writes, deletes, batches, relocations and
//! dropped keyspaces need not inform the cache. A key that exists in two keyspaces has two entries. The expiry is part
//! of the copy and is judged at each get.
//!
//! Snapshots, versioned and pinned gets, and scans read the log. So do [`Store::peek_with`] and
//! [`Store::scan_deferred`], and with them the server: they report the version and must know whether to wait for a
//! batch, which a copy does not contain.
//!
//! # Durability
//!
//! A read at level sync waits until what it returns is durable. A copy is made after that wait, and what is durable
//! stays durable, so hits need not wait. (A relaxed write sets `reads_check` before it is installed; a thread that
//! reads its reference sees that.)
//!
//! Thread safety: any number of readers. Crash: the cache is in DRAM only.

use crate::error::Result;
use crate::keyspace::{Keyspace, with_index};
use crate::options::Options;
use crate::read::{GROUP, uptime_ms};
use crate::resolver::LogResolver;
use crate::store::{Core, Store};
use hither_cache::{Cache, CacheOptions, Found, Holdings, MAX_VALUE_BYTES, Policy, Record, Weights};
use hither_index::{Index, Key, Ref, Resolver};
use hither_log::{Log, address};
use hither_pmem::MediumKind;

/// Statistics of the cache.
pub type CacheReport = hither_cache::CacheStats;

/// Default size of the cache in bytes, for a store that can gain from one (the paper's size).
pub const DEFAULT_BYTES: u64 = 64 << 20;

/// How entries are cached in DRAM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheSetting {
    /// Bytes of DRAM; 0: no cache; absent: 64 MiB. A store that cannot gain from a cache never has one: a store of one
    /// node, over links of equal latency, or over nodes of the machine whose media are DRAM themselves.
    pub bytes: Option<u64>,
    /// Which entries stay in the cache.
    pub policy: Policy,
    /// The cache never switches itself off: for tests and comparisons.
    pub forced: bool,
}

/// Whether reads of another node take longer than reads of the reader's own node. Not so for a store of one node, on a
/// machine of one node (whatever the store has), over links of equal latency, or where the topology's costs are not
/// those of the media.
pub(crate) fn remote_reads_cost_more(log: &Log) -> bool {
    let (topology, nodes) = (log.topology(), log.nodes() as u32);
    // A real topology's costs are those of persistent memory. Media in DRAM do not have these costs.
    let is_dram = |node: u32| matches!(log.pool(node as usize).medium().kind, MediumKind::File | MediumKind::Volatile);
    let costs_are_true = topology.is_emulated() || !(0..nodes).all(is_dram);
    nodes > 1 && Weights::of(topology).differ(topology.node_count(), nodes) && costs_are_true
}

/// Creates the cache of a store.
pub(crate) fn for_store(options: &Options, log: &Log) -> Cache {
    let weights = Weights::of(log.topology());
    let bytes = options.cache.bytes.unwrap_or(DEFAULT_BYTES);
    if !remote_reads_cost_more(log) || bytes == 0 {
        return Cache::absent();
    }
    let CacheSetting { policy, forced, .. } = options.cache;
    let capacity_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    Cache::new(CacheOptions { capacity_bytes, policy, weights, forced, sampling: None })
}

/// The log as a resolver, except that the keys of copied entries are known without it.
struct Copies<'a> {
    log: LogResolver<'a>,
    keys: &'a [Key<'a>],
    /// The cache's copy for each of `keys`, if it has one.
    copies: &'a [Option<Found>],
}

/// Whether `copy` is a copy of the entry behind `reference`, which was read from the index under a pin that still
/// lives.
#[inline(always)]
fn is_of(copy: &Found, reference: Ref, log: &Log) -> bool {
    copy.reference == reference.0 && copy.generation == log.generation_of(reference.0)
}

impl Resolver for Copies<'_> {
    #[inline(always)]
    fn prefetch(&self, reference: Ref) {
        if !self.copies.iter().flatten().any(|copy| copy.reference == reference.0) {
            self.log.prefetch(reference);
        }
    }

    #[inline(always)]
    fn key(&self, reference: Ref) -> &[u8] {
        self.log.key(reference)
    }

    #[inline(always)]
    fn matches(&self, reference: Ref, key: &[u8]) -> bool {
        let copied = |(copy, copied): (&Option<Found>, &Key<'_>)| {
            copy.as_ref().is_some_and(|copy| is_of(copy, reference, self.log.log)) && copied.bytes == key
        };
        self.copies.iter().zip(self.keys).any(copied) || self.log.matches(reference, key)
    }

    #[inline(always)]
    fn hash(&self, reference: Ref) -> u64 {
        self.log.hash(reference)
    }
}

/// A copied value up to this length, in bytes, passes through a small buffer.
const SHORT: usize = 64;

/// Where the cache looks for a key: the same key has different places for different keyspaces.
#[inline(always)]
fn place_of(keyspace: &Keyspace, hash: u64) -> u64 {
    hash ^ u64::from(keyspace.info.id).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Core {
    /// As a get without cache, but takes the value from the cache, or shows the key to it. Call under an epoch pin.
    pub fn get_through_cache<R>(&self, keyspace: &Keyspace, key: Key<'_>, f: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let (mut f, mut answer) = (Some(f), None);
        self.find_through_cache(keyspace, key, &mut |value| answer = f.take().map(|f| f(value)))?;
        Ok(answer)
    }

    /// Calls `f`, once, if the key is present. Compiled once for all callers, as is [`Core::get_group_through_cache`].
    #[inline(never)]
    fn find_through_cache(&self, keyspace: &Keyspace, key: Key<'_>, f: &mut dyn FnMut(&[u8])) -> Result<()> {
        let place = place_of(keyspace, key.hash);
        if !self.cache.is_on(place) {
            let found = with_index!(keyspace, index => index.get(key, &self.resolver()));
            return if found.is_none() { self.absent(keyspace, key) } else { self.visit(keyspace, &key, found, f) }.map(drop::<Option<()>>);
        }
        let (copies, keys) = ([self.cache.look(place, key.bytes)], [key]);
        let resolver = Copies { log: self.resolver(), keys: &keys, copies: &copies };
        let found = with_index!(keyspace, index => index.get(key, &resolver));
        self.answer(keyspace, place, key, copies[0].as_ref(), found, f).map(drop)
    }

    /// Looks up to [`GROUP`] keys up, and calls `f` with each. Call under an epoch pin.
    #[inline(never)]
    pub fn get_group_through_cache(&self, keyspace: &Keyspace, group: &[Key<'_>], f: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<()> {
        let mut places = [0; GROUP];
        let mut on = true;
        for (place, key) in places.iter_mut().zip(group) {
            *place = place_of(keyspace, key.hash);
            on &= self.cache.is_on(*place);
            self.cache.prefetch(*place);
        }
        if !on {
            return self.get_group(keyspace, group, f);
        }
        let mut copies = [None; GROUP];
        for ((copy, key), place) in copies.iter_mut().zip(group).zip(places) {
            *copy = self.cache.look(place, key.bytes);
        }
        let (mut found, copies) = ([Ref::NONE; GROUP], &copies[..group.len()]);
        let found = &mut found[..group.len()];
        let resolver = Copies { log: self.resolver(), keys: group, copies };
        with_index!(keyspace, index => index.get_many(group, found, &resolver));
        found.iter().for_each(|reference| resolver.prefetch(*reference));
        for (i, &reference) in found.iter().enumerate() {
            if !self.answer(keyspace, places[i], group[i], copies[i].as_ref(), reference, &mut |value| f(i, Some(value)))? {
                f(i, None);
            }
        }
        Ok(())
    }

    /// Answers a get for whose key the index names `found`: from the copy, if it is a copy of that entry. Returns
    /// whether there is a value.
    fn answer(
        &self,
        keyspace: &Keyspace,
        place: u64,
        key: Key<'_>,
        copy: Option<&Found>,
        found: Ref,
        f: &mut dyn FnMut(&[u8]),
    ) -> Result<bool> {
        if found.is_none() {
            copy.into_iter().for_each(|copy| self.cache.forget(copy));
            self.absent::<()>(keyspace, key)?;
            return Ok(false);
        }
        let (reader, home) = (self.log.topology().current_node(), address::unpack(found.0).node);
        match copy.filter(|copy| is_of(copy, found, &self.log)) {
            Some(copy) if self.is_expired(copy.expiry_ms) => return Ok(self.visit(keyspace, &key, found, f)?.is_some()),
            Some(copy) if self.read_copy(copy, f) => {
                self.cache.count_hit(copy, reader, home);
                return Ok(true);
            }
            _ => {}
        }
        let counted = self.cache.count_miss(reader, home);
        if !counted && copy.is_none() {
            return Ok(self.visit(keyspace, &key, found, f)?.is_some());
        }
        let seen = self.visit_found(keyspace, &key, found, |found, value, expiry_ms| {
            let generation = self.log.generation_of(found.0);
            let record = Record { reference: found.0, generation, expiry_ms, key: key.bytes, value };
            self.cache.offer(place, reader, home, counted, &record);
            f(value);
        });
        Ok(seen?.is_some())
    }

    /// Calls `f` with the value of a copy. Returns false if the copy has gone meanwhile.
    #[inline(always)]
    fn read_copy(&self, copy: &Found, f: &mut dyn FnMut(&[u8])) -> bool {
        if copy.value_bytes > SHORT {
            return self.read_long_copy(copy, f);
        }
        self.read_into(&mut [0; SHORT], copy, f)
    }

    #[inline(never)]
    fn read_long_copy(&self, copy: &Found, f: &mut dyn FnMut(&[u8])) -> bool {
        self.read_into(&mut [0; MAX_VALUE_BYTES], copy, f)
    }

    #[inline(always)]
    fn read_into(&self, buffer: &mut [u8], copy: &Found, f: &mut dyn FnMut(&[u8])) -> bool {
        let Some(value) = buffer.get_mut(..copy.value_bytes) else { return false };
        let whole = self.cache.copy_value(copy, value);
        if whole {
            f(value);
        }
        whole
    }

    /// Whether there may be a cache: [`Core::tick_cache`] switches it on and off.
    pub fn may_cache(&self) -> bool {
        self.cache.is_possible()
    }

    /// Lets the cache decide whether to be on. Call outside any epoch pin.
    pub fn tick_cache(&self) {
        self.cache.tick(uptime_ms(), self.log.clock.given_out(), &|| self.holdings());
    }

    /// What the store holds, as the cache needs it. O(segments).
    fn holdings(&self) -> Holdings {
        /// Bytes of a plain entry besides its key and value.
        const ENTRY_HEAD: u64 = 16;
        let (bytes, written) =
            self.log.usage().iter().fold((0, 0), |(bytes, entries), pool| (bytes + pool.written_bytes, entries + pool.entries));
        let pair_bytes = bytes.checked_div(written).unwrap_or(0).saturating_sub(ENTRY_HEAD);
        let entries = self.keyspaces.read().values().map(|keyspace| keyspace.len() as u64).sum();
        Holdings { entries, pair_bytes: usize::try_from(pair_bytes).unwrap_or(usize::MAX) }
    }
}

impl Store {
    /// Lets the cache decide whether to be on, as maintenance does. For tests, which run without maintenance.
    #[doc(hidden)]
    pub fn tick_cache(&self) {
        self.core.tick_cache();
    }
}
