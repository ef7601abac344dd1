//! Point lookups: from the root through the layers to a slot.

use super::inner::Inner;
use super::leaf::Leaf;
use super::protocol::{Point, Protocol, Rule};
use super::spot::Cell;
use super::witness::Witnesses;
use super::{BTree, Token};
use crate::common::node::{ALL_LINES, Node};
use crate::common::search;
use crate::common::slice::{LAYER, LONGER, common_prefix, slice_at};
use crate::common::version::{Restart, Version, retry};
use crate::{Located, Look, Ref, Resolver};
use std::sync::atomic::Ordering;

/// The end of a search: a slot, or the place where it would go.
pub(crate) struct Found<'a> {
    pub(super) leaf: Leaf<'a>,
    pub(super) version: u64,
    pub(super) position: usize,
    /// The kind of the slot if it is the key's; never [`LAYER`].
    pub(crate) kind: Option<u8>,
    pub(crate) value: u64,
    /// Whether no layer on the way skips slices.
    pub(super) exact: bool,
    /// The byte at which this layer's slice begins. It lies beyond the key if the key ends inside a skip.
    pub(super) depth: usize,
}

/// The end of a search for a key of eight bytes in layer 0: its slot, or the place where it would go.
pub(crate) struct FoundWord {
    leaf: u32,
    version: u64,
    position: usize,
    known: bool,
    /// The reference; 0 if the key is absent.
    pub(crate) value: u64,
}

impl FoundWord {
    /// The result as a token and a candidate.
    #[inline(always)]
    pub(crate) fn located(&self) -> Located<Token> {
        let place = if self.known { Token::EXACT | Token::FOUND } else { Token::EXACT };
        let token = Token { leaf: self.leaf, place, position: self.position as u16, version: self.version };
        Located { token, candidate: Ref(self.value), verified: true }
    }
}

impl Found<'_> {
    /// The result as a token and a candidate.
    #[inline(always)]
    pub(crate) fn located(&self) -> Located<Token> {
        let mut flags = 0;
        if self.kind.is_some() {
            flags |= Token::FOUND;
        }
        if self.verified() {
            flags |= Token::EXACT;
        }
        let (leaf, position) = (self.leaf.0.meta().id(), self.position as u16);
        let token = Token { leaf, place: (self.depth / 8) as u16 | flags, position, version: self.version };
        Located { token, candidate: Ref(self.value), verified: self.kind.is_none() || self.verified() }
    }

    /// Whether the slot proves the key without reading the log.
    #[inline(always)]
    pub(crate) fn verified(&self) -> bool {
        self.exact && self.kind != Some(LONGER)
    }

    /// The reference in the slot, if it is that of `key`.
    #[inline(always)]
    pub(crate) fn reference<R: Resolver>(&self, key: &[u8], resolver: &R) -> Ref {
        let candidate = Ref(self.value);
        if self.kind.is_none() {
            Ref::NONE
        } else if self.verified() || resolver.matches(candidate, key) {
            candidate
        } else {
            Ref::NONE
        }
    }
}

impl<P: Protocol> BTree<P> {
    /// The root of layer 0 and its version.
    #[inline(always)]
    pub(crate) fn top(&self) -> Result<(Node<'_>, u64), Restart> {
        let address = self.root.address.load(Ordering::Acquire);
        // SAFETY: the cell always holds a node; if that is replaced meanwhile, the caller's pin keeps it from being
        // recycled.
        let node = unsafe { Node::from_address(address) };
        P::reached(Point::Descend);
        let version = node.version().try_read()?;
        // Replaces a check of the cell's version: a root that is replaced gets its new version after the store to the
        // cell.
        if P::heeds(Rule::Coupled) && self.root.address.load(Ordering::Relaxed) != address {
            return Err(Restart);
        }
        Ok((node, version))
    }

