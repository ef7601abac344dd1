//! Changes of databases that a client asked for: SELECT of one that does not exist yet, FLUSHDB, FLUSHALL, SWAPDB.
//!
//! Each takes several syncs, so a thread of its own makes them, one after the other in the order in which they were
//! asked for; it ends when none is left. The client that asked waits (see [`crate::waiting`]), and so does a command
//! that meets a database while it is being replaced; their threads go on with other clients. EXEC waits as a whole, and
//! then runs from its beginning.
//!
//! A change that was asked for is made even if its client hangs up. If the server stops before the change has begun,
//! the change is refused.
//!
//! Thread safety: any thread.

use crate::commands::failure::{Failure, of_store};
use crate::data::{Database, Found};
use crate::net::unpin;
use crate::session::Session;
use crate::shared::{Client, Shared};
use crate::waiting::Request;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

/// The kinds of changes.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// Make a database that does not exist.
    Make(u16),
    /// Remove all keys of a database.
    Flush(u16),
    /// Remove all keys of all databases.
    FlushAll,
    /// Exchange two databases.
    Swap(u16, u16),
    /// Replace a database by itself, between two meetings at this barrier.
    #[cfg(test)]
    Hold(u16, &'static std::sync::Barrier),
    /// Panic in the middle of a replacement of a database, when its keys are gone.
    #[cfg(test)]
    Panic(u16),
}

/// A change that was asked for.
#[derive(Debug)]
pub struct Pending {
    /// The change.
    pub change: Change,
    /// The id of the client that asked for it.
    pub owner: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// How it ended; an error as the client gets it.
    outcome: Option<Result<(), String>>,
    /// The clients to wake at its end.
    waiters: Vec<Arc<Client>>,
}

impl Pending {
    /// How it ended, an error as the client gets it; `None`: it has not ended.
    pub fn outcome(&self) -> Option<Result<(), String>> {
        self.state.lock().outcome.clone()
    }

    /// Whether it has ended, and its end is all that this client's command waits for.
    pub fn is_made_for(&self, client: u64) -> bool {
        self.owner == client && !matches!(self.change, Change::Make(_)) && self.outcome().is_some()
    }

    /// Has a client woken at its end; returns false if it has ended already.
    fn join(&self, client: &Arc<Client>) -> bool {
        let mut state = self.state.lock();
        if state.outcome.is_none() {
            state.waiters.push(client.clone());
        }
        state.outcome.is_none()
    }

    fn end(&self, shared: &Shared, outcome: Result<(), String>) {
        let mut state = self.state.lock();
        state.outcome = Some(outcome);
        state.waiters.drain(..).for_each(|client| shared.waiting.wake(&client));
    }
}

/// The queue of changes.
#[derive(Default)]
pub struct Changes {
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// The changes asked for; the first one is under way.
    pending: VecDeque<Arc<Pending>>,
    /// The thread will look at the queue once more. Set when it is started, cleared when it finds the queue empty.
    running: bool,
    thread: Option<JoinHandle<()>>,
}

impl Changes {
    /// Asks for a change; the client is woken at its end.
    pub fn begin(&self, shared: &Arc<Shared>, change: Change, client: &Arc<Client>) -> Result<Arc<Pending>, Failure> {
        let state = Mutex::new(State { outcome: None, waiters: vec![client.clone()] });
        let pending = Arc::new(Pending { change, owner: client.id, state });
        let mut queue = self.queue.lock();
        if !queue.running {
            let shared = shared.clone();
            let spawned = std::thread::Builder::new().name("hither-change".into()).spawn(move || {
                unpin();
                run(&shared);
            });
            // The thread before has nothing left to do, so nothing is lost with its handle.
            queue.thread = Some(spawned.map_err(|error| Failure::made(format!("ERR cannot start a thread: {error}")))?);
            queue.running = true;
        }
        queue.pending.push_back(pending.clone());
        Ok(pending)
    }

    /// Has a client woken at the end of the change that is under way; `None` if there is none any more.
    pub fn join(&self, client: &Arc<Client>) -> Option<Arc<Pending>> {
        let first = self.queue.lock().pending.front().cloned();
        first.filter(|first| first.join(client))
    }

    /// Waits until no change is left: each is made, or refused.
    pub fn finish(&self) {
        let thread = self.queue.lock().thread.take();
        // A panic there was printed.
        thread.map(JoinHandle::join);
    }

