//! Options for creating and opening pools.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use hither_topology::Meter;

use crate::arch::FlushKind;
use crate::failpoint::Failpoints;
use crate::layout::default_segment_bytes;
use crate::medium::MediumChoice;
use crate::random::Randomness;
use crate::tracer::{Emulate, Tracer};

/// A random version-4 UUID.
///
/// # Panics
/// If the operating system provides no random numbers: then no store may be created, because UUIDs must be unique.
pub fn new_uuid() -> [u8; 16] {
    Randomness::System.uuid()
}

/// How to create a pool.
#[derive(Clone)]
pub struct CreateOptions {
    /// Identity of the store, the same in all its pools.
    pub store_uuid: [u8; 16],
    /// Identity of this pool: `members[node]`.
    pub pool_uuid: [u8; 16],
    /// The node to which this storage belongs.
    pub node: u32,
    /// All pools of the store, in node order.
    pub members: Vec<[u8; 16]>,
    /// Bytes of a segment: a power of two, 4 KiB to 1 GiB.
    pub segment_bytes: u64,
    /// Bytes of segments to preallocate (rounded up to whole segments); the metadata takes space besides.
    pub capacity_bytes: u64,
    /// Bytes of segments that the pool may grow to; never less than the capacity. Costs address space and 128 bytes per
    /// segment.
    pub max_bytes: u64,
    /// Time of creation, milliseconds since 1970.
    pub created_ms: u64,
    /// The creation of the store is starting over: an existing pool may be overwritten, because it is known to belong
    /// to a store that was never born.
    pub overwrite_unborn: bool,
    /// How to treat the storage.
    pub medium: MediumChoice,
    /// Forces a flush instruction (valgrind does not know the optimised ones).
    pub flush: Option<FlushKind>,
    /// Asks for huge pages where the medium supports them.
    pub hugepages: bool,
    /// Accepts direct access whose data does not survive a power loss.
    pub allow_not_durable: bool,
    /// The operating system's node on which to place volatile memory.
    pub bind_os_node: Option<u32>,
    /// Counts accesses.
    pub meter: Option<Arc<Meter>>,
    /// Observes every store, flush, fence and sync (in-memory pools only).
    pub tracer: Option<Arc<dyn Tracer>>,
    /// The rules that a shadow pool follows.
    pub emulate: Option<Emulate>,
    /// Failures on demand.
    pub failpoints: Option<Arc<Failpoints>>,
}

impl CreateOptions {
    /// The only pool of a new store.
    pub fn new(capacity_bytes: u64) -> CreateOptions {
        let uuid = new_uuid();
        CreateOptions::member(new_uuid(), vec![uuid], 0, capacity_bytes)
    }

    /// The pool of `node` in a store of several; `members` are the UUIDs of all its pools in node order.
    pub fn member(store_uuid: [u8; 16], members: Vec<[u8; 16]>, node: u32, capacity_bytes: u64) -> CreateOptions {
        let created_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
        CreateOptions {
            store_uuid,
            pool_uuid: members.get(node as usize).copied().unwrap_or_default(),
            node,
            members,
            segment_bytes: default_segment_bytes(capacity_bytes),
            capacity_bytes,
            max_bytes: capacity_bytes.saturating_mul(16),
            created_ms,
            overwrite_unborn: false,
            medium: MediumChoice::Auto,
            flush: None,
            hugepages: true,
            allow_not_durable: false,
            bind_os_node: None,
            meter: None,
            tracer: None,
            emulate: None,
            failpoints: None,
        }
    }

    pub(crate) fn runtime(&self) -> Runtime {
        Runtime {
            medium: self.medium,
            flush: self.flush,
            hugepages: self.hugepages,
            allow_not_durable: self.allow_not_durable,
            bind_os_node: self.bind_os_node,
            salvage: false,
            meter: self.meter.clone(),
            tracer: self.tracer.clone(),
            emulate: self.emulate,
            failpoints: self.failpoints.clone(),
        }
    }
}

