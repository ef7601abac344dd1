//! Point lookups: from the root through inner nodes to a leaf, or to a subtree and through it.

use super::Learned;
use super::block::WIDTH;
use super::gapped::{Gapped, Hit, Place, Shape};
use super::subtree::is_subtree;
use crate::btree::Token;
use crate::btree::protocol::Protocol;
use crate::btree::read::Found as FoundBelow;
use crate::common::node::{INNER_HEAD, Node};
use crate::common::search;
use crate::common::slice::slice_at;
use crate::common::version::{Restart, retry};
use crate::{Located, Look, Ref, Resolver};

/// The rank of a key of eight bytes. Leaves hold no other keys.
pub(super) const WORD: u8 = 8;

/// A slot of a leaf, or the place where it would go.
#[derive(Clone, Copy)]
pub(super) struct Slot<'a> {
    pub(super) leaf: Gapped<'a>,
    pub(super) version: u64,
    pub(super) shape: Shape,
    pub(super) place: Place,
    /// The reference; zero if there is none.
    pub(super) value: u64,
}

/// The end of a search.
pub(super) enum Found<'a> {
    Leaf(Slot<'a>),
    /// The key is not eight bytes long, so it is not in the leaf to which it leads.
    Foreign(Slot<'a>),
    Subtree(FoundBelow<'a>),
}

impl Slot<'_> {
    /// The result as a token and a candidate.
    #[inline(always)]
    fn located(&self) -> Located<Token> {
        let place = if self.value != 0 { Token::EXACT | Token::FOUND } else { Token::EXACT };
        let token = Token { leaf: self.leaf.0.meta().id(), place, position: self.place.slot(), version: self.version };
        Located { token, candidate: Ref(self.value), verified: true }
    }
}

impl Found<'_> {
    pub(super) fn reference<R: Resolver>(&self, key: &[u8], resolver: &R) -> Ref {
        match self {
            Found::Leaf(slot) => Ref(slot.value),
            Found::Foreign(_) => Ref::NONE,
            Found::Subtree(found) => found.reference(key, resolver),
        }
    }

    fn located(&self) -> Located<Token> {
        match self {
            Found::Leaf(slot) => slot.located(),
            Found::Foreign(_) => Located { token: Token::NOWHERE, candidate: Ref::NONE, verified: true },
            Found::Subtree(found) => found.located(),
        }
    }
}

impl<P: Protocol> Learned<P> {
    /// The leaf, or the root of the subtree, for `slice`, and its version.
    #[inline(always)]
    pub(super) fn descend(&self, slice: u64) -> Result<(Node<'_>, u64), Restart> {
        let (mut node, mut version) = self.tree.top()?;
        while node.meta().class() == INNER_HEAD {
            let inner = Gapped(node);
            let address = inner.child(slice);
            inner.prefetch_child(address);
            (node, version) = self.tree.follow(node, version, address)?;
        }
        Ok((node, version))
    }

    /// The slot for `slice` in this leaf, at this version.
    #[inline(always)]
    fn slot_in<'a>(leaf: Gapped<'a>, version: u64, slice: u64) -> Result<Slot<'a>, Restart> {
        let shape = leaf.shape();
        let Hit { place, value } = leaf.find(shape, slice);
        leaf.0.version().check(version)?;
        Ok(Slot { leaf, version, shape, place, value })
    }

    /// One attempt to find the slot of `key`.
    pub(super) fn try_find(&self, key: &[u8]) -> Result<Found<'_>, Restart> {
        let (slice, rank) = slice_at(key, 0);
        let (node, version) = self.descend(slice)?;
        if is_subtree(node) {
            return Ok(Found::Subtree(self.tree.find_in(node, version, key)?));
        }
        let slot = Self::slot_in(Gapped(node), version, slice)?;
        Ok(if rank == WORD { Found::Leaf(slot) } else { Found::Foreign(slot) })
    }

    fn find(&self, key: &[u8]) -> Found<'_> {
        self.try_find(key).unwrap_or_else(|Restart| retry(|| self.try_find(key)))
    }

    /// Returns the verified reference of `key`.
    #[inline(always)]
    pub(super) fn lookup<R: Resolver>(&self, key: &[u8], resolver: &R) -> Ref {
        if let Ok(word) = <[u8; 8]>::try_from(key)
            && let Ok(found) = self.try_word(u64::from_be_bytes(word))
        {
            return found;
        }
        self.lookup_any(key, resolver)
    }

    /// See [`crate::Index::peek`]. Not inlined, for the same reason as in the hash index.
    #[inline(never)]
    pub(super) fn peek_word<T: Default>(&self, key: u64, look: impl Look<T>) -> (Ref, T) {
        if let Ok(found) = self.try_peek(u64::from_be(key))
            && let Some(seen) = look.look(found, key)
        {
            return (found, seen);
        }
        (Ref::NONE, T::default())
    }

    /// One attempt to look up a key of eight bytes. How many lookups overlap depends on how many instructions fit into
    /// the processor's window, so this does nothing else; every less simple case restarts.
    #[inline(always)]
    fn try_word(&self, slice: u64) -> Result<Ref, Restart> {
        let (node, version) = self.descend(slice)?;
        if is_subtree(node) {
            return Ok(Ref(self.tree.try_word_in(node, version, slice)?.value));
        }
        Self::word_in(Gapped(node), version, slice)
    }

    /// As above, for [`Look`].
    #[inline(always)]
    fn try_peek(&self, slice: u64) -> Result<Ref, Restart> {
        let (node, version) = self.descend(slice)?;
        if is_subtree(node) {
            self.tree.peek_in(search::is_wide(), node, version, slice)
        } else {
            Self::word_in(Gapped(node), version, slice)
        }
    }

    #[inline(always)]
    fn word_in(leaf: Gapped<'_>, version: u64, slice: u64) -> Result<Ref, Restart> {
        let shape = leaf.shape();
        let (place, mut value) = leaf.probe(shape, leaf.predict(shape, slice), slice);
        if value == 0 && !(1..WIDTH).contains(&place.index) {
            value = leaf.find_beside(shape, place, slice).value;
        }
        leaf.0.version().check(version)?;
        Ok(Ref(value))
    }

    #[inline(never)]
    fn lookup_any<R: Resolver>(&self, key: &[u8], resolver: &R) -> Ref {
        self.find(key).reference(key, resolver)
    }

    /// See [`crate::Index::locate`].
    #[inline(always)]
    pub(super) fn locate_slot(&self, key: &[u8]) -> Located<Token> {
        if let Ok(word) = <[u8; 8]>::try_from(key)
            && let Ok(located) = self.try_locate_word(u64::from_be_bytes(word))
        {
            return located;
        }
        self.locate_any(key)
    }

    #[inline(always)]
    fn try_locate_word(&self, slice: u64) -> Result<Located<Token>, Restart> {
        let (node, version) = self.descend(slice)?;
        if is_subtree(node) {
            return Ok(self.tree.try_word_in(node, version, slice)?.located());
        }
        let leaf = Gapped(node);
        leaf.prefetch_around(leaf.predict(leaf.shape(), slice));
        Ok(Self::slot_in(leaf, version, slice)?.located())
    }

    #[inline(never)]
    fn locate_any(&self, key: &[u8]) -> Located<Token> {
        self.find(key).located()
    }
}
