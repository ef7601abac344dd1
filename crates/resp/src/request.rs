//! Requests: arrays of bulk strings, and inline commands.
//!
//! ```text
//! request = "*" count CRLF count * ( "$" length CRLF length * byte CRLF )      array; nothing happens if count <= 0
//!         | line LF                                                            inline; nothing happens if it is blank
//! ```
//!
//! The caller owns the bytes. It calls [`Parser::parse`] with all bytes from the beginning of the current request. If
//! the request is not complete, it calls again with the same bytes and the new ones behind them. The parser remembers
//! its position, so the work is linear in the bytes, however they are cut.

use crate::error::ProtocolError;
use crate::inline;
use crate::limits::Limits;
use crate::number::parse_integer;
use std::ops::Range;

/// If a request had more arguments than this, their memory is freed afterwards.
const KEEP_ARGS: usize = 1024;
/// The same for inline commands of more bytes than this.
const KEEP_INLINE_BYTES: usize = 4 << 10;

/// Finds requests in a growing buffer. See the module's head.
#[derive(Debug)]
pub struct Parser {
    limits: Limits,
    state: State,
    /// The current request has been parsed up to here.
    at: usize,
    /// No end of a line was found up to here.
    searched: usize,
    ranges: Vec<Range<usize>>,
    /// Words of an inline command, which may differ from the bytes sent.
    inline: Vec<u8>,
    is_inline: bool,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// At the beginning of a request.
    Start,
    /// This many arguments are still to come.
    Args(usize),
    /// An argument of this length is arriving, the first of `left` arguments still to come.
    Bulk { length: usize, left: usize },
}

/// The arguments of a request, in place.
#[derive(Clone, Copy)]
pub struct Args<'a> {
    bytes: &'a [u8],
    ranges: &'a [Range<usize>],
}

impl<'a> Args<'a> {
    /// Arguments that are not in a parser: the `ranges` of `bytes`.
    pub fn new(bytes: &'a [u8], ranges: &'a [Range<usize>]) -> Args<'a> {
        Args { bytes, ranges }
    }

    /// Number of arguments, including the command's name.
    #[inline]
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether there are no arguments: a blank request.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The argument `index`.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.ranges.get(index).map(|range| &self.bytes[range.clone()])
    }

    /// All arguments in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + DoubleEndedIterator + use<'a> {
        let bytes = self.bytes;
        self.ranges.iter().map(move |range| &bytes[range.clone()])
    }
}

impl std::ops::Index<usize> for Args<'_> {
    type Output = [u8];

    #[inline]
    fn index(&self, index: usize) -> &[u8] {
        &self.bytes[self.ranges[index].clone()]
    }
}

impl std::fmt::Debug for Args<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter().map(String::from_utf8_lossy)).finish()
    }
}

impl Default for Parser {
    fn default() -> Parser {
        Parser::new(Limits::default())
    }
}

impl Parser {
    /// A parser at the beginning of a request.
    pub fn new(limits: Limits) -> Parser {
        Parser { limits, state: State::Start, at: 0, searched: 0, ranges: Vec::new(), inline: Vec::new(), is_inline: false }
    }

    /// Changes the limits from the next request on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Discards the request that has begun: the next call starts at the beginning of a request.
    pub fn restart(&mut self) {
        self.finish();
    }

    /// Parses one request at the beginning of `input`. Returns `Some(n)` if the request is complete and has `n` bytes:
    /// the next one begins there, and [`Parser::args`] returns the arguments until the next call. Returns `None` if
    /// more bytes are needed.
    ///
    /// # Errors
    /// See [`ProtocolError`]; the connection must be closed. The parser stays at the error.
    pub fn parse(&mut self, input: &[u8]) -> Result<Option<usize>, ProtocolError> {
        if let State::Start = self.state {
            self.forget();
            match input.first() {
                None => return Ok(None),
                Some(b'*') => {}
                Some(_) => return self.parse_inline(input),
            }
        }
        let end = self.parse_array(input)?;
        if end.is_none() && input.len() > self.limits.max_request_bytes {
            return Err(ProtocolError::RequestLength(self.limits.max_request_bytes));
        }
        Ok(end)
    }

    /// The arguments of the request that was found. The caller must pass the same bytes.
    #[inline]
    pub fn args<'a>(&'a self, input: &'a [u8]) -> Args<'a> {
        Args { bytes: if self.is_inline { &self.inline } else { input }, ranges: &self.ranges }
    }

