//! The bytes of a checkpoint (`docs/format.md`, "Checkpoint").
//!
//! A header, blocks of keys and references, an index (tables of segments, keyspaces and blocks), a trailer. A
//! checkpoint is written from front to back and read from both ends.
//!
//! Checksums cover everything: header and trailer have their own, the index has one in the trailer, and each block has
//! one in its row, so that threads check and load blocks independently. A checkpoint that does not verify is no
//! checkpoint: the log holds everything.

use hither_log::{SegmentRow, crc};
use std::collections::HashSet;

/// First bytes of a checkpoint.
pub const MAGIC: [u8; 8] = *b"hitherC1";
/// Last bytes of a checkpoint.
pub const END_MAGIC: [u8; 8] = *b"hitherCE";
/// The format's number.
pub const FORMAT: u32 = 3;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 64;
/// Bytes of the trailer.
pub const TRAILER_BYTES: usize = 48;
/// Bytes of a segment's row.
pub const SEGMENT_BYTES: usize = 64;
/// Bytes of a keyspace's row.
pub const KEYSPACE_BYTES: usize = 24;
/// Bytes of a block's row.
pub const BLOCK_BYTES: usize = 24;
/// No block is larger than this by more than a table segment or, if keys are long, a piece of keys (`FIRST_PIECE` in
/// `write`).
pub const BLOCK_TARGET: usize = 256 << 10;

const FLAG_FINAL: u32 = 1;
const FLAG_COVERED: u32 = 1;
const FLAG_TORN: u32 = 2;
const FLAG_EXPIRY: u8 = 1;

/// Name, offset and length of a field.
pub type Field = (&'static str, u64, u64);

/// The header.
pub const HEADER: [Field; 9] = [
    ("magic", 0, 8),
    ("format", 8, 4),
    ("flags", 12, 4),
    ("store_uuid", 16, 16),
    ("version", 32, 8),
    ("hash_seed", 40, 8),
    ("taken_ms", 48, 8),
    ("reserved", 56, 4),
    ("checksum", 60, 4),
];

/// A row of the table of segments.
pub const SEGMENT: [Field; 11] = [
    ("node", 0, 4),
    ("index", 4, 4),
    ("generation", 8, 8),
    ("flags", 16, 4),
    ("entries", 20, 4),
    ("tombstones", 24, 4),
    ("reserved", 28, 4),
    ("written_bytes", 32, 8),
    ("tombstone_bytes", 40, 8),
    ("newest_tombstone", 48, 8),
    ("tail", 56, 8),
];

/// A row of the table of keyspaces.
pub const KEYSPACE: [Field; 7] =
    [("id", 0, 4), ("kind", 4, 1), ("flags", 5, 1), ("reserved_0", 6, 2), ("blocks", 8, 4), ("reserved_1", 12, 4), ("keys", 16, 8)];

/// A row of the table of blocks.
pub const BLOCK: [Field; 6] =
    [("offset", 0, 8), ("bytes", 8, 4), ("items", 12, 4), ("kind", 16, 1), ("reserved", 17, 3), ("checksum", 20, 4)];

/// The trailer.
pub const TRAILER: [Field; 9] = [
    ("index_offset", 0, 8),
    ("segments", 8, 4),
    ("keyspaces", 12, 4),
    ("blocks", 16, 4),
    ("index_checksum", 20, 4),
    ("newest_version", 24, 8),
    ("reserved", 32, 4),
    ("checksum", 36, 4),
    ("magic", 40, 8),
];

/// Returns the CRC-32C, in its usual form with both inversions.
pub fn checksum(bytes: &[u8]) -> u32 {
    !crc::bytes(!0, bytes)
}

/// The content of the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Taken at a clean close: every segment is covered.
    pub is_final: bool,
    /// UUID of the store.
    pub store_uuid: [u8; 16],
    /// Version up to which everything is in the checkpoint (S).
    pub version: u64,
    /// Seed of the hash function.
    pub hash_seed: u64,
    /// Time at which the checkpoint was taken, in milliseconds since 1970.
    pub taken_ms: u64,
}

/// A keyspace in the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyspaceRow {
    /// Id of the keyspace.
    pub id: u32,
    /// 1 ordered, 2 hash.
    pub kind: u8,
    /// Some entry carries an expiry.
    pub has_expiry: bool,
    /// Number of the keyspace's blocks.
    pub blocks: u32,
    /// Keys copied.
    pub keys: u64,
}

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// Keys of eight bytes and their references.
    Words,
    /// Keys of any length and their references.
    Keys,
    /// Images of segments of a hash table.
    Images,
}

