//! Values as Redis writes them into its dump files: what DUMP answers and RESTORE takes.
//!
//! ```text
//! type 1 byte | value | version u16 | CRC-64 of all before u64           both little-endian
//! ```
//!
//! This module writes version 10 (Redis 7.0) with the plain encodings, so that Redis from 7.0 on reads it. It reads the
//! strings, hashes and sorted sets that Redis up to 7.2 writes (version 11), including packed ones ([`packed`]). It
//! trusts no length in a payload before the bytes are there, and bounds what it reads from it ([`Memory`]): three bytes
//! of a compressed string may stand for 264, and those for as many numbers.

pub mod packed;

use crate::data::encoding::{ROW_PREFIX_BYTES, Type};
use crate::data::txn::PER_WRITE;
use std::collections::HashSet;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A string.
    String(Vec<u8>),
    /// A hash: fields with values.
    Hash(Vec<(Vec<u8>, Vec<u8>)>),
    /// A sorted set: members with scores.
    SortedSet(Vec<(Vec<u8>, f64)>),
}

/// Why a payload is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is too short, of a newer version, or was changed on its way.
    Footer,
    /// It is whole, but not a value of a known type.
    Data,
    /// It takes too much memory.
    TooLarge,
}

const WRITTEN_VERSION: u16 = 10;
const NEWEST_VERSION: u16 = 11;
const FOOTER_BYTES: usize = 10;
/// The longest string of Redis.
const MAX_STRING: usize = 512 << 20;

/// Types of values in a dump.
mod kind {
    pub const STRING: u8 = 0;
    pub const SORTED_SET_TEXT: u8 = 3;
    pub const HASH: u8 = 4;
    pub const SORTED_SET: u8 = 5;
    pub const SORTED_SET_ZIPLIST: u8 = 12;
    pub const HASH_ZIPLIST: u8 = 13;
    pub const HASH_LISTPACK: u8 = 16;
    pub const SORTED_SET_LISTPACK: u8 = 17;
}

/// A payload under construction.
pub struct Payload(Vec<u8>);

impl Payload {
    /// The payload of a string.
    pub fn string(text: &[u8]) -> Payload {
        let mut payload = Payload(vec![kind::STRING]);
        payload.text(text);
        payload
    }

    /// The payload of a hash or sorted set with `count` members; the caller must append them.
    pub fn collection(of: Type, count: u64) -> Payload {
        let mut payload = Payload(vec![if of == Type::Hash { kind::HASH } else { kind::SORTED_SET }]);
        payload.length(count);
        payload
    }

    /// Appends a field, member or value.
    pub fn text(&mut self, text: &[u8]) {
        self.length(text.len() as u64);
        self.0.extend_from_slice(text);
    }

    /// Appends a score.
    pub fn score(&mut self, score: f64) {
        self.0.extend_from_slice(&score.to_le_bytes());
    }

    /// Bytes so far.
    pub fn bytes(&self) -> usize {
        self.0.len()
    }

    fn length(&mut self, length: u64) {
        match length {
            0..0x40 => self.0.push(length as u8),
            0x40..0x4000 => self.0.extend_from_slice(&(length as u16 | 0x4000).to_be_bytes()),
            0x4000..=0xffff_ffff => {
                self.0.push(0x80);
                self.0.extend_from_slice(&(length as u32).to_be_bytes());
            }
            _ => {
                self.0.push(0x81);
                self.0.extend_from_slice(&length.to_be_bytes());
            }
        }
    }

    /// Completes the payload.
    pub fn finish(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&WRITTEN_VERSION.to_le_bytes());
        let sum = crc64(&self.0);
        self.0.extend_from_slice(&sum.to_le_bytes());
        self.0
    }
}

/// The memory that a value may take while it is read and written.
pub struct Memory {
    left: usize,
    exceeded: bool,
}

impl Memory {
    /// A bound of this many bytes.
    pub const fn of(bytes: usize) -> Memory {
        Memory { left: bytes, exceeded: false }
    }

    /// Takes memory for a string of this length; `None` if there is not enough.
    fn take(&mut self, length: usize) -> Option<()> {
        self.take_bytes(length.saturating_add(size_of::<Vec<u8>>()))
    }

