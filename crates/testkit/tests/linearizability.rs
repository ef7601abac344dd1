//! Concurrent histories on few hot keys, across kills.
//!
//! A child process works on a store with several threads and writes the call and return of every operation to files of
//! its own. It is killed with SIGKILL in the middle, again and again. On a shadow file (of persistent memory, or of a
//! mapped file) the kill equals a power loss.
//!
//! The operations of all children and the final reads form one history per key, which must be linearizable. An
//! operation that returned before the kill holds after it. One that was cut short happened before the kill or never
//! (durable linearizability).
//!
//! A history fails if it is too short or if some kind of operation never happened: it could not show a mistake.
//!
//! The last tests plant a stale read and a lost write into good histories; the checker must find them.
//!
//! `HITHER_LINEARIZABILITY_SECONDS` sets how long each medium is tried (default 3).

#![forbid(unsafe_code)]

mod common;

use common::{Rng, Setup, Work, now, shm};
use hither_engine::{Condition, Durability, KeyspaceHandle, Kind, Store, WriteOptions};
use hither_testkit::explorer::seed;
use hither_testkit::history::{Action, Content, Moment, Operation, check};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Number of hot keys in each keyspace.
const KEYS: u64 = 3;
const THREADS: u64 = 4;
/// The fewest kills of each medium, however long they take.
const KILLS: usize = 10;
/// The fewest complete operations per kill, over all kills together: a hundredth of what two shared processors do while
/// every medium is tried at once.
const OPERATIONS: usize = 10;

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// The bytes of a value. Some values span many lines, so that a torn one would show.
fn bytes(value: u64) -> Vec<u8> {
    [&value.to_le_bytes()[..], &vec![value as u8; if value.is_multiple_of(4) { 500 } else { 0 }]].concat()
}

/// The number of a value, which must be whole.
fn content(value: &[u8]) -> u64 {
    let number = u64::from_le_bytes(value[..8].try_into().expect("values have 8 bytes at least"));
    assert_eq!(value, bytes(number), "a torn value");
    number
}

/// One thread, whose operations on both keyspaces are written down before and after each.
struct Thread<'a> {
    store: &'a Store,
    keyspaces: &'a [KeyspaceHandle; 2],
    notes: File,
    rng: Rng,
    next_value: u64,
    last_seen: Content,
}

impl Thread<'_> {
    fn value(&mut self) -> u64 {
        self.next_value += 1;
        self.next_value
    }

    fn act(&mut self) {
        let place = self.rng.below(2 * KEYS);
        let planned = match self.rng.below(10) {
            0..4 => Action::Read(None),
            4..7 => Action::Write(Some(self.value())),
            7 => Action::Delete { existed: false },
            _ => Action::Cas { expected: self.last_seen, new: Some(self.value()), applied: false },
        };
        let relaxed = self.rng.below(8) == 0;
        self.note(b'c', place, planned);
        let result = self.perform(place, planned, relaxed);
        self.note(b'r', place, result);
    }

    fn perform(&mut self, place: u64, planned: Action, ticket: bool) -> Action {
        let ks = &self.keyspaces[(place / KEYS) as usize];
        let key = key(place % KEYS);
        let sync = WriteOptions::new();
        match planned {
            Action::Read(_) => {
                self.last_seen = self.store.get_with(ks, &key, content).unwrap();
                Action::Read(self.last_seen)
            }
            Action::Write(new) => {
                let (_, _, done) = self.store.write(ks, &key, new.map(bytes).as_deref(), Condition::None, &sync).unwrap();
                if ticket {
                    while !done.is_durable() {
                        std::thread::yield_now();
                    }
                } else {
                    done.wait().unwrap();
                }
                planned
            }
            Action::Delete { .. } => {
                let (_, existed, done) = self.store.write(ks, &key, None, Condition::None, &sync).unwrap();
                done.wait().unwrap();
                Action::Delete { existed }
            }
            Action::Cas { expected, new, .. } => {
                let old = expected.map(bytes);
                let condition = Condition::Value(old.as_deref());
                let (applied, _, done) = self.store.write(ks, &key, new.map(bytes).as_deref(), condition, &sync).unwrap();
                done.wait().unwrap();
                Action::Cas { expected, new, applied }
            }
            Action::Add { .. } => unreachable!("only servers are asked to add"),
        }
    }

    /// Writes each line by one `write`: the kernel then has it, whatever happens to the process.
    fn note(&mut self, what: u8, place: u64, action: Action) {
        let at = now();
        let text = |content: Content| content.map_or("-".to_owned(), |value| value.to_string());
        let action = match action {
            Action::Read(seen) => format!("read {}", text(seen)),
            Action::Write(new) => format!("write {}", text(new)),
            Action::Delete { existed } => format!("delete {existed}"),
            Action::Cas { expected, new, applied } => format!("cas {} {} {applied}", text(expected), text(new)),
            Action::Add { sum } => format!("add {sum}"),
        };
        self.notes.write_all(format!("{} {at} {place} {action}\n", char::from(what)).as_bytes()).unwrap();
    }
}

