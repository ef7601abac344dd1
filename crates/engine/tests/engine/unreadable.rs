//! Pages that the device cannot read: openings refuse them by name, readers in the background report them and go on,
//! and a salvage keeps everything else.

use crate::common::{DESCRIPTOR, TABLE, crash, get, put, skipped, small};
use hither_engine::{CheckpointMode, Durability, ErrorKind, Kind, MediumChoice, Options, OrderedKind, RestartSource, Store};
use hither_pmem::{Failpoints, Pool};
use std::ops::ControlFlow;
use std::path::Path;

const KEYS: u64 = 3_000;
const PAGE: usize = 4096;

fn options(dir: &Path) -> Options {
    Options { paths: vec![(None, dir.to_owned())], medium: MediumChoice::File, durability: Durability::Sync, ..small() }
}

fn value_of(number: u64) -> Vec<u8> {
    format!("value {number:06} {}", "x".repeat(300)).into_bytes()
}

/// Makes a store and closes it.
fn fill(options: &Options) {
    let store = Store::open(options.clone()).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    (0..KEYS).for_each(|number| put(&store, &keyspace, &number.to_be_bytes(), &value_of(number)));
    store.close().unwrap();
}

/// Where in the pool's file the value of a key lies.
fn place_of(dir: &Path, number: u64) -> usize {
    let (bytes, held) = (std::fs::read(dir.join("node0.hither")).unwrap(), value_of(number));
    bytes.windows(held.len()).position(|window| window == held).expect("it is there")
}

/// The same options, with the page of that place unreadable.
fn with_bad_page(options: &Options, place: usize) -> Options {
    let points = Failpoints::new();
    points.make_unreadable(place as u64, place as u64 + 1);
    Options { failpoints: Some(points), ..options.clone() }
}

/// Regression: an opening that met such a page ended the process, and so did one with salvage.
#[test]
fn a_scan_refuses_a_page_that_cannot_be_read_and_a_salvage_keeps_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { checkpoints: CheckpointMode::Off, ..options(dir.path()) };
    fill(&options);
    let place = place_of(dir.path(), 1_000);
    let bad = with_bad_page(&options, place);
    let error = Store::open(bad.clone()).map(drop).unwrap_err();
    let text = error.to_string();
    assert!(error.kind() == ErrorKind::Damaged && text.contains("cannot be read"), "{text}");
    assert!(text.contains(&format!("at byte {}", place / PAGE * PAGE)), "{text}");
    for salvaged in [Options { salvage: true, ..bad.clone() }, Options { salvage: true, medium: MediumChoice::PrivateCopy, ..bad }] {
        let store = Store::open(salvaged).unwrap();
        assert_eq!(store.recovery().salvaged.len(), 1, "{:?}", store.recovery().salvaged);
        let keyspace = store.open_keyspace("k").unwrap();
        let missing = (0..KEYS).filter(|number| get(&store, &keyspace, &number.to_be_bytes()).is_none()).count();
        // A page holds a dozen entries, and parts of two more.
        assert!((8..=15).contains(&missing), "{missing}");
        assert!((0..KEYS).all(|number| get(&store, &keyspace, &number.to_be_bytes()).is_none_or(|found| found == value_of(number))));
        assert!(!store.check().unwrap().is_sound());
        store.close().unwrap();
    }
    // The page can be read again.
    let store = Store::open(options).unwrap();
    assert_eq!(store.open_keyspace("k").unwrap().len() as u64, KEYS);
    assert!(store.check().unwrap().is_sound());
}

/// Regression: after a crash a salvage sealed such a segment with the totals of the last close: none, in a new segment.
/// When the device had replaced the page by zeros, that was what was left, and the store opened without a word.
#[test]
fn what_a_salvage_after_a_crash_could_not_read_is_missed_even_if_only_zeros_are_left() {
    let dir = tempfile::tempdir().unwrap();
    let at = |dir: &Path| Options { shards: 1, checkpoints: CheckpointMode::Off, ..options(dir) };
    let store = Store::open(at(dir.path())).unwrap();
    put(&store, &store.create_keyspace("k", Kind::Hash).unwrap(), b"key", &value_of(1));
    let crashed = crash(dir.path());
    let place = place_of(crashed.path(), 1);
    let store = Store::open(Options { salvage: true, ..with_bad_page(&at(crashed.path()), place) }).unwrap();
    assert_eq!(get(&store, &store.open_keyspace("k").unwrap(), b"key"), None);
    store.close().unwrap();
    drop(store);
    let mut bytes = std::fs::read(crashed.path().join("node0.hither")).unwrap();
    bytes[place / PAGE * PAGE..][..PAGE].fill(0);
    std::fs::write(crashed.path().join("node0.hither"), bytes).unwrap();
    let refused = Store::open(at(crashed.path())).map(drop).expect_err("it opens as if nothing were missing");
    assert!(refused.kind() == ErrorKind::Damaged && refused.to_string().contains("salvage"), "{refused}");
}

