use super::*;
use crate::entry::{Op, Parts, Place};
use proptest::prelude::*;

const START: u64 = 1 << 20;
const GENERATION: u64 = 0x1234_5678_9abc_def1;

/// Kinds of content of a segment.
#[derive(Clone, Debug)]
enum Piece {
    Pair { op: u8, dead: bool },
    Entry { value: Vec<u8>, expiry_ms: u64, dead: bool },
    Gap(usize),
    Torn(Vec<u64>),
}

fn piece() -> impl Strategy<Value = Piece> {
    prop_oneof![
        8 => (0..3u8, prop::bool::weighted(0.1)).prop_map(|(op, dead)| Piece::Pair { op, dead }),
        2 => (prop::collection::vec(any::<u8>(), 0..90), prop_oneof![Just(0u64), any::<u64>()], prop::bool::weighted(0.1))
            .prop_map(|(value, expiry_ms, dead)| Piece::Entry { value, expiry_ms, dead }),
        1 => (1..12usize).prop_map(Piece::Gap),
        1 => prop::collection::vec(any::<u64>(), 1..6).prop_map(Piece::Torn),
    ]
}

fn append(bytes: &mut Vec<u8>, parts: &Parts<'_>, dead: bool) {
    let place = Place { generation: GENERATION, base_version: 100, keyspace: 2, offset: START + bytes.len() as u64 };
    let mut head = parts.encode_head(&place);
    if dead {
        head.mark_dead();
    }
    let end = bytes.len() + parts.size(2, 100) as usize;
    head.words().iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
    bytes.extend_from_slice(parts.key);
    bytes.extend_from_slice(parts.value);
    bytes.resize(end, 0);
}

/// The pieces side by side; piece `n` has the key `n`.
fn segment_of(pieces: &[Piece]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (number, piece) in pieces.iter().enumerate() {
        let key = (number as u64).to_be_bytes();
        let common = Parts { key: &key, version: 100 + number as u64, keyspace: 2, ..Parts::EMPTY };
        match piece {
            Piece::Pair { op, dead } => {
                let op = [Op::Insert, Op::Update, Op::Delete][usize::from(*op)];
                let value: &[u8] = if op == Op::Delete { &[] } else { &key };
                append(&mut bytes, &Parts { op, value, ..common }, *dead);
            }
            Piece::Entry { value, expiry_ms, dead } => append(&mut bytes, &Parts { value, expiry_ms: *expiry_ms, ..common }, *dead),
            Piece::Gap(words) => bytes.resize(bytes.len() + words * 8, 0),
            Piece::Torn(words) => words.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes())),
        }
    }
    bytes
}

/// Records what is read, and what came as a pair.
#[derive(Default)]
struct Recorder {
    met: Vec<(u64, u64, Vec<u8>, Vec<u8>)>,
    pairs: Vec<u64>,
    others: Vec<(u64, Op, bool, usize)>,
}

impl<'a> ReadApart<'a> for Recorder {
    type Error = std::convert::Infallible;

    fn pair(&mut self, offset: u64, version_delta: u64, pair: &LivePair) -> Result<(), Self::Error> {
        self.pairs.push(offset);
        self.met.push((offset, version_delta, pair.key.to_ne_bytes().to_vec(), pair.value.to_ne_bytes().to_vec()));
        Ok(())
    }

    fn entry(&mut self, offset: u64, entry: &EntryView<'a>) -> Result<(), Self::Error> {
        self.met.push((offset, entry.version(0), entry.key.to_vec(), entry.value.to_vec()));
        self.others.push((offset, entry.op(), entry.is_dead(), entry.size as usize));
        Ok(())
    }
}

