//! The steps, and how a trace prints them.

use super::bounds::Op;
use super::media::Place;
use std::fmt;

/// Defines the steps, the names of their kinds, and the kind of each step.
macro_rules! steps {
    ($($name:ident $({ $($field:ident: $type:ty),* })?,)*) => {
        /// One step of one party.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "their display says what they are")]
        pub enum Step {
            $($name $({ $($field: $type),* })?,)*
        }

        #[derive(Clone, Copy)]
        enum Kind {
            $($name,)*
        }

        /// The kinds of steps; explorations must take each of them somewhere.
        pub const KINDS: &[&str] = &[$(stringify!($name),)*];

        impl Step {
            /// The position of its kind in [`KINDS`].
            pub fn kind(&self) -> usize {
                (match self {
                    $(Step::$name { .. } => Kind::$name,)*
                }) as usize
            }
        }
    };
}

steps! {
    Begin { writer: u8, op: Op },
    Append { writer: u8, at: Place },
    Persist { writer: u8 },
    Install { writer: u8, key: u8 },
    Acknowledge { writer: u8 },
    Commit,
    Choose { victim: u8 },
    Settle,
    MarkAncestors { at: Place, count: u8 },
    Barrier,
    MoveCopy { from: Place, to: Place },
    InstallCopy { installed: bool },
    MoveForSnapshot { from: Place, to: Place },
    DropExpired { at: Place },
    CollectLive { count: u8 },
    AppendCopies { count: u8 },
    FenceCopies,
    SwingReference { at: Place, swung: bool },
    SecureCopies,
    Free { victim: u8 },
    GraceEnds,
    BeginSweep { version: u8 },
    SweepSegment { segment: u8, marked: u8 },
    EndSweep,
    FindGarbage { at: Place },
    Capture,
    DrawVersion { version: u8 },
    CopyKey { key: u8 },
    SecureNamed,
    Publish,
    SyncDirectory,
    DropCheckpoint,
    TakeSnapshot { version: u8 },
    ReleaseSnapshot,
    Read { key: u8 },
    EndRead,
    TimeComes,
    SeeExpiry { key: u8 },
    PowerFails { kept: u16, of: u8, old_checkpoint: bool, clock_back: bool },
    Die,
    Close,
    Harden,
    MarkDead { batch_members: u8, cut_off: u8 },
    SyncMarks,
    Open,
}

fn name(key: u8) -> char {
    char::from(b'a' + key)
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Put(key) => write!(f, "put {}", name(*key)),
            Op::Delete(key) => write!(f, "delete {}", name(*key)),
            Op::Expiring(key) => write!(f, "put {} with expiry", name(*key)),
            Op::Batch => write!(f, "batch put a, put b"),
            Op::Move => write!(f, "batch delete a, put b"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Step::Begin { writer, op } => write!(f, "writer {writer}: {op}: latch, read what is there"),
            Step::Append { writer, at } => write!(f, "writer {writer}: append at {at}"),
            Step::Persist { writer } => write!(f, "writer {writer}: flush and fence"),
            Step::Install { writer, key } => write!(f, "writer {writer}: install {}", name(key)),
            Step::Acknowledge { writer } => write!(f, "writer {writer}: release the latch, return"),
            Step::Commit => write!(f, "commit: all is durable and acknowledged"),
            Step::Choose { victim } => write!(f, "collector: victim s{victim}"),
            Step::Settle => write!(f, "collector: make all durable, persist the settled version, flag the victim"),
            Step::MarkAncestors { at, count: 1 } => write!(f, "collector: mark the ancestor at {at} dead"),
            Step::MarkAncestors { at, count } => write!(f, "collector: mark {count} ancestors dead, the newest at {at}"),
            Step::Barrier => write!(f, "collector: the marks are durable"),
            Step::MoveCopy { from, to } => write!(f, "collector: copy {from} to {to}"),
            Step::InstallCopy { installed: true } => write!(f, "collector: install the copy"),
            Step::InstallCopy { installed: false } => write!(f, "collector: the copy came too late"),
            Step::MoveForSnapshot { from, to } => write!(f, "collector: copy {from} to {to} for the snapshot"),
            Step::DropExpired { at } => write!(f, "collector: drop the expired entry at {at}"),
            Step::CollectLive { count } => write!(f, "collector: {count} entries of the victim are to be copied"),
            Step::AppendCopies { count } => write!(f, "collector: write {count} copies"),
            Step::FenceCopies => write!(f, "collector: fence"),
            Step::SwingReference { at, swung: true } => write!(f, "collector: what {at} was copied to takes its place"),
            Step::SwingReference { at, swung: false } => write!(f, "collector: {at} is current no more, its copy is marked dead"),
            Step::BeginSweep { version } => write!(f, "sweep: of what tombstones up to {version} keep out"),
            Step::SweepSegment { segment, marked } => write!(f, "sweep: mark {marked} entries of s{segment} dead"),
            Step::EndSweep => write!(f, "sweep: the marks are durable"),
            Step::FindGarbage { at } => write!(f, "verification: what lies at {at} is garbage"),
            Step::SecureCopies => write!(f, "collector: all copies are durable"),
            Step::Free { victim } => write!(f, "collector: free s{victim}"),
            Step::GraceEnds => write!(f, "collector: nobody holds a reference, the segment may be opened again"),
            Step::Capture => write!(f, "checkpoint: capture the covered segments"),
            Step::DrawVersion { version } => write!(f, "checkpoint: draw version {version}"),
            Step::CopyKey { key } => write!(f, "checkpoint: copy {}", name(key)),
            Step::SecureNamed => write!(f, "checkpoint: all that it names is durable"),
            Step::Publish => write!(f, "checkpoint: rename"),
            Step::SyncDirectory => write!(f, "checkpoint: sync the directory"),
            Step::DropCheckpoint => write!(f, "checkpoint: unlink"),
            Step::TakeSnapshot { version } => write!(f, "snapshot at {version}"),
            Step::ReleaseSnapshot => write!(f, "snapshot released"),
            Step::Read { key } => write!(f, "reader: look up {}", name(key)),
            Step::EndRead => write!(f, "reader: done"),
            Step::TimeComes => write!(f, "the time of expiry comes"),
            Step::SeeExpiry { key } => write!(f, "reader: {} has expired", name(key)),
            Step::PowerFails { kept, of, old_checkpoint, clock_back } => {
                write!(f, "POWER FAILS: of {of} things not durable ")?;
                let kept: Vec<String> = (0..of).filter(|bit| kept & 1 << bit != 0).map(|bit| (bit + 1).to_string()).collect();
                if kept.is_empty() {
                    write!(f, "none survives")?
                } else {
                    write!(f, "survive: {}", kept.join(", "))?
                }
                if old_checkpoint {
                    write!(f, "; the file of before is back")?;
                }
                if clock_back { write!(f, "; the clock starts earlier") } else { Ok(()) }
            }
            Step::Die => write!(f, "THE PROCESS DIES"),
            Step::Close => write!(f, "CLEAN CLOSE"),
            Step::Harden => write!(f, "recovery: make durable what is there"),
            Step::MarkDead { batch_members, cut_off } => {
                write!(f, "recovery: mark dead {batch_members} members of unfinished batches, {cut_off} entries cut off from their chain")
            }
            Step::SyncMarks => write!(f, "recovery: the marks are durable"),
            Step::Open => write!(f, "recovery: open for writes"),
        }
    }
}
