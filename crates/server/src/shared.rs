//! What all threads of a server share.

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

/// See the module's head.
pub struct Shared {
    /// The store's databases.
    pub databases: Arc<Databases>,
    /// Settings in force.
    pub settings: Settings,
    /// Cursors of iterations.
    pub cursors: Cursors,
    /// Clients that are connected.
    pub clients: Clients,
    /// Commands that took long.
    pub slowlog: SlowLog,
    /// How many commands run in a second.
    pub rate: Rate,
    /// CLIENT PAUSE.
    pub pause: Pauses,
    /// MONITOR.
    pub monitors: Monitors,
    /// SAVE and its like.
    pub saving: Saving,
    /// FLUSHDB and its like.
    pub changes: Changes,
    /// Clients whose commands wait.
    pub waiting: Arc<Waiting>,
    /// Who may write.
    pub turns: Turns,
    /// Counters, one set per thread.
    pub cores: Vec<CoreStats>,
    /// Since when it runs.
    pub started: Instant,
    /// Somebody asked for the end.
    pub stopping: Arc<AtomicBool>,
    /// Why it ends, if nobody wants it to.
    pub ended_because: Mutex<Option<String>>,
    /// Names this run.
    pub run_id: String,
    /// A sync has failed: writes are refused.
    pub failed: AtomicBool,
    /// The certificates, if there is a port for TLS.
    pub tls: Option<Tls>,
    /// The certificates are to be read again.
    pub reload: Arc<AtomicBool>,
    /// The port that is really used.
    pub port: AtomicUsize,
}

/// Steps of the histograms of commands: up to 1, 2, 4 … microseconds.
pub const BUCKETS: usize = 24;

/// A thread comes round ten times a second; one that has not for so long is in a long command.
const HELD_UP_MS: u64 = 1000;

/// Counters of one thread; others only read them.
#[repr(align(128))]
pub struct CoreStats {
    /// Calls by the command's number.
    pub calls: Vec<AtomicU64>,
    /// Those of them that failed.
    pub failed: Vec<AtomicU64>,
    /// Commands that were refused before they ran, by their number.
    pub refused: Vec<AtomicU64>,
    /// Error replies.
    pub errors: AtomicU64,
    /// The same by their code, the first word.
    pub errors_by_code: Mutex<BTreeMap<Box<str>, u64>>,
    /// Connections that were accepted.
    pub connections: AtomicU64,
    /// Connections that were refused.
    pub rejected: AtomicU64,
    /// Bytes received.
    pub input_bytes: AtomicU64,
    /// Bytes sent.
    pub output_bytes: AtomicU64,
    /// Replies that waited for durability.
    pub deferred: AtomicU64,
    /// Commands that ran again after a conflict.
    pub retries: AtomicU64,
    /// Keys that were found.
    pub hits: AtomicU64,
    /// Keys that were not found.
    pub misses: AtomicU64,
    /// Time of commands, by the command's number.
    pub nanoseconds: Vec<AtomicU64>,
    /// Counts of commands by their time: [`BUCKETS`] for each.
    pub histograms: Vec<AtomicU64>,
    /// Time that replies waited for durability.
    pub waited_ns: AtomicU64,
    /// When the thread came round last, in milliseconds since 1970; [`u64::MAX`] once it has ended.
    pub alive_ms: AtomicU64,
}

impl CoreStats {
    /// Its thread serves nobody any more: it need not come round.
    pub(crate) fn note_end(&self) {
        self.alive_ms.store(u64::MAX, Ordering::Relaxed);
    }

    /// Whether that is so.
    pub fn has_ended(&self) -> bool {
        self.alive_ms.load(Ordering::Relaxed) == u64::MAX
    }

