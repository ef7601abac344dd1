//! Nlog (NStore, section III-C to III-E): a log of key–value entries in the pools of all NUMA nodes.
//!
//! * [`entry`] is the media format of one entry, [`crc`] its checksum, [`address`] the reference word.
//! * [`Log`] owns the pools and hands out [`Writer`]s. A thread appends to segments of its own node only (unless its
//!   pool is full), to the segment of the key's shard, inside a chunk that no other thread writes. So entries of two
//!   threads never share a line.
//! * [`replay`] reads segments back after a restart.
//! * [`version`] orders every write of the store.
//!
//! # Thread safety
//!
//! All shared types are `Send + Sync`; a [`Writer`] stays on its thread. Threads that own a writer slot append without
//! a lock; all others take the lock of the slot that they share (the `writer` module). A thread that needs a new chunk
//! takes the lock of its stream. Reads take no lock.
//!
//! # Invariants
//!
//! * L1. A segment's bytes are zero when its descriptor becomes active; afterwards each byte is written at most once,
//!   except the DEAD bit of an entry (`docs/adr/0002`).
//! * L2. An entry is valid if and only if its checksum, seeded with the segment's generation and the entry's offset, is
//!   right.
//! * L3. A segment is freed only when every live entry in it was moved, no older version of a deleted key could come
//!   back, and a settled version that covers its batches is durable. It is used again only when every reader that could
//!   hold a reference into it has left.
//!
//! # Crash behaviour
//!
//! Open segments may contain holes and torn entries: one per thread, or, on files and with [`Flush::Later`], any entry
//! written since the last sync. Replay skips both (`docs/crash-model.md`). The descriptor of a sealed segment records
//! the number and bytes of its entries, so that a loss there is reported as damage.

pub mod address;
mod appended;
mod bound;
mod bury;
mod chain;
mod checkpoint;
mod claim;
pub mod crc;
mod dead;
mod dirty;
mod dram;
pub mod entry;
mod error;
mod garbage;
mod hot;
mod log;
mod made;
mod node;
mod opening;
#[cfg(test)]
mod order_tests;
pub mod pace;
pub mod pass;
mod read;
mod ready;
mod reclaim;
mod relocate;
pub mod replay;
mod segment;
mod slot;
mod spill;
mod streams;
mod sweep;
mod verify;
pub mod version;
mod victim;
mod writer;
mod zeroed;

pub use address::Address;
pub use appended::AppendedBytes;
pub use checkpoint::{Covered, Placement, SegmentRow};
pub use claim::Claim;
pub use entry::{EntryView, LivePair, Op, PlainPair};
pub use error::{Error, Result};
pub use log::{Log, LogOptions, Room, SegmentPin};
pub use made::{EntryRoom, MOST_MEMBERS, MadeBare, MadePair, MembersRoom, Past};
pub use node::PoolUsage;
pub use opening::{COLD_SHARD, ROOM_BELOW};
pub use pass::{Candidate, Pass, Tombstones};
pub use read::is_pair;
pub use reclaim::{MakeDurable, TakeBack, Wait};
pub use relocate::{MoveRoom, Relocator, SourceSegment};
pub use segment::SegmentState;
pub use streams::share_segments;
pub use sweep::{SegmentLife, Sweeping, TombstoneFilter};
pub use verify::Met;
pub use version::{VERSION_BITS, VersionClock};
pub use victim::{GARBAGE_STRETCH, MovedEntries, ReadVictim, VictimRead};
pub use writer::{Append, Flush, Writer, WriterGuard};