/// How to open a pool. Expectations that are `None` are not checked.
#[derive(Clone, Default)]
pub struct OpenOptions {
    /// The store to which the pool must belong.
    pub store_uuid: Option<[u8; 16]>,
    /// The UUID that the pool must have.
    pub pool_uuid: Option<[u8; 16]>,
    /// The node to which the pool must belong.
    pub node: Option<u32>,
    /// The members that its store must have.
    pub members: Option<Vec<[u8; 16]>>,
    /// Opens a damaged pool with whatever can be recovered, and notes what was passed over
    /// ([`Pool::salvage_notes`](crate::Pool::salvage_notes)). Works only where nothing reaches the file: for private
    /// copies ([`MediumChoice::PrivateCopy`]) and images. Has no effect otherwise.
    pub salvage: bool,
    /// How to treat the storage.
    pub medium: MediumChoice,
    /// Forces a flush instruction.
    pub flush: Option<FlushKind>,
    /// Asks for huge pages where the medium supports them.
    pub hugepages: bool,
    /// Accepts direct access whose data does not survive a power loss.
    pub allow_not_durable: bool,
    /// The operating system's node on which to place volatile memory.
    pub bind_os_node: Option<u32>,
    /// Counts accesses.
    pub meter: Option<Arc<Meter>>,
    /// Observes every store, flush, fence and sync (in-memory pools only).
    pub tracer: Option<Arc<dyn Tracer>>,
    /// The rules that a shadow pool follows.
    pub emulate: Option<Emulate>,
    /// Failures on demand.
    pub failpoints: Option<Arc<Failpoints>>,
}

impl OpenOptions {
    /// No expectations, the medium as detected, huge pages where possible.
    pub fn new() -> OpenOptions {
        OpenOptions { hugepages: true, ..OpenOptions::default() }
    }

    pub(crate) fn runtime(&self) -> Runtime {
        Runtime {
            medium: self.medium,
            flush: self.flush,
            hugepages: self.hugepages,
            allow_not_durable: self.allow_not_durable,
            bind_os_node: self.bind_os_node,
            salvage: self.salvage,
            meter: self.meter.clone(),
            tracer: self.tracer.clone(),
            emulate: self.emulate,
            failpoints: self.failpoints.clone(),
        }
    }
}

/// The options that creation and opening share.
#[derive(Clone)]
pub(crate) struct Runtime {
    pub(crate) medium: MediumChoice,
    pub(crate) flush: Option<FlushKind>,
    pub(crate) hugepages: bool,
    pub(crate) allow_not_durable: bool,
    pub(crate) bind_os_node: Option<u32>,
    pub(crate) salvage: bool,
    pub(crate) meter: Option<Arc<Meter>>,
    pub(crate) tracer: Option<Arc<dyn Tracer>>,
    pub(crate) emulate: Option<Emulate>,
    pub(crate) failpoints: Option<Arc<Failpoints>>,
}

impl Runtime {
    /// Whether changes of the pool never reach its file.
    pub(crate) fn is_private(&self) -> bool {
        self.medium == MediumChoice::PrivateCopy
    }

    /// Whether a damaged file is opened with whatever can be recovered.
    pub(crate) fn salvages_file(&self) -> bool {
        self.salvage && self.is_private()
    }
}

impl fmt::Debug for CreateOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CreateOptions")
            .field("node", &self.node)
            .field("members", &self.members.len())
            .field("segment_bytes", &self.segment_bytes)
            .field("capacity_bytes", &self.capacity_bytes)
            .field("max_bytes", &self.max_bytes)
            .field("medium", &self.medium)
            .field("emulate", &self.emulate)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenOptions")
            .field("node", &self.node)
            .field("medium", &self.medium)
            .field("emulate", &self.emulate)
            .finish_non_exhaustive()
    }
}
