//! Inline commands: a line of words, for people with telnet and for health checks.
//!
//! Words are separated by white space, but a vertical tab or form feed does not end a word without quotes. A zero byte
//! ends the line. In double quotes the escapes are `\n \r \t \b \a \\ \" \xHH`, in single quotes only `\'`. A closing
//! quote must be followed by white space or the end of the line.

use crate::error::ProtocolError;
use std::ops::Range;

/// Splits `line` into words. Appends the text of the words to `text`, and their ranges in it to `words`.
pub(crate) fn split(line: &[u8], text: &mut Vec<u8>, words: &mut Vec<Range<usize>>) -> Result<(), ProtocolError> {
    let mut rest = line.split(|byte| *byte == 0).next().unwrap_or_default();
    loop {
        while let Some((byte, after)) = rest.split_first()
            && is_space(*byte)
        {
            rest = after;
        }
        if rest.is_empty() {
            return Ok(());
        }
        let start = text.len();
        rest = word(rest, text)?;
        words.push(start..text.len());
    }
}

fn is_space(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

/// Whether a word without quotes ends before this byte.
fn ends_word(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

/// Reads one word and returns the rest of the line.
fn word<'a>(mut rest: &'a [u8], text: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        match rest {
            [] => return Ok(rest),
            [b'"', inside @ ..] => return closed(double_quoted(inside, text)?),
            [b'\'', inside @ ..] => return closed(single_quoted(inside, text)?),
            [byte, after @ ..] => {
                if ends_word(*byte) {
                    return Ok(rest);
                }
                text.push(*byte);
                rest = after;
            }
        }
    }
}

/// Checks that white space or the end follows a closing quote.
fn closed(rest: &[u8]) -> Result<&[u8], ProtocolError> {
    if rest.first().is_none_or(|byte| is_space(*byte)) { Ok(rest) } else { Err(ProtocolError::Quotes) }
}

fn double_quoted<'a>(mut rest: &'a [u8], text: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        rest = match rest {
            [] => return Err(ProtocolError::Quotes),
            [b'"', after @ ..] => return Ok(after),
            [b'\\', b'x', high, low, after @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                text.push(hex(*high) << 4 | hex(*low));
                after
            }
            [b'\\', escaped, after @ ..] => {
                text.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                after
            }
            [byte, after @ ..] => {
                text.push(*byte);
                after
            }
        }
    }
}

fn single_quoted<'a>(mut rest: &'a [u8], text: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        rest = match rest {
            [] => return Err(ProtocolError::Quotes),
            [b'\'', after @ ..] => return Ok(after),
            [b'\\', b'\'', after @ ..] => {
                text.push(b'\'');
                after
            }
            [byte, after @ ..] => {
                text.push(*byte);
                after
            }
        }
    }
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit - b'A' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &[u8]) -> Result<Vec<Vec<u8>>, ProtocolError> {
        let (mut text, mut words) = (Vec::new(), Vec::new());
        split(line, &mut text, &mut words)?;
        Ok(words.into_iter().map(|word| text[word].to_vec()).collect())
    }

    #[test]
    fn words_and_quotes() {
        assert_eq!(words(b"  set  a\tb ").unwrap(), [&b"set"[..], b"a", b"b"]);
        assert_eq!(words(br#"set "a b" 'c \' "d'"#).unwrap(), [&b"set"[..], b"a b", b"c ' \"d"]);
        assert_eq!(words(br#""\x00\xfF\n\q\"""#).unwrap(), [&b"\x00\xff\nq\""[..]]);
        assert_eq!(words(br#""" ''"#).unwrap(), [&b""[..], b""]);
        assert!(words(b"   ").unwrap().is_empty());
    }

    /// Regression: these two bytes were taken for the end of a word.
    #[test]
    fn words_contain_vertical_tabs_and_form_feeds_as_in_redis() {
        assert_eq!(words(b"set k\x0b a\x0bb\x0c").unwrap(), [&b"set"[..], b"k\x0b", b"a\x0bb\x0c"]);
        assert_eq!(words(b"\x0b a \x0c\x0bb\rc\r").unwrap(), [&b"a"[..], b"b", b"c"], "they are skipped before a word");
        assert_eq!(words(b"'a'\x0b\"b\"\x0cc").unwrap(), [&b"a"[..], b"b", b"c"], "and end a word in quotes");
    }

    /// Redis splits lines as C strings, too. Regression: it was white space.
    #[test]
    fn a_zero_byte_ends_the_line() {
        for line in [&b"a b\0 c"[..], b"a \"b\"\0c", b"a b \0"] {
            assert_eq!(words(line).unwrap(), [b"a", b"b"], "{}", line.escape_ascii());
        }
        assert!(words(b"\0a").unwrap().is_empty());
        assert_eq!(words(b"a 'b\0c'"), Err(ProtocolError::Quotes));
    }

    #[test]
    fn quotes_must_match_and_end_a_word() {
        for line in [&br#"a "b"#[..], b"a 'b", br#"a "b"c"#, br#"a 'b'c"#, br#""\"#] {
            assert_eq!(words(line), Err(ProtocolError::Quotes), "{}", String::from_utf8_lossy(line));
        }
    }
}
