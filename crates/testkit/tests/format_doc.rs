//! Compares `docs/format.md` with the code: every table that carries a marker, in both directions.
//!
//! Tables of areas and records are compared with the constants; tables of bits also with what the code writes, where it
//! writes such words.

#![forbid(unsafe_code)]

use hither_engine::checkpoint::format as checkpoint;
use hither_log::entry::{self, BatchTag, EntryView, Op, Parts, Place, ext, flag, shortcut, word0};
use hither_log::{address, crc};
use hither_pmem::{CreateOptions, Descriptor, Pool, SegmentState, format_tables as tables};
use std::collections::BTreeMap;

/// A row of a table: its name and its numbers.
type Row = (String, Vec<u64>);

/// All marked tables, by their marker, such as `table: page0`.
fn document() -> BTreeMap<String, Vec<Row>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format.md");
    let text = std::fs::read_to_string(path).unwrap();
    let mut found: BTreeMap<String, Vec<Row>> = BTreeMap::new();
    let mut current: Option<String> = None;
    for line in text.lines() {
        if let Some(marker) = line.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->")) {
            assert!(found.insert(marker.to_owned(), Vec::new()).is_none(), "{marker} appears twice");
            current = Some(marker.to_owned());
        } else if line.starts_with('|') {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let numbers: Option<Vec<u64>> = cells[1..].iter().map(|cell| cell.parse().ok()).collect();
            if let (Some(marker), Some(numbers)) = (&current, numbers) {
                found.get_mut(marker).unwrap().push((cells[0].to_owned(), numbers));
            }
        } else if !line.is_empty() {
            current = None;
        }
    }
    found.retain(|marker, _| marker.starts_with("table: ") || marker.starts_with("bits: "));
    found
}

fn fields(rows: &[tables::Field]) -> Vec<Row> {
    rows.iter().map(|(name, offset, bytes)| ((*name).to_owned(), vec![*offset, *bytes])).collect()
}

fn values(rows: &[(&str, u64)]) -> Vec<Row> {
    rows.iter().map(|(name, value)| ((*name).to_owned(), vec![*value])).collect()
}

fn code() -> BTreeMap<&'static str, Vec<Row>> {
    let sizes = [
        ("alignment", entry::ALIGN),
        ("header", entry::HEADER_BYTES),
        ("smallest", entry::MIN_BYTES),
        ("longest_key", entry::MAX_KEY_BYTES as u64),
        ("longest_value", entry::MAX_VALUE_BYTES as u64),
    ];
    let batch_bits = u64::from(ext::BATCH_MASK.count_ones());
    let bit = |mask: u8| u64::from(mask.trailing_zeros());
    BTreeMap::from([
        ("table: pool", fields(&tables::POOL)),
        ("table: sizes", values(&tables::SIZES)),
        ("table: page0", fields(&tables::PAGE0)),
        ("table: superblock", fields(&tables::SUPERBLOCK)),
        ("table: catalogue", fields(&tables::CATALOGUE)),
        ("table: catalogue_keyspace", fields(&[("id", 0, 4), ("kind", 4, 1), ("name_bytes", 5, 1), ("name", 6, 0)])),
        ("table: descriptor", fields(&tables::DESCRIPTOR)),
        ("table: descriptor_slot", fields(&tables::DESCRIPTOR_SLOT)),
        ("table: entry_sizes", values(&sizes)),
        ("table: checkpoint_header", fields(&checkpoint::HEADER)),
        ("table: checkpoint_trailer", fields(&checkpoint::TRAILER)),
        ("table: checkpoint_segment", fields(&checkpoint::SEGMENT)),
        ("table: checkpoint_keyspace", fields(&checkpoint::KEYSPACE)),
        ("table: checkpoint_block", fields(&checkpoint::BLOCK)),
        (
            "table: checkpoint_image",
            fields(&[("prefix", 0, 4), ("depth", 4, 1), ("class", 5, 1), ("wide", 6, 1), ("reserved", 7, 1), ("pairs", 8, 8)]),
        ),
        ("bits: small_word", fields(&[("value", 0, 56), ("check", 56, 8)])),
        ("bits: commit_word", fields(&[("checksum", 0, 32), ("sequence", 32, 31), ("slot", 63, 1)])),
        (
            "bits: entry_word0",
            fields(&[
                ("checksum", 0, u64::from(word0::FLAGS_SHIFT)),
                ("flags", word0::FLAGS_SHIFT.into(), u64::from(word0::PARENT_GENERATION_SHIFT - word0::FLAGS_SHIFT)),
                (
                    "parent_generation",
                    word0::PARENT_GENERATION_SHIFT.into(),
                    u64::from(word0::LINK_LOW_SHIFT - word0::PARENT_GENERATION_SHIFT),
                ),
                ("link_low", word0::LINK_LOW_SHIFT.into(), 16),
            ]),
        ),
        ("bits: entry_word1", fields(&[("link_high", 0, 32), ("version_delta", 32, 32)])),
        (
            "bits: entry_flags",
            fields(&[
                ("operation", 0, flag::OP_MASK.count_ones().into()),
                ("dead", bit(flag::DEAD), 1),
                ("len", bit(flag::LEN), 1),
                ("ext", bit(flag::EXT), 1),
                ("dead_again", bit(flag::DEAD & (flag::DEAD - 1)), u64::from(flag::DEAD.count_ones()) - 1),
            ]),
        ),
        (
            "bits: extension",
            fields(&[
                ("keyspace", bit(ext::KEYSPACE), 1),
                ("expiry", bit(ext::EXPIRY), 1),
                ("version", bit(ext::VERSION), 1),
                ("shortcut", bit(ext::SHORTCUT), 1),
                ("unused", u64::from(ext::KNOWN.count_ones()), u64::from(ext::KNOWN.count_zeros())),
                ("batch_size", ext::BATCH_SIZE_SHIFT.into(), batch_bits),
                ("batch_index", ext::BATCH_INDEX_SHIFT.into(), batch_bits),
            ]),
        ),
        (
            "bits: shortcut",
            fields(&[
                ("leaf", 0, shortcut::SLOT_SHIFT.into()),
                ("slot", shortcut::SLOT_SHIFT.into(), u64::from(shortcut::OPENING_SHIFT - shortcut::SLOT_SHIFT)),
                ("opening", shortcut::OPENING_SHIFT.into(), u64::from(u64::BITS - shortcut::OPENING_SHIFT)),
            ]),
        ),
        ("bits: length", fields(&[("key_bytes", 0, 32), ("value_bytes", 32, 32)])),
        ("bits: reference", fields(&[("offset", 0, 44), ("node", 44, 4), ("size_tag", 48, 16)])),
    ])
}

