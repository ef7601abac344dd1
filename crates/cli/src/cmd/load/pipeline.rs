//! Threads of a load: one reads, several write, one waits for durability.
//!
//! ```text
//! reader ─ groups, split by hash of the key ─► writers ─ tickets ─► committer ─► report(first N records are durable)
//! ```
//!
//! Thread safety: all hand-over is by bounded channels. Invariants:
//! - all records of a key go through the same writer, in the order of the input, so the last one wins;
//! - every writer gets a part, perhaps empty, of every group, in order: the committer needs no reordering;
//! - N is reported only after every ticket of the first N records has been waited for. Writers do not wait: while the
//!   committer waits for one group, the next groups are written, so that commits of the store overlap with writes.
//!
//! When a write fails, its writer stops. The committer reports the records before the first failed one and ends, which
//! ends the other threads.

use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, Builder};

use hither::{Keyspace, Ticket, WriteOptions};

use crate::failure::Failure;
use crate::input::Record;

/// Most groups that wait for a writer.
const GROUPS_TO_WRITE: usize = 4;
/// Most groups that wait for durability: enough that writers do not stop between two syncs of the interval level.
const GROUPS_TO_COMMIT: usize = 64;
/// A group ends at this many bytes of keys and values, however few records it has.
const GROUP_BYTES: usize = 4 << 20;

/// Settings of a load.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Number of threads that write.
    pub threads: usize,
    /// Most records of one group.
    pub group: usize,
    /// Skip records that are in the store already.
    pub resume: bool,
}

/// Result of a load.
#[derive(Debug)]
pub struct Loaded {
    /// Number of records at the beginning of the input that are durable.
    pub durable: u64,
    /// Records that were in the store already.
    pub unchanged: u64,
    /// Why the load ended early.
    pub result: Result<(), Failure>,
}

/// Loads the records that `feed` pushes. Calls `report` with the number of durable records after each group.
pub fn run(
    keyspace: &Keyspace,
    plan: &Plan,
    feed: impl FnOnce(&mut Feeder) -> Result<(), Failure>,
    report: impl FnMut(u64) + Send,
) -> Loaded {
    thread::scope(|scope| {
        let (mark, marks) = sync_channel(GROUPS_TO_WRITE);
        let (mut lanes, mut writers) = (Vec::new(), Vec::new());
        for _ in 0..plan.threads {
            let (lane, parts) = sync_channel(GROUPS_TO_WRITE);
            let (done, written) = sync_channel(GROUPS_TO_COMMIT);
            let started = Builder::new().spawn_scoped(scope, move || write_lane(keyspace, plan.resume, &parts, &done));
            if let Err(source) = started {
                // The other threads end when their lanes are dropped.
                return Loaded::not_begun(source);
            }
            lanes.push(lane);
            writers.push(written);
        }
        let committer = match Builder::new().spawn_scoped(scope, move || commit(&marks, &writers, report)) {
            Ok(committer) => committer,
            Err(source) => return Loaded::not_begun(source),
        };
        let mut feeder = Feeder::new(lanes, mark, plan.group);
        let fed = feed(&mut feeder);
        // If the input is refused and all records before that were skipped, nothing is reported.
        if fed.is_ok() || feeder.pending > 0 {
            // A writer that has ended has sent the reason to the committer.
            let _ = feeder.end_group();
        }
        drop(feeder);
        let mut loaded = committer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        loaded.result = loaded.result.and(fed);
        loaded
    })
}

impl Loaded {
    fn not_begun(source: io::Error) -> Loaded {
        let what = "starting the threads of the load (a limit of processes or memory is reached)".into();
        Loaded { durable: 0, unchanged: 0, result: Err(Failure::Io { what, source }) }
    }
}

/// A record and its position in the input, from zero.
type Placed = (u64, Record);

/// The writers have ended, because a write failed.
#[derive(Debug)]
pub struct Stopped;

/// Distributes records to the writers.
pub struct Feeder {
    lanes: Vec<SyncSender<Vec<Placed>>>,
    marks: SyncSender<u64>,
    parts: Vec<Vec<Placed>>,
    group: usize,
    position: u64,
    pending: usize,
    pending_bytes: usize,
}

impl Feeder {
    fn new(lanes: Vec<SyncSender<Vec<Placed>>>, marks: SyncSender<u64>, group: usize) -> Self {
        let parts = lanes.iter().map(|_| Vec::new()).collect();
        Self { lanes, marks, parts, group, position: 0, pending: 0, pending_bytes: 0 }
    }

    /// Counts a record of the input that an earlier load made durable.
    pub fn pass_over(&mut self) {
        self.position += 1;
    }

