//! Damaged media: whatever the bytes, opening ends, does not panic, and never gives wrong data.
//!
//! A store is filled and closed. Then bits of its image are flipped, region by region, and whole stretches are
//! overwritten. Each damaged image is opened in memory. The opening must return an error that names the place, or a
//! store all of whose values were written at some time.
//!
//! What a damaged image may *lose* depends on the place. Nothing may be lost where the format detects damage
//! (superblock, catalogue, descriptors, sealed segments). In segments that were open at the end, an entry that does not
//! verify is taken for torn, as after a crash.

#![forbid(unsafe_code)]

use crate::common;
use crate::common::Rng;
use hither_engine::{Error, ErrorKind, Kind, MediumChoice, Options, Store, WriteOptions};
use hither_pmem::{Descriptor, OpenOptions, Pool, Randomness, SegmentState};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

pub(crate) const SEGMENT: u64 = 4096;
const KEYS: u64 = 300;

/// An image, with the content that it must have.
pub(crate) struct Sample {
    pub(crate) image: Vec<u8>,
    /// The current value of each key, by keyspace and key.
    pub(crate) pairs: BTreeMap<(usize, u64), Vec<u8>>,
    /// Byte ranges of the segments, with their states.
    pub(crate) segments: Vec<(std::ops::Range<u64>, SegmentState)>,
}

/// A value that names its key and round, so that a wrong one is recognised.
fn value(key: u64, round: u64) -> Vec<u8> {
    let mut value = format!("{key} {round} ").into_bytes();
    value.resize(20 + (key % 50) as usize, b'.');
    value
}

pub(crate) fn sample() -> Sample {
    let dir = common::shm();
    let options = Options {
        paths: vec![(None, dir.path().to_owned())],
        medium: MediumChoice::File,
        capacity: 64 << 10,
        max_capacity: 1 << 20,
        segment_bytes: SEGMENT,
        shards: 2,
        // The same free segments each time, and some behind the others: no collector runs in between, and the same keys
        // go to each shard.
        background: false,
        random: Randomness::seeded(1),
        ..Options::default()
    };
    let store = Store::open(options).unwrap();
    let spaces = common::keyspaces(&store);
    let mut pairs = BTreeMap::new();
    for round in 0..3 {
        for key in (0..KEYS).filter(|key| key % (round + 1) == 0) {
            for (at, ks) in spaces.iter().enumerate() {
                if key % 7 == 6 && round == 2 {
                    store.write_wait(ks, &key.to_be_bytes(), None).unwrap();
                    pairs.remove(&(at, key));
                } else {
                    store.write_wait(ks, &key.to_be_bytes(), Some(&value(key, round))).unwrap();
                    pairs.insert((at, key), value(key, round));
                }
            }
        }
    }
    let mut batch = hither_engine::Batch::default();
    for key in 1000..1040u64 {
        batch.put(&spaces[(key % 2) as usize], &key.to_be_bytes(), &value(key, 9), 0);
        pairs.insert(((key % 2) as usize, key), value(key, 9));
    }
    store.commit(&batch, &WriteOptions::new()).unwrap().wait().unwrap();
    let large = value(5000, 1).repeat(400);
    store.write_wait(&spaces[0], &5000u64.to_be_bytes(), Some(&large)).unwrap();
    pairs.insert((0, 5000), large);
    store.reclaim().unwrap();
    store.close().unwrap();
    drop(store);
    let image = std::fs::read(dir.path().join("node0.hither")).unwrap();
    let pool = Pool::from_image(&image, &OpenOptions::new()).unwrap();
    let mut segments = Vec::new();
    let mut index = 0;
    while index < pool.segment_count() as u32 {
        let descriptor = pool.descriptor(index).unwrap();
        let start = pool.segment_offset(index);
        segments.push((start..start + u64::from(descriptor.run_len.max(1)) * SEGMENT, descriptor.state));
        index += descriptor.run_len.max(1);
    }
    Sample { image, pairs, segments }
}

