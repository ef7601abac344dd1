//! A reader that has seen one member of a batch by an operation that never waits sees the whole batch from then on, in
//! whatever order it looks.
//!
//! Batches are large, so that readers on other threads meet many of them in the middle of their installation.

use hither::{Db, Keyspace, KeyspaceOptions, MediumChoice, WriteOptions};
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Number of keys between the two keys that readers look at.
const BETWEEN: u32 = 600;
const RUNS_FOR: Duration = Duration::from_millis(600);
/// How long a reader looks for the case under test at most: on a busy machine it comes rarely.
const LOOKS_FOR: Duration = Duration::from_secs(60);

fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().unwrap())
}

fn peek(keys: &Keyspace, key: &[u8]) -> Option<u32> {
    keys.peek_with(key, |value, _| number(value)).unwrap().0
}

/// Runs `write` with 1, 2, … while another thread runs `look`, which returns how often it met the case under test.
/// Returns the sum.
fn beside(mut write: impl FnMut(u32) + Send, look: impl Fn() -> u32) -> u32 {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let done = &done;
        scope.spawn(move || {
            let mut round = 0;
            while !done.load(Ordering::Relaxed) {
                round += 1;
                write(round);
            }
        });
        let begin = Instant::now();
        let mut met = 0;
        // A failed look must stop the writer, too.
        let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            while begin.elapsed() < RUNS_FOR || met == 0 && begin.elapsed() < LOOKS_FOR {
                met += look();
            }
        }));
        done.store(true, Ordering::Relaxed);
        looked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        met
    })
}

fn each_kind(test: impl Fn(&Db, &Keyspace)) {
    for kind in [KeyspaceOptions::ordered(), KeyspaceOptions::hash()] {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::builder().path(dir.path()).medium(MediumChoice::File).capacity(64 << 20).open().unwrap();
        let keys = db.create_keyspace("k", kind).unwrap();
        test(&db, &keys);
    }
}

fn put_all(db: &Db, keys: &Keyspace, round: u32, first: bool) {
    let value = round.to_be_bytes();
    let mut batch = db.batch();
    if first {
        batch.put(keys, b"first", &value);
    } else {
        batch.delete(keys, b"first");
    }
    for between in 0..BETWEEN {
        batch.put(keys, format!("k{between}").as_bytes(), &value);
    }
    batch.put(keys, b"last", &value);
    batch.commit_deferred(&WriteOptions::new()).unwrap();
}

#[test]
fn members_are_seen_together() {
    each_kind(|db, keys| {
        let met = beside(
            |round| put_all(db, keys, round, true),
            || {
                let (first, last) = (peek(keys, b"first"), peek(keys, b"last"));
                assert!(first <= last, "batch {first:?} was seen, then {last:?}");
                u32::from(first < last)
            },
        );
        assert!(met > 0, "no batch came between two looks");
    });
}

/// Odd batches put the first key, even ones remove it.
#[test]
fn what_a_batch_removes_is_gone_with_the_rest() {
    each_kind(|db, keys| {
        let met = beside(
            |round| put_all(db, keys, round, round % 2 == 1),
            || {
                let before = peek(keys, b"last");
                let first = peek(keys, b"first");
                let after = peek(keys, b"last");
                let odd = before == after && after.is_some_and(|round| round % 2 == 1);
                assert!(!(odd && first.is_none()), "{after:?} is there without its first key");
                u32::from(first.is_none())
            },
        );
        assert!(met > 0, "no batch removed the key");
    });
}

#[test]
fn scans_see_members_together() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::builder().path(dir.path()).medium(MediumChoice::File).capacity(64 << 20).open().unwrap();
    let keys = db.keyspace("k").unwrap();
    let scan = |key: &[u8]| {
        let mut seen = None;
        let visit = |_: &[u8], value: &[u8], _| {
            seen = Some(number(value));
            ControlFlow::Break(())
        };
        keys.scan_deferred(Bound::Included(key), Bound::Included(key), false, visit).unwrap();
        seen
    };
    let met = beside(
        |round| put_all(&db, &keys, round, true),
        || {
            let (first, last) = (scan(b"first"), scan(b"last"));
            assert!(first <= last, "batch {first:?} was seen, then {last:?}");
            u32::from(first < last)
        },
    );
    assert!(met > 0, "no batch came between two looks");
}
