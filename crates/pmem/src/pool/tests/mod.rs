//! Tests of pools: behaviour, crash points, damage, files.

mod cached;
mod crash;
mod damage;
mod files;
mod growth;
mod links;
mod placement;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod syscalls;

use std::sync::Arc;

use crate::{CreateOptions, Descriptor, Emulate, MediumChoice, OpenOptions, Pool, SegmentState};

/// A directory on tmpfs. Where there is none, the test is counted as skipped.
pub(crate) fn on_tmpfs() -> Option<tempfile::TempDir> {
    let dir = tempfile::tempdir_in("/dev/shm").ok();
    if dir.is_none() {
        skipped("without_shm");
    }
    dir
}

/// Counts a test that cannot run here. Written to standard output directly, because the output of a passing test is not
/// shown. The reader may be gone already.
pub(crate) fn skipped(why: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stdout(), format!("HITHER_COUNT skipped_{why} 1\n").as_bytes());
}

/// A small pool: 16 segments of 4 KiB now, up to 32.
pub(super) fn small() -> CreateOptions {
    let mut o = CreateOptions::new(64 << 10);
    o.segment_bytes = 4 << 10;
    o.max_bytes = 128 << 10;
    o.created_ms = 1_700_000_000_000;
    o
}

pub(super) fn active(generation: u64) -> Descriptor {
    Descriptor { generation, base_version: generation * 10, run_len: 1, state: SegmentState::Active, ..Descriptor::default() }
}

/// A finished pool in memory with something in every area, and its bytes.
pub(super) fn sample_image() -> (Pool, Vec<u8>) {
    let pool = Pool::create_in_memory(&small()).unwrap();
    pool.finish_creation().unwrap();
    pool.set_settled(77).unwrap();
    pool.set_clock_ms(88).unwrap();
    pool.set_catalogue(b"first").unwrap();
    pool.set_catalogue(b"keyspaces").unwrap();
    pool.commit_descriptor(3, &active(1)).unwrap();
    pool.commit_descriptor(3, &active(2)).unwrap();
    pool.mark_open(1).unwrap();
    let image = image_of(&pool);
    (pool, image)
}

pub(super) fn image_of(pool: &Pool) -> Vec<u8> {
    let mut image = vec![0; pool.len_mapped() as usize];
    pool.access.read(0, &mut image);
    image
}

#[test]
fn everything_survives_a_reopen() {
    let (pool, image) = sample_image();
    let again = Pool::from_image(&image, &OpenOptions::new()).unwrap();
    assert_eq!(again.superblock(), pool.superblock());
    assert_eq!((again.settled(), again.clock_ms(), again.was_clean()), (77, 88, false));
    assert_eq!(again.superblock().open_count, 1);
    assert_eq!(again.catalogue().unwrap(), b"keyspaces");
    assert_eq!(again.descriptor(3).unwrap(), active(2));
    assert_eq!(again.descriptor(4).unwrap(), Descriptor::default());
}

#[test]
fn segments_tile_the_data_area() {
    let pool = Pool::create_in_memory(&small()).unwrap();
    assert_eq!((pool.segment_count(), pool.max_segments(), pool.segment_bytes()), (16, 32, 4096));
    assert_eq!(pool.segment_of(pool.segment_offset(0) - 1), None);
    for i in 0..16 {
        let off = pool.segment_offset(i);
        assert_eq!((pool.segment_of(off), pool.segment_of(off + 4095)), (Some(i), Some(i)));
    }
    assert_eq!(pool.segment_of(pool.segment_offset(16)), None);
}

#[test]
fn every_way_of_writing_writes() {
    let pool = Pool::create_in_memory(&small()).unwrap();
    let off = pool.segment_offset(0);
    // SAFETY: segment 0 is mapped and only this thread has the pool.
    unsafe {
        pool.write(off, &[1; 24]);
        pool.write(off + 24, &[2; 5]);
        pool.write_words(off + 32, &[0x0303_0303_0303_0303; 2]);
        pool.write_streaming(off + 51, &[4; 100]);
    }
    pool.store_u64(off + 200, 0x0505_0505_0505_0505);
    pool.fence();
    let mut bytes = vec![9; 208];
    pool.access.read(off, &mut bytes);
    let mut expected = vec![0; 208];
    expected[..24].fill(1);
    expected[24..29].fill(2);
    expected[32..48].fill(3);
    expected[51..151].fill(4);
    expected[200..].fill(5);
    assert_eq!(bytes, expected);
    // SAFETY: as above.
    unsafe { pool.zero_streaming(off + 3, 195) };
    assert_eq!((pool.load_u64(off + 8), pool.load_u64(off + 200)), (0, 0x0505_0505_0505_0505));
    pool.zero_segment(0, 2).unwrap();
    assert!((0..1024).all(|i| pool.load_u64(off + i * 8) == 0));
}

#[test]
fn the_meter_counts_what_the_medium_needs() {
    let topology = hither_topology::Topology::emulated(2);
    let meter = hither_topology::Meter::new(&topology);
    topology.bind_current_thread(1).unwrap();
    let o = CreateOptions { meter: Some(meter.clone()), emulate: Some(Emulate::Adr), ..small() };
    let pool = Pool::create_in_memory(&o).unwrap();
    let off = pool.segment_offset(0);
    meter.reset();
    // SAFETY: segment 0 is mapped and only this thread has the pool.
    unsafe { pool.write_words(off, &[1; 4]) };
    pool.flush(off, 32);
    pool.fence();
    pool.meter_read(off, 32);
    let c = meter.snapshot().pair(1, 0);
    assert_eq!((c.writes, c.write_bytes, c.write_lines, c.flushes, c.fences, c.media_lines), (1, 32, 1, 1, 1, 1));
    assert_eq!((c.reads, c.read_bytes, c.read_lines), (1, 32, 1));
}

