//! How far an exploration goes.

use super::Flaw;

/// Keys of the model.
pub const KEYS: usize = 2;
/// Most segments.
pub const SEGMENTS: usize = 5;
/// Most slots of a segment.
pub const SLOTS: usize = 2;
/// Most writers.
pub const WRITERS: usize = 2;
/// Most kinds of operations in one exploration.
pub const OPS: usize = 5;

/// How a write becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Persistent memory: flushed and fenced before it is installed.
    Fence,
    /// Files: installed at once, durable and acknowledged with the next commit.
    Sync,
}

/// How a victim is emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collector {
    /// One entry at a time under its key's latch, after its ancestors were buried (ADR 0011).
    Chain,
    /// In batches, without latches; tombstones stay until a sweep has marked what they keep out (ADR 0014).
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
    /// Writes both keys at once.
    Batch,
    /// Deletes the first key and writes the other, at once.
    Move,
}

impl Op {
    /// The keys that it writes.
    pub fn keys(self) -> &'static [u8] {
        match self {
            Op::Put(0) | Op::Delete(0) | Op::Expiring(0) => &[0],
            Op::Put(_) | Op::Delete(_) | Op::Expiring(_) => &[1],
            Op::Batch | Op::Move => &[0, 1],
        }
    }
}

/// What there is and how often each thing may happen.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// For reports.
    pub name: &'static str,
    /// How writes become durable.
    pub medium: Medium,
    /// Segments in the pool.
    pub segments: usize,
    /// Entries that a segment holds.
    pub slots: usize,
    /// 1, or 2: each writer has segments of its own.
    pub shards: usize,
    /// Threads that write.
    pub writers: usize,
    /// Operations, each with how often it may be done; in any order, by any writer.
    pub ops: Vec<(Op, u8)>,
    /// Who empties victims.
    pub collector: Collector,
    /// Victims.
    pub collections: u8,
    /// Sweeps of what tombstones keep out ([`Collector::Batched`]).
    pub sweeps: u8,
    /// Checkpoints.
    pub checkpoints: u8,
    /// Checkpoints thrown away.
    pub drops: u8,
    /// Failures of the power from which the exploration goes on. (In every state it is also tried what a recovery would find.)
    pub failures: u8,
    /// Deaths of the process only.
    pub kills: u8,
    /// Clean closes.
    pub closes: u8,
    /// Snapshots.
    pub snapshots: u8,
    /// Lookups that keep a reference for a while.
    pub reads: u8,
    /// Whether copies get a higher version, as those of entries that are too old for their new segment do (ADR 0024).
    pub raises: bool,
    /// The rule that is taken out.
    pub flaw: Option<Flaw>,
}

impl Bounds {
    /// Nothing but writers; the rest is added field by field.
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

    /// The same with a rule taken out.
    pub fn with(&self, flaw: Flaw) -> Bounds {
        Bounds { flaw: Some(flaw), ..self.clone() }
    }

    /// Whether this rule is missing.
    pub fn lacks(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }
}
