//! The rows of the table, and the groups of measurements that feed them.
//!
//! A group is a set of processes that belong together: a store's scripts, the peers' scripts, and the yardsticks before
//! and after. A group runs only if one of its rows is requested.

use super::row::{Demand, Unit, demand};

/// Every row, in the order of the table.
pub const DEMANDS: [Demand; 24] = [
    demand("load-hash", "load, durable at return: hash", Unit::Append, 0.65, 0.85),
    demand("load-ordered", "load, durable at return: ordered", Unit::Append, 0.35, 0.5),
    demand("update-zipf", "update Zipf 0.99 (hash)", Unit::Append, 0.75, 0.9),
    demand("ycsb-a", "YCSB-A (hash)", Unit::Append, 1.35, 1.65),
    demand("delete", "delete (hash)", Unit::Append, 0.7, 0.9),
    demand("batch-load", "puts in batches of 16 (hash), new keys", Unit::Append, 2.2, 3.0),
    demand("batch-put", "puts in batches of 16 (hash), known keys", Unit::Append, 2.2, 3.0),
    demand("get-uniform", "get uniform (hash)", Unit::Map, 0.85, 1.2),
    demand("get-zipf", "get Zipf 0.99 (hash)", Unit::Map, 0.85, 1.2),
    demand("get-ordered-map", "get uniform (ordered) against the map", Unit::Map, 0.27, 0.4),
    demand("get-ordered-lmdb", "get uniform (ordered) against LMDB", Unit::Lmdb, 1.5, 1.5),
    demand("multi-get-hash", "multi-get of 16 (hash)", Unit::SingleGet, 1.5, 2.0),
    demand("multi-get-ordered", "multi-get of 16 (ordered)", Unit::SingleGet, 1.5, 2.0),
    demand("scan", "scan of 100 (ordered)", Unit::Lmdb, 0.8, 1.2),
    demand("file-load-hash", "file, process durability: load hash", Unit::Lmdb, 3.0, 3.0),
    demand("file-load-ordered", "file, process durability: load ordered", Unit::Lmdb, 1.5, 1.5),
    demand("file-sync-1", "file, sync durability: 1 thread", Unit::BestPeer, 0.9, 0.9),
    demand("file-sync-32", "file, sync durability: 32 threads", Unit::OneThread, 14.0, 14.0),
    demand("dram-hash", "DRAM per key, worst size: hash", Unit::BytesPerKey, 20.0, 16.0),
    demand("dram-ordered", "DRAM per key, worst size: ordered", Unit::BytesPerKey, 32.0, 24.0),
    demand("media-hash", "media bytes (segments in use) per 8 B / 8 B pair: hash", Unit::BytesPerKey, 40.0, 32.0),
    demand("media-ordered", "media bytes (segments in use) per 8 B / 8 B pair: ordered", Unit::BytesPerKey, 40.0, 32.0),
    demand("recovery-hash", "recovery after a kill, per thread: hash", Unit::EntriesPerThread, 8e6, 20e6),
    demand("recovery-ordered", "recovery after a kill, per thread: ordered", Unit::EntriesPerThread, 2e6, 5e6),
];

/// A set of measurements that are made together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Load, gets, multi-gets and deletes of the hash keyspace.
    HashRead,
    /// Zipf updates.
    HashUpdate,
    /// YCSB-A.
    HashMix,
    /// Batches of 16.
    HashBatch,
    /// Load, gets, multi-gets and scans of the ordered keyspace, and LMDB's.
    Ordered,
    /// Loads into a file at process durability, and LMDB's.
    FileProcess,
    /// Commits into a file at sync durability, and the peers'.
    FileSync,
    /// Memory per key over several sizes.
    Dram,
    /// Recovery after a SIGKILL.
    Recovery,
}

impl Group {
    /// Every group, in the order of a round.
    pub const ALL: [Group; 9] = [
        Group::HashRead,
        Group::HashUpdate,
        Group::HashMix,
        Group::HashBatch,
        Group::Ordered,
        Group::FileProcess,
        Group::FileSync,
        Group::Dram,
        Group::Recovery,
    ];

    /// The rows that the group feeds.
    pub fn rows(self) -> &'static [&'static str] {
        match self {
            Group::HashRead => &["load-hash", "get-uniform", "get-zipf", "multi-get-hash", "delete", "media-hash"],
            Group::HashUpdate => &["update-zipf"],
            Group::HashMix => &["ycsb-a"],
            Group::HashBatch => &["batch-load", "batch-put"],
            Group::Ordered => &["load-ordered", "get-ordered-map", "get-ordered-lmdb", "multi-get-ordered", "scan", "media-ordered"],
            Group::FileProcess => &["file-load-hash", "file-load-ordered"],
            Group::FileSync => &["file-sync-1", "file-sync-32"],
            Group::Dram => &["dram-hash", "dram-ordered"],
            Group::Recovery => &["recovery-hash", "recovery-ordered"],
        }
    }

    /// The yardsticks that its rows need: the append limit, the map. Rates of recovery are not divided by a yardstick,
    /// but need both to show which machine it was. Rows against other stores, and rows on memory, need none.
    pub fn yardsticks(self) -> (bool, bool) {
        match self {
            Group::HashRead | Group::Ordered | Group::Recovery => (true, true),
            Group::HashUpdate | Group::HashMix | Group::HashBatch => (true, false),
            _ => (false, false),
        }
    }
}

/// The rows that `only` selects: all if it is empty, otherwise those whose short name contains one of its words.
pub fn selected(only: &[String]) -> Vec<Demand> {
    let wanted = |demand: &&Demand| only.is_empty() || only.iter().any(|word| demand.id.contains(word.as_str()));
    DEMANDS.iter().filter(wanted).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_exactly_one_group() {
        for demand in DEMANDS {
            let groups = Group::ALL.iter().filter(|g| g.rows().contains(&demand.id)).count();
            assert_eq!(groups, 1, "{}", demand.id);
        }
        assert_eq!(Group::ALL.iter().map(|g| g.rows().len()).sum::<usize>(), DEMANDS.len());
    }

    #[test]
    fn aims_are_not_below_demands() {
        for d in DEMANDS {
            assert!(if d.unit.less_is_better() { d.aim <= d.at_least } else { d.aim >= d.at_least }, "{}", d.id);
        }
    }

    #[test]
    fn selection_by_part_of_a_name() {
        assert_eq!(selected(&[]).len(), DEMANDS.len());
        assert_eq!(selected(&["dram".into()]).len(), 2);
        assert!(selected(&["nothing".into()]).is_empty());
    }
}
