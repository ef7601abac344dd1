//! One bucket: read without a lock, changed under a lock that nobody waits for.
//!
//! # Thread safety
//!
//! The control word is a sequence lock with a lock bit. Bit 0 is *locked*; bit 1 is *writing*; the rest counts changes.
//!
//! * A reader loads the control word (acquire), gives up if a writer is writing, reads with relaxed loads, and after an
//!   acquire fence checks whether the control word, the lock bit aside, is still the same. Frequencies may change in
//!   between: no reader uses them.
//! * A writer takes the lock by compare-and-swap, and gives up if it is taken. Before it touches tags, offsets or the
//!   arena it sets *writing* and issues a release fence. When it releases the lock it stores the next count (release).
//!
//! If a reader sees any store of a writer, then, by the fences, its second look sees *writing* or a later count. So
//! everything that passed the second look was stored by writers that had finished before the first look.
//!
//! Words read in a race may hold anything: every index or length is bounds-checked before use, and nothing is trusted
//! before the second look.

use crate::layout::{ARENA, CLOCK, CONTROL, FREQUENCIES, GHOST_WORDS, GHOSTS, Lengths, OFFSETS, RECORD_HEAD, SLOTS, TAGS};
use crate::policy::{OVERFLOW, Policy};
use hither_sync::atomic::{AtomicU64, Ordering, fence};

const LOCKED: u64 = 1;
const WRITING: u64 = 2;
const ONE_CHANGE: u64 = 4;

/// A copy of an entry, about to be cached.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The reference by which the index knows the entry.
    pub reference: u64,
    /// Generation of the segment that contains the entry.
    pub generation: u64,
    /// Milliseconds since 1970; 0 means that it never expires.
    pub expiry_ms: u64,
    /// The whole key.
    pub key: &'a [u8],
    /// The whole value.
    pub value: &'a [u8],
}

impl Record<'_> {
    fn lengths(&self) -> Lengths {
        Lengths { key_bytes: self.key.len(), value_bytes: self.value.len(), expires: self.expiry_ms != 0 }
    }
}

/// A record that was found, and its position: a hint that the copying reader validates again.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Reference of the entry of which the record is a copy.
    pub reference: u64,
    /// Generation of the segment that contained the entry.
    pub generation: u64,
    /// Milliseconds since 1970; 0 means that it never expires.
    pub expiry_ms: u64,
    /// Length of the value.
    pub value_bytes: usize,
    pub(crate) bucket: usize,
    pub(crate) slot: usize,
    value_at: usize,
    sequence: u64,
}

/// The words of a bucket.
#[derive(Clone, Copy)]
pub(crate) struct Bucket<'a>(pub &'a [AtomicU64]);

/// 16 low bits of a hash, never 0. High bits choose the bucket, so the two are independent.
#[inline(always)]
pub(crate) fn tag_of(hash: u64) -> u16 {
    (hash as u16).max(1)
}

#[inline(always)]
fn lane16(words: [u64; 2], lane: usize) -> u16 {
    (words[lane / 4] >> (lane % 4 * 16)) as u16
}

