//! Images of the table, for checkpoints: the segments as they lie in memory, so that loading copies them and hashes
//! nothing.
//!
//! An image is a header of 16 bytes and the pairs of one segment, 128 bytes each, as `line` describes them. Of the
//! flags only OVERFLOW and HAS_LOST are kept. References are those of the log; tags and places follow from the hash
//! function, so the reader must use the seed of the writer.
//!
//! | header | bytes |
//! |---|---|
//! | position prefix | 4 |
//! | depth | 1 |
//! | size class | 1 |
//! | wide (0 or 1) | 1 |
//! | zero | 1 |
//! | pairs | 8 |
//!
//! # Copying while writers go on
//!
//! A segment's word is read under the directory's mutex, under which all successors of a segment are published at once.
//! So the images cover every position exactly once, whatever splits go on. Each pair is copied under its lock, or is
//! frozen and does not change; keys do not move inside a segment. So the reference copied for a key is one that the key
//! had at some moment during the call (the argument is that of a lookup, see the parent module).
//!
//! # References whose keys could not be read
//!
//! Each successor of a segment gets a copy of a reference whose key could not be read ([`super::rebuild`]). A table
//! counts such a reference once, and so must a table that is made of images: it looks for references that occur twice
//! among the segments with HAS_LOST. (An image counts all copies. Where one copy has been overwritten meanwhile, the
//! other belongs to nobody and counts as one more key after the next load.)

use super::check::visit_segment;
use super::directory::{MAX_DEPTH, POSITION_BITS, POSITIONS, Segment, end_of, is_prefix};
use super::line::{HAS_LOST, LINE_SLOTS, OVERFLOW, PAIR_SLOTS, Pair, tag_at, with_tag};
use super::protocol::Protocol;
use super::{Arc, HashTable, Ordering};
use crate::Ref;
use hither_sync::epoch;

/// Bytes of an image's header.
pub const HEADER_BYTES: usize = 16;
/// Bytes of a pair.
pub const PAIR_BYTES: usize = size_of::<Pair>();
/// The largest size class that is accepted from an image.
const MAX_CLASS: u8 = 24;
/// The bits of a line's first word that are kept: the tags, and some flags.
const KEPT: u64 = 0x00ff_ffff_ffff_ffff | OVERFLOW | HAS_LOST;

/// An image that no table writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadImage;

/// Segments that were rebuilt from images, not yet reachable. They belong to the table that made them.
#[derive(Debug, Default)]
pub struct Images {
    segments: Vec<(u64, Segment)>,
    keys: u64,
    /// The references of segments that may share references with other segments.
    shared: Vec<Ref>,
}

impl<P: Protocol> HashTable<P> {
    /// Appends images of the segments from `position` on to `out` until it holds `bytes` or the end is reached. Returns
    /// the next position, `None` at the end, and the number of keys copied. The first position is 0.
    pub fn copy_images(&self, mut position: u64, bytes: usize, out: &mut Vec<u8>) -> (Option<u64>, u64) {
        let mut keys = 0;
        while out.len() < bytes {
            let _pin = epoch::pin();
            let segment = self.segment_at(position);
            let prefix = position >> (POSITION_BITS - segment.depth());
            const { assert!(MAX_DEPTH <= u32::BITS) };
            out.extend_from_slice(&(prefix as u32).to_le_bytes());
            out.extend_from_slice(&[segment.depth() as u8, segment.class() as u8, u8::from(segment.wide()), 0]);
            out.extend_from_slice(&(segment.pairs() as u64).to_le_bytes());
            // SAFETY: the segment was read from the directory under the pin.
            for pair in unsafe { segment.all() } {
                keys += copy_pair(pair, out);
            }
            position = end_of(prefix, segment.depth());
            if position == POSITIONS {
                return (None, keys);
            }
        }
        (Some(position), keys)
    }

    /// Rebuilds the segments of a run of images, leaving out the references that `keep` rejects. Several threads may do
    /// so at once.
    ///
    /// # Errors
    /// [`BadImage`]; blocks that were allocated so far are released when the table is dropped.
    pub fn rebuild_images(&self, mut images: &[u8], into: &mut Images, mut keep: impl FnMut(Ref) -> bool) -> Result<(), BadImage> {
        while !images.is_empty() {
            let (header, rest) = images.split_first_chunk::<HEADER_BYTES>().ok_or(BadImage)?;
            let [a, b, c, d, depth, class, wide, zero, ..] = *header;
            let prefix = u64::from(u32::from_le_bytes([a, b, c, d]));
            let pairs = u64::from_le_bytes(header[8..].try_into().expect("eight bytes"));
            let sane = u32::from(depth) <= MAX_DEPTH && is_prefix(prefix, depth.into()) && class <= MAX_CLASS && wide <= 1 && zero == 0;
            let expected = Segment::new(0, 0, usize::from(class.min(MAX_CLASS)), false).pairs();
            if !sane || pairs != expected as u64 {
                return Err(BadImage);
            }
            let (body, rest) = rest.split_at_checked(expected * PAIR_BYTES).ok_or(BadImage)?;
            let block = self.arena.allocate(usize::from(class));
            let segment = Segment::new(block, depth.into(), class.into(), wide == 1);
            // SAFETY: the block was just allocated from this table's arena, and nobody else knows it.
            for (pair, image) in unsafe { segment.all() }.zip(body.chunks_exact(PAIR_BYTES)) {
                into.keys += restore_pair(pair, image, &mut keep);
            }
            // SAFETY: as above.
            if unsafe { segment.pair(0) }.flags() & HAS_LOST != 0 {
                visit_segment(segment, &mut |reference| {
                    into.shared.push(reference);
                    true
                });
            }
            into.segments.push((prefix, segment));
            images = rest;
        }
        Ok(())
    }

