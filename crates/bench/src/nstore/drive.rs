//! The parts that the experiments share: threads that start together and are timed by the clock and by the processor,
//! and a loaded store.
//!
//! Rates by the clock show what the machine did. Processor time excludes what other programs took of the processor
//! meanwhile, so it is steadier on a shared machine. Neither includes the drawing of keys before. Processor time
//! includes the check of every byte read.

use std::path::Path;
use std::sync::Barrier;
use std::time::Instant;

use hither::{Builder, Db, Keyspace, KeyspaceOptions, OrderedKind};

use crate::harness::pin;
use crate::harness::scratch::{Kind, Scratch};
use crate::target::store::Index;
use crate::target::{Error, Result};
use crate::workload::data::{fill_rising, is_rising_from};
use crate::workload::permutation::Permutation;

/// The speed of threads that ran together.
#[derive(Clone, Copy, Debug)]
pub struct Timed {
    /// Million operations per second, from the first start to the last end.
    pub mops: f64,
    /// Processor time per operation in nanoseconds.
    pub cpu_ns: f64,
}

/// Runs `body(thread)` on threads that start together. Each does `ops` operations.
pub fn race(threads: usize, ops: u64, body: impl Fn(usize) -> Result<()> + Sync) -> Result<Timed> {
    pin::prepare();
    let barrier = Barrier::new(threads);
    let one = |thread: usize| {
        pin::pin_thread(thread, threads);
        barrier.wait();
        let (start, used) = (Instant::now(), processor_ns());
        body(thread)?;
        Ok((start, Instant::now(), processor_ns() - used))
    };
    let each = std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || one(thread))).collect();
        let join =
            |thread: std::thread::ScopedJoinHandle<'_, Result<_>>| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        threads.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    let all = (ops * threads as u64).max(1) as f64;
    let (first, last) = each.iter().fold((each[0].0, each[0].1), |(first, last), (start, end, _)| (first.min(*start), last.max(*end)));
    let cpu_ns = each.iter().map(|(.., used)| used).sum::<f64>() / all;
    Ok(Timed { mops: all / (last - first).as_secs_f64().max(1e-9) / 1e6, cpu_ns })
}

/// Processor time of this thread in nanoseconds.
pub fn processor_ns() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Converts an error of hither to an error of this program.
pub fn failed(error: hither::Error) -> Error {
    Error::store("hither", error)
}

/// A directory on tmpfs, removed with the value.
pub fn directory() -> Result<Scratch> {
    Scratch::new(Kind::Nstore, Path::new("/dev/shm"))
}

/// An open store with a keyspace.
pub struct Opened {
    /// The store.
    pub db: Db,
    /// Its keyspace.
    pub keyspace: Keyspace,
}

impl Opened {
    /// Creates a store with a keyspace.
    pub fn new(builder: Builder, index: Index) -> Result<Opened> {
        let kind = if index == Index::Learned { OrderedKind::Learned } else { OrderedKind::BTree };
        let db = builder.ordered_index(kind).open().map_err(failed)?;
        let options = if index == Index::Hash { KeyspaceOptions::hash() } else { KeyspaceOptions::ordered() };
        let keyspace = db.create_keyspace("bench", options).map_err(failed)?;
        Ok(Opened { db, keyspace })
    }

    /// Writes every item once, from several threads. Item `i` has the key `key(i)` and the value of `value_bytes` that
    /// [`fill`] makes of it.
    pub fn put_all<K: AsRef<[u8]>>(&self, items: u64, value_bytes: usize, threads: usize, key: impl Fn(u64) -> K + Sync) -> Result<Timed> {
        let each = items / threads as u64;
        race(threads, each, |thread| {
            let mut value = vec![0; value_bytes];
            let end = if thread + 1 == threads { items } else { (thread as u64 + 1) * each };
            for item in thread as u64 * each..end {
                fill(&mut value, item);
                self.keyspace.put(key(item).as_ref(), &value).map_err(failed)?;
            }
            Ok(())
        })
    }

