//! Media, flush and fence, pools and their segment tables.
//!
//! A [`Pool`] is the storage of one NUMA node: one file (or device, or anonymous memory) with a superblock, a catalogue
//! area, a segment table and the segments. This crate owns that format; the content of segments belongs to
//! `hither-log`.
//!
//! The layers inside, each of which uses only those named before it: `arch` (instructions), `medium` (what the storage
//! promises), `mapping` (address space), `record` / `two_slot` (bytes and the commit protocol, through the pool's
//! `Access`), `superblock` / `table` (records), `pool`. [`shadow`] is the recording medium of the crash tests; the
//! production code runs on it unchanged.
//!
//! Thread safety: a `Pool` is `Send + Sync`. Crash: see the modules; the rules are those of `docs/crash-model.md`.

mod arch;
mod error;
mod failpoint;
#[doc(hidden)]
pub mod format_tables;
mod layout;
mod lock;
mod mapping;
mod medium;
mod options;
mod pool;
mod random;
mod record;
mod salvage;
pub mod shadow;
mod sigbus;
mod sigxfsz;
mod superblock;
mod table;
mod tracer;
mod two_slot;

pub use arch::FlushKind;
pub use error::{Error, Result};
pub use failpoint::{FailAt, Failpoints};
pub use layout::{CATALOGUE_MAX_BYTES, MAX_MEMBERS, default_segment_bytes};
pub use medium::{MediumChoice, MediumInfo, MediumKind, PersistenceDomain};
pub use options::{CreateOptions, OpenOptions, new_uuid};
pub use pool::{Pool, Unreadable};
pub use random::Randomness;
pub use salvage::Salvaged;
pub use sigbus::install_sigbus_guard;
pub use sigxfsz::ignore_file_size_signal;
pub use superblock::{FORMAT_VERSION, SuperblockInfo};
pub use table::{Descriptor, SegmentState};
pub use tracer::{Emulate, StoreKind, SyncPhase, Tracer};

/// Bytes of a cache line, the unit of a flush.
pub const LINE_BYTES: usize = 64;
