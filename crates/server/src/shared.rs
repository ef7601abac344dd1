//! State that all threads of a server share.

use crate::acl::Acl;
use crate::changes::Changes;
use crate::commands::table::{Command, TABLE, Table};
use crate::config::{Config, Settings};
use crate::cursors::Cursors;
use crate::data::Databases;
use crate::events::{self, Level};
use crate::monitor::Monitors;
use crate::net::tls::Tls;
use crate::pause::Pauses;
use crate::rate::Rate;
use crate::saving::Saving;
use crate::slowlog::SlowLog;
use crate::turns::Turns;
use crate::waiting::{WaitState, Waiting};
use hither::{Db, Result};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// State that all threads of a server share.
pub struct Shared {
    /// The store's databases.
    pub databases: Arc<Databases>,
    /// The settings in force.
    pub settings: Settings,
    /// Cursors of the SCAN family.
    pub cursors: Cursors,
    /// Connected clients.
    pub clients: Clients,
    /// Commands that took long (SLOWLOG).
    pub slowlog: SlowLog,
    /// Commands per second, sampled by the first thread.
    pub rate: Rate,
    /// The pause in force, if any (CLIENT PAUSE).
    pub pause: Pauses,
    /// Clients that are shown the commands of others (MONITOR).
    pub monitors: Monitors,
    /// Background work: SAVE, BGSAVE, BGREWRITEAOF, ACL SAVE.
    pub saving: Saving,
    /// Background changes of databases: FLUSHDB, FLUSHALL, SWAPDB, SELECT of a new one.
    pub changes: Changes,
    /// Clients whose commands wait.
    pub waiting: Arc<Waiting>,
    /// Which thread may run commands that write; see [`crate::turns`].
    pub turns: Turns,
    /// Counters, one set per serving thread.
    pub cores: Vec<CoreStats>,
    /// When the server started.
    pub started: Instant,
    /// Set once the server has to end: by SHUTDOWN, a signal, [`crate::Server::stop`] or [`Shared::fail_stop`]. Never
    /// cleared.
    pub stopping: Arc<AtomicBool>,
    /// Why the server ends by itself; set by the first [`Shared::fail_stop`].
    pub ended_because: Mutex<Option<String>>,
    /// Random name of this run.
    pub run_id: String,
    /// A sync has failed, so writes are refused. Set by [`Shared::note_failed_sync`], never cleared.
    pub failed: AtomicBool,
    /// The certificates, if there is a TLS port.
    pub tls: Option<Tls>,
    /// The certificates are to be read again. Set by SIGHUP; the first thread clears it at its next tick.
    pub reload: Arc<AtomicBool>,
    /// The port that the server listens on; set by [`crate::Server::start`].
    pub port: AtomicUsize,
}

/// Number of buckets in the histogram of a command: up to 1, 2, 4 … microseconds.
pub const BUCKETS: usize = 24;

/// A thread ticks ten times a second; one that has not done so for this long runs a long command.
const HELD_UP_MS: u64 = 1000;

/// Counters of one thread. Other threads only read them, except for `waited_ns` and CONFIG RESETSTAT.
#[repr(align(128))]
pub struct CoreStats {
    /// Calls, by command number.
    pub calls: Vec<AtomicU64>,
    /// Calls that failed, by command number.
    pub failed: Vec<AtomicU64>,
    /// Commands that were refused before they ran, by command number.
    pub refused: Vec<AtomicU64>,
    /// Error replies.
    pub errors: AtomicU64,
    /// Error replies by their code, which is the first word.
    pub errors_by_code: Mutex<BTreeMap<Box<str>, u64>>,
    /// Connections accepted.
    pub connections: AtomicU64,
    /// Connections refused.
    pub rejected: AtomicU64,
    /// Bytes received.
    pub input_bytes: AtomicU64,
    /// Bytes sent.
    pub output_bytes: AtomicU64,
    /// Requests for durability, each for all replies of the thread that waited then.
    pub deferred: AtomicU64,
    /// Attempts of commands that were repeated after a conflict.
    pub retries: AtomicU64,
    /// Keys that reads found.
    pub hits: AtomicU64,
    /// Keys that reads did not find.
    pub misses: AtomicU64,
    /// Total run time in nanoseconds, by command number.
    pub nanoseconds: Vec<AtomicU64>,
    /// Histograms of run times: [`BUCKETS`] counters for each command number.
    pub histograms: Vec<AtomicU64>,
    /// Total time of the requests for durability, each from its first write on; the store's committer adds to it.
    pub waited_ns: AtomicU64,
    /// Time of the thread's last tick, as [`Shared::uptime_ms`]; [`u64::MAX`] once the thread has ended.
    pub alive_ms: AtomicU64,
}

