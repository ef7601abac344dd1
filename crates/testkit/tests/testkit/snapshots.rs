//! Snapshots during concurrent transfers: batches move amounts between accounts, so the sum is the same in every
//! snapshot, also after a kill.

#![forbid(unsafe_code)]

use crate::common;
use crate::common::{Rng, Setup, Work, shm};
use hither_engine::{Batch, Direction, Error, KeyspaceHandle, ScanRange, Store, WriteOptions};
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const ACCOUNTS: u64 = 24;
const EACH: u64 = 1000;

fn key(account: u64) -> [u8; 8] {
    account.to_be_bytes()
}

fn amount(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().expect("8 bytes"))
}

/// The keyspace of an account; each keyspace holds half of the accounts.
fn place(spaces: &[KeyspaceHandle; 2], account: u64) -> &KeyspaceHandle {
    &spaces[(account % 2) as usize]
}

fn found(store: &Store, spaces: &[KeyspaceHandle; 2]) {
    let mut batch = Batch::default();
    for account in 0..ACCOUNTS {
        batch.put(place(spaces, account), &key(account), &EACH.to_le_bytes(), 0);
    }
    store.commit(&batch, &WriteOptions::new()).unwrap().wait().unwrap();
}

/// Makes one transfer; returns false if another transfer came in between, or if both accounts are the same.
fn transfer(store: &Store, spaces: &[KeyspaceHandle; 2], rng: &mut Rng) -> bool {
    let (from, to) = (rng.below(ACCOUNTS), rng.below(ACCOUNTS));
    if from == to {
        return false;
    }
    let mut batch = Batch::default();
    let mut old = [0; 2];
    for (slot, account) in old.iter_mut().zip([from, to]) {
        let (value, version) = store.get_versioned(place(spaces, account), &key(account)).unwrap().expect("accounts are never closed");
        batch.require_version(place(spaces, account), &key(account), Some(version));
        *slot = amount(&value);
    }
    let moved = rng.below(10).min(old[0]);
    batch.put(place(spaces, from), &key(from), &(old[0] - moved).to_le_bytes(), 0);
    batch.put(place(spaces, to), &key(to), &(old[1] + moved).to_le_bytes(), 0);
    match store.commit(&batch, &WriteOptions::new()) {
        Ok(ticket) => ticket.wait().map(|()| true).unwrap(),
        Err(Error::PreconditionFailed { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

/// The sum in a snapshot, once by lookups and once by scans.
fn sums(store: &Store, spaces: &[KeyspaceHandle; 2], pause: Duration) -> (u64, u64) {
    let snapshot = store.snapshot();
    std::thread::sleep(pause);
    let mut by_get = 0;
    for account in 0..ACCOUNTS {
        by_get += snapshot.get_with(place(spaces, account), &key(account), amount).unwrap().expect("every account");
    }
    let everything = ScanRange { from: Bound::Unbounded, to: Bound::Unbounded, direction: Direction::Backward, expect: usize::MAX };
    let mut by_scan = 0;
    snapshot
        .scan(&spaces[0], &everything, |_, value| {
            by_scan += amount(value);
            ControlFlow::Continue(())
        })
        .unwrap();
    for key in snapshot.sorted_keys(&spaces[1]).unwrap() {
        by_scan += snapshot.get_with(&spaces[1], &key, amount).unwrap().unwrap_or(0);
    }
    (by_get, by_scan)
}

#[test]
fn sums_are_constant_under_transfers() {
    for setup in [Setup::ShadowAdr, Setup::File] {
        let dir = shm();
        let store = setup.open(dir.path());
        let spaces = common::keyspaces(&store);
        found(&store, &spaces);
        let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
        let started = Instant::now();
        std::thread::scope(|scope| {
            for seed in 0..3 {
                let (store, spaces, stop, done) = (&store, &spaces, &stop, &done);
                scope.spawn(move || {
                    let mut rng = Rng(seed);
                    while !stop.load(Ordering::Relaxed) {
                        done.fetch_add(u64::from(transfer(store, spaces, &mut rng)), Ordering::Relaxed);
                    }
                });
            }
            let mut snapshots = 0u64;
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                while started.elapsed() < Duration::from_secs(2) {
                    snapshots += 1;
                    let pause = Duration::from_micros(snapshots % 4 * 300);
                    assert_eq!(sums(&store, &spaces, pause), (ACCOUNTS * EACH, ACCOUNTS * EACH), "{setup:?}, snapshot {snapshots}");
                }
            }));
            stop.store(true, Ordering::Relaxed);
            println!("HITHER_COUNT consistent_snapshots {snapshots}");
            if let Err(panic) = outcome {
                std::panic::resume_unwind(panic);
            }
        });
        assert!(done.load(Ordering::Relaxed) > 10);
        assert!(store.check().unwrap().is_sound());
    }
}

/// Runs in a child until it is killed.
#[test]
fn child_transfers() {
    let Some(work) = Work::from_environment() else { return };
    let store = work.setup.open(&work.dir);
    let spaces = common::keyspaces(&store);
    if work.round == 0 {
        found(&store, &spaces);
    }
    println!("READY");
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let (store, spaces) = (&store, &spaces);
            scope.spawn(move || {
                let mut rng = Rng(seed + 10 * work.round);
                loop {
                    transfer(store, spaces, &mut rng);
                }
            });
        }
    });
}

#[test]
fn sums_are_constant_across_kills() {
    for setup in [Setup::ShadowAdr, Setup::ShadowFile, Setup::File] {
        let (dir, mut rng) = (shm(), Rng(3));
        for round in 0..12 {
            let mut child = Work { setup, dir: dir.path().to_owned(), round }.spawn("snapshots::child_transfers");
            std::thread::sleep(Duration::from_micros(rng.below(20_000)));
            common::kill(&mut child);
            let store = setup.open(dir.path());
            let spaces = common::keyspaces(&store);
            assert_eq!(sums(&store, &spaces, Duration::ZERO), (ACCOUNTS * EACH, ACCOUNTS * EACH), "{setup:?}, kill {round}");
        }
    }
}