    /// Whether its thread has not come round for so long that others see to new clients.
    pub fn is_held_up(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.alive_ms.load(Ordering::Relaxed)) > HELD_UP_MS
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
            alive_ms: AtomicU64::new(now_ms()),
        }
    }

    /// Counts the time of a command. Bucket n has those of at most 2^n microseconds, the last one all longer ones.
    #[inline]
    pub fn add_time(&self, number: usize, took: Duration) {
        let ns = took.as_nanos() as u64;
        let bucket = (64 - ns.saturating_sub(1).div_euclid(1000).leading_zeros() as usize).min(BUCKETS - 1);
        CoreStats::add(&self.nanoseconds[number], ns);
        CoreStats::add(&self.histograms[number * BUCKETS + bucket], 1);
    }

    /// Counts; only the thread that owns the counters may.
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

    /// The same with certificates.
    pub fn with_tls(db: Db, config: Config, cores: usize, tls: Option<Tls>) -> Result<Arc<Shared>> {
        let table: &Table = &TABLE;
        let databases = Databases::open(db, config.databases)?;
        let mut id = [0; 20];
        // Names the run for people; nothing rests on it.
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

    /// The users.
    #[inline]
    pub fn acl(&self) -> &Acl {
        &self.settings.acl
    }

    /// The sum of a counter over all threads.
    pub fn total(&self, counter: impl Fn(&CoreStats) -> &AtomicU64) -> u64 {
        self.cores.iter().map(|core| counter(core).load(Ordering::Relaxed)).sum()
    }

    /// Has a client closed, and says why in the log. Its thread is told; none of its commands that reads what is written from here on has any effect.
    pub fn kill(&self, client: &Client, level: Level, why: &dyn Display) {
        client.kill(level, why);
        self.waiting.summon(client.core);
    }

    /// Has the server end because it cannot go on, and says so in the log.
    pub fn fail_stop(&self, why: &str) {
        events::log(Level::Error, "cannot-go-on", &[("why", &why)]);
        self.ended_because.lock().get_or_insert_with(|| why.to_owned());
        self.stopping.store(true, Ordering::SeqCst);
    }

    /// Does a thread's work; `what` is what such a thread does. If it panics, nobody would do that any more, and whoever is given to it would wait for ever: so the server ends, and is
    /// started again by whoever sees to that.
    pub fn or_stop<T>(&self, what: &str, work: impl FnOnce() -> T) -> Option<T> {
        let outcome = catch_unwind(AssertUnwindSafe(work)).ok();
        if outcome.is_none() {
            self.fail_stop(&format!("a thread that {what} has panicked; what it said is on standard error"));
        }
        outcome
    }

    /// A sync has failed, for this reason: writes are refused from here on. The log says so once.
    #[cold]
    pub fn note_failed_sync(&self, why: &str) {
        if !self.failed.swap(true, Ordering::Relaxed) {
            events::log(Level::Error, "sync-failed", &[("why", &why)]);
        }
    }

    /// Commands run so far.
    pub fn total_calls(&self) -> u64 {
        self.cores.iter().flat_map(|core| &core.calls).map(|calls| calls.load(Ordering::Relaxed)).sum()
    }
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// The clients that are connected, by id.
#[derive(Default)]
pub struct Clients {
    next_id: AtomicU64,
    all: Mutex<BTreeMap<u64, Arc<Client>>>,
}

/// What others may know of a client, and ask of it.
#[derive(Debug)]
pub struct Client {
    /// Number, from 1 on, never given twice.
    pub id: u64,
    /// Its address.
    pub address: String,
    /// Where it connected to.
    pub local_address: String,
    /// When it came.
    pub connected: Instant,
    /// The thread that serves it.
    pub core: usize,
    /// What it calls itself.
    pub name: Mutex<String>,
    /// Who it has logged in as.
    pub user: Mutex<String>,
    /// Its library's name and version.
    pub library: Mutex<(String, String)>,
    /// Database.
    pub database: AtomicUsize,
    /// Version of the protocol.
    pub protocol: AtomicUsize,
    /// Number of the last command.
    pub last_command: AtomicUsize,
    /// Milliseconds from its coming to when something last came from it or left for it.
    pub active_ms: AtomicU64,
    /// Commands that wait for EXEC; -1 without MULTI. And what they take, in bytes.
    pub queued: AtomicI64,
    /// See above.
    pub queued_bytes: AtomicUsize,
    /// Watched keys, and what they take, in bytes.
    pub watched: AtomicUsize,
    /// See above.
    pub watched_bytes: AtomicUsize,
    /// Bytes of a request that is not complete, and of replies that have not left.
    pub input_bytes: AtomicUsize,
    /// See above.
    pub output_bytes: AtomicUsize,
    /// It is shown what others do: MONITOR.
    pub watches_others: AtomicBool,
    /// It is to be closed.
    pub killed: AtomicBool,
    /// Its place among the connections of its thread.
    pub slot: AtomicUsize,
    /// Whether its command waits.
    pub wait: WaitState,
}

impl Client {
    /// Something came from it, or left for it, about now: it is not idle.
    #[inline]
    pub fn note_active(&self, now: Instant) {
        self.active_ms.store(now.saturating_duration_since(self.connected).as_millis() as u64, Ordering::Relaxed);
    }

    /// How long nothing came from it or left for it.
    pub fn idle(&self) -> Duration {
        self.connected.elapsed().saturating_sub(Duration::from_millis(self.active_ms.load(Ordering::Relaxed)))
    }

    /// Has its thread close it at its next look, and says why in the log. See [`Shared::kill`].
    pub fn kill(&self, level: Level, why: &dyn Display) {
        if !self.killed.swap(true, Ordering::AcqRel) {
            self.log_closed(level, why);
        }
    }

    /// Says in the log why it is closed, which it has not asked for.
    #[cold]
    pub fn log_closed(&self, level: Level, why: &dyn Display) {
        events::log_few(level, "client-closed", &[("client", &self.id), ("address", &self.address), ("why", why)]);
    }

    /// Whether it is to be closed: nothing of it runs any more.
    #[inline]
    pub fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Acquire)
    }

    /// What it keeps for its transaction, in bytes.
    pub fn held_bytes(&self) -> usize {
        self.queued_bytes.load(Ordering::Relaxed) + self.watched_bytes.load(Ordering::Relaxed)
    }

    /// What its requests and replies take, in bytes.
    pub fn buffered_bytes(&self) -> usize {
        self.input_bytes.load(Ordering::Relaxed) + self.output_bytes.load(Ordering::Relaxed)
    }

    /// One line of `CLIENT LIST`.
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

    /// It has gone.
    pub fn remove(&self, id: u64) {
        self.all.lock().remove(&id);
    }

    /// Number of clients.
    pub fn len(&self) -> usize {
        self.all.lock().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The client with this number.
    pub fn get(&self, id: u64) -> Option<Arc<Client>> {
        self.all.lock().get(&id).cloned()
    }

    /// All clients, by id.
    pub fn list(&self) -> Vec<Arc<Client>> {
        self.all.lock().values().cloned().collect()
    }
}
