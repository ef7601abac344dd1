//! A counter of visits: who came how often, and who came last. Run it with `cargo run --example visits -- DIR NAME...`.
//!
//! Each visit is one batch over two keyspaces. If another thread counted the same visitor meanwhile, the batch is built
//! and committed again, so the counter may run in many threads.

use hither::{Batch, Db, Error, Keyspace, KeyspaceOptions, Result};
use std::process::ExitCode;

struct Visits {
    db: Db,
    /// Number of visits, by name of the visitor.
    counts: Keyspace,
    /// Name of the visitor, by number of the visit, in order.
    log: Keyspace,
}

impl Visits {
    fn open(dir: &str) -> Result<Visits> {
        // A small store: it grows to 64 MiB at most.
        let db = Db::builder().path(dir).capacity(8 << 20).max_capacity(64 << 20).open()?;
        Ok(Visits { counts: db.keyspace_with("counts", KeyspaceOptions::hash())?, log: db.keyspace("log")?, db })
    }

    /// Counts a visit, durably. Returns how many visits of this name there have been.
    fn count(&self, name: &str) -> Result<u64> {
        loop {
            let found = self.counts.get_versioned(name.as_bytes())?;
            let count = 1 + found.as_ref().map_or(0, |(count, _)| number(count));
            let next = self.log.iter().next_back().transpose()?.map_or(0, |(last, _)| number(&last) + 1);
            match self.visit(name, count, next, found.map(|(_, version)| version)).commit() {
                Err(Error::PreconditionFailed { .. }) => {}
                outcome => return outcome.map(|()| count),
            }
        }
    }

    fn visit(&self, name: &str, count: u64, next: u64, version: Option<u64>) -> Batch {
        let mut batch = self.db.batch();
        batch.require_version(&self.counts, name.as_bytes(), version).require_version(&self.log, &next.to_be_bytes(), None);
        batch.put(&self.counts, name.as_bytes(), &count.to_be_bytes()).put(&self.log, &next.to_be_bytes(), name.as_bytes());
        batch
    }

    /// The last visitors as of one moment, the newest first.
    fn last(&self, limit: usize) -> Result<Vec<String>> {
        let pairs = self.db.snapshot().iter(&self.log);
        pairs.rev().take(limit).map(|pair| pair.map(|(_, name)| String::from_utf8_lossy(&name).into_owned())).collect()
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_be_bytes)
}

fn run(dir: &str, names: impl Iterator<Item = String>) -> Result<()> {
    let visits = Visits::open(dir)?;
    for name in names {
        println!("{name}: {}", visits.count(&name)?);
    }
    println!("last: {}", visits.last(5)?.join(", "));
    // Dropping the store would close it, too, but would not report an error.
    visits.db.close()
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(dir) = arguments.next() else {
        eprintln!("visits DIR NAME...");
        return ExitCode::from(2);
    };
    match run(&dir, arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
