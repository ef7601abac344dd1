//! Threads and connections.
//!
//! There is one serving thread per processor, pinned there, with an event loop of its own ([`core`]). Fewer threads are
//! not pinned: the system knows which processors are free. A thread that wakes up does not preempt what runs on its
//! processor, unless the settings say so. This lets clients on the same machine send more before they are answered, so
//! that a round has more to do.
//!
//! The first thread accepts connections and hands each, once and for all, to the thread with the fewest. A thread runs
//! the commands of its connections in place: no command ever passes from thread to thread.
//!
//! # Replies that wait
//!
//! No thread sleeps in a sync. A command returns the version that its reply rests on; [`outbox::Outbox`] holds the
//! reply, and those behind it, until that version is durable. A thread collects what the commands of some rounds of its
//! loop rest on, over all of its connections, and makes one request of it to the store's committer, whose callback
//! wakes the loop. So whatever arrives during one sync shares the next.
//!
//! If a sync fails, every waiting reply becomes an error, and the store refuses writes from then on.
//!
//! # Bounds
//!
//! A connection holds at most one incomplete request (bounded by [`hither_resp::Limits`]) and its replies. While more
//! than [`outbox::PAUSE_BYTES`] of replies wait ([`outbox::STRANGER_PAUSE_BYTES`] before it has logged in), no further
//! command of it runs; beyond the output limit (one huge reply) it is closed. Buffers of idle connections are freed.
//!
//! # The end
//!
//! When the server stops, the threads start no further commands, wait up to [`core::LINGER`] for replies that wait or
//! are being sent, and end. Then the store is closed.

pub mod ahead;
pub mod connection;
pub mod core;
pub mod descriptors;
pub mod listen;
pub mod null;
pub mod outbox;
pub mod refusals;
pub mod tls;

use crate::acl::Acl;
use crate::backup;
use crate::config::Config;
use crate::data::reaper;
use crate::events::{self, Level};
use crate::shared::Shared;
use crate::writable;
use hither::Db;
use hither_sync::schedule::forgo_wakeup_preemption;
use mio::net::TcpListener;
use rustix::process::getpid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs::{File, FileType};
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store returned an error.
    #[error(transparent)]
    Store(#[from] hither::Error),
    /// The server cannot listen at an address.
    #[error("cannot listen at {address}: {source}; is another server there?")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// The ACL file cannot be used.
    #[error("{0}")]
    Acl(String),
    /// The directory for backups does not exist.
    #[error("{} is no directory, so no backups can be made there (backup-dir); mount it, or make it, for the server's user to write to", .0.display())]
    Backup(PathBuf),
    /// Certificates or keys cannot be used.
    #[error("{0}")]
    Tls(String),
    /// A file that the settings name cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The system refuses threads or event queues.
    #[error("cannot start the threads of the server: {0}")]
    Threads(std::io::Error),
}

/// Why a server has ended by itself.
#[derive(Debug, thiserror::Error)]
#[error("the server has ended: {0}")]
pub struct Ended(String);

/// A running server.
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    tls_address: Option<SocketAddr>,
    metrics_address: Option<SocketAddr>,
    threads: Vec<JoinHandle<()>>,
    reaper: JoinHandle<()>,
    metrics: Option<JoinHandle<()>>,
    /// Set once no client is served any more: the metrics thread then ends.
    ended: Arc<AtomicBool>,
}

