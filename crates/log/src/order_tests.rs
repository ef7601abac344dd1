//! Tests the order of durability: at sealing, settling, burying and freeing, and when segments are opened. Written by
//! hand, because a wrong order shows only after a write at an inconvenient moment or another opening.

use crate::entry::Parts;
use crate::opening::{Filler, Purpose};
use crate::pass::COLLECTING;
use crate::replay::{ScanTotals, SegmentToScan, scan};
use crate::segment::SegmentState as InMemory;
use crate::{Candidate, Flush, Log, Op, TakeBack, Tombstones, address};
use hither_pmem::shadow::{ShadowLog, ShadowRng};
use hither_pmem::{CreateOptions, Descriptor, Emulate, OpenOptions, Pool, SegmentState};
use hither_sync::epoch;
use std::cell::Cell;
use std::sync::Arc;

const KEYSPACE: u32 = 1;
const SEGMENT: usize = 4096;

/// A log over a pool that `prepared` has changed, and the record of its accesses.
fn recorded(rules: Emulate, prepared: impl Fn(&Pool)) -> (Log, Arc<ShadowLog>) {
    let (events, sizes) = (ShadowLog::new(), CreateOptions::new(64 * SEGMENT as u64));
    let tracer = events.clone();
    let log = Log::for_tests(&CreateOptions { segment_bytes: SEGMENT as u64, emulate: Some(rules), tracer: Some(tracer), ..sizes });
    log.pool(0).finish_creation().expect("memory");
    prepared(log.pool(0));
    log.load_tables(None).expect("no damage");
    (log, events)
}

/// Writes a value. Returns the entry's reference and version.
fn put(log: &Log, value: &[u8], flush: Flush) -> (u64, u64) {
    write(log, Op::Insert, value, flush)
}

fn write(log: &Log, op: Op, value: &[u8], flush: Flush) -> (u64, u64) {
    log.write_for_tests(Parts { op, key: b"one key!", value, keyspace: KEYSPACE, ..Parts::EMPTY }, flush)
}

/// Checks that everything the medium may hold after a power loss has the mark that memory has.
fn assert_mark_is_durable(log: &Log, events: &ShadowLog, rules: Emulate, reference: u64) {
    assert!(log.entry(reference).is_dead());
    let at = address::unpack(reference).offset;
    for image in events.images(rules, events.len(), 40, &mut ShadowRng::new(1)) {
        assert_eq!(image[at as usize..][..8], log.pool(0).load_u64(at).to_le_bytes(), "{rules:?}");
    }
}

fn candidate(index: u32) -> Candidate {
    Candidate { node: 0, index, gain: 0, live: 0, age: 0, generation: 0 }
}

/// Found by hand: a pass could free its victim before the entries that had superseded the victim's were durable, and
/// then a power loss took both.
#[test]
fn nothing_is_sealed_settled_or_freed_before_what_was_written_is_durable() {
    let (log, _) = recorded(Emulate::Adr, |_| ());
    let durable = Cell::new(0);
    let (first, version) = put(&log, b"value", Flush::Later);
    let index = log.segment_of(first).1;
    let state = || log.pool(0).descriptor(index).expect("no damage").state;
    let make_durable_in = |wanted: SegmentState, stable: u64| {
        assert_eq!(state(), wanted, "it was too early");
        durable.set(stable);
        Ok(())
    };
    log.pools[0].close_from(0);
    log.seal(&|stable| make_durable_in(SegmentState::Active, stable), TakeBack::All).expect("memory");
    assert!(state() == SegmentState::Sealed && durable.get() >= version);

    let (_, version) = put(&log, b"value", Flush::Later);
    log.settle(&|stable| make_durable_in(SegmentState::Sealed, stable)).expect("memory");
    assert!(log.pool(0).settled() >= version && durable.get() >= log.pool(0).settled());

    let pass = log.begin_pass(&candidate(index), Tombstones::Swept).expect("memory").expect("it is sealed");
    let (_, version) = put(&log, b"value", Flush::Later);
    log.free_victims(vec![pass], &|stable| make_durable_in(SegmentState::Sealed, stable)).expect("memory");
    assert!(state() == SegmentState::Free && durable.get() >= version);
}

