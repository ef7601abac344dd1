//! x
use hither_testkit::protocol::{explore, scenarios, Flaw, Flaw::*};
#[test]
fn real() {
    for b in scenarios::all(false) {
        let t = std::time::Instant::now();
        match explore(&b) { Ok(o) => println!("{}: {} states {} images depth {} drops {} repairs {} {:?}", b.name, o.states, o.images, o.depth, o.batches_dropped, o.repairs, t.elapsed()), Err(v) => println!("{}: {v} {:?}", b.name, t.elapsed()) }
    }
}
#[test]
fn flaws() {
    let all: &[Flaw] = &[NoLatch,CopyGetsNewVersion,TombstoneNotBuried,FailedCopyLeft,DuplicateLeft,CopyWithoutLink,NewestFirst,TombstoneBeforeCheckpoint,TombstoneDuringCheckpoint,ExpiredNotBuried,ExpiredBeforeCheckpoint,ClockRunsBack,CopiesKeepTag,SettledNotPersisted,DeadMembersNotCounted,GenerationsIgnored,FreeSegmentsTrusted,CoveredAfterCopy,NoWaitBeforeCopy,PublishedEarly,CleanFlagKept,ScannedLoses,OldEntriesInstalled,OldEntriesIgnored,ChainNotRepaired,UnfinishedMemberPassesForLink,TombstoneNotLinked,MarksBeforeHardening,FreedEarly,NoGracePeriod,SnapshotForgotten,SnapshotCopyAlive];
    for &f in all {
        let mut found = false;
        for b in scenarios::all(false) {
            let t = std::time::Instant::now();
            if let Err(v) = explore(&b.with(f)) { if v.what == "too many" { continue; }
                println!("FLAW {f:?} in {}: {} states {} steps {:?}\n{v}", b.name, v.states, v.steps.len(), t.elapsed()); found = true; break; }
        }
        if !found { println!("FLAW {f:?} NOT FOUND"); }
    }
}
