//! Tests a bucket under loom: every schedule within the bound, with weak memory. Planted bug: a reader that omits the
//! second look.
//!
//! Run by `RUSTFLAGS="--cfg loom" cargo test -p hither-cache --release --lib`.

use crate::bucket::{Bucket, Record};
use crate::layout::ARENA;
use crate::policy::{Policy, UNIT};
use hither_sync::atomic::AtomicU64;
use loom::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const KEY: &[u8] = b"the key!";
/// Room for one record.
const WORDS: usize = ARENA + 8;

fn offer(words: &[AtomicU64], version: u64) -> bool {
    let value = version.to_le_bytes().repeat(2);
    let record = Record { reference: version, generation: !version, expiry_ms: 0, key: KEY, value: &value };
    Bucket(words).try_lock().is_some_and(|mut bucket| bucket.offer(Policy::Raf, 7, UNIT, true, &record))
}

/// Whether the record found is whole. With `careful` false, the result of the second look is ignored.
fn read(words: &[AtomicU64], careful: bool) -> bool {
    let bucket = Bucket(words);
    let Some(found) = bucket.find(0, 7, KEY) else { return true };
    let mut value = [0; 16];
    if !bucket.copy_value(&found, &mut value) && careful {
        return true;
    }
    found.generation == !found.reference && value[..] == found.reference.to_le_bytes().repeat(2)
}

/// A writer replaces the record while a reader reads it. Returns true if no read was torn in any schedule.
fn explore(careful: bool) -> bool {
    let torn = std::sync::Arc::new(AtomicBool::new(false));
    let seen = torn.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(2)).map(|bound| bound.min(2));
    builder.max_branches = 20_000;
    builder.check(move || {
        let words: Arc<Vec<AtomicU64>> = Arc::new((0..WORDS).map(|_| AtomicU64::new(0)).collect());
        assert!(offer(&words, 1));
        let writer = {
            let words = words.clone();
            loom::thread::spawn(move || offer(&words, 2))
        };
        if !read(&words, careful) {
            seen.store(true, Ordering::Relaxed);
        }
        assert!(writer.join().unwrap() && read(&words, true));
    });
    !torn.load(Ordering::Relaxed)
}

/// Two threads change the bucket, or find it locked: never both at once.
#[test]
fn one_writer_at_a_time() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 20_000;
    builder.check(|| {
        let words: Arc<Vec<AtomicU64>> = Arc::new((0..WORDS).map(|_| AtomicU64::new(0)).collect());
        let inside = Arc::new(loom::sync::atomic::AtomicU32::new(0));
        let enter = |words: &[AtomicU64], inside: &loom::sync::atomic::AtomicU32| {
            // Twice: a thread that was refused must not have released the other's lock.
            for _ in 0..2 {
                if let Some(_locked) = Bucket(words).try_lock() {
                    assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0, "two at once");
                    inside.fetch_sub(1, Ordering::Relaxed);
                }
            }
        };
        let other = {
            let (words, inside) = (words.clone(), inside.clone());
            loom::thread::spawn(move || enter(&words, &inside))
        };
        enter(&words, &inside);
        other.join().unwrap();
    });
}

#[test]
fn no_schedule_tears_a_read() {
    assert!(explore(true));
}

#[test]
fn a_reader_that_looks_once_is_caught() {
    assert!(!explore(false));
}