/// A block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRow {
    /// Offset in the checkpoint, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u32,
    /// Keys in the block.
    pub items: u32,
    /// Kind of its content.
    pub kind: BlockKind,
    /// Checksum of the block.
    pub checksum: u32,
}

/// The tables at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    /// Segments in use when the indexes had been copied.
    pub segments: Vec<SegmentRow>,
    /// Keyspaces.
    pub keyspaces: Vec<KeyspaceRow>,
    /// Blocks, those of the first keyspace first.
    pub blocks: Vec<BlockRow>,
    /// An upper bound of the versions of all entries that the checkpoint names.
    pub newest_version: u64,
}

/// Where the index lies, from the trailer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// Offset of the index.
    pub index_offset: u64,
    /// Length of the index in bytes.
    pub index_bytes: usize,
    counts: [u32; 3],
    index_checksum: u32,
    newest_version: u64,
}

/// Appends little-endian fields.
#[derive(Default)]
struct Out(Vec<u8>);

impl Out {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
}

/// Returns the little-endian number in a field of up to eight bytes.
fn number(bytes: &[u8], fields: &[Field], name: &str) -> u64 {
    let (_, offset, len) = fields.iter().find(|field| field.0 == name).expect("a field of the table");
    bytes[*offset as usize..(offset + len) as usize].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Header {
    /// Encodes the header.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Out(MAGIC.to_vec());
        out.u32(FORMAT);
        out.u32(if self.is_final { FLAG_FINAL } else { 0 });
        out.0.extend_from_slice(&self.store_uuid);
        [self.version, self.hash_seed, self.taken_ms].into_iter().for_each(|word| out.u64(word));
        out.u32(0);
        let sum = checksum(&out.0);
        out.u32(sum);
        out.0
    }

    /// Reads a header.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, String> {
        let field = |name| number(bytes, &HEADER, name);
        if bytes[..8] != MAGIC {
            return Err("it does not begin like a checkpoint".into());
        }
        if field("checksum") as u32 != checksum(&bytes[..HEADER_BYTES - 4]) {
            return Err("its header is damaged".into());
        }
        if field("format") as u32 != FORMAT {
            return Err(format!("it has format {}, which this version does not know", field("format")));
        }
        let unknown = field("flags") as u32 & !FLAG_FINAL;
        if unknown != 0 {
            return Err(format!("it has flags {unknown:#x}, which this version does not know"));
        }
        Ok(Header {
            is_final: field("flags") as u32 & FLAG_FINAL != 0,
            store_uuid: bytes[16..32].try_into().expect("sixteen bytes"),
            version: field("version"),
            hash_seed: field("hash_seed"),
            taken_ms: field("taken_ms"),
        })
    }
}

impl Index {
    /// Keys of all keyspaces.
    pub(crate) fn keys(&self) -> u64 {
        self.keyspaces.iter().map(|row| row.keys).sum()
    }

    /// Keys of ordered keyspaces that are not of eight bytes.
    pub(crate) fn other_keys(&self) -> u64 {
        self.blocks.iter().filter(|block| block.kind == BlockKind::Keys).map(|block| u64::from(block.items)).sum()
    }

    /// Encodes the index and the trailer of a checkpoint whose blocks end at `offset`.
    pub fn encode(&self, offset: u64) -> Vec<u8> {
        let mut out = Out::default();
        self.segments.iter().for_each(|row| put_segment(&mut out, row));
        for row in &self.keyspaces {
            out.u32(row.id);
            out.u8(row.kind);
            out.u8(if row.has_expiry { FLAG_EXPIRY } else { 0 });
            out.0.extend_from_slice(&[0; 2]);
            out.u32(row.blocks);
            out.u32(0);
            out.u64(row.keys);
        }
        for row in &self.blocks {
            out.u64(row.offset);
            out.u32(row.bytes);
            out.u32(row.items);
            out.u8(row.kind as u8 + 1);
            out.0.extend_from_slice(&[0; 3]);
            out.u32(row.checksum);
        }
        let (sum, start) = (checksum(&out.0), out.0.len());
        out.u64(offset);
        [self.segments.len(), self.keyspaces.len(), self.blocks.len()].into_iter().for_each(|count| out.u32(count as u32));
        out.u32(sum);
        out.u64(self.newest_version);
        out.u32(0);
        let sum = checksum(&out.0[start..]);
        out.u32(sum);
        out.0.extend_from_slice(&END_MAGIC);
        out.0
    }