impl Sample {
    fn state_at(&self, offset: u64) -> Option<SegmentState> {
        self.segments.iter().find(|(range, _)| range.contains(&offset)).map(|(_, state)| *state)
    }

    /// A sealed segment that is not a run: its byte range and its number.
    fn sealed_segment(&self) -> (&std::ops::Range<u64>, u32) {
        let is_one =
            |(range, state): &&(std::ops::Range<u64>, SegmentState)| *state == SegmentState::Sealed && range.end - range.start == SEGMENT;
        let (range, _) = self.segments.iter().find(is_one).unwrap();
        (range, ((range.start - self.segments[0].0.start) / SEGMENT) as u32)
    }
}

pub(crate) fn open(image: &[u8], salvage: bool) -> Result<Store, Error> {
    let image: Arc<[u8]> = image.into();
    let pools = move || Ok(vec![Pool::from_image(&image, &OpenOptions { salvage, ..OpenOptions::new() })?]);
    Store::open(Options { pools: Some(Arc::new(pools)), background: false, salvage, threads: 1, ..Options::default() })
}

/// All pairs of a store; an error if one of them was never written.
fn read(store: &Store) -> Result<BTreeMap<(usize, u64), Vec<u8>>, String> {
    read_keyspaces(store, ["ordered", "hash"])
}

/// As [`read`], for keyspaces with the given names.
pub(crate) fn read_keyspaces(store: &Store, names: [&str; 2]) -> Result<BTreeMap<(usize, u64), Vec<u8>>, String> {
    let mut found = BTreeMap::new();
    let mut wrong = None;
    for (at, name) in names.into_iter().enumerate() {
        let Some(ks) = store.open_keyspace(name) else { continue };
        let outcome = store.for_each(&ks, |key, bytes| {
            let key: Option<u64> = key.try_into().ok().map(u64::from_be_bytes);
            let plausible =
                key.is_some_and(|key| (0..10).any(|round| *bytes == value(key, round) || *bytes == value(key, round).repeat(400)));
            if !plausible {
                wrong = Some(format!("{name}: key {key:?} has a value of {} bytes that was never written", bytes.len()));
            }
            found.insert((at, key.unwrap_or(0)), bytes.to_vec());
            ControlFlow::Continue(())
        });
        outcome.map_err(|error| error.to_string())?;
    }
    wrong.map_or(Ok(found), Err)
}

/// What a damaged image may lose.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Tolerance {
    /// Nothing: opening fails, or everything is there.
    NothingLost,
    /// Entries may be missing, or older versions may be back.
    Torn,
}

fn judge(sample: &Sample, image: &[u8], tolerance: Tolerance) -> Result<&'static str, String> {
    match open(image, false) {
        Err(error) => {
            let named = error.to_string().len() > 20;
            let kind =
                matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Format | ErrorKind::WrongPool | ErrorKind::Io | ErrorKind::Invalid);
            if named && kind { Ok("refused") } else { Err(format!("an error that tells nothing: {error}")) }
        }
        Ok(store) => {
            let found = read(&store)?;
            if found == sample.pairs {
                return Ok("unharmed");
            }
            if tolerance == Tolerance::Torn { Ok("torn") } else { Err("data is missing or old, and nothing was said".to_owned()) }
        }
    }
}

/// Flips every `step`th bit of a range, one per image; returns how often each outcome came.
fn flip(sample: &Sample, range: std::ops::Range<u64>, step: u64, tolerance: Tolerance) -> BTreeMap<&'static str, u32> {
    let mut outcomes = BTreeMap::new();
    for bit in (range.start * 8..range.end * 8).step_by(step as usize) {
        let mut image = sample.image.clone();
        image[(bit / 8) as usize] ^= 1 << (bit % 8);
        let outcome = judge(sample, &image, tolerance).unwrap_or_else(|what| panic!("bit {} of byte {}: {what}", bit % 8, bit / 8));
        *outcomes.entry(outcome).or_default() += 1;
    }
    outcomes
}

