//! The structural invariants, checked while no writer is active.

use super::BTree;
use super::inner::{Bounds, Inner};
use super::leaf::{Leaf, capacity};
use super::protocol::{Protocol, Rule};
use crate::common::node::{LARGE, Node};
use crate::common::slice::{LAYER, rank_of, slice_at};
use crate::{Ref, Resolver};

/// A layer to be checked: its root, and the bytes that all its keys begin with, up to the layer's base.
struct Pending<'a> {
    root: Node<'a>,
    prefix: Vec<u8>,
    /// The slices that the layer may hold: from the first bound, and below the second if there is one.
    slices: (u64, Option<u64>),
}

/// A node to be checked, with the slices that it may hold: from `low`, and below `high` if there is one.
struct Range<'a> {
    node: Node<'a>,
    level: usize,
    low: u64,
    high: Option<u64>,
}

impl<P: Protocol> BTree<P> {
    /// See [`crate::Index::check`].
    pub(super) fn check_all<R: Resolver>(&self, resolver: &R) -> Result<(), String> {
        let (root, _) = self.top().map_err(|_| "the root is obsolete".to_string())?;
        let keys = self.check_layers(root, (0, None), &|key| self.lookup(key, resolver), resolver)?;
        self.check_radix(root)?;
        let counted = self.len_counted();
        if keys != counted {
            return Err(format!("the tree holds {keys} keys, but {counted} were counted"));
        }
        Ok(())
    }

    /// Checks the first layer, which has this root and may hold slices from the first bound and below the second, and
    /// the layers below it. Returns the number of keys.
    pub(crate) fn check_layers<'a, R: Resolver>(
        &'a self,
        root: Node<'a>,
        slices: (u64, Option<u64>),
        lookup: &dyn Fn(&[u8]) -> Ref,
        resolver: &R,
    ) -> Result<usize, String> {
        let mut pending = vec![Pending { root, prefix: Vec::new(), slices }];
        let mut keys = 0;
        while let Some(layer) = pending.pop() {
            keys += self.check_layer(&layer, lookup, resolver, &mut pending)?;
        }
        Ok(keys)
    }

    fn len_counted(&self) -> usize {
        self.keys.sum()
    }

    /// Checks one layer and adds those below it to `pending`. Returns the number of keys in its own slots.
    fn check_layer<'a, R: Resolver>(
        &'a self,
        layer: &Pending<'a>,
        lookup: &dyn Fn(&[u8]) -> Ref,
        resolver: &R,
        pending: &mut Vec<Pending<'a>>,
    ) -> Result<usize, String> {
        let at = || format!("layer behind {} bytes \"{}\"", layer.prefix.len(), tail(&layer.prefix));
        let leaves = self.check_levels(layer).map_err(|what| format!("{}: {what}", at()))?;
        self.check_links(&leaves).map_err(|what| format!("{}: {what}", at()))?;
        let (mut prefix, skip) = (layer.prefix.clone(), layer.root.meta().skip());
        if skip > 0 {
            let version = layer.root.version().read().map_err(|_| "an obsolete root".to_string())?;
            let witness = self.any_below(layer.root, version).map_err(|_| format!("{}: no key below", at()))?;
            let end = prefix.len() + 8 * skip;
            let witness = resolver.key(witness).get(prefix.len()..end).ok_or_else(|| format!("{}: a key ends inside the skip", at()))?;
            prefix.extend_from_slice(witness);
        }
        let mut keys = 0;
        for leaf in leaves {
            let meta = leaf.0.meta();
            for i in 0..leaf.count(meta) {
                let (slice, kind, value) = (leaf.slice(i), leaf.kind(i), leaf.value(meta, i));
                if kind == LAYER {
                    let mut below = prefix.clone();
                    below.extend_from_slice(&slice.to_be_bytes());
                    // SAFETY: no writer is active, so the slot's layer is live (N2).
                    pending.push(Pending { root: unsafe { Node::from_address(value) }, prefix: below, slices: (0, None) });
                } else {
                    keys += 1;
                    check_key(Ref(value), &prefix, (slice, kind), lookup, resolver)
                        .map_err(|what| format!("{}, slot {i}: {what}", at()))?;
                }
            }
        }
        Ok(keys)
    }

    /// Checks the tree of one layer: levels, separators, order and fill. Returns its leaves from left to right.
    fn check_levels<'a>(&'a self, layer: &Pending<'a>) -> Result<Vec<Leaf<'a>>, String> {
        let (mut leaves, root, first_layer) = (Vec::new(), layer.root, layer.prefix.is_empty());
        let (low, high) = layer.slices;
        let mut stack = vec![Range { node: root, level: root.meta().level(), low, high }];
        while let Some(range) = stack.pop() {
            let (node, meta) = (range.node, range.node.meta());
            if node.version().try_read().is_err() {
                return Err("a reachable node is locked or obsolete".into());
            }
            if self.arena.node(meta.id()) != Some(node) {
                return Err(format!("node number {} leads elsewhere", meta.id()));
            }
            if meta.level() != range.level {
                return Err(format!("level {} where {} was expected", meta.level(), range.level));
            }
            if range.level == 0 {
                let alone = node == root;
                check_leaf(Leaf(node), &range, alone, alone && first_layer)?;
                leaves.push(Leaf(node));
            } else {
                let first = first_layer && self.root.radix.is_used();
                // Twins that leave the rule out are to be caught by what their searches miss.
                if P::heeds(Rule::BoundsHold) {
                    check_bounds(Inner(node), &range, first)?;
                }
                push_children(Inner(node), &range, &mut stack)?;
            }
        }
        Ok(leaves)
    }

    /// Checks the links of a layer's leaves, both ways (L3).
    fn check_links(&self, leaves: &[Leaf<'_>]) -> Result<(), String> {
        let mut previous = 0;
        for (i, leaf) in leaves.iter().enumerate() {
            let next = leaves.get(i + 1).map_or(0, |leaf| leaf.0.address());
            if leaf.next() != next || leaf.previous() != previous {
                return Err(format!("leaf {i} of {} is linked wrongly", leaves.len()));
            }
            previous = leaf.0.address();
        }
        Ok(())
    }
}