    fn next(&self) -> Option<Arc<Pending>> {
        let mut queue = self.queue.lock();
        queue.running = !queue.pending.is_empty();
        queue.pending.front().cloned()
    }
}

impl Session {
    /// Returns a database. [`Failure::Wait`]: it is being made or replaced, and the client is woken when that is done.
    pub fn open_database(&self, index: u16) -> Result<Arc<Database>, Failure> {
        let (shared, changes) = (self.shared(), &self.shared().changes);
        loop {
            let pending = match shared.databases.find(index) {
                Found::There(database) => return Ok(database),
                Found::Absent => Some(changes.begin(shared, Change::Make(index), &self.client)?),
                Found::Changing => changes.join(&self.client),
            };
            // Without a pending change, the change has just ended.
            if let Some(pending) = pending {
                return Err(Failure::Wait(Box::new(Request::for_change(pending))));
            }
        }
    }

    /// Keeps nothing of databases that were replaced. Otherwise their indexes would stay in memory until each client
    /// that has used them says something again. Every attempt of a command opens its database anew if need be.
    pub(crate) fn let_go_of_replaced(&mut self) {
        let shared = self.shared().clone();
        let generation = shared.databases.generation();
        if self.database.as_ref().is_none_or(|(known, _)| *known != generation) {
            (self.database, self.spare) = (None, None);
        }
        // At the end of a change that is still under way this is called again.
        let is_other = |found, database: &Database| matches!(found, Found::There(other) if !other.is_same(database));
        self.watches.check_databases(|database| !is_other(shared.databases.find(database.index), database));
    }

    /// Checks on the change of databases that the session's command waits for. If the command asked for the change
    /// itself and it failed, that is the command's answer.
    #[cold]
    pub(crate) fn settle_change(&mut self) -> Result<(), Failure> {
        let Some(wait) = &mut self.wait else { return Ok(()) };
        let Some(pending) = wait.change.take() else { return Ok(()) };
        let is_own = pending.owner == self.client.id;
        match pending.outcome() {
            None => {
                wait.change = Some(pending);
                return Err(Failure::Wait(Box::default()));
            }
            Some(Err(why)) if is_own => {
                // Within MULTI only EXEC runs, and its failure ends the transaction.
                if self.multi.take().is_some() {
                    self.watches.clear();
                    self.publish();
                }
                return Err(Failure::made(why));
            }
            // The command asked for this change: it answers now.
            Some(Ok(())) if is_own && !matches!(pending.change, Change::Make(_)) => wait.change = Some(pending),
            // The command can go on, and may have to wait for something else.
            Some(_) if wait.for_changes => self.wait = None,
            Some(_) => {}
        }
        Ok(())
    }

    /// Whether the change of databases that its command asked for has been made.
    pub fn has_changed(&self) -> bool {
        self.wait.as_ref().and_then(|wait| wait.change.as_ref()).is_some_and(|change| change.outcome().is_some())
    }
}

fn run(shared: &Shared) {
    while let Some(pending) = shared.changes.next() {
        // Changes that have not begun when the server stops are refused: no client has had an answer to them, and the
        // stop must not wait for all.
        let is_stopping = shared.stopping.load(Ordering::Acquire);
        let made = if is_stopping { None } else { shared.or_stop("changes databases", || make(shared, pending.change)) };
        let outcome = made.unwrap_or(Err(hither::Error::Closed));
        if let Err(hither::Error::SyncFailed(why)) = &outcome {
            shared.note_failed_sync(why);
        }
        shared.changes.queue.lock().pending.pop_front();
        pending.end(shared, outcome.map_err(|error| of_store(&error)));
    }
}

