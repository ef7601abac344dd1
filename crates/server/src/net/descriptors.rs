//! Room for clients among the files that the system lets the process open.
//!
//! Each connection takes a descriptor, and so does each file that the server opens while it serves: a checkpoint, a
//! backup, the ACL file. If clients could take all descriptors, none of these could be opened, and a client that has
//! not logged in takes one, too. So the server raises the limit to what its clients and it may need, as far as the
//! system allows, or else takes fewer clients; those beyond are refused with an error.

use crate::metrics::http::MAX_CONNECTIONS;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What a server without threads and pools may have open besides clients: standard streams, listeners, a backup and
/// files of settings (as many as Redis reserves), and connections for metrics with their listener.
const RESERVE: usize = 32 + MAX_CONNECTIONS + 8;
/// Per thread: its event queue, its waker, and a connection on its way to be refused.
const OF_THREAD: usize = 4;
/// Per pool: its file, the file of a copy, and both directories.
const OF_POOL: usize = 4;

/// Descriptors that are not available to clients, for this many threads and pools.
pub const fn reserve(threads: usize, pools: usize) -> usize {
    RESERVE + OF_THREAD * threads + OF_POOL * pools
}

/// For how many of `clients` there is room beside `reserved` descriptors. Raises the limit of the process for them and
/// never lowers it. Returns at least 1, even if there is no room.
pub fn room_for(clients: usize, reserved: usize) -> usize {
    let wanted = clients.saturating_add(reserved) as u64;
    let limit = getrlimit(Resource::Nofile);
    let mut current = limit.current.unwrap_or(u64::MAX);
    if current < wanted {
        let raised = wanted.min(limit.maximum.unwrap_or(u64::MAX));
        if setrlimit(Resource::Nofile, Rlimit { current: Some(raised), ..limit }).is_ok() {
            current = raised;
        }
    }
    let room = usize::try_from(current).unwrap_or(usize::MAX).saturating_sub(reserved);
    clients.min(room).max(1)
}

/// The limit in force, as text for people.
pub fn limit() -> String {
    getrlimit(Resource::Nofile).current.map_or_else(|| "unlimited".to_owned(), |files| files.to_string())
}