    fn take_bytes(&mut self, count: usize) -> Option<()> {
        let left = self.left.checked_sub(count);
        self.exceeded |= left.is_none();
        self.left = left?;
        Some(())
    }

    /// Takes memory for the rows of a member with this name length. The value of a field moves into its row.
    fn take_rows(&mut self, of: Type, name: usize) -> Option<()> {
        let row = PER_WRITE + ROW_PREFIX_BYTES + name;
        // Of a sorted set, one row has the score as its value, the other in its key.
        self.take_bytes(if of == Type::Hash { row } else { 2 * (row + size_of::<f64>()) })
    }
}

/// Reads a payload, with `most` bytes of memory for its strings and for the rows made of them.
pub fn read(payload: &[u8], most: usize) -> Result<Value, Refused> {
    let at = payload.len().checked_sub(FOOTER_BYTES).ok_or(Refused::Footer)?;
    let (body, footer) = payload.split_at(at);
    let (version, sum) = footer.split_at(2);
    let version = u16::from_le_bytes([version[0], version[1]]);
    if version > NEWEST_VERSION || sum != crc64(&payload[..at + 2]).to_le_bytes() {
        return Err(Refused::Footer);
    }
    let mut memory = Memory::of(most);
    let mut reader = Reader { rest: body, memory: &mut memory };
    let value = reader.value();
    let is_read = reader.rest.is_empty();
    let value = value.ok_or(if memory.exceeded { Refused::TooLarge } else { Refused::Data })?;
    let good = is_read
        && match &value {
            Value::String(_) => true,
            Value::Hash(pairs) => are_different(pairs),
            Value::SortedSet(pairs) => are_different(pairs) && pairs.iter().all(|(_, score)| !score.is_nan()),
        };
    if good { Ok(value) } else { Err(Refused::Data) }
}

/// Whether there are members, all with different names.
fn are_different<T>(pairs: &[(Vec<u8>, T)]) -> bool {
    let names: HashSet<&[u8]> = pairs.iter().map(|(name, _)| name.as_slice()).collect();
    !pairs.is_empty() && names.len() == pairs.len()
}

/// The rest of a payload. Its methods return `None` if the bytes are not what they should be.
struct Reader<'a, 'm> {
    rest: &'a [u8],
    memory: &'m mut Memory,
}

/// A length, or the encoding of a string.
enum Length {
    Plain(usize),
    Encoded(u8),
}