fn make(shared: &Shared, change: Change) -> hither::Result<()> {
    let databases = &shared.databases;
    match change {
        Change::Make(index) => databases.get(index).map(drop),
        Change::Flush(index) => databases.flush(index),
        Change::FlushAll => databases.existing().iter().try_for_each(|database| databases.flush(database.index)),
        Change::Swap(a, b) => {
            databases.swap(a, b)?;
            shared.waiting.stirred(&[a, b]);
            Ok(())
        }
        #[cfg(test)]
        Change::Hold(index, barrier) => databases.replace(&[index], || {
            barrier.wait();
            barrier.wait();
            Ok(())
        }),
        #[cfg(test)]
        Change::Panic(index) => databases.replace(&[index], || {
            databases.db.drop_keyspace(&format!("db{index}"))?;
            panic!("for the test")
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use hither::Db;
    use hither_resp::Args;
    use std::path::Path;
    use std::sync::Barrier;

    struct Tester {
        shared: Arc<Shared>,
        session: Session,
    }

    impl Tester {
        fn new(shared: &Arc<Shared>) -> Tester {
            let client = shared.clients.add("test".into(), "test".into(), 0);
            Tester { shared: shared.clone(), session: Session::new(shared.clone(), client) }
        }

        /// Runs a command once; returns its reply, or nothing if it waits.
        fn attempt(&mut self, line: &str) -> String {
            let mut ranges = Vec::new();
            for word in line.split(' ') {
                let start = ranges.last().map_or(0, |range: &std::ops::Range<usize>| range.end + 1);
                ranges.push(start..start + word.len());
            }
            let mut out = Vec::new();
            self.session.execute(&self.shared, Args::new(line.as_bytes(), &ranges), &mut out);
            assert_eq!(out.is_empty(), self.session.is_waiting());
            String::from_utf8(out).unwrap().replace("\r\n", " ")
        }

        /// Runs a command until it answers, and returns the reply.
        fn run(&mut self, line: &str) -> String {
            loop {
                let reply = self.attempt(line);
                if !reply.is_empty() {
                    return reply;
                }
                std::thread::yield_now();
            }
        }
    }

    fn shared() -> Arc<Shared> {
        Shared::new(Db::builder().in_memory().open().unwrap(), Config::default(), 1).unwrap()
    }

    /// Holds up all changes, in the middle of one of database `index`, until the barrier is met once more.
    fn hold(shared: &Arc<Shared>, index: u16) -> &'static Barrier {
        let barrier: &Barrier = Box::leak(Box::new(Barrier::new(2)));
        let nobody = shared.clients.add("test".into(), "test".into(), 0);
        shared.changes.begin(shared, Change::Hold(index, barrier), &nobody).unwrap();
        barrier.wait();
        barrier
    }

    /// Regression: these held up their thread for several syncs, and all of its clients with it.
    #[test]
    fn who_has_databases_changed_waits_and_nobody_else() {
        let shared = shared();
        let [mut a, mut b, mut c, mut other] = [(); 4].map(|()| Tester::new(&shared));
        assert_eq!(a.run("SET k 1"), "+OK ");
        assert_eq!(b.run("SELECT 1"), "+OK ");
        assert_eq!(b.run("SET k 2"), "+OK ");
        let barrier = hold(&shared, 3);
        assert_eq!([a.attempt("FLUSHDB"), b.attempt("SWAPDB 0 1"), c.attempt("SELECT 5")], ["", "", ""]);
        assert_eq!([a.attempt("FLUSHDB"), b.attempt("SWAPDB 0 1"), c.attempt("SELECT 5")], ["", "", ""], "woken too early");
        assert_eq!([other.run("GET k"), other.run("PING")], ["$1 1 ", "+PONG "]);
        // Regression: the reply was 1, and the client went on waiting.
        let unblock = format!("CLIENT UNBLOCK {} ERROR", a.session.client.id);
        assert_eq!(other.run(&unblock), ":0 ", "it is no command that waits for others");
        barrier.wait();
        assert_eq!([a.run("FLUSHDB"), b.run("SWAPDB 0 1"), c.run("SELECT 5")], ["+OK "; 3]);
        // In the order in which they were asked for.
        assert_eq!([a.run("GET k"), b.run("GET k"), b.run("DBSIZE"), c.run("SET k 5")], ["$1 2 ", "$-1 ", ":0 ", "+OK "]);
        assert_eq!(a.run("FLUSHALL"), "+OK ");
        assert_eq!([a.run("GET k"), c.run("GET k")], ["$-1 "; 2]);
        assert!(shared.waiting.is_empty());
        shared.changes.finish();
    }

    /// The processors that each thread which changes databases may use.
    fn processors_of_changes() -> Vec<String> {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
        // A thread that has ended meanwhile has no name.
        let changes = tasks.filter(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "hither-change\n"));
        changes.filter_map(|task| processors_of(&task)).collect()
    }

    fn processors_of(task: &Path) -> Option<String> {
        let status = std::fs::read_to_string(task.join("status")).ok()?;
        status.lines().find(|line| line.starts_with("Cpus_allowed:")).map(str::to_owned)
    }

    /// Regression: the thread stayed on the processor of the serving thread and was in its way for several syncs.
    #[test]
    fn changes_run_on_all_processors() {
        let shared = shared();
        let pinned = || {
            crate::net::pin(0, usize::MAX);
            let barrier = hold(&shared, 3);
            let found = processors_of_changes();
            barrier.wait();
            found
        };
        let found = std::thread::scope(|scope| scope.spawn(pinned).join().unwrap());
        shared.changes.finish();
        let all = processors_of(Path::new("/proc/self")).unwrap();
        // The threads of other tests are not pinned either.
        assert!(!found.is_empty() && found.iter().all(|processors| *processors == all), "{found:?} of {all}");
    }

    #[test]
    fn commands_that_meet_a_change_wait_and_exec_does_as_a_whole() {
        let shared = shared();
        let [mut a, mut b, mut c] = [(); 3].map(|()| Tester::new(&shared));
        assert_eq!(a.run("ZADD z 1 m"), ":1 ");
        assert_eq!(["MULTI", "INCR n", "SELECT 7", "INCR n"].map(|line| b.run(line))[3], "+QUEUED ");
        let barrier = hold(&shared, 0);
        assert_eq!(c.attempt("BZPOPMIN z 0"), "", "it does not know its database yet");
        assert_eq!([b.attempt("EXEC"), b.attempt("EXEC")], ["", ""], "for database 7");
        assert_eq!(b.session.multi.as_ref().map(|multi| multi.queue().len()), Some(3));
        barrier.wait();
        assert_eq!(c.run("BZPOPMIN z 0"), "*3 $1 z $1 m $1 1 ");
        assert_eq!(b.run("EXEC"), "*3 :1 +OK :1 ");
        assert_eq!([b.run("DBSIZE"), a.run("GET n"), b.run("EXEC")], [":1 ", "$1 1 ", "-ERR EXEC without MULTI "]);
        assert!(shared.waiting.is_empty());
    }

    /// Regression: the database was taken to be changing for ever. The next command that used it never came back, so
    /// the server did not end.
    #[test]
    fn after_a_change_that_panics_commands_get_an_error() {
        let shared = shared();
        let [mut a, mut b, nobody] = [(); 3].map(|()| Tester::new(&shared));
        assert_eq!(a.run("SET k 1"), "+OK ");
        shared.changes.begin(&shared, Change::Panic(0), &nobody.session.client).unwrap();
        shared.changes.finish();
        assert!(!matches!(shared.databases.find(0), Found::Changing), "nobody changes it any more");
        for reply in [a.run("GET k"), b.run("GET k"), b.run("FLUSHALL"), b.run("SELECT 7")] {
            assert!(reply.starts_with("-MISCONF "), "{reply}");
        }
        assert!(shared.stopping.load(Ordering::Acquire) && shared.waiting.is_empty());
    }

    /// RENAME takes a collection's rows along: what a command reads of them must be what its key had, not what the
    /// other key has by then.
    #[test]
    fn a_field_is_that_of_the_key_that_was_asked_for() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let shared = Shared::new(Db::builder().in_memory().open().unwrap(), Config::default(), 2).unwrap();
        let [mut writer, mut reader] = [0, 1].map(|core| {
            let client = shared.clients.add("test".into(), "test".into(), core);
            Tester { shared: shared.clone(), session: Session::new(shared.clone(), client) }
        });
        writer.run("HSET a f of-a");
        writer.run("ZADD sa 1 m");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for line in ["RENAME a b", "HSET b f of-b", "HSET b f of-a", "RENAME b a"] {
                        writer.run(line);
                    }
                    for line in ["RENAME sa sb", "ZADD sb 2 m", "ZADD sb 1 m", "RENAME sb sa"] {
                        writer.run(line);
                    }
                }
            });
            let wrong = (0..60_000).find_map(|_| {
                let replies = [reader.run("HGET a f"), reader.run("ZSCORE sa m")];
                (replies[0].contains("of-b") || replies[1].contains('2')).then_some(replies)
            });
            stop.store(true, Ordering::Relaxed);
            assert_eq!(wrong, None, "values that only the other key ever had");
        });
    }
}
