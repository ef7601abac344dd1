//! Reads entries by reference: one dependent media access per lookup, no lock.
//!
//! Callers hold an epoch pin from before they read the reference from an index until they have finished with the
//! returned data: a segment is reused only after every such pin has ended (L3).

use crate::address;
use crate::entry::{BARE_HEAD_BYTES, EntryView, HEADER_BYTES, MAX_VALUE_BYTES, Op, ext, flag, word0};
use crate::log::Log;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const PLAIN_MASK: u64 = ((flag::LEN | flag::EXT) as u64) << word0::FLAGS_SHIFT;
/// Set in a put (an insert or an update), not in a delete.
const PUT_FLAG: u64 = (Op::Insert as u64 & Op::Update as u64) << word0::FLAGS_SHIFT;
const LEN_MASK: u64 = (flag::LEN as u64) << word0::FLAGS_SHIFT;
/// All flags but the operation.
const OTHERS_MASK: u64 = (!flag::OP_MASK as u64) << word0::FLAGS_SHIFT;
const EXT_MASK: u64 = (flag::EXT as u64) << word0::FLAGS_SHIFT;

/// Whether this is the first word of a plain put: an 8-byte key, an 8-byte value, and nothing else.
#[inline(always)]
fn is_plain_put(first: u64) -> bool {
    is_plain_half((first >> HALF) as u32)
}

/// As [`is_plain_put`], for the word's upper half, whose constants fit into instructions.
#[inline(always)]
fn is_plain_half(upper: u32) -> bool {
    upper & ((PLAIN_MASK | PUT_FLAG) >> HALF) as u32 == (PUT_FLAG >> HALF) as u32
}

/// Bits of half a word.
const HALF: u32 = 32;

/// The upper half of the word at `base + 8 * index`. Loaded by itself: the compiler would turn a shifted word into a
/// full word again and compare it with constants that take two more instructions.
///
/// # Safety
/// There is an `AtomicU64` at that address, aligned as it must be.
#[inline(always)]
unsafe fn upper_half(base: *const u8, index: u64) -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        let half: u32;
        // SAFETY: reads four bytes of the word that the caller vouches for. Because words are aligned, these bytes were
        // written together with the rest of the word.
        unsafe {
            std::arch::asm!(
                "mov {half:e}, dword ptr [{base} + 8 * {index} + 4]",
                base = in(reg) base,
                index = in(reg) index,
                half = lateout(reg) half,
                options(nostack, readonly, preserves_flags),
            );
        }
        half
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's promise.
    unsafe {
        ((*base.wrapping_add((index as usize).wrapping_mul(8)).cast::<AtomicU64>()).load(Relaxed) >> HALF) as u32
    }
}

const _: () = assert!(PLAIN_MASK as u32 | PUT_FLAG as u32 == 0);
const _: () = assert!(PUT_FLAG != 0 && (Op::Delete as u64) << word0::FLAGS_SHIFT & PUT_FLAG == 0);

/// Whether the entry behind a reference has the size of a plain pair.
#[inline(always)]
pub fn is_pair(reference: u64) -> bool {
    address::tagged_size(reference) == Some(crate::entry::MIN_BYTES)
}

/// Whether both have the same bytes. Slices of 8 to 32 bytes, as most keys have, are compared by two overlapping words
/// each, because a call would take as long as everything else that a get does with an entry.
#[inline(always)]
fn are_same(one: &[u8], other: &[u8]) -> bool {
    match one.len() {
        len if len != other.len() => false,
        8..=16 => one.first_chunk::<8>() == other.first_chunk() && one.last_chunk::<8>() == other.last_chunk(),
        17..=32 => one.first_chunk::<16>() == other.first_chunk() && one.last_chunk::<16>() == other.last_chunk(),
        _ => one == other,
    }
}

/// The position of an entry's key, from the entry's start, with the value behind it.
struct Layout {
    key_at: u64,
    key_bytes: u64,
    value_bytes: u64,
}

