//! What salvage recovers. If all entries are intact, that is everything, whichever bit of page 0, of the catalogue or
//! of the descriptors is flipped. After worse damage it is everything that does not depend on the damaged place.
//!
//! A normal opening refuses the same images, or finds everything.

#![forbid(unsafe_code)]

use crate::damage::{SEGMENT, Sample, open, read_keyspaces, sample};
use hither_engine::{ErrorKind, Store};
use hither_pmem::SegmentState;
use std::ops::Range;

const NAMES: [&str; 2] = ["ordered", "hash"];
/// The names that the keyspaces get if the catalogue is lost.
const NUMBERS: [&str; 2] = ["keyspace-1", "keyspace-2"];
/// Offsets of `docs/format.md`: the catalogue, its slots, and the table of descriptors.
const CATALOGUE: u64 = 4096;
const CATALOGUE_SLOTS: [u64; 2] = [8192, 73_728];
const TABLE: u64 = 139_264;
const DESCRIPTOR: u64 = 128;

/// Asserts that a salvage finds all pairs; returns its notes.
fn assert_all(sample: &Sample, image: &[u8], names: [&str; 2], what: &str) -> Vec<String> {
    let store = open(image, true).unwrap_or_else(|error| panic!("{what}: {error}"));
    let found = read_keyspaces(&store, names).unwrap_or_else(|error| panic!("{what}: {error}"));
    let notes = store.recovery().salvaged.clone();
    assert!(found == sample.pairs, "{what}: {} of {} pairs; {notes:?}", found.len(), sample.pairs.len());
    assert!(notes.iter().all(|note| !note.contains("salvage") && !note.contains("restore")), "advice that was followed: {notes:?}");
    notes
}

/// Flips one bit in each byte of `ranges`, one byte per image and not always the same bit. Returns how many of these
/// images a normal opening refuses.
fn flip(sample: &Sample, ranges: &[Range<u64>]) -> usize {
    let mut refused = 0;
    for byte in ranges.iter().cloned().flatten() {
        let (mut image, bit) = (sample.image.clone(), byte * 5 % 8);
        image[byte as usize] ^= 1 << bit;
        let what = format!("bit {bit} of byte {byte}");
        match open(&image, false) {
            Ok(store) => assert!(read_keyspaces(&store, NAMES).unwrap() == sample.pairs, "{what}"),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Format), "{what}: {error}");
                let notes = assert_all(sample, &image, NAMES, &what);
                assert!(!notes.is_empty(), "{what}: nothing is told of {error}");
                refused += 1;
            }
        }
    }
    refused
}

/// Flips a bit in each byte of `ranges` at once, which must change nothing: these bytes are unused.
fn assert_unused(sample: &Sample, ranges: &[Range<u64>]) {
    let mut image = sample.image.clone();
    ranges.iter().cloned().flatten().for_each(|byte| image[byte as usize] ^= 1 << (byte * 5 % 8));
    let store = open(&image, false).unwrap();
    assert!(read_keyspaces(&store, NAMES).unwrap() == sample.pairs);
    assert_eq!(assert_all(sample, &image, NAMES, "unused bytes"), [""; 0]);
}

/// The byte ranges of a record's two slots: the current slot, and the other one.
fn slots(image: &[u8], commit: u64, slots: [u64; 2], bytes: u64) -> [Range<u64>; 2] {
    let current = slot_of(image, commit);
    [current, 1 - current].map(|slot| slots[slot]..slots[slot] + bytes)
}

#[test]
fn a_flipped_bit_of_page_0_costs_nothing() {
    let sample = sample();
    let [current, other] = slots(&sample.image, 8, [64, 1088], 1024);
    let refused = flip(&sample, &[0..16, current, 2176..2200]);
    assert!(refused > 1024 + 3, "{refused}");
    assert_unused(&sample, &[16..64, other, 2112..2176, 2200..4096]);
}

#[test]
fn a_flipped_bit_of_the_catalogue_costs_nothing() {
    let sample = sample();
    let [current, other] = slots(&sample.image, CATALOGUE, CATALOGUE_SLOTS, 64 << 10);
    let refused = flip(&sample, &[CATALOGUE..CATALOGUE + 8, current.start..current.start + 48]);
    assert!(refused > 30, "{refused}");
    assert_unused(&sample, &[CATALOGUE + 8..CATALOGUE_SLOTS[0], current.start + 48..current.end, other]);
}

