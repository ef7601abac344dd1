//! Bounds that together reach every kind of step; and for each rule, bounds in which its absence leads to a violation.

use super::Flaw;
use super::bounds::{Bounds, Collector, Medium, Op};
use Medium::{Fence, Sync};

const A: Op = Op::Put(0);
const B: Op = Op::Put(1);
const DEL: Op = Op::Delete(0);
const EXP: Op = Op::Expiring(0);

fn base(name: &'static str, medium: Medium, ops: &[(Op, u8)]) -> Bounds {
    Bounds::new(name, medium, ops)
}

fn collect(medium: Medium) -> Bounds {
    Bounds { collections: 2, failures: 1, ..base("collect, fail, collect", medium, &[(A, 2), (DEL, 1)]) }
}

/// A chain of three entries, so that burying may be interrupted between two.
fn overwritten() -> Bounds {
    Bounds { segments: 5, collections: 2, failures: 1, ..base("overwritten twice", Fence, &[(A, 3), (DEL, 1)]) }
}

fn two_slots() -> Bounds {
    let bounds = base("two slots", Fence, &[(A, 2), (B, 1), (DEL, 1)]);
    Bounds { segments: 3, slots: 2, collections: 2, failures: 1, ..bounds }
}

fn two_writers() -> Bounds {
    Bounds { writers: 2, failures: 1, collections: 1, ..base("two writers", Fence, &[(A, 2), (DEL, 1)]) }
}

fn reborn() -> Bounds {
    Bounds { collections: 1, failures: 1, ..base("deleted and put again", Sync, &[(A, 3), (DEL, 2)]) }
}

fn batches() -> Bounds {
    Bounds { collections: 1, failures: 2, ..base("a batch", Sync, &[(A, 2), (Op::Batch, 1), (DEL, 1)]) }
}

fn checkpoint(medium: Medium) -> Bounds {
    Bounds { collections: 1, checkpoints: 1, failures: 1, ..base("a checkpoint", medium, &[(A, 2), (DEL, 1)]) }
}

/// Here a full segment may be younger than one that is not full.
fn shards() -> Bounds {
    let bounds = base("two shards and a checkpoint", Fence, &[(A, 1), (B, 1), (DEL, 1)]);
    Bounds { writers: 2, shards: 2, segments: 3, slots: 2, checkpoints: 1, ..bounds }
}

fn dropped_checkpoint() -> Bounds {
    let bounds = base("a checkpoint thrown away", Fence, &[(A, 1), (DEL, 1)]);
    Bounds { collections: 2, checkpoints: 1, drops: 1, failures: 1, ..bounds }
}

fn expiry() -> Bounds {
    Bounds { collections: 1, checkpoints: 1, ..base("expiry", Fence, &[(A, 1), (EXP, 1)]) }
}

fn readers() -> Bounds {
    Bounds { collections: 2, snapshots: 1, reads: 1, ..base("a snapshot and a reader", Fence, &[(A, 2), (DEL, 1)]) }
}

fn close() -> Bounds {
    let bounds = base("a clean close", Fence, &[(A, 2), (B, 1), (DEL, 1)]);
    Bounds { closes: 1, failures: 1, collections: 1, segments: 3, slots: 2, ..bounds }
}

fn kill(collections: u8) -> Bounds {
    Bounds { kills: 1, failures: 1, collections, ..base("a kill", Sync, &[(A, 1), (B, 1), (DEL, 1)]) }
}

/// The same bounds with the batched collector and a sweep.
fn batched(bounds: Bounds) -> Bounds {
    Bounds { collector: Collector::Batched, sweeps: 1, ..bounds }
}

/// A tombstone is moved, swept and dropped.
fn swept(medium: Medium) -> Bounds {
    batched(Bounds { name: "collect, sweep, collect", collections: 2, failures: 1, ..collect(medium) })
}

/// A snapshot beside writers and batches of the collector.
fn batched_readers() -> Bounds {
    Bounds { sweeps: 0, reads: 0, ..batched(Bounds { name: "a snapshot beside batches", ..readers() }) }
}

