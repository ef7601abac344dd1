//! Walks over all keys of a keyspace, of either kind, in no particular order.
//!
//! Any number of threads may walk, beside writers. The epoch is pinned for one piece of a walk at a time, a few hundred to two thousand references, whose entries are requested ahead of their
//! use: however many keys there are, what is freed meanwhile can be used again. Every key that is present throughout is met at least once. A walk changes nothing.

use crate::error::Result;
use crate::keyspace::{AnyIndex, Keyspace};
use crate::store::Core;
use hither_index::{Ref, Start};
use hither_sync::epoch;
use std::ops::ControlFlow;

/// References of an ordered keyspace that are taken at once; of a hash keyspace it is a segment of its index.
const PIECE: usize = 256;

/// Where a walk goes on.
enum Place {
    /// At a position of the hash index; both kinds begin at 0.
    Position(u64),
    /// Behind a key.
    After(Vec<u8>),
}

impl Core {
    /// Calls `visit` with the references of `keyspace` until it breaks or fails. What it is given is good while it runs.
    ///
    /// # Errors
    /// [`crate::Error::KeyspaceDropped`], also if that happens on the way; and those of `visit`.
    pub(crate) fn walk(&self, keyspace: &Keyspace, mut visit: impl FnMut(Ref) -> Result<ControlFlow<()>>) -> Result<()> {
        let (mut next, mut refs) = (Some(Place::Position(0)), Vec::new());
        while let Some(place) = next {
            let _pin = epoch::pin();
            keyspace.ensure_usable()?;
            refs.clear();
            next = self.piece(keyspace, &place, &mut refs);
            if self.visit_ahead(&refs, &mut visit)?.is_break() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Takes the references at `place`; returns the place behind them, or `None` if there are no more. The caller is pinned.
    fn piece(&self, keyspace: &Keyspace, place: &Place, refs: &mut Vec<Ref>) -> Option<Place> {
        if let (AnyIndex::Hash(index), Place::Position(position)) = (&*keyspace.index, place) {
            return index.collect_segment(*position, refs).map(Place::Position);
        }
        let start = if let Place::After(key) = place { Start::After(key) } else { Start::Edge };
        let mut wanted = PIECE;
        loop {
            refs.clear();
            keyspace.scan(start, false, wanted, refs, &self.resolver());
            if refs.len() < wanted {
                return None;
            }
            // The key of an entry that is damaged says nothing of its place; who comes from before it meets it again.
            if let Some(last) = refs.iter().rev().find(|reference| self.ensure_whole(**reference).is_ok()) {
                return Some(Place::After(self.log.key(last.0).to_vec()));
            }
            wanted *= 2;
        }
    }
}