/// Returns the number of keys that can be read correctly; the others must be refused as damaged.
fn readable(store: &Store) -> u64 {
    let keyspace = store.open_keyspace("k").unwrap();
    let is_right = |number: &u64| match store.get_with(&keyspace, &number.to_be_bytes(), <[u8]>::to_vec) {
        Ok(found) => found.is_some_and(|found| found == value_of(*number)),
        Err(error) => error.kind() != ErrorKind::Damaged,
    };
    (0..KEYS).filter(is_right).count() as u64
}

/// Regression: a page that nobody had asked for ended a server as soon as the verification in the background came to
/// it, and each server that was started after it.
#[test]
fn a_verification_reports_a_page_that_cannot_be_read_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path());
    fill(&options);
    let store = Store::open(with_bad_page(&options, place_of(dir.path(), 1_000))).unwrap();
    assert_eq!(store.recovery().source, RestartSource::Clean);
    store.verify_unread();
    let damage = store.stats().damage;
    assert!(damage.len() == 1 && damage[0].contains("cannot be read"), "{damage:?}");
    let count = readable(&store);
    assert!((KEYS - 15..=KEYS - 8).contains(&count), "{count} of {KEYS}");
    assert!(!store.check().unwrap().is_sound());
}

/// The same with pages that the system really refuses: behind the end of a file that was cut short.
///
/// Regression: entries that were looked up to recognise garbage lay in segments that nobody had looked at, and the
/// process ended.
#[test]
fn a_verification_goes_on_behind_the_end_of_a_file() {
    if !Pool::can_find_unreadable() {
        return skipped("without_populate");
    }
    let dir = tempfile::tempdir().unwrap();
    let options = Options { shards: 1, ..options(dir.path()) };
    let store = Store::open(options.clone()).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    let put_again = |number: u64| put(&store, &keyspace, &number.to_be_bytes(), &value_of(number));
    (0..KEYS).for_each(put_again);
    // What was written first is overwritten, and then again, into the space that it left: so the segments that are
    // being filled lie before the others.
    (0..KEYS / 4).for_each(put_again);
    store.reclaim().unwrap();
    (0..KEYS / 4).for_each(put_again);
    store.close().unwrap();
    drop((store, keyspace));
    let cut = place_of(dir.path(), KEYS * 2 / 3) / PAGE * PAGE;
    let store = Store::open(options).unwrap();
    std::fs::OpenOptions::new().write(true).open(dir.path().join("node0.hither")).unwrap().set_len(cut as u64).unwrap();
    store.verify_unread();
    let damage = store.stats().damage;
    assert!(damage.len() > 3 && damage.iter().all(|what| what.contains("cannot be read")), "{damage:?}");
    let count = readable(&store);
    assert!(count > KEYS / 3 && count < KEYS * 4 / 5, "{count} of {KEYS}");
}

/// Regression: a look at such a page, in a segment that had been verified, made it show zeros, which readers took for
/// the absence of its keys.
#[test]
fn pages_that_were_readable_are_not_hidden_from_readers() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { checkpoints: CheckpointMode::Off, ..options(dir.path()) };
    fill(&options);
    let points = Failpoints::new();
    let store = Store::open(Options { failpoints: Some(points.clone()), ..options }).unwrap();
    assert!(!store.has_unverified());
    let keyspace = store.open_keyspace("k").unwrap();
    // Sweeps have something to do: there are tombstones in full segments.
    for _ in 0..3 {
        (KEYS..2 * KEYS).for_each(|number| put(&store, &keyspace, &number.to_be_bytes(), &value_of(number)));
        (KEYS..2 * KEYS).for_each(|number| assert!(store.write_wait(&keyspace, &number.to_be_bytes(), None).unwrap()));
    }
    // The page is unreadable from now on.
    let place = place_of(dir.path(), 1_000) as u64;
    points.make_unreadable(place, place + 1);
    store.reclaim().unwrap();
    let done = store.stats().collections;
    assert!(done.sweeps > 0 && done.segments > 0, "{done:?}");
    assert!(store.check().unwrap().is_sound());
    assert_eq!(readable(&store), KEYS);
}

