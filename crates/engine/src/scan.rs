//! Ordered scans, live or from a snapshot.
//!
//! References are taken from the index in groups; the log is prefetched for the whole group before the first entry is read, so that misses
//! overlap. The epoch is pinned for one group at a time: a long scan holds back no reclamation.
//!
//! A live scan returns every key that is present throughout exactly once, in order; of keys that change meanwhile it returns some state.
//! A scan from a snapshot returns exactly the snapshot.

use crate::error::Result;
use crate::keyspace::{AnyIndex, Keyspace, KeyspaceHandle};
use crate::snapshot::Snapshot;
use crate::store::{Core, Store};
use hither_index::{Index, Ref, Start};
use hither_sync::epoch;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::Ordering;

/// References taken at once.
const FIRST_GROUP: usize = 128;
const LARGEST_GROUP: usize = 256;
/// Entries whose lines are requested ahead of the one that is read.
const AHEAD: usize = 24;

/// Which way a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Ascending.
    Forward,
    /// Descending.
    Backward,
}

/// Bounds and direction of a scan.
#[derive(Clone, Copy, Debug)]
pub struct ScanRange<'a> {
    /// Lower bound.
    pub from: Bound<&'a [u8]>,
    /// Upper bound.
    pub to: Bound<&'a [u8]>,
    /// Direction.
    pub direction: Direction,
}

impl ScanRange<'_> {
    fn start(&self) -> Bound<&[u8]> {
        if self.direction == Direction::Forward { self.from } else { self.to }
    }

    /// Whether `key` lies beyond the end in the direction of the scan.
    #[inline(always)]
    fn is_past_end(&self, key: &[u8]) -> bool {
        match (self.direction, self.from, self.to) {
            (Direction::Forward, _, Bound::Included(end)) => key > end,
            (Direction::Forward, _, Bound::Excluded(end)) => key >= end,
            (Direction::Backward, Bound::Included(end), _) => key < end,
            (Direction::Backward, Bound::Excluded(end), _) => key <= end,
            _ => false,
        }
    }

    fn is_empty(&self) -> bool {
        match (self.from, self.to) {
            (Bound::Included(from), Bound::Included(to)) => from > to,
            (Bound::Included(from) | Bound::Excluded(from), Bound::Excluded(to)) => from >= to,
            (Bound::Excluded(from), Bound::Included(to)) => from >= to,
            _ => false,
        }
    }
}

/// Where the next group starts.
enum Position {
    Start,
    After(Vec<u8>),
}

impl Store {
    /// Calls `f(key, value)` for the keys in `range`, in order, until it breaks. `f` runs under an epoch pin and should be short.
    ///
    /// # Errors
    /// [`crate::Error::NotOrdered`] for a hash keyspace.
    pub fn scan(&self, keyspace: &KeyspaceHandle, range: &ScanRange<'_>, f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<()> {
        self.core.scan(&keyspace.0, None, range, f)
    }

    /// Calls `f` for the keys of any keyspace in unspecified order, until it breaks. A key that changes meanwhile may be seen in either state.
    pub fn for_each(&self, keyspace: &KeyspaceHandle, mut f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<()> {
        let everything = ScanRange { from: Bound::Unbounded, to: Bound::Unbounded, direction: Direction::Forward };
        match &keyspace.0.index {
            AnyIndex::Ordered(_) | AnyIndex::Learned(_) => self.scan(keyspace, &everything, f),
            AnyIndex::Hash(index) => {
                let core = &*self.core;
                let _pin = epoch::pin();
                keyspace.0.ensure_usable()?;
                let mut outcome = Ok(());
                index.for_each(&core.resolver(), &mut |reference| match core.emit(reference, &mut f) {
                    Ok(flow) => flow.is_continue(),
                    Err(error) => {
                        outcome = Err(error);
                        false
                    }
                });
                outcome.and_then(|()| core.settle_deletes())
            }
        }
    }
}

impl Snapshot {
    /// Like [`Store::scan`], at the snapshot.
    pub fn scan(&self, keyspace: &KeyspaceHandle, range: &ScanRange<'_>, f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<()> {
        self.core.scan(&keyspace.0, Some(self), range, f)
    }

    /// Keys of a hash keyspace in the snapshot, sorted. O(n log n), holds all keys in memory.
    pub fn sorted_keys(&self, keyspace: &KeyspaceHandle) -> Result<Vec<Vec<u8>>> {
        let core = &*self.core;
        let mut keys = Vec::new();
        {
            let _pin = epoch::pin();
            keyspace.0.ensure_usable()?;
            crate::keyspace::with_index!(keyspace.0, index => index.for_each(&core.resolver(), &mut |reference| {
                keys.push(core.log.key(reference.0).to_vec());
                true
            }));
        }
        keys.extend(self.saved_between(&keyspace.0, (Bound::Unbounded, Bound::Unbounded)).into_iter().map(|(key, _)| key.into_vec()));
        keys.sort_unstable();
        keys.dedup();
        Ok(keys)
    }
}

impl Core {
    fn scan(
        &self,
        keyspace: &Keyspace,
        snapshot: Option<&Snapshot>,
        range: &ScanRange<'_>,
        mut f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        keyspace.ensure_ordered()?;
        if range.is_empty() {
            return Ok(());
        }
        if let Some(snapshot) = snapshot {
            snapshot.settle()?;
        }
        let mut position = Position::Start;
        let mut group = FIRST_GROUP;
        let mut refs = Vec::with_capacity(group);
        loop {
            let _pin = epoch::pin();
            keyspace.ensure_usable()?;
            refs.clear();
            let start = match &position {
                Position::After(key) => Start::After(key),
                Position::Start => match range.start() {
                    Bound::Included(key) => Start::At(key),
                    Bound::Excluded(key) => Start::After(key),
                    Bound::Unbounded => Start::Edge,
                },
            };
            keyspace.scan(start, range.direction == Direction::Backward, group, &mut refs, &self.resolver());
            let at_end = refs.len() < group;
            let flow = match snapshot {
                None => self.visit_group(&refs, range, &mut f)?,
                Some(snapshot) => self.visit_snapshot_group(keyspace, snapshot, &refs, at_end, &position, range, &mut f)?,
            };
            if at_end || flow.is_break() {
                // Whatever the scan found absent was deleted before now.
                return if snapshot.is_none() { self.settle_deletes() } else { Ok(()) };
            }
            let last = refs.last().map_or(&[][..], |last| self.log.key(last.0));
            position = Position::After(last.to_vec());
            group = (group * 2).min(LARGEST_GROUP);
        }
    }

