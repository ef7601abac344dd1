//! The steps of the concurrent protocol that tests can break, interrupt or count.
//!
//! [`Sound`] is what the product runs: it heeds all rules and has no hooks, so the compiler removes every trace of
//! them. Twins with a planted bug exist only in the tests (`tests/twins.rs`).

/// A place in an operation: tests pause there or count that it was reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Point {
    /// A scan has read a leaf's slots and not yet validated them.
    ScanRead,
    /// A scan found a leaf changed and looks for its place again.
    ScanReseek,
    /// A lookup is about to follow a child.
    Descend,
    /// A full leaf was replaced by one of the next class.
    Grow,
    /// A full leaf was split.
    LeafSplit,
    /// A leaf was split at its end (or beginning): ascending (descending) keys.
    EdgeSplit,
    /// A peek has found something and has not confirmed it yet.
    Peeked,
    /// A root was split.
    RootSplit,
    /// An inner node was split.
    InnerSplit,
    /// A full or a sparse inner node shared its entries evenly with a sibling.
    InnerRedistribute,
    /// A full leaf gave slots to a sibling.
    Redistribute,
    /// Two keys with one slice got a layer.
    NewLayer,
    /// A layer's skipped prefix was cut in two.
    PrefixSplit,
    /// Two leaves became one, or an empty leaf was unlinked.
    LeafMerge,
    /// Two inner nodes became one.
    InnerMerge,
    /// A root with a single child left was replaced by that child.
    RootCollapse,
    /// A layer's last key was removed, and the layer with it.
    LayerGone,
    /// A place was claimed, and nothing of it has changed yet.
    Claimed,
    /// An install used its token's leaf without a search.
    TokenHit,
    /// A subtree took the place of a learned leaf.
    Subtree,
    /// A learned leaf was rebuilt with more room.
    ArrayGrow,
    /// A learned leaf was split.
    ArraySplit,
    /// A learned leaf that a run had filled got a new neighbour.
    ArrayEdgeSplit,
    /// A learned root was split.
    ArrayRootSplit,
    /// A learned inner node was split.
    ArrayInnerSplit,
    /// Two learned leaves became one, or an empty leaf was unlinked.
    ArrayMerge,
    /// Two learned inner nodes became one.
    ArrayInnerMerge,
    /// A learned root with a single child left was replaced by that child.
    ArrayCollapse,
    /// Two neighbouring learned nodes and the node above them were locked, to become one.
    ArrayPair,
    /// A half-done structure change of a planted twin.
    HalfDone,
}

/// A step of the protocol that can be left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// A scan validates what it read of a leaf.
    ScanValidates,
    /// A new sibling is filled and linked before the parent leads to it.
    LinkFirst,
    /// The old root keeps all its slots until the new root is in place.
    RootAtomic,
    /// The parent stops leading to an emptied leaf in the same step in which the leaf becomes obsolete.
    UnlinkAtomic,
    /// A reader checks that the parent still leads to the child whose version it has taken.
    Coupled,
    /// A claimed place keeps other writers out.
    ClaimsExclude,
    /// A writer that follows a hint changes the leaf only in the state in which it found the reference there.
    HintsHold,
    /// An inner node that gives away children gives up their slices in the same step.
    BoundsHold,
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
    fn reached(_point: Point) {}
}

/// The protocol with every rule followed.
#[derive(Debug)]
pub struct Sound;

impl Protocol for Sound {}
