//! SLOWLOG: commands that took long.

use crate::shared::{Client, now_ms};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::Duration;

/// Commands that took long.
#[derive(Default)]
pub struct SlowLog {
    state: Mutex<(u64, VecDeque<SlowCommand>)>,
}

/// One command in the slow log.
#[derive(Clone, Debug)]
pub struct SlowCommand {
    /// Its id.
    pub id: u64,
    /// Seconds since 1970.
    pub at_s: u64,
    /// Its run time, in microseconds.
    pub took_us: u64,
    /// Its arguments, shortened.
    pub arguments: Vec<Vec<u8>>,
    /// The client's address.
    pub address: String,
    /// The client's name, shortened.
    pub name: Vec<u8>,
}

/// Number of arguments that the slow log keeps, and bytes of each.
const SLOW_ARGUMENTS: usize = 32;
const SLOW_BYTES: usize = 128;

impl SlowLog {
    /// Adds a command, and drops the oldest beyond `keep`.
    #[cold]
    pub fn add(&self, arguments: hither_resp::Args<'_>, secret: bool, took: Duration, client: &Client, keep: usize) {
        let shown = if secret { 1 } else { arguments.len().min(SLOW_ARGUMENTS) };
        let mut kept: Vec<Vec<u8>> = arguments.iter().take(shown).map(shorten).collect();
        if secret {
            kept.push(b"(redacted)".to_vec());
        } else if arguments.len() > SLOW_ARGUMENTS {
            kept.pop();
            kept.push(format!("... ({} more arguments)", arguments.len() - SLOW_ARGUMENTS + 1).into_bytes());
        }
        let mut state = self.state.lock();
        let id = state.0;
        state.0 += 1;
        state.1.push_front(SlowCommand {
            id,
            at_s: now_ms() / 1000,
            took_us: took.as_micros() as u64,
            arguments: kept,
            address: client.address.clone(),
            name: shorten(client.name.lock().as_bytes()),
        });
        state.1.truncate(keep);
    }

    /// Returns the newest `count` entries.
    pub fn newest(&self, count: usize) -> Vec<SlowCommand> {
        self.state.lock().1.iter().take(count).cloned().collect()
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.state.lock().1.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes all entries.
    pub fn clear(&self) {
        self.state.lock().1.clear();
    }
}

fn shorten(argument: &[u8]) -> Vec<u8> {
    if argument.len() <= SLOW_BYTES {
        return argument.to_vec();
    }
    [&argument[..SLOW_BYTES], format!("... ({} more bytes)", argument.len() - SLOW_BYTES).as_bytes()].concat()
}
