//! Ordered scans, live or from a snapshot.
//!
//! A scan takes references from the index in groups. It prefetches the log some entries ahead of the one that it reads,
//! so that misses overlap. The epoch is pinned for one group at a time, so a long scan holds back no reclamation. In a
//! store over several nodes, read threads of the other nodes copy their entries for the scan, if these are large enough
//! (`delegation`).
//!
//! A live scan returns every key that is present throughout exactly once, in order. Of keys that change meanwhile it
//! returns some state. A scan from a snapshot returns exactly the snapshot.
//!
//! Thread safety: any number of scans beside writers and collectors. Crash: a scan changes nothing on media.

use crate::delegation::{Asked, Copied, Plan, Spare};
use crate::error::Result;
use crate::keyspace::{AnyIndex, Keyspace, KeyspaceHandle};
use crate::snapshot::Snapshot;
use crate::store::{Core, Store};
use hither_index::{Ref, Start};
use hither_log::Log;
use hither_sync::epoch;
use std::ops::{Bound, ControlFlow};

/// Number of references taken first, unless fewer are known to be wanted.
const FIRST_GROUP: usize = 128;
const LARGEST_GROUP: usize = 256;
/// Entries whose lines are requested ahead of the one that is read.
const AHEAD: usize = 32;

/// The part of entries that is about to be read, and so is loaded ahead.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    /// The beginning, with a short key.
    Head,
    /// The whole entry.
    Whole,
}

/// Direction of a scan.
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
    /// About how many pairs the caller will look at, if that is known, else `usize::MAX`. So many are loaded first,
    /// instead of a larger group. The caller may look at more.
    pub expect: usize,
}

/// All keys.
const EVERYTHING: ScanRange<'static> =
    ScanRange { from: Bound::Unbounded, to: Bound::Unbounded, direction: Direction::Forward, expect: usize::MAX };

