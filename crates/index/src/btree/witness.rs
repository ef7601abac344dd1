//! Witnesses: keys of a layer, of which the log tells what bytes the layer skips.
//!
//! Any key below a layer's root will do, so one is looked for where it takes the fewest steps. Where layers lie in a chain, each with a slot for the next one and nothing else, that is at the end of
//! the chain; who asks at each layer on a way remembers what the last walk has passed ([`Witnesses`]).
//!
//! Thread safety: as lookups. What a walk has found under a layer's root of some version is what another one would find that began there while the root has that version, and a version names one state
//! of one life of a node.

use super::BTree;
use super::protocol::Protocol;
use crate::common::node::Node;
use crate::common::slice::LAYER;
use crate::common::version::Restart;
use crate::{Ref, Resolver};

/// Layers that are asked for one by one: most ways have no more.
const ONE_BY_ONE: usize = 3;

/// Witnesses for the layers of one way that skip something, from the first on, each of which is asked for.
#[derive(Default)]
pub(super) struct Witnesses<'r> {
    /// Found by the last walk.
    key: &'r [u8],
    /// The roots that it passed of layers that skip something: addresses and versions.
    passed: Vec<(u64, u64)>,
    /// How many of them were asked for since.
    at: usize,
    /// Walks so far.
    walks: usize,
}

impl<'r> Witnesses<'r> {
    /// As [`BTree::witness`], for the next layer of the way, by its root.
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
    /// Some key's reference below `node`, which must not be layer 0's root: all of these share the bytes before their layer's slices.
    #[inline]
    pub(crate) fn any_below<'a>(&'a self, node: Node<'a>, version: u64) -> Result<Ref, Restart> {
        self.any_below_by(node, version, |_, _| ())
    }

    /// As above; calls `pass` with the root of each layer on its way, that one among them, and its version.
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

    /// The key of some reference below `node`, as [`BTree::any_below`] finds one; `None` if those that were looked at cannot be read.
    pub(crate) fn witness<'r, R: Resolver>(&self, node: Node<'_>, version: u64, resolver: &'r R) -> Result<Option<&'r [u8]>, Restart> {
        match resolver.sound_key(self.any_below(node, version)?) {
            Some(key) => Ok(Some(key)),
            None => self.witness_on_edge((node, version), 0, resolver),
        }
    }

    /// As above: looks at all keys of the leaf for `slice`, or else of a layer below it.
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
