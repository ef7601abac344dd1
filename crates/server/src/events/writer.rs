//! The thread that writes the log of a running server. Standard error may be a pipe whose reader has stopped: a thread
//! that wrote there itself would wait for the reader, and its clients would wait with it.
//!
//! Lines wait in a queue, in order. If [`MOST_BYTES`] of them wait, further lines are only counted, until the writer
//! comes for the queue; a line `lines-left-out` then stands where they would be.
//!
//! Thread safety: any thread. At a crash of the process, lines that wait are lost.

use super::left_out;
use parking_lot::{Condvar, Mutex};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maximum of the lines that wait, in bytes. Those that are being written count apart, so the log holds twice as much
/// at most.
const MOST_BYTES: usize = 1 << 20;

/// How long the end of a server waits for the reader of its log.
const PATIENCE: Duration = Duration::from_secs(1);

static QUEUE: Queue = Queue::new();
/// Whether a thread writes what is in the queue.
static IS_RUNNING: AtomicBool = AtomicBool::new(false);

/// While it lives, a thread of its own writes the log. Dropping it waits until all lines are written, for [`PATIENCE`]
/// at most; the process should then end.
pub struct Writer(());

impl Writer {
    /// Starts the thread. If the system has none, every thread goes on writing its lines itself.
    pub fn begin() -> Writer {
        let run = || {
            loop {
                QUEUE.write_some(&mut std::io::stderr());
            }
        };
        if std::thread::Builder::new().name("hither-log".into()).spawn(run).is_ok() {
            IS_RUNNING.store(true, Ordering::Release);
        }
        Writer(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        QUEUE.wait_until_written(Instant::now() + PATIENCE);
    }
}

/// Writes a line, or has the thread write it if there is one.
pub(super) fn put(line: &str) {
    if IS_RUNNING.load(Ordering::Acquire) { QUEUE.put(line) } else { write(&mut std::io::stderr(), line) }
}

/// In one write, so that lines stay whole. A failure cannot be reported anywhere.
fn write(out: &mut impl Write, line: &str) {
    let _ = out.write_all(line.as_bytes());
}

struct Queue {
    waiting: Mutex<Waiting>,
    /// Something waits.
    arrived: Condvar,
    /// The writer has written what it had taken.
    written: Condvar,
}

struct Waiting {
    lines: String,
    /// How many lines were left out behind these.
    left_out: u64,
    /// Whether the writer has taken lines that it has not written yet.
    is_writing: bool,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.left_out == 0
    }
}

impl Queue {
    const fn new() -> Queue {
        let waiting = Waiting { lines: String::new(), left_out: 0, is_writing: false };
        Queue { waiting: Mutex::new(waiting), arrived: Condvar::new(), written: Condvar::new() }
    }

    /// Adds a line, or counts it. Never waits for the writer.
    fn put(&self, line: &str) {
        let mut waiting = self.waiting.lock();
        // Behind one that is left out there are no others, so that the count stands in the right place.
        if waiting.left_out > 0 || waiting.lines.len() + line.len() > MOST_BYTES {
            waiting.left_out += 1;
        } else {
            waiting.lines.push_str(line);
        }
        self.arrived.notify_one();
    }

    /// Waits until there is something, and writes it.
    fn write_some(&self, out: &mut impl Write) {
        let (lines, count) = self.take();
        lines.split_inclusive('\n').for_each(|line| write(out, line));
        if let Some(line) = left_out(count, &"standard error did not take them in time") {
            write(out, &line);
        }
        self.waiting.lock().is_writing = false;
        self.written.notify_all();
    }

    /// Takes all lines, and how many were left out behind them.
    fn take(&self) -> (String, u64) {
        let mut waiting = self.waiting.lock();
        while waiting.is_empty() {
            self.arrived.wait(&mut waiting);
        }
        waiting.is_writing = true;
        (std::mem::take(&mut waiting.lines), std::mem::take(&mut waiting.left_out))
    }

    fn wait_until_written(&self, end: Instant) {
        let mut waiting = self.waiting.lock();
        while waiting.is_writing || !waiting.is_empty() {
            if self.written.wait_until(&mut waiting, end).timed_out() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_in_order_and_those_that_have_no_room_are_counted() {
        let queue = Queue::new();
        let line = |number: usize| format!("{number:099}\n");
        let room = MOST_BYTES / line(0).len();
        (0..room + 3).for_each(|number| queue.put(&line(number)));
        queue.put("short, and yet behind those\n");
        let mut out = Vec::new();
        queue.write_some(&mut out);
        queue.put("later\n");
        queue.write_some(&mut out);
        let out = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = out.split_inclusive('\n').collect();
        assert!(lines[..room].iter().enumerate().all(|(number, found)| *found == line(number)));
        assert!(lines[room].contains("level=warn event=lines-left-out count=4 why="), "{}", lines[room]);
        assert_eq!(&lines[room + 1..], ["later\n"]);
        queue.wait_until_written(Instant::now());
        assert!(queue.waiting.lock().lines.capacity() < MOST_BYTES, "what is written takes no memory");
    }

    #[test]
    fn the_end_waits_for_lines_but_not_for_ever() {
        let queue = Queue::new();
        queue.put("nobody takes it\n");
        queue.wait_until_written(Instant::now() + Duration::from_millis(10));
        std::thread::scope(|scope| {
            scope.spawn(|| queue.write_some(&mut std::io::sink()));
            queue.wait_until_written(Instant::now() + Duration::from_secs(600));
        });
        assert!(queue.waiting.lock().is_empty());
    }
}
