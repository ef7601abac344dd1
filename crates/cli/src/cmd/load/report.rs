//! Reports of a running load: `durable N` lines for programs and files, a progress bar for people.
//!
//! When the reader of standard output goes away, the load continues without reports: the records still have to be
//! loaded.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::failure::Failure;

/// Reports how many records are durable.
pub struct Reporter {
    json: bool,
    lines: bool,
    bar: ProgressBar,
    consumed: Arc<AtomicU64>,
    reported: Option<u64>,
    failed: Option<io::Error>,
}

impl Reporter {
    /// Creates the reporter of an input of `length` bytes, of which `consumed` have been read.
    pub fn new(json: bool, length: Option<u64>, consumed: Arc<AtomicU64>) -> Self {
        let lines = json || !io::stdout().is_terminal();
        Self { json, lines, bar: bar(json, length), consumed, reported: None, failed: None }
    }

    /// Reports that the first `records` records are durable.
    pub fn durable(&mut self, records: u64) {
        self.bar.set_message(format!("{records} records durable"));
        self.bar.set_position(self.consumed.load(Ordering::Relaxed));
        if self.lines && self.reported != Some(records) {
            self.line(records);
        }
        self.reported = Some(records);
    }

    fn line(&mut self, records: u64) {
        let mut stdout = io::stdout().lock();
        let written = if self.json { writeln!(stdout, "{{\"durable\":{records}}}") } else { writeln!(stdout, "durable {records}") };
        if let Err(error) = written.and_then(|()| stdout.flush()) {
            self.lines = false;
            self.failed = (error.kind() != ErrorKind::BrokenPipe).then_some(error);
        }
    }

    /// Makes the last report. Fails if a report could not be written although somebody may want it.
    pub fn finish(mut self, records: u64) -> Result<(), Failure> {
        self.durable(records);
        self.bar.finish_and_clear();
        self.failed.map_or(Ok(()), |error| Err(Failure::stdout(error)))
    }
}

fn bar(json: bool, length: Option<u64>) -> ProgressBar {
    if json || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match length {
        Some(length) => (ProgressBar::new(length), "{bar:40} {bytes}/{total_bytes}  {msg}  {eta} left"),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes}  {msg}  {elapsed}"),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
    bar.with_style(ProgressStyle::with_template(template).expect("the templates above are valid"))
}
