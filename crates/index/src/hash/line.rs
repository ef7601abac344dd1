//! Bucket lines: 64 bytes of tags and references, paired, with one lock per pair.
//!
//! ```text
//! line   | tag0 tag1 .. tag6 | flags | ref0 | ref1 | .. | ref6 |      8 + 7 × 8 bytes
//! pair   | line 0 (carries the pair's flags) | line 1 |               128 bytes, aligned
//! ```
//!
//! # Thread safety
//!
//! Every word is atomic. Only the holder of the pair's lock changes the words of its two lines, so it may use plain
//! stores; readers never lock.
//!
//! # Invariants
//!
//! * L1. Tag 0 means that the slot is free; a used slot's tag is that of its key's hash. Under the lock, tag 0 ⇔
//!   reference 0.
//! * L2. A slot's reference is written before its tag appears and cleared after its tag has gone. A reader that sees a
//!   tag and then a reference of zero, or of another key, has met a change under way and goes on.
//! * L3. FROZEN is set under the lock and stays until the block is reused, or the replacement is undone: while it is
//!   set, the pair does not change.
//! * L4. OVERFLOW is set while the pair is full, before a key of its path is put farther away, and stays.

use hither_sync::prefetch_write;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m128i, _mm_cvtsi32_si128, _mm_max_epu8, _mm_set1_epi8, _mm_shufflelo_epi16, _mm_unpacklo_epi8, _mm_unpacklo_epi64,
};
use std::sync::atomic::{AtomicU64, Ordering};

/// References in a line.
pub(super) const LINE_SLOTS: usize = 7;
/// References in a pair.
pub(super) const PAIR_SLOTS: usize = 2 * LINE_SLOTS;

/// The pair is locked by a writer.
pub(super) const LOCK: u64 = 1 << 56;
/// Some key whose path leads through this pair may lie farther on.
pub(super) const OVERFLOW: u64 = 1 << 57;
/// The pair belongs to a segment that is being replaced, or was.
pub(super) const FROZEN: u64 = 1 << 58;
/// In a segment's first pair: the segment was built with references whose keys could not be read ([`super::rebuild`]).
pub(super) const HAS_LOST: u64 = 1 << 59;

const TAG_ONES: u64 = 0x0001_0101_0101_0101;
const TAG_HIGHS: u64 = 0x0080_8080_8080_8080;
const TAG_LOWS: u64 = 0x007f_7f7f_7f7f_7f7f;

/// The bits of a hash that form its tag. They select neither the segment nor, in a segment of fewer than 2¹⁸ pairs, the
/// pair.
pub(super) const TAG_BITS: u64 = 0xff << TAG_SHIFT;
const TAG_SHIFT: u32 = 24;

/// The tag of a hash: its [`TAG_BITS`], with 0 mapped to 1.
#[inline(always)]
pub(super) fn tag_of(hash: u64) -> u64 {
    ((hash & TAG_BITS) >> TAG_SHIFT).max(1)
}

/// The slots of a line whose tag is `tag`, one bit per slot at the top of its byte. Exact: no borrow runs between
/// bytes.
#[inline(always)]
pub(super) fn matches(meta: u64, tag: u64) -> u64 {
    let differs = meta ^ (tag * TAG_ONES);
    !(((differs & TAG_LOWS) + TAG_LOWS) | differs) & TAG_HIGHS
}

/// The slots of a pair whose tag is `tag`, one bit each. Slot `s` of line `l` has bit `8·l + s`; its reference is word
/// `1 + 8·l + s` of the pair.
#[cfg(any(test, not(target_arch = "x86_64")))]
#[inline(always)]
fn matches_in_pair(metas: [u64; 2], tag: u64) -> u32 {
    // Moves bit 8·s of a word to bit 49 + s; no two bits meet on the way.
    const GATHER: u64 = 0x0002_0408_1020_4080;
    let [first, second] = metas.map(|meta| ((matches(meta, tag) >> 7).wrapping_mul(GATHER) >> 49 & 0x7f) as u32);
    first | second << 8
}