    /// Reads the index that `trailer` describes.
    pub fn decode(trailer: &Trailer, bytes: &[u8]) -> Result<Index, String> {
        if checksum(bytes) != trailer.index_checksum {
            return Err("its index is damaged".into());
        }
        let [segments, keyspaces, _] = trailer.counts.map(|count| count as usize);
        let (rows, rest) = bytes.split_at(segments * SEGMENT_BYTES);
        let (names, blocks) = rest.split_at(keyspaces * KEYSPACE_BYTES);
        let index = Index {
            segments: rows.chunks_exact(SEGMENT_BYTES).map(take_segment).collect(),
            keyspaces: names.chunks_exact(KEYSPACE_BYTES).map(take_keyspace).collect(),
            blocks: blocks.chunks_exact(BLOCK_BYTES).map(take_block).collect::<Option<_>>().ok_or("it holds blocks of an unknown kind")?,
            newest_version: trailer.newest_version,
        };
        let counted: u64 = index.keyspaces.iter().map(|row| u64::from(row.blocks)).sum();
        let ends_inside = |row: &BlockRow| row.offset.checked_add(row.bytes.into()).is_some_and(|end| end <= trailer.index_offset);
        let inside = |row: &BlockRow| row.offset >= HEADER_BYTES as u64 && ends_inside(row);
        let ids: HashSet<u32> = index.keyspaces.iter().map(|row| row.id).collect();
        if counted != index.blocks.len() as u64 || ids.len() != keyspaces || !index.blocks.iter().all(inside) {
            return Err("its tables contradict each other".into());
        }
        Ok(index)
    }
}

impl Trailer {
    /// Reads the trailer of a checkpoint of `len` bytes.
    pub fn decode(bytes: &[u8; TRAILER_BYTES], len: u64) -> Result<Trailer, String> {
        let field = |name| number(bytes, &TRAILER, name);
        if bytes[40..] != END_MAGIC {
            return Err("it is cut off".into());
        }
        if field("checksum") as u32 != checksum(&bytes[..36]) {
            return Err("its trailer is damaged".into());
        }
        let counts = ["segments", "keyspaces", "blocks"].map(|name| field(name) as u32);
        let sizes = [SEGMENT_BYTES, KEYSPACE_BYTES, BLOCK_BYTES];
        let index_bytes: usize = counts.iter().zip(sizes).map(|(count, size)| *count as usize * size).sum();
        let index_offset = field("index_offset");
        if index_offset.checked_add((index_bytes + TRAILER_BYTES) as u64) != Some(len) {
            return Err("it has the wrong length".into());
        }
        let index_checksum = field("index_checksum") as u32;
        Ok(Trailer { index_offset, index_bytes, counts, index_checksum, newest_version: field("newest_version") })
    }
}

fn put_segment(out: &mut Out, row: &SegmentRow) {
    out.u32(row.node);
    out.u32(row.index);
    out.u64(row.generation);
    out.u32(if row.covered { FLAG_COVERED } else { 0 } | if row.torn { FLAG_TORN } else { 0 });
    out.u32(row.entries);
    out.u32(row.tombstones);
    out.u32(0);
    [row.written_bytes, row.tombstone_bytes, row.newest_tombstone, row.tail].into_iter().for_each(|word| out.u64(word));
}

fn take_segment(bytes: &[u8]) -> SegmentRow {
    let field = |name| number(bytes, &SEGMENT, name);
    SegmentRow {
        node: field("node") as u32,
        index: field("index") as u32,
        generation: field("generation"),
        covered: field("flags") as u32 & FLAG_COVERED != 0,
        torn: field("flags") as u32 & FLAG_TORN != 0,
        entries: field("entries") as u32,
        tombstones: field("tombstones") as u32,
        written_bytes: field("written_bytes"),
        tombstone_bytes: field("tombstone_bytes"),
        newest_tombstone: field("newest_tombstone"),
        tail: field("tail"),
    }
}