impl CoreStats {
    /// Notes that the thread has ended: it serves nobody any more and need not tick.
    pub(crate) fn note_end(&self) {
        self.alive_ms.store(u64::MAX, Ordering::Relaxed);
    }

    /// Whether the thread has ended.
    pub fn has_ended(&self) -> bool {
        self.alive_ms.load(Ordering::Relaxed) == u64::MAX
    }

    /// Whether the thread has not ticked for so long that other threads take new clients in its place.
    pub fn is_held_up(&self, uptime_ms: u64) -> bool {
        uptime_ms.saturating_sub(self.alive_ms.load(Ordering::Relaxed)) > HELD_UP_MS
    }

    /// Counts an error reply.
    #[cold]
    pub fn note_error(&self, message: &str) {
        CoreStats::add(&self.errors, 1);
        let code = message.split(' ').next().unwrap_or_default();
        let mut by_code = self.errors_by_code.lock();
        match by_code.get_mut(code) {
            Some(count) => *count += 1,
            None => drop(by_code.insert(code.into(), 1)),
        }
    }

    fn new(commands: usize) -> CoreStats {
        CoreStats {
            calls: (0..commands).map(|_| AtomicU64::new(0)).collect(),
            failed: (0..commands).map(|_| AtomicU64::new(0)).collect(),
            refused: (0..commands).map(|_| AtomicU64::new(0)).collect(),
            errors: AtomicU64::new(0),
            errors_by_code: Mutex::default(),
            connections: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            input_bytes: AtomicU64::new(0),
            output_bytes: AtomicU64::new(0),
            deferred: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            nanoseconds: (0..commands).map(|_| AtomicU64::new(0)).collect(),
            histograms: (0..commands * BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            waited_ns: AtomicU64::new(0),
            alive_ms: AtomicU64::new(0),
        }
    }

    /// Counts the run time of a command. Bucket n counts times of at most 2^n microseconds; the last bucket counts all
    /// longer ones.
    #[inline]
    pub fn add_time(&self, number: usize, took: Duration) {
        let ns = took.as_nanos() as u64;
        let bucket = (64 - ns.saturating_sub(1).div_euclid(1000).leading_zeros() as usize).min(BUCKETS - 1);
        CoreStats::add(&self.nanoseconds[number], ns);
        CoreStats::add(&self.histograms[number * BUCKETS + bucket], 1);
    }

    /// Adds to a counter; only the thread that owns the counters may call this.
    #[inline]
    pub fn add(counter: &AtomicU64, count: u64) {
        counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }
}

impl Shared {
    /// Opens the databases of `db` for `cores` threads.
    pub fn new(db: Db, config: Config, cores: usize) -> Result<Arc<Shared>> {
        Shared::with_tls(db, config, cores, None)
    }

    /// As [`Shared::new`], with certificates.
    pub fn with_tls(db: Db, config: Config, cores: usize, tls: Option<Tls>) -> Result<Arc<Shared>> {
        let table: &Table = &TABLE;
        let databases = Databases::open(db, config.databases)?;
        let mut id = [0; 20];
        // The name is for people only, so a failure does not matter.
        let _ = getrandom::fill(&mut id);
        Ok(Arc::new(Shared {
            databases,
            settings: Settings::new(config),
            cursors: Cursors::default(),
            clients: Clients::default(),
            slowlog: SlowLog::default(),
            rate: Rate::default(),
            pause: Pauses::default(),
            monitors: Monitors::default(),
            saving: Saving::new(),
            changes: Changes::default(),
            waiting: Arc::new(Waiting::new(cores.max(1))),
            turns: Turns::new(cores.max(1)),
            cores: (0..cores.max(1)).map(|_| CoreStats::new(table.len())).collect(),
            started: Instant::now(),
            stopping: Arc::default(),
            ended_because: Mutex::default(),
            run_id: id.iter().map(|byte| format!("{byte:02x}")).collect(),
            failed: AtomicBool::new(false),
            tls,
            reload: Arc::default(),
            port: AtomicUsize::new(0),
        }))
    }

    /// Milliseconds since the start. Setting the machine's clock does not change it.
    pub fn uptime_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// The users.
    #[inline]
    pub fn acl(&self) -> &Acl {
        &self.settings.acl
    }