    /// Number of bytes that are certainly missing from an argument that has begun: how much room to make.
    pub fn missing(&self, input: &[u8]) -> usize {
        match self.state {
            State::Bulk { length, .. } => (self.at + length + 2).saturating_sub(input.len()),
            _ => 0,
        }
    }

    fn parse_array(&mut self, input: &[u8]) -> Result<Option<usize>, ProtocolError> {
        loop {
            match self.state {
                State::Start => {
                    let Some(count) = self.number(input, ProtocolError::ArrayLine, ProtocolError::ArrayLength)? else { return Ok(None) };
                    self.is_inline = false;
                    if count <= 0 {
                        return Ok(Some(self.finish()));
                    }
                    let accepted = usize::try_from(count).ok().filter(|count| *count <= self.limits.max_args);
                    self.state = State::Args(accepted.ok_or_else(|| self.limits.refuse_args(count))?);
                }
                State::Args(0) => return Ok(Some(self.finish())),
                State::Args(left) => {
                    match input.get(self.at) {
                        None => return Ok(None),
                        Some(b'$') => {}
                        Some(other) => return Err(ProtocolError::ExpectedBulk(*other)),
                    }
                    let Some(length) = self.number(input, ProtocolError::BulkLine, ProtocolError::BulkLength)? else { return Ok(None) };
                    let accepted = usize::try_from(length).ok().filter(|length| *length <= self.limits.max_bulk_bytes);
                    let length = accepted.ok_or_else(|| self.limits.refuse_bulk(length))?;
                    if self.at.saturating_add(length) > self.limits.max_request_bytes {
                        return Err(ProtocolError::RequestLength(self.limits.max_request_bytes));
                    }
                    self.state = State::Bulk { length, left };
                }
                State::Bulk { length, left } => {
                    let end = self.at + length;
                    match input.get(end..end + 2) {
                        None => return Ok(None),
                        Some(b"\r\n") => {}
                        Some(_) => return Err(ProtocolError::BulkEnd),
                    }
                    self.ranges.push(self.at..end);
                    self.advance(end + 2);
                    self.state = State::Args(left - 1);
                }
            }
        }
    }

    /// Reads the number on the line at the current position, behind the line's first byte.
    fn number(&mut self, input: &[u8], too_long: ProtocolError, wrong: ProtocolError) -> Result<Option<i64>, ProtocolError> {
        if let Some((number, length)) = input.get(self.at + 1..).and_then(short_number) {
            self.advance(self.at + 1 + length);
            return Ok(Some(number));
        }
        let Some(end) = self.line_end(input, too_long)? else { return Ok(None) };
        // A line feed alone does not end a line of an array.
        let line = input[self.at + 1..end].strip_suffix(b"\r").ok_or(wrong)?;
        let number = parse_integer(line).ok_or(wrong)?;
        self.advance(end + 1);
        Ok(Some(number))
    }

    /// Finds the line feed that ends the line at the current position.
    fn line_end(&mut self, input: &[u8], too_long: ProtocolError) -> Result<Option<usize>, ProtocolError> {
        let from = self.searched.max(self.at);
        let most = (self.at + self.limits.max_line_bytes).min(input.len());
        if let Some(found) = input.get(from..most).and_then(|rest| rest.iter().position(|byte| *byte == b'\n')) {
            return Ok(Some(from + found));
        }
        self.searched = from.max(most);
        if input.len() - self.at > self.limits.max_line_bytes { Err(too_long) } else { Ok(None) }
    }

    fn parse_inline(&mut self, input: &[u8]) -> Result<Option<usize>, ProtocolError> {
        let Some(end) = self.line_end(input, ProtocolError::InlineLine)? else { return Ok(None) };
        self.is_inline = true;
        let line = &input[self.at..end];
        inline::split(line.strip_suffix(b"\r").unwrap_or(line), &mut self.inline, &mut self.ranges)?;
        self.advance(end + 1);
        Ok(Some(self.finish()))
    }

    /// Drops the arguments of the last request: the caller does not need them any more.
    #[inline]
    fn forget(&mut self) {
        self.ranges.clear();
        self.inline.clear();
        if self.ranges.capacity() > KEEP_ARGS {
            self.ranges = Vec::new();
        }
        if self.inline.capacity() > KEEP_INLINE_BYTES {
            self.inline = Vec::new();
        }
    }

    fn advance(&mut self, at: usize) {
        (self.at, self.searched) = (at, at);
    }

    /// Ends the request and returns its length.
    fn finish(&mut self) -> usize {
        let end = self.at;
        self.state = State::Start;
        self.advance(0);
        end
    }
}

