//! Claiming a key's leaf before the caller flushes, and installing by plain stores afterwards.
//!
//! A claim keeps other writers of the leaf away until the install, for a fraction of a microsecond, and hides nothing from readers. It is
//! taken in the plain case only: the search proved the place, the leaf has not changed since, and it has room. Nobody waits in order to claim: whoever
//! finds the leaf claimed leaves it to the optimistic install of [`super::write`], which then waits for a claim, but for no more than one writer's
//! flush. So neighbouring inserts of many threads do not queue behind each other's flushes.
//!
//! The holder of a claim waits for no node, so there is no deadlock.

use super::leaf::{Entry, Leaf};
use super::protocol::{Point, Protocol};
use super::slice::slice_at;
use super::{BTree, Token};
use crate::{Key, Ref, Resolver};

impl<P: Protocol> BTree<P> {
    /// Claims the leaf of a located key; false, without a trace, if that takes waiting or the install could not be plain.
    #[inline(always)]
    pub(super) fn try_claim(&self, token: Token) -> bool {
        if token.flags & Token::EXACT == 0 {
            return false;
        }
        let Some(node) = self.arena.node(token.leaf) else { return false };
        if !node.version().claim(token.version) {
            return false;
        }
        // From here on the leaf stays as the search found it.
        let leaf = Leaf(node);
        if token.flags & Token::FOUND == 0 && (leaf.is_full() || node.meta().level() > 0) {
            node.version().disclaim(token.version);
            return false;
        }
        true
    }

    /// Ends a claim by replacing `old`, which is what the search found, by `new`.
    #[inline(always)]
    pub(super) fn install_claimed<R: Resolver>(&self, token: Token, key: Key<'_>, old: Ref, new: Ref, resolver: &R) {
        let leaf = self.claimed_leaf(token);
        let found = token.flags & Token::FOUND != 0;
        let last = new.is_none() && leaf.0.meta().count() == 1;
        if found != old.is_some() || old == new || last {
            leaf.0.version().disclaim(token.version);
            self.replace(Token::NOWHERE, key.bytes, old, new, resolver).expect("the key latch keeps other writers of the key away");
            return;
        }
        let at = usize::from(token.position);
        debug_assert!(!found || leaf.value(leaf.0.meta(), at) == old.0, "nobody changes a claimed leaf");
        let lock = leaf.0.version().lock_claimed(token.version);
        if !found {
            let (slice, kind) = slice_at(key.bytes, usize::from(token.layer) * 8);
            leaf.insert(at, Entry { slice, kind, value: new.0 });
        } else if new.is_some() {
            leaf.set_value(at, new.0);
        } else {
            leaf.remove(at);
        }
        lock.done();
        P::reached(Point::TokenHit);
        self.count_change(leaf, key.bytes, old, new);
    }

    /// Ends a claim without a change.
    pub(super) fn disclaim(&self, token: Token) {
        self.claimed_leaf(token).0.version().disclaim(token.version);
    }

    #[inline(always)]
    fn claimed_leaf(&self, token: Token) -> Leaf<'_> {
        Leaf(self.arena.node(token.leaf).expect("a claimed leaf is there"))
    }
}
