//! Visiting all references, and the checks of every invariant.
//!
//! Thread safety: a visit walks position prefixes from left to right, reading one segment per prefix. A split meanwhile
//! leaves the segment that is being read frozen with all its keys, and the walk goes on behind its prefix. The next
//! segment is looked up under the directory's mutex: while the entries of two successors are being stored, the second
//! one would still lead to the segment that both replace, and with it to keys of the first one. So every key that stays
//! is met once. The checks require that no writer is active.

use super::HashTable;
use super::directory::{POSITION_BITS, POSITIONS, Segment, end_of, home_line, is_prefix, position_of};
use super::line::{FROZEN, LINE_SLOTS, LOCK, OVERFLOW, tag_at, tag_of};
use super::protocol::Protocol;
use crate::{Index, Key, Ref, Resolver};
use hither_sync::epoch;
use std::sync::atomic::Ordering;

/// The first position after the segment that `position` lies in.
fn behind(position: u64, segment: Segment) -> u64 {
    end_of(position >> (POSITION_BITS - segment.depth()), segment.depth())
}

/// Calls `visit` with every reference of a segment until it returns false; returns false then. The caller has been
/// pinned since it read the segment from the directory.
pub(super) fn visit_segment(segment: Segment, visit: &mut dyn FnMut(Ref) -> bool) -> bool {
    // SAFETY: the segment was read from the directory under the pin.
    for pair in unsafe { segment.all() } {
        for line in &pair.lines {
            let meta = line.meta.load(Ordering::Acquire);
            for slot in (0..LINE_SLOTS).filter(|slot| tag_at(meta, *slot) != 0) {
                let reference = Ref(line.refs[slot].load(Ordering::Acquire));
                if reference.is_some() && !visit(reference) {
                    return false;
                }
            }
        }
    }
    true
}

impl<P: Protocol> HashTable<P> {
    /// The segment of a position. It begins there if the segments before it were read by this function, too. The caller
    /// is pinned.
    pub(super) fn segment_at(&self, position: u64) -> Segment {
        let directory = self.directory.lock();
        // SAFETY: the directory's mutex is held.
        unsafe { directory.word().segment(position) }
    }

    /// Calls `visit` with every segment and its prefix until it returns false. The caller is pinned.
    pub(super) fn each_segment(&self, mut visit: impl FnMut(u64, Segment) -> bool) {
        let mut position = 0;
        while position < POSITIONS {
            let segment = self.segment_at(position);
            if !visit(position >> (POSITION_BITS - segment.depth()), segment) {
                return;
            }
            position = behind(position, segment);
        }
    }

    pub(super) fn visit_all(&self, visit: &mut dyn FnMut(Ref) -> bool) {
        let _pin = epoch::pin();
        self.each_segment(|_, segment| visit_segment(segment, visit));
    }

    /// Appends the references of the segment at `position` (0 is the first) to `out`, and returns the position to go on
    /// from, if there is one. A caller that goes from 0 to the end meets every key that is present throughout. The
    /// caller is pinned and stays so while it uses the references; it need not be pinned between two calls.
    ///
    /// # Panics
    /// If `position` was not returned by a call before, or the caller is not pinned.
    pub fn collect_segment(&self, position: u64, out: &mut Vec<Ref>) -> Option<u64> {
        assert!(position < POSITIONS && epoch::is_pinned(), "position {position:#x}");
        let segment = self.segment_at(position);
        visit_segment(segment, &mut |reference| {
            out.push(reference);
            true
        });
        Some(behind(position, segment)).filter(|position| *position < POSITIONS)
    }

    pub(super) fn check_all<R: Resolver>(&self, resolver: &R) -> Result<(), String> {
        let _pin = epoch::pin();
        self.check_directory()?;
        let mut keys = 0;
        let mut result = Ok(());
        self.each_segment(|prefix, segment| {
            result = self.check_segment(prefix, segment, resolver).map(|count| keys += count);
            result.is_ok()
        });
        result?;
        if keys != self.len() {
            return Err(format!("{keys} keys were found, but the counters say {}", self.len()));
        }
        Ok(())
    }