/// Reads in both ways. Returns how many entries came as pairs, and how many otherwise.
fn assert_read_alike(bytes: &[u8], is_run: bool) -> (usize, usize) {
    let read = |pairs| {
        let mut recorder = Recorder::default();
        let Ok(totals) = read_apart(Walk::of(bytes, START, GENERATION, is_run), pairs, &mut recorder);
        (recorder, totals)
    };
    let ((reference, expected), (apart, totals)) = (read(false), read(true));
    assert_eq!(apart.met, reference.met);
    assert_eq!(totals, expected);
    assert!(reference.pairs.is_empty());
    let is_live_pair = |(_, op, dead, size): &&(u64, Op, bool, usize)| *op != Op::Delete && !dead && *size == MIN_BYTES as usize;
    for (offset, ..) in apart.others.iter().filter(is_live_pair) {
        // As short as a pair, but with another layout.
        let (key, value) = reference.met.iter().find(|met| met.0 == *offset).map(|met| (met.2.len(), met.3.len())).unwrap();
        assert!(is_run || (key, value) != (8, 8), "the pair at {offset} came the long way");
    }
    (apart.pairs.len(), apart.others.len())
}

proptest! {
    #[test]
    fn pairs_read_apart_are_what_a_scan_finds(pieces in prop::collection::vec(piece(), 0..60), cut in 0..40usize, is_run: bool) {
        let mut bytes = segment_of(&pieces);
        bytes.truncate(bytes.len().saturating_sub(cut));
        assert_read_alike(&bytes, is_run);
    }

    /// Whatever a flipped bit makes of an entry, both ways see the same.
    #[test]
    fn damage_is_met_alike(
        pieces in prop::collection::vec(piece(), 1..40), flips in prop::collection::vec((any::<prop::sample::Index>(), 0..8u8), 1..12),
    ) {
        let mut bytes = segment_of(&pieces);
        prop_assume!(!bytes.is_empty());
        for (at, bit) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        assert_read_alike(&bytes, false);
    }
}

#[test]
fn live_pairs_come_as_pairs_and_nothing_else_does() {
    let pair = |op, dead| Piece::Pair { op, dead };
    let other = Piece::Entry { value: vec![7; 20], expiry_ms: 0, dead: false };
    let pieces = [pair(0, false), pair(1, false), pair(2, false), other, pair(1, true), Piece::Gap(5), pair(0, false)];
    assert_eq!(assert_read_alike(&segment_of(&pieces), false), (3, 3));
    let mut bytes = segment_of(&pieces);
    bytes[32 + 24] ^= 1;
    assert_eq!(assert_read_alike(&bytes, false), (2, 3), "what is damaged does not come at all");
}

/// Regression: where a crash had torn a run, each word of its value was tried as the beginning of an entry. For a value
/// made of headers with large lengths, over which checksums are then computed, 1 MiB took a quarter of a minute, and
/// the time grows quadratically.
#[test]
fn a_run_is_looked_at_only_where_its_entry_begins() {
    let pair = || Piece::Pair { op: 0, dead: false };
    for (pieces, entries, torn) in
        [(vec![Piece::Torn(vec![7]), pair()], 0, 1), (vec![Piece::Gap(2), pair()], 0, 0), (vec![pair(), pair()], 1, 0)]
    {
        let bytes = segment_of(&pieces);
        let mut walk = Walk::of(&bytes, START, GENERATION, true);
        let mut steps = 0;
        while !walk.has_ended() {
            walk.step();
            steps += 1;
        }
        assert_eq!((steps, walk.totals.entries, walk.totals.torn), (1, entries, torn), "{pieces:?}");
    }
}

/// Regression: the same where every place may hold an entry. Reading one MiB of such words took ten seconds, and the
/// time grows quadratically.
#[test]
fn torn_words_that_look_like_long_entries_are_read_once() {
    let pair = || Piece::Pair { op: 0, dead: false };
    let entry = |bytes: usize| Piece::Entry { value: vec![7; bytes], expiry_ms: 0, dead: false };
    // Each is an update with lengths, for a key of 8 bytes and a value of 256 KiB.
    let words = vec![0x0004_000a_0000_0008; 128 << 10];
    let bytes = segment_of(&[pair(), Piece::Torn(words), entry(10_000), pair(), Piece::Torn(vec![7]), entry(5_001), pair()]);
    assert_eq!(assert_read_alike(&bytes, false), (3, 2));
    assert_eq!(scan_of(&bytes).torn, 2);
}

