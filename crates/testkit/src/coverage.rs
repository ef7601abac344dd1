//! Counts what explored histories contained. A run that never reached the dangerous code is a failed run.

use crate::images::Step;
use hither_engine::Kind;
use hither_pmem::shadow::What;
use std::collections::BTreeMap;

/// Something a history must contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Item {
    /// A pool was created.
    PoolCreation,
    /// A hash index split a segment.
    HashSplit,
    /// The directory of a hash index grew.
    DirectoryGrowth,
    /// A B+-tree split a leaf.
    TreeSplit,
    /// A segment filled up and the next was opened.
    SegmentSwitch,
    /// A freed segment was opened again.
    SegmentReuse,
    /// A pool grew.
    Growth,
    /// A batch was committed.
    Batch,
    /// A batch failed for lack of space.
    FullStore,
    /// An entry lay on two cache lines.
    TwoLines,
    /// A value took a run of segments.
    Run,
    /// An expired key was swept.
    Sweep,
    /// A keyspace was created or dropped.
    CatalogueChange,
    /// Names of keyspaces were exchanged.
    KeyspaceSwap,
    /// A collector moved entries.
    Moved,
    /// A collector moved entries after so many versions were skipped that new segments cannot express old ones.
    MovedOld,
    /// A collector moved an entry that only a snapshot showed.
    MovedForSnapshot,
    /// A collector moved a tombstone that still kept older entries out.
    MovedTombstone,
    /// A collector found an entry in the index by its shortcut.
    ShortcutFollowed,
    /// A sweep marked dead what tombstones kept out.
    Swept,
    /// Recovery completed a collector's pass.
    PassCompleted,
    /// Recovery mended a chain that had lost a link.
    ChainMended,
    /// Recovery dropped a batch that was not whole.
    BatchDropped,
    /// Recovery met torn bytes.
    Torn,
    /// Recovery crashed.
    RecoveryCrash,
    /// A write after recovery, before the next failure, succeeded.
    SecondLifeWrite,
    /// The process died, the next one recovered, then the power failed.
    KillThenPowerLoss,
    /// A restart loaded a checkpoint and scanned what was newer.
    CheckpointRestart,
    /// A restart after a clean close scanned nothing.
    CleanRestart,
}

/// All items.
pub const ALL: [Item; 29] = [
    Item::PoolCreation,
    Item::HashSplit,
    Item::DirectoryGrowth,
    Item::TreeSplit,
    Item::SegmentSwitch,
    Item::SegmentReuse,
    Item::Growth,
    Item::Batch,
    Item::FullStore,
    Item::TwoLines,
    Item::Run,
    Item::Sweep,
    Item::CatalogueChange,
    Item::KeyspaceSwap,
    Item::Moved,
    Item::MovedOld,
    Item::MovedForSnapshot,
    Item::MovedTombstone,
    Item::ShortcutFollowed,
    Item::Swept,
    Item::PassCompleted,
    Item::ChainMended,
    Item::BatchDropped,
    Item::Torn,
    Item::RecoveryCrash,
    Item::SecondLifeWrite,
    Item::KillThenPowerLoss,
    Item::CheckpointRestart,
    Item::CleanRestart,
];

/// Slots of a segment of the hash index: 32 pairs of lines with 7 slots each. A new index is one segment under a
/// directory of one entry, so one key more than this forces a split, and the first split makes the directory grow.
const HASH_SEGMENT_SLOTS: u64 = 32 * 2 * 7;
/// More keys than any leaf of the B+-tree holds.
const LEAF_SLOTS: u64 = 64;

/// How often each item was met.
#[derive(Clone, Debug, Default)]
pub struct Coverage(BTreeMap<Item, u64>);

impl Coverage {
    /// Counts an item.
    pub fn hit(&mut self, item: Item) {
        *self.0.entry(item).or_default() += 1;
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &Coverage) {
        for (item, count) in &other.0 {
            *self.0.entry(*item).or_default() += count;
        }
    }

    /// Items that were never met.
    pub fn missing(&self) -> Vec<Item> {
        ALL.into_iter().filter(|item| !self.0.contains_key(item)).collect()
    }

    /// Notes the size of an index.
    pub fn index(&mut self, kind: Kind, keys: u64) {
        if kind == Kind::Hash && keys > HASH_SEGMENT_SLOTS {
            self.hit(Item::HashSplit);
            self.hit(Item::DirectoryGrowth);
        }
        if kind == Kind::Ordered && keys > LEAF_SLOTS {
            self.hit(Item::TreeSplit);
        }
    }

    /// Notes what a recording shows.
    pub fn steps(&mut self, steps: &[Step]) {
        for step in steps {
            match step.what {
                What::Resize(_) => self.hit(Item::Growth),
                // The metadata of the explored pools ends before 160 KiB (their segment table begins at 136 KiB): what
                // lies behind are entries.
                What::Store { off, ref bytes, .. } if off > 160 << 10 && off / 64 != (off + bytes.len() as u64 - 1) / 64 => {
                    self.hit(Item::TwoLines)
                }
                _ => {}
            }
        }
    }
}

impl std::fmt::Display for Coverage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for item in ALL {
            write!(f, "{item:?} {}, ", self.0.get(&item).unwrap_or(&0))?;
        }
        Ok(())
    }
}
