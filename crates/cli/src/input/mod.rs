//! Records from text: the formats of `load`.
//!
//! A source returns records in the order of the input. A line that is not a record is returned as [`Bad`] with its
//! number; the source can continue with the next line. The store's limits on keys and values are checked here, so that
//! an error names the line.

mod csv;
mod jsonl;
mod kv;
mod rows;

pub use self::csv::CsvSource;
pub use self::jsonl::JsonlSource;
pub use self::kv::KvSource;

use std::io::{self, BufRead, Read as _};

use hither::Keyspace;

use crate::output::EXPIRY;

/// Longest key of a store, in bytes. It limits only how much is read; [`Keyspace::check_pair`] decides whether a pair
/// is too long.
const MAX_KEY: usize = 65_536;
/// Longest value of a store, in bytes; used in the same way.
pub const MAX_VALUE: usize = 512 << 20;
/// Longest line of the input, in bytes: a key and a value of which every byte is escaped, and what is around them.
const MAX_LINE: u64 = (BYTE_ORDER_MARK.len() + MAX_EXPIRY + 4 * (MAX_VALUE + MAX_KEY)) as u64 + b"\t\r\n".len() as u64;
/// Longest time of expiry before a key, in bytes.
const MAX_EXPIRY: usize = EXPIRY.len() + u64::MAX.ilog10() as usize + 1 + b"\t".len();

/// The byte order mark, which some programs write in front of UTF-8.
pub const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A key and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// When the record expires, in milliseconds since 1970; 0: never.
    pub expires_at_ms: u64,
}

/// A line that is not a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bad {
    /// Number of the line, counted from one.
    pub line: u64,
    /// What is wrong with it.
    pub what: String,
}

/// Why a source returned no record.
#[derive(Debug)]
pub enum SourceError {
    /// This line is not a record; the next one may be.
    Bad(Bad),
    /// The input as a whole is not in the format (such as a missing column).
    Unusable(Bad),
    /// The input cannot be read.
    Io(io::Error),
}

/// The next item of a source: `None` at the end.
pub type Next = Option<Result<Record, SourceError>>;

/// Records in the order of an input.
pub trait Source {
    /// Reads what precedes the records, such as a header, unless it has been read. So an input that cannot be loaded is
    /// refused before anything is done for it.
    fn begin(&mut self) -> Result<(), SourceError> {
        Ok(())
    }

    /// The next record.
    fn next_record(&mut self) -> Next;

    /// Whether the input ended in the middle of a line that is a valid record: it may have been cut off.
    fn ends_within_line(&self) -> bool {
        false
    }
}

/// Checks a record, which never expires, against the store's limits.
fn checked(line: u64, key: Vec<u8>, value: Vec<u8>) -> Result<Record, SourceError> {
    Keyspace::check_pair(&key, &value).map_err(|error| bad(line, error.to_string()))?;
    Ok(Record { key, value, expires_at_ms: 0 })
}

fn bad(line: u64, what: impl Into<String>) -> SourceError {
    SourceError::Bad(Bad { line, what: what.into() })
}

/// The numbered lines of an input, without their newlines.
struct Lines<R> {
    input: R,
    number: u64,
    line: Vec<u8>,
    /// The last line has no newline.
    unended: bool,
}

impl<R: BufRead> Lines<R> {
    fn new(input: R) -> Self {
        Self { input, number: 0, line: Vec::new(), unended: false }
    }

    /// Reads the next line into `self.line`. Returns false at the end.
    fn advance(&mut self) -> Result<bool, SourceError> {
        self.line.clear();
        let length = (&mut self.input).take(MAX_LINE + 1).read_until(b'\n', &mut self.line).map_err(SourceError::Io)?;
        if length == 0 {
            return Ok(false);
        }
        self.number += 1;
        if self.line.last() == Some(&b'\n') {
            self.line.pop();
        } else if length as u64 > MAX_LINE {
            let what = "the line is longer than any record; is this the right file and format?".into();
            return Err(SourceError::Unusable(Bad { line: self.number, what }));
        } else {
            self.unended = true;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::kv_line;

    #[test]
    fn as_much_is_read_as_a_store_can_hold() {
        let takes = |key: usize, value: usize| Keyspace::check_pair(&vec![0; key], &vec![0; value]).is_ok();
        assert!(takes(MAX_KEY, 0) && takes(1, MAX_VALUE));
        assert!(!takes(MAX_KEY + 1, 0) && !takes(1, MAX_VALUE + 1));
    }

    /// Regression: there was no room for a time of expiry.
    #[test]
    fn the_longest_record_is_no_longer_than_a_line_may_be() {
        let mut line = BYTE_ORDER_MARK.to_vec();
        kv_line(&[0], &[0], u64::MAX, &mut line);
        // An editor may have written the mark, and another end of the line.
        let one_byte_each = (line.len() + b"\r".len()) as u64;
        let escaped = b"\\x00".len() as u64;
        assert!(one_byte_each + escaped * (MAX_KEY - 1 + MAX_VALUE - 1) as u64 <= MAX_LINE);
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Keys and values, and the numbers of bad lines with their errors.
    pub type Drained = (Vec<(String, String)>, Vec<(u64, String)>);

    /// Reads everything from a source.
    pub fn drain(mut source: impl Source) -> Drained {
        let (mut records, mut bad) = (Vec::new(), Vec::new());
        while let Some(next) = source.next_record() {
            match next {
                Ok(Record { key, value, .. }) => records.push((String::from_utf8(key).unwrap(), String::from_utf8(value).unwrap())),
                Err(SourceError::Bad(line) | SourceError::Unusable(line)) => bad.push((line.line, line.what)),
                Err(SourceError::Io(error)) => panic!("{error}"),
            }
        }
        (records, bad)
    }
}