/// As [`matches_in_pair`], for a tag that fills all bytes of `tags`: four instructions once the lines have arrived. A
/// processor has room for about a hundred instructions that wait for data; the fewer of them a lookup needs, the more
/// lookups overlap.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn matches_in(pair: &Pair, tags: __m128i) -> u32 {
    let equal: u32;
    // SAFETY: reads the 16 tag bytes of a live pair in two aligned loads of 8 bytes each, as the atomic loads of the
    // two words would; writes only the registers listed.
    unsafe {
        std::arch::asm!(
            "movq {words}, [{pair}]",
            "movhps {words}, [{pair} + 64]",
            "pcmpeqb {words}, {tags}",
            "pmovmskb {equal:e}, {words}",
            pair = in(reg) pair,
            tags = in(xmm_reg) tags,
            words = out(xmm_reg) _,
            equal = lateout(reg) equal,
            options(nostack, readonly, preserves_flags),
        );
    }
    equal & PAIR_BITS
}

/// Returns the tag of a hash in all bytes. It is computed where it is needed and without a general register: a
/// processor can hold only half as many instructions that write a general register as instructions in all
/// (`docs/adr/0010`).
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn tags_of(hash: u64) -> __m128i {
    // The tag is the fourth byte of the hash: below, each byte is doubled, and the last of the first four words is
    // taken.
    const { assert!(TAG_SHIFT == 24) };
    // SAFETY: every processor of this architecture has these instructions.
    unsafe {
        let bytes = _mm_cvtsi32_si128(hash as i32);
        let words = _mm_shufflelo_epi16::<0xff>(_mm_unpacklo_epi8(bytes, bytes));
        _mm_max_epu8(_mm_unpacklo_epi64(words, words), _mm_set1_epi8(1))
    }
}

/// All slot bits in the result of [`matches_in_pair`].
const PAIR_BITS: u32 = 0x7f7f;

/// The free slots of a line, in the form of [`matches`].
#[inline(always)]
pub(super) fn free_slots(meta: u64) -> u64 {
    matches(meta, 0)
}

/// The slot of the lowest bit of a set, which must not be empty.
#[inline(always)]
pub(super) fn first_slot(set: u64) -> usize {
    (set.trailing_zeros() >> 3) as usize
}

/// `meta` with the tag of `slot` replaced.
#[inline(always)]
pub(super) fn with_tag(meta: u64, slot: usize, tag: u64) -> u64 {
    let shift = slot * 8;
    meta & !(0xff << shift) | tag << shift
}

/// The tag of `slot`.
#[inline(always)]
pub(super) fn tag_at(meta: u64, slot: usize) -> u64 {
    meta >> (slot * 8) & 0xff
}

/// One cache line.
#[repr(C, align(64))]
pub(super) struct Line {
    pub(super) meta: AtomicU64,
    pub(super) refs: [AtomicU64; LINE_SLOTS],
}

/// Two lines under one lock.
#[repr(C, align(128))]
pub(super) struct Pair {
    pub(super) lines: [Line; 2],
}

const _: () = assert!(size_of::<Line>() == 64 && size_of::<Pair>() == 128);