/// Packs at most eight bytes into a word.
#[inline(always)]
fn word_of(bytes: &[u8]) -> u64 {
    if let Ok(whole) = <[u8; 8]>::try_from(bytes) {
        return u64::from_le_bytes(whole);
    }
    let mut padded = [0; 8];
    padded[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(padded)
}

impl<'a> Bucket<'a> {
    #[inline(always)]
    fn load(self, at: usize) -> u64 {
        self.0[at].load(Ordering::Relaxed)
    }

    /// As [`Bucket::load`], for positions computed from words that may be torn.
    #[inline(always)]
    fn try_load(self, at: usize) -> Option<u64> {
        Some(self.0.get(at)?.load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn pair(self, at: usize) -> [u64; 2] {
        [self.load(at), self.load(at + 1)]
    }

    /// The first look: returns the control word unless a writer is writing.
    #[inline(always)]
    fn begin_read(self) -> Option<u64> {
        let control = self.0[CONTROL].load(Ordering::Acquire);
        (control & WRITING == 0).then_some(control & !LOCKED)
    }

    /// The second look: whether everything read since the first look is consistent.
    #[inline(always)]
    fn is_unchanged(self, sequence: u64) -> bool {
        fence(Ordering::Acquire);
        self.load(CONTROL) & !LOCKED == sequence
    }

    /// The record of `key`, if there is one and no writer is writing. `at` is the bucket's position in the cache.
    #[inline(always)]
    pub fn find(self, at: usize, hash: u64, key: &[u8]) -> Option<Found> {
        let sequence = self.begin_read()?;
        let (tag, tags, offsets) = (tag_of(hash), self.pair(TAGS), self.pair(OFFSETS));
        for slot in 0..SLOTS {
            if lane16(tags, slot) == tag
                && let Some(found) = self.read_head(ARENA + usize::from(lane16(offsets, slot)), key)
            {
                let found = Found { bucket: at, slot, sequence, ..found };
                return self.is_unchanged(sequence).then_some(found);
            }
        }
        None
    }

    /// Reads the head of the record at `at`, if it is the record of `key`.
    #[inline(always)]
    fn read_head(self, at: usize, key: &[u8]) -> Option<Found> {
        let lengths = Lengths::unpack(self.try_load(at + 2)?);
        if lengths.key_bytes != key.len() {
            return None;
        }
        for (i, part) in key.chunks(8).enumerate() {
            if self.try_load(at + lengths.key_at() + i)? != word_of(part) {
                return None;
            }
        }
        Some(Found {
            reference: self.try_load(at)?,
            generation: self.try_load(at + 1)?,
            expiry_ms: if lengths.expires { self.try_load(at + RECORD_HEAD)? } else { 0 },
            value_bytes: lengths.value_bytes,
            value_at: at + lengths.value_at(),
            bucket: 0,
            slot: 0,
            sequence: 0,
        })
    }

    /// Copies the value of a record that was found into `out`, which has its length. False if the bucket has changed
    /// since.
    #[inline(always)]
    pub fn copy_value(self, found: &Found, out: &mut [u8]) -> bool {
        let Some(words) = self.0.get(found.value_at..) else { return false };
        for (part, word) in out.chunks_mut(8).zip(words) {
            let word = word.load(Ordering::Relaxed).to_le_bytes();
            part.copy_from_slice(&word[..part.len()]);
        }
        self.is_unchanged(found.sequence)
    }

    /// Whether the record would fit into the empty arena.
    pub fn has_room_for(self, record: &Record<'_>) -> bool {
        record.lengths().words() <= self.0.len() - ARENA
    }

    /// Takes the lock, unless another thread holds it.
    #[inline]
    pub fn try_lock(self) -> Option<Locked<'a>> {
        let control = self.load(CONTROL);
        if control & LOCKED != 0 {
            return None;
        }
        // Acquire: pairs with the release of the last holder, on whose stores the next holder builds.
        let taken = self.0[CONTROL].compare_exchange(control, control | LOCKED, Ordering::Acquire, Ordering::Relaxed);
        // Created only now, because dropping a `Locked` releases the lock.
        taken.ok().map(|control| Locked { bucket: self, control, changed: false })
    }

    /// Frequencies of the slots in use; read without a lock, for statistics.
    pub fn frequencies(self) -> impl Iterator<Item = u32> + 'a {
        let tags = self.pair(TAGS);
        (0..SLOTS).filter(move |slot| lane16(tags, *slot) != 0).map(move |slot| self.frequency(slot))
    }

    fn frequency(self, slot: usize) -> u32 {
        (self.load(FREQUENCIES + slot / 2) >> (slot % 2 * 32)) as u32
    }
}

/// A bucket whose lock is held.
pub(crate) struct Locked<'a> {
    bucket: Bucket<'a>,
    /// The control word before the lock was taken.
    control: u64,
    changed: bool,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let next = if self.changed { self.control.wrapping_add(ONE_CHANGE) } else { self.control };
        self.bucket.0[CONTROL].store(next, Ordering::Release);
    }
}