#[test]
fn the_sample_covers_what_matters() {
    let sample = sample();
    let states: Vec<_> = sample.segments.iter().map(|(_, state)| *state).collect();
    assert!(states.contains(&SegmentState::Sealed) && states.contains(&SegmentState::Active), "{states:?}");
    assert_eq!(judge(&sample, &sample.image, Tolerance::NothingLost), Ok("unharmed"));
}

#[test]
fn flipped_bits_of_the_metadata_are_found_or_harmless() {
    let sample = sample();
    let first = sample.segments[0].0.start;
    let page0 = flip(&sample, 0..4096, 13, Tolerance::NothingLost);
    assert!(page0["refused"] > 100, "{page0:?}");
    let catalogue = flip(&sample, 4096..139_264, 4999, Tolerance::NothingLost);
    // The commit word and both slots, one of which is in use.
    let heads = [4096, 8192, 73_728].map(|from| flip(&sample, from..from + 32, 3, Tolerance::NothingLost));
    let refused = heads.iter().filter(|head| head.contains_key("refused")).count();
    assert_eq!(refused, 2, "{catalogue:?} {heads:?}");
    let table = flip(&sample, 139_264..(139_264 + 128 * sample.segments.len() as u64).min(first), 41, Tolerance::NothingLost);
    assert!(table["refused"] > 10, "{table:?}");
}

#[test]
fn flipped_bits_of_segments_are_found_or_harmless() {
    let sample = sample();
    let (mut rng, mut sealed, mut torn) = (Rng(5), 0, 0);
    let (from, to) = (sample.segments[0].0.start, sample.segments.last().unwrap().0.end);
    for _ in 0..1500 {
        let (offset, bit) = (from + rng.below(to - from), rng.below(8));
        let mut image = sample.image.clone();
        image[offset as usize] ^= 1 << bit;
        let tolerance = if sample.state_at(offset) == Some(SegmentState::Sealed) { Tolerance::NothingLost } else { Tolerance::Torn };
        let outcome = judge(&sample, &image, tolerance);
        match outcome.unwrap_or_else(|what| panic!("bit {bit} of byte {offset} ({:?}): {what}", sample.state_at(offset))) {
            "refused" => sealed += 1,
            "torn" => torn += 1,
            _ => {}
        }
    }
    assert!(sealed > 50, "{sealed} flips in sealed segments were refused, {torn} in open ones taken for torn");
}

#[test]
fn salvage_keeps_what_is_readable() {
    let sample = sample();
    let (range, segment) = sample.sealed_segment();
    let mut image = sample.image.clone();
    // Overwrites the middle of a sealed segment.
    image[range.start as usize + 1000..range.start as usize + 1400].fill(0xEE);
    let error = open(&image, false).err().expect("damage");
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    assert!(error.to_string().contains(&format!("segment {segment} ")), "{error}");
    let store = open(&image, true).unwrap();
    assert_eq!(store.recovery().salvaged.len(), 1, "{:?}", store.recovery().salvaged);
    let found = read(&store).unwrap();
    assert!(found.len() + 40 > sample.pairs.len(), "{} of {} keys salvaged", found.len(), sample.pairs.len());
}

/// A descriptor whose checksum holds but whose run would reach beyond the pool. No program writes one, and none may
/// follow it.
#[test]
fn runs_beyond_the_pool_are_damage() {
    let sample = sample();
    let (_, segment) = sample.sealed_segment();
    for run_len in [1_000_000, u32::MAX] {
        let dir = common::shm();
        let path = dir.path().join("node0.hither");
        std::fs::write(&path, &sample.image).unwrap();
        let pool = Pool::open(&path, &OpenOptions { medium: MediumChoice::File, ..OpenOptions::new() }).unwrap();
        let changed = Descriptor { run_len, ..pool.descriptor(segment).unwrap() };
        pool.commit_descriptor(segment, &changed).unwrap();
        drop(pool);
        let error = open(&std::fs::read(&path).unwrap(), false).err().expect("damage");
        assert!(error.kind() == ErrorKind::Damaged && error.to_string().contains(&format!("segment {segment} ")), "{error}");
    }
}