impl Pair {
    /// Locks the pair; `None` if it is frozen (and `heed_frozen`, which only a planted bug leaves out). Spins while
    /// another writer holds it: for a few stores, or for the append and the fence of a write (`place`).
    #[inline(always)]
    pub(super) fn lock(&self, heed_frozen: bool) -> Option<Held<'_>> {
        let word = &self.lines[0].meta;
        let mut spins = 0u32;
        loop {
            let meta = word.load(Ordering::Relaxed);
            if meta & FROZEN != 0 && heed_frozen {
                return None;
            }
            // Acquire pairs with the release in `Held::unlock`: what the last holder wrote is visible.
            if meta & LOCK == 0 && word.compare_exchange_weak(meta, meta | LOCK, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Some(Held { pair: self, meta });
            }
            hither_sync::pause(&mut spins);
        }
    }

    /// As [`Pair::lock`], but also `None` if a writer holds it, even this thread. Never waits.
    #[inline(always)]
    pub(super) fn try_lock(&self, heed_frozen: bool) -> Option<Held<'_>> {
        let word = &self.lines[0].meta;
        let meta = word.load(Ordering::Relaxed);
        if meta & LOCK != 0 || meta & FROZEN != 0 && heed_frozen {
            return None;
        }
        word.compare_exchange(meta, meta | LOCK, Ordering::Acquire, Ordering::Relaxed).ok().map(|meta| Held { pair: self, meta })
    }

    /// Takes up the lock that the caller took earlier with [`Pair::lock`] and kept with [`Held::keep`].
    #[inline(always)]
    pub(super) fn resume(&self) -> Held<'_> {
        let meta = self.lines[0].meta.load(Ordering::Relaxed);
        debug_assert!(meta & LOCK != 0, "only the holder resumes");
        Held { pair: self, meta: meta & !LOCK }
    }

    /// Starts loading both lines: the first one carries the lock, and every writer looks at the tags of both.
    #[inline(always)]
    pub(super) fn prefetch_for_write(&self) {
        prefetch_write(&raw const self.lines[0]);
        prefetch_write(&raw const self.lines[1]);
    }

    /// Empties a pair that nobody else can reach.
    pub(super) fn clear(&self) {
        for line in &self.lines {
            line.meta.store(0, Ordering::Relaxed);
            for reference in &line.refs {
                reference.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Lets writers in again after the replacement of a frozen segment was given up. Only for the thread that froze it.
    pub(super) fn thaw(&self) {
        // Nobody else writes a frozen pair's flags.
        let word = &self.lines[0].meta;
        word.store(word.load(Ordering::Relaxed) & !FROZEN, Ordering::Release);
    }

    /// The slots of this tag, numbered as in [`matches_in_pair`]. Acquire, as for every read of tags: it pairs with the
    /// release of the tag, so that the slot's reference is visible (L2).
    #[inline(always)]
    pub(super) fn slots(&self, tag: u64) -> u32 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as in `tags_of`.
        return matches_in(self, unsafe { _mm_set1_epi8(tag as i8) });
        #[cfg(not(target_arch = "x86_64"))]
        matches_in_pair([0, 1].map(|line: usize| self.lines[line].meta.load(Ordering::Acquire)), tag)
    }

    /// As [`Pair::slots`], for the tag of `hash`.
    #[inline(always)]
    pub(super) fn slots_of(&self, hash: u64) -> u32 {
        #[cfg(target_arch = "x86_64")]
        return matches_in(self, tags_of(hash));
        #[cfg(not(target_arch = "x86_64"))]
        self.slots(tag_of(hash))
    }

    /// The reference in a slot of [`Pair::slots`].
    ///
    /// # Safety
    /// `slot` is a bit of what [`Pair::slots`] returned.
    #[inline(always)]
    pub(super) unsafe fn reference_at(&self, slot: u32) -> u64 {
        // Acquire: the entry behind the reference is visible.
        // SAFETY: the caller's promise.
        unsafe { self.word_at(slot) }.load(Ordering::Acquire)
    }

    /// Changes a slot's reference. The caller holds the pair's lock.
    ///
    /// # Safety
    /// As [`Pair::reference_at`].
    #[inline(always)]
    pub(super) unsafe fn set_reference_at(&self, slot: u32, reference: u64) {
        // Release: the entry is visible to a reader that sees the reference.
        // SAFETY: the caller's promise.
        unsafe { self.word_at(slot) }.store(reference, Ordering::Release);
    }

    /// # Safety
    /// As [`Pair::reference_at`].
    #[inline(always)]
    unsafe fn word_at(&self, slot: u32) -> &AtomicU64 {
        debug_assert!(PAIR_BITS & 1 << slot != 0);
        // SAFETY: a pair is 16 words, and no slot is above 14.
        unsafe { &*(&raw const *self).cast::<AtomicU64>().add(1 + slot as usize) }
    }

    /// The pair's flags.
    pub(super) fn flags(&self) -> u64 {
        self.lines[0].meta.load(Ordering::Acquire)
    }
}

/// A locked pair. Must be unlocked by [`Held::unlock`] or [`Held::freeze`]; no code in between can panic.
#[must_use]
pub(super) struct Held<'a> {
    pair: &'a Pair,
    /// The meta word of line 0 as it will be after the lock's end.
    meta: u64,
}

