//! The cache's interface: look, copy, count and offer for gets; tick for the maintenance thread.

use crate::bucket::{Bucket, Found, Record};
use crate::control::{Control, Observed, OffReason, SPARSE, State, Verdict};
use crate::counters::{Count, Counters};
use crate::layout::{Geometry, SLOTS};
use crate::policy::{Policy, UNIT, Weights};
use hither_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use hither_sync::epoch;
use parking_lot::Mutex;
use std::sync::OnceLock;

/// Values longer than this are not cached, in bytes: their transfer costs more than the latency that the cache saves.
pub const MAX_VALUE_BYTES: usize = 1024;
/// Keys longer than this are not cached, in bytes.
pub const MAX_KEY_BYTES: usize = 1024;

/// The largest number of places in the table by which a probe recognises keys.
const SEEN: usize = 1 << 16;
/// How many buckets are examined when frequencies are compared.
const COMPARED: usize = 64;

/// How often all frequencies are halved once the hot items have changed.
const SHIFT_AGE: u32 = 4;

const OFF: u32 = 0;
const PROBING: u32 = 1;
const ON: u32 = 2;

/// Settings of a cache.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// Bytes of DRAM, including everything; 0 means no cache.
    pub capacity_bytes: usize,
    /// The replacement policy.
    pub policy: Policy,
    /// The cost of misses.
    pub weights: Weights,
    /// Keeps the cache on whatever the workload, for tests and comparisons.
    pub forced: bool,
    /// One get in so many is a sample; `None` adapts the interval to the workload.
    pub sampling: Option<u32>,
}

/// The content of the store, which decides how the memory is divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Live entries.
    pub entries: u64,
    /// Average bytes of key and value together.
    pub pair_bytes: usize,
}

/// The cache in numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheStats {
    /// Bytes of DRAM that the cache may use.
    pub capacity_bytes: u64,
    /// Bytes of DRAM that the cache uses; the records' memory is allocated when the cache is first on.
    pub used_bytes: u64,
    /// Whether the cache is on.
    pub state: State,
    /// The replacement policy.
    pub policy: Policy,
    /// Number of slots.
    pub slots: u64,
    /// One get in so many is a sample.
    pub sampling_interval: u32,
    /// Gets answered from the cache whose reader was on the item's node.
    pub local_hits: u64,
    /// Gets answered from the cache whose reader was on another node.
    pub remote_hits: u64,
    /// Gets that read from the reader's own node while the cache was on.
    pub local_misses: u64,
    /// Gets that read from another node while the cache was on.
    pub remote_misses: u64,
    /// How often the cache was switched on.
    pub switched_on: u64,
}

impl CacheStats {
    /// Share of the gets while the cache was on that it answered, 0 to 1.
    pub fn hit_share(&self) -> f64 {
        let hits = self.local_hits + self.remote_hits;
        let gets = hits + self.local_misses + self.remote_misses;
        if gets == 0 { 0.0 } else { hits as f64 / gets as f64 }
    }
}

/// Number of places in the table by which a probe recognises keys: small caches have small tables.
fn seen_places(capacity_bytes: usize) -> usize {
    (capacity_bytes / 32).clamp(1, SEEN)
}

/// Bytes that a cache of this size needs besides its buckets.
fn overhead_bytes(capacity_bytes: usize) -> usize {
    Counters::MEMORY_BYTES + seen_places(capacity_bytes) * size_of::<AtomicU32>()
}

/// Allocates `words` words; `None` if there is no such memory, because the user chooses the size.
fn zeros(words: usize) -> Option<Box<[AtomicU64]>> {
    let mut memory = Vec::new();
    memory.try_reserve_exact(words).ok()?;
    memory.resize_with(words, || AtomicU64::new(0));
    Some(memory.into_boxed_slice())
}

/// Whether the memory is divided as wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arranged {
    Done,
    /// A reader may still use the old division.
    NotYet,
    /// The memory has no room for a bucket, or could not be allocated.
    NoRoom,
}

/// A concurrent cache of entries. The crate's documentation states its guarantees.
#[derive(Debug)]
pub struct Cache {
    /// OFF, PROBING or ON: the first word that a get reads.
    mode: AtomicU32,
    interval: AtomicU32,
    /// A packed [`Geometry`].
    geometry: AtomicU64,
    options: CacheOptions,
    words: OnceLock<Box<[AtomicU64]>>,
    seen: OnceLock<Box<[AtomicU32]>>,
    /// Number of this probe, which marks its hashes in `seen`.
    probe: AtomicU32,
    counters: Counters,
    control: Mutex<Control>,
    /// Epoch stamp of the last switching off: the memory may be divided anew once it has passed.
    left: AtomicU64,
    switched_on: AtomicU64,
}