impl Layout {
    /// The layout of an entry without a length word, whose first word is `first`.
    #[inline(always)]
    fn without_lengths(key_at: u64, first: u64) -> Layout {
        Layout { key_at, key_bytes: 8, value_bytes: if first & PUT_FLAG != 0 { 8 } else { 0 } }
    }

    /// The layout that the length word gives; `None` for a value length that no entry has.
    #[inline(always)]
    fn of_lengths(key_at: u64, lengths: u64) -> Option<Layout> {
        let value_bytes = lengths >> 32;
        (value_bytes <= MAX_VALUE_BYTES as u64).then_some(Layout { key_at, key_bytes: lengths & 0xffff_ffff, value_bytes })
    }
}

impl Log {
    /// The address of the entry behind `reference`, if that is a reference.
    #[inline(always)]
    fn start_of(&self, reference: u64) -> *const u8 {
        let at = address::unpack(reference);
        self.bases[at.node as usize].0.wrapping_add(at.offset as usize)
    }

    /// The address of the entry behind `reference`, for a caller that reads it now: this counts the read.
    #[inline(always)]
    fn address_of(&self, reference: u64) -> *const u8 {
        let at = address::unpack(reference);
        debug_assert!(at.offset + crate::entry::MIN_BYTES <= self.pools[at.node as usize].pool.len_mapped());
        if self.metered {
            self.pools[at.node as usize].pool.meter_read(at.offset, crate::entry::MIN_BYTES as usize);
        }
        self.start_of(reference)
    }

    /// Hints that the entry behind `reference` will be read soon. Harmless for any word.
    #[inline(always)]
    pub fn prefetch(&self, reference: u64) {
        hither_sync::prefetch_read(self.start_of(reference));
    }

    /// Hints that the entry will be read beyond its first line. The position of its value is known only once that line
    /// has been loaded, so without this hint the misses of a longer entry come one after the other. Prefetches at most
    /// eight lines: for scans of 400 and 1,000 bytes that was a tenth faster than four lines, and sixteen were slower
    /// for 4,000 bytes.
    #[inline(always)]
    pub fn prefetch_rest(&self, reference: u64) {
        match address::tagged_size(reference) {
            // Where only pairs were written, none straddles a line.
            None | Some(..=crate::entry::MIN_BYTES) => {}
            Some(size @ ..=64) => hither_sync::prefetch_read(self.start_of(reference).wrapping_add(size as usize - 1)),
            Some(_) => self.prefetch_lines(reference),
        }
    }

    /// Hints that the whole entry will be read soon: see [`Log::prefetch_rest`].
    #[inline(always)]
    pub fn prefetch_whole(&self, reference: u64) {
        self.prefetch(reference);
        self.prefetch_rest(reference);
    }

    #[inline(never)]
    fn prefetch_lines(&self, reference: u64) {
        const LINES: u64 = 8;
        let entry = self.start_of(reference);
        let size = address::tagged_size(reference).unwrap_or(0).min(LINES * 64);
        // Up to a line beyond the entry: without that line, scans of 100 bytes were 13 % slower.
        (64..size + 63).step_by(64).for_each(|distance| hither_sync::prefetch_read(entry.wrapping_add(distance as usize)));
    }

    /// As [`Log::prefetch`], up to the key of a batch member, which may be in the next line.
    #[inline(always)]
    pub fn prefetch_key(&self, reference: u64) {
        let entry = self.start_of(reference);
        hither_sync::prefetch_read(entry);
        hither_sync::prefetch_read(entry.wrapping_add(crate::entry::MIN_BYTES as usize - 1));
    }