impl Server {
    /// Starts serving `db`.
    ///
    /// # Errors
    /// See [`StartError`]; nothing runs then.
    pub fn start(db: Db, mut config: Config) -> Result<Server, StartError> {
        let count = match config.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let reserved = descriptors::reserve(count, db.stats().pools.len());
        bound_clients(&mut config, reserved);
        backup::ensure_directory(&config)?;
        writable::tell(&config);
        let mut listeners = Vec::new();
        if !config.tls_only {
            listeners.extend(listen::at(&config.listen, config.port)?.into_iter().map(|(address, listener)| (address, listener, false)));
        }
        let tls = config.tls.clone().map(tls::Tls::load).transpose().map_err(StartError::Tls)?;
        if let Some(tls) = &config.tls {
            listeners.extend(listen::at(&config.listen, tls.port)?.into_iter().map(|(address, listener)| (address, listener, true)));
        }
        let tls_address = listeners.iter().find(|(_, _, tls)| *tls).map(|(address, ..)| *address);
        let address = listeners.first().map(|(bound, ..)| *bound).ok_or_else(|| {
            StartError::Threads(std::io::Error::new(std::io::ErrorKind::InvalidInput, "there is no address to listen at"))
        })?;
        let metrics = config.metrics_address.map(|address| listen::at(&[address.ip()], address.port())).transpose()?;
        let metrics = metrics.and_then(|mut all| all.pop());
        let metrics_address = metrics.as_ref().map(|(address, _)| *address);
        let shared = Shared::with_tls(db, config, count, tls)?;
        shared.settings.reserved_files.store(reserved, Ordering::Relaxed);
        shared.port.store(usize::from(address.port()), Ordering::Relaxed);
        let listeners = listeners.into_iter().map(|(_, listener, tls)| (listener, tls)).collect();
        let (cores, reaper) = Server::prepare(&shared, listeners, count).inspect_err(|_| {
            // Nobody was served. If this fails, the next start mends whatever there may be to mend.
            let _ = shared.databases.mark.end(&shared.databases.db);
        })?;
        let (threads, ended) = (Vec::new(), Arc::default());
        let mut server = Server { shared, address, tls_address, metrics_address, threads, reaper, metrics: None, ended };
        if let Err(error) = server.begin(cores, metrics.map(|(_, listener)| listener)) {
            server.stop();
            return Err(StartError::Threads(error));
        }
        Ok(server)
    }

    /// Prepares what may fail before anybody is served: the users, the loops, the reaper thread.
    fn prepare(
        shared: &Arc<Shared>,
        listeners: Vec<(TcpListener, bool)>,
        count: usize,
    ) -> Result<(Vec<core::Core>, JoinHandle<()>), StartError> {
        if shared.settings.started.aclfile.is_some() {
            shared.settings.load_users().map_err(StartError::Acl)?;
        }
        let cores = core::make(shared, listeners, count).map_err(StartError::Threads)?;
        let (shared, databases) = (shared.clone(), shared.databases.clone());
        let reap = move || {
            shared.or_stop("removes what was deleted", || reaper::run(&databases));
        };
        let reaper = named("hither-reap").spawn(reap).map_err(StartError::Threads)?;
        Ok((cores, reaper))
    }

    /// Starts the serving threads, and the one for metrics.
    fn begin(&mut self, cores: Vec<core::Core>, metrics: Option<TcpListener>) -> std::io::Result<()> {
        if let Some(listener) = metrics {
            let (shared, ended) = (self.shared.clone(), self.ended.clone());
            let serve = move || {
                let outcome = shared.or_stop("serves metrics", || crate::metrics::http::run(&shared, listener, &ended));
                if let Some(Err(error)) = outcome {
                    events::log(Level::Error, "metrics-ended", &[("why", &error)]);
                }
            };
            self.metrics = Some(named("hither-metrics").spawn(serve)?);
        }
        let count = cores.len();
        for (index, mut core) in cores.into_iter().enumerate() {
            let shared = self.shared.clone();
            let serve = move || {
                pin(index, count);
                if !shared.settings.started.wakeup_preemption {
                    // Where the system refuses this, the server is only slower.
                    let _ = forgo_wakeup_preemption();
                }
                shared.or_stop("serves clients", || core.run());
                shared.cores[index].note_end();
            };
            self.threads.push(named(&format!("hither-serve-{index}")).spawn(serve)?);
        }
        Ok(())
    }