/// Runs in a child until it is killed.
#[test]
fn child_works() {
    let Some(work) = Work::from_environment() else { return };
    let store = work.setup.open(&work.dir);
    let keyspaces = common::keyspaces(&store);
    println!("READY");
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let (store, keyspaces, work) = (&store, &keyspaces, &work);
            scope.spawn(move || {
                let notes = File::create(work.dir.join(format!("notes-{:04}-{number}", work.round))).unwrap();
                let rng = Rng(seed(0).wrapping_mul(1_000_003) + work.round * 100 + number + 1);
                let next_value = (work.round * 100 + number) << 32;
                let mut thread = Thread { store, keyspaces, notes, rng, next_value, last_seen: None };
                loop {
                    thread.act();
                }
            });
        }
    });
}

fn parse_action(mut words: std::str::SplitAsciiWhitespace<'_>) -> Option<Action> {
    let content = |word: &str| if word == "-" { Some(None) } else { word.parse().ok().map(Some) };
    Some(match words.next()? {
        "read" => Action::Read(content(words.next()?)?),
        "write" => Action::Write(content(words.next()?)?),
        "delete" => Action::Delete { existed: words.next()? == "true" },
        _ => Action::Cas { expected: content(words.next()?)?, new: content(words.next()?)?, applied: words.next()? == "true" },
    })
}

/// Histories by place, from all threads' notes. An operation of round r without a return was cut short by the kill at
/// `kills[r]`.
fn histories(dir: &Path, kills: &[Moment]) -> BTreeMap<u64, Vec<Operation>> {
    let mut histories: BTreeMap<u64, Vec<Operation>> = BTreeMap::new();
    for (round, kill) in kills.iter().enumerate() {
        for number in 0..THREADS {
            let text = std::fs::read_to_string(dir.join(format!("notes-{round:04}-{number}"))).unwrap_or_default();
            let mut called: Option<(u64, Operation)> = None;
            // A kill may cut off the last line. A call whose line is incomplete had not begun; a return whose line is
            // incomplete is unknown.
            for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
                let mut words = line.split_ascii_whitespace();
                let (what, at, place) =
                    (words.next().unwrap(), words.next().unwrap().parse().unwrap(), words.next().unwrap().parse().unwrap());
                let action = parse_action(words).expect("a whole line");
                if what == "c" {
                    called = Some((place, Operation { start: at, end: *kill, complete: false, action }));
                } else if let Some((place, operation)) = called.take() {
                    histories.entry(place).or_default().push(Operation { end: at, complete: true, action, ..operation });
                }
            }
            if let Some((place, operation)) = called {
                histories.entry(place).or_default().push(operation);
            }
        }
    }
    histories
}

/// How often each kind of event happened in the histories of a medium.
#[derive(Clone, Copy, Debug, Default)]
struct Happened {
    kills: usize,
    complete: usize,
    swapped: usize,
    deleted: usize,
    cut_short: usize,
}

impl Happened {
    fn of(kills: usize, histories: &BTreeMap<u64, Vec<Operation>>) -> Happened {
        let count = |is: fn(&Operation) -> bool| histories.values().flatten().filter(|operation| is(operation)).count();
        Happened {
            kills,
            complete: count(|operation| operation.complete),
            swapped: count(|operation| operation.complete && matches!(operation.action, Action::Cas { applied: true, .. })),
            deleted: count(|operation| operation.complete && matches!(operation.action, Action::Delete { existed: true })),
            cut_short: count(|operation| !operation.complete && !matches!(operation.action, Action::Read(_))),
        }
    }

    /// Whether mistakes of every kind could have shown.
    fn is_enough(self) -> bool {
        self.complete >= OPERATIONS * self.kills && self.swapped > 0 && self.deleted > 0 && self.cut_short > 0
    }
}

/// Works and kills for a while, then reads everything once more. Returns the history of every place, and what happened
/// in all of them.
fn explore(setup: Setup, seconds: f64) -> (BTreeMap<u64, Vec<Operation>>, Happened) {
    let dir = shm();
    let (started, mut kills) = (Instant::now(), Vec::new());
    let mut rng = Rng(seed(7));
    while kills.len() < KILLS || started.elapsed().as_secs_f64() < seconds {
        let mut child = Work { setup, dir: dir.path().to_owned(), round: kills.len() as u64 }.spawn("child_works");
        std::thread::sleep(Duration::from_micros(rng.below(20_000)));
        common::kill(&mut child);
        kills.push(now());
    }
    let store = setup.open(dir.path());
    let mut histories = histories(dir.path(), &kills);
    let happened = Happened::of(kills.len(), &histories);
    for (number, ks) in common::keyspaces(&store).iter().enumerate() {
        for k in 0..KEYS {
            let start = now();
            let seen = store.get_with(ks, &key(k), content).unwrap();
            let read = Operation { start, end: now(), complete: true, action: Action::Read(seen) };
            histories.entry(number as u64 * KEYS + k).or_default().push(read);
        }
    }
    let report = store.check().unwrap();
    assert!(report.is_sound(), "{setup:?}: {:?}", report.problems);
    println!("HITHER_COUNT linearizability_kills {}", kills.len());
    println!("HITHER_COUNT linearizability_operations {}", histories.values().map(Vec::len).sum::<usize>());
    (histories, happened)
}

