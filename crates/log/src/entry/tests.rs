use super::*;
use crate::version::VERSION_BITS;
use proptest::prelude::*;

fn image(parts: &Parts<'_>, place: &Place) -> Vec<u8> {
    let head = parts.encode_head(place);
    let mut bytes: Vec<u8> = head.words().iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend_from_slice(parts.key);
    bytes.extend_from_slice(parts.value);
    bytes.resize(parts.size(place.keyspace, place.base_version) as usize, 0);
    bytes
}

const PLACE: Place = Place { generation: 0x1234_5678_9abc_def1, base_version: 1000, keyspace: 3, offset: 4096 };

#[test]
fn a_plain_pair_takes_32_bytes_and_both_encoders_agree() {
    let parts = Parts { key: b"12345678", value: b"abcdefgh", version: 1007, keyspace: 3, parent: 0x20_0123_4567_89ab, ..Parts::EMPTY };
    assert_eq!(parts.size(3, 1000), 32);
    let words = parts.encode_plain(&PLACE).unwrap();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(bytes, image(&parts, &PLACE));
    let tombstone = Parts { op: Op::Delete, value: &[], ..parts };
    let bytes: Vec<u8> = tombstone.encode_plain(&PLACE).unwrap().iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(bytes, image(&tombstone, &PLACE));
    assert!(EntryView::verify(&bytes, PLACE.generation, PLACE.offset).is_ok());
    let batch = Parts { batch: Some(BatchTag { size: 16, index: 3 }), ..parts };
    assert_eq!(batch.size(3, 1000), 40);
    assert!(batch.encode_plain(&PLACE).is_none() && parts.encode_plain_member(&PLACE).is_none());
    let member: Vec<u8> = batch.encode_plain_member(&PLACE).unwrap().iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(member, image(&batch, &PLACE));
}

proptest! {
    #[test]
    fn a_pair_from_registers_is_the_pair_from_parts(
        key: [u8; 8], value: [u8; 8], op in 0..3u8, parent: u64, parent_generation: u8, version in 990u64..0x2_0000_0000, keyspace in 2u32..5,
    ) {
        let op = [Op::Insert, Op::Update, Op::Delete][op as usize];
        let pair = PlainPair {
            op, key: u64::from_ne_bytes(key), value: u64::from_ne_bytes(value), version, parent, parent_generation, keyspace,
        };
        let value: &[u8] = if op == Op::Delete { &[] } else { &value };
        let parts = Parts { op, key: &key, value, version, parent, parent_generation, keyspace, ..Parts::EMPTY };
        prop_assert_eq!(pair.encode(&PLACE), parts.encode_plain(&PLACE));
        let tag = BatchTag { size: 1 + (parent >> 40) as u32, index: (parent >> 50) as u32 };
        let reference = Parts { batch: Some(tag), ..parts }.encode_plain_member(&PLACE);
        prop_assert_eq!(reference.is_some(), op != Op::Delete && PLACE.suits(keyspace, version, 1));
        if let Some(words) = reference {
            prop_assert_eq!(pair.encode_member(&PLACE, tag), words);
        }
    }
}

proptest! {
    #[test]
    fn a_bare_entry_is_what_the_reference_makes(
        key in prop::collection::vec(any::<u8>(), 1..40), value in prop::collection::vec(any::<u8>(), 0..200), op in 0..3u8, parent: u64,
        parent_generation: u8, version in 990u64..0x2_0000_0000, keyspace in 2u32..5,
    ) {
        let op = [Op::Insert, Op::Update, Op::Delete][op as usize];
        let value: &[u8] = if op == Op::Delete { &[] } else { &value };
        let parts = Parts { op, key: &key, value, version, parent, parent_generation, keyspace, ..Parts::EMPTY };
        let words = parts.encode_bare(&PLACE);
        prop_assert_eq!(words.is_some(), parts.needs_len() && parts.ext_mask(PLACE.keyspace, PLACE.base_version) == 0);
        let batch = Parts { batch: Some(BatchTag { size: 2, index: 1 }), ..parts };
        prop_assert!(batch.encode_bare(&PLACE).is_none());
        if let Some(words) = words {
            let head = parts.encode_head(&PLACE);
            prop_assert_eq!(head.words(), &words);
            prop_assert_eq!(parts.bare_size(), parts.size(PLACE.keyspace, PLACE.base_version));
        }
    }
}

#[test]
fn zeros_are_empty_and_short_input_is_malformed() {
    assert_eq!(EntryView::parse(&[0; 64]).unwrap_err(), Invalid::Empty);
    assert_eq!(EntryView::parse(&[]).unwrap_err(), Invalid::Malformed);
    let parts = Parts { key: b"key", value: b"value", version: 1000, keyspace: 3, ..Parts::EMPTY };
    let bytes = image(&parts, &PLACE);
    for cut in 0..24 + 8 {
        assert!(EntryView::verify(&bytes[..cut], PLACE.generation, PLACE.offset).is_err(), "cut at {cut}");
    }
}

