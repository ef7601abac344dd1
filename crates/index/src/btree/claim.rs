//! Claims: a single write keeps other writers out of its leaf before the caller flushes, and changes the leaf by plain
//! stores afterwards.
//!
//! A locked instruction after a flush waits until the flush is complete, and everything that the next write could do
//! meanwhile waits with it (`docs/adr/0010`, `docs/adr/0019`). So the locked instruction that an install pays anyway
//! comes before the flush.
//!
//! # Thread safety
//!
//! A claim is held over the caller's append and fence. Readers do not see it. Other writers of the leaf give up and
//! start again or, if they have a choice, do without a claim. A structure change that finds a claim marks the leaf as
//! wanted, and gets it next. The holder of a claim waits for no other node, so there is no deadlock.
//!
//! # Invariants
//!
//! * C1. Only leaves are claimed, and only if the write can be done in the leaf alone: the search proved the place, a
//!   new slot finds room, and a removed slot is not the last one.
//! * C2. Only its holder changes a claimed leaf, except for the `previous` link (L3) and the mark "wanted".

use super::leaf::{Entry, Leaf};
use super::protocol::{Point, Protocol, Rule};
use super::spot::Above;
use super::{BTree, Token};
use crate::Ref;
use crate::common::slice::slice_at;
use crate::common::version::retry;

impl<P: Protocol> BTree<P> {
    /// Claims the leaf of `token` if it has not changed since, nobody else has claimed or wants it, and C1 holds.
    #[inline(always)]
    pub fn claim_place(&self, token: Token) -> bool {
        self.arena.node(token.leaf).is_some_and(|leaf| self.claim_leaf(Leaf(leaf), token))
    }

    /// As above, for a token whose leaf is known.
    #[inline(always)]
    pub(super) fn claim_leaf(&self, leaf: Leaf<'_>, token: Token) -> bool {
        if !token.is_exact() {
            return false;
        }
        // Read before the claim, which succeeds only if the leaf is still in the token's state.
        let fits = if token.is_found() { leaf.0.meta().count() > 1 } else { !leaf.is_full() };
        if !fits {
            return false;
        }
        let Ok(claim) = leaf.0.version().claim(token.version) else { return false };
        // A planted bug (only for twins) ends the claim at once.
        if P::heeds(Rule::ClaimsExclude) {
            claim.keep()
        } else {
            drop(claim)
        }
        P::reached(Point::Claimed);
        true
    }

    /// Ends [`BTree::claim_place`] by putting `new` in place of `old`, which the place must hold; if `old` is none,
    /// `new` takes a new slot.
    #[inline(always)]
    pub(crate) fn replace_claimed<'a>(&'a self, above: &impl Above<'a>, token: Token, key: &[u8], old: Ref, new: Ref) {
        self.replace_in_claimed(above, (self.claimed_leaf(token), token), key, old, new);
    }

    /// As above, for a token whose leaf is known.
    #[inline(always)]
    pub(super) fn replace_in_claimed<'a>(
        &'a self,
        above: &impl Above<'a>,
        (leaf, token): (Leaf<'a>, Token),
        key: &[u8],
        old: Ref,
        new: Ref,
    ) {
        let version = leaf.0.version();
        let lock = if P::heeds(Rule::ClaimsExclude) { version.resume().lock() } else { retry(|| version.lock(version.read()?)) };
        let at = usize::from(token.position);
        if old.is_none() {
            let (slice, kind) = slice_at(key, token.depth());
            leaf.insert(at, Entry { slice, kind, value: new.0 });
        } else if new.is_some() {
            leaf.set_value(at, new.0);
        } else {
            leaf.remove(at);
        }
        lock.done();
        self.count_change(above, leaf, key, old, new);
    }

    /// Ends [`BTree::claim_place`] without a change.
    #[cold]
    pub(crate) fn release_claim(&self, token: Token) {
        if P::heeds(Rule::ClaimsExclude) {
            drop(self.claimed_leaf(token).0.version().resume());
        }
    }

    #[inline(always)]
    fn claimed_leaf(&self, token: Token) -> Leaf<'_> {
        Leaf(self.arena.node(token.leaf).expect("a claimed place names a leaf of this tree"))
    }
}
