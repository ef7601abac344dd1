//! The kv format: key, tab, value, one record per line, with the escape of [`crate::escape`]. A record that expires
//! begins with `\E`, the time in milliseconds since 1970, and a tab, before the key.
//!
//! The first tab ends the key; further tabs belong to the value. A carriage return before the newline is dropped (a
//! dump writes one that belongs to the data as `\r`), and so is a byte order mark at the beginning. With `raw`, all of
//! them and backslashes are taken literally.

use std::io::BufRead;

use super::{BYTE_ORDER_MARK, Lines, Next, Record, Source, SourceError, bad, checked};
use crate::escape::unescape;
use crate::output::EXPIRY;

/// Records of the kv format.
pub struct KvSource<R> {
    lines: Lines<R>,
    raw: bool,
}

impl<R: BufRead> KvSource<R> {
    /// Reads `input`; `raw`: without the escape.
    pub fn new(input: R, raw: bool) -> Self {
        Self { lines: Lines::new(input), raw }
    }

    fn parse(&self) -> Result<Record, SourceError> {
        let number = self.lines.number;
        let mut line = self.lines.line.as_slice();
        if !self.raw {
            // Only before a newline: a last line without one may have been cut off in the middle of a value.
            line = line.strip_suffix(b"\r").filter(|_| !self.lines.unended).unwrap_or(line);
            line = if number == 1 { line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line) } else { line };
        }
        let (expires_at_ms, line) = if self.raw { (0, line) } else { expiry(line).map_err(|what| bad(number, what))? };
        let Some(tab) = line.iter().position(|byte| *byte == b'\t') else {
            return Err(bad(number, "no tab between key and value"));
        };
        let (key, value) = (&line[..tab], &line[tab + 1..]);
        let record = checked(number, self.field(key, "key")?, self.field(value, "value")?)?;
        Ok(Record { expires_at_ms, ..record })
    }

    fn field(&self, text: &[u8], name: &str) -> Result<Vec<u8>, SourceError> {
        if self.raw {
            return Ok(text.to_vec());
        }
        unescape(text).map_err(|why| {
            bad(self.lines.number, format!("{why} at byte {} of the {name}; --raw takes backslashes as they are", why.at + 1))
        })
    }
}

/// Returns the time at which a record expires (0: never), and the rest of its line.
fn expiry(line: &[u8]) -> Result<(u64, &[u8]), &'static str> {
    const WRONG: &str = "\\E is not followed by a time in milliseconds and a tab";
    let Some(rest) = line.strip_prefix(EXPIRY) else { return Ok((0, line)) };
    let tab = rest.iter().position(|byte| *byte == b'\t').ok_or(WRONG)?;
    let digits = std::str::from_utf8(&rest[..tab]).ok().filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit())).ok_or(WRONG)?;
    let at = digits.parse().ok().filter(|at| *at > 0).ok_or(WRONG)?;
    Ok((at, &rest[tab + 1..]))
}

impl<R: BufRead> Source for KvSource<R> {
    fn next_record(&mut self) -> Next {
        match self.lines.advance() {
            Ok(true) => Some(self.parse()),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }

    fn ends_within_line(&self) -> bool {
        self.lines.unended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::testing::drain;
    use crate::output::kv_line;
    use proptest::prelude::*;

    #[test]
    fn records_and_bad_lines() {
        let text = b"a\t1\nno tab\n\t2\nb\tx\ty\\\\\\n\r\nc\t\\q\n\nd\t";
        let (records, bad) = drain(KvSource::new(&text[..], false));
        assert_eq!(records, [("a".into(), "1".into()), ("b".into(), "x\ty\\\n".into()), ("d".into(), String::new())]);
        assert_eq!(bad.iter().map(|line| line.0).collect::<Vec<_>>(), [2, 3, 5, 6]);
        assert!(bad[0].1.contains("no tab") && bad[1].1.contains("empty") && bad[2].1.contains("--raw"), "{bad:?}");
    }

    /// Regression: a carriage return was dropped at the end of the input, too, where no newline follows it.
    #[test]
    fn a_carriage_return_without_a_newline_is_the_values() {
        let (records, _) = drain(KvSource::new(&b"a\t1\r\nb\t2\r"[..], false));
        assert_eq!(records, [("a".into(), "1".into()), ("b".into(), "2\r".into())]);
    }

    #[test]
    fn times_of_expiry_stand_before_the_key() {
        let mut source = KvSource::new("\u{feff}\\E1700000000000\tk\tv\nplain\t\\\\E1\n".as_bytes(), false);
        let record = |key: &str, value: &str, expires_at_ms| Record { key: key.into(), value: value.into(), expires_at_ms };
        assert_eq!(source.next_record().unwrap().unwrap(), record("k", "v", 1_700_000_000_000));
        assert_eq!(source.next_record().unwrap().unwrap(), record("plain", "\\E1", 0));
        let text = b"\\E\tk\tv\n\\E0\tk\tv\n\\E+5\tk\tv\n\\E99999999999999999999\tk\tv\n\\E5\n\\E5\tk\n\\E5\t\tv\n";
        let (records, bad) = drain(KvSource::new(&text[..], false));
        assert!(records.is_empty() && bad.len() == 7 && bad[0].1.contains("milliseconds") && bad[5].1.contains("no tab"), "{bad:?}");
        assert_eq!(drain(KvSource::new(&b"\\E5\tk\tv\n"[..], true)).0, [("\\E5".into(), "k\tv".into())], "as it is");
    }

    #[test]
    fn raw_takes_everything_as_it_is() {
        let (records, bad) = drain(KvSource::new(&b"a\\x2d\t1\\q\r\n"[..], true));
        assert_eq!(records, [("a\\x2d".into(), "1\\q\r".into())]);
        assert!(bad.is_empty());
    }

    #[test]
    fn a_key_beyond_the_limit_is_a_bad_line() {
        let text = [vec![b'k'; super::super::MAX_KEY + 1], b"\tv\n".to_vec()].concat();
        let (records, bad) = drain(KvSource::new(text.as_slice(), false));
        assert!(records.is_empty() && bad[0].1.contains("65537"), "{bad:?}");
    }

    #[test]
    fn a_byte_order_mark_is_dropped_unless_it_is_a_keys() {
        let text = "\u{feff}a\t1\n\u{feff}b\t2\n".as_bytes();
        let (records, _) = drain(KvSource::new(text, false));
        assert_eq!(records, [("a".into(), "1".into()), ("\u{feff}b".into(), "2".into())], "only at the beginning");
        assert_eq!(drain(KvSource::new(text, true)).0[0].0, "\u{feff}a");
        let mut line = Vec::new();
        kv_line("\u{feff}\u{feff}a".as_bytes(), b"1", 0, &mut line);
        assert_eq!(drain(KvSource::new(line.as_slice(), false)).0[0].0, "\u{feff}\u{feff}a", "what is dumped is loaded");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(records in proptest::collection::vec(
            (proptest::collection::vec(any::<u8>(), 1..20), proptest::collection::vec(any::<u8>(), 0..40), prop_oneof![Just(0), any::<u64>()]), 0..20)
        ) {
            let mut text = Vec::new();
            for (key, value, expires_at_ms) in &records {
                kv_line(key, value, *expires_at_ms, &mut text);
            }
            let mut source = KvSource::new(text.as_slice(), false);
            for (key, value, expires_at_ms) in records {
                prop_assert_eq!(source.next_record().unwrap().unwrap(), Record { key, value, expires_at_ms });
            }
            prop_assert!(source.next_record().is_none());
        }
    }
}
