//! The steps of the concurrent protocol that tests can break or interrupt.
//!
//! [`Sound`] is what the product runs: it heeds all rules and never pauses, so the compiler removes every trace of
//! them. A twin with a planted bug exists only in the tests (`twins.rs`).

/// Where a test may interrupt an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Point {
    /// A lookup has chosen its segment and read nothing of it yet.
    SegmentChosen,
    /// A split has frozen its segment and read its references.
    Collected,
    /// A split has made its new segments reachable.
    Published,
}

/// A step of the protocol that can be left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// A key that is put beyond a pair is announced by overflow flags before its slot is written.
    SetFlags,
    /// A split freezes every pair.
    FreezeAll,
    /// Writers do not write to frozen pairs.
    HeedFrozen,
    /// New segments are filled before the directory leads to them.
    FillFirst,
}

/// The protocol's steps. See the head of the module.
pub trait Protocol: Send + Sync + 'static {
    /// Whether the rule is followed.
    #[inline(always)]
    fn heeds(_rule: Rule) -> bool {
        true
    }

    /// Called at each [`Point`].
    #[inline(always)]
    fn pause(_point: Point) {}
}

/// The protocol with every rule followed.
#[derive(Debug)]
pub struct Sound;

impl Protocol for Sound {}