fn take_keyspace(bytes: &[u8]) -> KeyspaceRow {
    let field = |name| number(bytes, &KEYSPACE, name);
    KeyspaceRow {
        id: field("id") as u32,
        kind: field("kind") as u8,
        has_expiry: field("flags") as u8 & FLAG_EXPIRY != 0,
        blocks: field("blocks") as u32,
        keys: field("keys"),
    }
}

fn take_block(bytes: &[u8]) -> Option<BlockRow> {
    let field = |name| number(bytes, &BLOCK, name);
    let kind = match field("kind") {
        1 => BlockKind::Words,
        2 => BlockKind::Keys,
        3 => BlockKind::Images,
        _ => return None,
    };
    let (bytes, items) = (field("bytes") as u32, field("items") as u32);
    Some(BlockRow { offset: field("offset"), bytes, items, kind, checksum: field("checksum") as u32 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Header, Index) {
        let header = Header { is_final: true, store_uuid: [7; 16], version: 1 << 50, hash_seed: 0x1234_5678, taken_ms: 99 };
        let segment = SegmentRow { node: 3, index: 9, generation: 77, covered: true, torn: true, entries: 5, ..SegmentRow::default() };
        let keyspace = KeyspaceRow { id: 4, kind: 2, has_expiry: true, blocks: 1, keys: 11 };
        let block = BlockRow { offset: 64, bytes: 36, items: 2, kind: BlockKind::Images, checksum: 0xabcd };
        let index = Index {
            segments: vec![segment, SegmentRow { tail: 5, ..SegmentRow::default() }],
            keyspaces: vec![keyspace],
            blocks: vec![block],
            newest_version: 1 << 51,
        };
        (header, index)
    }

    #[test]
    fn everything_comes_back() {
        let (header, index) = sample();
        assert_eq!(Header::decode(&header.encode().try_into().unwrap()), Ok(header));
        let end = index.encode(100);
        let (body, tail) = end.split_at(end.len() - TRAILER_BYTES);
        let trailer = Trailer::decode(tail.try_into().unwrap(), 100 + end.len() as u64).unwrap();
        assert_eq!((trailer.index_offset, trailer.index_bytes), (100, body.len()));
        assert_eq!(Index::decode(&trailer, body), Ok(index));
    }

    /// Regression: the end of a block overflowed.
    #[test]
    fn a_block_outside_the_blocks_is_refused() {
        for (offset, bytes) in [(u64::MAX, 36), (u64::MAX - 35, 36), (65, 36), (0, 8), (64, u32::MAX)] {
            let (_, mut index) = sample();
            (index.blocks[0].offset, index.blocks[0].bytes) = (offset, bytes);
            let end = index.encode(100);
            let (body, tail) = end.split_at(end.len() - TRAILER_BYTES);
            let trailer = Trailer::decode(tail.try_into().unwrap(), 100 + end.len() as u64).unwrap();
            assert!(Index::decode(&trailer, body).is_err(), "{bytes} bytes at {offset}");
        }
    }

    #[test]
    fn every_damaged_byte_is_noticed() {
        let (header, index) = sample();
        for at in 0..HEADER_BYTES {
            let mut bytes: [u8; HEADER_BYTES] = header.encode().try_into().unwrap();
            bytes[at] ^= 1;
            assert!(Header::decode(&bytes).is_err(), "header byte {at}");
        }
        let end = index.encode(100);
        for at in 0..end.len() {
            let mut bytes = end.clone();
            bytes[at] ^= 0x10;
            let (body, tail) = bytes.split_at(end.len() - TRAILER_BYTES);
            let read = Trailer::decode(tail.try_into().unwrap(), 100 + end.len() as u64).and_then(|trailer| Index::decode(&trailer, body));
            assert!(read.is_err(), "byte {at} of index and trailer");
        }
    }

    #[test]
    fn rows_have_the_sizes_of_their_tables() {
        let end = |fields: &[Field]| fields.last().map(|(_, offset, bytes)| (offset + bytes) as usize);
        assert_eq!([end(&HEADER), end(&SEGMENT), end(&KEYSPACE)], [Some(HEADER_BYTES), Some(SEGMENT_BYTES), Some(KEYSPACE_BYTES)]);
        assert_eq!([end(&BLOCK), end(&TRAILER)], [Some(BLOCK_BYTES), Some(TRAILER_BYTES)]);
    }
}