#[test]
fn every_table_agrees_with_the_code() {
    let (document, code) = (document(), code());
    let names = (document.keys().map(String::as_str).collect::<Vec<_>>(), code.keys().copied().collect::<Vec<_>>());
    assert_eq!(names.0, names.1, "tables of the document, tables of the code");
    for (marker, rows) in &code {
        assert_eq!(&document[*marker], rows, "{marker}");
    }
}

#[test]
fn tables_leave_no_overlap() {
    for (marker, rows) in document() {
        let fields: Vec<_> =
            rows.iter().filter(|(_, numbers)| numbers.len() == 2).map(|(name, numbers)| (name, numbers[0], numbers[1])).collect();
        for pair in fields.windows(2) {
            assert!(pair[0].1 + pair[0].2 <= pair[1].1, "{marker}: {} and {} overlap", pair[0].0, pair[1].0);
        }
    }
}

fn field(word: u64, at: (u64, u64)) -> u64 {
    word >> at.0 & (u64::MAX >> (64 - at.1))
}

/// Offset and width of a field in the document.
fn place(marker: &str, name: &str) -> (u64, u64) {
    let rows = &document()[marker];
    let row = rows.iter().find(|row| row.0 == name).unwrap_or_else(|| panic!("{marker}: no {name}"));
    (row.1[0], row.1[1])
}

/// The usual CRC-32C, inverted at both ends.
fn crc32c(parts: &[&[u8]]) -> u32 {
    !parts.iter().fold(!0, |state, part| crc::bytes(state, part))
}