#[test]
fn a_flipped_bit_of_a_descriptor_costs_nothing() {
    let sample = sample();
    let (mut refused, mut unused) = (0, Vec::new());
    for number in 0..sample.segments.iter().rposition(|(_, state)| *state != SegmentState::Free).unwrap() as u64 + 2 {
        let at = TABLE + number * DESCRIPTOR;
        let [current, other] = slots(&sample.image, at, [at + 8, at + 64], 56);
        refused += flip(&sample, &[at..at + 8, current]);
        unused.extend([other, at + 120..at + 128]);
    }
    assert!(refused > 200, "{refused}");
    assert_unused(&sample, &unused);
}

/// An image with whole places overwritten.
fn wrecked(sample: &Sample, places: &[(u64, usize)]) -> Vec<u8> {
    let mut image = sample.image.clone();
    places.iter().for_each(|(at, len)| image[*at as usize..][..*len].fill(0xee));
    image
}

fn slot_of(image: &[u8], commit: u64) -> usize {
    usize::from(image[commit as usize + 7] >> 7)
}

#[test]
fn the_record_before_does_where_the_current_one_is_gone() {
    let sample = sample();
    let superblock = [64, 1088][slot_of(&sample.image, 8)];
    let notes = assert_all(&sample, &wrecked(&sample, &[(superblock, 1024)]), NAMES, "superblock");
    assert!(notes[0].contains("the superblock") && notes[0].contains("the record before it"), "{notes:?}");
    // The first catalogue names only the first of the two keyspaces.
    let slot = CATALOGUE_SLOTS[slot_of(&sample.image, CATALOGUE)];
    let notes = assert_all(&sample, &wrecked(&sample, &[(slot, 100)]), [NAMES[0], NUMBERS[1]], "catalogue");
    assert!(notes.iter().any(|note| note.contains("keyspace number 2 is lost: it is \"keyspace-2\"")), "{notes:?}");
    let both = CATALOGUE_SLOTS.map(|slot| (slot, 100));
    assert_all(&sample, &wrecked(&sample, &both), NUMBERS, "both slots of the catalogue");
    let mut blank = sample.image.clone();
    blank[CATALOGUE as usize..CATALOGUE as usize + 8].fill(0);
    let notes = assert_all(&sample, &blank, NAMES, "catalogue's commit word");
    assert!(notes[0].contains("is blank"), "{notes:?}");
}

#[test]
fn a_sealed_segment_needs_one_slot_of_its_descriptor() {
    let sample = sample();
    let mut seen = 0;
    for (range, _) in sample.segments.iter().filter(|(_, state)| *state == SegmentState::Sealed) {
        let number = (range.start - sample.segments[0].0.start) / SEGMENT;
        let commit = TABLE + number * DESCRIPTOR;
        let slot = commit + [8, 64][slot_of(&sample.image, commit)];
        let notes = assert_all(&sample, &wrecked(&sample, &[(slot, 56)]), NAMES, &format!("segment {number}"));
        assert!(notes[0].contains(&format!("segment {number} ")), "{notes:?}");
        let mut blank = sample.image.clone();
        blank[commit as usize..commit as usize + 8].fill(0);
        assert_all(&sample, &blank, NAMES, &format!("blank word of segment {number}"));
        // If both slots are gone, the segment's content is lost, and nothing else.
        let store = open(&wrecked(&sample, &[(commit, 120)]), true).unwrap();
        let found = read_keyspaces(&store, NAMES).unwrap();
        assert!(found.len() + 100 > sample.pairs.len() && store.recovery().salvaged[0].contains("cannot be read"));
        seen += 1;
    }
    assert!(seen > 5, "{seen}");
}

#[test]
fn a_truncated_image_keeps_what_is_before_its_end() {
    let sample = sample();
    let len = sample.image.len();
    let (last, state) = sample.segments.last().unwrap();
    assert_eq!(*state, SegmentState::Free, "the sample has free segments behind the others");
    for cut in [1, 100, (last.end - last.start) as usize] {
        assert_eq!(open(&sample.image[..len - cut], false).err().expect("refused").kind(), ErrorKind::Damaged);
        let notes = assert_all(&sample, &sample.image[..len - cut], NAMES, &format!("{cut} bytes short"));
        assert!(notes[0].contains("what is behind its end is missing"), "{notes:?}");
    }
    // The last segment in use may hold nothing but deleted or overwritten entries.
    let used = sample.segments.iter().rev().filter(|(_, state)| *state != SegmentState::Free).take(4);
    let kept = used.map(|(range, _)| {
        let store: Store = open(&sample.image[..range.start as usize + 8], true).unwrap();
        read_keyspaces(&store, NAMES).unwrap().len()
    });
    let kept: Vec<_> = kept.collect();
    assert!(kept[3] > sample.pairs.len() / 2 && kept[3] < sample.pairs.len(), "{kept:?} pairs");
}