    /// Descends from a layer's root, or a node below it, to the leaf for `slice`. Prefetches whole nodes of the lowest
    /// two levels: the caller may have other work to do until they arrive.
    #[inline(always)]
    pub(super) fn descend<'a>(&'a self, root: Node<'a>, version: u64, slice: u64) -> Result<(Leaf<'a>, u64), Restart> {
        self.descend_by::<true>(search::is_wide(), root, version, slice)
    }

    /// As above. `wide` is the result of [`search::is_wide`]. With `ASK`, or if not all keys of a node can be compared
    /// at once, whole nodes are prefetched before the comparison. Otherwise nothing is prefetched: the comparison
    /// itself requests all lines of keys, which takes fewer instructions, and each prefetched line in a page without a
    /// translation costs a look-up of that page (`docs/adr/0027`).
    #[inline(always)]
    fn descend_by<'a, const ASK: bool>(&'a self, wide: bool, root: Node<'a>, version: u64, slice: u64) -> Result<(Leaf<'a>, u64), Restart> {
        let (mut node, mut version, mut meta) = (root, version, root.meta());
        while meta.is_inner() {
            let address = Inner(node).child_for(wide, slice);
            // Higher levels stay in the cache.
            if (ASK || !wide) && meta.is_within(2) {
                Node::prefetch(address, ALL_LINES);
            }
            // As in `follow`, but for inner nodes, which nobody claims (T4).
            node.version().check_whole(version)?;
            // SAFETY: as in `follow`.
            let child = unsafe { Node::from_address(address) };
            P::reached(Point::Descend);
            let below = child.version().try_read_whole()?;
            if P::heeds(Rule::Coupled) {
                node.version().check_whole(version)?;
            }
            (node, version, meta) = (child, below, child.meta());
        }
        Ok((Leaf(node), Version::unclaimed(version)))
    }

    /// Couples the versions of `node` and its child (or the layer below) at `address`.
    #[inline(always)]
    pub(crate) fn follow<'a>(&'a self, node: Node<'a>, version: u64, address: u64) -> Result<(Node<'a>, u64), Restart> {
        node.version().check(version)?;
        // SAFETY: the check says that the address was read from a live node's slot for addresses (N2); under the
        // caller's pin the node there is not recycled.
        let child = unsafe { Node::from_address(address) };
        P::reached(Point::Descend);
        let below = child.version().try_read()?;
        if P::heeds(Rule::Coupled) {
            node.version().check(version)?;
        }
        Ok((child, below))
    }

    /// One attempt to find the slot of `key`.
    #[inline(always)]
    pub(super) fn try_find(&self, key: &[u8]) -> Result<Found<'_>, Restart> {
        let (node, version) = self.begin_whole(slice_at(key, 0).0)?;
        self.find_in(node, version, key)
    }

    /// One attempt to find the slot of `key`, starting at the first layer's cell.
    pub(super) fn find_below<'a>(&'a self, origin: Cell<'a>, key: &[u8]) -> Result<Found<'a>, Restart> {
        let (root, version) = self.root_of(origin)?;
        self.find_in(root, version, key)
    }

    /// One attempt to find the slot of `key`, starting at `node`: the root of the first layer or a node below it that
    /// leads to the key's leaf.
    #[inline(always)]
    pub(crate) fn find_in<'a>(&'a self, mut node: Node<'a>, mut version: u64, key: &[u8]) -> Result<Found<'a>, Restart> {
        let skip = node.meta().skip();
        let (mut depth, mut exact) = (8 * skip, skip == 0);
        loop {
            let (slice, rank) = slice_at(key, depth);
            let leaf;
            (leaf, version) = self.descend(node, version, slice)?;
            let (position, kind, value) = leaf.find_at(version, slice, rank)?;
            if kind != Some(LAYER) {
                return Ok(Found { leaf, version, position, kind, value, exact, depth });
            }
            (node, version) = self.follow(leaf.0, version, value)?;
            let skip = node.meta().skip();
            exact &= skip == 0;
            depth += 8 + 8 * skip;
        }
    }

    /// Finds the slot of `key`, or where it would go.
    #[inline(always)]
    pub(super) fn find(&self, key: &[u8]) -> Found<'_> {
        self.try_find(key).unwrap_or_else(|Restart| retry(|| self.try_find(key)))
    }

    /// Returns the verified reference of `key`.
    #[inline(always)]
    pub(super) fn lookup<R: Resolver>(&self, key: &[u8], resolver: &R) -> Ref {
        if let Ok(word) = <[u8; 8]>::try_from(key)
            && let Ok(found) = self.try_word(u64::from_be_bytes(word))
        {
            return Ref(found.value);
        }
        self.lookup_any(key, resolver)
    }

    /// One attempt to find a key of eight bytes, whose slice occurs in layer 0 at most once. How many searches overlap
    /// depends on how many instructions fit into the processor's window, so this does nothing else; every less simple
    /// case restarts.
    #[inline(always)]
    fn try_word(&self, slice: u64) -> Result<FoundWord, Restart> {
        let (node, version) = self.begin_whole(slice)?;
        self.try_word_in(node, version, slice)
    }

    /// As above, starting at this node of layer 0, which leads to the slice's leaf.
    #[inline(always)]
    pub(crate) fn try_word_in<'a>(&'a self, node: Node<'a>, version: u64, slice: u64) -> Result<FoundWord, Restart> {
        let (leaf, version) = self.descend_from_inner(node, version, slice)?;
        self.word_in(leaf, version, slice)
    }

    /// Descends from a node of layer 0 to the leaf for `slice`. Fails if the node is a leaf, which only a root can be;
    /// otherwise the leaf is a large one.
    #[inline(always)]
    pub(super) fn descend_from_inner<'a>(&'a self, node: Node<'a>, version: u64, slice: u64) -> Result<(Leaf<'a>, u64), Restart> {
        if !node.meta().is_inner() {
            return Err(Restart);
        }
        self.descend(node, version, slice)
    }

    /// Looks for a key of eight bytes in the leaf that [`BTree::descend_from_inner`] returned.
    #[inline(always)]
    pub(super) fn word_in(&self, leaf: Leaf<'_>, version: u64, slice: u64) -> Result<FoundWord, Restart> {
        let meta = leaf.0.meta();
        let position = leaf.find_word(meta, slice);
        let known = position < leaf.count(meta) && leaf.slice(position) == slice;
        if known && leaf.kind(position) != 8 {
            return Err(Restart);
        }
        let value = if known { leaf.value(meta, position) } else { 0 };
        leaf.0.version().check(version)?;
        Ok(FoundWord { leaf: meta.id(), version, position, known, value })
    }

    /// See [`crate::Index::peek`].
    #[inline(always)]
    pub(super) fn peek_word<T: Default>(&self, key: u64, look: impl Look<T>) -> (Ref, T) {
        if search::is_wide() { self.peek_wide(key, look) } else { self.peek_narrow(key, look) }
    }

    /// Not inlined, for the same reason as in the hash index.
    #[inline(never)]
    fn peek_narrow<T: Default>(&self, key: u64, look: impl Look<T>) -> (Ref, T) {
        self.peek_by(false, key, look)
    }

    /// For processors that compare all words of a node at once: this needs so few registers that none has to be saved
    /// for the caller.
    #[inline(never)]
    fn peek_wide<T: Default>(&self, key: u64, look: impl Look<T>) -> (Ref, T) {
        self.peek_by(true, key, look)
    }

    #[inline(always)]
    fn peek_by<T: Default>(&self, wide: bool, key: u64, look: impl Look<T>) -> (Ref, T) {
        let slice = u64::from_be(key);
        let begun = if wide { self.begin(slice) } else { self.begin_whole(slice) };
        let found = begun.and_then(|(node, version)| self.peek_in(wide, node, version, slice));
        if let Ok(found) = found
            && let Some(seen) = look.look(found, key)
        {
            return (found, seen);
        }
        (Ref::NONE, T::default())
    }

    /// Returns the value in the first slot of a slice, starting at this node of layer 0, which leads to the slice's leaf.
    /// It is the reference of a key that begins with the slice, or the address of a layer. The caller's [`Look`] can
    /// tell these apart, so the kind is not read. `wide` is the result of [`search::is_wide`].
    #[inline(always)]
    pub(crate) fn peek_in<'a>(&'a self, wide: bool, node: Node<'a>, version: u64, slice: u64) -> Result<Ref, Restart> {
        if !node.meta().is_inner() {
            return Err(Restart);
        }
        let (leaf, version) = self.descend_by::<false>(wide, node, version, slice)?;
        let meta = leaf.0.meta();
        let position = leaf.position_of(wide, meta, slice);
        if position >= leaf.large_count(meta) {
            return Err(Restart);
        }
        let value = leaf.large_value(position);
        P::reached(Point::Peeked);
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
            && let Ok(found) = self.try_word(u64::from_be_bytes(word))
        {
            return found.located();
        }
        self.locate_any(key)
    }

    #[inline(never)]
    fn locate_any(&self, key: &[u8]) -> Located<Token> {
        self.find(key).located()
    }

    /// Returns whether a token is still valid: its leaf is unchanged, so it still is the leaf for the key, and no layer
    /// was cut on the way.
    #[inline(always)]
    pub(crate) fn still_holds(&self, token: Token) -> bool {
        token.is_exact() && self.arena.node(token.leaf).is_some_and(|leaf| leaf.version().same(token.version))
    }

    /// One attempt at [`crate::Index::unreadable_beside`], starting at the first layer's root.
    #[cold]
    pub(crate) fn try_unreadable_beside<R: Resolver>(
        &self,
        (mut node, mut version): (Node<'_>, u64),
        key: &[u8],
        resolver: &R,
    ) -> Result<Ref, Restart> {
        let (mut base, mut witnesses) = (0, Witnesses::default());
        loop {
            let skip = node.meta().skip();
            if skip > 0 {
                let Some(witness) = witnesses.of(self, (node, version), resolver)? else { return self.any_below(node, version) };
                if shared_slices(witness, key, base) < skip {
                    return Ok(Ref::NONE);
                }
            }
            let depth = base + 8 * skip;
            let (slice, rank) = slice_at(key, depth);
            let leaf;
            (leaf, version) = self.descend(node, version, slice)?;
            let (_, kind, value) = leaf.find_at(version, slice, rank)?;
            match kind {
                Some(LAYER) => (node, version) = self.follow(leaf.0, version, value)?,
                Some(_) if resolver.sound_key(Ref(value)).is_none() => return Ok(Ref(value)),
                _ => return Ok(Ref::NONE),
            }
            base = depth + 8;
        }
    }
}

/// Returns how many slices from `base` on `key` shares with `other`, leaving `key` at least one byte of its own.
pub(super) fn shared_slices(other: &[u8], key: &[u8], base: usize) -> usize {
    common_prefix(other, key).min(key.len() - 1).saturating_sub(base) / 8
}
