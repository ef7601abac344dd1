//! The shortcut word, which leads a collector to an entry's place in the index (Pacman, section 3.1; `docs/adr/0020`).
//!
//! It holds a hint from the index and the opening of the store in which it was written. The leaves of a volatile index
//! have other numbers after a restart, so the words of other openings are ignored, which only matters for speed. A word
//! may be stale, foreign or random without harm: a collector that follows it relies only on what it finds there.

/// First bit of the slot; the leaf's number is below it.
pub const SLOT_SHIFT: u32 = 32;
/// First bit of the opening's number.
pub const OPENING_SHIFT: u32 = 48;

/// The word for a hint of the index, of which the low 48 bits count. Never 0, because no opening has the number 0.
#[inline(always)]
pub fn word(hint: u64, opening: u16) -> u64 {
    debug_assert!(opening != 0 && hint >> OPENING_SHIFT == 0);
    hint | u64::from(opening) << OPENING_SHIFT
}

/// The hint in a word, if it was written in this opening.
#[inline(always)]
pub fn hint(word: u64, opening: u16) -> Option<u64> {
    (word >> OPENING_SHIFT == u64::from(opening)).then_some(word & ((1 << OPENING_SHIFT) - 1))
}