#[test]
fn commit_words_and_small_words_are_written_as_documented() {
    let mut options = CreateOptions::new(4 << 12);
    options.segment_bytes = 1 << 12;
    let pool = Pool::create_in_memory(&options).unwrap();
    let table = place("table: pool", "segment_table").0;
    let size = place("table: descriptor", "slot_a").1 as usize;
    let descriptor = |generation| Descriptor { generation, run_len: 1, state: SegmentState::Active, ..Descriptor::default() };
    let mut slots = Vec::new();
    for generation in 1..4u64 {
        pool.commit_descriptor(2, &descriptor(generation)).unwrap();
        let at = table + 2 * 128;
        let word = pool.load_u64(at);
        let slot = field(word, place("bits: commit_word", "slot"));
        let name = if slot == 0 { "slot_a" } else { "slot_b" };
        let from = at + place("table: descriptor", name).0;
        let bytes: Vec<u8> = (0..size as u64).step_by(8).flat_map(|i| pool.load_u64(from + i).to_le_bytes()).collect();
        let offset = place("table: descriptor_slot", "generation").0 as usize;
        assert_eq!(bytes[offset..offset + 8], generation.to_le_bytes());
        assert_eq!(field(word, place("bits: commit_word", "sequence")), generation);
        let checksum = crc32c(&[&bytes, &options.pool_uuid, &2u64.to_le_bytes()]);
        assert_eq!(field(word, place("bits: commit_word", "checksum")), u64::from(checksum));
        slots.push(slot);
    }
    assert!(slots[0] != slots[1] && slots[0] == slots[2], "slots alternate: {slots:?}");
    pool.set_settled(0x1234_5678_9abc).unwrap();
    let word = pool.load_u64(place("table: page0", "settled").0);
    assert_eq!(field(word, place("bits: small_word", "value")), 0x1234_5678_9abc);
    let check = crc32c(&[&0x1234_5678_9abcu64.to_le_bytes()[..7]]) as u8 ^ 0xA5;
    assert_eq!(field(word, place("bits: small_word", "check")), u64::from(check));
}

#[test]
fn entries_are_written_as_documented() {
    let at = Place { generation: 0x1122_3344_5566_7788, base_version: 1000, keyspace: 1, offset: 4096 };
    let parent = address::pack(5, 0x1234_5678 << 3, 64);
    let reference = |name| field(parent, place("bits: reference", name));
    assert_eq!((reference("offset"), reference("node"), reference("size_tag")), (0x1234_5678, 5, 8));
    let parts = Parts {
        op: Op::Update,
        key: b"a key",
        value: b"a value",
        version: 1007,
        parent,
        parent_generation: 0xAB,
        keyspace: 9,
        expiry_ms: 77,
        batch: Some(BatchTag { size: 3, index: 2 }),
        shortcut: shortcut::word(0x0034_8765_4321, 0xBEEF),
        frees: false,
    };
    let words = parts.encode_head(&at).words().to_vec();
    let flags = field(words[0], place("bits: entry_word0", "flags"));
    for (name, value) in [("operation", 2), ("dead", 0), ("len", 1), ("ext", 1), ("dead_again", 0)] {
        assert_eq!(field(flags, place("bits: entry_flags", name)), value, "{name}");
    }
    assert_eq!(field(words[0], place("bits: entry_word0", "parent_generation")), 0xAB);
    let link = field(words[1], place("bits: entry_word1", "link_high")) << 16 | field(words[0], place("bits: entry_word0", "link_low"));
    assert_eq!(link, parent & address::LINK_MASK);
    assert_eq!(field(words[1], place("bits: entry_word1", "version_delta")), 7);
    for (name, value) in
        [("keyspace", 1), ("expiry", 1), ("version", 0), ("shortcut", 1), ("unused", 0), ("batch_size", 3), ("batch_index", 2)]
    {
        assert_eq!(field(words[2], place("bits: extension", name)), value, "{name}");
    }
    assert_eq!(words[3..5], [9, 77], "keyspace, then expiry");
    let shortcut = ["leaf", "slot", "opening"].map(|name| field(words[5], place("bits: shortcut", name)));
    assert_eq!(shortcut, [0x8765_4321, 0x34, 0xBEEF], "then the shortcut");
    assert_eq!((field(words[6], place("bits: length", "key_bytes")), field(words[6], place("bits: length", "value_bytes"))), (5, 7));
    // The checksum covers the header without its own bits, the other words, key and value; generation and place are its
    // seed.
    let seed = 0x1122_3344u32 ^ 0x5566_7788 ^ (4096 / 8);
    let state = crc::words(seed, &[&[words[0] & !0xffff_ffff], &words[1..]].concat());
    assert_eq!(field(words[0], place("bits: entry_word0", "checksum")), u64::from(crc::bytes(crc::bytes(state, b"a key"), b"a value")));
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).chain(*b"a keya value").collect();
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let [dead, again] = ["dead", "dead_again"].map(|name| {
        let (bit, bits) = place("bits: entry_flags", name);
        (0xff_u8 >> (8 - bits)) << bit
    });
    bytes[4] |= dead;
    assert!(EntryView::verify(&bytes, at.generation, at.offset).is_err(), "not without the others");
    bytes[4] |= again;
    let view = EntryView::verify(&bytes, at.generation, at.offset).expect("the mark DEAD lies outside the checksum");
    assert!(view.is_dead() && view.version(1000) == 1007);
}