impl Cache {
    /// Creates a cache that is off.
    pub fn new(options: CacheOptions) -> Cache {
        let mut control = Control::new();
        if options.capacity_bytes == 0 {
            control.state = State::Off(OffReason::NotWorthwhile);
        }
        Cache {
            mode: AtomicU32::new(OFF),
            interval: AtomicU32::new(options.sampling.unwrap_or(1).max(1)),
            geometry: AtomicU64::new(0),
            words: OnceLock::new(),
            seen: OnceLock::new(),
            probe: AtomicU32::new(0),
            counters: Counters::new(),
            control: Mutex::new(control),
            left: AtomicU64::new(0),
            switched_on: AtomicU64::new(0),
            options,
        }
    }

    /// A cache without memory, which is never on.
    pub fn absent() -> Cache {
        let weights = Weights::of(&hither_topology::Topology::single());
        Cache::new(CacheOptions { capacity_bytes: 0, policy: Policy::default(), weights, forced: false, sampling: None })
    }

    /// Whether gets need to call the cache at all: it is on or probing.
    #[inline(always)]
    pub fn is_attentive(&self) -> bool {
        self.mode.load(Ordering::Relaxed) != OFF
    }

    /// Whether the cache answers gets. If it is only probing, shows it the key.
    #[inline]
    pub fn is_on(&self, hash: u64) -> bool {
        // Acquire: a thread that sees ON also sees the division with which the cache was switched on.
        let on = self.mode.load(Ordering::Acquire) == ON;
        if !on {
            self.show(hash);
        }
        on
    }

    /// Shows a key to a probe.
    fn show(&self, hash: u64) {
        let Some(seen) = self.seen.get() else { return };
        let mark = ((hash >> 32) as u32) ^ self.probe.load(Ordering::Relaxed).wrapping_mul(0x9e37_79b9);
        let place = &seen[hash as usize % seen.len()];
        self.counters.count(Count::Probed);
        if place.load(Ordering::Relaxed) == mark {
            self.counters.count(Count::Repeated);
        } else {
            place.store(mark, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn bucket(&self, hash: u64) -> Option<(Bucket<'_>, usize)> {
        // Acquire: pairs with the store in `arrange`, before which the words were cleared.
        let geometry = Geometry::unpack(self.geometry.load(Ordering::Acquire));
        if geometry.buckets == 0 {
            return None;
        }
        let at = geometry.bucket_at(hash);
        Some((Bucket(self.words.get()?.get(at..at + geometry.bucket_words)?), at))
    }

    fn bucket_of(&self, found: &Found) -> Option<Bucket<'_>> {
        let geometry = Geometry::unpack(self.geometry.load(Ordering::Acquire));
        Some(Bucket(self.words.get()?.get(found.bucket..found.bucket + geometry.bucket_words)?))
    }

    /// Starts loading the words that [`Cache::look`] reads first.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        if let Some((bucket, _)) = self.bucket(hash) {
            hither_sync::prefetch_read(&raw const bucket.0[0]);
            hither_sync::prefetch_read(&raw const bucket.0[bucket.0.len() / 2]);
        }
    }

    /// The copy that the cache holds for `key`. It is valid only if it is a copy of the key's newest entry: compare
    /// reference and generation.
    #[inline(always)]
    pub fn look(&self, hash: u64, key: &[u8]) -> Option<Found> {
        let (bucket, at) = self.bucket(hash)?;
        bucket.find(at, hash, key)
    }

    /// Copies the value of `found` into `out`, which must have its length. False if the copy has gone meanwhile.
    #[inline(always)]
    pub fn copy_value(&self, found: &Found, out: &mut [u8]) -> bool {
        self.bucket_of(found).is_some_and(|bucket| bucket.copy_value(found, out))
    }

    /// Counts a get by a thread of node `reader` that the cache answered.
    #[inline(always)]
    pub fn count_hit(&self, found: &Found, reader: u32, home: u32) {
        let count = if reader == home { Count::LocalHits } else { Count::RemoteHits };
        if self.counters.count_get(count, self.interval.load(Ordering::Relaxed)) {
            self.touch(found, reader, home);
        }
    }

    fn touch(&self, found: &Found, reader: u32, home: u32) {
        if let Some(mut locked) = self.bucket_of(found).and_then(Bucket::try_lock)
            && locked.still_holds(found)
        {
            locked.touch(self.options.policy, found.slot, self.options.weights.weight(reader, home));
        }
    }

    /// Counts a get that the cache did not answer. Returns true if it is a sample: then the item is to be offered.
    #[inline(always)]
    pub fn count_miss(&self, reader: u32, home: u32) -> bool {
        let count = if reader == home { Count::LocalMisses } else { Count::RemoteMisses };
        self.counters.count_get(count, self.interval.load(Ordering::Relaxed))
    }

