//! How Redis packs small collections (listpacks; ziplists before version 7.0) and long strings (LZF). Only reading is
//! implemented.
//!
//! A packed collection is one run of bytes: a head, entries, and a byte 255. Each entry is a string or a number; its
//! first byte tells the form. `None`: the bytes are not what they should be.

use super::{MAX_STRING, Memory, Reader};

/// Unpacks a string that must have this length.
pub fn lzf(packed: &[u8], length: usize, memory: &mut Memory) -> Option<Vec<u8>> {
    // Three bytes stand for 264 at most.
    if length > MAX_STRING || length / 88 > packed.len() {
        return None;
    }
    memory.take(length)?;
    let (mut reader, mut text) = (Reader { rest: packed, memory }, Vec::with_capacity(length));
    while let Some(control) = reader.byte() {
        if control < 32 {
            text.extend_from_slice(reader.take(usize::from(control) + 1)?);
        } else {
            let mut count = usize::from(control >> 5) + 2;
            if count == 9 {
                count += usize::from(reader.byte()?);
            }
            let back = (usize::from(control & 31) << 8 | usize::from(reader.byte()?)) + 1;
            let from = text.len().checked_sub(back)?;
            // The bytes copied may overlap those that the copy makes.
            (from..from + count).for_each(|at| text.push(text[at]));
        }
        if text.len() > length {
            return None;
        }
    }
    (text.len() == length).then_some(text)
}

fn signed(bytes: &[u8]) -> i64 {
    let negative = bytes.last().is_some_and(|byte| byte >> 7 == 1);
    let mut whole = if negative { [0xff; 8] } else { [0; 8] };
    whole[..bytes.len()].copy_from_slice(bytes);
    i64::from_le_bytes(whole)
}

impl Reader<'_, '_> {
    /// A number of `count` bytes, as a string of the value.
    fn signed(&mut self, count: usize) -> Option<Vec<u8>> {
        let number = signed(self.take(count)?);
        self.decimal(number)
    }
}

/// The entries of a listpack.
pub fn listpack(bytes: &[u8], memory: &mut Memory) -> Option<Vec<Vec<u8>>> {
    let mut reader = Reader { rest: bytes, memory };
    if u32::from_le_bytes(reader.array()?) as usize != bytes.len() {
        return None;
    }
    let count = u16::from_le_bytes(reader.array()?);
    let mut entries = Vec::new();
    loop {
        let before = reader.rest.len();
        let first = reader.byte()?;
        let entry = match first {
            0xff => break,
            0..0x80 => reader.decimal(first.into())?,
            0x80..0xc0 => reader.copy(usize::from(first & 0x3f))?,
            0xc0..0xe0 => {
                let number = i64::from(first & 0x1f) << 8 | i64::from(reader.byte()?);
                reader.decimal(if number < 1 << 12 { number } else { number - (1 << 13) })?
            }
            0xe0..0xf0 => {
                let length = usize::from(first & 0x0f) << 8 | usize::from(reader.byte()?);
                reader.copy(length)?
            }
            0xf0 => {
                let length = u32::from_le_bytes(reader.array()?) as usize;
                reader.copy(length)?
            }
            0xf1..0xf4 => reader.signed(usize::from(first - 0xf1) + 2)?,
            0xf4 => reader.signed(8)?,
            _ => return None,
        };
        // The entry's length, for walks from the end, in groups of seven bits.
        let back_bytes = match before - reader.rest.len() {
            0..128 => 1,
            128..16383 => 2,
            16383..2_097_151 => 3,
            2_097_151..268_435_455 => 4,
            _ => 5,
        };
        reader.take(back_bytes)?;
        entries.push(entry);
    }
    check(reader, entries, count)
}

/// The entries of a ziplist.
pub fn ziplist(bytes: &[u8], memory: &mut Memory) -> Option<Vec<Vec<u8>>> {
    let mut reader = Reader { rest: bytes, memory };
    if u32::from_le_bytes(reader.array()?) as usize != bytes.len() {
        return None;
    }
    // The offset of the last entry.
    reader.take(4)?;
    let count = u16::from_le_bytes(reader.array()?);
    let mut entries = Vec::new();
    loop {
        match reader.byte()? {
            0xff => break,
            // The length of the previous entry.
            0xfe => drop(reader.take(4)?),
            _ => {}
        }
        let first = reader.byte()?;
        entries.push(match first {
            0..0x40 => reader.copy(usize::from(first))?,
            0x40..0x80 => {
                let length = usize::from(first & 0x3f) << 8 | usize::from(reader.byte()?);
                reader.copy(length)?
            }
            0x80 => {
                let length = u32::from_be_bytes(reader.array()?) as usize;
                reader.copy(length)?
            }
            0xc0 => reader.signed(2)?,
            0xd0 => reader.signed(4)?,
            0xe0 => reader.signed(8)?,
            0xf0 => reader.signed(3)?,
            0xfe => reader.signed(1)?,
            0xf1..=0xfd => reader.decimal(i64::from(first & 0x0f) - 1)?,
            _ => return None,
        });
    }
    check(reader, entries, count)
}