#[test]
fn media_need_exactly_their_own_calls() {
    let needs = |emulate| {
        let pool = Pool::create_in_memory(&CreateOptions { emulate, ..small() }).unwrap();
        (pool.needs_flush(), pool.needs_sync())
    };
    assert_eq!(needs(None), (false, false));
    assert_eq!(needs(Some(Emulate::Adr)), (true, false));
    assert_eq!(needs(Some(Emulate::Eadr)), (false, false));
    assert_eq!(needs(Some(Emulate::File)), (false, true));
}

#[test]
fn bad_options_are_refused() {
    use crate::Error::{Invalid, TooLarge};
    let create = |change: fn(&mut CreateOptions)| {
        let mut o = small();
        change(&mut o);
        Pool::create_in_memory(&o).unwrap_err()
    };
    assert!(matches!(create(|o| o.segment_bytes = 5000), Invalid { .. }));
    assert!(matches!(create(|o| o.segment_bytes = 0), Invalid { .. }));
    assert!(matches!(create(|o| o.capacity_bytes = 0), Invalid { .. }));
    assert!(matches!(create(|o| o.members.clear()), Invalid { .. }));
    assert!(matches!(create(|o| o.node = 1), Invalid { .. }));
    assert!(matches!(create(|o| o.members = vec![o.pool_uuid; 17]), Invalid { .. }));
    assert!(matches!(create(|o| o.max_bytes = u64::MAX), TooLarge { .. }));
    let pool = Pool::create_in_memory(&small()).unwrap();
    assert!(matches!(pool.set_settled(1 << 56), Err(TooLarge { .. })));
    assert!(matches!(pool.set_catalogue(&vec![0; crate::CATALOGUE_MAX_BYTES + 1]), Err(TooLarge { .. })));
    pool.set_catalogue(&vec![7; crate::CATALOGUE_MAX_BYTES]).unwrap();
    assert_eq!(pool.catalogue().unwrap(), vec![7; crate::CATALOGUE_MAX_BYTES]);
}

#[test]
fn growth_keeps_content_and_stops_at_the_limit() {
    let pool = Pool::create_in_memory(&small()).unwrap();
    pool.finish_creation().unwrap();
    let base = pool.base();
    pool.store_u64(pool.segment_offset(15), 5);
    assert_eq!(pool.grow(4).unwrap(), 20);
    assert_eq!(pool.grow(100).unwrap(), 32);
    assert!(matches!(pool.grow(1), Err(crate::Error::TooLarge { .. })));
    assert_eq!((pool.base(), pool.load_u64(pool.segment_offset(15)), pool.load_u64(pool.segment_offset(31))), (base, 5, 0));
    let again = Pool::from_image(&image_of(&pool), &OpenOptions::new()).unwrap();
    assert_eq!(again.segment_count(), 32);
}

#[test]
fn a_reader_of_descriptors_never_sees_damage_beside_a_writer() {
    let pool = Arc::new(Pool::create_in_memory(&small()).unwrap());
    let writer = pool.clone();
    let handle = std::thread::spawn(move || (1..20_000).for_each(|g| writer.commit_descriptor(0, &active(g)).unwrap()));
    let mut last = 0;
    while !handle.is_finished() {
        let now = pool.descriptor(0).unwrap().generation;
        assert!(now >= last);
        last = now;
    }
    handle.join().unwrap();
}

/// A fence cannot report that copying failed; the next sync reports it.
#[test]
fn a_poisoned_pool_says_so_at_a_sync_that_is_a_fence() {
    let pool = Pool::create_in_memory(&small()).unwrap();
    pool.sync().unwrap();
    let _ = pool.access.poison("planted");
    assert!(matches!(pool.sync(), Err(crate::Error::SyncFailed { detail, .. }) if detail == "planted"));
}

/// Regression: of two concurrent sweeps, the one that had read the time first and stored it last set the clock back.
#[test]
fn the_clock_never_goes_back() {
    let pool = Pool::create_in_memory(&small()).unwrap();
    pool.finish_creation().unwrap();
    pool.set_clock_ms(90).unwrap();
    pool.set_clock_ms(80).unwrap();
    assert_eq!(pool.clock_ms(), 90);
    assert_eq!(Pool::from_image(&image_of(&pool), &OpenOptions::new()).unwrap().clock_ms(), 90);
}

/// Found by hand: a step of zeroing a file could end too early, and no test noticed.
#[test]
fn zeros_on_a_file_reach_the_last_byte_and_no_further() {
    let folder = tempfile::tempdir().unwrap();
    let sizes = CreateOptions { segment_bytes: 2 << 20, capacity_bytes: 10 << 20, max_bytes: 10 << 20, ..small() };
    let o = CreateOptions { medium: MediumChoice::File, ..sizes };
    let pool = Pool::create(&folder.path().join("pool"), &o).unwrap();
    for run_len in [1, 2] {
        let (before, after) = (pool.segment_offset(1) - 8, pool.segment_offset(1 + run_len));
        for segment in 0..4 {
            // SAFETY: the segment is mapped and only this thread has the pool.
            unsafe { pool.write(pool.segment_offset(segment), &vec![0xAA; 2 << 20]) };
        }
        pool.sync().unwrap();
        pool.zero_segment(1, run_len).unwrap();
        assert!((before + 8..after).step_by(8).all(|word| pool.load_u64(word) == 0), "a run of {run_len}");
        assert_eq!((pool.load_u64(before), pool.load_u64(after)), (0xAAAA_AAAA_AAAA_AAAA, 0xAAAA_AAAA_AAAA_AAAA));
    }
}
