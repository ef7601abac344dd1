//! The escape with which any bytes fit into one line of text.
//!
//! | written | means |
//! |---|---|
//! | `\t` `\n` `\r` `\\` | tab, newline, carriage return, backslash |
//! | `\xHH` | the byte with these two hexadecimal digits, of either case |
//! | anything else | itself |
//!
//! A backslash before any other character is an error, so that a typing error does not become data. [`escape`] is
//! canonical: it writes `\xHH` (lower case) for the other control bytes, for 0x7f, and for every byte that is not part
//! of valid UTF-8; valid UTF-8 text stays readable. The same bytes always give the same text, so dumps can be compared
//! byte by byte.

use std::fmt;

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Appends the escaped form of `bytes` to `out`.
pub fn escape(bytes: &[u8], out: &mut Vec<u8>) {
    out.reserve(bytes.len());
    for chunk in bytes.utf8_chunks() {
        escape_text(chunk.valid().as_bytes(), out);
        for &byte in chunk.invalid() {
            push_hex(byte, out);
        }
    }
}

/// The escaped form as a string, for messages.
pub fn escaped(bytes: &[u8]) -> String {
    let mut out = Vec::new();
    escape(bytes, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

fn escape_text(text: &[u8], out: &mut Vec<u8>) {
    let mut plain_from = 0;
    for (at, &byte) in text.iter().enumerate() {
        if byte >= b' ' && byte != b'\\' && byte != 0x7f {
            continue;
        }
        out.extend_from_slice(&text[plain_from..at]);
        plain_from = at + 1;
        match byte {
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\\' => out.extend_from_slice(b"\\\\"),
            other => push_hex(other, out),
        }
    }
    out.extend_from_slice(&text[plain_from..]);
}

fn push_hex(byte: u8, out: &mut Vec<u8>) {
    out.extend_from_slice(&[b'\\', b'x', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
}

/// Why a text is not in the escaped form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadEscape {
    /// Position of the backslash, in bytes, from zero.
    pub at: usize,
    found: String,
}

impl fmt::Display for BadEscape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bad escape \"{}\" (allowed: \\t \\n \\r \\\\ \\xHH)", self.found)
    }
}

impl std::error::Error for BadEscape {}

/// Decodes escaped text.
pub fn unescape(text: &[u8]) -> Result<Vec<u8>, BadEscape> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        if text[at] != b'\\' {
            out.push(text[at]);
            at += 1;
            continue;
        }
        let (byte, length) = unescape_one(&text[at..]).ok_or_else(|| bad(text, at))?;
        out.push(byte);
        at += length;
    }
    Ok(out)
}

/// Decodes the escape at the start of `text`. Returns the byte and the length of its escape.
fn unescape_one(text: &[u8]) -> Option<(u8, usize)> {
    match text.get(1)? {
        b't' => Some((b'\t', 2)),
        b'n' => Some((b'\n', 2)),
        b'r' => Some((b'\r', 2)),
        b'\\' => Some((b'\\', 2)),
        b'x' => Some((hex(*text.get(2)?)? << 4 | hex(*text.get(3)?)?, 4)),
        _ => None,
    }
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

fn bad(text: &[u8], at: usize) -> BadEscape {
    let end = text.len().min(at + if text.get(at + 1) == Some(&b'x') { 4 } else { 2 });
    BadEscape { at, found: String::from_utf8_lossy(&text[at..end]).into_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_stays_readable_and_the_rest_is_escaped() {
        assert_eq!(escaped("gr\u{fc}n / \u{4e2d}".as_bytes()), "gr\u{fc}n / \u{4e2d}");
        assert_eq!(escaped(b"a\tb\nc\rd\\e"), r"a\tb\nc\rd\\e");
        assert_eq!(escaped(b"\0\x1f\x7f\xff\xc3"), r"\x00\x1f\x7f\xff\xc3");
        assert_eq!(escaped(b"\xe4\xb8"), r"\xe4\xb8", "a cut character is no text");
    }

    #[test]
    fn what_is_no_escape_is_refused_with_its_place() {
        for (text, at) in [(r"ab\q", 2), (r"\x4", 0), (r"a\xg0", 1), (r"\", 0), (r"a\X41", 1), (r"\x+f", 0)] {
            assert_eq!(unescape(text.as_bytes()).unwrap_err().at, at, "{text}");
        }
        assert_eq!(unescape(br"\x4A\x4a").unwrap(), b"JJ");
    }

    proptest! {
        #[test]
        fn any_bytes_come_back(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut text = Vec::new();
            escape(&bytes, &mut text);
            prop_assert!(std::str::from_utf8(&text).is_ok());
            prop_assert!(!text.iter().any(|byte| *byte < b' ' || *byte == 0x7f));
            prop_assert_eq!(unescape(&text).unwrap(), bytes);
        }

        #[test]
        fn any_text_decodes_or_is_refused_and_is_then_canonical(text in proptest::collection::vec(prop_oneof![Just(b'\\'), Just(b'x'), any::<u8>()], 0..60)) {
            if let Ok(bytes) = unescape(&text) {
                let mut canonical = Vec::new();
                escape(&bytes, &mut canonical);
                prop_assert_eq!(unescape(&canonical).unwrap(), bytes);
            }
        }
    }
}
