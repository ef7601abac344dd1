//! Rules of the protocol that can be taken out, to see that the explorer misses them.

/// One rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// Writers hold no latch between reading the old reference and installing the new one.
    NoLatch,
    /// A copy gets a new version, and no latch keeps writers out meanwhile.
    CopyGetsNewVersion,
    /// A tombstone goes without its ancestors being marked dead.
    TombstoneNotBuried,
    /// The collector moves without the latch, and a copy that came too late is left as it is.
    FailedCopyLeft,
    /// Of two entries of one version recovery takes the source, and does not mark the other dead.
    DuplicateLeft,
    /// A copy has no link; recovery marks dead what is not current in the victims of interrupted passes.
    CopyWithoutLink,
    /// Ancestors are marked newest first, and nothing says that a pass was interrupted.
    NewestFirst,
    /// Interrupted passes are not finished by recovery.
    PassNotFinished,
    /// Finishing an interrupted pass, recovery stops at a dead entry.
    WalkStopsInGap,
    /// A tombstone goes while the published checkpoint is older.
    TombstoneBeforeCheckpoint,
    /// The same for a checkpoint that is being written.
    TombstoneDuringCheckpoint,
    /// An expired entry is dropped without its ancestors being marked dead.
    ExpiredNotBuried,
    /// An expired entry is dropped while a checkpoint is older.
    ExpiredBeforeCheckpoint,
    /// Only the machine's clock says what has expired.
    ClockRunsBack,
    /// A copy gets the newest version that was given out, though what has it may not be installed yet.
    RaisedUnsettled,
    /// A copy gets a version that a snapshot does not show.
    RaisedPastSnapshot,
    /// The copy of a tombstone gets a higher version, though what its key has nothing for may be the delete of a batch that comes to nothing.
    RaisedTombstone,
    /// Copies keep their batch tag, and batches are settled only before a segment is freed.
    CopiesKeepTag,
    /// No settled version is persisted.
    SettledNotPersisted,
    /// Dead members do not count when a batch is counted.
    DeadMembersNotCounted,
    /// Generations are not checked when a checkpoint is loaded.
    GenerationsIgnored,
    /// A free segment of the right generation passes for one in use.
    FreeSegmentsTrusted,
    /// The covered segments are captured after the copy.
    CoveredAfterCopy,
    /// Nobody waits for writers under way between capture and copy.
    NoWaitBeforeCopy,
    /// What the copy names is not made durable before it is published.
    PublishedEarly,
    /// The clean flag stays set.
    CleanFlagKept,
    /// On equal versions the checkpoint wins over the scanned copy.
    ScannedLoses,
    /// Scanned entries up to the checkpoint's version are installed like any other.
    OldEntriesInstalled,
    /// Scanned copies up to the checkpoint's version do not take part.
    OldCopiesIgnored,
    /// Scanned tombstones up to the checkpoint's version do not take part.
    OldTombstonesIgnored,
    /// The victim of a pass in progress is not covered.
    VictimNotCovered,
    /// The collector goes on filling segments that were open at the capture.
    ColdSegmentsStayOpen,
    /// A chain that lost a link is not repaired.
    ChainNotRepaired,
    /// A member of an unfinished batch does not pass for a lost link.
    UnfinishedMemberPassesForLink,
    /// A put over a tombstone that is not durable does not link to it.
    TombstoneNotLinked,
    /// Recovery answers from what it found without making it durable.
    NotHardened,
    /// The victim is freed before its copies are durable.
    FreedEarly,
    /// The victim is freed while a reader holds a reference into it.
    NoGracePeriod,
    /// What only a snapshot shows is not moved.
    SnapshotForgotten,
    /// What only a snapshot shows is moved like any other entry, not born dead.
    SnapshotCopyAlive,
    /// Batched: a tombstone goes though no sweep has marked what it keeps out.
    TombstoneNotSwept,
    /// Batched: a sweep begins while a batch is under way, whose copies it may miss, and copies that came too late are left as they are.
    SweepDoesNotWait,
    /// Batched: a sweep marks what something superseded that is not durable.
    SweptEarly,
    /// Batched: tombstones go before the marks of the sweep are durable.
    RetiredBeforeBarrier,
    /// Batched: references are swung whatever they are by then.
    SwungBlindly,
    /// Batched: nothing makes the copies durable before their sources are freed.
    BatchNotFenced,
    /// Batched: a writer saves for a snapshot the place that it saw, though the entry was moved meanwhile.
    RetainedAtSource,
    /// Batched: a copy that came too late is not handed to the snapshot that shows its source.
    FailedCopyNotRetained,
    /// Batched: a tombstone that a sweep has made free goes though a checkpoint is older.
    SweptBeforeCheckpoint,
    /// Batched: a sweep marks the copy of an entry that is still current.
    CopyInFlightSwept,
    /// Batched: a tombstone under a newer entry goes before that entry is durable.
    CoveringNotDurable,
    /// Batched: what was garbage in one life of a segment passes for it in the next.
    GarbageOutlivesSegment,
    /// Batched: what a snapshot shows passes for garbage once it was overwritten.
    ShownPassesForGarbage,
    /// Batched: the verification takes for garbage what a snapshot shows.
    VerificationForgetsSnapshots,
    /// Batched: the verification takes for garbage what is on its way into the index.
    VerificationTakesNew,
}

