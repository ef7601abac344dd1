//! The append limit: 32-byte records, one after the other, with a flush of the line and a fence after each.
//!
//! Each thread has its own mapping of an unlinked tmpfs file on huge pages, touched beforehand. A thread that reaches
//! the end starts again at the beginning. Records do not straddle lines (two per line), just as the entries of a log
//! with only such pairs do not.
//!
//! Thread safety: a thread writes only to its own mapping.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate};
use serde::Serialize;

use super::flush::{Flush, fence};
use super::huge::HugeMapping;
use crate::harness::pin::pin_thread;
use crate::target::{Error, Result};

const RECORD_BYTES: usize = 32;

/// The measurement to run.
#[derive(Clone, Debug)]
pub struct AppendLimit<'a> {
    /// Number of writers.
    pub threads: usize,
    /// How long to write.
    pub duration: Duration,
    /// Length of each thread's mapping in bytes.
    pub bytes_per_thread: usize,
    /// A directory on tmpfs.
    pub directory: &'a Path,
}

/// The result of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct AppendFigure {
    /// Records per second of all threads together.
    pub ops_per_s: f64,
    /// Number of writers.
    pub threads: usize,
    /// Name of the flush instruction.
    pub flush: &'static str,
    /// True if the kernel made huge pages.
    pub huge_pages: bool,
}

impl AppendLimit<'_> {
    /// Runs the yardstick.
    pub fn run(&self) -> Result<AppendFigure> {
        let mappings = (0..self.threads).map(|_| self.mapping()).collect::<Result<Vec<_>>>()?;
        let (barrier, stop, flush) = (Barrier::new(self.threads + 1), AtomicBool::new(false), Flush::detect());
        let huge_pages = mappings.iter().all(HugeMapping::advised);
        let total = std::thread::scope(|scope| {
            let start = |(i, mapping)| {
                let (barrier, stop, threads) = (&barrier, &stop, self.threads);
                scope.spawn(move || {
                    pin_thread(i, threads);
                    barrier.wait();
                    write_until(stop, mapping, flush)
                })
            };
            let workers: Vec<_> = mappings.iter().enumerate().map(start).collect();
            barrier.wait();
            std::thread::sleep(self.duration);
            stop.store(true, Ordering::Relaxed);
            workers.into_iter().map(|w| w.join().expect("a yardstick thread does not panic")).sum()
        });
        Ok(AppendFigure { ops_per_s: total, threads: self.threads, flush: flush.name(), huge_pages })
    }

    fn mapping(&self) -> Result<HugeMapping> {
        let name = format!(".hither-append-{}-{:p}", std::process::id(), self);
        let path = self.directory.join(name);
        let what = || format!("the append yardstick's file {}", path.display());
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path).map_err(|e| Error::io(what(), e))?;
        std::fs::remove_file(&path).map_err(|e| Error::io(what(), e))?;
        let len = self.bytes_per_thread.next_multiple_of(2 << 20);
        // With pages behind all of it: touching a page for which there is no room would end the process (SIGBUS).
        let room = || format!("reserving {} MiB in {} for the append yardstick", len >> 20, self.directory.display());
        fallocate(&file, FallocateFlags::empty(), 0, len as u64).map_err(|e| Error::io(room(), e))?;
        let mut mapping = HugeMapping::of_file(&file, len)?;
        mapping.touch();
        Ok(mapping)
    }
}

/// Writes records until `stop` is set; returns records per second.
fn write_until(stop: &AtomicBool, mapping: &HugeMapping, flush: Flush) -> f64 {
    let (base, records) = (mapping.start().cast::<[u64; 4]>(), mapping.len() / RECORD_BYTES);
    let (start, mut written, mut at) = (Instant::now(), 0u64, 0usize);
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..256 {
            // SAFETY: `at < records`, so the record lies inside this thread's own mapping, aligned to 32 bytes.
            unsafe {
                let place = base.add(at);
                place.write_volatile([written, !written, written ^ 0x5555, 1]);
                flush.line(place.as_ptr().cast());
            }
            fence();
            written += 1;
            at = if at + 1 == records { 0 } else { at + 1 };
        }
    }
    written as f64 / start.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the file was only as long as the mapping, without pages behind it, so that touching it on a full
    /// tmpfs ended the program.
    #[test]
    fn room_that_is_not_there_is_an_error() {
        let limit = AppendLimit { threads: 1, duration: Duration::ZERO, bytes_per_thread: 1 << 45, directory: Path::new("/dev/shm") };
        let message = limit.run().expect_err("there is not as much").to_string();
        assert!(message.contains("reserving") && message.contains("/dev/shm"), "{message}");
    }

    #[test]
    fn writes_and_wraps_around() {
        let directory = tempfile::tempdir().expect("a directory");
        let limit = AppendLimit { threads: 2, duration: Duration::from_millis(30), bytes_per_thread: 1, directory: directory.path() };
        let figure = limit.run().expect("a figure");
        assert!(figure.ops_per_s > 0.0 && figure.threads == 2);
        assert_eq!(std::fs::read_dir(directory.path()).expect("readable").count(), 0, "the files are unlinked");
    }
}
