//! `load`: records from a file or standard input, written by several threads, reported as they become durable.
//!
//! Crash behaviour: `durable N` is printed only when the first N records of the input are durable at the chosen level.
//! After a crash at any point the store holds all of them, and otherwise only records of the input. Loading the same
//! input again results in the same store, because the last record of a key wins and records of one key are written in
//! the order of the input.

mod pipeline;
mod report;

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::available_parallelism;
use std::time::Instant;

use serde::Serialize;

use self::pipeline::{Feeder, Plan};
use self::report::Reporter;
use crate::args::{Format, LoadArgs, StoreArgs};
use crate::failure::{Failure, Outcome};
use crate::input::{Bad, CsvSource, JsonlSource, KvSource, Record, Source, SourceError};
use crate::output::{self, Form, Output};
use crate::{stdin, store};

/// Result of a load; with `--json`, the last line.
#[derive(Debug, Serialize)]
struct Summary {
    /// Records of the input that are durable, including skipped and unchanged ones.
    durable: u64,
    /// Records skipped by `--skip`.
    skipped: u64,
    /// Records that were in the store already (`--resume`).
    unchanged: u64,
    /// Lines that are not records (`--skip-bad`).
    bad_lines: u64,
    elapsed_ms: u64,
}

/// Runs the command.
pub fn run(store: &StoreArgs, args: LoadArgs, out: &mut Output) -> Result<Outcome, Failure> {
    let started = Instant::now();
    let input = Input::open(&args.file)?;
    let mut reporter = Reporter::new(out.is_json(), input.length, Arc::clone(&input.consumed));
    let source = source(&args, input.reader)?;
    let mut reader = RecordReader { name: input.name, args: &args, source, first: None, form: store.form(), skipped: 0, bad_lines: 0 };
    // Before a store is created for the input.
    reader.begin()?;
    // Skipped records are reported as durable, so store and keyspace must exist.
    let open = if args.skip == 0 { store::create_keyspace } else { store::continue_keyspace };
    let (db, keyspace) = open(store, args.kind)?;
    if args.resume {
        // Records of an interrupted load may not have reached the device. They are about to be reported without being
        // written again.
        db.sync()?;
    }
    let plan = Plan { threads: threads(&args), group: args.group as usize, resume: args.resume };
    let loaded = pipeline::run(&keyspace, &plan, |feeder| reader.feed(feeder), |durable| reporter.durable(durable));
    // Also if the input is refused right behind the records that were skipped: those are durable, as the caller knows.
    let known = if reader.skipped == args.skip { args.skip } else { 0 };
    let reported = reporter.finish(loaded.durable.max(known));
    // Before anything fails, because a full store has spilled first.
    store::warn_of_spills(&db, store);
    loaded.result?;
    db.sync()?;
    drop(keyspace);
    db.close()?;
    reported?;
    reader.warn();
    let summary = Summary {
        durable: loaded.durable,
        skipped: reader.skipped,
        unchanged: loaded.unchanged,
        bad_lines: reader.bad_lines,
        elapsed_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
    };
    if out.is_json() {
        out.document(&summary)?
    } else {
        summary.tell()
    }
    Ok(Outcome::Done)
}

impl Summary {
    /// Prints it for a person, on standard error: standard output carries the reports.
    fn tell(&self) {
        let records = if self.durable == 1 { "record" } else { "records" };
        let mut text = format!("{} {records} durable after {:.1} s", self.durable, self.elapsed_ms as f64 / 1000.0);
        let bad = if self.bad_lines == 1 { "bad line" } else { "bad lines" };
        for (count, what) in [(self.skipped, "skipped"), (self.unchanged, "unchanged"), (self.bad_lines, bad)] {
            if count > 0 {
                text += &format!(", {count} {what}");
            }
        }
        output::stderr(&text);
    }
}

fn threads(args: &LoadArgs) -> usize {
    args.threads.map_or_else(|| available_parallelism().map_or(1, |count| count.get().min(8)), usize::from)
}

/// The input, and how much of it has been read.
struct Input {
    name: String,
    reader: Box<dyn Read>,
    length: Option<u64>,
    consumed: Arc<AtomicU64>,
}

impl Input {
    fn open(path: &Path) -> Result<Self, Failure> {
        let consumed = Arc::new(AtomicU64::new(0));
        if path.as_os_str() == "-" {
            let reader = Box::new(Counting { inner: stdin::open("name a FILE")?.lock(), consumed: Arc::clone(&consumed) });
            return Ok(Self { name: "standard input".into(), reader, length: None, consumed });
        }
        let failed = |source| Failure::path("reading", path, source);
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_dir() {
            // Before a store is created for it.
            return Err(failed(std::io::ErrorKind::IsADirectory.into()));
        }
        let reader = Box::new(Counting { inner: file, consumed: Arc::clone(&consumed) });
        Ok(Self { name: path.display().to_string(), reader, length: metadata.is_file().then_some(metadata.len()), consumed })
    }
}

