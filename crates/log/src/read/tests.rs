//! Reading without parsing finds what parsing finds.

use super::*;
use crate::Flush;
use crate::entry::{BatchTag, MAX_KEY_BYTES, MIN_BYTES, Parts};
use hither_pmem::CreateOptions;

const KEY: u64 = 0x0102_0304_0506_0708;

/// For a get of an 8-byte key, reading an entry without parsing yields the same as parsing it, on any node. Entries
/// that are not lasting puts of an 8-byte key are left to parsing.
#[test]
fn short_values_are_those_of_the_entries() {
    let log = Log::for_tests_on(&CreateOptions { segment_bytes: 4096, ..CreateOptions::new(64 * 4096) }, 3, 1);
    let key = KEY.to_ne_bytes();
    let put = Parts { op: Op::Insert, key: &key, value: b"8 bytes!", keyspace: 1, ..Parts::EMPTY };
    let tag = Some(BatchTag { size: 2, index: 1 });
    let (long, other) = ([7; 300], (KEY + 1).to_ne_bytes());
    let member = Parts { batch: tag, ..put };
    let cases: [(&str, Parts<'_>, Option<&[u8]>); 20] = [
        ("a pair", put, Some(b"8 bytes!")),
        ("an update", Parts { op: Op::Update, parent: 4096 / 8, ..put }, Some(b"8 bytes!")),
        ("one byte", Parts { value: b"1", ..put }, Some(b"1")),
        ("300 bytes", Parts { value: &long, ..put }, Some(&long)),
        ("no byte: as long as a pair", Parts { value: b"", ..put }, None),
        ("a longer key, as long as a pair", Parts { key: b"nine bytes", value: b"", ..put }, None),
        ("a delete: as long as a pair", Parts { op: Op::Delete, value: b"", ..put }, None),
        ("one that expires", Parts { expiry_ms: 1 << 40, ..put }, None),
        ("a long one that expires", Parts { expiry_ms: 1 << 40, value: &long, ..put }, None),
        ("a member of a batch", member, Some(b"8 bytes!")),
        ("a member that expires", Parts { expiry_ms: 1 << 40, ..member }, None),
        ("a member of one byte", Parts { value: b"1", ..member }, Some(b"1")),
        ("a member of no byte", Parts { value: b"", ..member }, Some(b"")),
        ("a member of 300 bytes", Parts { value: &long, ..member }, Some(&long)),
        ("a member of a longer key", Parts { key: b"nine bytes", value: &long, ..member }, None),
        ("a delete in a batch", Parts { op: Op::Delete, value: b"", ..member }, None),
        ("a pair of another keyspace", Parts { keyspace: 9, ..put }, Some(b"8 bytes!")),
        ("a member of another keyspace", Parts { keyspace: 9, ..member }, Some(b"8 bytes!")),
        ("a delete in another keyspace", Parts { op: Op::Delete, value: b"", keyspace: 9, ..put }, None),
        ("a keyspace and a shortcut", Parts { keyspace: 9, shortcut: 77, value: b"123", ..member }, Some(b"123")),
    ];
    for (name, parts, expected) in cases {
        let (here, _) = log.write_for_tests(parts, Flush::Now);
        for reference in [here, log.copy_to_node_for_tests(1, here), log.copy_to_node_for_tests(2, here)] {
            let short = log.short_value_of(reference, KEY);
            let value = short.and_then(|word| {
                if is_pair(reference) { Some(word.to_ne_bytes().to_vec()) } else { log.value_at(reference, word).map(<[u8]>::to_vec) }
            });
            let entry = log.entry(reference);
            // A copy is no batch member any more, and may be as short as a pair.
            let expected = expected.filter(|value| value.len() == 8 || entry.size > MIN_BYTES);
            assert_eq!(value.as_deref(), expected, "{name}, reference {reference:#x}");
            assert!(expected.is_none_or(|value| value == entry.value), "{name}");
            // The same for keys of any length.
            let lasts = entry.expiry_ms() == 0;
            let (is_plain, is_put) = (log.plain_key(reference).is_some(), entry.op() != Op::Delete);
            assert_eq!(log.lasting_value(reference), (lasts && is_put && !is_plain).then_some(entry.value), "{name}");
            assert_eq!(log.value_of_key(reference, entry.key), log.lasting_value(reference), "{name}");
            assert!(!is_put || log.pair(reference) == (entry.key, entry.value, entry.expiry_ms()), "{name}");
            assert_eq!(log.surely_has_key(reference, entry.key), lasts, "{name}");
            for other in [&other[..], b"nine byteS", b"", &[&key[..], b"!"].concat()] {
                assert!(!log.surely_has_key(reference, other) && !log.key_matches(reference, other), "{name}");
                assert_eq!(log.value_of_key(reference, other), None, "{name}");
            }
            assert!(log.key_matches(reference, entry.key), "{name}");
            assert_eq!(log.short_value_of(reference, u64::from_ne_bytes(other)), None, "{name}: another key");
        }
    }
    assert_eq!((log.short_value_of(0, KEY), log.value_of_key(0, &key)), (None, None), "no entry");
    let address = std::ptr::from_ref(&log).addr() as u64;
    assert_eq!((log.short_value_of(address, KEY), log.value_of_key(address, &key)), (None, None), "no reference");
}

/// Each byte counts, at each length.
#[test]
fn keys_are_compared_whole() {
    let one: Vec<u8> = (0..70).collect();
    for len in 0..=one.len() {
        let key = &one[..len];
        assert!(are_same(key, &one.clone()[..len]), "{len} bytes");
        assert!(len == 0 || !are_same(key, &key[1..]) && !are_same(&key[1..], key), "{len} bytes");
        for at in 0..len {
            let mut other = key.to_vec();
            other[at] ^= 1 << (at % 8);
            assert!(!are_same(key, &other), "byte {at} of {len}");
        }
    }
}

/// The words at the place to which a reference leads, for [`layouts_are_those_that_parsing_finds`].
struct Drawn {
    flags: u8,
    fields: u8,
    words: Vec<u64>,
}

impl Drawn {
    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn new(draw: &mut impl FnMut(u64) -> u64) -> Drawn {
        let dead = [0, 0, 0, flag::DEAD, 1 << 5][draw(5) as usize];
        let flags = draw(4) as u8 | [0, flag::LEN, flag::EXT, flag::EXT | flag::LEN][draw(4) as usize] | dead;
        let fields = draw(17) as u8;
        let others = draw(1 << 32) | draw(1 << 24) << word0::PARENT_GENERATION_SHIFT;
        let mut words = vec![others | u64::from(flags) << word0::FLAGS_SHIFT, draw(1 << 20)];
        if flags & flag::EXT != 0 {
            words.push(u64::from(fields) | draw(3) << ext::BATCH_SIZE_SHIFT);
            words.resize_with(words.len() + fields.count_ones() as usize, || draw(3) << 32);
        }
        if flags & flag::LEN != 0 {
            let key_bytes = [8, 8, draw(20), MAX_KEY_BYTES as u64 + 1, u64::from(u32::MAX)][draw(5) as usize];
            let value_bytes = [0, 8, draw(70), MAX_VALUE_BYTES as u64 + draw(2), u64::from(u32::MAX)][draw(5) as usize];
            words.push(value_bytes << 32 | key_bytes);
        }
        words.extend([KEY; 8]);
        Drawn { flags, fields, words }
    }

    /// Whether the entry is to be read without parsing, if it parses.
    fn lasts(&self) -> bool {
        !(self.has(flag::DEAD) || self.has(flag::EXT) && self.fields & ext::EXPIRY != 0)
    }
}

/// Whatever lies where a reference leads, also at the very end of a pool: reading without parsing finds what parsing
/// finds, and reads nothing outside the pool.
#[test]
fn layouts_are_those_that_parsing_finds() {
    let log = Log::for_tests_on(&CreateOptions { segment_bytes: 4096, ..CreateOptions::new(64 * 4096) }, 1, 1);
    let pool = &log.pools[0].pool;
    let end = pool.len_mapped();
    let key = KEY.to_ne_bytes();
    let mut random = 7u64;
    let mut draw = |below: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 31) % below
    };
    // How many were found: for each set of fields, without and with a length word; with a length word alone; as short
    // values; and as members of batches.
    let (mut extended, mut bare, mut short, mut members) = ([[0; 2]; 16], 0, 0, 0);
    for _ in 0..200_000 {
        let words_left = 4 + draw(12);
        let at = end - 8 * words_left;
        let drawn = Drawn::new(&mut draw);
        for (i, word) in drawn.words.iter().take(words_left as usize).enumerate() {
            // SAFETY: inside the pool, and nobody else reads this range.
            unsafe { pool.write_words(at + 8 * i as u64, &[*word]) };
        }
        let reference = address::pack(0, at, 40);
        let entry = log.readable_entry(reference);
        let name = || format!("{:x?}, {words_left} words left", drawn.words);
        let is_plain = !drawn.has(flag::EXT | flag::LEN);
        // Where an entry may have an extension, the largest possible extension must lie within the pool.
        let must = drawn.lasts() && !is_plain && (words_left >= 8 || !drawn.has(flag::EXT));
        let put = entry.filter(|entry| entry.op() != Op::Delete);
        match (log.lasting_value(reference), put) {
            (Some(value), Some(entry)) => {
                assert!(drawn.lasts() && value == entry.value, "{}", name());
                match drawn.has(flag::EXT) {
                    true => extended[drawn.fields as usize][usize::from(drawn.has(flag::LEN))] += 1,
                    false => bare += 1,
                }
            }
            // A length that no key has is left to the caller that verifies.
            (Some(value), None) => {
                assert!(drawn.has(flag::LEN) && entry.is_none(), "{}", name());
                assert!(value.as_ptr_range().end <= pool.base().wrapping_add(end as usize).cast(), "{}", name());
            }
            (None, put) => assert!(put.is_none() || !must, "{}", name()),
        }
        let value = log.short_value_of(reference, KEY).and_then(|place| log.value_at(reference, place));
        if let Some(entry) = entry {
            let is_keys = entry.key == key;
            assert!(!log.surely_has_key(reference, &key) || is_keys && drawn.lasts() | is_plain, "{}", name());
            assert!(!must || log.surely_has_key(reference, &key) == is_keys, "{}", name());
            let is_member = is_keys && drawn.lasts() && drawn.has(flag::EXT) && !drawn.has(flag::LEN) && drawn.fields == 0;
            assert_eq!(log.surely_is_member(reference, KEY), is_member, "{}", name());
            members += usize::from(is_member);
            let expected = put.filter(|_| is_keys && drawn.lasts() && !is_plain).map(|entry| entry.value);
            assert!(value == expected || value.is_none() && !must, "{}", name());
            short += usize::from(value.is_some());
        }
    }
    let found = [0, 1, 4, 5, 8, 9, 12, 13].iter().all(|fields| extended[*fields as usize].iter().all(|found| *found > 20));
    assert!(found && bare > 1000 && short > 1000 && members > 100, "{extended:?}, {bare}, {short}, {members}");
}