/// Found by hand: a thread that was delayed between freeing a segment and the end of its pass reset the segment in its
/// next life, under another thread's pass, so that a third pass could begin.
#[test]
fn the_end_of_a_pass_touches_no_later_life() {
    let log = Log::for_tests(&CreateOptions::new(64 * SEGMENT as u64));
    let (reference, _) = put(&log, b"value", Flush::Now);
    let index = log.segment_of(reference).1;
    log.pools[0].close_from(0);
    log.seal(&|_| Ok(()), TakeBack::All).expect("memory");
    log.settle(&|_| Ok(())).expect("memory");
    let mut pass = log.begin_pass(&candidate(index), Tombstones::Swept).expect("memory").expect("it is sealed");
    pass.free().expect("memory");
    let segment = &log.pools[0].segments[index as usize];
    assert_eq!(segment.state(), InMemory::Retiring);
    // As if opened, filled and sealed again, and in another pass.
    segment.set_state(InMemory::Collecting);
    drop(pass);
    assert_eq!(segment.state(), InMemory::Collecting);
    assert_eq!(log.passes_in_progress(None), 0);
}

/// Found by hand: marks must be durable as soon as their pass may free its victim, in this pool or another; but the
/// next step made only those of its own pool durable.
#[test]
fn what_was_buried_is_durable() {
    for rules in [Emulate::Adr, Emulate::File] {
        let (log, events) = recorded(rules, |_| ());
        let (source, _) = put(&log, b"value", Flush::Now);
        log.pools[0].close_from(0);
        let copy = log.copy_for_tests(source);
        log.seal(&|_| Ok(()), TakeBack::All).expect("memory");
        let pass = log.begin_pass(&candidate(log.segment_of(copy).1), Tombstones::Buried).expect("memory").expect("it is sealed");
        assert_eq!(pass.bury().expect("no damage"), 1);
        assert_mark_is_durable(&log, &events, rules, source);
    }
}

/// Found by hand: a later opening zeros the segments that it knows as used, and knows the parts of a freed run by this.
/// Without it a segment could be sealed over the bytes of a value, which the next opening refuses as damage.
#[test]
fn the_parts_of_a_run_are_known_as_used_before_it_is_one() {
    let (log, events) = recorded(Emulate::Adr, |_| ());
    let begun = events.len();
    let (reference, _) = put(&log, &[0xAA; 2 * SEGMENT], Flush::Now);
    let first = log.segment_of(reference).1;
    let (mut replay, mut rng, mut runs) = (events.replay(Emulate::Adr), ShadowRng::new(1), 0);
    replay.advance_to(begun);
    while replay.step() {
        replay.for_each_image(20, &mut rng, |image, _| {
            let pool = Pool::from_image(image, &OpenOptions::new()).expect("no damage");
            if pool.descriptor(first).expect("no damage").run_len == 3 {
                runs += 1;
                assert!(pool.was_used(first + 1) && pool.was_used(first + 2));
            }
        });
    }
    assert!(runs > 0);
}

/// Found by hand: a segment that an earlier process has freed but not zeroed is zeroed by the next process that uses
/// it.
#[test]
fn what_was_free_and_used_at_an_opening_is_zeroed_before_use() {
    let (log, _) = recorded(Emulate::Adr, |pool| {
        // SAFETY: the segment is mapped, and nobody else has the pool.
        unsafe { pool.write(pool.segment_offset(0), &[0xAA; SEGMENT]) };
        let freed = Descriptor { generation: 7, run_len: 1, state: SegmentState::Free, ..Descriptor::default() };
        pool.commit_descriptor(0, &freed).expect("memory");
    });
    let (reference, _) = put(&log, b"value", Flush::Now);
    assert_eq!(log.segment_of(reference).1, 0, "the lowest free one");
    assert!(matches!(log.visit_segment(0, 0, |_, _, _, _| ()), ScanTotals { entries: 1, torn: 0, .. }));
}

/// Found by hand: no test noticed when a segment was opened with the generation of its previous life, with which its
/// old bytes and old links would count.
#[test]
fn each_life_of_a_segment_has_a_generation_of_its_own() {
    let (log, _) = recorded(Emulate::Adr, |_| ());
    let mut seen = std::collections::HashSet::new();
    for _ in 0..3 {
        let _section = epoch::pin_writer();
        let purpose = Purpose { keyspace: KEYSPACE, shard: 0, kind: Filler::Move, version: u64::MAX };
        assert_eq!(log.pools[0].open_segments(&log, 1, purpose).expect("room"), 0, "the lowest free one");
        assert!(seen.insert(log.pool(0).descriptor(0).expect("no damage").generation));
        log.pool(0).zero_segment(0, 1).expect("memory");
        log.pools[0].add_free(0);
    }
}