/// Segments have several lives.
fn lives() -> Bounds {
    batched(Bounds { sweeps: 0, collections: 3, segments: 3, ..base("several lives beside batches", Fence, &[(A, 3), (B, 1)]) })
}

fn batched_checkpoint(medium: Medium) -> Bounds {
    let ops = vec![(A, 1), (DEL, 1)];
    batched(Bounds { name: "a checkpoint beside batches", ops, failures: 0, ..checkpoint(medium) })
}

fn put_again() -> Bounds {
    batched(Bounds { name: "put again beside batches", ops: vec![(A, 2), (DEL, 1)], failures: 0, ..reborn() })
}

/// The same bounds with copies of higher versions.
fn raising(bounds: Bounds, name: &'static str) -> Bounds {
    Bounds { raises: true, name, ..bounds }
}

/// A tombstone, a newer value, and a batch that deletes the value and may not complete.
fn moved() -> Bounds {
    let bounds = base("old entries and a batch that deletes", Sync, &[(A, 2), (DEL, 1), (Op::Move, 1)]);
    batched(Bounds { raises: true, sweeps: 0, segments: 4, slots: 2, collections: 1, ..bounds })
}

/// Bounds with raised versions for which every test run has time.
fn some_raising() -> Vec<Bounds> {
    vec![
        raising(collect(Fence), "old entries"),
        raising(collect(Sync), "old entries"),
        raising(Bounds { failures: 1, ..batches() }, "old entries of a batch"),
        raising(Bounds { failures: 0, ..swept(Fence) }, "old entries and a sweep beside batches"),
        moved(),
        raising(put_again(), "old entries put again beside batches"),
        raising(lives(), "old entries of several lives beside batches"),
    ]
}

fn more_raising() -> Vec<Bounds> {
    vec![
        raising(readers(), "old entries and a snapshot"),
        raising(checkpoint(Fence), "old entries and checkpoints"),
        raising(swept(Fence), "old entries and sweeps beside batches"),
        raising(swept(Sync), "old entries and sweeps beside batches"),
        raising(batched_checkpoint(Fence), "old entries and a checkpoint beside batches"),
        raising(batched_readers(), "old entries and a snapshot beside batches"),
    ]
}

fn all_batched() -> Vec<Bounds> {
    vec![
        Bounds { failures: 0, ..swept(Fence) },
        Bounds { failures: 0, ..swept(Sync) },
        batched(Bounds { name: "two writers beside batches", segments: 5, ..two_writers() }),
        put_again(),
        batched(Bounds { name: "batches of both kinds", failures: 0, ..batches() }),
        batched_checkpoint(Fence),
        batched_checkpoint(Sync),
        batched_readers(),
        lives(),
        batched(Bounds { name: "two slots beside batches", failures: 0, ..two_slots() }),
    ]
}

/// All bounds for which every test run has time.
pub fn reduced() -> Vec<Bounds> {
    vec![
        collect(Fence),
        collect(Sync),
        two_writers(),
        reborn(),
        Bounds { failures: 1, ..batches() },
        Bounds { failures: 0, ..checkpoint(Fence) },
        Bounds { failures: 0, ..checkpoint(Sync) },
        shards(),
        Bounds { collections: 1, failures: 0, ..dropped_checkpoint() },
        expiry(),
        readers(),
        close(),
        kill(0),
    ]
    .into_iter()
    .chain(all_batched())
    .chain(some_raising())
    .collect()
}

