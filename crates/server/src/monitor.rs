//! MONITOR: clients that are shown the commands of all others.
//!
//! While there is no monitor, a command pays for one load. A command is shown when it begins, with its arguments, so
//! before it is durable and even if it fails. Commands of a transaction are shown when EXEC has applied them.
//! Administrators' commands are not shown; of commands with secrets only the name is.
//!
//! The thread that runs a command leaves its line with each monitor and wakes the monitor's thread. It never waits for
//! a client that reads slowly: a monitor for which more than the output limit has gathered is closed.
//!
//! Thread safety: any thread.

use crate::commands::table::{Command, flag};
use crate::events::Level;
use crate::shared::{Client, Shared};
use hither_resp::Args;
use parking_lot::Mutex;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// All monitors.
#[derive(Default)]
pub struct Monitors {
    count: AtomicUsize,
    all: Mutex<Vec<Arc<Monitor>>>,
}

/// One monitor.
struct Monitor {
    client: Arc<Client>,
    /// Lines that have not been passed on to it.
    lines: Mutex<Vec<u8>>,
}

/// A client's state of being a monitor; it ends when this is dropped.
pub struct Watching {
    monitor: Arc<Monitor>,
    shared: Arc<Shared>,
}

impl Monitors {
    /// Whether there are no monitors.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Shows a command of `client`, in database `index`, to all monitors.
    #[cold]
    pub fn show(&self, shared: &Shared, client: &Client, index: u16, command: &Command, args: Args<'_>) {
        if command.has(flag::ADMIN) {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut line = format!("+{}.{:06} [{index} {}]", now.as_secs(), now.subsec_micros(), client.address);
        let shown = if command.has(flag::SECRET) { 1 } else { args.len() };
        // 0 is no limit. A longer line would not be shown to anybody, so it is not completed.
        let most = Some(shared.settings.max_output_bytes.load(Ordering::Relaxed)).filter(|most| *most > 0).unwrap_or(usize::MAX);
        args.iter().take(shown).for_each(|argument| quote(&mut line, argument, most));
        if shown < args.len() {
            line.push_str(" \"(redacted)\"");
        }
        line.push_str("\r\n");
        for monitor in self.all.lock().iter() {
            let mut lines = monitor.lines.lock();
            if lines.len() + line.len() > most {
                let why = format!("it reads too little of what MONITOR shows it: more than max-output ({most}) waits");
                shared.kill(&monitor.client, Level::Warn, &why);
                continue;
            }
            let first = lines.is_empty();
            lines.extend_from_slice(line.as_bytes());
            drop(lines);
            if first {
                shared.waiting.wake(&monitor.client);
            }
        }
    }
}

/// Quotes an argument as Redis' tools read it; stops once the line has more than `most` bytes.
fn quote(line: &mut String, argument: &[u8], most: usize) {
    line.push_str(" \"");
    for byte in argument {
        if line.len() > most {
            return;
        }
        match byte {
            b'\\' | b'"' => line.extend(['\\', char::from(*byte)]),
            b'\n' => line.push_str("\\n"),
            b'\r' => line.push_str("\\r"),
            b'\t' => line.push_str("\\t"),
            7 => line.push_str("\\a"),
            8 => line.push_str("\\b"),
            b' '..=b'~' => line.push(char::from(*byte)),
            // Writing to a string does not fail.
            _ => drop(write!(line, "\\x{byte:02x}")),
        }
    }
    line.push('"');
}

impl Watching {
    /// Makes the client a monitor: from here on it is shown commands.
    pub fn begin(shared: &Arc<Shared>, client: &Arc<Client>) -> Watching {
        let monitor = Arc::new(Monitor { client: client.clone(), lines: Mutex::default() });
        shared.monitors.all.lock().push(monitor.clone());
        shared.monitors.count.fetch_add(1, Ordering::Relaxed);
        client.watches_others.store(true, Ordering::Relaxed);
        Watching { monitor, shared: shared.clone() }
    }

    /// Moves the lines that were not passed on yet to `out`.
    pub fn take(&self, out: &mut Vec<u8>) {
        let mut lines = std::mem::take(&mut *self.monitor.lines.lock());
        out.append(&mut lines);
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.shared.monitors.all.lock().retain(|monitor| !Arc::ptr_eq(monitor, &self.monitor));
        self.shared.monitors.count.fetch_sub(1, Ordering::Relaxed);
        self.monitor.client.watches_others.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::table::TABLE;
    use crate::config::Config;

    /// Regression: a monitor's lines left their room behind, as much as had ever gathered.
    #[test]
    fn lines_that_were_passed_on_leave_no_room_behind() {
        let shared = Shared::new(hither::Db::builder().in_memory().open().unwrap(), Config::default(), 1).unwrap();
        let client = shared.clients.add("test".into(), "test".into(), 0);
        let watching = Watching::begin(&shared, &client);
        let (bytes, ranges) = ([&b"ECHO"[..], &[b'x'; 100_000]].concat(), [0..4, 4..100_004]);
        let args = Args::new(&bytes, &ranges);
        let Ok(found) = TABLE.find(args) else { panic!("ECHO is there") };
        let mut out = Vec::new();
        for count in 1..3 {
            shared.monitors.show(&shared, &client, 0, found.command, args);
            watching.take(&mut out);
            assert!(out.len() > count * 100_000);
            assert_eq!(watching.monitor.lines.lock().capacity(), 0);
        }
    }

    #[test]
    fn arguments_are_quoted() {
        let mut line = String::new();
        super::quote(&mut line, b"a \"b\"\\\n\x01\xff", usize::MAX);
        assert_eq!(line, " \"a \\\"b\\\"\\\\\\n\\x01\\xff\"");
    }
}