/// Regression: what lies on a page that could not be read may be there again at a later opening. The sweep that let the
/// tombstones go had not marked it dead, so deleted keys came back.
#[test]
fn deleted_keys_stay_away_when_their_page_is_well_again() {
    for verify_first in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let options = options(dir.path());
        fill(&options);
        let place = place_of(dir.path(), 1_000);
        let store = Store::open(options.clone()).unwrap();
        let keyspace = store.open_keyspace("k").unwrap();
        let deleted = 980..1_020u64;
        deleted.clone().for_each(|number| assert!(store.write_wait(&keyspace, &number.to_be_bytes(), None).unwrap()));
        // The entries beside the tombstones are to be garbage.
        (KEYS..KEYS + 400).for_each(|number| put(&store, &keyspace, &number.to_be_bytes(), &value_of(number)));
        store.close().unwrap();
        drop((store, keyspace));
        let store = Store::open(with_bad_page(&options, place)).unwrap();
        let keyspace = store.open_keyspace("k").unwrap();
        if verify_first {
            store.verify_unread();
        }
        (KEYS..KEYS + 400).for_each(|number| assert!(store.write_wait(&keyspace, &number.to_be_bytes(), None).unwrap()));
        for _ in 0..3 {
            (KEYS..2 * KEYS).for_each(|number| put(&store, &keyspace, &number.to_be_bytes(), &value_of(number)));
            let compacted = store.compact(0.001, |_| ControlFlow::Continue(()));
            // The compaction may meet the bad page, or know it already.
            assert!(compacted.as_ref().err().is_none_or(|error| error.kind() == ErrorKind::Damaged), "{compacted:?}");
        }
        assert!(store.stats().collections.segments > 10);
        store.close().unwrap();
        drop((store, keyspace));
        std::fs::remove_file(dir.path().join("checkpoint.hither")).unwrap();
        let store = Store::open(options).unwrap();
        assert_eq!(store.recovery().source, RestartSource::Scan);
        let keyspace = store.open_keyspace("k").unwrap();
        let back: Vec<_> = deleted.filter(|number| get(&store, &keyspace, &number.to_be_bytes()).is_some()).collect();
        assert!(back.is_empty(), "{back:?}, verified first: {verify_first}");
    }
}

/// Regression: a checkpoint was taken while a salvage had passed over something. It told the next opening that what lay
/// there was superseded: its entries were gone for good, and deletes of what lay beside it were forgotten.
#[test]
fn a_salvage_that_writes_leaves_no_checkpoint() {
    // In a segment of moved entries, and in one of others.
    for near in [1_000, 2_500] {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { shards: 1, ..options(dir.path()) };
        let store = Store::open(options.clone()).unwrap();
        let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
        (0..KEYS).for_each(|number| put(&store, &keyspace, &number.to_be_bytes(), &value_of(number)));
        // What is left of the first half is moved.
        (0..KEYS / 2).filter(|number| number % 4 != 0).for_each(|number| put(&store, &keyspace, &number.to_be_bytes(), &value_of(number)));
        while store.reclaim().unwrap() > 0 {}
        assert!(store.stats().collections.segments > 2, "{:?}", store.stats().collections);
        store.close().unwrap();
        drop((store, keyspace));

        let bad = with_bad_page(&options, place_of(dir.path(), near));
        let store = Store::open(Options { salvage: true, ..bad }).unwrap();
        let keyspace = store.open_keyspace("k").unwrap();
        let (missing, there): (Vec<u64>, Vec<_>) = (0..KEYS).partition(|number| get(&store, &keyspace, &number.to_be_bytes()).is_none());
        assert!((8..=15).contains(&missing.len()), "{missing:?}");
        // Keys of the same segment.
        let deleted: Vec<_> = there.into_iter().filter(|number| number.abs_diff(near) < 80).collect();
        deleted.iter().for_each(|number| assert!(store.write_wait(&keyspace, &number.to_be_bytes(), None).unwrap()));
        assert!(!store.stats().checkpoints.enabled && store.stats().checkpoints.failure.contains("salvage"));
        store.checkpoint().unwrap();
        store.close().unwrap();
        drop((store, keyspace));

        let store = Store::open(options).unwrap();
        assert_eq!(store.recovery().source, RestartSource::Scan);
        let keyspace = store.open_keyspace("k").unwrap();
        let lost: Vec<_> = missing.iter().filter(|number| get(&store, &keyspace, &number.to_be_bytes()).is_none()).collect();
        let back: Vec<_> = deleted.iter().filter(|number| get(&store, &keyspace, &number.to_be_bytes()).is_some()).collect();
        assert!(lost.is_empty() && back.is_empty(), "near {near}: lost {lost:?}, back {back:?}");
        assert_eq!(keyspace.len() as u64, KEYS - deleted.len() as u64);
    }
}