    /// Hands a record to its writer.
    pub fn push(&mut self, record: Record) -> Result<(), Stopped> {
        self.pending += 1;
        self.pending_bytes += record.key.len() + record.value.len();
        let lane = lane_of(&record.key, self.lanes.len());
        self.parts[lane].push((self.position, record));
        self.position += 1;
        if self.pending >= self.group || self.pending_bytes >= GROUP_BYTES {
            return self.end_group();
        }
        Ok(())
    }

    fn end_group(&mut self) -> Result<(), Stopped> {
        for (lane, part) in self.lanes.iter().zip(&mut self.parts) {
            lane.send(std::mem::take(part)).map_err(|_| Stopped)?;
        }
        (self.pending, self.pending_bytes) = (0, 0);
        self.marks.send(self.position).map_err(|_| Stopped)
    }
}

fn lane_of(key: &[u8], lanes: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    hasher.write(key);
    (hasher.finish() % lanes as u64) as usize
}

/// Result of a writer for its part of a group.
#[derive(Default)]
struct Written {
    /// Writes that are not durable yet.
    tickets: Vec<(u64, Ticket)>,
    unchanged: u64,
    failed: Option<(u64, hither::Error)>,
}

fn write_lane(keyspace: &Keyspace, resume: bool, parts: &Receiver<Vec<Placed>>, done: &SyncSender<Written>) {
    for part in parts {
        let written = write_part(keyspace, resume, part);
        let stop = written.failed.is_some();
        if done.send(written).is_err() || stop {
            return;
        }
    }
}

fn write_part(keyspace: &Keyspace, resume: bool, part: Vec<Placed>) -> Written {
    let mut written = Written::default();
    for (position, record) in part {
        match write(keyspace, resume, &record) {
            Ok(None) => written.unchanged += 1,
            Ok(Some(ticket)) if ticket.is_durable() => {}
            Ok(Some(ticket)) => written.tickets.push((position, ticket)),
            Err(error) => {
                written.failed = Some((position, error));
                break;
            }
        }
    }
    written
}

/// Writes a record; `None` if it is in the store already.
fn write(keyspace: &Keyspace, resume: bool, record: &Record) -> hither::Result<Option<Ticket>> {
    if resume && is_there(keyspace, record)? {
        return Ok(None);
    }
    let options = WriteOptions::new().expires_at_ms(record.expires_at_ms);
    keyspace.put_with(&record.key, &record.value, &options).map(Some)
}

/// Whether the record is in the store with the same expiry; durably, if reads wait for durability.
fn is_there(keyspace: &Keyspace, record: &Record) -> hither::Result<bool> {
    let same = keyspace.get_with(&record.key, |value| value == record.value)? == Some(true);
    // The value cannot change between the two reads: all records of a key go through one thread.
    Ok(same && keyspace.peek_with(&record.key, |_, found| found.expires_at_ms == record.expires_at_ms)?.0 == Some(true))
}

/// Waits for one group after another. Each mark is the position in the input at which a group ends.
fn commit(marks: &Receiver<u64>, writers: &[Receiver<Written>], mut report: impl FnMut(u64)) -> Loaded {
    let mut loaded = Loaded { durable: 0, unchanged: 0, result: Ok(()) };
    for end in marks {
        match commit_group(writers, &mut loaded.unchanged) {
            Group::Durable => loaded.durable = end,
            Group::Failed(position, error) => {
                loaded.durable = position;
                loaded.result = Err(error.into());
            }
            // Nothing of this group may be reported. The scope of the threads propagates the panic.
            Group::WriterPanicked => break,
        }
        report(loaded.durable);
        if loaded.result.is_err() {
            break;
        }
    }
    loaded
}

/// Outcome of a group.
enum Group {
    Durable,
    /// Position of the first record that failed; the records before it are durable.
    Failed(u64, hither::Error),
    WriterPanicked,
}

/// Waits for all writes of a group.
fn commit_group(writers: &[Receiver<Written>], unchanged: &mut u64) -> Group {
    let mut failures = Vec::new();
    for writer in writers {
        // A writer that meets an error still sends what it has done.
        let Ok(written) = writer.recv() else { return Group::WriterPanicked };
        *unchanged += written.unchanged;
        failures.extend(written.failed);
        failures.extend(written.tickets.into_iter().filter_map(|(position, ticket)| Some((position, ticket.wait().err()?))));
    }
    match failures.into_iter().min_by_key(|(position, _)| *position) {
        None => Group::Durable,
        Some((position, error)) => Group::Failed(position, error),
    }
}