/// Checks one key: it belongs where it is, and a lookup finds it.
pub(crate) fn check_key<R: Resolver>(
    reference: Ref,
    prefix: &[u8],
    slot: (u64, u8),
    lookup: &dyn Fn(&[u8]) -> Ref,
    resolver: &R,
) -> Result<(), String> {
    let key = resolver.key(reference);
    if reference.is_none() || !key.starts_with(prefix) || slice_at(key, prefix.len()) != slot {
        return Err(format!("{reference:?} of key \"{}\" does not belong into slot {slot:x?}", tail(key)));
    }
    let found = lookup(key);
    if found != reference {
        return Err(format!("key \"{}\" leads to {found:?} instead of {reference:?}", tail(key)));
    }
    Ok(())
}

fn push_children<'a>(inner: Inner<'a>, range: &Range<'a>, stack: &mut Vec<Range<'a>>) -> Result<(), String> {
    let count = inner.0.meta().count();
    if count == 0 || count > super::inner::MAX_SEPARATORS || inner.0.meta().class() != LARGE {
        return Err(format!("an inner node with {count} separators"));
    }
    if !inner.is_padded() {
        return Err(format!("an inner node with {count} separators is not filled up behind them"));
    }
    let mut bounds: Vec<u64> = vec![range.low];
    bounds.extend((0..count).map(|i| inner.separator(i)));
    let ascending = bounds.windows(2).all(|pair| pair[0] < pair[1]);
    if !ascending || range.high.is_some_and(|high| bounds[count] >= high) {
        return Err(format!("separators {bounds:x?} below {:x?} do not ascend", range.high));
    }
    for i in (0..=count).rev() {
        let high = bounds.get(i + 1).copied().or(range.high);
        // SAFETY: no writer is active, so the child is live (N2).
        let node = unsafe { Node::from_address(inner.child(i)) };
        stack.push(Range { node, level: range.level - 1, low: bounds[i], high });
    }
    Ok(())
}

/// Checks I4, and that the bounds of nodes of layer 0 are no narrower than they may be.
fn check_bounds(inner: Inner<'_>, range: &Range<'_>, first_layer: bool) -> Result<(), String> {
    let widest = Bounds { low: range.low, high: range.high.map_or(u64::MAX, |high| high - 1) };
    let expected = if first_layer { widest } else { Bounds::NOTHING };
    if inner.bounds() != expected {
        return Err(format!("an inner node with {:x?} instead of {expected:x?}", inner.bounds()));
    }
    Ok(())
}

fn check_leaf(leaf: Leaf<'_>, range: &Range<'_>, alone: bool, may_be_empty: bool) -> Result<(), String> {
    let meta = leaf.0.meta();
    let count = meta.count();
    if count > capacity(meta.class()) || (count == 0 && !may_be_empty) || (!alone && meta.class() != LARGE) {
        return Err(format!("a leaf of class {} with {count} slots", meta.class()));
    }
    for i in 0..count {
        let (slice, kind) = (leaf.slice(i), leaf.kind(i));
        if kind == 0 || kind > LAYER {
            return Err(format!("slot {i} has kind {kind}"));
        }
        if kind < 8 && slice << (8 * kind) != 0 {
            return Err(format!("slot {i}: slice {slice:x} has more than {kind} bytes"));
        }
        if i > 0 && (leaf.slice(i - 1), rank_of(leaf.kind(i - 1))) >= (slice, rank_of(kind)) {
            return Err(format!("slots {} and {i} are out of order", i - 1));
        }
        if slice < range.low || range.high.is_some_and(|high| slice >= high) {
            return Err(format!("slot {i}: slice {slice:x} is outside {:x}..{:x?}", range.low, range.high));
        }
    }
    Ok(())
}

/// The last bytes of a key, for messages.
fn tail(key: &[u8]) -> std::slice::EscapeAscii<'_> {
    key[key.len().saturating_sub(24)..].escape_ascii()
}