/// What a machine explores in a minute: the reduced bounds, and wider ones.
pub fn full() -> Vec<Bounds> {
    let mut all = reduced();
    all.extend(more_raising());
    let writers = base("two writers and a batch", Sync, &[(A, 1), (Op::Batch, 1), (DEL, 1)]);
    all.extend([
        swept(Fence),
        swept(Sync),
        batched(reborn()),
        batched(Bounds { failures: 1, ..batches() }),
        batched(readers()),
        batched(Bounds { name: "overwritten, and a checkpoint beside batches", failures: 0, ..checkpoint(Fence) }),
        batches(),
        dropped_checkpoint(),
        checkpoint(Fence),
        checkpoint(Sync),
        kill(1),
        Bounds { writers: 2, failures: 1, collections: 1, segments: 5, ..writers },
        overwritten(),
        Bounds { kills: 1, ..two_slots() },
        Bounds { name: "two slots and a checkpoint", checkpoints: 1, failures: 0, ..two_slots() },
        Bounds { collections: 1, checkpoints: 2, drops: 1, ..base("two checkpoints", Fence, &[(A, 2), (DEL, 1)]) },
        Bounds { failures: 1, ops: vec![(A, 1), (EXP, 1), (DEL, 1)], ..expiry() },
    ]);
    all
}

/// Bounds in which taking out the rule of `flaw` leads to a violation.
pub fn that_misses(flaw: Flaw) -> Bounds {
    let bounds = match flaw {
        Flaw::NoLatch => two_writers(),
        Flaw::CopyGetsNewVersion | Flaw::TombstoneNotBuried | Flaw::FailedCopyLeft => collect(Fence),
        Flaw::DuplicateLeft => collect(Fence),
        Flaw::RaisedUnsettled => raising(swept(Fence), "old entries and sweeps beside batches"),
        Flaw::RaisedTombstone => moved(),
        Flaw::RaisedPastSnapshot => raising(batched_readers(), "old entries and a snapshot beside batches"),
        Flaw::NewestFirst | Flaw::PassNotFinished | Flaw::WalkStopsInGap => overwritten(),
        Flaw::CopyWithoutLink => two_slots(),
        Flaw::FreedEarly | Flaw::ChainNotRepaired => collect(Sync),
        Flaw::TombstoneNotLinked => reborn(),
        Flaw::CopiesKeepTag | Flaw::SettledNotPersisted | Flaw::DeadMembersNotCounted | Flaw::UnfinishedMemberPassesForLink => batches(),
        Flaw::TombstoneBeforeCheckpoint | Flaw::TombstoneDuringCheckpoint | Flaw::GenerationsIgnored => checkpoint(Fence),
        Flaw::CoveredAfterCopy | Flaw::NoWaitBeforeCopy => checkpoint(Fence),
        Flaw::OldCopiesIgnored => checkpoint(Fence),
        Flaw::OldEntriesInstalled => shards(),
        Flaw::OldTombstonesIgnored | Flaw::ColdSegmentsStayOpen => {
            Bounds { name: "two slots and a checkpoint", checkpoints: 1, failures: 0, ..two_slots() }
        }
        Flaw::PublishedEarly => checkpoint(Sync),
        Flaw::ScannedLoses | Flaw::VictimNotCovered => dropped_checkpoint(),
        Flaw::ExpiredNotBuried | Flaw::ExpiredBeforeCheckpoint | Flaw::ClockRunsBack | Flaw::FreeSegmentsTrusted => expiry(),
        Flaw::CleanFlagKept => close(),
        Flaw::NotHardened => kill(0),
        Flaw::TombstoneNotSwept | Flaw::RetiredBeforeBarrier | Flaw::SwungBlindly | Flaw::BatchNotFenced => swept(Fence),
        Flaw::SweepDoesNotWait | Flaw::CopyInFlightSwept => swept(Fence),
        Flaw::SweptEarly => swept(Sync),
        Flaw::CoveringNotDurable => put_again(),
        Flaw::SweptBeforeCheckpoint => batched_checkpoint(Fence),
        Flaw::RetainedAtSource | Flaw::FailedCopyNotRetained => batched_readers(),
        Flaw::GarbageOutlivesSegment => lives(),
        Flaw::ShownPassesForGarbage | Flaw::VerificationForgetsSnapshots => batched_readers(),
        Flaw::VerificationTakesNew => swept(Fence),
        Flaw::NoGracePeriod | Flaw::SnapshotForgotten | Flaw::SnapshotCopyAlive => readers(),
    };
    bounds.with(flaw)
}
