//! Witnesses: a witness is a key of a layer, read from the log to learn the bytes that the layer skips.
//!
//! Any key below a layer's root will do, so one is looked for where that takes the fewest steps. Where layers lie in a
//! chain, each with a slot for the next one and nothing else, that is at the end of the chain. A search that needs a
//! witness for each layer on its way therefore remembers the layers that the last walk has passed ([`Witnesses`]).
//!
//! Thread safety: as for lookups. A walk below a layer's root at some version finds what another walk would find that
//! began there while the root has that version. A version identifies one state of one life of a node.

use super::BTree;
use super::protocol::Protocol;
use crate::common::node::Node;
use crate::common::slice::LAYER;
use crate::common::version::Restart;
use crate::{Ref, Resolver};

/// The first layers get a walk each: most searches pass no more than these.
const ONE_BY_ONE: usize = 3;

/// Witnesses for the layers on one way that skip slices. Each of them is requested in turn, from the first on.
#[derive(Default)]
pub(super) struct Witnesses<'r> {
    /// The key that the last walk found.
    key: &'r [u8],
    /// The roots, passed by that walk, of layers that skip slices: addresses and versions.
    passed: Vec<(u64, u64)>,
    /// How many of them have been requested since.
    at: usize,
    /// Number of walks so far.
    walks: usize,
}

impl<'r> Witnesses<'r> {
    /// As [`BTree::witness`], for the next layer on the way, given by its root.
    pub(super) fn of<P: Protocol, R: Resolver>(
        &mut self,
        tree: &BTree<P>,
        (root, version): (Node<'_>, u64),
        resolver: &'r R,
    ) -> Result<Option<&'r [u8]>, Restart> {
        let is_passed = self.passed.get(self.at) == Some(&(root.address(), version));
        self.at += 1;
        if is_passed {
            return Ok(Some(self.key));
        }
        self.passed.clear();
        self.walks += 1;
        if self.walks <= ONE_BY_ONE { tree.witness(root, version, resolver) } else { self.walk(tree, (root, version), resolver) }
    }

    #[cold]
    fn walk<P: Protocol, R: Resolver>(
        &mut self,
        tree: &BTree<P>,
        (root, version): (Node<'_>, u64),
        resolver: &'r R,
    ) -> Result<Option<&'r [u8]>, Restart> {
        let passed = &mut self.passed;
        let reference = tree.any_below_by(root, version, |node, version| {
            if node.meta().skip() > 0 {
                passed.push((node.address(), version));
            }
        })?;
        let Some(key) = resolver.sound_key(reference) else {
            self.passed.clear();
            return tree.witness_on_edge((root, version), 0, resolver);
        };
        (self.key, self.at) = (key, 1);
        Ok(Some(key))
    }
}

impl<P: Protocol> BTree<P> {
    /// Returns the reference of some key below `node`, which must not be layer 0's root. All these keys share the bytes
    /// before their layer's slices.
    #[inline]
    pub(crate) fn any_below<'a>(&'a self, node: Node<'a>, version: u64) -> Result<Ref, Restart> {
        self.any_below_by(node, version, |_, _| ())
    }

    /// As above; calls `pass` with the root and version of each layer on its way, including the first.
    #[inline(always)]
    fn any_below_by<'a>(&'a self, node: Node<'a>, version: u64, mut pass: impl FnMut(Node<'a>, u64)) -> Result<Ref, Restart> {
        let (mut node, mut version) = (node, version);
        loop {
            pass(node, version);
            let leaf;
            (leaf, version) = self.descend(node, version, 0)?;
            let meta = leaf.0.meta();
            let count = leaf.count(meta);
            let direct = (0..count).find(|i| leaf.kind(*i) != LAYER);
            let value = if count == 0 { 0 } else { leaf.value(meta, direct.unwrap_or(0)) };
            leaf.0.version().check(version)?;
            if count == 0 {
                return Err(Restart);
            }
            if direct.is_some() {
                return Ok(Ref(value));
            }
            (node, version) = self.follow(leaf.0, version, value)?;
        }
    }

    /// The key of some reference below `node`, chosen as in [`BTree::any_below`]; `None` if the entries that were tried
    /// cannot be read.
    pub(crate) fn witness<'r, R: Resolver>(&self, node: Node<'_>, version: u64, resolver: &'r R) -> Result<Option<&'r [u8]>, Restart> {
        match resolver.sound_key(self.any_below(node, version)?) {
            Some(key) => Ok(Some(key)),
            None => self.witness_on_edge((node, version), 0, resolver),
        }
    }

    /// As above: tries all keys of the leaf for `slice`, or else of a layer below it.
    #[cold]
    pub(super) fn witness_on_edge<'r, R: Resolver>(
        &self,
        (mut node, mut version): (Node<'_>, u64),
        slice: u64,
        resolver: &'r R,
    ) -> Result<Option<&'r [u8]>, Restart> {
        loop {
            let leaf;
            (leaf, version) = self.descend(node, version, slice)?;
            let meta = leaf.0.meta();
            let slots: Vec<_> = (0..leaf.count(meta)).map(|i| (leaf.kind(i), leaf.value(meta, i))).collect();
            leaf.0.version().check(version)?;
            let (layers, keys): (Vec<_>, Vec<_>) = slots.into_iter().partition(|(kind, _)| *kind == LAYER);
            if let Some(key) = keys.iter().find_map(|(_, value)| resolver.sound_key(Ref(*value))) {
                return Ok(Some(key));
            }
            let Some((_, below)) = layers.first() else { return Ok(None) };
            (node, version) = self.follow(leaf.0, version, *below)?;
        }
    }
}