    fn visit_group(
        &self,
        refs: &[Ref],
        range: &ScanRange<'_>,
        f: &mut impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        for reference in refs.iter().take(AHEAD) {
            self.log.prefetch(reference.0);
        }
        for (i, &reference) in refs.iter().enumerate() {
            if let Some(ahead) = refs.get(i + AHEAD) {
                self.log.prefetch(ahead.0);
            }
            if self.emit_within(reference, range, f)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Merges what the index holds in the group's stretch of keys with what the snapshot saved there. The side table is read after the
    /// index: a key that left the index before was saved before.
    #[allow(clippy::too_many_arguments)]
    fn visit_snapshot_group(
        &self,
        keyspace: &Keyspace,
        snapshot: &Snapshot,
        refs: &[Ref],
        at_end: bool,
        position: &Position,
        range: &ScanRange<'_>,
        f: &mut impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let near = match position {
            Position::After(key) => Bound::Excluded(key.as_slice()),
            Position::Start => range.start(),
        };
        let far = match refs.last() {
            Some(last) if !at_end => Bound::Included(self.log.key(last.0)),
            _ if range.direction == Direction::Forward => range.to,
            _ => range.from,
        };
        let backward = range.direction == Direction::Backward;
        let (from, to) = if backward { (far, near) } else { (near, far) };
        let stretch = ScanRange { from, to, direction: range.direction };
        let saved = if stretch.is_empty() { Vec::new() } else { snapshot.saved_between(keyspace, (from, to)) };
        // Keys in order; a saved entry hides the index's one of the same key, which is newer.
        let mut merged: Vec<(&[u8], Option<Ref>)> =
            refs.iter().map(|&r| (self.log.key(r.0), snapshot.shown(keyspace, self.log.key(r.0), r))).collect();
        merged.extend(saved.iter().map(|(key, reference)| (&**key, Some(*reference))));
        merged.sort_by(|(a, _), (b, _)| if backward { b.cmp(a) } else { a.cmp(b) });
        merged.dedup_by(|(b, _), (a, _)| a == b);
        for (key, shown) in merged {
            if range.is_past_end(key) {
                return Ok(ControlFlow::Break(()));
            }
            if let Some(reference) = shown
                && self.emit(reference, f)?.is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Passes one entry to `f`, unless it has expired.
    #[inline(always)]
    fn emit(&self, reference: Ref, f: &mut impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<ControlFlow<()>> {
        let everything = ScanRange { from: Bound::Unbounded, to: Bound::Unbounded, direction: Direction::Forward };
        self.emit_within(reference, &everything, f)
    }

    /// Passes one entry to `f`, unless it has expired; breaks if it lies beyond the end of `range`.
    #[inline(always)]
    fn emit_within(
        &self,
        reference: Ref,
        range: &ScanRange<'_>,
        f: &mut impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        if self.log.has_unverified() {
            self.log.verify_entry(reference.0)?;
        }
        let (key, value, expiry_ms) = self.log.pair(reference.0);
        if range.is_past_end(key) {
            return Ok(ControlFlow::Break(()));
        }
        if self.committer.reads_check() {
            self.wait_until_durable(reference)?;
        }
        if self.is_expired(expiry_ms) {
            return Ok(ControlFlow::Continue(()));
        }
        Ok(f(key, value))
    }

    /// Finds up to `limit` keys whose entries have expired, with their versions.
    pub fn expired_keys(&self, keyspace: &Keyspace, limit: usize) -> Vec<(Vec<u8>, u64)> {
        let mut found = Vec::new();
        let mut any = false;
        // Before the search: a write with an expiry that it misses raises the flag after its install.
        keyspace.has_expiry.swap(false, Ordering::AcqRel);
        let _pin = epoch::pin();
        crate::keyspace::with_index!(keyspace, index => index.for_each(&self.resolver(), &mut |reference| {
            let expiry = self.log.expiry_of(reference.0);
            any |= expiry != 0;
            if self.is_expired(expiry) {
                let entry = self.log.entry(reference.0);
                found.push((entry.key.to_vec(), self.log.version_of(reference.0, &entry)));
            }
            found.len() < limit
        }));
        if any {
            keyspace.note_expiry();
        }
        found
    }
}