    /// Offers an entry that was read for `reader` from `home`. `counted` is the result of [`Cache::count_miss`]; an
    /// item of which the cache holds a stale copy should be offered in any case. Gives up if another thread is changing
    /// the bucket. Returns true if the item is cached now.
    ///
    /// The caller must have read the record from the entry to which the index led it, under the epoch pin that it still
    /// holds (C1).
    pub fn offer(&self, hash: u64, reader: u32, home: u32, counted: bool, record: &Record<'_>) -> bool {
        let Some((bucket, at)) = self.bucket(hash) else { return false };
        let is_short = record.value.len() <= MAX_VALUE_BYTES && record.key.len() <= MAX_KEY_BYTES;
        let fits = is_short && bucket.has_room_for(record);
        if is_short && !fits && counted {
            self.counters.count(Count::Misfits);
        }
        // Most items that do not fit never did: no bucket is locked for them.
        if !fits && bucket.find(at, hash, record.key).is_none() {
            return false;
        }
        let Some(mut locked) = bucket.try_lock() else { return false };
        if !fits {
            // The stale copy must go: with it, each get would offer the item again.
            locked.forget_key(hash, record.key);
            return false;
        }
        locked.offer(self.options.policy, hash, self.options.weights.weight(reader, home), counted, record)
    }

    /// Reports that the key of `found` is no longer in the store.
    pub fn forget(&self, found: &Found) {
        if let Some(mut locked) = self.bucket_of(found).and_then(Bucket::try_lock)
            && locked.still_holds(found)
        {
            locked.forget(found.slot);
        }
    }

    /// Number of items so far that were sampled and too long for a bucket.
    #[cfg(test)]
    pub(crate) fn misfits(&self) -> u64 {
        self.counters.sums().get(Count::Misfits)
    }

    /// Number of gets so far that updated a frequency or offered an item.
    pub(crate) fn samples(&self) -> u64 {
        self.counters.sums().get(Count::Samples)
    }

    /// The cost of misses.
    pub fn weights(&self) -> &Weights {
        &self.options.weights
    }

    /// Whether the cache can ever be on: it was given memory.
    pub fn is_possible(&self) -> bool {
        self.options.capacity_bytes > 0
    }

    /// Decides whether the cache should be on and how densely it should sample. `writes` counts the store's writes so
    /// far. Call it from time to time, from one thread at a time, outside any epoch pin.
    pub fn tick(&self, now_ms: u64, writes: u64, holdings: &dyn Fn() -> Holdings) {
        if !self.is_possible() {
            return;
        }
        let mut control = self.control.lock();
        let sums = self.counters.sums();
        if self.options.forced {
            if control.state != State::On && self.arrange(holdings()) == Arranged::Done {
                control.enter(State::On, now_ms, sums, writes);
                self.set_mode(ON);
            }
            if control.state != State::On {
                return;
            }
        }
        let seen = Observed {
            now_ms,
            sums,
            writes,
            slots: self.slots(),
            all_fit: &|| self.would_fit(holdings()),
            similar: &|| self.frequencies_are_similar(),
        };
        match control.tick(&seen) {
            Verdict::Stay => {}
            Verdict::Warm => self.set_interval(SPARSE),
            Verdict::Shifted => {
                self.set_interval(1);
                self.forget_most();
            }
            Verdict::SwitchOff(reason) if self.options.forced && reason != OffReason::Misfit => {}
            Verdict::SwitchOff(reason) => {
                control.enter(State::Off(reason), now_ms, sums, writes);
                self.set_mode(OFF);
            }
            Verdict::Probe => {
                let State::Off(before) = control.state else { return };
                self.seen.get_or_init(|| (0..seen_places(self.options.capacity_bytes)).map(|_| AtomicU32::new(0)).collect());
                self.probe.fetch_add(1, Ordering::Relaxed);
                control.enter(State::Probing(before), now_ms, sums, writes);
                self.set_mode(PROBING);
            }
            Verdict::SwitchOn => match self.arrange(holdings()) {
                Arranged::Done => {
                    control.enter(State::On, now_ms, sums, writes);
                    self.set_interval(1);
                    self.set_mode(ON);
                }
                // The probe goes on.
                Arranged::NotYet => {}
                Arranged::NoRoom => {
                    control.give_up(now_ms, sums, writes);
                    self.set_mode(OFF);
                }
            },
        }
    }

    /// Cuts all frequencies, if the policy lets them age at all.
    fn forget_most(&self) {
        let geometry = Geometry::unpack(self.geometry.load(Ordering::Relaxed));
        let Some(words) = self.words.get().filter(|_| self.options.policy.has_admission() && geometry.buckets > 0) else { return };
        for bucket in words.chunks_exact(geometry.bucket_words).take(geometry.buckets) {
            if let Some(locked) = Bucket(bucket).try_lock() {
                locked.age(SHIFT_AGE);
            }
        }
    }

