//! Background work that a client asked for. SAVE and BGSAVE take a checkpoint of the indexes and, if a directory is set
//! for it, a backup ([`crate::backup`]). BGREWRITEAOF gives back the space of garbage. ACL SAVE writes the users to
//! their file.
//!
//! No data depends on any of it. What was acknowledged is durable already; a checkpoint only makes the next start
//! faster, and a backup is a store of its own. A backup is made of what the store holds when it is taken, after
//! everything written before is durable (at any level).
//!
//! Each kind of work has a thread of its own while it lasts, so that only the clients that asked for it wait. A crash
//! in between leaves the earlier checkpoint or file.
//!
//! Thread safety: any thread.

use crate::backup;
use crate::commands::failure::of_store;
use crate::events::{self, Level};
use crate::net::unpin;
use crate::shared::{Client, Shared, now_ms};
use parking_lot::Mutex;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

/// The kinds of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Make everything durable, take a checkpoint, and make a backup.
    Save,
    /// Give back the space of garbage.
    Rewrite,
    /// Write the users to their file. A client that asks while this is under way may have changed users since it began,
    /// so it is done once more.
    Users,
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Work::Save => "save",
            Work::Rewrite => "rewrite",
            Work::Users => "users",
        }
    }
}

/// The work that is under way, and its outcomes.
pub struct Saving {
    save: Mutex<State>,
    rewrite: Mutex<State>,
    users: Mutex<State>,
}

/// The state of one kind of work.
#[derive(Default)]
struct State {
    /// How many were begun, and how many have ended.
    begun: u64,
    ended: u64,
    /// When the last successful one ended, in milliseconds since 1970; before the first one, when the server started.
    last_ms: u64,
    /// Why the last one failed, as a client gets it.
    failure: Option<String>,
    /// The work is to be done once more: set when a client asks for it while it is under way, cleared as it is
    /// repeated.
    again: bool,
    /// The clients that wait, each with the number of the work whose end it waits for.
    waiters: Vec<(u64, Arc<Client>)>,
    thread: Option<JoinHandle<()>>,
}

impl Saving {
    /// Nothing is under way.
    pub fn new() -> Saving {
        let state = || Mutex::new(State { last_ms: now_ms(), ..State::default() });
        Saving { save: state(), rewrite: state(), users: state() }
    }

    fn of(&self, work: Work) -> &Mutex<State> {
        match work {
            Work::Save => &self.save,
            Work::Rewrite => &self.rewrite,
            Work::Users => &self.users,
        }
    }

    /// Begins work; returns its number, or `None` if such work is under way and need not be done once more.
    pub fn begin(&self, shared: &Arc<Shared>, work: Work, waiter: Option<&Arc<Client>>) -> std::io::Result<Option<u64>> {
        let mut state = self.of(work).lock();
        let number = state.begun + 1;
        if state.begun == state.ended {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name(format!("hither-{}", work.name()));
            // The thread before has ended, so nothing is lost with its handle.
            state.thread = Some(thread.spawn(move || {
                unpin();
                while !shared.saving.finish(&shared, work, or_stop(&shared, || run(&shared, work))) {}
            })?);
            state.begun = number;
        } else if work == Work::Users {
            state.again = true;
        } else {
            return Ok(None);
        }
        state.waiters.extend(waiter.map(|waiter| (number, waiter.clone())));
        Ok(Some(number))
    }

    /// Notes the end of a piece of work and wakes the clients that wait for it. Returns whether nothing is left to do.
    fn finish(&self, shared: &Shared, work: Work, outcome: Result<(), String>) -> bool {
        let mut state = self.of(work).lock();
        state.ended += 1;
        if outcome.is_ok() {
            state.last_ms = now_ms();
        }
        state.failure = outcome.err();
        let ended = state.ended;
        state.waiters.extract_if(.., |(number, _)| *number <= ended).for_each(|(_, client)| shared.waiting.wake(&client));
        let again = std::mem::take(&mut state.again);
        state.begun += u64::from(again);
        !again
    }

    /// How the work with this number ended, an error as a client gets it; `None`: it has not ended.
    pub fn outcome(&self, work: Work, number: u64) -> Option<Result<(), String>> {
        let state = self.of(work).lock();
        (state.ended >= number).then(|| state.failure.clone().map_or(Ok(()), Err))
    }

    /// Whether such work is under way.
    pub fn is_running(&self, work: Work) -> bool {
        let state = self.of(work).lock();
        state.begun > state.ended
    }

    /// When the last successful one ended, in seconds since 1970, and whether the last one was successful.
    pub fn last(&self, work: Work) -> (u64, bool) {
        let state = self.of(work).lock();
        (state.last_ms / 1000, state.failure.is_none())
    }

    /// Waits for the end of what is under way.
    pub fn join(&self) {
        for state in [&self.save, &self.rewrite, &self.users] {
            let thread = state.lock().thread.take();
            // A panic there was printed.
            thread.map(JoinHandle::join);
        }
    }
}

impl Default for Saving {
    fn default() -> Saving {
        Saving::new()
    }
}

/// Makes sure that waiting clients get an outcome: after a panic the work has failed, and the server ends.
fn or_stop(shared: &Shared, work: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    shared.or_stop("saves", work).unwrap_or_else(|| Err(of_store(&hither::Error::Closed)))
}

/// Does the work; an error is as a client gets it. The log has the error with the names of files.
fn run(shared: &Shared, work: Work) -> Result<(), String> {
    if work == Work::Users {
        return shared.acl().save().map_err(|why| {
            events::log(Level::Error, "users-not-saved", &[("why", &why)]);
            format!("ERR {why}")
        });
    }
    run_on_store(shared, work).map_err(|error| {
        if let hither::Error::SyncFailed(why) = &error {
            shared.note_failed_sync(why);
        }
        events::log(Level::Error, "save-failed", &[("why", &error)]);
        match error {
            // Only this work has failed: nothing is wrong with what is stored, and writes go on.
            hither::Error::Io(_) | hither::Error::NotWritable(_) | hither::Error::DiskFull(_) => {
                format!("ERR the {} failed; the log of the server says more", work.name())
            }
            error => of_store(&error),
        }
    })?;
    match &shared.settings.started.backup_dir {
        Some(directory) if work == Work::Save => backup::make(shared, directory),
        _ => Ok(()),
    }
}

fn run_on_store(shared: &Shared, work: Work) -> hither::Result<()> {
    let db = &shared.databases.db;
    db.sync()?;
    if work == Work::Save {
        // A store in memory keeps no checkpoints.
        return db.checkpoint().map(drop);
    }
    let stopping = |_| if shared.stopping.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    db.compact_with(GARBAGE, stopping).map(drop)
}

/// BGREWRITEAOF empties segments with a larger share of garbage than this: most of the space for a fraction of the
/// work.
const GARBAGE: f64 = 0.2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use hither::Db;

    /// Regression: after a panic the work never ended; a client that had sent SAVE waited for ever, and nothing was
    /// saved any more.
    #[test]
    fn who_waits_for_work_that_panics_is_told() {
        let shared = Shared::new(Db::builder().in_memory().open().unwrap(), Config::default(), 1).unwrap();
        let outcome = or_stop(&shared, || panic!("for the test"));
        assert!(outcome.unwrap_err().starts_with("MISCONF "));
        assert!(shared.ended_because.lock().is_some());
    }
}
