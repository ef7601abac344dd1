//! Replies.
//!
//! One call per value. An aggregate is announced with the number of its members, which follow. Types that RESP2 lacks
//! are written as Redis writes them there: a map as a flat array, a set as an array, a double and a verbatim string as
//! a bulk string, a boolean as 1 or 0.
//!
//! A writer may be bounded ([`Writer::bounded`]): it leaves out the first value that does not fit, and everything after
//! it. The reply is then useless, and its author need not continue ([`Writer::is_full`]).

use crate::number::{format_double, push_integer};

/// The version of the protocol that a client asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Version 2, with which every connection begins.
    #[default]
    Resp2,
    /// Version 3.
    Resp3,
}

/// Appends replies to a buffer.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
    protocol: Protocol,
    /// Most bytes that the buffer may hold.
    limit: usize,
    /// Whether something was left out.
    full: bool,
}

/// Most bytes that a value takes besides its content.
const FRAME_BYTES: usize = 32;

impl<'a> Writer<'a> {
    /// A writer that appends to `out`.
    pub fn new(out: &'a mut Vec<u8>, protocol: Protocol) -> Writer<'a> {
        Writer::bounded(out, protocol, usize::MAX)
    }

    /// A writer that appends to `out` as long as `out` has at most `limit` bytes. The last 32 of them may stay unused.
    pub fn bounded(out: &'a mut Vec<u8>, protocol: Protocol, limit: usize) -> Writer<'a> {
        Writer { out, protocol, limit, full: false }
    }

    /// Whether something did not fit, so that it was left out.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// How many more bytes fit.
    pub fn room(&self) -> usize {
        if self.full { 0 } else { self.limit.saturating_sub(self.out.len()) }
    }

    /// Whether this many more bytes fit. If not, nothing fits from here on.
    #[inline]
    fn takes(&mut self, bytes: usize) -> bool {
        self.full |= bytes > self.limit.saturating_sub(self.out.len());
        !self.full
    }

    /// The version in use.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Changes the version for the values that follow.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    /// Number of bytes in the buffer: a mark for [`Writer::truncate`].
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Whether the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// Removes everything after a mark. A full writer stays full.
    pub fn truncate(&mut self, mark: usize) {
        self.out.truncate(mark);
    }

    /// Appends finished replies.
    pub fn raw(&mut self, bytes: &[u8]) {
        if self.takes(bytes.len()) {
            self.out.extend_from_slice(bytes);
        }
    }

    /// `+OK`
    pub fn ok(&mut self) {
        self.raw(b"+OK\r\n");
    }

    /// A short text without line breaks.
    pub fn simple(&mut self, text: &str) {
        debug_assert!(!text.contains(['\r', '\n']));
        self.line(b'+', text.as_bytes());
    }

    /// An error: its code, a space, a message. Line breaks in it become spaces.
    pub fn error(&mut self, text: &str) {
        if self.takes(text.len() + FRAME_BYTES) {
            self.out.push(b'-');
            self.out.extend(text.bytes().map(|byte| if byte == b'\r' || byte == b'\n' { b' ' } else { byte }));
            self.out.extend_from_slice(b"\r\n");
        }
    }

    /// An integer.
    #[inline]
    pub fn integer(&mut self, value: i64) {
        self.header(b':', value);
    }

    /// A length or count.
    #[inline]
    pub fn count(&mut self, value: usize) {
        self.integer(i64::try_from(value).unwrap_or(i64::MAX));
    }

    /// Bytes.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.text(b'$', bytes, b"");
    }

    /// No value.
    #[inline]
    pub fn null(&mut self) {
        self.raw(if self.protocol == Protocol::Resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// No array: differs from [`Writer::null`] in RESP2.
    pub fn null_array(&mut self) {
        self.raw(if self.protocol == Protocol::Resp3 { b"_\r\n" } else { b"*-1\r\n" });
    }

    /// An array of `len` values, which follow.
    pub fn array(&mut self, len: usize) {
        self.header(b'*', len as i64);
    }

    /// A map of `len` pairs, which follow.
    pub fn map(&mut self, len: usize) {
        match self.protocol {
            Protocol::Resp3 => self.header(b'%', len as i64),
            Protocol::Resp2 => self.array(len * 2),
        }
    }

    /// A set of `len` values, which follow.
    pub fn set(&mut self, len: usize) {
        self.header(if self.protocol == Protocol::Resp3 { b'~' } else { b'*' }, len as i64);
    }

    /// A floating-point number.
    pub fn double(&mut self, value: f64) {
        let text = format_double(value);
        match self.protocol {
            Protocol::Resp3 => self.line(b',', text.as_bytes()),
            Protocol::Resp2 => self.bulk(text.as_bytes()),
        }
    }

    /// True or false.
    pub fn boolean(&mut self, value: bool) {
        match self.protocol {
            Protocol::Resp3 => self.raw(if value { b"#t\r\n" } else { b"#f\r\n" }),
            Protocol::Resp2 => self.integer(i64::from(value)),
        }
    }

    /// Text for people.
    pub fn verbatim(&mut self, text: &str) {
        match self.protocol {
            Protocol::Resp3 => self.text(b'=', text.as_bytes(), b"txt:"),
            Protocol::Resp2 => self.bulk(text.as_bytes()),
        }
    }

    #[inline]
    fn header(&mut self, kind: u8, value: i64) {
        if self.takes(FRAME_BYTES) {
            self.number(kind, value);
        }
    }

    /// Writes a line with a number. The caller has checked that there is room.
    #[inline]
    fn number(&mut self, kind: u8, value: i64) {
        self.out.push(kind);
        push_integer(self.out, value);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes a line with the length, then `mark` and the bytes.
    #[inline]
    fn text(&mut self, kind: u8, bytes: &[u8], mark: &[u8]) {
        let length = mark.len() + bytes.len();
        if !self.takes(length + FRAME_BYTES) {
            return;
        }
        self.out.reserve(length + FRAME_BYTES);
        self.number(kind, length as i64);
        self.out.extend_from_slice(mark);
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    fn line(&mut self, kind: u8, bytes: &[u8]) {
        if self.takes(bytes.len() + FRAME_BYTES) {
            self.out.push(kind);
            self.out.extend_from_slice(bytes);
            self.out.extend_from_slice(b"\r\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(write: impl Fn(&mut Writer<'_>)) -> (String, String) {
        let [two, three] = [Protocol::Resp2, Protocol::Resp3].map(|protocol| {
            let mut out = Vec::new();
            write(&mut Writer::new(&mut out, protocol));
            String::from_utf8(out).unwrap()
        });
        (two, three)
    }

    #[test]
    fn types_in_both_versions() {
        let same = |text: &str| (text.to_owned(), text.to_owned());
        assert_eq!(both(|w| w.ok()), same("+OK\r\n"));
        assert_eq!(both(|w| w.integer(-12)), same(":-12\r\n"));
        assert_eq!(both(|w| w.bulk(b"ab")), same("$2\r\nab\r\n"));
        assert_eq!(both(|w| w.error("ERR a\r\nb")), same("-ERR a  b\r\n"));
        assert_eq!(both(|w| w.null()), ("$-1\r\n".into(), "_\r\n".into()));
        assert_eq!(both(|w| w.null_array()), ("*-1\r\n".into(), "_\r\n".into()));
        assert_eq!(both(|w| w.map(2)), ("*4\r\n".into(), "%2\r\n".into()));
        assert_eq!(both(|w| w.set(2)), ("*2\r\n".into(), "~2\r\n".into()));
        assert_eq!(both(|w| w.double(0.5)), ("$3\r\n0.5\r\n".into(), ",0.5\r\n".into()));
        assert_eq!(both(|w| w.boolean(true)), (":1\r\n".into(), "#t\r\n".into()));
        assert_eq!(both(|w| w.verbatim("hi")), ("$2\r\nhi\r\n".into(), "=6\r\ntxt:hi\r\n".into()));
    }
    #[test]
    fn nothing_goes_beyond_a_bound() {
        type Step = fn(&mut Writer<'_>);
        let steps: [Step; 9] = [
            |w| w.bulk(&[b'x'; 50]),
            |w| w.raw(&[b'x'; 50]),
            |w| w.error(&"x".repeat(50)),
            |w| w.simple(&"x".repeat(50)),
            |w| w.verbatim(&"x".repeat(50)),
            |w| w.integer(i64::MIN),
            |w| w.map(1),
            |w| w.double(0.5),
            |w| w.null(),
        ];
        for protocol in [Protocol::Resp2, Protocol::Resp3] {
            for step in steps {
                let mut out = vec![b'-'; 10];
                let mut writer = Writer::bounded(&mut out, protocol, 1000);
                (0..1000).for_each(|_| step(&mut writer));
                assert!(writer.is_full() && writer.room() == 0 && (900..=1000).contains(&writer.len()), "{}", writer.len());
                let end = writer.len();
                writer.raw(b"x");
                assert_eq!(writer.len(), end, "there is no hole in it");
            }
        }
        let mut out = vec![b'-'; 10];
        let mut writer = Writer::bounded(&mut out, Protocol::Resp2, 1000);
        assert_eq!((writer.room(), writer.is_full()), (990, false));
        // For a value that is too large, no memory is even reserved.
        writer.bulk(&vec![0; 1 << 20]);
        assert!(writer.is_full());
        assert!(out.capacity() < 2000, "{}", out.capacity());
    }
}