impl Flaw {
    /// All of them.
    pub const ALL: [Flaw; 55] = [
        Flaw::NoLatch,
        Flaw::CopyGetsNewVersion,
        Flaw::TombstoneNotBuried,
        Flaw::FailedCopyLeft,
        Flaw::DuplicateLeft,
        Flaw::CopyWithoutLink,
        Flaw::NewestFirst,
        Flaw::PassNotFinished,
        Flaw::WalkStopsInGap,
        Flaw::TombstoneBeforeCheckpoint,
        Flaw::TombstoneDuringCheckpoint,
        Flaw::ExpiredNotBuried,
        Flaw::ExpiredBeforeCheckpoint,
        Flaw::ClockRunsBack,
        Flaw::RaisedUnsettled,
        Flaw::RaisedPastSnapshot,
        Flaw::RaisedTombstone,
        Flaw::CopiesKeepTag,
        Flaw::SettledNotPersisted,
        Flaw::DeadMembersNotCounted,
        Flaw::GenerationsIgnored,
        Flaw::FreeSegmentsTrusted,
        Flaw::CoveredAfterCopy,
        Flaw::NoWaitBeforeCopy,
        Flaw::PublishedEarly,
        Flaw::CleanFlagKept,
        Flaw::ScannedLoses,
        Flaw::OldEntriesInstalled,
        Flaw::OldCopiesIgnored,
        Flaw::OldTombstonesIgnored,
        Flaw::VictimNotCovered,
        Flaw::ColdSegmentsStayOpen,
        Flaw::ChainNotRepaired,
        Flaw::UnfinishedMemberPassesForLink,
        Flaw::TombstoneNotLinked,
        Flaw::NotHardened,
        Flaw::FreedEarly,
        Flaw::NoGracePeriod,
        Flaw::SnapshotForgotten,
        Flaw::SnapshotCopyAlive,
        Flaw::TombstoneNotSwept,
        Flaw::SweepDoesNotWait,
        Flaw::SweptEarly,
        Flaw::RetiredBeforeBarrier,
        Flaw::SwungBlindly,
        Flaw::BatchNotFenced,
        Flaw::RetainedAtSource,
        Flaw::FailedCopyNotRetained,
        Flaw::SweptBeforeCheckpoint,
        Flaw::CopyInFlightSwept,
        Flaw::CoveringNotDurable,
        Flaw::GarbageOutlivesSegment,
        Flaw::ShownPassesForGarbage,
        Flaw::VerificationForgetsSnapshots,
        Flaw::VerificationTakesNew,
    ];
}
