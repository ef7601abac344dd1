//! Any value of the protocol as a tree, as a client reads it.

use crate::limits::Limits;
use crate::number::parse_integer;

/// A value of RESP2 or RESP3.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `+`
    Simple(Vec<u8>),
    /// `-`, and `!`
    Error(Vec<u8>),
    /// `:`
    Integer(i64),
    /// `$`
    Bulk(Vec<u8>),
    /// `_`, `$-1`, `*-1`
    Null,
    /// `*`
    Array(Vec<Value>),
    /// `%`
    Map(Vec<(Value, Value)>),
    /// `~`
    Set(Vec<Value>),
    /// `>`
    Push(Vec<Value>),
    /// `,`
    Double(f64),
    /// `#`
    Boolean(bool),
    /// `(`
    BigNumber(Vec<u8>),
    /// `=`, with the three letters of its format
    Verbatim(Vec<u8>, Vec<u8>),
}

/// Bytes that are not a value, or a value beyond the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// No value begins with this byte.
    #[error("no value of the protocol begins with byte {0:#04x}")]
    Kind(u8),
    /// A number, length or end of line is malformed.
    #[error("a malformed line in a value of the protocol")]
    Malformed,
    /// Deeper, longer or larger than the limits.
    #[error("a value of the protocol is beyond the limits")]
    Limit,
}

/// Decodes the value at the beginning of `input`. Returns the value and its length in bytes, or `None` if more bytes
/// are needed. Attributes (`|`) are skipped.
///
/// # Errors
/// See [`DecodeError`].
pub fn decode(input: &[u8], limits: &Limits) -> Result<Option<(Value, usize)>, DecodeError> {
    let mut reader = Reader { input, at: 0, limits };
    match reader.value(0) {
        Ok(value) => Ok(Some((value, reader.at))),
        Err(Stop::More) if input.len() > limits.max_request_bytes => Err(DecodeError::Limit),
        Err(Stop::More) => Ok(None),
        Err(Stop::Wrong(error)) => Err(error),
    }
}

enum Stop {
    More,
    Wrong(DecodeError),
}

const MALFORMED: Stop = Stop::Wrong(DecodeError::Malformed);
const LIMIT: Stop = Stop::Wrong(DecodeError::Limit);

struct Reader<'a> {
    input: &'a [u8],
    at: usize,
    limits: &'a Limits,
}

impl<'a> Reader<'a> {
    fn value(&mut self, depth: usize) -> Result<Value, Stop> {
        if depth > self.limits.max_depth {
            return Err(LIMIT);
        }
        let kind = *self.input.get(self.at).ok_or(Stop::More)?;
        if !b"+-:$*%~>,#(=_!|".contains(&kind) {
            return Err(Stop::Wrong(DecodeError::Kind(kind)));
        }
        let line = self.line()?;
        Ok(match kind {
            b'+' => Value::Simple(line.to_vec()),
            b'-' => Value::Error(line.to_vec()),
            b':' => Value::Integer(parse_integer(line).ok_or(MALFORMED)?),
            b'(' => Value::BigNumber(line.to_vec()),
            b',' => Value::Double(std::str::from_utf8(line).ok().and_then(|text| text.parse().ok()).ok_or(MALFORMED)?),
            b'#' if line == b"t" || line == b"f" => Value::Boolean(line == b"t"),
            b'_' if line.is_empty() => Value::Null,
            b'$' | b'!' | b'=' => self.blob(kind, line)?,
            b'*' | b'~' | b'>' => match parse_integer(line).ok_or(MALFORMED)? {
                -1 if kind == b'*' => Value::Null,
                count => {
                    let items = self.items(count, depth)?;
                    match kind {
                        b'*' => Value::Array(items),
                        b'~' => Value::Set(items),
                        _ => Value::Push(items),
                    }
                }
            },
            b'%' => Value::Map(self.pairs(line, depth)?),
            b'|' => {
                self.pairs(line, depth)?;
                // The value that the attributes describe. It counts as one level deeper, so that attributes cannot nest
                // without a bound.
                self.value(depth + 1)?
            }
            _ => return Err(MALFORMED),
        })
    }