/// Regression: versions went on behind what a salvage could read, although what it could not read had higher ones. When
/// that could be read again, it took the place of what had been acknowledged since.
#[test]
fn what_is_written_after_a_salvage_is_newer_than_what_it_could_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { shards: 1, checkpoints: CheckpointMode::Off, ..options(dir.path()) };
    let store = Store::open(options.clone()).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
    (0..500u64).for_each(|number| put(&store, &keyspace, &number.to_be_bytes(), &value_of(number)));
    // The last of them begins in the last page.
    (0..50u64).for_each(|number| put(&store, &keyspace, b"key", &value_of(KEYS + number)));
    store.close().unwrap();
    drop((store, keyspace));

    let points = Failpoints::new();
    points.make_unreadable(place_of(dir.path(), KEYS) as u64, place_of(dir.path(), KEYS + 49) as u64 + 400);
    let store = Store::open(Options { salvage: true, failpoints: Some(points), ..options.clone() }).unwrap();
    let keyspace = store.open_keyspace("k").unwrap();
    assert_eq!(get(&store, &keyspace, b"key"), None);
    put(&store, &keyspace, b"key", b"since");
    store.close().unwrap();
    drop((store, keyspace));

    let store = Store::open(options).unwrap();
    assert_eq!(get(&store, &store.open_keyspace("k").unwrap(), b"key").as_deref(), Some(&b"since"[..]));
}

/// Regression: an opening that used a checkpoint came upon such a page where it looked up single entries. This ended
/// the process, at every later opening, too.
#[test]
fn an_opening_with_a_checkpoint_refuses_what_it_looks_up() {
    // Where keys begin alike, a learned index reads them when it is loaded.
    let alike = |number: u64| format!("keys that begin alike {number:08}").into_bytes();
    for (kind, ordered, is_closed) in [
        (Kind::Hash, OrderedKind::default(), false),
        (Kind::Ordered, OrderedKind::BTree, false),
        (Kind::Ordered, OrderedKind::Learned, true),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { ordered_index: ordered, ..options(dir.path()) };
        let store = Store::open(options.clone()).unwrap();
        let keyspace = store.create_keyspace("k", kind).unwrap();
        (0..KEYS).for_each(|number| put(&store, &keyspace, &alike(number), &value_of(number)));
        store.checkpoint().unwrap();
        let place = place_of(dir.path(), 1_000);
        let left = if is_closed {
            store.close().unwrap();
            dir
        } else {
            // Entries written since the checkpoint are looked up.
            (990..1_010).for_each(|number| put(&store, &keyspace, &alike(number), b"new"));
            crash(dir.path())
        };
        drop((store, keyspace));
        let options = Options { paths: vec![(None, left.path().to_owned())], ..options };
        let copy = crash(left.path());
        let whole = Store::open(Options { paths: vec![(None, copy.path().to_owned())], ..options.clone() }).unwrap();
        assert_ne!(whole.recovery().source, RestartSource::Scan);
        assert_eq!(whole.open_keyspace("k").unwrap().len() as u64, KEYS);
        drop(whole);
        let Err(error) = Store::open(with_bad_page(&options, place)) else { panic!("{kind:?}, {ordered:?}: nobody looked") };
        let text = error.to_string();
        assert!(error.kind() == ErrorKind::Damaged && text.contains("cannot be read"), "{kind:?}, {ordered:?}: {text}");
    }
}

/// Regression: an opening with a checkpoint checked every entry that it loaded, and so read in the whole log.
#[test]
fn an_opening_with_a_checkpoint_reads_no_more_than_it_looks_up() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path());
    fill(&options);
    let points = Failpoints::new();
    let store = Store::open(Options { failpoints: Some(points.clone()), ..options }).unwrap();
    assert_eq!(store.recovery().source, RestartSource::Clean);
    let (checked, held) = (points.checked_bytes(), store.stats().pools[0].usage.live_bytes);
    // The catalogue and the table of segments.
    assert!(held > 1_000_000 && (1..300_000).contains(&checked), "{checked} bytes of {held} were checked");
    store.verify_unread();
    assert!(points.checked_bytes() - checked > held, "the verification reads all");
}

