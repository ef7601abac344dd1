//! Snapshots during concurrent transfers: batches move amounts between accounts, so the sum is the same in every
//! snapshot, also after a kill.

#![forbid(unsafe_code)]

use crate::common;
use crate::common::{Rng, Setup, Work, shm};
use hither_engine::{Batch, Direction, Error, KeyspaceHandle, ScanRange, Store, WriteOptions};
use std::fs::File;
use std::io::Write;
use std::ops::{Bound, ControlFlow};
use std::path::PathBuf;
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

/// Makes one transfer; returns the two accounts with the versions that it replaced. `None` if another transfer came in
/// between, or if both accounts are the same.
fn transfer(store: &Store, spaces: &[KeyspaceHandle; 2], rng: &mut Rng) -> Option<[(u64, u64); 2]> {
    let (from, to) = (rng.below(ACCOUNTS), rng.below(ACCOUNTS));
    if from == to {
        return None;
    }
    let mut batch = Batch::default();
    let (mut old, mut replaced) = ([0; 2], [(from, 0), (to, 0)]);
    for (slot, (account, replaced)) in old.iter_mut().zip(&mut replaced) {
        let account = *account;
        let (value, version) = store.get_versioned(place(spaces, account), &key(account)).unwrap().expect("accounts are never closed");
        batch.require_version(place(spaces, account), &key(account), Some(version));
        (*slot, *replaced) = (amount(&value), version);
    }
    let moved = rng.below(10).min(old[0]);
    batch.put(place(spaces, from), &key(from), &(old[0] - moved).to_le_bytes(), 0);
    batch.put(place(spaces, to), &key(to), &(old[1] + moved).to_le_bytes(), 0);
    match store.commit(&batch, &WriteOptions::new()) {
        Ok(ticket) => ticket.wait().map(|()| Some(replaced)).unwrap(),
        Err(Error::PreconditionFailed { .. }) => None,
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
                        done.fetch_add(u64::from(transfer(store, spaces, &mut rng).is_some()), Ordering::Relaxed);
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

/// The file in which the child of a round notes the transfers that were acknowledged, a line for each: what they
/// replaced.
fn notes(work: &Work) -> PathBuf {
    work.dir.with_extension(format!("acknowledged{}", work.round))
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
    let notes = File::create_new(notes(&work)).unwrap();
    println!("READY");
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let (store, spaces, mut notes) = (&store, &spaces, &notes);
            scope.spawn(move || {
                let mut rng = Rng(seed + 10 * work.round);
                loop {
                    if let Some([(from, old_from), (to, old_to)]) = transfer(store, spaces, &mut rng) {
                        // In one write, so that the lines of several threads do not mix.
                        notes.write_all(format!("{from} {old_from} {to} {old_to}\n").as_bytes()).unwrap();
                    }
                }
            });
        }
    });
}

/// Requires that the accounts have lost no acknowledged transfer: what it replaced has gone. Returns the number of these
/// transfers.
fn acknowledged_transfers_are_there(notes: &str, store: &Store, spaces: &[KeyspaceHandle; 2], at: &str) -> usize {
    let found: Vec<u64> = (0..ACCOUNTS)
        .map(|account| store.get_versioned(place(spaces, account), &key(account)).unwrap().expect("accounts are never closed").1)
        .collect();
    // The kill may have cut the last line off.
    let lines: Vec<&str> = notes.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).collect();
    for line in &lines {
        let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().unwrap()).collect();
        for pair in numbers.chunks(2) {
            let now = found[pair[0] as usize];
            assert!(now > pair[1], "{at}: account {} is at version {now}, a transfer that replaced {} is lost", pair[0], pair[1]);
        }
    }
    lines.len()
}

/// Lets a child make transfers and kills it, after a random time; returns what the child has noted. In the last round,
/// after `least` transfers, so that not all kills come before the first one.
fn transfer_and_kill(work: &Work, rng: &mut Rng, least: usize) -> String {
    let mut child = work.spawn("snapshots::child_transfers");
    let noted = || std::fs::read_to_string(notes(work)).unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while noted().lines().count() < least && Instant::now() < end && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_micros(rng.below(20_000)));
    common::kill(&mut child);
    assert!(noted().lines().count() >= least, "{:?}: hardly a transfer is made", work.setup);
    noted()
}

#[test]
fn sums_are_constant_across_kills() {
    for setup in [Setup::ShadowAdr, Setup::ShadowFile, Setup::File] {
        let (dir, mut rng) = (shm(), Rng(3));
        let place_of_store = dir.path().join("store");
        std::fs::create_dir(&place_of_store).unwrap();
        let mut acknowledged = 0;
        for round in 0..12 {
            let work = Work { setup, dir: place_of_store.clone(), round };
            let notes = transfer_and_kill(&work, &mut rng, if round == 11 { 100 } else { 0 });
            let store = setup.open(&work.dir);
            let spaces = common::keyspaces(&store);
            assert_eq!(sums(&store, &spaces, Duration::ZERO), (ACCOUNTS * EACH, ACCOUNTS * EACH), "{setup:?}, kill {round}");
            acknowledged += acknowledged_transfers_are_there(&notes, &store, &spaces, &format!("{setup:?}, kill {round}"));
            let moved = |account| store.get_with(place(&spaces, account), &key(account), amount).unwrap() != Some(EACH);
            assert!(round < 11 || (0..ACCOUNTS).any(moved), "{setup:?}: no account differs from its start");
        }
        println!("{setup:?}: {acknowledged} transfers were acknowledged");
    }
}
