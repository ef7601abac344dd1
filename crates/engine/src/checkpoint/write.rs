//! Writing a checkpoint: copies the indexes piece by piece while writers go on.
//!
//! Each piece is read under an epoch pin of its own; between pieces the caller may wait, or stop the copying.
//!
//! Thread safety: beside writers and readers; one thread writes a draft. Crash: nobody sees the draft before it is
//! published.

use super::blocks;
use super::format::{BLOCK_TARGET, BlockKind, BlockRow, HEADER_BYTES, Header, Index as Tables, KeyspaceRow, checksum};
use super::store::CheckpointDraft;
use crate::keyspace::{AnyIndex, Keyspace};
use crate::resolver::LogResolver;
use hither_index::{OrderedIndex, SortedPiece, Start};
use hither_sync::epoch;

/// The most keys that are read under one pin.
const PIECE: usize = 4096;
/// Keys that are read first for a block, when their lengths are not known yet: of 64 KiB each they make 4 MiB.
const FIRST_PIECE: usize = 64;

/// Why no checkpoint came about.
#[derive(Debug)]
pub(super) enum Abandoned {
    /// The checkpoint was not wanted any more.
    Stopped,
    /// Something failed.
    Failed(crate::Error),
}

impl From<std::io::Error> for Abandoned {
    fn from(error: std::io::Error) -> Abandoned {
        use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        let text = error.to_string();
        Abandoned::Failed(match error.kind() {
            StorageFull | QuotaExceeded | FileTooLarge => crate::Error::DiskFull(text),
            _ => crate::Error::Io(text),
        })
    }
}

impl From<crate::Error> for Abandoned {
    fn from(error: crate::Error) -> Abandoned {
        Abandoned::Failed(error)
    }
}

impl From<hither_log::Error> for Abandoned {
    fn from(error: hither_log::Error) -> Abandoned {
        Abandoned::Failed(error.into())
    }
}

/// Called between pieces; returns false to stop the copying.
pub(crate) type GoOn<'a> = &'a mut dyn FnMut() -> bool;

/// A checkpoint being written.
pub(super) struct Writer<'a> {
    draft: &'a mut dyn CheckpointDraft,
    offset: u64,
    tables: Tables,
    go_on: GoOn<'a>,
}