#[test]
fn the_dead_mark_is_outside_the_checksum() {
    let parts = Parts { key: b"12345678", value: b"abcdefgh", version: 1007, keyspace: 3, ..Parts::EMPTY };
    let mut bytes = image(&parts, &PLACE);
    let dead = EntryView::parse(&bytes).unwrap().dead_word();
    bytes[..8].copy_from_slice(&dead.to_le_bytes());
    let view = EntryView::verify(&bytes, PLACE.generation, PLACE.offset).unwrap();
    assert!(view.is_dead());
}

#[test]
fn another_generation_or_place_does_not_verify() {
    let parts = Parts { key: b"12345678", value: b"abcdefgh", version: 1007, keyspace: 3, ..Parts::EMPTY };
    let bytes = image(&parts, &PLACE);
    assert!(EntryView::verify(&bytes, PLACE.generation, PLACE.offset).is_ok());
    assert_eq!(EntryView::verify(&bytes, PLACE.generation ^ 1, PLACE.offset).unwrap_err(), Invalid::Checksum);
    assert_eq!(EntryView::verify(&bytes, PLACE.generation, PLACE.offset + 8).unwrap_err(), Invalid::Checksum);
}

/// Found by reading: with a right checksum, such a version caused an overflow, or commits that counted as durable at
/// once.
#[test]
fn a_version_beyond_all_versions_is_no_entry() {
    for (version, sound) in [((1 << VERSION_BITS) - 1, true), (1 << VERSION_BITS, false), (u64::MAX, false)] {
        let bytes = image(&Parts { key: b"12345678", value: b"abcdefgh", version, keyspace: 3, ..Parts::EMPTY }, &PLACE);
        let view = EntryView::verify(&bytes, PLACE.generation, PLACE.offset);
        assert_eq!(view.map(|view| view.version(PLACE.base_version)), if sound { Ok(version) } else { Err(Invalid::Malformed) });
    }
}

proptest! {
    #[test]
    fn round_trip(
        key in prop::collection::vec(any::<u8>(), 1..40),
        value in prop::collection::vec(any::<u8>(), 0..200),
        delete: bool,
        version in 0u64..1 << 50,
        parent in 0u64..1 << 48,
        tag: u8,
        keyspace in 0u32..5,
        expiry_ms in prop_oneof![Just(0u64), any::<u64>()],
        batch in prop::option::of((1u32..1 << 28, 0u32..1 << 28)),
        shortcut in prop_oneof![Just(0u64), any::<u64>()],
    ) {
        let value = if delete { Vec::new() } else { value };
        let parts = Parts {
            op: if delete { Op::Delete } else { Op::Update },
            key: &key, value: &value, version, parent, parent_generation: tag, keyspace, expiry_ms,
            batch: batch.map(|(size, index)| BatchTag { size, index }),
            shortcut,
            frees: false,
        };
        let mut bytes = image(&parts, &PLACE);
        prop_assert!(bytes.len() as u64 <= parts.max_size().max(MIN_BYTES));
        prop_assert!(bytes.len() as u64 >= MIN_BYTES && bytes.len().is_multiple_of(8));
        bytes.extend_from_slice(&[0xaa; 16]);
        let view = EntryView::verify(&bytes, PLACE.generation, PLACE.offset).unwrap();
        prop_assert_eq!(view.key, &key[..]);
        prop_assert_eq!(view.value, &value[..]);
        prop_assert_eq!(view.op(), parts.op);
        prop_assert_eq!(view.version(PLACE.base_version), version);
        prop_assert_eq!(view.parent(), parent);
        prop_assert_eq!(view.parent_generation(), tag);
        prop_assert_eq!(view.keyspace(PLACE.keyspace), keyspace);
        prop_assert_eq!(view.expiry_ms(), expiry_ms);
        prop_assert_eq!(view.batch(), parts.batch);
        let plain = key.len() == 8 && value.len() == if delete { 0 } else { 8 };
        prop_assert_eq!(view.shortcut(), if plain { 0 } else { shortcut });
        prop_assert_eq!(view.size as usize, bytes.len() - 16);
    }

    /// Any single changed bit outside the padding is noticed, and so are two or three changed bits of the DEAD mark; no
    /// input panics.
    #[test]
    fn a_flipped_bit_is_noticed(value in prop::collection::vec(any::<u8>(), 0..60), bit in 0usize..640) {
        let parts = Parts { key: b"a key of some length", value: &value, version: 1234, keyspace: 9, expiry_ms: 77, ..Parts::EMPTY };
        let mut bytes = image(&parts, &PLACE);
        let covered = (8 * parts.encode_head(&PLACE).words().len() + parts.key.len() + value.len()) * 8;
        let bit = bit % covered;
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(EntryView::verify(&bytes, PLACE.generation, PLACE.offset).is_err());
        bytes[bit / 8] ^= 1 << (bit % 8);
        for part in (1..=u8::MAX).filter(|part| part & !flag::DEAD == 0 && *part != flag::DEAD) {
            bytes[4] ^= part;
            prop_assert!(EntryView::verify(&bytes, PLACE.generation, PLACE.offset).is_err());
            bytes[4] ^= part;
        }
    }

    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let _ = EntryView::verify(&bytes, 1, 8);
    }
}