fn seconds() -> f64 {
    std::env::var("HITHER_LINEARIZABILITY_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3.0)
}

fn is_linearizable(setup: Setup) {
    let (histories, happened) = explore(setup, seconds());
    assert!(happened.is_enough(), "{setup:?}: too little happened: {happened:?}");
    println!("{setup:?}: {happened:?}");
    for (place, history) in histories {
        if let Err(violation) = check(None, &history) {
            panic!("{setup:?}, key {place}, {} of {} operations ordered: {:#?}", violation.ordered, history.len(), violation.around);
        }
    }
}

#[test]
fn across_power_losses_on_persistent_memory() {
    is_linearizable(Setup::ShadowAdr);
}

#[test]
fn across_power_losses_on_files() {
    is_linearizable(Setup::ShadowFile);
}

#[test]
fn across_kills_on_files() {
    is_linearizable(Setup::File);
}

#[test]
fn across_kills_on_forced_dax() {
    if Path::new("/dev/shm").is_dir() {
        return is_linearizable(Setup::ForcedDax);
    }
    // Written to standard output itself, because the prints of a passing test are not shown. The reader may be gone, so
    // errors are ignored.
    let _ = writeln!(std::io::stdout(), "HITHER_COUNT skipped_without_shm 1");
}

#[test]
fn across_kills_with_a_cache_over_two_nodes() {
    is_linearizable(Setup::Cached);
}

/// Regression: histories in which nothing had happened were linearizable and passed.
#[test]
fn histories_in_which_too_little_happens_are_not_enough() {
    let operation = |complete, action| Operation { start: 0, end: 1, complete, action };
    let of = |operations: Vec<Operation>| Happened::of(1, &BTreeMap::from([(0, operations)])).is_enough();
    let reads = || vec![operation(true, Action::Read(None)); OPERATIONS];
    let happened = [
        operation(true, Action::Cas { expected: None, new: Some(1), applied: true }),
        operation(true, Action::Delete { existed: true }),
        operation(false, Action::Write(Some(2))),
    ];
    assert!(!of(Vec::new()) && !of(happened.to_vec()), "too short");
    assert!(of([reads(), happened.to_vec()].concat()));
    for missing in 0..happened.len() {
        let mut some = happened.to_vec();
        some.remove(missing);
        assert!(!of([reads(), some].concat()), "{:?}", happened[missing]);
    }
}

/// A history without kills, made in this process.
fn quiet_history(reads_lag: bool) -> Vec<Operation> {
    let options = hither_engine::Options { in_memory: true, ..Default::default() };
    let store = Store::open(options).unwrap();
    let ks = store.create_keyspace("k", Kind::Hash).unwrap();
    let mut history = Vec::new();
    let mut shown = None;
    for value in 1..200u64 {
        let start = now();
        store.write(&ks, b"k", Some(&bytes(value)), Condition::None, &WriteOptions::new()).unwrap().2.wait().unwrap();
        history.push(Operation { start, end: now(), complete: true, action: Action::Write(Some(value)) });
        let start = now();
        let fresh = store.get_with(&ks, b"k", content).unwrap();
        // The planted bug: one read in the middle answers from a cache that was never invalidated.
        let seen = if reads_lag && value == 100 { shown } else { fresh };
        shown = fresh;
        history.push(Operation { start, end: now() + 1, complete: true, action: Action::Read(seen) });
    }
    history
}

#[test]
fn a_planted_stale_read_is_caught() {
    assert_eq!(check(None, &quiet_history(false)), Ok(()));
    assert!(check(None, &quiet_history(true)).is_err());
}

/// The planted bug acknowledges a write that is not durable. On a shadow file the kill loses it.
#[test]
fn a_planted_lost_write_is_caught() {
    for round in 0.. {
        assert!(round < 20, "20 kills of a store that acknowledges too early lost nothing");
        let (found, _) = explore(Setup::ShadowTooEarly, 0.5);
        if found.values().any(|history| check(None, history).is_err()) {
            break;
        }
    }
    assert_eq!(Setup::ShadowTooEarly.durability(), Durability::Process);
}