    /// Checks D2, and that the published word is the owned array's.
    fn check_directory(&self) -> Result<(), String> {
        let directory = self.directory.lock();
        if directory.word().0 != self.word.load(Ordering::Acquire) {
            return Err("lookups use another directory than writers".into());
        }
        let entries = directory.entries();
        let mut at = 0;
        while at < entries.len() {
            let word = entries[at].load(Ordering::Acquire);
            let depth = Segment(word).depth();
            if word == 0 || depth > directory.depth() {
                return Err(format!("directory entry {at} ({word:#x}) is deeper than the directory, {}", directory.depth()));
            }
            let prefix = at as u64 >> (directory.depth() - depth);
            let run = directory.entries_of(prefix, depth);
            if !is_prefix(prefix, depth)
                || at != run.start
                || entries[run.clone()].iter().any(|entry| entry.load(Ordering::Acquire) != word)
            {
                return Err(format!("directory entries {at}.. of depth {depth} do not fill their prefix"));
            }
            at = run.end;
        }
        Ok(())
    }

    /// Checks the slots of a segment; returns how many are used.
    fn check_segment<R: Resolver>(&self, prefix: u64, segment: Segment, resolver: &R) -> Result<usize, String> {
        let mut keys = 0;
        // SAFETY: the segment was read from the directory under the caller's pin.
        for (number, pair) in unsafe { segment.all() }.enumerate() {
            if pair.flags() & (LOCK | FROZEN) != 0 {
                return Err(format!("pair {number} of prefix {prefix:#x} is locked or frozen: {:#x}", pair.flags()));
            }
            for (which, line) in pair.lines.iter().enumerate() {
                let meta = line.meta.load(Ordering::Acquire);
                for slot in 0..LINE_SLOTS {
                    let (tag, reference) = (tag_at(meta, slot), Ref(line.refs[slot].load(Ordering::Acquire)));
                    let place = || format!("slot {slot} of line {which}, pair {number}, prefix {prefix:#x}/{}", segment.depth());
                    if (tag == 0) != reference.is_none() {
                        return Err(format!("{}: tag {tag:#x} with {reference:?}", place()));
                    }
                    if reference.is_some() {
                        keys += 1;
                        self.check_key(segment, prefix, number, tag, reference, resolver).map_err(|e| format!("{}: {e}", place()))?;
                    }
                }
            }
        }
        Ok(keys)
    }

    fn check_key<R: Resolver>(
        &self,
        segment: Segment,
        prefix: u64,
        number: usize,
        tag: u64,
        reference: Ref,
        resolver: &R,
    ) -> Result<(), String> {
        let hash = resolver.hash(reference);
        if tag != tag_of(hash) {
            return Err(format!("tag {tag:#x}, but the key's is {:#x}", tag_of(hash)));
        }
        if position_of(hash) >> (POSITION_BITS - segment.depth()) != prefix {
            return Err(format!("a key of position {:#x} has strayed here", position_of(hash)));
        }
        let steps = number.wrapping_sub(segment.pair_number(hash, 0)) & (segment.pairs() - 1);
        if steps >= segment.path_len() {
            return Err(format!("{steps} pairs away from home, home line {}", home_line(hash)));
        }
        // SAFETY: as in `check_segment`.
        let flagged = (0..steps).all(|step| unsafe { segment.pair(segment.pair_number(hash, step)) }.flags() & OVERFLOW != 0);
        if !flagged {
            return Err(format!("{steps} pairs away from home without overflow flags on the way"));
        }
        // Every slot of a key is checked, so a second one for the same key shows up here, too.
        let found = self.get(Key { bytes: resolver.key(reference), hash }, resolver);
        if found != reference {
            return Err(format!("a lookup of the key of {reference:?} finds {found:?}"));
        }
        Ok(())
    }
}