    /// The sum of a counter over all threads.
    pub fn total(&self, counter: impl Fn(&CoreStats) -> &AtomicU64) -> u64 {
        self.cores.iter().map(|core| counter(core).load(Ordering::Relaxed)).sum()
    }

    /// Has a client closed, logs why, and wakes its thread. From here on, no command of it that reads a later write has
    /// any effect.
    pub fn kill(&self, client: &Client, level: Level, why: &dyn Display) {
        client.kill(level, why);
        self.waiting.summon(client.core);
    }

    /// Stops the server because it cannot go on, and logs why.
    pub fn fail_stop(&self, why: &str) {
        events::log(Level::Error, "cannot-go-on", &[("why", &why)]);
        self.ended_because.lock().get_or_insert_with(|| why.to_owned());
        self.stopping.store(true, Ordering::SeqCst);
    }

    /// Runs the work of a thread; `what` describes it. If it panics, nobody would do that work any more, and clients
    /// that depend on it would wait for ever. So the server stops, and its supervisor can start it again.
    pub fn or_stop<T>(&self, what: &str, work: impl FnOnce() -> T) -> Option<T> {
        let outcome = catch_unwind(AssertUnwindSafe(work)).ok();
        if outcome.is_none() {
            self.fail_stop(&format!("a thread that {what} has panicked; what it said is on standard error"));
        }
        outcome
    }

    /// Notes that a sync has failed for this reason: writes are refused from here on. The log reports it once.
    #[cold]
    pub fn note_failed_sync(&self, why: &str) {
        if !self.failed.swap(true, Ordering::Relaxed) {
            events::log(Level::Error, "sync-failed", &[("why", &why)]);
        }
    }

    /// Number of commands run so far.
    pub fn total_calls(&self) -> u64 {
        self.cores.iter().flat_map(|core| &core.calls).map(|calls| calls.load(Ordering::Relaxed)).sum()
    }
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// The connected clients, by id.
#[derive(Default)]
pub struct Clients {
    next_id: AtomicU64,
    all: Mutex<BTreeMap<u64, Arc<Client>>>,
}

/// What other threads may read of a client, and ask of it.
#[derive(Debug)]
pub struct Client {
    /// Id, from 1 on, never used twice.
    pub id: u64,
    /// The client's address.
    pub address: String,
    /// The server's address that it connected to.
    pub local_address: String,
    /// When it connected.
    pub connected: Instant,
    /// The thread that serves it.
    pub core: usize,
    /// Its name (CLIENT SETNAME).
    pub name: Mutex<String>,
    /// The name of the user it has logged in as.
    pub user: Mutex<String>,
    /// Name and version of its library (CLIENT SETINFO).
    pub library: Mutex<(String, String)>,
    /// Number of its database.
    pub database: AtomicUsize,
    /// Version of the protocol: 2 or 3.
    pub protocol: AtomicUsize,
    /// Number of its last command; `usize::MAX` before the first one.
    pub last_command: AtomicUsize,
    /// Milliseconds from when it connected until something last came from it or left for it.
    pub active_ms: AtomicU64,
    /// Number of commands queued for EXEC; -1 without MULTI. [`crate::Session::publish`] sets it and the next three.
    pub queued: AtomicI64,
    /// Bytes that the queued commands take.
    pub queued_bytes: AtomicUsize,
    /// Number of watched keys.
    pub watched: AtomicUsize,
    /// Bytes that the watched keys take.
    pub watched_bytes: AtomicUsize,
    /// Bytes received that have not run yet, as of the last flush.
    pub input_bytes: AtomicUsize,
    /// Bytes of replies that have not left, as of the last flush.
    pub output_bytes: AtomicUsize,
    /// Whether MONITOR shows it the commands of others; set and cleared by [`crate::monitor::Watching`].
    pub watches_others: AtomicBool,
    /// Whether its thread is to close it; set by [`Client::kill`], never cleared.
    pub killed: AtomicBool,
    /// Its slot among the connections of its thread; set when the thread admits it.
    pub slot: AtomicUsize,
    /// Whether its command waits for other clients.
    pub wait: WaitState,
}

impl Client {
    /// Notes that something came from the client or left for it about now, so it is not idle.
    #[inline]
    pub fn note_active(&self, now: Instant) {
        self.active_ms.store(now.saturating_duration_since(self.connected).as_millis() as u64, Ordering::Relaxed);
    }