    fn blob(&mut self, kind: u8, line: &[u8]) -> Result<Value, Stop> {
        let length = parse_integer(line).ok_or(MALFORMED)?;
        if length == -1 && kind == b'$' {
            return Ok(Value::Null);
        }
        let length = usize::try_from(length).map_err(|_| MALFORMED)?;
        if length > self.limits.max_bulk_bytes {
            return Err(LIMIT);
        }
        let bytes = self.input.get(self.at..self.at + length + 2).ok_or(Stop::More)?;
        let bytes = bytes.strip_suffix(b"\r\n").ok_or(MALFORMED)?;
        self.at += length + 2;
        match (kind, bytes) {
            (b'$', _) => Ok(Value::Bulk(bytes.to_vec())),
            (b'!', _) => Ok(Value::Error(bytes.to_vec())),
            (_, [a, b, c, b':', text @ ..]) => Ok(Value::Verbatim(vec![*a, *b, *c], text.to_vec())),
            _ => Err(MALFORMED),
        }
    }

    fn items(&mut self, count: i64, depth: usize) -> Result<Vec<Value>, Stop> {
        let count = usize::try_from(count).map_err(|_| MALFORMED)?;
        if count > self.limits.max_args {
            return Err(LIMIT);
        }
        // Nothing is allocated for members that are only announced.
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(self.value(depth + 1)?);
        }
        Ok(items)
    }

    fn pairs(&mut self, line: &[u8], depth: usize) -> Result<Vec<(Value, Value)>, Stop> {
        let count = parse_integer(line).ok_or(MALFORMED)?;
        let mut items = self.items(count.checked_mul(2).ok_or(LIMIT)?, depth)?.into_iter();
        Ok(std::iter::from_fn(|| items.next().zip(items.next())).collect())
    }

    /// Returns the rest of the line after the byte of the kind.
    fn line(&mut self) -> Result<&'a [u8], Stop> {
        let rest = &self.input[self.at + 1..];
        let most = rest.len().min(self.limits.max_line_bytes);
        let Some(end) = rest[..most].iter().position(|byte| *byte == b'\n') else {
            return Err(if rest.len() > self.limits.max_line_bytes { LIMIT } else { Stop::More });
        };
        self.at += end + 2;
        rest[..end].strip_suffix(b"\r").ok_or(MALFORMED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(input: &[u8]) -> Value {
        let (value, length) = decode(input, &Limits::default()).unwrap().unwrap();
        assert_eq!(length, input.len());
        for cut in 0..input.len() {
            assert_eq!(decode(&input[..cut], &Limits::default()), Ok(None), "cut at {cut}");
        }
        value
    }

    #[test]
    fn every_kind() {
        assert_eq!(all(b"+OK\r\n"), Value::Simple(b"OK".to_vec()));
        assert_eq!(all(b"-ERR x\r\n"), Value::Error(b"ERR x".to_vec()));
        assert_eq!(all(b"!5\r\nERR x\r\n"), Value::Error(b"ERR x".to_vec()));
        assert_eq!(all(b":-7\r\n"), Value::Integer(-7));
        assert_eq!(all(b"$-1\r\n"), Value::Null);
        assert_eq!(all(b"_\r\n"), Value::Null);
        assert_eq!(all(b"*2\r\n$1\r\na\r\n*0\r\n"), Value::Array(vec![Value::Bulk(b"a".to_vec()), Value::Array(vec![])]));
        assert_eq!(all(b"%1\r\n+k\r\n#t\r\n"), Value::Map(vec![(Value::Simple(b"k".to_vec()), Value::Boolean(true))]));
        assert_eq!(all(b"~1\r\n,1.5\r\n"), Value::Set(vec![Value::Double(1.5)]));
        assert_eq!(all(b">1\r\n(123\r\n"), Value::Push(vec![Value::BigNumber(b"123".to_vec())]));
        assert_eq!(all(b"=6\r\ntxt:hi\r\n"), Value::Verbatim(b"txt".to_vec(), b"hi".to_vec()));
        assert_eq!(all(b"|1\r\n+a\r\n+b\r\n:1\r\n"), Value::Integer(1));
    }

    #[test]
    fn depth_and_size_are_bounded() {
        let limits = Limits { max_depth: 3, max_args: 4, max_bulk_bytes: 8, ..Limits::default() };
        assert!(decode(b"*1\r\n*1\r\n*1\r\n:1\r\n", &limits).is_ok_and(|value| value.is_some()));
        for input in [&b"*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n"[..], b"*5\r\n", b"%3\r\n", b"$9\r\n", &b"|0\r\n".repeat(1000)] {
            assert_eq!(decode(input, &limits), Err(DecodeError::Limit), "{}", String::from_utf8_lossy(input));
        }
        assert_eq!(decode(b"x", &limits), Err(DecodeError::Kind(b'x')));
    }
}
