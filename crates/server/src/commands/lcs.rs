//! LCS: the longest common subsequence of two strings, found as Redis does, with a table of the lengths for all pairs
//! of prefixes.

use super::arguments::{Options, integer, is};
use super::failure::Failure;
use super::strings::bytes_of;
use super::table::flag::READONLY;
use super::table::{Command, Group};
use super::{Context, Outcome};

/// The family's part of the table.
pub static COMMANDS: &[Command] =
    &[Command::new("lcs", -3, Group::String, "7.0.0", "Finds the longest common subsequence of two strings.", lcs)
        .flags(READONLY)
        .keys(1, 2, 1)];

/// Maximum size of the table in bytes: the value of Redis' `proto-max-bulk-len`.
const MAX_TABLE_BYTES: usize = 512 << 20;

#[derive(Default)]
struct Asked {
    length: bool,
    places: bool,
    with_lengths: bool,
    shortest: i64,
}

impl Asked {
    fn parse(context: &Context<'_>) -> Result<Asked, Failure> {
        let mut asked = Asked::default();
        let mut rest = Options::new(context.args, 3);
        while let Some(word) = rest.next() {
            match word.to_ascii_lowercase().as_slice() {
                b"idx" => asked.places = true,
                b"len" => asked.length = true,
                b"withmatchlen" => asked.with_lengths = true,
                _ if is(word, "minmatchlen") && rest.left() > 0 => asked.shortest = integer(rest.value()?)?,
                _ => return Err(Failure::SYNTAX),
            }
        }
        if asked.places && asked.length {
            return Err(Failure::text("ERR If you want both the length and indexes, please just use IDX."));
        }
        Ok(asked)
    }
}

/// Applies `f` to the string at the key in an argument; to an empty one if there is none.
fn string<R>(context: &mut Context<'_>, place: usize, f: impl Fn(&[u8]) -> R) -> Result<R, Failure> {
    let found = context.txn.examine(&context.args[place], |found| found.map_or(Ok(f(b"")), |(entry, _)| bytes_of(entry).map(&f)))?;
    found.map_err(|_| Failure::text("ERR The specified keys must contain string values"))
}

fn lcs(context: &mut Context<'_>) -> Outcome {
    let (width, height) = (string(context, 1, <[u8]>::len)?, string(context, 2, <[u8]>::len)?);
    let asked = Asked::parse(context)?;
    Table::cells(width, height)?;
    // Now that the strings are known to be small enough to be held, they are looked up once more, which must not count.
    context.txn.looked_up = [0; 2];
    let (a, b) = (string(context, 1, <[u8]>::to_vec)?, string(context, 2, <[u8]>::to_vec)?);
    let table = Table::new(&a, &b)?;
    let reply = &mut context.reply;
    if asked.length {
        reply.count(table.common(a.len(), b.len()));
        return Ok(());
    }
    let matches = table.matches(&a, &b);
    if !asked.places {
        let common: Vec<u8> = matches.iter().rev().flat_map(|found| &a[found.a..found.a + found.length]).copied().collect();
        reply.bulk(&common);
        return Ok(());
    }
    let shown: Vec<&Match> = matches.iter().filter(|found| found.length as i64 >= asked.shortest).collect();
    reply.map(2);
    reply.bulk(b"matches");
    reply.array(shown.len());
    for found in shown {
        reply.array(if asked.with_lengths { 3 } else { 2 });
        for start in [found.a, found.b] {
            reply.array(2);
            reply.count(start);
            reply.count(start + found.length - 1);
        }
        if asked.with_lengths {
            reply.count(found.length);
        }
    }
    reply.bulk(b"len");
    reply.count(table.common(a.len(), b.len()));
    Ok(())
}

/// A stretch that is the same in both strings: where it begins in each, and its length in bytes.
#[derive(Debug, PartialEq, Eq)]
struct Match {
    a: usize,
    b: usize,
    length: usize,
}

/// For the first i bytes of one string and the first j of the other, the length of their longest common subsequence.
struct Table {
    lengths: Vec<u32>,
    width: usize,
}

impl Table {
    /// Number of lengths in the table of two strings.
    fn cells(a: usize, b: usize) -> Result<usize, Failure> {
        let cells = (a + 1).checked_mul(b + 1).filter(|cells| *cells <= MAX_TABLE_BYTES / size_of::<u32>());
        cells.ok_or(Failure::text("ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len"))
    }

    fn new(a: &[u8], b: &[u8]) -> Result<Table, Failure> {
        let width = b.len() + 1;
        let mut table = Table { lengths: vec![0; Table::cells(a.len(), b.len())?], width };
        for (i, byte) in a.iter().enumerate() {
            let (above, row) = table.lengths[i * width..(i + 2) * width].split_at_mut(width);
            for (j, other) in b.iter().enumerate() {
                row[j + 1] = if byte == other { above[j] + 1 } else { above[j + 1].max(row[j]) };
            }
        }
        Ok(table)
    }

    fn common(&self, i: usize, j: usize) -> usize {
        self.lengths[i * self.width + j] as usize
    }

    /// The stretches, from the end to the beginning; of several equally good ways, the one that Redis takes.
    fn matches(&self, a: &[u8], b: &[u8]) -> Vec<Match> {
        let mut all: Vec<Match> = Vec::new();
        let (mut i, mut j) = (a.len(), b.len());
        while i > 0 && j > 0 {
            if a[i - 1] != b[j - 1] {
                if self.common(i - 1, j) > self.common(i, j - 1) {
                    i -= 1
                } else {
                    j -= 1
                }
                continue;
            }
            match all.last_mut().filter(|last| (last.a, last.b) == (i, j)) {
                Some(last) => *last = Match { a: i - 1, b: j - 1, length: last.length + 1 },
                None => all.push(Match { a: i - 1, b: j - 1, length: 1 }),
            }
            (i, j) = (i - 1, j - 1);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_are_found_from_the_end() {
        let (a, b) = (b"ohmytext", b"mynewtext");
        let Ok(table) = Table::new(a, b) else { panic!("it is small") };
        assert_eq!(table.common(8, 9), 6);
        assert_eq!(table.matches(a, b), [Match { a: 4, b: 5, length: 4 }, Match { a: 2, b: 0, length: 2 }]);
        assert!(Table::new(&[0; 20_000], &[0; 20_000]).is_err());
    }
}
