//! Chains: they lead from an entry back to the older entries of its key, by parent links (NStore's `h_addr`;
//! `docs/adr/0011`).
//!
//! A link holds if it leads to an entry that meets these conditions: a segment in use whose generation has the low byte
//! that the link remembers, a valid checksum, the same key, and a fitting version. A copy's source has the same version
//! as the copy or a lower one (`docs/adr/0024`), any other parent a lower one.
//!
//! Eight bits of generation can deceive, but the other conditions cannot: every entry that passes is an older entry of
//! the key, and marking such an entry dead is right.

use crate::address;
use crate::entry::{ALIGN, EntryView, MIN_BYTES};
use crate::log::Log;
use crate::segment::SegmentState;
use crate::writer::Writer;
use std::sync::atomic::Ordering;

/// The place to which a link leads or would lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub node: usize,
    pub offset: u64,
    pub segment: usize,
    /// That of the life into which it leads: random, but for its low byte.
    pub generation: u64,
}

/// The links, with their generation bytes, into one life of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkRange {
    first: u64,
    count: u64,
}

impl LinkRange {
    pub const EMPTY: LinkRange = LinkRange { first: 0, count: 0 };

    #[inline(always)]
    pub fn contains(&self, link: u64) -> bool {
        link.wrapping_sub(self.first) < self.count
    }
}

/// The properties of a child with which a walk compares the parent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Child<'a> {
    pub key: &'a [u8],
    pub keyspace: u32,
    pub version: u64,
    /// A collector made the child: its parent is its source.
    pub is_copy: bool,
}

/// One step of a walk.
pub(crate) struct Ancestor<'a> {
    pub entry: EntryView<'a>,
    /// The entry as the child of the next step.
    pub child: Child<'a>,
}

impl Log {
    /// The place that a parent link names, if a segment in use is there with the right generation byte. Reads no media.
    /// The result may be followed under the epoch pin under which it was made.
    #[inline]
    pub(crate) fn link(&self, parent: u64, generation_tag: u8) -> Option<Link> {
        if parent == 0 {
            return None;
        }
        let at = address::unpack(parent);
        let pool = self.pools.get(at.node as usize)?;
        let last = pool.pool.segment_offset(pool.pool.segment_count());
        if at.offset < pool.pool.segment_offset(0) || at.offset + MIN_BYTES > last {
            return None;
        }
        let segment = pool.segment_index(at.offset);
        let state = &pool.segments[segment];
        let generation = state.generation.load(Ordering::Relaxed);
        let in_use = !matches!(state.state(), SegmentState::Free | SegmentState::Retiring) && state.run_len.load(Ordering::Relaxed) > 0;
        (in_use && generation as u8 == generation_tag).then_some(Link { node: at.node as usize, offset: at.offset, segment, generation })
    }

    /// All links into the life of a segment into which this link, with its generation byte, leads; none if there is no
    /// such segment.
    pub(crate) fn links_beside(&self, link: u64) -> LinkRange {
        let at = address::unpack(link);
        let Some((pool, segment)) = self.pools.get(at.node as usize).and_then(|pool| Some((pool, pool.pool.segment_of(at.offset)?))) else {
            return LinkRange::EMPTY;
        };
        let first = address::pack(at.node, pool.pool.segment_offset(segment), 0);
        LinkRange { first: address::with_generation(first, address::generation_tag(link)), count: pool.segment_bytes() / ALIGN }
    }

    /// The link, if it still holds.
    pub(crate) fn link_again(&self, link: &Link) -> Option<Link> {
        self.link(address::pack(link.node as u32, link.offset, 0), link.generation as u8).filter(|now| now == link)
    }

    /// Starts loading the entry that a link names.
    pub(crate) fn prefetch_link(&self, link: &Link) {
        hither_sync::prefetch_read(self.pools[link.node].pool.base().wrapping_add(link.offset as usize));
    }

    /// The valid entry at the end of a link, whatever its key.
    pub(crate) fn follow(&self, link: Link) -> Option<(EntryView<'_>, u64)> {
        let pool = &self.pools[link.node];
        let reference = address::pack(link.node as u32, link.offset, 0);
        self.look_before(reference, u64::MAX);
        self.look_at_unverified_entry(reference, u64::MAX);
        let entry = crate::replay::verified_entry_at(&pool.pool, link.offset, link.generation)?;
        let version = entry.version(pool.segments[link.segment].base_version.load(Ordering::Relaxed));
        Some((entry, version))
    }