/// What is looked up may have been appended since the opening. Of such pages nobody compares what they hold with what was
/// written, so zeros there would be taken for the absence of keys.
#[test]
fn a_verification_covers_nothing_that_was_appended_since() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { shards: 1, ..options(dir.path()) };
    fill(&options);
    let points = Failpoints::new();
    let store = Store::open(Options { failpoints: Some(points.clone()), ..options }).unwrap();
    assert_eq!(store.recovery().source, RestartSource::Clean);
    let keyspace = store.open_keyspace("k").unwrap();
    let again = |number: u64| value_of(KEYS + number);
    (0..40u64).for_each(|number| put(&store, &keyspace, &number.to_be_bytes(), &again(number)));
    // The page behind the one in which writing went on.
    let place = (place_of(dir.path(), KEYS).next_multiple_of(PAGE) + PAGE) as u64;
    points.make_unreadable(place, place + 1);
    // What is garbage is counted now, so that entries are looked up.
    assert!(store.stats().pools[0].usage.dead_bytes > 0);
    store.verify_unread();
    let lost: Vec<_> = (0..40u64).filter(|number| get(&store, &keyspace, &number.to_be_bytes()) != Some(again(*number))).collect();
    assert!(lost.is_empty(), "{lost:?}");
}

/// The offset in the pool's file of a segment, and whether its descriptor is blank. All segments lie at the end of the
/// file, behind their table.
fn segments_of(path: &Path) -> Vec<(usize, bool)> {
    let (bytes, count) = (std::fs::read(path).unwrap(), (8 << 20) / SEGMENT);
    let is_blank = |segment: usize| bytes[TABLE + segment * DESCRIPTOR..][..DESCRIPTOR].iter().all(|byte| *byte == 0);
    (0..count).map(|segment| (bytes.len() - (count - segment) * SEGMENT, is_blank(segment))).collect()
}

const SEGMENT: usize = 64 << 10;

/// Segments are zeroed ahead of their use, so even those that were never used have sectors that can go bad.
///
/// Regression: a salvage read such a segment without a look at it first, and the process ended, each time anew. An
/// opening reported an input/output error instead of the segment.
#[test]
fn a_salvage_passes_over_a_bad_page_of_a_segment_that_was_never_used() {
    let dir = tempfile::tempdir().unwrap();
    let (options, path) = (options(dir.path()), dir.path().join("node0.hither"));
    fill(&options);
    let (unused, _) = *segments_of(&path).iter().rfind(|(_, is_blank)| *is_blank).expect("the store is not full");
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; SEGMENT], unused as u64).unwrap();
    for (place, opens) in [(unused, false), (unused + SEGMENT / 2, true)] {
        let bad = with_bad_page(&options, place);
        match Store::open(bad.clone()) {
            Ok(store) => assert!(opens && store.open_keyspace("k").unwrap().len() as u64 == KEYS),
            Err(error) => {
                let text = error.to_string();
                assert!(!opens && error.kind() == ErrorKind::Damaged && text.contains("cannot be read"), "{text}");
                assert!(text.contains(&format!("at byte {unused}")), "{text}");
            }
        }
        let store = Store::open(Options { salvage: true, medium: MediumChoice::PrivateCopy, ..bad }).unwrap();
        let salvaged = &store.recovery().salvaged;
        assert!(salvaged.iter().any(|what| what.contains("is blank") && what.contains(&format!("at byte {place}"))), "{salvaged:?}");
        assert_eq!(readable(&store), KEYS);
    }
}

/// Regression: what a descriptor's loss had left was searched without a look at the pages first.
#[test]
fn a_salvage_searches_segments_with_bad_pages_for_what_a_lost_descriptor_named() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { checkpoints: CheckpointMode::Off, ..options(dir.path()) };
    fill(&options);
    let (path, place) = (dir.path().join("node0.hither"), place_of(dir.path(), 1_000));
    let segments = segments_of(&path);
    let segment = segments.iter().rposition(|(offset, _)| *offset <= place).expect("it is in a segment");
    let salvage = || {
        let points = Failpoints::new();
        points.make_unreadable(place as u64, place as u64 + 1);
        let (salvage, medium, failpoints) = (true, MediumChoice::PrivateCopy, Some(points.clone()));
        let store = Store::open(Options { salvage, medium, failpoints, ..options.clone() }).unwrap();
        let found = readable(&store);
        // All but the entries of that page.
        assert!((KEYS - 15..=KEYS - 8).contains(&found), "{found} of {KEYS}: {:?}", store.recovery().salvaged);
        points.checked_bytes()
    };
    let scanned = salvage();
    // The descriptor's commit word; its slots are whole.
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[TABLE + segment * DESCRIPTOR..][..8].fill(0);
    std::fs::write(&path, bytes).unwrap();
    let searched = salvage() - scanned;
    assert!(searched >= (SEGMENT - PAGE) as u64, "{searched}: a search looks before the scan does");
}