struct Counting<R> {
    inner: R,
    consumed: Arc<AtomicU64>,
}

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.consumed.fetch_add(length as u64, Ordering::Relaxed);
        Ok(length)
    }
}

fn format(args: &LoadArgs) -> Format {
    let extension = args.file.extension().and_then(|extension| extension.to_str());
    args.format.unwrap_or(match extension {
        Some("csv") => Format::Csv,
        Some("jsonl" | "ndjson") => Format::Jsonl,
        _ => Format::Kv,
    })
}

fn source(args: &LoadArgs, reader: Box<dyn Read>) -> Result<Box<dyn Source>, Failure> {
    let format = format(args);
    if args.raw && format != Format::Kv {
        return Err(Failure::Usage("--raw is for the kv format".into()));
    }
    let lines = |reader| BufReader::with_capacity(256 << 10, reader);
    match (format, &args.key) {
        (Format::Kv, None) => Ok(Box::new(KvSource::new(lines(reader), args.raw))),
        (Format::Kv, Some(_)) => Err(Failure::Usage("--key names a column of csv or a field of jsonl; in kv the key comes first".into())),
        (Format::Csv, key) => Ok(Box::new(CsvSource::new(lines(reader), key.clone()))),
        (Format::Jsonl, Some(key)) => Ok(Box::new(JsonlSource::new(lines(reader), key.clone()))),
        (Format::Jsonl, None) => Err(Failure::Usage("which field is the key? Give --key FIELD".into())),
    }
}

/// Reads records and hands them to the threads that write.
struct RecordReader<'a> {
    name: String,
    args: &'a LoadArgs,
    source: Box<dyn Source>,
    /// The record that was read before the store was opened.
    first: Option<Record>,
    form: Form,
    skipped: u64,
    bad_lines: u64,
}

/// Number of bad lines that `--skip-bad` reports one by one.
const TOLD: u64 = 20;

impl RecordReader<'_> {
    /// Reads the first record, so that an input of another format is refused before anything is done for it.
    fn begin(&mut self) -> Result<(), Failure> {
        self.source.begin().map_err(|error| self.failure(error))?;
        self.first = self.next()?;
        Ok(())
    }

    /// Returns the next record. With `--skip-bad`, leaves out bad lines before it.
    fn next(&mut self) -> Result<Option<Record>, Failure> {
        while let Some(next) = self.source.next_record() {
            match next {
                Ok(record) => return Ok(Some(record)),
                Err(SourceError::Bad(bad)) if self.args.skip_bad => self.leave_out(&bad),
                Err(error) => return Err(self.failure(error)),
            }
        }
        Ok(None)
    }

    /// Feeds all records until the first bad line (unless bad lines are skipped), or until a write fails.
    fn feed(&mut self, feeder: &mut Feeder) -> Result<(), Failure> {
        let mut next = self.first.take();
        while let Some(record) = next {
            if self.skipped < self.args.skip {
                self.skipped += 1;
                feeder.pass_over();
            } else if feeder.push(record).is_err() {
                return Ok(());
            }
            next = self.next()?;
        }
        self.ensure_skipped()
    }

    /// Counts a bad line, and reports it unless too many have been reported.
    fn leave_out(&mut self, bad: &Bad) {
        self.bad_lines += 1;
        if self.bad_lines <= TOLD {
            let more = if self.bad_lines == TOLD { "; any others are only counted" } else { "" };
            output::warning(&format!("{}, line {}: {}; left out{more}", self.name, bad.line, bad.what), self.form);
        }
    }

    /// Refuses an input that ends before the position that an earlier load reported: it must be another input.
    fn ensure_skipped(&self) -> Result<(), Failure> {
        if self.skipped >= self.args.skip {
            return Ok(());
        }
        let (name, records, skip) = (&self.name, self.skipped, self.args.skip);
        Err(Failure::Usage(format!(
            "{name} has {records} records, fewer than --skip {skip}, and nothing was loaded; is it the input of the earlier load?"
        )))
    }

    /// Warns if an input that was read to its end looks as if it were cut off.
    fn warn(&self) {
        if self.source.ends_within_line() {
            let what = format!("{} does not end with a newline: if it was cut off, its last record is incomplete", self.name);
            output::warning(&what, self.form);
        }
    }

    fn failure(&self, error: SourceError) -> Failure {
        let refuse = |bad: Bad, skippable| Failure::Input { name: self.name.clone(), line: bad.line, what: bad.what, skippable };
        match error {
            SourceError::Bad(bad) => refuse(bad, true),
            SourceError::Unusable(bad) => refuse(bad, false),
            SourceError::Io(source) => Failure::Io { what: format!("reading {}", self.name), source },
        }
    }
}
