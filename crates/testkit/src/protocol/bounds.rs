//! The limits of an exploration.

use super::Flaw;

/// Number of keys of the model.
pub const KEYS: usize = 2;
/// The most segments that a pool may have.
pub const SEGMENTS: usize = 5;
/// The most slots that a segment may have.
pub const SLOTS: usize = 2;
/// The most writers.
pub const WRITERS: usize = 2;
/// The most kinds of operations in one exploration.
pub const OPS: usize = 5;

/// How a write becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Persistent memory: flushed and fenced before it is installed.
    Fence,
    /// Files: a write is installed at once, and becomes durable and acknowledged with the next commit.
    Sync,
}

/// How a victim is emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collector {
    /// One entry at a time under its key's latch, after its ancestors were buried (ADR 0011).
    Chain,
    /// In batches, without latches. Tombstones stay until a sweep has marked what they keep out (ADR 0014).
    Batched,
}

/// What a writer may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Writes a value.
    Put(u8),
    /// Deletes a key.
    Delete(u8),
    /// Writes a value that expires.
    Expiring(u8),
    /// Puts both keys in one batch.
    Batch,
    /// Deletes the first key and puts the second, in one batch.
    Move,
}

impl Op {
    /// The keys that the operation writes.
    pub fn keys(self) -> &'static [u8] {
        match self {
            Op::Put(0) | Op::Delete(0) | Op::Expiring(0) => &[0],
            Op::Put(_) | Op::Delete(_) | Op::Expiring(_) => &[1],
            Op::Batch | Op::Move => &[0, 1],
        }
    }
}

/// What a store of the model has, and how often each event may happen.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Name of the bounds, for reports.
    pub name: &'static str,
    /// How writes become durable.
    pub medium: Medium,
    /// Segments in the pool.
    pub segments: usize,
    /// Entries that a segment holds.
    pub slots: usize,
    /// 1, or 2: each writer fills segments of its own.
    pub shards: usize,
    /// Number of writers.
    pub writers: usize,
    /// The operations, each with how often it may be done; in any order, by any writer.
    pub ops: Vec<(Op, u8)>,
    /// How victims are emptied.
    pub collector: Collector,
    /// Collected victims.
    pub collections: u8,
    /// Sweeps of what tombstones keep out (only with [`Collector::Batched`]).
    pub sweeps: u8,
    /// Checkpoints taken.
    pub checkpoints: u8,
    /// Checkpoints thrown away.
    pub drops: u8,
    /// Power failures from which the exploration goes on. (In every state it also checks what recovery would find after
    /// one.)
    pub failures: u8,
    /// Deaths of the process alone.
    pub kills: u8,
    /// Clean closes.
    pub closes: u8,
    /// Snapshots.
    pub snapshots: u8,
    /// Lookups that keep a reference for a while.
    pub reads: u8,
    /// Whether copies get a higher version, as copies of entries do that are too old for their new segment (ADR 0024).
    pub raises: bool,
    /// The rule that is taken out, if any.
    pub flaw: Option<Flaw>,
}

impl Bounds {
    /// Bounds for writers only; callers add the rest field by field.
    pub fn new(name: &'static str, medium: Medium, ops: &[(Op, u8)]) -> Bounds {
        assert!(ops.len() <= OPS, "at most {OPS} kinds of operations");
        Bounds {
            name,
            medium,
            segments: 4,
            slots: 1,
            shards: 1,
            writers: 1,
            ops: ops.to_vec(),
            collector: Collector::Chain,
            collections: 0,
            sweeps: 0,
            checkpoints: 0,
            drops: 0,
            failures: 0,
            kills: 0,
            closes: 0,
            snapshots: 0,
            reads: 0,
            raises: false,
            flaw: None,
        }
    }

    /// These bounds with a rule taken out.
    pub fn with(&self, flaw: Flaw) -> Bounds {
        Bounds { flaw: Some(flaw), ..self.clone() }
    }

    /// Whether the rule of `flaw` is taken out.
    pub fn lacks(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }
}
