//! Room for clients among the files that the system lets the process have open.
//!
//! Each connection is one of them, and so is what the server opens while it serves: a checkpoint, a backup, the file of the users. Where clients can take them all nothing of that can be
//! opened any more, and who has not logged in is a client, too. So a server has the limit raised to what its clients and it may need, as far as the system lets it, or takes fewer
//! clients; those beyond are told so.

use crate::metrics::http::MAX_CONNECTIONS;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What a server without threads and pools may have open besides: standard streams, listeners, a backup and files of settings, as many as Redis keeps; and those who ask for metrics, with
/// their listener.
const RESERVE: usize = 32 + MAX_CONNECTIONS + 8;
/// For each thread: its event queue, its waker, and a connection on its way to be refused.
const OF_THREAD: usize = 4;
/// For each pool: its file, that of a copy, and both directories.
const OF_POOL: usize = 4;

/// Descriptors that are not clients', of a server with so many threads and pools.
pub const fn reserve(threads: usize, pools: usize) -> usize {
    RESERVE + OF_THREAD * threads + OF_POOL * pools
}

/// For how many of `clients` there is room beside `reserved` descriptors. Raises the limit of the process for them, never lowers it; 1 at least, and then there may be no room.
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

/// The limit in force, for people.
pub fn limit() -> String {
    getrlimit(Resource::Nofile).current.map_or_else(|| "unlimited".to_owned(), |files| files.to_string())
}
