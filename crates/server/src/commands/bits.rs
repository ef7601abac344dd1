//! Bits of strings. Bit 0 is the highest of the first byte; beyond a string's end all bits are 0.

use super::arguments::{integer, is};
use super::failure::Failure;
use super::strings::{MAX_STRING, bytes_of, load};
use super::table::flag::{DENYOOM, FAST, READONLY, WRITE};
use super::table::{Command, entries};
use super::{Context, Outcome};
use crate::data::Txn;
use crate::data::encoding::string_entry;
use hither_resp::parse_integer;

entries!(command, Bitmap.keys(1, 1, 1));

/// The family's part of the table; BITFIELD has a file of its own.
pub static COMMANDS: &[Command] = &[
    command("setbit", 4, "2.2.0", "Sets or clears a bit, and returns what it was.", setbit).flags(WRITE | DENYOOM),
    command("getbit", 3, "2.2.0", "Returns a bit.", getbit).flags(READONLY | FAST),
    command("bitcount", -2, "2.6.0", "Counts the bits that are set.", bitcount).flags(READONLY),
    command("bitpos", -3, "2.8.7", "Finds the first bit that is set or clear.", bitpos).flags(READONLY),
    command("bitop", -4, "2.6.0", "Joins strings bit by bit into another key.", bitop).flags(WRITE | DENYOOM).keys(2, -1, 1),
    command("bitfield", -2, "3.2.0", "Reads, sets and adds to integers of any width within a string.", super::bitfield::bitfield)
        .flags(WRITE | DENYOOM),
    command("bitfield_ro", -2, "6.0.0", "Reads integers of any width within a string.", super::bitfield::bitfield_ro)
        .flags(READONLY | FAST),
];

/// The error for a place that cannot be in a string.
pub const BAD_OFFSET: Failure = Failure::text("ERR bit offset is not an integer or out of range");
const BAD_BIT: Failure = Failure::text("ERR bit is not an integer or out of range");

/// Number of bits that can be asked for; those of the last byte are in no string, and 0.
const MOST_BITS: usize = 1 << 32;

/// Parses the place of `width` bits that are only read.
pub fn offset(text: &[u8], width: u64) -> Result<usize, Failure> {
    let at = parse_integer(text).and_then(|at| usize::try_from(at).ok()).ok_or(BAD_OFFSET)?;
    let last = at.checked_add(width as usize - 1).ok_or(BAD_OFFSET)?;
    if last < MOST_BITS { Ok(at) } else { Err(BAD_OFFSET) }
}

/// Refuses `width` bits from `at` on if no string can have them.
pub fn ensure_in_string(at: usize, width: u64) -> Result<(), Failure> {
    if (at + width as usize - 1) / 8 < MAX_STRING { Ok(()) } else { Err(BAD_OFFSET) }
}

/// Returns one bit of a string.
pub fn bit(bytes: &[u8], at: usize) -> bool {
    bytes.get(at / 8).is_some_and(|byte| byte >> (7 - at % 8) & 1 == 1)
}

fn setbit(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    let at = offset(&args[2], 1)?;
    let on = match &args[3] {
        b"0" => false,
        b"1" => true,
        _ => return Err(BAD_BIT),
    };
    ensure_in_string(at, 1)?;
    let old = load(txn, &args[1])?;
    let (mut entry, expires_at_ms) = old.map_or_else(|| (string_entry(b""), 0), |item| (item.entry, item.expires_at_ms));
    reply.integer(i64::from(bit(&entry[1..], at)));
    // The type's byte comes first.
    let place = 1 + at / 8;
    let before = entry.get(place).copied();
    entry.resize(entry.len().max(place + 1), 0);
    let mask = 0x80 >> (at % 8);
    if on {
        entry[place] |= mask;
    } else {
        entry[place] &= !mask;
    }
    // A bit that has the value already changes nothing, not even for clients that watch the key.
    if before != Some(entry[place]) {
        txn.put(&args[1], entry, expires_at_ms);
    }
    Ok(())
}

fn getbit(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    let at = offset(&args[2], 1)?;
    let found = txn.view(&args[1], |found| found.map_or(Ok(false), |(entry, _)| bytes_of(entry).map(|bytes| bit(bytes, at))))??;
    reply.integer(i64::from(found));
    Ok(())
}

/// Whether the unit is BIT rather than BYTE.
fn in_bits(unit: Option<&[u8]>) -> Result<bool, Failure> {
    match unit {
        Some(unit) if is(unit, "bit") => Ok(true),
        Some(unit) if !is(unit, "byte") => Err(Failure::SYNTAX),
        _ => Ok(false),
    }
}

/// The range from `start` to `end`, both included, of `bytes` bytes; negative places count from the end.
fn range(start: i64, end: i64, in_bits: bool, bytes: usize) -> std::ops::Range<usize> {
    let unit = if in_bits { 1 } else { 8 };
    let total = (bytes * 8 / unit) as i64;
    let place = |at: i64| if at < 0 { total.saturating_add(at).max(0) } else { at };
    let (start, end) = (place(start), place(end).min(total - 1));
    if start > end { 0..0 } else { start as usize * unit..(end as usize + 1) * unit }
}