impl ScanRange<'_> {
    pub(crate) fn start(&self) -> Bound<&[u8]> {
        if self.direction == Direction::Forward { self.from } else { self.to }
    }

    /// Whether `key` lies beyond the end of the range, in the direction of the scan.
    #[inline(always)]
    pub(crate) fn is_past_end(&self, key: &[u8]) -> bool {
        match (self.direction, self.from, self.to) {
            (Direction::Forward, _, Bound::Included(end)) => key > end,
            (Direction::Forward, _, Bound::Excluded(end)) => key >= end,
            (Direction::Backward, Bound::Included(end), _) => key < end,
            (Direction::Backward, Bound::Excluded(end), _) => key <= end,
            _ => false,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
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

/// A group of references to be merged with the entries that a snapshot saved.
struct Merge<'a> {
    snapshot: &'a Snapshot,
    refs: &'a [Ref],
    /// Entries that threads of other nodes copied.
    asked: Option<&'a Asked<'a>>,
    /// The index has nothing beyond the group.
    at_end: bool,
    position: &'a Position,
    /// Most saved keys that are taken for one group. Of a long stretch only the beginning is taken: otherwise each
    /// group would go through all that follows.
    most: usize,
}

/// What a snapshot shows for a key.
enum Shown<'a> {
    Entry(Ref),
    Copy(Copied<'a>),
}

impl<'a> Merge<'a> {
    fn copy(&self, i: usize) -> Option<Copied<'a>> {
        self.asked?.waited_copy(i)
    }

    fn key(&self, log: &'a Log, i: usize) -> &'a [u8] {
        self.copy(i).map_or_else(|| log.key(self.refs[i].0), |copied| copied.key)
    }

    fn shown(&self, keyspace: &Keyspace, log: &'a Log, i: usize) -> Option<Shown<'a>> {
        match self.copy(i) {
            None => self.snapshot.shown(keyspace, log.key(self.refs[i].0), self.refs[i]).map(Shown::Entry),
            Some(copied) if copied.version <= self.snapshot.version() => Some(Shown::Copy(copied)),
            Some(copied) => self.snapshot.saved(keyspace, copied.key).map(Shown::Entry),
        }
    }
}

impl Store {
    /// Calls `f(key, value)` for the keys in `range`, in order, until it breaks. `f` runs under an epoch pin; keep it
    /// short.
    ///
    /// # Errors
    /// [`crate::Error::NotOrdered`] for a hash keyspace.
    pub fn scan(&self, keyspace: &KeyspaceHandle, range: &ScanRange<'_>, mut f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<()> {
        self.core.scan(&keyspace.0, None, range, |key, value, _| f(key, value))
    }

    /// As [`Store::scan`]; `f` also gets the time at which each key expires, in milliseconds since 1970; 0: never.
    pub fn scan_expiring(
        &self,
        keyspace: &KeyspaceHandle,
        range: &ScanRange<'_>,
        f: impl FnMut(&[u8], &[u8], u64) -> ControlFlow<()>,
    ) -> Result<()> {
        self.core.scan(&keyspace.0, None, range, f)
    }

    /// Calls `f` for the keys of any keyspace, in unspecified order, until it breaks. A key that changes meanwhile may
    /// be seen in either state.
    pub fn for_each(&self, keyspace: &KeyspaceHandle, mut f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<()> {
        match &*keyspace.0.index {
            AnyIndex::Ordered(_) | AnyIndex::Learned(_) => self.scan(keyspace, &EVERYTHING, f),
            AnyIndex::Hash(_) => {
                let core = &*self.core;
                core.walk(&keyspace.0, Part::Whole, |reference| core.emit(&keyspace.0, reference, &mut |key, value, _| f(key, value)))?;
                core.settle_deletes(&keyspace.0)
            }
        }
    }
}

impl Snapshot {
    /// As [`Store::scan`], of the snapshot's state.
    pub fn scan(&self, keyspace: &KeyspaceHandle, range: &ScanRange<'_>, mut f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<()> {
        self.core.scan(&keyspace.0, Some(self), range, |key, value, _| f(key, value))
    }

    /// As [`Store::scan_expiring`], of the snapshot's state.
    pub fn scan_expiring(
        &self,
        keyspace: &KeyspaceHandle,
        range: &ScanRange<'_>,
        f: impl FnMut(&[u8], &[u8], u64) -> ControlFlow<()>,
    ) -> Result<()> {
        self.core.scan(&keyspace.0, Some(self), range, f)
    }

    /// Keys of a hash keyspace in the snapshot, sorted. O(n log n); holds all keys in memory.
    pub fn sorted_keys(&self, keyspace: &KeyspaceHandle) -> Result<Vec<Vec<u8>>> {
        let mut keys = Vec::new();
        for piece in self.key_pieces(keyspace) {
            keys.extend(piece?);
        }
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
        mut f: impl FnMut(&[u8], &[u8], u64) -> ControlFlow<()>,
    ) -> Result<()> {
        keyspace.ensure_ordered()?;
        if range.is_empty() {
            return Ok(());
        }
        if let Some(snapshot) = snapshot {
            snapshot.settle()?;
        }
        let mut position = Position::Start;
        let mut group = FIRST_GROUP.min(range.expect.max(1));
        let mut refs = Vec::with_capacity(group);
        let mut spare = Spare::default();
        loop {
            let pin = epoch::pin();
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
            let mut at_end = refs.len() < group;
            let plan = self.delegation_of(&refs, &position);
            if let Some(taken) = plan.taken {
                at_end &= taken == refs.len();
                refs.truncate(taken);
            }
            // Checked after the references were read: a writer that makes reads check does so before it installs.
            let versions = snapshot.is_some() || self.committer.reads_check();
            let mut asked = plan.from.map(|here| self.delegation.ask(&pin, &refs, here, versions, &mut spare));
            let flow = match (snapshot, &mut asked) {
                (None, None) => self.visit_group(keyspace, &refs, range, &mut f)?.map_continue(|()| None),
                (None, Some(asked)) => self.visit_delegated_group(keyspace, &refs, asked, range, &mut f)?.map_continue(|()| None),
                (Some(snapshot), asked) => {
                    let asked = asked.as_mut().map(Asked::waited);
                    let merge = Merge { snapshot, refs: &refs, asked, at_end, position: &position, most: group };
                    self.visit_snapshot_group(keyspace, &merge, range, &mut f)?
                }
            };
            let reached = match flow {
                ControlFlow::Continue(reached) if !at_end || reached.is_some() => reached,
                // Deletes of all keys that the scan found absent were noted before now.
                _ => return if snapshot.is_none() { self.settle_deletes(keyspace) } else { Ok(()) },
            };
            position = Position::After(reached.unwrap_or_else(|| {
                let copied = asked.as_mut().and_then(|asked| asked.copy(refs.len() - 1));
                let last = copied.map_or_else(|| refs.last().map_or(&[][..], |last| self.log.key(last.0)), |copied| copied.key);
                last.to_vec()
            }));
            asked.into_iter().for_each(|asked| asked.recycle(&mut spare));
            // The few entries before a delegation say little about the length of the scan.
            if plan.taken.is_none() || plan.from.is_some() {
                group = (group * 2).min(LARGEST_GROUP);
            }
        }
    }

    /// Whether other nodes are to read their entries. The first entries of a scan are read directly in any case.
    #[inline(always)]
    fn delegation_of(&self, refs: &[Ref], position: &Position) -> Plan {
        if !self.delegation.is_on() {
            return Plan::default();
        }
        let here = self.log.topology().current_node() as usize;
        self.delegation.plan(refs, here, matches!(position, Position::Start))
    }

    /// As [`Core::visit_group`]; takes entries of other nodes from the threads that were asked for them.
    fn visit_delegated_group(
        &self,
        keyspace: &Keyspace,
        refs: &[Ref],
        asked: &mut Asked<'_>,
        range: &ScanRange<'_>,
        f: &mut impl FnMut(&[u8], &[u8], u64) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        for (i, reference) in refs.iter().enumerate().take(AHEAD) {
            if asked.is_direct(i) {
                self.log.prefetch_whole(reference.0);
            }
        }
        for (i, &reference) in refs.iter().enumerate() {
            if let Some(ahead) = refs.get(i + AHEAD)
                && asked.is_direct(i + AHEAD)
            {
                self.log.prefetch_whole(ahead.0);
            }
            let flow = match asked.copy(i) {
                Some(copied) => self.emit_copy(keyspace, reference, &copied, range, f)?,
                None => self.emit_within(keyspace, reference, range, f)?,
            };
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn visit_group(
        &self,
        keyspace: &Keyspace,
        refs: &[Ref],
        range: &ScanRange<'_>,
        f: &mut impl FnMut(&[u8], &[u8], u64) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        self.visit_ahead(refs, Part::Whole, |reference| self.emit_within(keyspace, reference, range, f))
    }

    /// Calls `visit` with one reference after the other, until it breaks or fails. Loads `part` of the next entries
    /// meanwhile.
    #[inline(always)]
    pub(crate) fn visit_ahead(
        &self,
        refs: &[Ref],
        part: Part,
        mut visit: impl FnMut(Ref) -> Result<ControlFlow<()>>,
    ) -> Result<ControlFlow<()>> {
        let load = |reference: &Ref| match part {
            Part::Head => self.log.prefetch_key(reference.0),
            Part::Whole => self.log.prefetch_whole(reference.0),
        };
        refs.iter().take(AHEAD).for_each(load);
        for (i, &reference) in refs.iter().enumerate() {
            refs.get(i + AHEAD).into_iter().for_each(load);
            if visit(reference)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Merges what the index holds in the group's stretch of keys with what the snapshot saved there. The side table is
    /// read after the index: a key that had left the index by then was saved before. Returns the key that it reached,
    /// if that is not the group's last.
    fn visit_snapshot_group(
        &self,
        keyspace: &Keyspace,
        group: &Merge<'_>,
        range: &ScanRange<'_>,
        f: &mut impl FnMut(&[u8], &[u8], u64) -> ControlFlow<()>,
    ) -> Result<ControlFlow<(), Option<Vec<u8>>>> {
        let near = match group.position {
            Position::After(key) => Bound::Excluded(key.as_slice()),
            Position::Start => range.start(),
        };
        let readable = self.readable_part(group, range)?;
        let far = match readable.checked_sub(1) {
            Some(last) if !group.at_end => Bound::Included(group.key(&self.log, last)),
            _ if range.direction == Direction::Forward => range.to,
            _ => range.from,
        };
        let backward = range.direction == Direction::Backward;
        let (from, to) = if backward { (far, near) } else { (near, far) };
        let stretch = ScanRange { from, to, direction: range.direction, expect: usize::MAX };
        let saved = (!stretch.is_empty()).then(|| group.snapshot.saved_between(keyspace, &stretch, group.most));
        let reached = saved.as_ref().filter(|saved| saved.more).and_then(|saved| saved.keys.last()).map(|(key, _)| key);
        // Keys in order. If a key is in both lists, both name the entry that the snapshot shows.
        let mut merged: Vec<(&[u8], Option<Shown<'_>>)> =
            (0..readable).map(|i| (group.key(&self.log, i), group.shown(keyspace, &self.log, i))).collect();
        merged.extend(saved.iter().flat_map(|saved| &saved.keys).map(|(key, reference)| (&**key, Some(Shown::Entry(*reference)))));
        // Checked again: a drop of the keyspace discards what was saved.
        keyspace.ensure_usable()?;
        merged.sort_by(|(a, _), (b, _)| if backward { b.cmp(a) } else { a.cmp(b) });
        merged.dedup_by(|(b, _), (a, _)| a == b);
        for (key, shown) in merged {
            if range.is_past_end(key) {
                return Ok(ControlFlow::Break(()));
            }
            let flow = match shown {
                None => ControlFlow::Continue(()),
                Some(shown) => self.emit_shown(group.snapshot, &shown, f)?,
            };
            if flow.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            if reached.is_some_and(|reached| **reached == *key) {
                return Ok(ControlFlow::Continue(Some(key.to_vec())));
            }
        }
        Ok(ControlFlow::Continue(None))
    }

    /// Passes what a snapshot shows to `f`, unless it had expired when the snapshot was taken.
    fn emit_shown(
        &self,
        snapshot: &Snapshot,
        shown: &Shown<'_>,
        f: &mut impl FnMut(&[u8], &[u8], u64) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let (key, value, expiry_ms) = match *shown {
            Shown::Entry(reference) => {
                self.ensure_settled(reference)?;
                self.log.pair(reference.0)
            }
            // Its version is not above the snapshot's, which is durable if reads must check.
            Shown::Copy(copied) => (copied.key, copied.value, copied.expiry_ms),
        };
        Ok(if snapshot.has_expired(expiry_ms) { ControlFlow::Continue(()) } else { f(key, value, expiry_ms) })
    }

    /// Number of the group's entries that are needed, including the first beyond the end of `range`. Fails if one of
    /// them is damaged.
    fn readable_part(&self, group: &Merge<'_>, range: &ScanRange<'_>) -> Result<usize> {
        if !self.log.has_unverified() {
            return Ok(group.refs.len());
        }
        for (i, &reference) in group.refs.iter().enumerate() {
            if group.copy(i).is_none() {
                self.ensure_whole(reference)?;
            }
            if range.is_past_end(group.key(&self.log, i)) {
                return Ok(i + 1);
            }
        }
        Ok(group.refs.len())
    }

    /// As [`Core::emit_within`], for an entry that was copied by a thread of its node.
    #[inline(always)]
    fn emit_copy(
        &self,
        keyspace: &Keyspace,
        reference: Ref,
        copied: &Copied<'_>,
        range: &ScanRange<'_>,
        f: &mut impl FnMut(&[u8], &[u8], u64) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        if range.is_past_end(copied.key) {
            return Ok(ControlFlow::Break(()));
        }
        // 0: not asked for, because reads did not have to check when the reference was taken.
        if copied.version != 0 && self.committer.reads_check() {
            self.wait_until_version_is_durable(copied.version)?;
        }
        if self.is_expired(copied.expiry_ms) {
            return self.emit_after_expiry(keyspace, reference, f);
        }
        Ok(f(copied.key, copied.value, copied.expiry_ms))
    }

    /// Passes one entry to `f`, unless it has expired.
    #[inline(always)]
    fn emit(
        &self,
        keyspace: &Keyspace,
        reference: Ref,
        f: &mut impl FnMut(&[u8], &[u8], u64) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        self.emit_within(keyspace, reference, &EVERYTHING, f)
    }

    /// Passes one entry to `f`, unless it has expired. Breaks if the entry lies beyond the end of `range`.
    #[inline(always)]
    fn emit_within(
        &self,
        keyspace: &Keyspace,
        reference: Ref,
        range: &ScanRange<'_>,
        f: &mut impl FnMut(&[u8], &[u8], u64) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        self.ensure_whole(reference)?;
        let (key, value, expiry_ms) = self.log.pair(reference.0);
        if range.is_past_end(key) {
            return Ok(ControlFlow::Break(()));
        }
        if self.committer.reads_check() {
            self.wait_until_durable(reference)?;
        }
        if self.is_expired(expiry_ms) {
            return self.emit_after_expiry(keyspace, reference, f);
        }
        Ok(f(key, value, expiry_ms))
    }

    /// Passes the entry that has replaced an expired one, if there is one, to `f`: see [`Core::after_expired`].
    #[cold]
    #[inline(never)]
    fn emit_after_expiry(
        &self,
        keyspace: &Keyspace,
        expired: Ref,
        f: &mut impl FnMut(&[u8], &[u8], u64) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let found = self.after_expiry(keyspace, &self.hasher.key(self.log.key(expired.0)), expired)?;
        Ok(found.map_or(ControlFlow::Continue(()), |found| {
            let (key, value, expiry_ms) = self.log.pair(found.0);
            f(key, value, expiry_ms)
        }))
    }
}
