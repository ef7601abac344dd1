//! Rules of the protocol that can be taken out, to see that the explorer then finds a violation.

/// One rule that is taken out; each variant describes what the parties then do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// A writer holds no latch between reading the old reference and installing the new one.
    NoLatch,
    /// A copy gets a new version, and no latch keeps writers out meanwhile.
    CopyGetsNewVersion,
    /// A tombstone goes without its ancestors being marked dead.
    TombstoneNotBuried,
    /// The collector moves without the latch, and leaves a copy that came too late alive.
    FailedCopyLeft,
    /// Of two entries of one version, recovery takes the source and does not mark the other dead.
    DuplicateLeft,
    /// A copy has no link; recovery marks dead what is not current in the victims of interrupted passes.
    CopyWithoutLink,
    /// Ancestors are marked newest first, and no flag records that a pass was interrupted.
    NewestFirst,
    /// Recovery does not finish interrupted passes.
    PassNotFinished,
    /// When recovery finishes an interrupted pass, its walk stops at a dead entry.
    WalkStopsInGap,
    /// A tombstone goes although the published checkpoint is older.
    TombstoneBeforeCheckpoint,
    /// A tombstone goes although a checkpoint that is being written is older.
    TombstoneDuringCheckpoint,
    /// An expired entry is dropped without its ancestors being marked dead.
    ExpiredNotBuried,
    /// An expired entry is dropped although a checkpoint is older.
    ExpiredBeforeCheckpoint,
    /// Only the machine's clock decides what has expired.
    ClockRunsBack,
    /// A copy gets the newest version given out, although the entry with that version may not be installed yet.
    RaisedUnsettled,
    /// A copy gets a version that a snapshot does not show.
    RaisedPastSnapshot,
    /// The copy of a tombstone gets a higher version, although the key may be absent only because of a delete in a
    /// batch that a crash undoes.
    RaisedTombstone,
    /// Copies keep their batch tag, and the settled version is raised only when a segment is freed.
    CopiesKeepTag,
    /// No settled version is persisted.
    SettledNotPersisted,
    /// Recovery does not count dead members when it checks whether a batch is whole.
    DeadMembersNotCounted,
    /// Generations are ignored when a checkpoint is loaded.
    GenerationsIgnored,
    /// Loading a checkpoint takes a free segment of the right generation for one in use.
    FreeSegmentsTrusted,
    /// The covered segments are captured after the index is copied.
    CoveredAfterCopy,
    /// The checkpointer does not wait for writers under way between capture and copy.
    NoWaitBeforeCopy,
    /// A checkpoint is published before everything that it names is durable.
    PublishedEarly,
    /// The clean flag stays set after an opening.
    CleanFlagKept,
    /// On equal versions the entry named by the checkpoint wins over the scanned copy.
    ScannedLoses,
    /// Scanned entries up to the checkpoint's version are installed like any others.
    OldEntriesInstalled,
    /// Scanned copies up to the checkpoint's version are ignored.
    OldCopiesIgnored,
    /// Scanned tombstones up to the checkpoint's version are ignored.
    OldTombstonesIgnored,
    /// The victim of a pass in progress is not covered.
    VictimNotCovered,
    /// The collector continues to fill segments that were open at the capture.
    ColdSegmentsStayOpen,
    /// Recovery does not repair a chain that lost a link.
    ChainNotRepaired,
    /// Recovery takes a link to a member of an unfinished batch for intact.
    UnfinishedMemberPassesForLink,
    /// A put over a tombstone that is not durable does not link to it.
    TombstoneNotLinked,
    /// Recovery answers from what it found without making that durable.
    NotHardened,
    /// The victim is freed before its copies are durable.
    FreedEarly,
    /// The victim is freed while a reader holds a reference into it.
    NoGracePeriod,
    /// Entries that only a snapshot shows are not moved.
    SnapshotForgotten,
    /// Entries that only a snapshot shows are moved like any others, not born dead.
    SnapshotCopyAlive,
    /// Batched: a tombstone goes although no sweep has marked what it keeps out.
    TombstoneNotSwept,
    /// Batched: a sweep begins while a batch is under way, whose copies it may miss; and copies that came too late are
    /// left alive.
    SweepDoesNotWait,
    /// Batched: a sweep marks entries whose superseding entry is not durable.
    SweptEarly,
    /// Batched: tombstones go before the marks of the sweep are durable.
    RetiredBeforeBarrier,
    /// Batched: a reference is swung even if it no longer names the source.
    SwungBlindly,
    /// Batched: the copies are not made durable before their sources are freed.
    BatchNotFenced,
    /// Batched: a writer saves for a snapshot the place that it read, although the entry was moved since.
    RetainedAtSource,
    /// Batched: a copy that came too late is not handed to the snapshot that shows its source.
    FailedCopyNotRetained,
    /// Batched: a swept tombstone goes although a checkpoint is older.
    SweptBeforeCheckpoint,
    /// Batched: a sweep marks the copy of an entry that is still current, before the index names the copy.
    CopyInFlightSwept,
    /// Batched: a tombstone goes because of a newer entry of its key, before that entry is durable.
    CoveringNotDurable,
    /// Batched: garbage of one life of a segment is taken for garbage in the next life.
    GarbageOutlivesSegment,
    /// Batched: an entry that a snapshot shows is taken for garbage once it was overwritten.
    ShownPassesForGarbage,
    /// Batched: the verification takes an entry that a snapshot shows for garbage.
    VerificationForgetsSnapshots,
    /// Batched: the verification takes an entry for garbage that is on its way into the index.
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