/// Regression: a word of zeros before each of them ends a torn place, so the next one was verified as if it were the
/// first.
#[test]
fn nor_are_those_with_zeros_between_them() {
    let words = [0x0004_000a_0000_0008, 0].repeat(32 << 10);
    let bytes = segment_of(&[Piece::Torn(words), Piece::Gap(5), Piece::Entry { value: vec![7; 10_000], expiry_ms: 0, dead: false }]);
    let before = crate::crc::READ.get();
    let totals = scan_of(&bytes);
    let read = crate::crc::READ.get() - before;
    assert_eq!((totals.entries, totals.torn), (1, 32 << 10));
    assert!(read < 20 * bytes.len() as u64, "{read} bytes were read of a segment of {}", bytes.len());
}

fn scan_of(bytes: &[u8]) -> ScanTotals {
    let mut walk = Walk::of(bytes, START, GENERATION, false);
    while !walk.has_ended() {
        walk.step();
    }
    walk.totals
}

/// The counts of a descriptor are compared where they were written after the last entry: when the segment was sealed,
/// or at a clean close. Torn places are what a crash leaves.
#[test]
fn totals_are_compared_where_they_were_recorded() {
    let pool = Pool::create_in_memory(&hither_pmem::CreateOptions::new(1 << 20)).unwrap();
    let found = ScanTotals { entries: 3, bytes: 96, ..ScanTotals::default() };
    let others = [ScanTotals { entries: 2, ..found }, ScanTotals { entries: 4, ..found }, ScanTotals { bytes: 88, ..found }];
    let is_sound = |state, flags, clean, totals: &ScanTotals| {
        let descriptor = Descriptor { state, flags, entries: 3, sealed_bytes: 96, ..Descriptor::default() };
        verify_totals(&pool, &SegmentToScan { node: 0, index: 0, descriptor }, totals, clean).is_ok()
    };
    for state in [OnMedia::Active, OnMedia::Sealed, OnMedia::Recovered] {
        for (flags, clean) in [(0, false), (0, true), (TOTALS_RECORDED, false), (TOTALS_RECORDED, true)] {
            let what = format!("{state:?}, flags {flags}, clean {clean}");
            let counted = state != OnMedia::Active || (flags, clean) == (TOTALS_RECORDED, true);
            assert!(is_sound(state, flags, clean, &found), "{what}");
            assert!(others.iter().all(|totals| is_sound(state, flags, clean, totals) != counted), "{what}");
            assert_eq!(is_sound(state, flags, clean, &ScanTotals { torn: 1, ..found }), state != OnMedia::Sealed, "{what}: torn");
        }
    }
}

/// Found by reading: computing the version of each of its entries overflowed.
#[test]
fn a_base_version_beyond_all_versions_is_damage() {
    for (base_version, sound) in [((1 << 56) - (1 << 32), true), ((1 << 56) - (1 << 32) + 1, false), (u64::MAX, false)] {
        let log = crate::log::Log::for_tests(&hither_pmem::CreateOptions::new(1 << 20));
        let descriptor = Descriptor { generation: 1, base_version, state: OnMedia::Sealed, ..Descriptor::default() };
        log.pool(0).commit_descriptor(0, &descriptor).expect("memory");
        match log.load_tables(None) {
            Ok(found) => assert!(sound && found.len() == 1),
            Err(error) => assert!(!sound && error.to_string().contains("base version"), "{error}"),
        }
    }
}

/// Found by hand: the part that an opening makes durable ends at the tail, and writing goes on there.
#[test]
fn the_tail_is_behind_the_last_torn_word() {
    let mut bytes = segment_of(&[Piece::Pair { op: 0, dead: false }, Piece::Torn(vec![u64::MAX; 5])]);
    let end = START + bytes.len() as u64;
    bytes.resize(bytes.len() + 256, 0);
    let mut walk = Walk::of(&bytes, START, GENERATION, false);
    while !walk.has_ended() {
        walk.step();
    }
    assert_eq!((walk.totals.entries, walk.totals.torn, walk.totals.tail), (1, 1, end));
}