impl<'a> Reader<'a, '_> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    /// The next bytes, as a string of the value.
    fn copy(&mut self, count: usize) -> Option<Vec<u8>> {
        let bytes = self.take(count)?;
        self.memory.take(count)?;
        Some(bytes.to_vec())
    }

    /// A number, as a string of the value.
    fn decimal(&mut self, number: i64) -> Option<Vec<u8>> {
        let text = number.to_string().into_bytes();
        self.memory.take(text.len())?;
        Some(text)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn length(&mut self) -> Option<Length> {
        let first = self.byte()?;
        Some(match (first >> 6, first) {
            (0, _) => Length::Plain(usize::from(first)),
            (1, _) => Length::Plain(usize::from(first & 0x3f) << 8 | usize::from(self.byte()?)),
            (2, 0x80) => Length::Plain(u32::from_be_bytes(self.array()?) as usize),
            (2, 0x81) => Length::Plain(usize::try_from(u64::from_be_bytes(self.array()?)).ok()?),
            (3, _) => Length::Encoded(first & 0x3f),
            _ => return None,
        })
    }

    fn plain_length(&mut self) -> Option<usize> {
        match self.length()? {
            Length::Plain(length) => Some(length),
            Length::Encoded(_) => None,
        }
    }

    fn text(&mut self) -> Option<Vec<u8>> {
        match self.length()? {
            Length::Plain(length) => self.copy(length),
            Length::Encoded(0) => self.array().and_then(|bytes| self.decimal(i8::from_le_bytes(bytes).into())),
            Length::Encoded(1) => self.array().and_then(|bytes| self.decimal(i16::from_le_bytes(bytes).into())),
            Length::Encoded(2) => self.array().and_then(|bytes| self.decimal(i32::from_le_bytes(bytes).into())),
            Length::Encoded(3) => {
                let (packed, length) = (self.plain_length()?, self.plain_length()?);
                packed::lzf(self.take(packed)?, length, self.memory)
            }
            Length::Encoded(_) => None,
        }
    }

    /// A score as older versions wrote it.
    fn score_text(&mut self) -> Option<f64> {
        match self.byte()? {
            253 => None,
            254 => Some(f64::INFINITY),
            255 => Some(f64::NEG_INFINITY),
            length => crate::commands::arguments::parse_float(self.take(usize::from(length))?),
        }
    }

    fn value(&mut self) -> Option<Value> {
        let kind = self.byte()?;
        Some(match kind {
            kind::STRING => Value::String(self.text()?),
            kind::HASH => Value::Hash(self.pairs(Type::Hash, Reader::text)?),
            kind::SORTED_SET => Value::SortedSet(self.pairs(Type::SortedSet, |reader| reader.array().map(f64::from_le_bytes))?),
            kind::SORTED_SET_TEXT => Value::SortedSet(self.pairs(Type::SortedSet, Reader::score_text)?),
            kind::HASH_ZIPLIST => Value::Hash(in_pairs(packed::ziplist(&self.text()?, self.memory)?, Type::Hash, self.memory)?),
            kind::HASH_LISTPACK => Value::Hash(in_pairs(packed::listpack(&self.text()?, self.memory)?, Type::Hash, self.memory)?),
            kind::SORTED_SET_ZIPLIST => Value::SortedSet(scored(packed::ziplist(&self.text()?, self.memory)?, self.memory)?),
            kind::SORTED_SET_LISTPACK => Value::SortedSet(scored(packed::listpack(&self.text()?, self.memory)?, self.memory)?),
            _ => return None,
        })
    }

    fn pairs<T>(&mut self, of: Type, mut second: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<(Vec<u8>, T)>> {
        let count = self.plain_length()?;
        let pair = |_| {
            let (name, second) = (self.text()?, second(self)?);
            self.memory.take_rows(of, name.len())?;
            Some((name, second))
        };
        (0..count).map(pair).collect()
    }
}

/// Groups items in pairs.
fn in_pairs(items: Vec<Vec<u8>>, of: Type, memory: &mut Memory) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut items = items.len().is_multiple_of(2).then(|| items.into_iter())?;
    let pairs = std::iter::from_fn(|| Some((items.next()?, items.next()?)));
    pairs.map(|(name, second)| memory.take_rows(of, name.len()).map(|()| (name, second))).collect()
}

fn scored(items: Vec<Vec<u8>>, memory: &mut Memory) -> Option<Vec<(Vec<u8>, f64)>> {
    let score = |(member, score): (Vec<u8>, Vec<u8>)| Some((member, crate::commands::arguments::parse_float(&score)?));
    in_pairs(items, Type::SortedSet, memory)?.into_iter().map(score).collect()
}

/// The polynomial of Jones, reflected, as Redis uses it.
const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;

