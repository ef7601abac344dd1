//! A node: 16 to 128 atomic words, the first two of which are the same in all nodes.
//!
//! Word 0 is the [`Version`], word 1 the [`Meta`]. The other words are those of a leaf or an inner node of the B+-tree
//! (`crate::btree`), or the header of a gapped array (`crate::learned`). All words are atomics that readers load
//! relaxed and validate by the version. Only the holder of the version's lock (or of a fresh node) stores.
//!
//! Pages are memory of gapped arrays, without version or metadata.
//!
//! # Invariants
//!
//! * N1. A node's class and number never change; its level changes only between lives.
//! * N2. Words that hold addresses of nodes are followed only after the version has confirmed them: recycled memory may
//!   hold anything.

use super::arena::Borrowed;
use super::version::Version;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

/// The sizes of the B+-tree's nodes (four classes), of the headers of gapped leaves and gapped inner nodes, and of
/// pages.
const CLASS_BYTES: [usize; 7] = [128, 256, 512, 1024, 256, 1024, 4096];
/// Number of size classes.
pub(crate) const CLASSES: usize = CLASS_BYTES.len();
/// The class of the B+-tree's inner nodes and of all leaves in layers of more than one leaf.
pub(crate) const LARGE: usize = 3;
/// The class of the headers of gapped leaves.
pub(crate) const LEAF_HEAD: usize = 4;
/// The class of the headers of gapped inner nodes.
pub(crate) const INNER_HEAD: usize = 5;
/// The class of pages, which are not nodes.
pub(crate) const PAGE: usize = 6;

/// The lines with header and keys. These are enough when many lookups are under way, whose misses overlap anyway.
pub(crate) const KEY_LINES: usize = 8;
/// All lines of a large node, for a search that has other work to do until they arrive, or that cannot compare all keys
/// of a node at once.
pub(crate) const ALL_LINES: usize = 16;

/// Bytes of a node of this class.
#[inline(always)]
pub(crate) const fn node_bytes(class: usize) -> usize {
    CLASS_BYTES[class]
}

/// Word 1: bits 0..7 count, 8..11 level (0 = leaf), 12..15 class, 16..31 skipped slices (layer roots only), 32..63
/// number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Meta(u64);

impl Meta {
    /// Slots of a leaf, separators of an inner node.
    #[inline(always)]
    pub(crate) fn count(self) -> usize {
        (self.0 & 0xff) as usize
    }

    #[inline(always)]
    pub(crate) fn level(self) -> usize {
        (self.0 >> 8 & 15) as usize
    }

    /// Whether the level is not 0.
    #[inline(always)]
    pub(crate) fn is_inner(self) -> bool {
        self.0 & 15 << 8 != 0
    }

    /// Whether the level is at most this.
    #[inline(always)]
    pub(crate) fn is_within(self, level: u64) -> bool {
        self.0 & 15 << 8 <= level << 8
    }

    #[inline(always)]
    pub(crate) fn class(self) -> usize {
        (self.0 >> 12 & 15) as usize
    }

    /// The number of slices that all keys of this layer share and that the layer leaves out. Meaningful in a layer's
    /// root.
    #[inline(always)]
    pub(crate) fn skip(self) -> usize {
        (self.0 >> 16 & 0xffff) as usize
    }

    #[inline(always)]
    pub(crate) fn id(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline(always)]
    pub(crate) fn with_count(self, count: usize) -> Meta {
        Meta(self.0 & !0xff | count as u64)
    }

    pub(crate) fn with_level(self, level: usize) -> Meta {
        debug_assert!(level < 16);
        Meta(self.0 & !(15 << 8) | (level as u64) << 8)
    }

    pub(crate) fn with_skip(self, skip: usize) -> Meta {
        debug_assert!(skip <= 0xffff);
        Meta(self.0 & !(0xffff << 16) | (skip as u64) << 16)
    }
}

/// A node of an arena. Copy: it is an address.
#[derive(Clone, Copy)]
pub(crate) struct Node<'a> {
    words: *const AtomicU64,
    arena: Borrowed<'a>,
}

impl PartialEq for Node<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.words == other.words
    }
}

impl<'a> Node<'a> {
    /// The node at `address`.
    ///
    /// # Safety
    /// A node of an arena that outlives `'a` must begin there. An address read from a node's word qualifies once that
    /// node's version has been validated (N2).
    #[inline(always)]
    pub(crate) unsafe fn from_address(address: u64) -> Self {
        Node { words: std::ptr::with_exposed_provenance(address as usize), arena: PhantomData }
    }

    /// Where the node begins.
    #[inline(always)]
    pub(crate) fn address(self) -> u64 {
        self.words as u64
    }

    /// Word `i`.
    ///
    /// # Safety
    /// `i` must be below the word count of the node's class.
    #[inline(always)]
    pub(crate) unsafe fn word(self, i: usize) -> &'a AtomicU64 {
        // SAFETY: the node's memory is mapped while the arena lives (type-stable), and all of it is atomic words.
        unsafe { &*self.words.add(i) }
    }

    #[inline(always)]
    pub(crate) fn version(self) -> &'a Version {
        // SAFETY: word 0 exists in every class, and `Version` is a transparent atomic word.
        unsafe { &*self.words.cast::<Version>() }
    }

    #[inline(always)]
    pub(crate) fn meta(self) -> Meta {
        // SAFETY: word 1 exists in every class.
        Meta(unsafe { self.word(1) }.load(Ordering::Relaxed))
    }

    /// Only for the holder of the lock, or of a fresh node.
    #[inline(always)]
    pub(crate) fn set_meta(self, meta: Meta) {
        // SAFETY: as in `meta`.
        unsafe { self.word(1) }.store(meta.0, Ordering::Relaxed);
    }

    /// Prepares the metadata of memory that has never been a node.
    pub(crate) fn first_life(self, class: usize, id: u32) {
        self.set_meta(Meta((class as u64) << 12 | u64::from(id) << 32));
    }

    /// Empties the node for another life, keeping class and number (N1).
    pub(crate) fn reset(self) {
        self.set_meta(self.meta().with_count(0).with_level(0).with_skip(0));
        for i in 2..8 {
            // SAFETY: every class has at least 16 words.
            unsafe { self.word(i) }.store(0, Ordering::Relaxed);
        }
    }

    /// Starts loading the first `lines` cache lines of the node at `address`: [`KEY_LINES`] or [`ALL_LINES`].
    #[inline(always)]
    pub(crate) fn prefetch(address: u64, lines: usize) {
        for line in 0..lines {
            hither_sync::prefetch_read((address as *const u8).wrapping_add(line * 64));
        }
    }
}