/// Found by hand: the last line that a dead process had written could be left out, if the last entry only just reached
/// into it.
#[test]
fn what_a_process_that_died_left_in_open_segments_is_durable_once_hardened() {
    let (log, events) = recorded(Emulate::Adr, |_| ());
    // Longer and longer entries, until the last word of one is the first of a line.
    let mut value = vec![0xAA; 24];
    let reference = loop {
        let (reference, _) = put(&log, &value, Flush::ByCaller);
        if (address::unpack(reference).offset + log.entry(reference).size) % 64 == 8 {
            break reference;
        }
        value.push(0xAA);
    };
    let (node, index) = log.segment_of(reference);
    let segment = SegmentToScan { node, index, descriptor: log.pool(0).descriptor(index).expect("no damage") };
    let totals = scan(log.pool(0), index, &segment.descriptor, |_, _| ());
    assert_eq!(totals.tail % 64, 8);
    log.harden(&[(segment, totals)]).expect("memory");
    for image in events.images(Emulate::Adr, events.len(), 40, &mut ShadowRng::new(1)) {
        let pool = Pool::from_image(&image, &OpenOptions::new()).expect("no damage");
        assert_eq!(scan(&pool, index, &segment.descriptor, |_, _| ()), totals);
    }
}

/// Found by hand: a pass over a segment in which torn bytes are allowed recorded it as whole, and the next opening
/// would have taken these bytes for damage.
#[test]
fn a_recovered_segment_stays_one_in_a_later_life() {
    let recovered = Descriptor { generation: 7, run_len: 1, state: SegmentState::Recovered, ..Descriptor::default() };
    let (log, _) = recorded(Emulate::Adr, |pool| pool.commit_descriptor(0, &recovered).expect("memory"));
    let _pass = log.begin_pass(&candidate(0), Tombstones::Buried).expect("memory").expect("it is full");
    let found = log.pool(0).descriptor(0).expect("no damage");
    assert_eq!((found.state, found.flags), (SegmentState::Recovered, COLLECTING));
}

/// Found by hand: tombstones may go once a sweep has ended, but its marks may lie in another pool than the next writes.
#[test]
fn what_a_sweep_has_marked_is_durable_when_it_ends() {
    for rules in [Emulate::Adr, Emulate::File] {
        let (log, events) = recorded(rules, |_| ());
        let (reference, version) = put(&log, b"value", Flush::Now);
        let sweep = log.begin_sweep();
        log.mark_dead_on_media(reference);
        sweep.end(&[], version).expect("memory");
        assert_mark_is_durable(&log, &events, rules, reference);
    }
}

/// Found by hand: a checkpoint may name an entry that a newer tombstone has deleted, and no test of this crate noticed
/// when such a tombstone could go.
#[test]
fn a_tombstone_that_a_checkpoint_needs_stays() {
    let (log, _) = recorded(Emulate::Adr, |_| ());
    let (tombstone, version) = write(&log, Op::Delete, b"", Flush::Now);
    let index = log.segment_of(tombstone).1;
    log.pools[0].close_from(0);
    log.seal(&|_| Ok(()), TakeBack::All).expect("memory");
    log.keep_tombstones_after(version - 1);
    assert!(log.begin_pass(&candidate(index), Tombstones::Buried).expect("memory").is_none());
    log.begin_sweep().end(&log.lives(), version).expect("memory");
    let pass = log.begin_pass(&candidate(index), Tombstones::Swept).expect("memory").expect("it is sealed");
    assert!(!pass.may_drop_tombstone(version));
    log.keep_tombstones_after(version);
    assert!(pass.may_drop_tombstone(version));
}

/// Found by hand: a mark made by an interrupted pass could end its completion, and older entries still came back.
#[test]
fn an_interrupted_burial_is_completed_behind_its_own_marks() {
    let (log, _) = recorded(Emulate::Adr, |_| ());
    let (oldest, _) = put(&log, b"value", Flush::Now);
    log.pools[0].close_from(0);
    let middle = log.copy_for_tests(oldest);
    let (node, index) = log.segment_of(log.copy_for_tests(middle));
    log.mark_dead_on_media(middle);
    let descriptor = log.pool(0).descriptor(index).expect("no damage");
    assert_eq!(log.complete_burials(&SegmentToScan { node, index, descriptor }), 1);
    assert!(log.entry(oldest).is_dead());
}