static CRC_TABLE: [u64; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let (mut crc, mut bit) = (index as u64, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

fn crc64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |crc, byte| CRC_TABLE[usize::from(crc as u8 ^ byte)] ^ crc >> 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seal(mut body: Vec<u8>, version: u16) -> Vec<u8> {
        body.extend_from_slice(&version.to_le_bytes());
        let sum = crc64(&body);
        body.extend_from_slice(&sum.to_le_bytes());
        body
    }

    fn read(payload: &[u8]) -> Result<Value, Refused> {
        super::read(payload, usize::MAX)
    }

    fn decimal(number: i64) -> Vec<u8> {
        number.to_string().into_bytes()
    }

    fn round_trip(value: &Value) -> Vec<u8> {
        let payload = match value {
            Value::String(text) => Payload::string(text).finish(),
            Value::Hash(pairs) => {
                let mut payload = Payload::collection(Type::Hash, pairs.len() as u64);
                pairs.iter().for_each(|(field, value)| {
                    payload.text(field);
                    payload.text(value);
                });
                payload.finish()
            }
            Value::SortedSet(pairs) => {
                let mut payload = Payload::collection(Type::SortedSet, pairs.len() as u64);
                pairs.iter().for_each(|(member, score)| {
                    payload.text(member);
                    payload.score(*score);
                });
                payload.finish()
            }
        };
        assert_eq!(read(&payload).as_ref(), Ok(value));
        payload
    }

    #[test]
    fn the_checksum_is_that_of_redis() {
        assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    }

    #[test]
    fn what_is_written_is_read() {
        for length in [0, 1, 63, 64, 16383, 16384, 100_000] {
            round_trip(&Value::String(vec![7; length]));
        }
        round_trip(&Value::Hash((0..300).map(|n| (decimal(n), vec![b'x'; n as usize])).collect()));
        round_trip(&Value::SortedSet(vec![(b"".to_vec(), f64::NEG_INFINITY), (b"b".to_vec(), -0.5), (b"c".to_vec(), f64::INFINITY)]));
    }

    #[test]
    fn every_changed_bit_and_every_cut_is_noticed() {
        let payload = round_trip(&Value::Hash(vec![(b"field".to_vec(), b"value".to_vec()), (b"f".to_vec(), b"".to_vec())]));
        for cut in 0..payload.len() {
            assert_eq!(read(&payload[..cut]), Err(Refused::Footer));
        }
        for bit in 0..payload.len() * 8 {
            let mut damaged = payload.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read(&damaged), Err(Refused::Footer));
        }
    }

    #[test]
    fn whole_payloads_with_nonsense_in_them_are_refused() {
        let refused: &[&[u8]] = &[
            b"",
            b"\x00",
            b"\x00\x05abc",
            b"\x00\x03abcd",
            b"\x00\xc4a",
            b"\x00\x82abcd",
            // Lengths of 4 GiB, and of the whole address space.
            b"\x00\x80\xff\xff\xff\xff",
            b"\x04\x81\xff\xff\xff\xff\xff\xff\xff\xff\x01a\x01b",
            // No members, one field twice, no score, not a number.
            b"\x04\x00",
            b"\x04\x02\x01a\x01b\x01a\x01c",
            b"\x05\x01\x01a",
            b"\x05\x01\x01a\x00\x00\x00\x00\x00\x00\xf8\x7f",
            b"\x03\x01\x01a\xfd",
            // A list, a stream.
            b"\x01\x01\x01a",
            b"\x0f\x00",
            // Compressed: cut off, out of bounds, too long.
            b"\x00\xc3\x02\x03\x05a",
            b"\x00\xc3\x02\x03\x20\x00",
            b"\x00\xc3\x02\x01\x01ab",
        ];
        for body in refused {
            assert_eq!(read(&seal(body.to_vec(), 10)), Err(Refused::Data), "{body:?}");
        }
        assert_eq!(read(&seal(b"\x00\x01a".to_vec(), 11)), Ok(Value::String(b"a".to_vec())));
        assert_eq!(read(&seal(b"\x00\x01a".to_vec(), 12)), Err(Refused::Footer));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(kind in 0u8..20, packed: bool, bytes: Vec<u8>) {
            // With the head of a packed collection in some; otherwise few would get far.
            let mut body = vec![kind];
            if packed {
                let length = (bytes.len() + 7) as u32;
                body.extend_from_slice(&[0x80]);
                body.extend_from_slice(&length.to_be_bytes());
                body.extend_from_slice(&length.to_le_bytes());
                body.extend_from_slice(&[0xff, 0xff]);
            }
            body.extend_from_slice(&bytes);
            body.extend(packed.then_some(0xff));
            match read(&seal(body, 10)) {
                Ok(value) => drop(round_trip(&value)),
                Err(refused) => prop_assert_eq!(refused, Refused::Data),
            }
        }
    }

    #[test]
    fn numbers_and_compressed_strings_are_read() {
        for (body, text) in [
            (&b"\x00\xc0\xff"[..], "-1"),
            (b"\x00\xc1\x00\x80", "-32768"),
            (b"\x00\xc2\x00\x00\x00\x7f", "2130706432"),
            // Two letters, then nine from two bytes back.
            (b"\x00\xc3\x06\x0b\x01ab\xe0\x00\x01", "abababababa"),
        ] {
            assert_eq!(read(&seal(body.to_vec(), 9)), Ok(Value::String(text.into())), "{body:?}");
        }
        let text = seal(b"\x03\x02\x01a\x031.5\x01b\xff".to_vec(), 6);
        assert_eq!(read(&text), Ok(Value::SortedSet(vec![(b"a".to_vec(), 1.5), (b"b".to_vec(), f64::NEG_INFINITY)])));
    }
}