#[test]
fn the_catalogue_is_written_as_documented() {
    let dir = tempfile::tempdir().unwrap();
    {
        let db = hither::Db::builder()
            .path(dir.path())
            .capacity(1 << 20)
            .max_capacity(1 << 20)
            .topology(std::sync::Arc::new(hither::Topology::emulated(1)))
            .open()
            .unwrap();
        db.create_keyspace("né", hither::KeyspaceOptions::hash()).unwrap();
        db.create_keyspace("o", hither::KeyspaceOptions::ordered()).unwrap();
    }
    let pool = Pool::open(&dir.path().join("node0.hither"), &hither_pmem::OpenOptions::new()).unwrap();
    let bytes = pool.catalogue().unwrap();
    let at = |name| place("table: catalogue_keyspace", name).0 as usize;
    assert_eq!(bytes[..8], [3, 0, 0, 0, 2, 0, 0, 0], "next id, number of keyspaces");
    let first = &bytes[8..];
    assert_eq!(first[at("id")..at("id") + 4], 1u32.to_le_bytes());
    assert_eq!((first[at("kind")], first[at("name_bytes")]), (2, 3));
    assert_eq!(&first[at("name")..at("name") + 3], "né".as_bytes());
    let second = &first[at("name") + 3..];
    assert_eq!((second[at("id")], second[at("kind")], second[at("name")]), (2, 1, b'o'));
}

#[test]
fn a_checkpoint_is_written_as_documented() {
    let dir = tempfile::tempdir().unwrap();
    {
        let topology = std::sync::Arc::new(hither::Topology::emulated(1));
        let db = hither::Db::builder().path(dir.path()).capacity(1 << 20).topology(topology).open().unwrap();
        let [words, names, hashed] = ["words", "names", "hashed"].map(|name| {
            let options = if name == "hashed" { hither::KeyspaceOptions::hash() } else { hither::KeyspaceOptions::ordered() };
            db.create_keyspace(name, options).unwrap()
        });
        for key in [b"abcdefgh", b"abcdefgi"] {
            words.put(key, b"v").unwrap();
            hashed.put(key, b"v").unwrap();
        }
        names.put(b"name 1", b"v").unwrap();
        names.put(b"name 22", b"v").unwrap();
    }
    let bytes = std::fs::read(dir.path().join("checkpoint.hither")).unwrap();
    let number = |from: usize, marker: &str, name: &str| {
        let (offset, len) = place(marker, name);
        let at = from + offset as usize;
        bytes[at..at + len as usize].iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
    };
    assert_eq!((&bytes[..8], &bytes[bytes.len() - 8..]), (&b"hitherC1"[..], &b"hitherCE"[..]));
    let header = |name| number(0, "table: checkpoint_header", name);
    assert_eq!((header("format"), header("flags"), header("checksum")), (3, 1, crc32c(&[&bytes[..60]]).into()));
    let end = bytes.len() - 48;
    let trailer = |name| number(end, "table: checkpoint_trailer", name);
    let index = trailer("index_offset") as usize;
    assert_eq!(
        (trailer("checksum"), trailer("index_checksum")),
        (crc32c(&[&bytes[end..end + 36]]).into(), crc32c(&[&bytes[index..end]]).into())
    );
    let (segments, keyspaces) = (trailer("segments") as usize, trailer("keyspaces") as usize);
    assert_eq!(number(index, "table: checkpoint_segment", "flags"), 1, "covered");
    let rows = index + segments * 64;
    let row = |i: usize, name| number(rows + i * 24, "table: checkpoint_keyspace", name);
    let block = |i: usize, name| number(rows + keyspaces * 24 + i * 24, "table: checkpoint_block", name);
    for i in 0..keyspaces {
        assert_eq!((row(i, "blocks"), row(i, "keys"), block(i, "items")), (1, 2, 2));
        let (from, kind) = (block(i, "offset") as usize, block(i, "kind"));
        let payload = &bytes[from..from + block(i, "bytes") as usize];
        assert_eq!(block(i, "checksum"), crc32c(&[payload]).into());
        match (row(i, "id"), row(i, "kind"), kind) {
            (1, 1, 1) => assert_eq!(
                payload[..16],
                [u64::from_be_bytes(*b"abcdefgh"), u64::from_be_bytes(*b"abcdefgi")].map(u64::to_le_bytes).concat()
            ),
            (2, 1, 2) => assert_eq!(&payload[16..], b"\x00\x06name 1\x05\x0222"),
            (3, 2, 3) => {
                assert_eq!(number(from, "table: checkpoint_image", "pairs"), 32);
                assert_eq!(payload.len(), 16 + 32 * 128);
            }
            other => panic!("keyspace {other:?}"),
        }
    }
}