/// Counts the bits that are set in a range.
fn ones(bytes: &[u8], range: std::ops::Range<usize>) -> usize {
    let (first, last) = (range.start.div_ceil(8), range.end / 8);
    if first >= last {
        return range.filter(|at| bit(bytes, *at)).count();
    }
    let whole: usize = bytes[first..last].iter().map(|byte| byte.count_ones() as usize).sum();
    let rest = (range.start..first * 8).chain(last * 8..range.end);
    whole + rest.filter(|at| bit(bytes, *at)).count()
}

/// As in Redis 7.0, the other arguments are not checked if the key is absent.
fn bitcount(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    let count = txn.view(&args[1], |found| {
        let Some((entry, _)) = found else { return Ok(0) };
        let bytes = bytes_of(entry)?;
        let asked = match args.len() {
            2 => 0..bytes.len() * 8,
            4 | 5 => {
                let (start, end) = (integer(&args[2])?, integer(&args[3])?);
                if start < 0 && end < 0 && start > end {
                    return Ok(0);
                }
                range(start, end, in_bits(args.get(4))?, bytes.len())
            }
            _ => return Err(Failure::SYNTAX),
        };
        Ok(ones(bytes, asked))
    })??;
    reply.count(count);
    Ok(())
}

fn bitpos(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    let wanted = match integer(&args[2])? {
        0 => false,
        1 => true,
        _ => return Err(Failure::text("ERR The bit argument must be 1 or 0.")),
    };
    let found = txn.view(&args[1], |found| {
        let Some((entry, _)) = found else { return Ok(if wanted { None } else { Some(0) }) };
        let bytes = bytes_of(entry)?;
        let (asked, open) = match args.len() {
            3 => (0..bytes.len() * 8, true),
            4 => (range(integer(&args[3])?, -1, false, bytes.len()), true),
            5 | 6 => {
                let (start, in_bits) = (integer(&args[3])?, in_bits(args.get(5))?);
                (range(start, integer(&args[4])?, in_bits, bytes.len()), false)
            }
            _ => return Err(Failure::SYNTAX),
        };
        // If no end was given, clear bits follow the string.
        let behind = (!wanted && open && !asked.is_empty()).then_some(asked.end);
        Ok(first(bytes, asked, wanted).or(behind))
    })??;
    reply.integer(found.map_or(-1, |at| at as i64));
    Ok(())
}

/// The first bit in a range that has the wanted value.
fn first(bytes: &[u8], range: std::ops::Range<usize>, wanted: bool) -> Option<usize> {
    let mut at = range.start;
    let none = if wanted { 0 } else { 0xff };
    while at < range.end {
        if at.is_multiple_of(8) && bytes[at / 8] == none {
            at += 8;
        } else if bit(bytes, at) == wanted {
            return Some(at);
        } else {
            at += 1;
        }
    }
    None
}

/// The entry of the string at a key, or of an empty one.
fn entry_of(txn: &mut Txn, key: &[u8]) -> Result<Vec<u8>, Failure> {
    Ok(load(txn, key)?.map_or_else(|| string_entry(b""), |item| item.entry))
}

fn bitop(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    let join: fn(u8, u8) -> u8 = match args[1].to_ascii_lowercase().as_slice() {
        b"and" => |a, b| a & b,
        b"or" => |a, b| a | b,
        b"xor" => |a, b| a ^ b,
        b"not" if args.len() == 4 => |a, _| a,
        b"not" => return Err(Failure::text("ERR BITOP NOT must be called with a single source key.")),
        _ => return Err(Failure::SYNTAX),
    };
    // One source at a time: they may be long, and many.
    let mut joined = entry_of(txn, &args[3])?;
    for key in args.iter().skip(4) {
        let source = entry_of(txn, key)?;
        joined.resize(joined.len().max(source.len()), 0);
        let bytes = source[1..].iter().copied().chain(std::iter::repeat(0));
        joined[1..].iter_mut().zip(bytes).for_each(|(joined, byte)| *joined = join(*joined, byte));
    }
    if is(&args[1], "not") {
        joined[1..].iter_mut().for_each(|byte| *byte = !*byte);
    }
    txn.forget_collection(&args[2])?;
    reply.count(joined.len() - 1);
    if joined.len() == 1 {
        txn.delete(&args[2])?;
        return Ok(());
    }
    txn.put(&args[2], joined, 0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counting_and_searching_agree_with_bit_by_bit() {
        let bytes = [0b1010_0101, 0xff, 0, 0b0001_1000, 0xff];
        for start in 0..=40 {
            for end in start..=40 {
                let slow = (start..end).filter(|at| bit(&bytes, *at)).count();
                assert_eq!(ones(&bytes, start..end), slow, "{start}..{end}");
                for wanted in [false, true] {
                    let slow = (start..end).find(|at| bit(&bytes, *at) == wanted);
                    assert_eq!(first(&bytes, start..end, wanted), slow, "{start}..{end} {wanted}");
                }
            }
        }
    }

    #[test]
    fn ranges_count_from_both_ends() {
        assert_eq!(range(0, -1, false, 3), 0..24);
        assert_eq!(range(-2, -1, false, 3), 8..24);
        assert_eq!(range(-2, -1, true, 3), 22..24);
        assert_eq!(range(5, 30, true, 3), 5..24);
        assert_eq!(range(2, 1, false, 3), 0..0);
        assert_eq!(range(0, -1, false, 0), 0..0);
        assert_eq!(range(i64::MIN, i64::MAX, true, 1), 0..8);
    }
}