    /// How long nothing has come from the client or left for it.
    pub fn idle(&self) -> Duration {
        self.connected.elapsed().saturating_sub(Duration::from_millis(self.active_ms.load(Ordering::Relaxed)))
    }

    /// Has its thread close the client at its next look, and logs why. See [`Shared::kill`].
    pub fn kill(&self, level: Level, why: &dyn Display) {
        if !self.killed.swap(true, Ordering::AcqRel) {
            self.log_closed(level, why);
        }
    }

    /// Logs why the client is closed, if it did not ask for that itself.
    #[cold]
    pub fn log_closed(&self, level: Level, why: &dyn Display) {
        events::log_few(level, "client-closed", &[("client", &self.id), ("address", &self.address), ("why", why)]);
    }

    /// Whether the client is to be closed: no command of it runs any more.
    #[inline]
    pub fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Acquire)
    }

    /// Bytes that it keeps for its transaction.
    pub fn held_bytes(&self) -> usize {
        self.queued_bytes.load(Ordering::Relaxed) + self.watched_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of its requests and replies.
    pub fn buffered_bytes(&self) -> usize {
        self.input_bytes.load(Ordering::Relaxed) + self.output_bytes.load(Ordering::Relaxed)
    }

    /// The client's line in `CLIENT LIST`.
    pub fn describe(&self) -> String {
        let (age, idle) = (self.connected.elapsed(), self.idle());
        let (library, version) = self.library.lock().clone();
        let queued = self.queued.load(Ordering::Relaxed);
        let queued_bytes = self.queued_bytes.load(Ordering::Relaxed);
        format!(
            "id={} addr={} laddr={} fd=-1 name={} age={} idle={} flags={} db={} sub=0 psub=0 multi={queued} watch={} qbuf={} multi-mem={queued_bytes} omem={} tot-mem={} cmd={} user={} lib-name={library} lib-ver={version} resp={}",
            self.id,
            self.address,
            self.local_address,
            self.name.lock(),
            age.as_secs(),
            idle.as_secs(),
            match (self.watches_others.load(Ordering::Relaxed), self.wait.is_asleep(), queued >= 0) {
                (false, false, false) => "N",
                (true, false, false) => "O",
                (false, true, _) => "b",
                (true, true, _) => "Ob",
                (false, false, true) => "x",
                (true, false, true) => "Ox",
            },
            self.database.load(Ordering::Relaxed),
            self.watched.load(Ordering::Relaxed),
            self.input_bytes.load(Ordering::Relaxed),
            self.output_bytes.load(Ordering::Relaxed),
            self.held_bytes() + self.buffered_bytes(),
            TABLE.by_number(self.last_command.load(Ordering::Relaxed)).map_or_else(|| "NULL".to_owned(), Command::full_name),
            self.user.lock(),
            self.protocol.load(Ordering::Relaxed),
        )
    }
}

impl Clients {
    /// Adds a client.
    pub fn add(&self, address: String, local_address: String, core: usize) -> Arc<Client> {
        let client = Arc::new(Client {
            id: self.next_id.fetch_add(1, Ordering::Relaxed) + 1,
            address,
            local_address,
            connected: Instant::now(),
            core,
            name: Mutex::default(),
            user: Mutex::new(crate::acl::DEFAULT.to_owned()),
            library: Mutex::default(),
            database: AtomicUsize::new(0),
            protocol: AtomicUsize::new(2),
            last_command: AtomicUsize::new(usize::MAX),
            active_ms: AtomicU64::new(0),
            queued: AtomicI64::new(-1),
            queued_bytes: AtomicUsize::new(0),
            watched: AtomicUsize::new(0),
            watched_bytes: AtomicUsize::new(0),
            input_bytes: AtomicUsize::new(0),
            output_bytes: AtomicUsize::new(0),
            watches_others: AtomicBool::new(false),
            killed: AtomicBool::new(false),
            slot: AtomicUsize::new(0),
            wait: WaitState::default(),
        });
        self.all.lock().insert(client.id, client.clone());
        client
    }

    /// Removes a client that has gone.
    pub fn remove(&self, id: u64) {
        self.all.lock().remove(&id);
    }

    /// Number of clients.
    pub fn len(&self) -> usize {
        self.all.lock().len()
    }

    /// Whether there are no clients.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The client with this id.
    pub fn get(&self, id: u64) -> Option<Arc<Client>> {
        self.all.lock().get(&id).cloned()
    }

    /// All clients, by id.
    pub fn list(&self) -> Vec<Arc<Client>> {
        self.all.lock().values().cloned().collect()
    }
}
