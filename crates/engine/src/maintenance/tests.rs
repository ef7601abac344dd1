use super::*;
use crate::write::Condition;
use hither_pmem::Failpoints;

/// Regression: pauses of two milliseconds between segments of eight megabytes, each a few milliseconds of work, kept
/// most of a processor busy.
#[test]
fn the_verification_takes_a_fifth_of_a_processor() {
    let piece = Duration::from_millis(5);
    let (mut pieces, mut rest, started) = (0, Duration::ZERO, Instant::now());
    let work = || {
        std::thread::sleep(piece);
        pieces += 1;
        pieces < 4
    };
    run_paced(VERIFICATION_REST, work, |pause| {
        assert!(pause >= piece * 4, "{pause:?} after {piece:?} of work");
        rest += pause;
        false
    });
    assert!(pieces == 4 && rest >= piece * 12 && rest <= started.elapsed() * 4, "it rests for each piece but the last, by what that took");
}

#[test]
fn paced_work_ends_when_it_is_time() {
    let mut pieces = 0;
    let work = || {
        pieces += 1;
        true
    };
    run_paced(1, work, |_| true);
    assert_eq!(pieces, 1);
}

#[test]
fn threads_rest_longer_while_nobody_writes() {
    let store = crate::Store::open(crate::Options { in_memory: true, background: false, ..crate::Options::default() }).unwrap();
    let keyspace = store.create_keyspace("k", crate::Kind::Hash).unwrap();
    let core = &store.core;
    let mut rest = Rest::default();
    assert_eq!([rest.next(core, false), rest.next(core, false), rest.next(core, true)], [TICK, IDLE_TICK, TICK]);
    // More than a block of versions: the clock knows only whole blocks.
    for key in 0..=hither_log::version::BLOCK {
        store.write_wait(&keyspace, &key.to_be_bytes(), Some(b"v")).unwrap();
    }
    assert_eq!([rest.next(core, false), rest.next(core, false)], [TICK, IDLE_TICK]);
}

/// Regression: an interval began when the sync before it had ended, so that a write in the midst of that sync waited
/// for the next one longer than promised.
#[test]
fn an_interval_counts_from_where_the_last_sync_began() {
    let ms = Duration::from_millis;
    assert_eq!([rest_of(Some(ms(100)), ms(30)), rest_of(Some(ms(100)), ms(130))], [ms(70), ms(0)]);
}

/// Regression: where the thread that commits could not be started, what was asked of it never came.
#[test]
fn who_has_no_thread_that_commits_commits_itself() {
    let dir = tempfile::tempdir().unwrap();
    let store = on_a_file(dir.path(), 8 << 20, &Failpoints::new());
    let keyspace = store.create_keyspace("k", crate::Kind::Hash).unwrap();
    let put = |level| {
        let options = crate::WriteOptions::new().durability(level);
        store.write(&keyspace, b"key", Some(b"value"), Condition::None, &options).unwrap().2
    };
    let tell = |ticket: crate::Ticket| {
        let (told, outcome) = std::sync::mpsc::channel();
        ticket.on_durable(move |outcome| told.send(outcome.is_ok()).unwrap());
        outcome
    };
    let tickets = [0; 2].map(|_| put(Durability::Sync));
    store.core.committer.note_alone();
    let [first, second] = tickets;
    let version = second.version();
    assert_eq!(tell(first).try_recv(), Ok(true));
    let others = put(Durability::Interval(Duration::from_secs(3600)));
    assert!(others.is_durable() && second.is_durable(), "nobody else would see to it");
    // Another thread has made it durable, with locks held, and has left the callback.
    let third = crate::Ticket::pending(&store.core, version + 1_000);
    store.skip_versions(1_000);
    let pin = hither_sync::epoch::pin();
    let outcome = tell(third);
    drop(pin);
    assert!(outcome.try_recv().is_err(), "not in the midst of a read");
    store.core.committer.request(&store.core.log, version);
    assert_eq!(outcome.try_recv(), Ok(true));
}

/// Found by reading: every write that failed ran the callbacks of others that were left to the background thread, though
/// its caller might hold locks that they need.
#[test]
fn a_write_that_is_refused_runs_no_callbacks_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let store = on_a_file(dir.path(), 8 << 20, &Failpoints::new());
    let keyspace = store.create_keyspace("k", crate::Kind::Hash).unwrap();
    store.drop_keyspace("k").unwrap();
    let refused = || assert!(matches!(store.write_wait(&keyspace, b"key", Some(b"value")), Err(crate::Error::KeyspaceDropped(_))));
    let version = store.core.log.clock.stable() + 1_000;
    let (told, outcome) = std::sync::mpsc::channel();
    crate::Ticket::pending(&store.core, version).on_durable(move |outcome| told.send(outcome.is_ok()).unwrap());
    store.skip_versions(1_000);
    store.core.committer.commit_with_locks(&store.core.log, version).unwrap();
    refused();
    assert!(outcome.try_recv().is_err(), "it is left to the background thread");
    store.core.committer.note_alone();
    refused();
    assert_eq!(outcome.try_recv(), Ok(true), "nobody else would run it");
}

