//! Walks over all keys of a keyspace, of either kind, in no particular order.
//!
//! Thread safety: any number of threads may walk, beside writers. The epoch is pinned for one piece of a walk at a
//! time, a few hundred to two thousand references, whose entries are loaded ahead of their use. So space that is freed
//! during a walk can be reused, however many keys there are. Every key that is present throughout is met at least once.
//! Crash: a walk changes nothing.

use crate::error::Result;
use crate::keyspace::{AnyIndex, Keyspace, KeyspaceHandle};
use crate::scan::Part;
use crate::snapshot::Snapshot;
use crate::store::Core;
use hither_index::{Ref, Start};
use hither_sync::epoch;
use std::ops::ControlFlow;

/// References of an ordered keyspace that are taken at once. Of a hash keyspace it is one segment of its index.
const PIECE: usize = 256;

/// Where a walk continues.
#[derive(PartialEq, Eq)]
pub(crate) enum Place {
    /// At a position of the hash index. Walks of both kinds begin at 0.
    Position(u64),
    /// After a key.
    After(Vec<u8>),
}

impl Place {
    /// Before all keys.
    pub const START: Place = Place::Position(0);

    /// Whether this is at or behind a key.
    pub fn is_at(&self, key: Option<&[u8]>) -> bool {
        matches!((self, key), (Place::After(passed), Some(key)) if passed.as_slice() >= key)
    }
}

impl Core {
    /// Calls `visit` with the references of `keyspace` until it breaks or fails. `part` is the part of the entries that
    /// `visit` will read. A reference is valid only during the call.
    ///
    /// # Errors
    /// [`crate::Error::KeyspaceDropped`], also if the drop happens during the walk; the errors of `visit`.
    pub(crate) fn walk(&self, keyspace: &Keyspace, part: Part, mut visit: impl FnMut(Ref) -> Result<ControlFlow<()>>) -> Result<()> {
        let (mut next, mut refs) = (Some(Place::START), Vec::new());
        while let Some(place) = next {
            let _pin = epoch::pin();
            let (flow, behind) = self.visit_piece(keyspace, &place, part, &mut refs, &mut visit)?;
            next = behind.filter(|_| flow.is_continue());
        }
        Ok(())
    }

    /// Calls `visit` with the references at `place`, which are put into `refs`, until it breaks. Returns whether it did,
    /// and the place after them all, or `None` if there are no more. The caller holds a pin.
    pub(crate) fn visit_piece(
        &self,
        keyspace: &Keyspace,
        place: &Place,
        part: Part,
        refs: &mut Vec<Ref>,
        visit: impl FnMut(Ref) -> Result<ControlFlow<()>>,
    ) -> Result<(ControlFlow<()>, Option<Place>)> {
        keyspace.ensure_usable()?;
        refs.clear();
        let behind = self.piece(keyspace, place, refs);
        Ok((self.visit_ahead(refs, part, visit)?, behind))
    }

    /// Puts the references at `place` into `refs`. Returns the place after them, or `None` if there are no more. The
    /// caller holds a pin.
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
            // The key of a damaged entry does not show its place. A piece that begins before the entry meets it again.
            if let Some(last) = refs.iter().rev().find(|reference| self.ensure_whole(**reference).is_ok()) {
                return Some(Place::After(self.log.key(last.0).to_vec()));
            }
            wanted *= 2;
        }
    }
}

/// The keys of a keyspace as a snapshot shows it, a piece at a time, in no particular order. Nothing is held between
/// two pieces, so the caller may write meanwhile, also to another store.
///
/// Every key that the snapshot shows comes at least once. A key that is changed meanwhile may come again, and keys may
/// come that the snapshot does not show: look each up.
pub struct KeyPieces<'a> {
    snapshot: &'a Snapshot,
    keyspace: &'a KeyspaceHandle,
    next: Next,
}

/// First the index, then what was saved: a key that has left the index since was saved before.
enum Next {
    Index(Place),
    /// After this key; `None`: from the beginning.
    Saved(Option<Box<[u8]>>),
    End,
}

impl Snapshot {
    /// Lists the keys of a keyspace: see [`KeyPieces`]. Each piece is O(its keys).
    pub fn key_pieces<'a>(&'a self, keyspace: &'a KeyspaceHandle) -> KeyPieces<'a> {
        KeyPieces { snapshot: self, keyspace, next: Next::Index(Place::START) }
    }
}

impl KeyPieces<'_> {
    /// Whether all keys have come that nobody changed meanwhile. A key that comes from now on may have come before.
    pub fn has_met_all(&self) -> bool {
        !matches!(self.next, Next::Index(_))
    }

    fn piece(&mut self) -> Result<Vec<Vec<u8>>> {
        let (core, keyspace) = (&*self.snapshot.core, &*self.keyspace.0);
        // For keys that are not listed: they must be durably absent.
        self.snapshot.settle()?;
        let _pin = epoch::pin();
        let mut keys = Vec::new();
        match &self.next {
            Next::Index(place) => {
                let (_, behind) = core.visit_piece(keyspace, place, Part::Head, &mut Vec::new(), |reference| {
                    core.ensure_whole(reference)?;
                    keys.push(core.log.key(reference.0).to_vec());
                    Ok(ControlFlow::Continue(()))
                })?;
                self.next = behind.map_or(Next::Saved(None), Next::Index);
            }
            Next::Saved(behind) => {
                let saved = self.snapshot.saved_behind(keyspace, behind.as_deref());
                // Checked afterwards: a drop of the keyspace discards what was saved.
                keyspace.ensure_usable()?;
                keys.extend(saved.iter().map(|key| key.to_vec()));
                self.next = saved.into_iter().next_back().map_or(Next::End, |last| Next::Saved(Some(last)));
            }
            Next::End => {}
        }
        Ok(keys)
    }
}

impl Iterator for KeyPieces<'_> {
    type Item = Result<Vec<Vec<u8>>>;

    fn next(&mut self) -> Option<Self::Item> {
        if matches!(self.next, Next::End) {
            return None;
        }
        let piece = self.piece();
        if piece.is_err() {
            self.next = Next::End;
        }
        Some(piece)
    }
}