    /// The first `N` words of the entry. Every entry has at least four.
    #[inline(always)]
    fn words<const N: usize>(&self, reference: u64) -> [u64; N] {
        const { assert!(N * 8 <= crate::entry::MIN_BYTES as usize) };
        // SAFETY: references come from the index or from replay, so they point to an entry of at least MIN_BYTES inside
        // the mapping, 8-byte aligned.
        let words = unsafe { &*self.address_of(reference).cast::<[AtomicU64; N]>() };
        std::array::from_fn(|i| words[i].load(Relaxed))
    }

    /// The value word of a plain 8-byte pair; `None` for any other layout.
    #[inline(always)]
    pub fn plain_value(&self, reference: u64) -> Option<[u8; 8]> {
        self.plain_pair(reference).map(|(_, value)| value.to_ne_bytes())
    }

    /// Key and value of a plain 8-byte pair, as their bytes lie in memory; `None` for any other layout.
    #[inline(always)]
    pub(crate) fn plain_pair(&self, reference: u64) -> Option<(u64, u64)> {
        let [first, _, key, value] = self.words(reference);
        is_plain_put(first).then_some((key, value))
    }

    /// The value of a put with this 8-byte key and without expiry; `None` for any other entry. If the entry is a plain
    /// pair, which [`is_pair`] decides by the reference, returns the value as its bytes lie in memory; otherwise the
    /// value's place, for [`Log::value_at`].
    ///
    /// Returns `None` for a word without a size tag, which need not be a reference. Short for a plain pair, so that it
    /// needs few registers: see the index's `peek`.
    #[inline(always)]
    pub fn short_value_of(&self, reference: u64, key: u64) -> Option<u64> {
        let node = address::node_if_of_size(reference, crate::entry::MIN_BYTES);
        let Some(base) = self.pair_bases.get(node) else { return self.short_place_of(reference, key) };
        // The bits above the offset were subtracted from the base, so the reference needs no mask.
        let entry = base.0.wrapping_add((reference as usize).wrapping_mul(8));
        // SAFETY: as in `words`. A collector may mark the entry dead meanwhile, which does not affect the bits tested
        // here.
        let words = unsafe { &*entry.cast::<[AtomicU64; 4]>() };
        // SAFETY: as above.
        (is_plain_half(unsafe { upper_half(base.0, reference) }) && words[2].load(Relaxed) == key).then(|| words[3].load(Relaxed))
    }

    /// As [`Log::short_value_of`], for an entry longer than a pair.
    #[inline(always)]
    fn short_place_of(&self, reference: u64, key: u64) -> Option<u64> {
        address::tagged_size(reference)?;
        // These loads are not metered: a caller that gets a place reads the entry again where reads are counted.
        let first = self.word(reference, 0);
        // Not by `layout`: among entries longer than a pair, this case is to be the fastest.
        if first & (OTHERS_MASK | PUT_FLAG) == LEN_MASK | PUT_FLAG {
            let lengths = self.word(reference, HEADER_BYTES);
            let is_keys = lengths as u32 == 8 && self.word(reference, BARE_HEAD_BYTES) == key;
            return (is_keys && lengths >> 32 <= MAX_VALUE_BYTES as u64).then(|| lengths + BARE_HEAD_BYTES);
        }
        let layout = self.extended(reference, first)?;
        let is_keys = first & PUT_FLAG != 0 && layout.key_bytes == 8 && self.word(reference, layout.key_at) == key;
        is_keys.then(|| layout.value_bytes << 32 | (layout.key_at + 8))
    }

    /// The value at the place that [`Log::short_value_of`] has returned for the entry.
    #[inline(always)]
    pub fn value_at(&self, reference: u64, place: u64) -> Option<&[u8]> {
        self.bytes_of(reference, place & 0xffff_ffff, place >> 32)
    }

    /// The word `at` bytes behind an entry's start: one of its first four, or one that the caller knows to lie inside
    /// the mapping.
    #[inline(always)]
    fn word(&self, reference: u64, at: u64) -> u64 {
        // SAFETY: as in `words`, or as the caller knows.
        unsafe { &*self.start_of(reference).wrapping_add(at as usize).cast::<AtomicU64>() }.load(Relaxed)
    }

