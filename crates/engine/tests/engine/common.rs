//! Helpers that several modules use.

use hither_engine::{Durability, KeyspaceHandle, Options, Store};
use hither_topology::Topology;
use std::path::Path;
use std::sync::Arc;

/// Where the descriptors of a pool begin, and their length (`docs/format.md`).
pub const TABLE: usize = 139_264;
pub const DESCRIPTOR: usize = 128;

/// A directory on tmpfs. If there is none, this is counted, and the test or this part of it is skipped.
pub fn on_tmpfs() -> Option<tempfile::TempDir> {
    let dir = tempfile::tempdir_in("/dev/shm").ok();
    if dir.is_none() {
        skipped("without_shm");
    }
    dir
}

/// Counts a test that cannot be run here. Writes to standard output itself, because the output of a test that passes is
/// not shown. Its reader may be gone.
pub fn skipped(why: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stdout(), format!("HITHER_COUNT skipped_{why} 1\n").as_bytes());
}

/// Options of a store of 128 segments in two shards, without background threads.
pub fn small() -> Options {
    Options {
        capacity: 8 << 20,
        max_capacity: 8 << 20,
        segment_bytes: 64 << 10,
        shards: 2,
        topology: Some(Arc::new(Topology::single())),
        durability: Durability::Process,
        background: false,
        ..Options::default()
    }
}

/// The number after `random` in a sequence without order. The higher the bit the better.
pub fn scrambled(random: u64) -> u64 {
    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
}

/// A sequence of such numbers below a bound.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = scrambled(self.0);
        (self.0 >> 33) % bound
    }
}

/// Puts, durable at the store's level.
pub fn put(store: &Store, keyspace: &KeyspaceHandle, key: &[u8], value: &[u8]) {
    store.write_wait(keyspace, key, Some(value)).unwrap();
}

/// The value of a key.
pub fn get(store: &Store, keyspace: &KeyspaceHandle, key: &[u8]) -> Option<Vec<u8>> {
    store.get_with(keyspace, key, <[u8]>::to_vec).unwrap()
}

/// What a crash of the process leaves of a store on files: a copy of these as they are now.
pub fn crash(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(dir).unwrap().map(Result::unwrap).filter(|file| file.path().is_file()) {
        std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    copy
}

/// Changes the last place in the file that holds `held`.
pub fn damage(pool: &Path, held: &[u8], change: impl FnOnce(&mut [u8])) {
    let mut bytes = std::fs::read(pool).unwrap();
    let at = bytes.windows(held.len()).rposition(|window| window == held).expect("it is there");
    change(&mut bytes[at..at + held.len()]);
    std::fs::write(pool, bytes).unwrap();
}
