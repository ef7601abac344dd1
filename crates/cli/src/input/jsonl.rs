//! One JSON object per line. The key is the field named by `--key`: the text of a string, or a number exactly as it is
//! written. The value is the whole line, without surrounding white space. Empty lines are skipped; a byte order mark at
//! the beginning is dropped.

use std::fmt;
use std::io::BufRead;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{BYTE_ORDER_MARK, Lines, Next, Record, Source, SourceError, bad, checked};

/// Records of JSON lines.
pub struct JsonlSource<R> {
    lines: Lines<R>,
    key: String,
}

impl<R: BufRead> JsonlSource<R> {
    /// Reads `input`; the key is the field `key`.
    pub fn new(input: R, key: String) -> Self {
        Self { lines: Lines::new(input), key }
    }

    /// The current line, without what surrounds its object.
    fn line(&self) -> &[u8] {
        let line = self.lines.line.as_slice();
        if self.lines.number == 1 { line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line) } else { line }.trim_ascii()
    }

    fn parse(&self) -> Result<Record, SourceError> {
        let (number, line) = (self.lines.number, self.line());
        // The parser does not check the fields that it skips.
        let text = std::str::from_utf8(line).map_err(|_| bad(number, "not UTF-8"))?;
        let mut json = serde_json::Deserializer::from_str(text);
        let found = Field(&self.key).deserialize(&mut json).and_then(|found| json.end().map(|()| found));
        let found = found.map_err(|why| bad(number, format!("not a JSON object: {why}")))?;
        let key = found.ok_or_else(|| bad(number, format!("no field \"{}\"", self.key)))?;
        let key = key_bytes(key.get()).map_err(|why| bad(number, format!("field \"{}\" is {why}", self.key)))?;
        checked(number, key, line.to_vec())
    }
}

/// Finds the field of this name in an object. Programs do not agree which of two fields with one name counts, so two
/// are an error.
struct Field<'k>(&'k str);

impl<'de> DeserializeSeed<'de> for Field<'_> {
    type Value = Option<&'de RawValue>;
    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Field<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(name) = fields.next_key::<String>()? {
            if name != self.0 {
                fields.next_value::<IgnoredAny>()?;
            } else if found.replace(fields.next_value::<&RawValue>()?).is_some() {
                return Err(A::Error::custom(format_args!("it has the field \"{}\" twice", self.0)));
            }
        }
        Ok(found)
    }
}

/// Returns the bytes of a key: the text of a string, the digits of a number.
fn key_bytes(json: &str) -> Result<Vec<u8>, String> {
    match json.as_bytes().first() {
        Some(b'"') => serde_json::from_str::<String>(json).map(String::into_bytes).map_err(|why| format!("not Unicode text: {why}")),
        Some(b'-' | b'0'..=b'9') => Ok(json.as_bytes().to_vec()),
        _ => Err("neither a string nor a number".into()),
    }
}

impl<R: BufRead> Source for JsonlSource<R> {
    fn next_record(&mut self) -> Next {
        loop {
            match self.lines.advance() {
                Ok(true) if self.line().is_empty() => {}
                Ok(true) => return Some(self.parse()),
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::testing::drain;

    #[test]
    fn the_key_is_a_field_and_the_value_the_line() {
        let text = "{\"id\": \"a\\n\", \"x\": [1, {\"id\": 2}]}\r\n\n  {\"id\":12345678901234567890123}\n{\"id\":-1.50}";
        let (records, bad) = drain(JsonlSource::new(text.as_bytes(), "id".into()));
        assert!(bad.is_empty(), "{bad:?}");
        assert_eq!(records[0], ("a\n".into(), "{\"id\": \"a\\n\", \"x\": [1, {\"id\": 2}]}".into()));
        assert_eq!(records[1], ("12345678901234567890123".into(), "{\"id\":12345678901234567890123}".into()));
        assert_eq!(records[2].0, "-1.50");
    }

    #[test]
    fn bad_lines_say_what_is_wrong() {
        let mut text = b"{\"id\":1\n[1]\n{\"x\":1}\n{\"id\":null}\n{\"id\":\"\"}\n{\"id\":true}\n{\"id\":1} x\n{\"id\":\"\\ud800\"}\n{\"id\":1,\"\\u0069d\":2}\n".to_vec();
        text.extend_from_slice(b"{\"id\":1,\"x\":\"\xff\"}\n");
        let (records, bad) = drain(JsonlSource::new(text.as_slice(), "id".into()));
        assert!(records.is_empty(), "{records:?}");
        let expected = [
            "not a JSON object",
            "not a JSON object",
            "no field",
            "neither",
            "empty",
            "neither",
            "not a JSON object",
            "is not Unicode text",
            // Regression: the last one was taken as the key.
            "the field \"id\" twice",
            // Regression: the line was stored.
            "not UTF-8",
        ];
        assert_eq!(bad.len(), expected.len());
        for ((line, what), (number, part)) in bad.iter().zip((1..).zip(expected)) {
            assert!(*line == number && what.contains(part), "{line}: {what}");
        }
    }

    #[test]
    fn a_byte_order_mark_is_dropped() {
        let (records, bad) = drain(JsonlSource::new("\u{feff}{\"id\":1}\n\u{feff}{\"id\":2}\n".as_bytes(), "id".into()));
        assert_eq!((records, bad.len()), (vec![("1".into(), "{\"id\":1}".into())], 1), "only at the beginning");
    }

    /// Regression: it was a line that is no JSON object.
    #[test]
    fn a_line_that_has_a_byte_order_mark_only_is_empty() {
        for text in ["\u{feff}\n{\"id\":1}\n", "\u{feff} \r\n\n{\"id\":1}\n"] {
            let (records, bad) = drain(JsonlSource::new(text.as_bytes(), "id".into()));
            assert_eq!((records, bad), (vec![("1".into(), "{\"id\":1}".into())], vec![]));
        }
        let (_, bad) = drain(JsonlSource::new("\n\u{feff}\n".as_bytes(), "id".into()));
        assert_eq!(bad.len(), 1, "only at the beginning");
        assert_eq!(drain(JsonlSource::new("\u{feff}".as_bytes(), "id".into())), (vec![], vec![]));
    }

    #[test]
    fn bytes_that_are_not_utf8_are_a_bad_line() {
        let (records, bad) = drain(JsonlSource::new(&b"{\"id\":\"\xff\"}\n{\"id\":1}\n"[..], "id".into()));
        assert_eq!((records.len(), bad.len()), (1, 1));
    }
}
