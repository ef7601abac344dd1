//! Replays damaged segments.
//!
//! The input is a list of steps: write a valid entry, leave a hole, or overwrite bytes anywhere. Then the segment is
//! scanned. These properties must hold:
//!
//! * the scan ends, and touches nothing outside the segment;
//! * each reported entry is aligned, at least as large as the smallest entry, inside the segment, and behind the
//!   previous one;
//! * every entry that no overwrite touched is found, with its key and value (holes and torn bytes hide nothing behind
//!   them). An entry that lies inside an entry forged by an overwrite is excepted: the fuzzer sees comparisons, so it
//!   finds checksums for the generation that it chose itself.

#![no_main]

use hither_log::entry::{BatchTag, Op, Parts, Place};
use hither_log::replay;
use hither_pmem::{CreateOptions, Descriptor, Pool, SegmentState};
use libfuzzer_sys::fuzz_target;

const SEGMENT_BYTES: u64 = 64 << 10;

/// Reads the input piece by piece; behind its end it reads zeros.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    fn word(&mut self) -> u64 {
        let mut bytes = [0; 8];
        let taken = self.take(8);
        bytes[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(bytes)
    }

    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

struct Written {
    offset: u64,
    size: u64,
    key: Vec<u8>,
    value: Vec<u8>,
}

/// A segment that is being filled.
struct Bench {
    pool: Pool,
    descriptor: Descriptor,
    cursor: u64,
    written: Vec<Written>,
}

impl Bench {
    fn new(input: &mut Input<'_>) -> Bench {
        let mut options = CreateOptions::new(2 * SEGMENT_BYTES);
        options.segment_bytes = SEGMENT_BYTES;
        let pool = Pool::create_in_memory(&options).expect("a small pool in memory");
        let descriptor = Descriptor {
            generation: input.word() | 1,
            base_version: input.word() >> 8,
            run_len: 1,
            state: SegmentState::Active,
            ..Descriptor::default()
        };
        let cursor = pool.segment_offset(0);
        Bench { pool, descriptor, cursor, written: Vec::new() }
    }

    fn end(&self) -> u64 {
        self.pool.segment_offset(0) + SEGMENT_BYTES
    }

    fn entry(&mut self, input: &mut Input<'_>) {
        let shape = input.byte();
        let (key_len, value_len) = match shape & 3 {
            0 => (8, 8),
            1 => (usize::from(input.byte()) + 1, usize::from(input.byte())),
            2 => (8, usize::from(input.byte()) * 16),
            _ => (usize::from(input.byte()) * 8 + 1, 0),
        };
        let op = [Op::Insert, Op::Update, Op::Delete, Op::Insert][usize::from(shape >> 2 & 3)];
        let mut key = input.take(key_len).to_vec();
        key.resize(key_len, 0xA5);
        let mut value = if op == Op::Delete { Vec::new() } else { input.take(value_len).to_vec() };
        value.resize(if op == Op::Delete { 0 } else { value_len }, 0x5A);
        let parts = Parts {
            op,
            key: &key,
            value: &value,
            version: self.descriptor.base_version + u64::from(input.byte()),
            parent: input.word() & ((1 << 48) - 1),
            keyspace: u32::from(shape >> 4 & 1),
            expiry_ms: if shape >> 5 & 1 == 1 { input.word() } else { 0 },
            batch: (shape >> 6 & 1 == 1).then_some(BatchTag { size: 3, index: 1 }),
            ..Parts::EMPTY
        };
        let size = parts.size(self.descriptor.keyspace, self.descriptor.base_version);
        if self.cursor + size > self.end() {
            return;
        }
        let place = Place {
            generation: self.descriptor.generation,
            base_version: self.descriptor.base_version,
            keyspace: self.descriptor.keyspace,
            offset: self.cursor,
        };
        let mut bytes: Vec<u8> = parts.encode_head(&place).words().iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend_from_slice(&key);
        bytes.extend_from_slice(&value);
        self.write(self.cursor, &bytes);
        self.written.push(Written { offset: self.cursor, size, key, value });
        self.cursor += size;
    }

    fn overwrite(&mut self, input: &mut Input<'_>) {
        let at = self.pool.segment_offset(0) + input.word() % SEGMENT_BYTES;
        let length = usize::from(input.byte()) + 1;
        let bytes = input.take(length);
        let bytes = &bytes[..bytes.len().min((self.end() - at) as usize)];
        let hit = at..at + bytes.len() as u64;
        self.write(at, bytes);
        self.written.retain(|entry| entry.offset + entry.size <= hit.start || entry.offset >= hit.end);
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        // SAFETY: the range is inside segment 0, the pool is open for writing, and this is the only thread.
        unsafe { self.pool.write(offset, bytes) };
    }

    fn check(&self) {
        let mut behind = self.pool.segment_offset(0);
        let mut intact = self.written.iter().peekable();
        replay::scan(&self.pool, 0, &self.descriptor, |offset, entry| {
            assert!(offset >= behind && offset % 8 == 0 && entry.size >= 32 && entry.size % 8 == 0, "entry at {offset}");
            behind = offset + entry.size;
            assert!(behind <= self.end(), "an entry beyond the segment");
            if let Some(expected) = intact.next_if(|expected| expected.offset == offset) {
                assert!(entry.key == expected.key && entry.value == expected.value, "another entry at {offset}");
            }
            // The entry was forged by an overwrite, or an overwrite left it as it was. It may hide intact entries
            // inside it.
            while intact.next_if(|covered| covered.offset > offset && covered.offset < behind).is_some() {}
        });
        if let Some(lost) = intact.next() {
            panic!("the scan passed over the intact entry at {}", lost.offset);
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let mut bench = Bench::new(&mut input);
    while !input.0.is_empty() {
        match input.byte() & 3 {
            0 | 1 => bench.entry(&mut input),
            2 => bench.cursor = (bench.cursor + 8 * (u64::from(input.byte()) + 1)).min(bench.end()),
            _ => bench.overwrite(&mut input),
        }
    }
    bench.check();
});