    fn set_interval(&self, interval: u32) {
        self.interval.store(self.options.sampling.unwrap_or(interval).max(1), Ordering::Relaxed);
    }

    fn set_mode(&self, mode: u32) {
        let before = self.mode.swap(mode, Ordering::SeqCst);
        if before == ON && mode != ON {
            self.left.store(epoch::stamp(), Ordering::Relaxed);
        }
        if mode == ON {
            self.switched_on.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Divides the memory for pairs of this size, unless the present division is close enough.
    fn arrange(&self, holdings: Holdings) -> Arranged {
        let capacity = self.words_in_capacity();
        let wanted = Geometry::for_pairs(capacity, holdings.pair_bytes.clamp(16, MAX_KEY_BYTES + MAX_VALUE_BYTES));
        let present = Geometry::unpack(self.geometry.load(Ordering::Relaxed));
        let near = present.bucket_words * 4 <= wanted.bucket_words * 5 && wanted.bucket_words * 4 <= present.bucket_words * 5;
        if present.buckets > 0 && near {
            return Arranged::Done;
        }
        if wanted.buckets == 0 {
            return Arranged::NoRoom;
        }
        if present.buckets > 0 && !epoch::has_passed(self.left.load(Ordering::Relaxed)) {
            return Arranged::NotYet;
        }
        let words = match self.words.get() {
            Some(words) => words,
            None => {
                let Some(words) = zeros(capacity) else { return Arranged::NoRoom };
                self.words.get_or_init(|| words)
            }
        };
        words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.geometry.store(wanted.pack(), Ordering::Release);
        Arranged::Done
    }

    fn words_in_capacity(&self) -> usize {
        self.options.capacity_bytes.saturating_sub(overhead_bytes(self.options.capacity_bytes)) / 8
    }

    /// Bytes that a cache needs for so many slots (in whole buckets) with pairs of this size.
    pub fn bytes_for(slots: u64, pair_bytes: usize) -> usize {
        let bucket = Geometry::for_pairs(usize::MAX / 16, pair_bytes).bucket_words * 8;
        let buckets = slots.div_ceil(SLOTS as u64) as usize * bucket;
        let mut bytes = buckets;
        // The memory besides the buckets grows with the whole, by an eighth at most.
        while bytes < buckets + overhead_bytes(bytes) {
            bytes = buckets + overhead_bytes(bytes);
        }
        bytes
    }

    fn would_fit(&self, holdings: Holdings) -> bool {
        let geometry = Geometry::for_pairs(self.words_in_capacity(), holdings.pair_bytes.clamp(16, MAX_KEY_BYTES + MAX_VALUE_BYTES));
        holdings.entries > 0 && holdings.entries * 2 <= (geometry.buckets * SLOTS) as u64
    }

    fn slots(&self) -> u64 {
        (Geometry::unpack(self.geometry.load(Ordering::Relaxed)).buckets * SLOTS) as u64
    }

    /// Whether frequencies within buckets vary no more than those of equally hot items would by chance: for Poisson
    /// counts the variance equals the mean.
    fn frequencies_are_similar(&self) -> bool {
        if !self.options.policy.counts() {
            return false;
        }
        let (mut spread, mut means) = (0.0, 0.0);
        for i in 0..COMPARED as u64 {
            let Some((bucket, _)) = self.bucket((i * 2 + 1) * (u64::MAX / (2 * COMPARED as u64))) else { continue };
            let accesses: Vec<f64> = bucket.frequencies().map(|frequency| f64::from(frequency) / f64::from(UNIT)).collect();
            if accesses.len() < 2 {
                continue;
            }
            let mean = accesses.iter().sum::<f64>() / accesses.len() as f64;
            spread += accesses.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / (accesses.len() - 1) as f64;
            means += mean;
        }
        spread < 3.0 * means
    }

    /// The cache in numbers.
    pub fn stats(&self) -> CacheStats {
        let sums = self.counters.sums();
        let words = self.words.get().map_or(0, |words| words.len() * 8);
        let seen = self.seen.get().map_or(0, |seen| seen.len() * size_of::<AtomicU32>());
        CacheStats {
            capacity_bytes: self.options.capacity_bytes as u64,
            used_bytes: if self.options.capacity_bytes == 0 { 0 } else { (words + seen + Counters::MEMORY_BYTES) as u64 },
            state: self.control.lock().state,
            policy: self.options.policy,
            slots: self.slots(),
            sampling_interval: self.interval.load(Ordering::Relaxed),
            local_hits: sums.get(Count::LocalHits),
            remote_hits: sums.get(Count::RemoteHits),
            local_misses: sums.get(Count::LocalMisses),
            remote_misses: sums.get(Count::RemoteMisses),
            switched_on: self.switched_on.load(Ordering::Relaxed),
        }
    }
}