/// Damage of any size and shape.
#[derive(Clone, Debug)]
enum Harm {
    Random(u64, Vec<u8>),
    Zero(u64, u64),
    Copy(u64, u64, u64),
    Cut(u64),
}

fn harm(len: u64) -> impl Strategy<Value = Harm> {
    prop_oneof![
        4 => (0..len, prop::collection::vec(any::<u8>(), 1..300)).prop_map(|(at, bytes)| Harm::Random(at, bytes)),
        2 => (0..len, 1..20_000u64).prop_map(|(at, count)| Harm::Zero(at, count)),
        2 => (0..len, 0..len, 1..20_000u64).prop_map(|(from, to, count)| Harm::Copy(from & !7, to & !7, count)),
        1 => (0..len).prop_map(Harm::Cut),
    ]
}

fn apply(image: &mut Vec<u8>, harm: &Harm) {
    let len = image.len();
    let clamp = |at: u64, count: u64| (at as usize).min(len)..((at + count) as usize).min(len);
    match harm {
        Harm::Random(at, bytes) => {
            let range = clamp(*at, bytes.len() as u64);
            let count = range.len();
            image[range].copy_from_slice(&bytes[..count]);
        }
        Harm::Zero(at, count) => image[clamp(*at, *count)].fill(0),
        Harm::Copy(from, to, count) => {
            let from = clamp(*from, *count);
            let count = from.len().min(len - (*to as usize).min(len));
            image.copy_within(from.start..from.start + count, (*to as usize).min(len));
        }
        Harm::Cut(at) => image.truncate((*at as usize).min(len)),
    }
}

#[test]
fn any_damage_ends_in_an_error_or_a_plausible_store() {
    let sample = sample();
    let len = sample.image.len() as u64;
    let start = sample.segments[0].0.start;
    let place = prop_oneof![
        prop::collection::vec(harm(len), 1..4),
        prop::collection::vec(harm(len - start).prop_map(move |h| shift(h, start)), 1..6)
    ];
    let cases = std::env::var("HITHER_DAMAGE_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(400);
    proptest!(ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }, |(harms in place, salvage in any::<bool>())| {
        let mut image = sample.image.clone();
        harms.iter().for_each(|harm| apply(&mut image, harm));
        if let Ok(store) = open(&image, salvage) {
            let found = read(&store).map_err(TestCaseError::fail)?;
            prop_assert!(found.len() <= sample.pairs.len() + 200);
            // The indexes and the accounts agree with what was read, and writing works.
            let report = store.check().unwrap();
            // (If a tombstone in an open segment was damaged, the entry that it deleted is on no chain.)
            let expected = |problem: &str| problem.starts_with("damaged segment") || problem.contains("is on no chain");
            let salvaged = &store.recovery().salvaged;
            let beyond: Vec<_> = report.problems.iter().filter(|problem| !expected(problem) && !salvaged.contains(problem)).collect();
            prop_assert!(beyond.is_empty(), "{beyond:?}");
            if let Some(ks) = store.open_keyspace("hash") {
                prop_assert_eq!(ks.info().kind, Kind::Hash);
                store.write_wait(&ks, b"after the damage", Some(b"x")).unwrap();
                prop_assert_eq!(store.get_with(&ks, b"after the damage", <[u8]>::to_vec).unwrap(), Some(b"x".to_vec()));
            }
        }
    });
}

fn shift(harm: Harm, by: u64) -> Harm {
    match harm {
        Harm::Random(at, bytes) => Harm::Random(at + by, bytes),
        Harm::Zero(at, count) => Harm::Zero(at + by, count),
        Harm::Copy(from, to, count) => Harm::Copy(from + by, to + by, count),
        Harm::Cut(at) => Harm::Cut(at + by),
    }
}