fn on_a_file(dir: &std::path::Path, capacity: u64, failpoints: &Arc<Failpoints>) -> crate::Store {
    use crate::{MediumChoice, Options, Store};
    let sizes = Options { capacity, max_capacity: capacity, segment_bytes: 256 << 10, shards: 2, ..Options::default() };
    let medium = Options { medium: MediumChoice::File, failpoints: Some(failpoints.clone()), ..sizes };
    Store::open(Options { paths: vec![(None, dir.to_owned())], background: false, ..medium }).unwrap()
}

/// Bytes of the pages that this thread made dirty in files on a device; 0 where the kernel does not count them.
fn dirtied_bytes() -> u64 {
    let counts = std::fs::read_to_string("/proc/thread-self/io").unwrap_or_default();
    counts.lines().find_map(|line| line.strip_prefix("write_bytes: ")).map_or(0, |bytes| bytes.parse().unwrap())
}

/// Regression: a writer that opened a segment on a file zeroed it first, and all its clients waited.
#[test]
fn writers_find_segments_zeroed_that_were_made_ready() {
    // What the system writes meanwhile is dirtied, and counted, once more.
    assert!((0..5).any(|_| writes_dirty_less_that_was_made_ready()), "no less is dirtied where segments were made ready");
}

fn writes_dirty_less_that_was_made_ready() -> bool {
    let dir = tempfile::tempdir().unwrap();
    let store = on_a_file(dir.path(), 8 << 20, &Failpoints::new());
    let keyspace = store.create_keyspace("k", crate::Kind::Hash).unwrap();
    let relaxed = crate::WriteOptions::new().durability(Durability::Process);
    let fill = |from: u64| {
        let before = dirtied_bytes();
        for key in from..from + 1_000 {
            drop(store.write(&keyspace, &key.to_be_bytes(), Some(&[1; 1_000]), Condition::None, &relaxed).unwrap());
        }
        dirtied_bytes() - before
    };
    let unready = fill(0);
    std::thread::scope(|scope| drop(scope.spawn(|| store.core.log.make_ready(0).unwrap())));
    let ready = fill(1_000);
    unready < 1 << 20 || ready < unready * 2 / 3
}

#[test]
fn what_is_made_ready_stays_free_for_writers() {
    let dir = tempfile::tempdir().unwrap();
    // More than is kept zeroed, so that writers come upon segments that are being zeroed.
    let store = on_a_file(dir.path(), 64 << 20, &Failpoints::new());
    let keyspace = store.create_keyspace("k", crate::Kind::Hash).unwrap();
    let relaxed = crate::WriteOptions::new().durability(Durability::Process);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let fill = |first: u64| {
        let put = |key: u64| store.write(&keyspace, &key.to_be_bytes(), Some(&[key as u8; 1_000]), Condition::None, &relaxed).map(drop);
        (0..).map(|number| number * 2 + first).find(|key| put(*key).is_err()).unwrap()
    };
    let ends = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                store.core.log.make_ready(0).unwrap();
            }
        });
        let fill = &fill;
        let writers = [0, 1].map(|first| scope.spawn(move || fill(first)));
        let ends = writers.map(|writer| writer.join().unwrap());
        stop.store(true, Ordering::Relaxed);
        ends
    });
    // The store is full, and not merely because what was free was being zeroed.
    assert!(ends.iter().sum::<u64>() / 2 * 1_024 > 56 << 20, "{ends:?}");
    for key in (0..2).flat_map(|first| (first..ends[first as usize]).step_by(2)) {
        assert_eq!(store.get_with(&keyspace, &key.to_be_bytes(), |value| value == [key as u8; 1_000]).unwrap(), Some(true));
    }
    assert!(store.check().unwrap().is_sound());
}

#[test]
fn who_takes_a_segment_that_is_being_zeroed_waits_for_that() {
    let (dir, failpoints) = (tempfile::tempdir().unwrap(), Failpoints::new());
    let store = on_a_file(dir.path(), 8 << 20, &failpoints);
    let keyspace = store.create_keyspace("k", crate::Kind::Hash).unwrap();
    let put = |key: u64| store.write_wait(&keyspace, &key.to_be_bytes(), Some(&[7; 1_000])).map(drop);
    failpoints.hold("zero");
    std::thread::scope(|scope| {
        scope.spawn(|| store.core.log.make_ready(0).unwrap());
        scope.spawn(|| {
            while failpoints.waiting("zero") == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            put(1).unwrap();
            // The segment is not zeroed again, or what was written would be gone.
            assert_eq!(store.get_with(&keyspace, &1u64.to_be_bytes(), |value| value == [7; 1_000]).unwrap(), Some(true));
        });
        while failpoints.waiting("zero") == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(50));
        let zeroing = failpoints.waiting("zero");
        failpoints.release("zero");
        assert_eq!(zeroing, 1, "nobody else zeroes it");
    });
    (2..2_000).for_each(|key| put(key).unwrap());
    assert!(store.check().unwrap().is_sound());
}