impl Locked<'_> {
    #[inline(always)]
    fn store(&self, at: usize, word: u64) {
        self.bucket.0[at].store(word, Ordering::Relaxed);
    }

    /// Call before touching anything that readers use.
    fn begin_change(&mut self) {
        if !self.changed {
            self.changed = true;
            self.store(CONTROL, self.control | LOCKED | WRITING);
            fence(Ordering::Release);
        }
    }

    fn tag(&self, slot: usize) -> u16 {
        lane16(self.bucket.pair(TAGS), slot)
    }

    fn set_lane16(&self, at: usize, lane: usize, value: u16) {
        let (at, shift) = (at + lane / 4, lane % 4 * 16);
        self.store(at, self.bucket.load(at) & !(0xffff << shift) | u64::from(value) << shift);
    }

    fn set_frequency(&self, slot: usize, frequency: u32) {
        let (at, shift) = (FREQUENCIES + slot / 2, slot % 2 * 32);
        self.store(at, self.bucket.load(at) & !(0xffff_ffff << shift) | u64::from(frequency) << shift);
    }

    fn ghost(&self, ghost: usize) -> (u16, u16) {
        let word = (self.bucket.load(GHOST_WORDS + ghost / 2) >> (ghost % 2 * 32)) as u32;
        (word as u16, (word >> 16) as u16)
    }

    fn set_ghost(&self, ghost: usize, tag: u16, frequency: u32) {
        let (at, shift) = (GHOST_WORDS + ghost / 2, ghost % 2 * 32);
        let packed = u64::from(tag) | u64::from(frequency.min(0xffff) as u16) << 16;
        self.store(at, self.bucket.load(at) & !(0xffff_ffff << shift) | packed << shift);
    }

    /// Whether nothing that readers use has changed since `found` was read.
    pub fn still_holds(&self, found: &Found) -> bool {
        self.control == found.sequence
    }

    /// Counts an access to the item in `slot`.
    pub fn touch(&mut self, policy: Policy, slot: usize, weight: u32) {
        let clock = self.advance(policy);
        let frequency = policy.after(self.bucket.frequency(slot), weight, clock);
        self.set_frequency(slot, frequency);
        if policy.counts() && frequency > OVERFLOW {
            self.age(1);
        }
    }

    /// The item in `slot` is no longer in the store: the next item that comes may take its slot.
    pub fn forget(&mut self, slot: usize) {
        self.set_frequency(slot, 0);
    }

    /// Counts an update, and ages the bucket if it is time. Returns the clock.
    fn advance(&mut self, policy: Policy) -> u64 {
        let clock = self.bucket.load(CLOCK) + 1;
        self.store(CLOCK, clock);
        if policy.ages_at(clock) {
            self.age(1);
        }
        clock
    }

    /// Halves all frequencies `times` times (15 at most).
    pub fn age(&self, times: u32) {
        let slots = u64::from(u32::MAX >> times) * (1 + (1 << 32));
        for at in FREQUENCIES..FREQUENCIES + SLOTS / 2 {
            self.store(at, self.bucket.load(at) >> times & slots);
        }
        let ghosts = u64::from(u16::MAX >> times) * ((1 << 16) + (1 << 48));
        for at in GHOST_WORDS..GHOST_WORDS + GHOSTS / 2 {
            let word = self.bucket.load(at);
            self.store(at, word & 0x0000_ffff_0000_ffff | word >> times & ghosts);
        }
    }

    /// Offers a missed item. A stale copy of it is replaced in its slot and keeps its frequency; otherwise the policy
    /// decides. `counted` is false if the access was not chosen as a sample: then only a stale copy is refreshed.
    /// Returns true if the item is cached now.
    pub fn offer(&mut self, policy: Policy, hash: u64, weight: u32, counted: bool, record: &Record<'_>) -> bool {
        let tag = tag_of(hash);
        let own = self.slot_of(tag, record.key);
        let clock = if counted { self.advance(policy) } else { self.bucket.load(CLOCK) };
        if let Some(slot) = own {
            let frequency = self.bucket.frequency(slot);
            let frequency = if counted { policy.after(frequency, weight, clock) } else { frequency };
            if !self.fits_beside_stronger(policy, slot, frequency, record) {
                self.clear(slot);
                return false;
            }
            self.put(policy, (slot, tag), frequency, record);
            return true;
        }
        if !counted {
            return false;
        }
        let ghost = policy.has_admission().then(|| (0..GHOSTS).find(|ghost| self.ghost(*ghost).0 == tag)).flatten();
        let known = ghost.map_or(0, |ghost| self.ghost(ghost).1.into());
        let frequency = policy.after(known, weight, clock);
        let slot = (0..SLOTS).find(|slot| self.tag(*slot) == 0).unwrap_or_else(|| self.weakest());
        let is_free = self.tag(slot) == 0;
        if !is_free && policy.has_admission() && frequency <= self.bucket.frequency(slot) {
            self.remember(ghost, tag, frequency);
            return false;
        }
        let victim = (!is_free).then(|| (self.tag(slot), self.bucket.frequency(slot)));
        let placed = self.fits_beside_stronger(policy, slot, frequency, record);
        if placed {
            self.put(policy, (slot, tag), frequency, record);
        }
        // Items that left together with the victim may have taken this ghost's place.
        let ghost = ghost.filter(|ghost| self.ghost(*ghost).0 == tag);
        if policy.has_admission() {
            match victim.filter(|_| placed) {
                Some((tag, frequency)) => self.remember(ghost, tag, frequency),
                None if placed => {
                    if let Some(ghost) = ghost {
                        self.set_ghost(ghost, 0, 0);
                    }
                }
                None => self.remember(ghost, tag, frequency),
            }
        }
        placed
    }

    /// Remembers an item without a slot, in the given ghost or in place of the weakest one.
    fn remember(&self, ghost: Option<usize>, tag: u16, frequency: u32) {
        // Starts at another ghost each time, so that among equal ghosts the oldest tends to go.
        let start = self.bucket.load(CLOCK) as usize;
        let weakest = || (0..GHOSTS).map(|i| (start + i) % GHOSTS).min_by_key(|ghost| self.ghost(*ghost).1).unwrap_or(0);
        self.set_ghost(ghost.unwrap_or_else(weakest), tag, frequency);
    }

    /// The slot with the smallest frequency among those in use.
    fn weakest(&self) -> usize {
        (0..SLOTS).filter(|slot| self.tag(*slot) != 0).min_by_key(|slot| self.bucket.frequency(*slot)).unwrap_or(0)
    }

    fn is_of(&self, slot: usize, key: &[u8]) -> bool {
        self.bucket.read_head(self.start_of(slot), key).is_some()
    }

    fn start_of(&self, slot: usize) -> usize {
        ARENA + usize::from(lane16(self.bucket.pair(OFFSETS), slot))
    }

    /// The slot of this key.
    fn slot_of(&self, tag: u16, key: &[u8]) -> Option<usize> {
        (0..SLOTS).find(|slot| self.tag(*slot) == tag && self.is_of(*slot, key))
    }

    /// Empties the slot of this key, if it has one.
    pub fn forget_key(&mut self, hash: u64, key: &[u8]) {
        if let Some(slot) = self.slot_of(tag_of(hash), key) {
            self.clear(slot);
        }
    }

    fn clear(&mut self, slot: usize) {
        self.begin_change();
        self.set_lane16(TAGS, slot, 0);
    }

    /// Whether the arena has room for `record` in place of the item in `slot`, once all items that are not stronger
    /// have left. Checked before any item leaves.
    fn fits_beside_stronger(&self, policy: Policy, slot: usize, frequency: u32, record: &Record<'_>) -> bool {
        let stays = |other: &usize| *other != slot && self.tag(*other) != 0 && policy.counts() && self.bucket.frequency(*other) > frequency;
        let words = |slot: usize| Lengths::unpack(self.bucket.load(self.start_of(slot) + 2)).words();
        let stronger: usize = (0..SLOTS).filter(stays).map(words).sum();
        stronger + record.lengths().words() <= self.bucket.0.len() - ARENA
    }

    /// Writes `record` into `slot`, whatever was there. If the arena is too full, the weakest items leave. The caller
    /// has checked that the record fits beside those that must stay.
    fn put(&mut self, policy: Policy, (slot, tag): (usize, u16), frequency: u32, record: &Record<'_>) {
        let (lengths, arena) = (record.lengths(), self.bucket.0.len() - ARENA);
        self.clear(slot);
        let mut end = self.pack();
        while end + lengths.words() > arena {
            let weakest = self.weakest();
            debug_assert!(self.tag(weakest) != 0, "an empty arena takes it");
            if policy.has_admission() {
                self.remember(None, self.tag(weakest), self.bucket.frequency(weakest));
            }
            self.set_lane16(TAGS, weakest, 0);
            end = self.pack();
        }
        self.write_record(ARENA + end, record);
        self.set_lane16(OFFSETS, slot, end as u16);
        self.set_lane16(TAGS, slot, tag);
        self.set_frequency(slot, frequency);
    }

    fn write_record(&self, at: usize, record: &Record<'_>) {
        let lengths = record.lengths();
        self.store(at, record.reference);
        self.store(at + 1, record.generation);
        self.store(at + 2, lengths.pack());
        if lengths.expires {
            self.store(at + RECORD_HEAD, record.expiry_ms);
        }
        for (bytes, start) in [(record.key, lengths.key_at()), (record.value, lengths.value_at())] {
            for (i, part) in bytes.chunks(8).enumerate() {
                self.store(at + start + i, word_of(part));
            }
        }
    }

    /// Moves the records together, so that the free words lie behind them. Returns the offset in the arena at which
    /// these begin.
    fn pack(&self) -> usize {
        let mut taken: [(usize, usize); SLOTS] = std::array::from_fn(|slot| (self.start_of(slot), slot));
        taken.sort_unstable();
        let mut end = ARENA;
        for (start, slot) in taken.into_iter().filter(|(_, slot)| self.tag(*slot) != 0) {
            let words = Lengths::unpack(self.bucket.load(start + 2)).words();
            if start != end {
                // Records only move down, so no word is overwritten before it is read.
                (0..words).for_each(|i| self.store(end + i, self.bucket.load(start + i)));
                self.set_lane16(OFFSETS, slot, (end - ARENA) as u16);
            }
            end += words;
        }
        end - ARENA
    }
}