    /// The layout of an entry with an extension, such as a batch member; `first` is its first word. `None` if there is
    /// no extension, or if the entry has an expiry, is marked dead, or is damaged in a way that shows here.
    /// [`EntryView::parse`] is the reference.
    #[inline(always)]
    fn extended(&self, reference: u64, first: u64) -> Option<Layout> {
        const READ: u8 = ext::KNOWN & !ext::EXPIRY;
        // Bytes before the key, with all fields that are read.
        const LONGEST: u64 = HEADER_BYTES + 8 * (1 + READ.count_ones() as u64 + 2);
        if first & OTHERS_MASK & !LEN_MASK != EXT_MASK {
            return None;
        }
        let fields = self.word(reference, HEADER_BYTES) as u8;
        // The most frequent case: a batch member that would be a pair outside the batch.
        if fields == 0 && first & LEN_MASK == 0 {
            return Some(Layout::without_lengths(HEADER_BYTES + 8, first));
        }
        let at = address::unpack(reference);
        if fields & !READ != 0 || at.offset + LONGEST > self.pools[at.node as usize].pool.len_mapped() {
            return None;
        }
        let end = HEADER_BYTES + 8 + 8 * u64::from(fields.count_ones());
        if first & LEN_MASK == 0 {
            return Some(Layout::without_lengths(end, first));
        }
        Layout::of_lengths(end + 8, self.word(reference, end))
    }

    /// As [`Log::extended`], also for an entry without an extension, if it has a length word.
    #[inline(always)]
    fn layout(&self, reference: u64, first: u64) -> Option<Layout> {
        if first & OTHERS_MASK != LEN_MASK {
            return self.extended(reference, first);
        }
        Layout::of_lengths(BARE_HEAD_BYTES, self.word(reference, HEADER_BYTES))
    }

    /// `bytes` bytes of an entry from offset `from` on; `None` if they are not inside the pool, which happens only for
    /// a damaged entry.
    #[inline(always)]
    fn bytes_of(&self, reference: u64, from: u64, bytes: u64) -> Option<&[u8]> {
        let at = address::unpack(reference);
        if at.offset + from + bytes > self.pools[at.node as usize].pool.len_mapped() {
            return None;
        }
        let start = self.start_of(reference).wrapping_add(from as usize);
        // SAFETY: inside the mapping, as was just checked; bytes of an entry to which an index refers never change.
        Some(unsafe { std::slice::from_raw_parts(start, bytes as usize) })
    }

    /// The value of a put that has a length word or an extension, and no expiry; `None` for any other layout, and where
    /// reads are counted. [`Log::entry`] is the reference.
    #[inline(always)]
    pub fn lasting_value(&self, reference: u64) -> Option<&[u8]> {
        self.lasting_pair(reference).map(|(_, value)| value)
    }

    /// As [`Log::lasting_value`], with the key.
    #[inline(always)]
    fn lasting_pair(&self, reference: u64) -> Option<(&[u8], &[u8])> {
        // Tested first: an entry that is looked at twice would be counted twice.
        if self.metered {
            return None;
        }
        let [first] = self.words(reference);
        if first & PUT_FLAG == 0 {
            return None;
        }
        let Layout { key_at, key_bytes, value_bytes } = self.layout(reference, first)?;
        self.bytes_of(reference, key_at, key_bytes + value_bytes)?.split_at_checked(key_bytes as usize)
    }

    /// The value of an entry of the kind that [`Log::lasting_value`] takes, if it has this key. `None` for a word
    /// without a size tag, which need not be a reference.
    #[inline(always)]
    pub fn value_of_key(&self, reference: u64, key: &[u8]) -> Option<&[u8]> {
        address::tagged_size(reference)?;
        self.prefetch_rest(reference);
        let (found, value) = self.lasting_pair(reference)?;
        are_same(found, key).then_some(value)
    }