    /// The first address that it listens at, with the port that was actually taken.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address that it listens at for TLS, if any.
    pub fn tls_address(&self) -> Option<SocketAddr> {
        self.tls_address
    }

    /// The address that it serves metrics at, if any.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// The state that its threads share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Stops the server when the process receives SIGTERM or SIGINT. A SIGINT during the stop kills the process as
    /// usual, which is what a user at a terminal wants. A second SIGTERM does not, because timeout(1) sends it both to
    /// the process and to its group. SIGHUP makes the server read its certificates again.
    ///
    /// # Errors
    /// The system's, if it refuses the handlers.
    pub fn stop_at_signals(&self) -> std::io::Result<()> {
        signal_hook::flag::register(signal_hook::consts::SIGHUP, self.shared.reload.clone())?;
        signal_hook::flag::register_conditional_default(signal_hook::consts::SIGINT, self.shared.stopping.clone())?;
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
            signal_hook::flag::register(signal, self.shared.stopping.clone())?;
        }
        Ok(())
    }

    /// Stops the server and waits until it has ended.
    pub fn stop(self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        // The caller wants it to end; why it may have ended before is in the log.
        let _ = self.wait();
    }

    /// Waits until the server ends: because [`Shared::stopping`] was set, for example by SHUTDOWN.
    ///
    /// # Errors
    /// The server has ended by itself because it could not go on; see [`Shared::fail_stop`].
    pub fn wait(self) -> Result<(), Ended> {
        for thread in self.threads {
            // A panic there was printed; the other threads end in order.
            let _ = thread.join();
        }
        self.shared.saving.join();
        self.shared.changes.finish();
        // Until here the metrics thread has reported that the server stops.
        self.ended.store(true, Ordering::Release);
        self.metrics.map(JoinHandle::join);
        self.shared.databases.reaper.stop();
        let _ = self.reaper.join();
        let why = self.shared.ended_because.lock().take();
        // No orderly end is marked after a panic, which may have left anything; and marking it may fail. The next start
        // then mends whatever there may be to mend.
        let _ = why.is_none().then(|| self.shared.databases.mark.end(&self.shared.databases.db));
        why.map_or(Ok(()), |why| Err(Ended(why)))
    }
}

/// Checks the files that the settings name, before the caller opens or makes a store for a server: [`Server::start`]
/// would refuse them afterwards.
///
/// # Errors
/// [`StartError::File`], [`StartError::Tls`], [`StartError::Acl`].
pub fn check_files(config: &Config) -> Result<(), StartError> {
    if let Some(tls) = &config.tls {
        let paths = [Some(&tls.cert_file), Some(&tls.key_file), tls.ca_cert_file.as_ref()];
        if can_be_read_twice(paths.into_iter().flatten())? {
            tls::Tls::load(tls.clone()).map_err(StartError::Tls)?;
        }
    }
    if let Some(path) = &config.aclfile
        && can_be_read_twice([path].into_iter())?
    {
        Acl::new(None, Some(path.clone())).load().map_err(StartError::Acl)?;
    }
    Ok(())
}

/// Whether all of these files can be read now and once more: what comes from a pipe would be gone.
fn can_be_read_twice<'a>(mut paths: impl Iterator<Item = &'a PathBuf>) -> Result<bool, StartError> {
    paths.try_fold(true, |all, path| {
        let read = || match std::fs::metadata(path) {
            Ok(found) if comes_once(found.file_type()) => Ok(false),
            // For a directory, this is an error.
            _ => File::open(path)?.read(&mut [0]).map(|_| all),
        };
        read().map_err(|source| StartError::File { path: path.clone(), source })
    })
}

/// Whether the file is a pipe or similar: what is read from it is gone then, and opening it waits for a writer.
fn comes_once(kind: FileType) -> bool {
    !kind.is_file() && !kind.is_dir()
}