/// Nothing may follow, and the count must be right; 65,535 means that it is unknown.
fn check(reader: Reader<'_, '_>, entries: Vec<Vec<u8>>, count: u16) -> Option<Vec<Vec<u8>>> {
    (reader.rest.is_empty() && (count == u16::MAX || usize::from(count) == entries.len())).then_some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listpack(bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
        super::listpack(bytes, &mut Memory::of(usize::MAX))
    }

    fn ziplist(bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
        super::ziplist(bytes, &mut Memory::of(usize::MAX))
    }

    fn texts(entries: Option<Vec<Vec<u8>>>) -> Vec<String> {
        entries.expect("it is whole").into_iter().map(|entry| String::from_utf8(entry).unwrap()).collect()
    }

    fn pack(head: usize, count: u16, entries: &[&[u8]]) -> Vec<u8> {
        let entries = entries.concat();
        let mut bytes = ((head + entries.len() + 1) as u32).to_le_bytes().to_vec();
        bytes.resize(head - 2, 0);
        bytes.extend_from_slice(&count.to_le_bytes());
        bytes.extend_from_slice(&entries);
        bytes.push(0xff);
        bytes
    }

    #[test]
    fn entries_of_listpacks() {
        let entries: [&[u8]; 9] = [
            b"\x05\x01",
            b"\x82ab\x03",
            b"\xdf\xff\x02",
            b"\xc1\x00\x02",
            b"\xe0\x03abc\x05",
            b"\xf0\x01\x00\x00\x00x\x06",
            b"\xf1\x00\x80\x03",
            b"\xf2\x00\x00\x80\x04",
            b"\xf4\xff\xff\xff\xff\xff\xff\xff\x7f\x09",
        ];
        let bytes = pack(6, 9, &entries);
        assert_eq!(texts(listpack(&bytes)), ["5", "ab", "-1", "256", "abc", "x", "-32768", "-8388608", "9223372036854775807"]);
        for cut in 0..bytes.len() {
            assert_eq!(listpack(&bytes[..cut]), None);
        }
        assert_eq!(listpack(&pack(6, 8, &entries)), None, "a wrong count");
        assert_eq!(listpack(&pack(6, 1, &[b"\xf5\x01"])), None);
        let long = [&b"\xe0\xff"[..], &[b'y'; 255], &[2, 1]].concat();
        assert_eq!(texts(listpack(&pack(6, u16::MAX, &[&long]))), ["y".repeat(255)]);
    }

    #[test]
    fn entries_of_ziplists() {
        let entries: [&[u8]; 8] = [
            b"\x00\x02ab",
            b"\x04\x40\x01x",
            b"\xfe\x05\x00\x00\x00\x80\x00\x00\x00\x01y",
            b"\x00\xc0\x00\x80",
            b"\x00\xd0\xff\xff\xff\xff",
            b"\x00\xf0\x00\x00\x80",
            b"\x00\xfe\x80",
            b"\x00\xfd",
        ];
        let bytes = pack(10, 8, &entries);
        assert_eq!(texts(ziplist(&bytes)), ["ab", "x", "y", "-32768", "-1", "-8388608", "-128", "12"]);
        for cut in 0..bytes.len() {
            assert_eq!(ziplist(&bytes[..cut]), None);
        }
        assert_eq!(ziplist(&pack(10, 1, &[b"\x00\x81"])), None);
    }

    #[test]
    fn lengths_that_cannot_be_are_refused_before_memory_is_taken() {
        assert_eq!(lzf(b"\x00a", 400 << 20, &mut Memory::of(usize::MAX)), None);
        assert_eq!(lzf(b"\x00a", usize::MAX, &mut Memory::of(usize::MAX)), None);
    }
}