    /// Whether an entry of the kind that [`Log::lasting_value`] takes, or a delete like it, has this key; `None` for
    /// any other layout, and where reads are counted.
    #[inline(always)]
    fn is_lasting_key(&self, reference: u64, key: &[u8]) -> Option<bool> {
        if self.metered {
            return None;
        }
        let [first] = self.words(reference);
        let layout = self.layout(reference, first)?;
        if layout.key_bytes != key.len() as u64 {
            return Some(false);
        }
        if let Ok(key) = <[u8; 8]>::try_from(key) {
            return Some(self.word(reference, layout.key_at) == u64::from_le_bytes(key));
        }
        Some(self.bytes_of(reference, layout.key_at, key.len() as u64) == Some(key))
    }

    /// Whether the entry has this key and does not expire, as far as few instructions can decide.
    #[inline(always)]
    pub fn surely_has_key(&self, reference: u64, key: &[u8]) -> bool {
        if let Ok(word) = <[u8; 8]>::try_from(key) {
            return self.surely_has_word(reference, u64::from_ne_bytes(word));
        }
        self.is_lasting_key(reference, key) == Some(true)
    }

    /// As [`Log::surely_has_key`], for a key of 8 bytes as they lie in memory.
    #[inline(always)]
    pub fn surely_has_word(&self, reference: u64, key: u64) -> bool {
        self.has_plain_key(reference, key) || self.has_lasting_word(reference, key)
    }

    /// Whether the entry is a member of a batch that would be a pair outside it, with this key as its bytes lie in
    /// memory. False may also mean that this is not certain.
    #[inline(always)]
    pub fn surely_is_member(&self, reference: u64, key: u64) -> bool {
        let [first, fields, found] = [0, HEADER_BYTES, HEADER_BYTES + 8].map(|at| self.word(reference, at));
        // Where reads are counted, the general way counts this one.
        !self.metered && first & OTHERS_MASK == EXT_MASK && fields as u8 == 0 && found == key
    }

    #[inline(never)]
    fn has_lasting_word(&self, reference: u64, key: u64) -> bool {
        let layout = if self.metered { None } else { self.layout(reference, self.word(reference, 0)) };
        layout.is_some_and(|layout| layout.key_bytes == 8 && self.word(reference, layout.key_at) == key)
    }

    /// The key of an entry with an 8-byte key and neither extension nor expiry; `None` for any other layout.
    #[inline(always)]
    pub fn plain_key(&self, reference: u64) -> Option<[u8; 8]> {
        let [first, _, key] = self.words(reference);
        (first & PLAIN_MASK == 0).then(|| key.to_le_bytes())
    }

    /// Whether the entry is of the kind that [`Log::plain_key`] takes and has this key, given as its bytes lie in
    /// memory.
    #[inline(always)]
    fn has_plain_key(&self, reference: u64, key: u64) -> bool {
        let [first, _, found] = self.words(reference);
        first & PLAIN_MASK == 0 && found == key
    }

    /// Key, value and expiry (0: none) of an entry that is not a tombstone: for scans.
    #[inline(always)]
    pub fn pair(&self, reference: u64) -> (&[u8], &[u8], u64) {
        let [first] = self.words(reference);
        if first & PLAIN_MASK == 0 {
            let at = self.address_of(reference);
            // SAFETY: a plain entry has its 8-byte key at 16 and its 8-byte value at 24, inside the mapping; neither
            // ever changes.
            return unsafe { (std::slice::from_raw_parts(at.add(16), 8), std::slice::from_raw_parts(at.add(24), 8), 0) };
        }
        if let Some((key, value)) = self.lasting_pair(reference) {
            return (key, value, 0);
        }
        let entry = self.entry(reference);
        (entry.key, entry.value, entry.expiry_ms())
    }