/// Checks that a file which was read at the start can be read again, by a thread that must not wait for somebody to
/// write it.
///
/// # Errors
/// Why it cannot be read again.
pub(crate) fn can_be_read_again(path: &Path) -> Result<(), String> {
    match std::fs::metadata(path) {
        Ok(found) if comes_once(found.file_type()) => {
            Err(format!("{} is no regular file, so it is read at the start only", path.display()))
        }
        _ => Ok(()),
    }
}

/// Lowers the number of clients if the system does not let the process open so many files, and logs that.
fn bound_clients(config: &mut Config, reserved: usize) {
    let room = descriptors::room_for(config.max_clients, reserved);
    if room < config.max_clients {
        let limit = descriptors::limit();
        let fields: [(&str, &dyn std::fmt::Display); 4] = [
            ("asked", &config.max_clients),
            ("are", &room),
            ("open_files", &limit),
            ("why", &"the limit of open files (ulimit -n, LimitNOFILE) has no room for more"),
        ];
        events::log(Level::Warn, "max-clients-lowered", &fields);
        config.max_clients = room;
    }
}

fn named(name: &str) -> std::thread::Builder {
    std::thread::Builder::new().name(name.to_owned())
}

/// Pins this thread, one of `count`, to one of the processors that the process may use, provided that each of these
/// gets a thread. Fewer threads would end up where those of other servers are, which count in the same way. Where the
/// system refuses, the scheduler decides: slower, but not wrong.
pub(crate) fn pin(index: usize, count: usize) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let processors: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|processor| allowed.is_set(*processor)).collect();
    if count >= processors.len()
        && let Some(processor) = processors.get(index % processors.len().max(1))
    {
        let mut set = CpuSet::new();
        set.set(*processor);
        let _ = sched_setaffinity(None, &set);
    }
}

/// Lets this thread, started by a pinned one, and those that it starts run on all processors that the process may use.
/// Where the system refuses, the thread is slower and gets in the way of clients.
pub(crate) fn unpin() {
    if let Ok(all) = sched_getaffinity(Some(getpid())) {
        let _ = sched_setaffinity(None, &all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Session;
    use hither_resp::Args;
    use std::time::{Duration, Instant};

    #[test]
    fn a_panic_of_a_thread_ends_the_server() {
        let db = Db::builder().in_memory().open().unwrap();
        let start = || Server::start(db.clone(), Config { port: 0, threads: 2, ..Config::default() }).unwrap();
        let server = start();
        server.shared().or_stop("serves clients", || -> () { panic!("for the test") });
        assert!(server.wait().unwrap_err().to_string().contains("has panicked"));
        // That was no orderly end.
        for mends in [true, false] {
            let server = start();
            assert_eq!(server.shared().databases.mended.is_some(), mends);
            server.stop();
        }
    }

    /// Regression: nobody noticed, and what was deleted stayed.
    #[test]
    fn so_does_one_of_the_thread_that_removes_what_was_deleted() {
        let db = Db::builder().in_memory().open().unwrap();
        let server = Server::start(db, Config { port: 0, threads: 1, ..Config::default() }).unwrap();
        let shared = server.shared().clone();
        *shared.databases.reaper.between_looks.lock() = Some(Box::new(|| panic!("for the test")));
        let mut session = Session::new(shared.clone(), shared.clients.add("test".into(), "test".into(), 0));
        for command in [&["hset", "h", "f", "v"][..], &["del", "h"]] {
            let (bytes, mut ranges) = (command.concat(), Vec::new());
            command.iter().fold(0, |at, word| {
                ranges.push(at..at + word.len());
                at + word.len()
            });
            session.execute(&shared, Args::new(bytes.as_bytes(), &ranges), &mut Vec::new());
        }
        let end = Instant::now() + Duration::from_secs(20);
        while !server.reaper.is_finished() {
            assert!(Instant::now() < end, "it has not panicked");
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(shared.stopping.load(Ordering::Acquire));
        assert!(server.wait().unwrap_err().to_string().contains("has panicked"));
    }
}
