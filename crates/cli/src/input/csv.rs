//! Comma-separated values with a header line (RFC 4180 quoting).
//!
//! The key is the column named by `--key`, by default the first. The value is a JSON object of the other columns, in the order of the
//! header, each a string exactly as in the input: `{"size":"12","owner":"root"}`.

use std::collections::HashSet;
use std::io::BufRead;

use super::rows::Rows;
use super::{Bad, Next, Record, Source, SourceError, bad, checked};

/// Records of a table.
pub struct CsvSource<R> {
    rows: Rows<R>,
    key_name: Option<String>,
    header: Option<Header>,
    ended: bool,
}

/// The columns: the index of the key, and the others with their names as JSON strings.
struct Header {
    key: usize,
    others: Vec<(usize, String)>,
}

impl<R: BufRead> CsvSource<R> {
    /// Reads `input`; the key is the column `key`, or the first.
    pub fn new(input: R, key: Option<String>) -> Self {
        Self { rows: Rows::new(input), key_name: key, header: None, ended: false }
    }

    fn read_header(&mut self) -> Result<Header, SourceError> {
        if !self.rows.advance()? {
            return Err(unusable(1, "the input has no header line; begin it with the names of the columns"));
        }
        let line = self.rows.line();
        let names: Vec<&str> =
            (0..self.rows.len()).map(|at| self.text(at)).collect::<Result<_, _>>().map_err(|what| unusable(line, what))?;
        let mut seen = HashSet::new();
        if let Some(twice) = names.iter().find(|name| !seen.insert(**name)) {
            return Err(unusable(line, format!("the header names column \"{twice}\" twice; rename one")));
        }
        let key = match &self.key_name {
            None => 0,
            Some(wanted) => names
                .iter()
                .position(|name| name == wanted)
                .ok_or_else(|| unusable(line, format!("the header has no column \"{wanted}\"; it has {}", names.join(", "))))?,
        };
        let others = names.iter().enumerate().filter(|(at, _)| *at != key).map(|(at, name)| (at, json_string(name))).collect();
        Ok(Header { key, others })
    }

    /// Returns a field, which must be UTF-8.
    fn text(&self, at: usize) -> Result<&str, String> {
        std::str::from_utf8(self.rows.field(at)).map_err(|_| format!("field {} is not UTF-8", at + 1))
    }

    fn record(&self, header: &Header) -> Result<Record, SourceError> {
        let (line, expected) = (self.rows.line(), header.others.len() + 1);
        if self.rows.len() != expected {
            return Err(bad(line, format!("{} fields where the header has {expected}", self.rows.len())));
        }
        let text = |at| self.text(at).map_err(|what| bad(line, what));
        let mut value = String::from("{");
        for (count, (at, name)) in header.others.iter().enumerate() {
            if count > 0 {
                value.push(',');
            }
            value.push_str(name);
            value.push(':');
            value.push_str(&json_string(text(*at)?));
        }
        value.push('}');
        checked(line, text(header.key)?.as_bytes().to_vec(), value.into_bytes())
    }

    fn read(&mut self) -> Result<Option<Record>, SourceError> {
        self.begin()?;
        if !self.rows.advance()? {
            return Ok(None);
        }
        self.header.as_ref().map(|header| self.record(header)).transpose()
    }
}

impl<R: BufRead> Source for CsvSource<R> {
    fn begin(&mut self) -> Result<(), SourceError> {
        if self.header.is_none() {
            self.header = Some(self.read_header()?);
        }
        Ok(())
    }

    fn next_record(&mut self) -> Next {
        if self.ended {
            return None;
        }
        let next = self.read();
        // After any error except a bad line there is nothing more to read.
        self.ended = !matches!(next, Ok(Some(_)) | Err(SourceError::Bad(_)));
        next.transpose()
    }

    fn ends_within_line(&self) -> bool {
        self.rows.ends_within_row()
    }
}

fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn unusable(line: u64, what: impl Into<String>) -> SourceError {
    SourceError::Unusable(Bad { line, what: what.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::testing::{Drained, drain};

    fn csv(text: &str, key: Option<&str>) -> Drained {
        drain(CsvSource::new(text.as_bytes(), key.map(Into::into)))
    }

    #[test]
    fn the_first_column_is_the_key_and_the_others_a_json_object() {
        let (records, bad) = csv("name,size,\"o\"\"x\"\r\na,1,\"x, \"\"y\"\"\nz\"\nb,2,\u{fc}\n", None);
        assert_eq!(records[0], ("a".into(), r#"{"size":"1","o\"x":"x, \"y\"\nz"}"#.into()));
        assert_eq!(records[1], ("b".into(), "{\"size\":\"2\",\"o\\\"x\":\"\u{fc}\"}".into()));
        assert!(bad.is_empty());
    }

    #[test]
    fn another_column_can_be_the_key() {
        assert_eq!(csv("a,b,c\n1,2,3\n", Some("b")).0, [("2".into(), r#"{"a":"1","c":"3"}"#.into())]);
        assert_eq!(csv("only\nx\n", None).0, [("x".into(), "{}".into())]);
    }

    #[test]
    fn bad_lines_are_passed_over_and_numbered() {
        let (records, bad) = csv("a,b\n1,2\n3\n,4\n5,6\n", None);
        assert_eq!(records.len(), 2);
        assert_eq!(bad, [(3, "1 fields where the header has 2".into()), (4, "an empty key was given; keys have 1 to 65536 bytes".into())]);
    }

    #[test]
    fn an_open_quote_is_no_bad_line_and_ends_the_input() {
        let mut source = CsvSource::new(&b"a,b\r\n1,2\r\n3,\"4\r\n5,6\r\n"[..], None);
        assert!(source.next_record().unwrap().is_ok());
        assert!(matches!(source.next_record(), Some(Err(SourceError::Unusable(bad))) if bad.line == 3));
        assert!(source.next_record().is_none());
    }

    #[test]
    fn an_unusable_header_ends_the_input() {
        assert!(
            matches!(CsvSource::new(&b"\n\xff,b\n1,2\n"[..], None).next_record(), Some(Err(SourceError::Unusable(bad))) if bad.line == 2)
        );
        for (text, key, what) in [("", None, "no header"), ("a,a\n1,2\n", None, "twice"), ("a,b\n1,2\n", Some("c"), "it has a, b")] {
            let (records, bad) = csv(text, key);
            assert!(records.is_empty() && bad.len() == 1 && bad[0].1.contains(what), "{bad:?}");
        }
    }

    #[test]
    fn text_that_is_not_utf8_is_a_bad_line() {
        let (records, bad) = drain(CsvSource::new(&b"a,b\n1,\xff\n2,3\n"[..], None));
        assert_eq!((records.len(), bad.as_slice()), (1, &[(2, "field 2 is not UTF-8".to_string())][..]));
    }
}