    /// Whether the entry's key is `key`.
    #[inline(always)]
    pub fn key_matches(&self, reference: u64, key: &[u8]) -> bool {
        if let Ok(key) = <[u8; 8]>::try_from(key) {
            let [first, _, word] = self.words(reference);
            if first & PLAIN_MASK == 0 {
                return word == u64::from_le_bytes(key);
            }
            // A batch member is the only other entry that is queried this often. Dead or not, its key is still its key.
            if first & PLAIN_MASK == EXT_MASK && word as u8 == 0 {
                let [_, _, _, word] = self.words(reference);
                return word == u64::from_le_bytes(key);
            }
        }
        match self.is_lasting_key(reference, key) {
            Some(is) => is,
            None => self.readable_entry(reference).is_some_and(|entry| entry.key == key),
        }
    }

    /// The entry's expiry, 0 if it has none: header and extension word decide.
    #[inline(always)]
    pub fn expiry_of(&self, reference: u64) -> u64 {
        let [first, _, extension] = self.words(reference);
        if first & EXT_MASK == 0 || extension as u8 & ext::EXPIRY == 0 {
            return 0;
        }
        // An entry without a valid shape does not expire.
        self.readable_entry(reference).map_or(0, |entry| entry.expiry_ms())
    }

    /// The entry's key.
    #[inline(always)]
    pub fn key(&self, reference: u64) -> &[u8] {
        let [first] = self.words(reference);
        if first & PLAIN_MASK == 0 {
            // SAFETY: a plain entry has its 8-byte key at 16, inside the mapping, and it never changes.
            return unsafe { std::slice::from_raw_parts(self.address_of(reference).add(16), 8) };
        }
        self.readable_entry(reference).map_or(&[], |entry| entry.key)
    }

    /// The entry behind `reference`; `None` if damage has left it without a valid shape, which is possible only for an
    /// unverified entry.
    #[inline]
    pub fn readable_entry(&self, reference: u64) -> Option<EntryView<'_>> {
        let at = address::unpack(reference);
        let entry = crate::replay::entry_at(&self.pools[at.node as usize].pool, at.offset)?;
        self.pools[at.node as usize].pool.meter_read(at.offset, entry.size as usize);
        Some(entry)
    }

    /// The entry behind `reference`, unverified.
    #[inline]
    pub fn entry(&self, reference: u64) -> EntryView<'_> {
        self.readable_entry(reference).expect("a reference of the index leads to an entry (invariant L3)")
    }

    /// Generation of the segment behind `reference`. Together with the reference it identifies one entry for ever,
    /// because a segment gets a new, random generation whenever it is opened again. Reads only DRAM. Stable while the
    /// pin lives under which the reference was read from an index.
    #[inline(always)]
    pub fn generation_of(&self, reference: u64) -> u64 {
        let at = address::unpack(reference);
        let pool = &self.pools[at.node as usize];
        pool.segments[pool.segment_index(at.offset)].generation.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// The entry behind `reference` if its checksum is right: for references of doubtful age.
    pub fn verified_entry(&self, reference: u64) -> Option<EntryView<'_>> {
        let at = address::unpack(reference);
        let pool = &self.pools[at.node as usize];
        let segment = pool.segments.get(pool.segment_index(at.offset))?;
        let generation = segment.generation.load(std::sync::atomic::Ordering::Relaxed);
        crate::replay::verified_entry_at(&pool.pool, at.offset, generation)
    }

    /// Version of an entry that was read through `reference`.
    #[inline(always)]
    pub fn version_of(&self, reference: u64, entry: &EntryView<'_>) -> u64 {
        let at = address::unpack(reference);
        entry.version(self.base_version(at.node, at.offset))
    }

    /// Keyspace of an entry that was read through `reference`.
    #[inline(always)]
    pub fn keyspace_of(&self, reference: u64, entry: &EntryView<'_>) -> u32 {
        let at = address::unpack(reference);
        entry.keyspace(self.segment_keyspace(at.node, at.offset))
    }
}

#[cfg(test)]
mod tests;
