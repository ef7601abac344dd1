//! Refusals, for ACL LOG: the newest entries, with bounded texts; equal refusals within a minute are one entry.

use crate::shared::{Client, now_ms};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes kept of a name or key.
const KEPT_BYTES: usize = 128;
/// Equal refusals within this time are one entry.
const SAME_MS: u64 = 60_000;

/// Why something was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No right to the command.
    Command,
    /// No right to a key.
    Key,
    /// A wrong name or password.
    Auth,
}

impl Reason {
    /// The word for it in ACL LOG.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Command => "command",
            Reason::Key => "key",
            Reason::Auth => "auth",
        }
    }
}

/// One entry of ACL LOG.
#[derive(Clone)]
pub struct Refusal {
    /// How many refusals it stands for.
    pub count: u64,
    /// Why they were refused.
    pub reason: Reason,
    /// Whether it was within EXEC.
    pub in_exec: bool,
    /// The command or key.
    pub object: Vec<u8>,
    /// The user's name.
    pub user: Vec<u8>,
    /// Time of the last refusal, in milliseconds since 1970.
    pub at_ms: u64,
    /// The client of the last refusal, as CLIENT LIST describes it.
    pub client: String,
}

/// The newest refusals, and counters by reason.
#[derive(Default)]
pub struct AclLog {
    entries: Mutex<VecDeque<Refusal>>,
    counts: [AtomicU64; 3],
}

impl AclLog {
    /// Adds a refusal, and drops the oldest beyond `keep`. O(entries).
    #[cold]
    pub fn add(&self, reason: Reason, in_exec: bool, object: &[u8], user: &[u8], client: &Client, keep: usize) {
        self.counts[reason as usize].fetch_add(1, Ordering::Relaxed);
        let cut = |bytes: &[u8]| bytes[..bytes.len().min(KEPT_BYTES)].to_vec();
        let (object, user, at_ms) = (cut(object), cut(user), now_ms());
        let mut entries = self.entries.lock();
        let same = |known: &Refusal| {
            known.reason == reason
                && known.in_exec == in_exec
                && known.object == object
                && known.user == user
                && at_ms.saturating_sub(known.at_ms) <= SAME_MS
        };
        let known = entries.iter().position(same).and_then(|place| entries.remove(place));
        let count = known.map_or(0, |known| known.count) + 1;
        entries.push_front(Refusal { count, reason, in_exec, object, user, at_ms, client: client.describe() });
        entries.truncate(keep);
    }

    /// Returns the newest `count` entries.
    pub fn newest(&self, count: usize) -> Vec<Refusal> {
        self.entries.lock().iter().take(count).cloned().collect()
    }

    /// Removes all entries.
    pub fn clear(&self) {
        self.entries.lock().clear();
    }

    /// How many refusals had this reason since the start.
    pub fn count(&self, reason: Reason) -> u64 {
        self.counts[reason as usize].load(Ordering::Relaxed)
    }
}
