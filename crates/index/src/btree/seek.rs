//! Where a scan starts: the search for a key that need not exist.

use super::BTree;
use super::cursor::{Cursor, Frame};
use super::protocol::Protocol;
use super::witness::Witnesses;
use crate::common::node::Node;
use crate::common::slice::{LAYER, LONGER, slice_at};
use crate::common::version::Restart;
use crate::{Ref, Resolver, Start};
use std::cmp::Ordering;

impl<P: Protocol> BTree<P> {
    /// One attempt to place a cursor.
    pub(super) fn seek<'a, R: Resolver>(&'a self, start: Start<'_>, backward: bool, resolver: &R) -> Result<Cursor<'a>, Restart> {
        match start {
            Start::At(key) => self.seek_key(key, true, backward, resolver),
            Start::After(key) => self.seek_key(key, false, backward, resolver),
            Start::Edge => {
                let (root, version) = self.top()?;
                Ok(Cursor { frame: self.edge(root, version, backward)?, above: Vec::new(), backward })
            }
        }
    }

    /// Places the cursor before the first key that is greater than `key` or, if `inclusive`, equal to it (backward:
    /// mirrored).
    fn seek_key<'a, R: Resolver>(&'a self, key: &[u8], inclusive: bool, backward: bool, resolver: &R) -> Result<Cursor<'a>, Restart> {
        let cursor = self.seek_in(self.begin_whole(slice_at(key, 0).0)?, (key, inclusive), backward, resolver)?;
        Ok(cursor.expect("layer 0 skips nothing, so no key lies wholly beside it"))
    }

    /// As above, starting at the root of the first layer, or a node below it that leads to the key's leaf. `None` if the
    /// place lies after all keys of the layer.
    pub(crate) fn seek_in<'a, R: Resolver>(
        &'a self,
        (mut root, mut version): (Node<'a>, u64),
        (key, inclusive): (&[u8], bool),
        backward: bool,
        resolver: &R,
    ) -> Result<Option<Cursor<'a>>, Restart> {
        let (mut above, mut base): (Vec<Frame<'a>>, usize) = (Vec::new(), 0);
        let mut witnesses = Witnesses::default();
        loop {
            let skip = root.meta().skip();
            let depth = base + 8 * skip;
            if skip > 0 {
                let own = &key[base.min(key.len())..depth.min(key.len())];
                let witness = self.witness_either_side(&mut witnesses, (root, version), resolver)?;
                let witness = witness.and_then(|witness| witness.get(base..depth));
                // A layer that cannot be read is taken as a whole: the scan then meets the damaged entries.
                let order = witness.map_or(if backward { Ordering::Greater } else { Ordering::Less }, |witness| own.cmp(witness));
                if order != Ordering::Equal {
                    return self.beside(root, version, order, above, backward);
                }
            }
            let (slice, rank) = slice_at(key, depth);
            let (leaf, leaf_version) = self.descend(root, version, slice)?;
            let (position, kind, value) = leaf.find_at(leaf_version, slice, rank)?;
            if kind == Some(LAYER) {
                let at = if backward { position } else { position + 1 };
                above.push(Frame { leaf, version: leaf_version, at });
                (root, version) = self.follow(leaf.0, leaf_version, value)?;
                base = depth + 8;
                continue;
            }
            let slot = match kind {
                Some(LONGER) => resolver.sound_key(Ref(value)).map(|other| other.cmp(key)),
                Some(_) => Some(Ordering::Equal),
                None => Some(Ordering::Greater),
            };
            // Whether the cut lies after the slot: forward, the slot is then left out; backward, it is the first one
            // taken. A slot that cannot be read is always taken.
            let behind = match slot {
                Some(Ordering::Equal) => inclusive == backward,
                Some(order) => order == Ordering::Less,
                None => backward,
            };
            let frame = Frame { leaf, version: leaf_version, at: position + usize::from(behind) };
            return Ok(Some(Cursor { frame, above, backward }));
        }
    }

    /// A readable key below the root: from the first leaf, or else from the last one.
    fn witness_either_side<'r, R: Resolver>(
        &self,
        witnesses: &mut Witnesses<'r>,
        root: (Node<'_>, u64),
        resolver: &'r R,
    ) -> Result<Option<&'r [u8]>, Restart> {
        match witnesses.of(self, root, resolver)? {
            Some(key) => Ok(Some(key)),
            None => self.witness_on_edge(root, u64::MAX, resolver),
        }
    }

    /// Places the cursor for a key that lies wholly before (`Less`) or after the layer with this root.
    fn beside<'a>(
        &'a self,
        root: Node<'a>,
        version: u64,
        order: Ordering,
        mut above: Vec<Frame<'a>>,
        backward: bool,
    ) -> Result<Option<Cursor<'a>>, Restart> {
        let all_of_it = (order == Ordering::Less) != backward;
        // If none of the layer is taken, the frame above already stands after the layer's slot.
        let frame = if all_of_it { Some(self.edge(root, version, backward)?) } else { above.pop() };
        Ok(frame.map(|frame| Cursor { frame, above, backward }))
    }
}
