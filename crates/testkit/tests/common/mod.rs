//! What several test programs share: stores on every kind of medium, child processes to be killed, and a clock that all
//! processes share.

#![allow(dead_code, reason = "each test program uses a part of it")]

use hither_engine::{CacheSetting, Durability, KeyspaceHandle, Kind, MediumChoice, Options, Store};
use hither_pmem::{CreateOptions, Emulate, OpenOptions, Pool};
use hither_topology::Topology;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// A small generator of numbers (SplitMix64): the same seed gives the same numbers.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Nanoseconds of a monotonic clock that all processes share.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A directory in memory, where syncs cost nothing; on disk if there is no /dev/shm.
pub fn shm() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() { tempfile::tempdir_in(shm).unwrap() } else { tempfile::tempdir().unwrap() }
}

/// The medium of a killed child's store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setup {
    /// Private memory; only what was flushed and fenced reaches the file.
    ShadowAdr,
    /// Private memory; only what was synced reaches the file.
    ShadowFile,
    /// As `ShadowFile`, but writes are acknowledged without a sync.
    ShadowTooEarly,
    /// A file: a kill loses nothing that was stored.
    File,
    /// tmpfs treated as persistent memory.
    ForcedDax,
    /// As `ForcedDax`, over two emulated nodes, with a cache that is always on.
    Cached,
}

const ALL: [Setup; 6] = [Setup::ShadowAdr, Setup::ShadowFile, Setup::ShadowTooEarly, Setup::File, Setup::ForcedDax, Setup::Cached];

impl Setup {
    pub fn durability(self) -> Durability {
        if self == Setup::ShadowTooEarly { Durability::Process } else { Durability::Sync }
    }

    /// Opens or creates the store.
    pub fn open(self, dir: &Path) -> Store {
        let base = Options {
            capacity: 1 << 20,
            max_capacity: 64 << 20,
            segment_bytes: 16 << 10,
            durability: self.durability(),
            ..Options::default()
        };
        let options = match self {
            Setup::ShadowAdr => shadow(base, dir, Emulate::Adr),
            Setup::ShadowFile | Setup::ShadowTooEarly => shadow(base, dir, Emulate::File),
            Setup::File => Options { paths: vec![(None, dir.to_owned())], medium: MediumChoice::File, ..base },
            Setup::ForcedDax | Setup::Cached => {
                let memory = std::path::Path::new("/dev/shm").is_dir();
                let medium = if memory { MediumChoice::ForcedDax } else { MediumChoice::File };
                Options { paths: vec![(None, dir.to_owned())], medium, ..base }
            }
        };
        if self != Setup::Cached {
            return Store::open(options).unwrap_or_else(|error| panic!("{self:?}: {error}"));
        }
        let cache = CacheSetting { bytes: Some(1 << 20), forced: true, ..CacheSetting::default() };
        let store = Store::open(Options { topology: Some(Arc::new(Topology::emulated(2))), cache, ..options });
        let store = store.unwrap_or_else(|error| panic!("{self:?}: {error}"));
        // Without this, kills come before the first tick of maintenance.
        store.tick_cache();
        assert_eq!(store.stats().cache.state.name(), "on");
        store
    }
}

/// Options for a store over one shadow file that follows the rules of `emulate`.
fn shadow(base: Options, dir: &Path, emulate: Emulate) -> Options {
    let path = dir.join("node0.hither");
    let (capacity, max, segment) = (base.capacity, base.max_capacity, base.segment_bytes);
    let open = move || {
        let opened = OpenOptions { medium: MediumChoice::ShadowFile, emulate: Some(emulate), ..OpenOptions::new() };
        let create = CreateOptions {
            segment_bytes: segment,
            max_bytes: max,
            medium: MediumChoice::ShadowFile,
            emulate: Some(emulate),
            ..CreateOptions::new(capacity)
        };
        match Pool::open(&path, &opened) {
            Ok(pool) => Ok(vec![pool]),
            Err(hither_pmem::Error::NotFound { .. } | hither_pmem::Error::HalfCreated { .. }) => {
                let pool = Pool::create(&path, &create)?;
                pool.finish_creation()?;
                Ok(vec![pool])
            }
            Err(error) => Err(error),
        }
    };
    Options { pools: Some(Arc::new(open)), ..base }
}

/// Opens or creates an ordered and a hash keyspace.
pub fn keyspaces(store: &Store) -> [KeyspaceHandle; 2] {
    [("ordered", Kind::Ordered), ("hash", Kind::Hash)].map(|(name, kind)| match store.open_keyspace(name) {
        Some(handle) => handle,
        None => store.create_keyspace(name, kind).unwrap(),
    })
}

/// The work of a child.
#[derive(Clone, Debug)]
pub struct Work {
    pub setup: Setup,
    pub dir: PathBuf,
    pub round: u64,
}

const VARIABLE: &str = "HITHER_TEST_WORK";

/// Kills a child, which must not have ended otherwise before.
#[track_caller]
pub fn kill(child: &mut Child) {
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(9), "the child was not killed: {status}");
}

impl Work {
    /// The work of this process, if it is a child. A panic on any thread of a child aborts the whole child. Otherwise
    /// the other threads would go on until the kill, and the panic would go unnoticed.
    pub fn from_environment() -> Option<Work> {
        let text = std::env::var(VARIABLE).ok()?;
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            report(panic);
            std::process::abort();
        }));
        let mut words = text.splitn(3, ' ');
        let setup = words.next()?;
        let setup = ALL.into_iter().find(|known| format!("{known:?}") == setup)?;
        Some(Work { setup, round: words.next()?.parse().ok()?, dir: words.next()?.into() })
    }

    /// Starts a child that runs the test `name`, and waits until it has printed READY.
    pub fn spawn(&self, name: &str) -> Child {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture", "--test-threads", "1"])
            .env(VARIABLE, format!("{:?} {} {}", self.setup, self.round, self.dir.display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.contains("READY")), "the child of round {} failed", self.round);
        child
    }
}
