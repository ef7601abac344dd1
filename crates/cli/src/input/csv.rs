//! Comma-separated values with a header line (RFC 4180 quoting).
//!
//! The key is the column named by `--key`, by default the first. The value is a JSON object of the other columns, in the order of the
//! header, each a string exactly as in the input: `{"size":"12","owner":"root"}`.

use std::collections::HashSet;
use std::io::Read;

use csv::{Position, Reader, ReaderBuilder, StringRecord};

use super::{Bad, Next, Record, Source, SourceError, bad, checked};

/// Records of a table.
pub struct CsvSource<R> {
    reader: Reader<R>,
    key_name: Option<String>,
    header: Option<Header>,
    row: StringRecord,
    ended: bool,
}

/// The columns: where the key is, and the others with their names as JSON strings.
struct Header {
    key: usize,
    others: Vec<(usize, String)>,
}

impl<R: Read> CsvSource<R> {
    /// Reads `input`; the key is the column `key`, or the first.
    pub fn new(input: R, key: Option<String>) -> Self {
        let reader = ReaderBuilder::new().buffer_capacity(64 << 10).from_reader(input);
        Self { reader, key_name: key, header: None, row: StringRecord::new(), ended: false }
    }

    fn read_header(&mut self) -> Result<Header, SourceError> {
        let names = self.reader.headers().map_err(failed)?;
        if names.is_empty() {
            return Err(unusable("the input has no header line"));
        }
        let mut seen = HashSet::new();
        if let Some(twice) = names.iter().find(|name| !seen.insert(*name)) {
            return Err(unusable(format!("the header names column \"{twice}\" twice")));
        }
        let key = match &self.key_name {
            None => 0,
            Some(wanted) => names.iter().position(|name| name == wanted).ok_or_else(|| {
                let names: Vec<&str> = names.iter().collect();
                unusable(format!("the header has no column \"{wanted}\"; it has {}", names.join(", ")))
            })?,
        };
        let others = names.iter().enumerate().filter(|(at, _)| *at != key).map(|(at, name)| (at, json_string(name))).collect();
        Ok(Header { key, others })
    }

    fn record(&self, header: &Header) -> Result<Record, SourceError> {
        let mut value = String::from("{");
        for (count, (at, name)) in header.others.iter().enumerate() {
            if count > 0 {
                value.push(',');
            }
            value.push_str(name);
            value.push(':');
            value.push_str(&json_string(&self.row[*at]));
        }
        value.push('}');
        let line = self.row.position().map_or(0, Position::line);
        checked(line, self.row[header.key].as_bytes().to_vec(), value.into_bytes())
    }

    fn read(&mut self) -> Next {
        let header = match self.header.take().map_or_else(|| self.read_header(), Ok) {
            Ok(header) => header,
            Err(error) => {
                self.ended = true;
                return Some(Err(error));
            }
        };
        let next = match self.reader.read_record(&mut self.row) {
            Ok(true) => Some(self.record(&header)),
            Ok(false) => None,
            Err(error) => Some(Err(failed(error))),
        };
        self.header = Some(header);
        next
    }
}

impl<R: Read> Source for CsvSource<R> {
    fn next_record(&mut self) -> Next {
        if self.ended { None } else { self.read() }
    }
}

fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn unusable(what: impl Into<String>) -> SourceError {
    SourceError::Unusable(Bad { line: 1, what: what.into() })
}

fn failed(error: csv::Error) -> SourceError {
    let line = error.position().map_or(0, Position::line);
    match error.into_kind() {
        csv::ErrorKind::Io(error) => SourceError::Io(error),
        csv::ErrorKind::Utf8 { err, .. } => bad(line, format!("field {} is not UTF-8", err.field() + 1)),
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => bad(line, format!("{len} fields where the header has {expected_len}")),
        other => bad(line, format!("{other:?}")),
    }
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
        assert_eq!(bad, [(3, "1 fields where the header has 2".into()), (4, "the key is empty".into())]);
    }

    #[test]
    fn an_unusable_header_ends_the_input() {
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
