//! What the lean path writes, and how its entries are made.
//!
//! Thread safety: plain values of one write; nothing is shared before `append`.

use crate::store::Core;
use hither_index::Ref;
use hither_log::entry::Parts;
use hither_log::{EntryRoom, MadeBare, MadePair, Op, PlainPair, Writer, entry};

/// What is written, and how its entry is made: in registers for a pair of eight bytes each, from byte strings
/// otherwise.
pub(super) trait Lean: Copy {
    /// An entry that is made but not appended yet.
    type Made: Copy;

    fn hash(&self, core: &Core) -> u64;

    /// Whether this writes a value; if not, it deletes.
    fn puts(&self) -> bool;

    /// The key as its bytes lie in memory, if it has eight bytes.
    fn word(&self) -> Option<u64>;

    /// Calls `f` with the key.
    fn with_key<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R;

    /// Bytes of the entry on media.
    fn size(&self) -> u64;

    fn make(&self, room: &EntryRoom<'_>, link: &Link) -> Option<Self::Made>;

    fn append(&self, writer: &mut Writer<'_>, made: &Self::Made, link: &Link) -> Ref;

    /// Whether the entry surely has this key and does not expire. False may also mean that this is not certain.
    fn is_of(&self, core: &Core, reference: Ref) -> bool;
}

/// What an entry contains besides key and value.
pub(super) struct Link {
    pub op: Op,
    pub version: u64,
    pub parent: Ref,
    pub parent_generation: u8,
    pub keyspace: u32,
}

/// A key and a value of eight bytes each, as they lie in memory.
#[derive(Clone, Copy)]
pub(super) struct Pair {
    pub key: u64,
    pub value: Option<u64>,
}

impl Pair {
    #[inline(always)]
    fn entry(&self, link: &Link) -> PlainPair {
        PlainPair {
            op: link.op,
            key: self.key,
            value: self.value.unwrap_or(0),
            version: link.version,
            parent: link.parent.0,
            parent_generation: link.parent_generation,
            keyspace: link.keyspace,
        }
    }
}

impl Lean for Pair {
    type Made = MadePair;

    #[inline(always)]
    fn hash(&self, core: &Core) -> u64 {
        core.hasher.hash_word(self.key)
    }

    #[inline(always)]
    fn puts(&self) -> bool {
        self.value.is_some()
    }

    #[inline(always)]
    fn word(&self) -> Option<u64> {
        Some(self.key)
    }

    #[inline(always)]
    fn with_key<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        f(&self.key.to_ne_bytes())
    }

    #[inline(always)]
    fn size(&self) -> u64 {
        entry::MIN_BYTES
    }

    #[inline(always)]
    fn make(&self, room: &EntryRoom<'_>, link: &Link) -> Option<MadePair> {
        room.make_pair(&self.entry(link))
    }

    #[inline(always)]
    fn append(&self, writer: &mut Writer<'_>, made: &MadePair, link: &Link) -> Ref {
        Ref(writer.append_made(made, link.op, link.version))
    }

    #[inline(always)]
    fn is_of(&self, core: &Core, reference: Ref) -> bool {
        core.log.surely_has_word(reference.0, self.key)
    }
}

/// A key and a value, at least one of which is not eight bytes long.
#[derive(Clone, Copy)]
pub(super) struct Strings<'a> {
    pub key: &'a [u8],
    pub value: Option<&'a [u8]>,
}

impl Strings<'_> {
    #[inline(always)]
    fn entry(&self, link: &Link) -> Parts<'_> {
        Parts {
            op: link.op,
            key: self.key,
            value: self.value.unwrap_or(&[]),
            version: link.version,
            parent: link.parent.0,
            parent_generation: link.parent_generation,
            keyspace: link.keyspace,
            expiry_ms: 0,
            batch: None,
            shortcut: 0,
            frees: false,
        }
    }
}

impl Lean for Strings<'_> {
    type Made = MadeBare;

    #[inline(always)]
    fn hash(&self, core: &Core) -> u64 {
        core.hasher.hash(self.key)
    }

    #[inline(always)]
    fn puts(&self) -> bool {
        self.value.is_some()
    }

    #[inline(always)]
    fn word(&self) -> Option<u64> {
        self.key.try_into().ok().map(u64::from_ne_bytes)
    }

    #[inline(always)]
    fn with_key<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        f(self.key)
    }

    #[inline(always)]
    fn size(&self) -> u64 {
        entry::bare_size_of(self.key.len() + self.value.map_or(0, <[u8]>::len))
    }

    #[inline(always)]
    fn make(&self, room: &EntryRoom<'_>, link: &Link) -> Option<MadeBare> {
        room.make_bare(&self.entry(link))
    }

    #[inline(always)]
    fn append(&self, writer: &mut Writer<'_>, made: &MadeBare, link: &Link) -> Ref {
        Ref(writer.append_bare(made, &self.entry(link)))
    }

    #[inline(always)]
    fn is_of(&self, core: &Core, reference: Ref) -> bool {
        core.log.surely_has_key(reference.0, self.key)
    }
}