/// Reads the usual form of a length, one to three digits and the end of the line. Returns the number and how many bytes
/// it takes with the end of its line. `None` for everything else, which takes the long way.
#[inline]
fn short_number(line: &[u8]) -> Option<(i64, usize)> {
    let value = |digits: &[u8]| digits.iter().fold(0, |value, digit| value * 10 + i64::from(digit - b'0'));
    match line {
        [b'0'..=b'9', b'\r', b'\n', ..] => Some((value(&line[..1]), 3)),
        [b'1'..=b'9', b'0'..=b'9', b'\r', b'\n', ..] => Some((value(&line[..2]), 4)),
        [b'1'..=b'9', b'0'..=b'9', b'0'..=b'9', b'\r', b'\n', ..] => Some((value(&line[..3]), 5)),
        _ => None,
    }
}

/// The second argument of the request at the beginning of `input`: with most commands, the key. `None` if it has not
/// arrived or the request is not of the usual form. This is only a hint, at a small part of the cost of
/// [`Parser::parse`]: nothing is checked.
pub fn peek_key(input: &[u8]) -> Option<&[u8]> {
    let (count, length) = short_number(input.strip_prefix(b"*")?)?;
    let rest = input.get(1 + length..).filter(|_| count > 1)?;
    let (name, length) = short_number(rest.strip_prefix(b"$")?)?;
    let rest = rest.get(1 + length + name as usize + 2..)?;
    let (key, length) = short_number(rest.strip_prefix(b"$")?)?;
    rest.get(1 + length..1 + length + key as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Found = (usize, Vec<Vec<u8>>);

    fn one(input: &[u8]) -> Result<Option<Found>, ProtocolError> {
        let mut parser = Parser::default();
        Ok(parser.parse(input)?.map(|end| (end, parser.args(input).iter().map(<[u8]>::to_vec).collect())))
    }

    #[test]
    fn arrays_inline_commands_and_blanks() {
        assert_eq!(one(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*1").unwrap(), Some((20, vec![b"GET".to_vec(), b"k".to_vec()])));
        assert_eq!(one(b"*1\r\n$0\r\n\r\n").unwrap(), Some((10, vec![vec![]])));
        assert_eq!(one(b"PING x\r\n").unwrap(), Some((8, vec![b"PING".to_vec(), b"x".to_vec()])));
        assert_eq!(one(b"PING\n").unwrap(), Some((5, vec![b"PING".to_vec()])));
        for blank in [&b"*0\r\n"[..], b"*-1\r\n", b"\r\n"] {
            assert_eq!(one(blank).unwrap(), Some((blank.len(), vec![])));
        }
    }

    #[test]
    fn what_is_wrong_is_said_as_redis_says_it() {
        let cases: [(&[u8], &str); 8] = [
            (b"*x\r\n", "Protocol error: invalid multibulk length"),
            (b"*1048577\r\n", "Protocol error: invalid multibulk length"),
            (b"*1\r\n:1\r\n", "Protocol error: expected '$', got ':'"),
            (b"*1\r\n$-1\r\n", "Protocol error: invalid bulk length"),
            (b"*1\r\n$536870913\r\n", "Protocol error: invalid bulk length"),
            (b"*1\r\n$1\r\nxyz", "Protocol error: expected CRLF after an argument"),
            (b"get \"x\r\n", "Protocol error: unbalanced quotes in request"),
            (b"*1\n", "Protocol error: invalid multibulk length"),
        ];
        for (input, message) in cases {
            assert_eq!(one(input).unwrap_err().to_string(), message);
        }
    }

    /// Regression: an unauthenticated client got the error of a wrong length, not the one of a length too large for it.
    #[test]
    fn strangers_are_told_that_they_are_refused_as_such() {
        for (input, message) in [
            (&b"*11\r\n"[..], "unauthenticated multibulk length"),
            (b"*1048577\r\n", "invalid multibulk length"),
            (b"*1\r\n$16385\r\n", "unauthenticated bulk length"),
            (b"*1\r\n$536870913\r\n", "invalid bulk length"),
            (b"*1\r\n$-1\r\n", "invalid bulk length"),
        ] {
            let mut parser = Parser::new(Limits::unauthenticated());
            let wrong = parser.parse(input).unwrap_err();
            assert_eq!(wrong.to_string(), format!("Protocol error: {message}"));
        }
    }

    #[test]
    fn short_numbers_are_what_the_long_way_reads() {
        for first in 0..=u8::MAX {
            for rest in [&b"\r\n"[..], b"5\r\n", b"07\r\n", b"3x\r\n", b"999\r\n", b"\n", b"\r", b"1\r"] {
                let line = [&[first], rest].concat();
                let end = line.iter().position(|byte| *byte == b'\n');
                let long = end.and_then(|end| Some((parse_integer(line[..end].strip_suffix(b"\r")?)?, end + 1)));
                let short = short_number(&line);
                assert!(short.is_none() || short == long, "{line:?}: {short:?}, {long:?}");
                assert_eq!(short.is_some(), long.is_some_and(|(number, end)| number >= 0 && end <= 5), "{line:?}");
            }
        }
    }

    #[test]
    fn the_key_is_found_where_the_parser_finds_it() {
        let long = format!("*2\r\n$3\r\nGET\r\n$999\r\n{}\r\n", "k".repeat(999));
        let requests = [&b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"[..], b"*3\r\n$3\r\nSET\r\n$12\r\nabcdefghijkl\r\n$0\r\n\r\n", long.as_bytes()];
        for request in requests {
            assert_eq!(peek_key(request).map(<[u8]>::to_vec), one(request).unwrap().map(|(_, args)| args[1].clone()));
            // However little of the request has arrived.
            for end in 0..request.len() {
                assert!(peek_key(&request[..end]).is_none_or(|key| request[..end].ends_with(key) || peek_key(request) == Some(key)));
            }
        }
        for other in
            [&b"*1\r\n$4\r\nPING\r\n"[..], b"GET k\r\n", b"*2\r\n$3\r\nGET\r\n$x\r\n", b"*2\r\n$999\r\nGET\r\n$1\r\nk\r\n", b"*0\r\n", b""]
        {
            assert_eq!(peek_key(other), None, "{other:?}");
        }
    }

    #[test]
    fn endless_lines_are_cut_off() {
        for (start, message) in
            [(&b"*1"[..], ProtocolError::ArrayLine), (b"a", ProtocolError::InlineLine), (b"*1\r\n$1", ProtocolError::BulkLine)]
        {
            let mut input = start.to_vec();
            input.resize(70_000, b'1');
            assert_eq!(one(&input), Err(message));
            // Also if the end of the line arrives too late.
            input.extend_from_slice(b"\r\n");
            assert_eq!(one(&input), Err(message));
        }
    }

    #[test]
    fn the_total_is_bounded_before_it_has_arrived() {
        let limits = Limits { max_request_bytes: 100, ..Limits::default() };
        let mut parser = Parser::new(limits);
        assert_eq!(parser.parse(b"*2\r\n$60\r\n"), Ok(None));
        let mut parser = Parser::new(limits);
        assert_eq!(parser.parse(b"*2\r\n$101\r\n"), Err(ProtocolError::RequestLength(100)));
        let many = [&b"*50\r\n"[..], &b"$1\r\na\r\n".repeat(20)].concat();
        assert_eq!(Parser::new(limits).parse(&many), Err(ProtocolError::RequestLength(100)));
    }

    #[test]
    fn says_how_much_is_missing() {
        let mut parser = Parser::default();
        let input = b"*2\r\n$3\r\nSET\r\n$1000\r\nabc";
        assert_eq!(parser.parse(input), Ok(None));
        assert_eq!(parser.missing(input), 999);
    }

    /// Regression: the memory for the arguments of the largest request was kept as long as the connection.
    #[test]
    fn what_a_large_request_took_is_given_back() {
        let mut parser = Parser::default();
        let large = [&b"*100000\r\n"[..], &b"$1\r\na\r\n".repeat(100_000)].concat();
        let words = [&b"a ".repeat(20_000)[..], b"\r\n"].concat();
        for input in [large, words] {
            assert_eq!(parser.parse(&input), Ok(Some(input.len())));
            assert!(parser.args(&input).len() >= 20_000);
            assert_eq!(parser.parse(b""), Ok(None), "its connection has nothing more to say");
            assert!(parser.ranges.capacity() <= 1024, "{}", parser.ranges.capacity());
        }
        // Regression: so was the memory for the longest inline command, if it had few words.
        let word = [&b"a".repeat(60_000)[..], b"\r\n"].concat();
        assert_eq!(parser.parse(&word), Ok(Some(word.len())));
        assert_eq!(parser.args(&word).get(0).map(<[u8]>::len), Some(60_000));
        assert_eq!(parser.parse(b""), Ok(None));
        assert!(parser.inline.capacity() <= 4096, "{}", parser.inline.capacity());
        let small = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
        assert_eq!(parser.parse(small), Ok(Some(small.len())));
        let kept = parser.ranges.capacity();
        assert_eq!(parser.parse(small), Ok(Some(small.len())));
        assert_eq!(parser.ranges.capacity(), kept, "of usual ones it is not");
    }
}