    /// The entry at the end of a link, if the link holds for this child.
    pub(crate) fn ancestor(&self, link: Link, child: &Child<'_>) -> Option<Ancestor<'_>> {
        let (entry, version) = self.follow(link)?;
        let segment = &self.pools[link.node].segments[link.segment];
        let keyspace = entry.keyspace(segment.keyspace.load(Ordering::Relaxed));
        // Not "lower or equal" for all: the place of a lost copy may be filled again with a copy of the very entry that
        // links to it.
        let fits = version < child.version || version == child.version && child.is_copy;
        let next = Child { key: entry.key, keyspace, version, is_copy: segment.is_cold() };
        (entry.key == child.key && keyspace == child.keyspace && fits).then_some(Ancestor { entry, child: next })
    }

    /// The child with which a walk from the entry behind `reference` begins.
    pub(crate) fn child<'a>(&self, reference: u64, entry: &EntryView<'a>, keyspace: u32, version: u64) -> Child<'a> {
        Child { key: entry.key, keyspace, version, is_copy: self.is_copy(reference) }
    }

    /// Whether a collector made the entry behind `copy` from the one behind `source`. (Each may lie where the other
    /// one's source once was: the generation decides.)
    pub fn is_copy_of(&self, copy: u64, source: u64) -> bool {
        let (entry, of) = (self.entry(copy), address::unpack(source));
        self.is_copy(copy)
            && self
                .link(entry.parent(), entry.parent_generation())
                .is_some_and(|link| (link.node, link.offset) == (of.node as usize, of.offset))
    }

    /// Whether there is an entry behind `reference` that a collector made.
    #[inline(always)]
    pub(crate) fn is_copy(&self, reference: u64) -> bool {
        let at = address::unpack(reference);
        let pool = &self.pools[at.node as usize];
        reference != 0 && pool.segments[pool.segment_index(at.offset)].is_cold()
    }

    /// Whether a copy, or one that it was made from, links to this place (node and offset) in a life of the segment
    /// there whose generation has this tag. Another copy at that place would pass for the source of its own source: a
    /// circle.
    pub(crate) fn remembers(&self, copy: u64, place: (u32, u64), tag: u8) -> bool {
        debug_assert!(self.is_copy(copy), "what is none links to an older version");
        let (mut entry, mut known) = (self.entry(copy), None);
        loop {
            let at = address::unpack(entry.parent());
            if entry.parent() != 0 && (at.node, at.offset) == place && entry.parent_generation() == tag {
                return true;
            }
            // Mostly the source is gone, and everything further back with it.
            let Some(link) = self.link(entry.parent(), entry.parent_generation()) else { return false };
            let child = known.unwrap_or_else(|| self.child(copy, &entry, self.keyspace_of(copy, &entry), self.version_of(copy, &entry)));
            match self.ancestor(link, &child) {
                Some(found) if found.child.is_copy => (entry, known) = (found.entry, Some(found.child)),
                _ => return false,
            }
        }
    }

    /// Calls `visit(link)` for the entries that a walk from `entry` passes, nearest first. Ends at the first dead
    /// entry, or when `visit` returns false.
    pub fn walk(&self, reference: u64, entry: &EntryView<'_>, keyspace: u32, version: u64, mut visit: impl FnMut(u64) -> bool) {
        let mut child = self.child(reference, entry, keyspace, version);
        let mut next = self.link(entry.parent(), entry.parent_generation());
        while let Some(link) = next {
            let Some(found) = self.ancestor(link, &child) else { return };
            if found.entry.is_dead() || !visit(address::pack(link.node as u32, link.offset, 0)) {
                return;
            }
            (next, child) = (self.link(found.entry.parent(), found.entry.parent_generation()), found.child);
        }
    }

    /// Whether the parent of an entry is missing although it should be there: where writes are installed before they
    /// are durable, a power loss may take a parent and leave its child.
    pub fn parent_is_lost(&self, entry: &EntryView<'_>) -> bool {
        self.link(entry.parent(), entry.parent_generation()).is_some_and(|link| {
            self.pools[link.node].segments[link.segment].was_open.load(Ordering::Relaxed) && self.follow(link).is_none()
        })
    }
}

impl Log {
    /// Low byte of the generation of the segment behind `reference` (for the parent tag); 0 if there is no reference.
    #[inline(always)]
    pub fn generation_tag(&self, reference: u64) -> u8 {
        if reference == 0 {
            return 0;
        }
        let at = address::unpack(reference);
        let pool = &self.pools[at.node as usize];
        pool.segments[pool.segment_index(at.offset)].generation.load(Ordering::Relaxed) as u8
    }
}

impl Writer<'_> {
    /// As [`Log::generation_tag`].
    #[inline(always)]
    pub fn generation_tag(&self, reference: u64) -> u8 {
        self.log.generation_tag(reference)
    }
}

#[cfg(test)]
mod tests {
    use crate::entry::{Op, Parts};
    use crate::{Flush, Log, TakeBack};
    use hither_pmem::CreateOptions;

    const KEYSPACE: u32 = 1;

    /// Regression: a walk ended where it came back into its own victim, with a mark above an entry that was left alive
    /// there. The walk of another pass ended at that mark, and its tombstone went. The deleted key was back after a
    /// kill, or once the first pass had been given up.
    #[test]
    fn behind_a_mark_everything_is_dead() {
        for tombstone_is_apart in [false, true] {
            let log = Log::for_tests_with(&CreateOptions { segment_bytes: 4096, ..CreateOptions::new(1 << 20) }, 4);
            let write = |shard, op, parent: u64| {
                let value: &[u8] = if op == Op::Delete { b"" } else { b"a value!" };
                let parent_generation = log.generation_tag(parent);
                let parts = Parts { op, key: b"one key!", value, keyspace: KEYSPACE, parent, parent_generation, ..Parts::EMPTY };
                log.write_to_shard_for_tests(shard, parts, Flush::Now).0
            };
            let oldest = write(0, Op::Insert, 0);
            let older = write(1, Op::Update, oldest);
            let newest = write(0, Op::Update, older);
            let tombstone = write(if tombstone_is_apart { 2 } else { 1 }, Op::Delete, newest);
            log.pools[0].close_from(0);
            log.fold_slots(TakeBack::All);
            let segment_of = |reference| log.segment_of(reference).1;
            let (victim, other) = (segment_of(oldest), segment_of(older));
            assert!(segment_of(newest) == victim && victim != other && (segment_of(tombstone) == other) != tombstone_is_apart);
            log.bury_ancestors(0, victim, false);
            assert!(log.entry(older).is_dead() && log.entry(oldest).is_dead() && !log.entry(newest).is_dead());
            log.bury_ancestors(0, segment_of(tombstone), false);
            let alive = [oldest, older, newest].map(|reference| !log.entry(reference).is_dead());
            assert_eq!(alive, [false; 3], "all that the tombstone keeps out");
        }
    }
}