impl Held<'_> {
    /// Ends the lock. Release: the changes are visible to the next holder and to readers that see them through this
    /// word.
    #[inline(always)]
    pub(super) fn unlock(self) {
        self.pair.lines[0].meta.store(self.meta, Ordering::Release);
    }

    /// Keeps the lock beyond this value's life; [`Pair::resume`] takes it up again. The holder has changed nothing so
    /// far.
    #[inline(always)]
    pub(super) fn keep(self) {}

    /// Whether the path leads on beyond this pair.
    #[inline(always)]
    pub(super) fn overflows(&self) -> bool {
        self.meta & OVERFLOW != 0
    }

    /// The slots of `line` with this tag (0: the free ones), in the form of [`matches`].
    #[inline(always)]
    pub(super) fn slots(&self, line: usize, tag: u64) -> u64 {
        matches(self.meta_of(line), tag)
    }

    /// Whether a slot is free.
    #[inline(always)]
    pub(super) fn has_room(&self) -> bool {
        self.slots(0, 0) | self.slots(1, 0) != 0
    }

    /// The reference in a slot.
    #[inline(always)]
    pub(super) fn reference(&self, line: usize, slot: usize) -> u64 {
        self.pair.lines[line].refs[slot].load(Ordering::Relaxed)
    }

    /// Ends the lock for ever: no writer changes the pair any more (L3).
    pub(super) fn freeze(mut self) {
        self.meta |= FROZEN;
        self.unlock();
    }

    /// Announces that keys of this pair's path lie farther on (L4).
    #[inline(always)]
    pub(super) fn set_overflow(&mut self) {
        self.meta |= OVERFLOW;
    }

    #[inline(always)]
    fn meta_of(&self, line: usize) -> u64 {
        if line == 0 { self.meta } else { self.pair.lines[1].meta.load(Ordering::Relaxed) }
    }

    /// Changes a tag. A tag of line 0 becomes visible here, not only in `unlock`, so that deletes can order it before
    /// the reference.
    #[inline(always)]
    fn set_tag(&mut self, line: usize, slot: usize, tag: u64) {
        let meta = with_tag(self.meta_of(line), slot, tag);
        if line == 0 {
            self.meta = meta;
            self.pair.lines[0].meta.store(meta | LOCK, Ordering::Release);
        } else {
            self.pair.lines[1].meta.store(meta, Ordering::Release);
        }
    }

    /// Puts `reference` into a free slot, in line `home` if there is one; false if the pair is full.
    #[inline(always)]
    pub(super) fn put(&mut self, home: usize, tag: u64, reference: u64) -> bool {
        for line in [home, home ^ 1] {
            let free = free_slots(self.meta_of(line));
            if free != 0 {
                let slot = first_slot(free);
                // Release: the entry is visible to a reader that sees the reference. The tag follows (L2).
                self.pair.lines[line].refs[slot].store(reference, Ordering::Release);
                self.set_tag(line, slot, tag);
                return true;
            }
        }
        false
    }

    /// Replaces `old` by `new` in a slot (zero frees it); false if the slot holds something else.
    #[inline(always)]
    pub(super) fn swap(&mut self, line: usize, slot: usize, old: u64, new: u64) -> bool {
        let word = &self.pair.lines[line].refs[slot];
        if word.load(Ordering::Relaxed) != old {
            return false;
        }
        if new == 0 {
            self.set_tag(line, slot, 0);
        }
        word.store(new, Ordering::Release);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matching_is_exact_for_all_neighbouring_bytes() {
        for a in 0..=255u64 {
            for b in 0..=255u64 {
                let meta = a | b << 8 | a << 16 | 0xff << 24 | b << 48 | (LOCK | OVERFLOW | FROZEN);
                for tag in [0, 1, a, b, 0x7f, 0x80, 0xff] {
                    let expect = (0..LINE_SLOTS).filter(|slot| tag_at(meta, *slot) == tag).fold(0, |set, slot| set | 0x80 << (slot * 8));
                    assert_eq!(matches(meta, tag), expect, "meta {meta:#x} tag {tag:#x}");
                }
            }
        }
    }

    #[test]
    fn a_pair_is_matched_as_its_lines_are() {
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        for _ in 0..20_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // Few different bytes, so that many are equal.
            let (metas, tag) = ([random & 0x0707_0383_0703_0783, random.rotate_left(29) & 0x0301_8303_0103_0383], random >> 56 & 0x83);
            let of_line =
                |line: usize| (0..LINE_SLOTS).filter(move |slot| tag_at(metas[line], *slot) == tag).map(move |slot| 8 * line + slot);
            let expect = of_line(0).chain(of_line(1)).fold(0, |set, slot| set | 1 << slot);
            assert_eq!(matches_in_pair(metas, tag), expect, "{metas:x?} tag {tag:#x}");
            let pair = Pair { lines: metas.map(|meta| Line { meta: AtomicU64::new(meta), refs: Default::default() }) };
            assert_eq!(pair.slots(tag), expect, "{metas:x?} tag {tag:#x}");
            // The rest of the hash does not matter.
            let hash = random.rotate_left(11) & !TAG_BITS | tag << TAG_SHIFT;
            assert_eq!(pair.slots_of(hash), pair.slots(tag_of(hash)), "{metas:x?} hash {hash:#x}");
        }
    }

    #[test]
    fn slots_of_a_pair_are_numbered_as_its_words() {
        let line =
            |l: u64| Line { meta: AtomicU64::new(0x07_0605_0403_0201), refs: std::array::from_fn(|s| AtomicU64::new(10 * l + s as u64)) };
        let pair = Pair { lines: [line(1), line(2)] };
        for tag in 1..=LINE_SLOTS as u64 {
            let set = pair.slots(tag);
            assert_eq!(set.count_ones(), 2);
            // SAFETY: both are bits of the set.
            let found = unsafe { [pair.reference_at(set.trailing_zeros()), pair.reference_at(31 - set.leading_zeros())] };
            assert_eq!(found, [10 + tag - 1, 20 + tag - 1]);
        }
    }

    #[test]
    fn tags_are_never_zero() {
        let tag = |byte: u64| tag_of(byte << TAG_SHIFT | 0xab_0012_3456 & !TAG_BITS);
        assert!(tag(0) == 1 && (1..=255).all(|byte| tag(byte) == byte));
    }

    #[test]
    fn a_pair_takes_fourteen_home_line_first_and_freezes() {
        let pair = Pair { lines: std::array::from_fn(|_| Line { meta: AtomicU64::new(0), refs: Default::default() }) };
        for i in 0..PAIR_SLOTS as u64 {
            let mut held = pair.lock(true).unwrap();
            assert!(held.put(1, 5, i + 1));
            held.unlock();
            let in_home = matches(pair.lines[1].meta.load(Ordering::Relaxed), 5).count_ones() as u64;
            assert_eq!(in_home, (i + 1).min(LINE_SLOTS as u64));
        }
        let mut held = pair.lock(true).unwrap();
        assert!(!held.put(1, 5, 99));
        assert!(!held.swap(1, 0, 99, 100));
        assert!(held.swap(1, 0, 1, 0));
        assert!(held.put(1, 6, 100));
        held.freeze();
        assert!(pair.lock(true).is_none());
    }
}
