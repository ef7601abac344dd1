//! The steps of the concurrent protocol that tests can break or interrupt.
//!
//! [`Sound`] is what the product runs: all constants true, no pauses, so the compiler removes every trace. Twins with a planted
//! bug live in the tests (`twins.rs`) and exist only there.

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

/// The protocol's steps. See the module's head.
pub trait Protocol: Send + Sync + 'static {
    /// A key that is put farther on is announced by overflow flags, before its slot is written.
    const SET_FLAGS: bool = true;
    /// A split freezes every pair.
    const FREEZE_ALL: bool = true;
    /// Writers turn away from frozen pairs.
    const HEED_FROZEN: bool = true;
    /// New segments are filled before the directory leads to them.
    const FILL_FIRST: bool = true;

    /// Called at each [`Point`].
    #[inline(always)]
    fn pause(_point: Point) {}
}

/// The protocol as it is meant.
#[derive(Debug)]
pub struct Sound;

impl Protocol for Sound {}