    /// Makes rebuilt segments the content of this empty, idle table.
    ///
    /// # Errors
    /// [`BadImage`] if they do not cover every position once.
    pub fn adopt_images(&self, parts: Vec<Images>) -> Result<(), BadImage> {
        assert_eq!(self.counter.sum(), 0, "only an empty table takes images");
        let keys: u64 = parts.iter().map(|part| part.keys).sum();
        let copies = copies_among(parts.iter().flat_map(|part| &part.shared).copied().collect());
        let mut segments: Vec<_> = parts.into_iter().flat_map(|part| part.segments).collect();
        let start = |(prefix, segment): &(u64, Segment)| prefix << (POSITION_BITS - segment.depth());
        segments.sort_unstable_by_key(start);
        let mut next = 0;
        for entry in &segments {
            if start(entry) != next {
                return Err(BadImage);
            }
            next = end_of(entry.0, entry.1.depth());
        }
        if next != POSITIONS {
            return Err(BadImage);
        }
        let mut old: Vec<Segment> = Vec::new();
        for word in self.directory.lock().entries() {
            let segment = Segment(word.load(Ordering::Acquire));
            if old.last() != Some(&segment) {
                old.push(segment);
            }
        }
        self.publish(&segments);
        self.counter.add(keys - copies);
        let arena = Arc::downgrade(&self.arena);
        epoch::defer(move || {
            if let Some(arena) = arena.upgrade() {
                old.iter().for_each(|segment| arena.release(segment.block(), segment.class()));
            }
        });
        Ok(())
    }
}

/// Returns how many of the references repeat another one.
fn copies_among(mut refs: Vec<Ref>) -> u64 {
    let all = refs.len();
    refs.sort_unstable();
    refs.dedup();
    (all - refs.len()) as u64
}

/// Appends a pair as it is at one moment; returns the number of its keys.
fn copy_pair(pair: &Pair, out: &mut Vec<u8>) -> u64 {
    // A frozen pair does not change any more. (It would if it were thawed: after a panic in the middle of a rebuild, or
    // by `reserve`, which nobody calls for a table in use.)
    let held = pair.lock(true);
    let mut keys = 0;
    for line in &pair.lines {
        let meta = line.meta.load(Ordering::Acquire);
        keys += (0..LINE_SLOTS).filter(|slot| tag_at(meta, *slot) != 0).count() as u64;
        out.extend_from_slice(&(meta & KEPT).to_le_bytes());
        for reference in &line.refs {
            out.extend_from_slice(&reference.load(Ordering::Acquire).to_le_bytes());
        }
    }
    if let Some(held) = held {
        held.unlock();
    }
    keys
}

/// Fills a pair that nobody else can reach; returns the number of its keys.
#[inline(always)]
fn restore_pair(pair: &Pair, image: &[u8], keep: &mut impl FnMut(Ref) -> bool) -> u64 {
    let word = |i: usize| u64::from_le_bytes(image[i * 8..i * 8 + 8].try_into().expect("eight bytes"));
    let mut keys = 0;
    for (number, line) in pair.lines.iter().enumerate() {
        let at = number * (LINE_SLOTS + 1);
        let mut meta = word(at) & KEPT;
        for slot in 0..LINE_SLOTS {
            let mut reference = Ref(word(at + 1 + slot));
            // No table at rest has a tag without a reference, or the reverse (L1). A rejected reference leaves a free
            // slot.
            if reference.is_none() || tag_at(meta, slot) == 0 || !keep(reference) {
                reference = Ref::NONE;
                meta = with_tag(meta, slot, 0);
            } else {
                keys += 1;
            }
            line.refs[slot].store(reference.0, Ordering::Relaxed);
        }
        line.meta.store(meta, Ordering::Relaxed);
    }
    keys
}

const _: () = assert!(PAIR_BYTES == (PAIR_SLOTS + 2) * 8);