    /// Reads `ops` items per thread in a permuted order and checks them; their values have `value_bytes`.
    pub fn get_permuted<K: AsRef<[u8]>>(
        &self,
        items: u64,
        value_bytes: usize,
        ops: u64,
        threads: usize,
        key: impl Fn(u64) -> K + Sync,
    ) -> Result<Timed> {
        let orders: Vec<Vec<u64>> = (0..threads).map(|thread| permuted(items, ops, start(items, thread, threads))).collect();
        race(threads, ops, |thread| {
            for &item in &orders[thread] {
                let right = self.keyspace.get_with(key(item).as_ref(), |value| is_of(value, value_bytes, item)).map_err(failed)?;
                if right != Some(true) {
                    return Err(Error::WrongData(format!("item {item} is not what was written")));
                }
            }
            Ok(())
        })
    }
}

/// The position in the order of `items` at which a thread begins: no two threads read the same items in step.
fn start(items: u64, thread: usize, threads: usize) -> u64 {
    thread as u64 * items / threads as u64
}

/// `count` items of the permuted order, from position `start` on, cyclically.
fn permuted(items: u64, count: u64, start: u64) -> Vec<u64> {
    let order = Permutation::new(items, 7);
    (0..count).map(|i| order.at((start + i) % items)).collect()
}

/// Makes `value` the value of `item`: its number, cut off if there is no room, and words that follow from it.
pub fn fill(value: &mut [u8], item: u64) {
    fill_rising(item, value);
}

/// Whether `value` is the value of `item` with `bytes` bytes.
pub fn is_of(value: &[u8], bytes: usize, item: u64) -> bool {
    value.len() == bytes && is_rising_from(item, value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn a_race_counts_all_threads_and_reports_errors() {
        let done = AtomicU64::new(0);
        let timed = race(3, 1_000, |_| {
            done.fetch_add(1_000, Ordering::Relaxed);
            Ok(())
        });
        assert!(timed.unwrap().mops > 0.0);
        assert_eq!(done.load(Ordering::Relaxed), 3_000);
        assert!(race(2, 1, |thread| if thread == 1 { Err(Error::WrongData("x".into())) } else { Ok(()) }).is_err());
    }

    #[test]
    fn a_wrong_value_is_an_error() {
        let opened = Opened::new(Db::builder().in_memory(), Index::Ordered).unwrap();
        opened.put_all(1_000, 8, 2, u64::to_be_bytes).unwrap();
        assert_eq!(opened.keyspace.len(), 1_000);
        opened.get_permuted(1_000, 8, 1_000, 2, u64::to_be_bytes).unwrap();
        assert!(opened.get_permuted(1_000, 8, 1_000, 2, |item| (item ^ 1).to_be_bytes()).is_err());
    }

    /// Regression: of longer values only the first eight bytes were compared.
    #[test]
    fn every_byte_of_a_value_is_checked() {
        for bytes in [1, 7, 8, 9, 100, 300] {
            let mut value = vec![0; bytes];
            fill(&mut value, 77);
            assert!(is_of(&value, bytes, 77) && !is_of(&value, bytes, 78) && !is_of(&value[1..], bytes, 77));
            assert!(bytes == 1 || !is_of(&value[..bytes - 1], bytes, 77), "a shorter value of {bytes} bytes");
            for at in 0..bytes {
                value[at] ^= 1;
                assert!(!is_of(&value, bytes, 77), "byte {at} of {bytes}");
                value[at] ^= 1;
            }
        }
    }

    /// Regression: with three or more threads, two of them read the same items at the same time.
    #[test]
    fn no_two_threads_read_in_step() {
        for threads in 1..=256 {
            let starts: HashSet<u64> = (0..threads).map(|thread| permuted(1_000, 1, start(1_000, thread, threads))[0]).collect();
            assert_eq!(starts.len(), threads);
        }
        let seen: HashSet<u64> = permuted(1_000, 1_000, start(1_000, 2, 3)).into_iter().collect();
        assert_eq!(seen.len(), 1_000, "each item once");
    }
}
