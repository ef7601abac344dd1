//! The structural invariants, checked while no writer is active.

use super::Learned;
use super::block::WIDTH;
use super::gapped::{Gapped, max_blocks, max_pages};
use super::read::WORD;
use super::subtree::is_subtree;
use crate::btree::protocol::Protocol;
use crate::common::node::{INNER_HEAD, LEAF_HEAD, Node};
use crate::{Ref, Resolver};

/// A node to be checked, with the slices that it may hold: from `low`, and below `high` if there is one.
struct Range<'a> {
    node: Node<'a>,
    level: usize,
    low: u64,
    high: Option<u64>,
}

impl<P: Protocol> Learned<P> {
    /// See [`crate::Index::check`].
    pub(super) fn check_all<R: Resolver>(&self, resolver: &R) -> Result<(), String> {
        let (root, _) = self.tree.top().map_err(|_| "the root is obsolete".to_string())?;
        let (mut keys, mut leaves) = (0, Vec::new());
        let level = if is_subtree(root) { 0 } else { root.meta().level() };
        let mut stack = vec![Range { node: root, level, low: 0, high: None }];
        while let Some(range) = stack.pop() {
            if range.level == 0 && is_subtree(range.node) {
                leaves.push(None);
                keys += self.tree.check_layers(range.node, (range.low, range.high), &|key| self.lookup(key, resolver), resolver)?;
                continue;
            }
            let node = Gapped(range.node);
            self.check_node(node, &range).map_err(|what| format!("level {}, slices from {:x}: {what}", range.level, range.low))?;
            if range.level > 0 {
                push_children(node, &range, &mut stack)?;
            } else {
                leaves.push(Some(node));
                keys += self.check_leaf(node, resolver)?;
            }
        }
        check_links(&leaves)?;
        let counted = self.tree.keys.sum();
        if keys == counted { Ok(()) } else { Err(format!("the index holds {keys} keys, but {counted} were counted")) }
    }

    /// Checks what leaves and inner nodes have in common: header, pages, order, blocks (B1, B2, G1–G3).
    fn check_node(&self, node: Gapped<'_>, range: &Range<'_>) -> Result<(), String> {
        let (meta, shape, pages) = (node.0.meta(), node.shape(), node.pages());
        if node.0.version().try_read().is_err() {
            return Err("a reachable node is locked or obsolete".into());
        }
        let class = if range.level == 0 { LEAF_HEAD } else { INNER_HEAD };
        if meta.level() != range.level || meta.class() != class || self.tree.arena.node(meta.id()) != Some(node.0) {
            return Err(format!("level {}, class {}, number {} are not what they should be", meta.level(), meta.class(), meta.id()));
        }
        let covered = pages.start * 32 <= shape.first() && shape.end() <= pages.end * 32 && shape.end() <= max_blocks(class);
        if shape.first() >= shape.end() || !covered || (0..max_pages(class)).any(|p| node.page(p) == 0) {
            return Err(format!("blocks {}..{} in pages {pages:?}", shape.first(), shape.end()));
        }
        let (mut count, mut last) = (0, None);
        for b in shape.first()..shape.end() {
            let block = node.block(b);
            let used = block.count();
            if block.used().trailing_ones() as usize != used || (used == 0 && shape.blocks() > 1) {
                return Err(format!("block {b} has slots {:b} in use", block.used()));
            }
            for entry in (0..used).map(|i| block.entry(i)) {
                if last.is_some_and(|last| last >= entry.slice) {
                    return Err(format!("slot {entry:x?} in block {b} is misplaced"));
                }
                if entry.slice < range.low || range.high.is_some_and(|high| entry.slice >= high) {
                    return Err(format!("slot {entry:x?} is outside {:x}..{:x?}", range.low, range.high));
                }
                last = Some(entry.slice);
            }
            if (used..WIDTH).any(|i| block.slice(i) != last.unwrap_or(0)) {
                return Err(format!("block {b} does not repeat its last slice"));
            }
            count += used;
        }
        if range.level == 0 && node.low() != range.low {
            return Err(format!("the leaf takes {:x} for its lowest slice", node.low()));
        }
        if count != node.count() || (count == 0 && range.level > 0) {
            return Err(format!("{count} slots, and {} were counted", node.count()));
        }
        Ok(())
    }

    /// Checks the keys of a leaf; returns their number.
    fn check_leaf<R: Resolver>(&self, leaf: Gapped<'_>, resolver: &R) -> Result<usize, String> {
        let mut keys = 0;
        let lookup = |key: &[u8]| self.lookup(key, resolver);
        for entry in leaf.entries() {
            keys += 1;
            crate::btree::check::check_key(Ref(entry.value), &[], (entry.slice, WORD), &lookup, resolver)?;
        }
        Ok(keys)
    }
}

fn push_children<'a>(inner: Gapped<'a>, range: &Range<'a>, stack: &mut Vec<Range<'a>>) -> Result<(), String> {
    let entries = inner.entries();
    if entries[0].slice != range.low {
        return Err(format!("an inner node from {:x} begins at {:x}", range.low, entries[0].slice));
    }
    for (i, entry) in entries.iter().enumerate().rev() {
        let high = entries.get(i + 1).map(|next| next.slice).or(range.high);
        // SAFETY: no writer is active, so the child is live (N2).
        let node = unsafe { Node::from_address(entry.value) };
        stack.push(Range { node, level: range.level - 1, low: entry.slice, high });
    }
    Ok(())
}

/// Checks that neighbouring leaves lead to each other; `None` stands for a subtree.
fn check_links(leaves: &[Option<Gapped<'_>>]) -> Result<(), String> {
    let address = |i: usize| leaves.get(i).copied().flatten().map_or(0, |leaf| leaf.0.address());
    for (i, leaf) in leaves.iter().enumerate() {
        if leaf.is_some_and(|leaf| leaf.next() != address(i + 1) || leaf.previous() != address(i.wrapping_sub(1))) {
            return Err(format!("leaf {i} of {} is linked wrongly", leaves.len()));
        }
    }
    Ok(())
}