impl<'a> Writer<'a> {
    pub fn begin(draft: &'a mut dyn CheckpointDraft, header: &Header, go_on: GoOn<'a>) -> Result<Writer<'a>, Abandoned> {
        draft.append(&header.encode())?;
        Ok(Writer { draft, offset: HEADER_BYTES as u64, tables: Tables::default(), go_on })
    }

    /// Copies a keyspace.
    pub fn keyspace(&mut self, keyspace: &Keyspace, resolver: LogResolver<'_>) -> Result<(), Abandoned> {
        let before = self.tables.blocks.len();
        let (kind, keys) = match &*keyspace.index {
            AnyIndex::Ordered(index) => (1, self.ordered(index, keyspace, resolver)?),
            AnyIndex::Learned(index) => (1, self.ordered(index, keyspace, resolver)?),
            AnyIndex::Hash(index) => (2, self.hash(index)?),
        };
        let blocks = (self.tables.blocks.len() - before) as u32;
        // Asked after the copying. A writer raises the flag after it has installed its entry; if it does so later than
        // this, its entry is in a segment that is scanned.
        let has_expiry = keyspace.expiries.are_there();
        self.tables.keyspaces.push(KeyspaceRow { id: keyspace.info.id, kind, has_expiry, blocks, keys });
        Ok(())
    }

    fn ordered<I: OrderedIndex>(&mut self, index: &I, keyspace: &Keyspace, resolver: LogResolver<'_>) -> Result<u64, Abandoned> {
        let (mut keys, mut last, mut payload) = (0, None::<Vec<u8>>, Vec::new());
        loop {
            let mut block = SortedPiece::default();
            let ended = self.gather(index, keyspace, last.as_deref(), &mut block, resolver)?;
            if !block.is_empty() {
                let mut word = [0; 8];
                last = Some(block.key(block.len() - 1, &mut word).to_vec());
                payload.clear();
                let kind = blocks::encode(&block, &mut payload);
                self.block(kind, block.len(), &payload)?;
                keys += block.len() as u64;
            }
            if ended {
                return Ok(keys);
            }
        }
    }

    /// Fills a block; returns whether the end of the index was reached.
    fn gather<I: OrderedIndex>(
        &mut self,
        index: &I,
        keyspace: &Keyspace,
        after: Option<&[u8]>,
        block: &mut SortedPiece,
        resolver: LogResolver<'_>,
    ) -> Result<bool, Abandoned> {
        let mut last = after.map(<[u8]>::to_vec);
        let mut bytes = 0;
        while bytes < BLOCK_TARGET {
            if !(self.go_on)() {
                return Err(Abandoned::Stopped);
            }
            let before = block.len();
            let pin = epoch::pin();
            if keyspace.is_discarded() {
                // Other entries may lie where the keyspace's keys were. A restart needs nothing of a keyspace that was
                // dropped.
                return Ok(true);
            }
            let fitting = ((BLOCK_TARGET - bytes) * before).checked_div(bytes);
            // At most as many as there are already, in case longer ones follow.
            let piece = fitting.map_or(FIRST_PIECE, |keys| keys.min(before).clamp(FIRST_PIECE, PIECE));
            index.copy_sorted(last.as_deref().map_or(Start::Edge, Start::After), piece, block, &resolver);
            if resolver.log.has_unverified() && block.is_resolved() {
                // Keys were read from entries: damage in one must not pass for a key from now on.
                block.refs()[before..].iter().try_for_each(|reference| resolver.log.verify_entry(reference.0))?;
            }
            drop(pin);
            let mut word = [0; 8];
            bytes += (before..block.len()).map(|i| 8 + block.key(i, &mut word).len()).sum::<usize>();
            if block.len() - before < piece {
                return Ok(true);
            }
            last = Some(block.key(block.len() - 1, &mut word).to_vec());
        }
        Ok(false)
    }

    fn hash(&mut self, index: &hither_index::hash::HashIndex) -> Result<u64, Abandoned> {
        let (mut keys, mut next, mut payload) = (0, Some(0), Vec::new());
        while let Some(position) = next {
            if !(self.go_on)() {
                return Err(Abandoned::Stopped);
            }
            payload.clear();
            let (behind, copied) = index.copy_images(position, BLOCK_TARGET, &mut payload);
            self.block(BlockKind::Images, copied as usize, &payload)?;
            (next, keys) = (behind, keys + copied);
        }
        Ok(keys)
    }

    fn block(&mut self, kind: BlockKind, items: usize, payload: &[u8]) -> Result<(), Abandoned> {
        let too_large = |_| Abandoned::Failed(crate::Error::Io("a block exceeds 4 GiB".into()));
        let bytes = u32::try_from(payload.len()).map_err(too_large)?;
        let items = u32::try_from(items).map_err(too_large)?;
        self.draft.append(payload)?;
        self.tables.blocks.push(BlockRow { offset: self.offset, bytes, items, kind, checksum: checksum(payload) });
        self.offset += u64::from(bytes);
        Ok(())
    }

    /// Writes the tables; returns the length of the checkpoint, and the tables.
    pub fn finish(mut self, segments: Vec<hither_log::SegmentRow>, newest_version: u64) -> Result<(u64, Tables), Abandoned> {
        self.tables.segments = segments;
        self.tables.newest_version = newest_version;
        let end = self.tables.encode(self.offset);
        self.draft.append(&end)?;
        self.draft.harden()?;
        Ok((self.offset + end.len() as u64, self.tables))
    }
}
