//! Rows of comma-separated values (RFC 4180), each with the line on which it begins.
//!
//! A row ends at a newline, a carriage return, or both together. Empty lines are skipped; a byte order mark is dropped.
//! A quote opens a quoted field only as the field's first byte. Anywhere else it is text, and so is what follows a
//! closing quote. A quote that is never closed makes everything behind it one field: that is an error of the whole
//! input, reported with the line of the quote.

use std::io::{BufRead, Chain, Cursor, ErrorKind, Read};

use super::{BYTE_ORDER_MARK, Bad, MAX_LINE, SourceError};

/// Most fields of a row that is longer than one piece of the input.
const MOST_FIELDS: usize = 1 << 20;

/// Rows of an input.
pub struct Rows<R> {
    input: Chain<Cursor<Vec<u8>>, R>,
    begun: bool,
    row: Row,
}

impl<R: BufRead> Rows<R> {
    /// Reads `input`.
    pub fn new(input: R) -> Self {
        Self { input: Cursor::new(Vec::new()).chain(input), begun: false, row: Row::default() }
    }

    /// Reads the next row. Returns false at the end.
    pub fn advance(&mut self) -> Result<bool, SourceError> {
        if !self.begun {
            self.begin().map_err(SourceError::Io)?;
        }
        self.row.clear();
        loop {
            let piece = match self.input.fill_buf() {
                Ok(piece) => piece,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(SourceError::Io(error)),
            };
            if piece.is_empty() {
                return self.row.end_of_input();
            }
            let (used, ended) = self.row.take(piece);
            self.input.consume(used);
            if ended {
                return Ok(true);
            }
            self.row.check_length()?;
        }
    }

    /// Drops a byte order mark. Any other bytes are put back.
    fn begin(&mut self) -> std::io::Result<()> {
        self.begun = true;
        let (before, input) = self.input.get_mut();
        let mut head = Vec::new();
        input.take(BYTE_ORDER_MARK.len() as u64).read_to_end(&mut head)?;
        if head != BYTE_ORDER_MARK {
            *before = Cursor::new(head);
        }
        Ok(())
    }

    /// Whether the input ended in the middle of a row.
    pub fn ends_within_row(&self) -> bool {
        self.row.unended
    }

    /// The line on which the row begins, counted from one.
    pub fn line(&self) -> u64 {
        self.row.first_line
    }

    /// The number of fields.
    pub fn len(&self) -> usize {
        self.row.ends.len()
    }

    /// A field, without quotes.
    pub fn field(&self, at: usize) -> &[u8] {
        let begins = if at == 0 { 0 } else { self.row.ends[at - 1] };
        &self.row.bytes[begins..self.row.ends[at]]
    }
}

/// Position of the next byte within a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first byte of the row.
    Between,
    /// Before the first byte of a field.
    Begin,
    /// In a field.
    Text,
    /// Between quotes.
    Quoted,
    /// After a quote in a quoted field: its end, or the first of two quotes that stand for one.
    Quote,
}

/// The row that is being read.
struct Row {
    /// The fields, one after the other.
    bytes: Vec<u8>,
    /// Where each field ends in `bytes`.
    ends: Vec<usize>,
    state: State,
    /// The line of the next byte.
    next_line: u64,
    /// The line of the first byte.
    first_line: u64,
    /// The line of the last quote that opened a field.
    quote_line: u64,
    /// The previous byte was a carriage return that ended a line: a newline now belongs to it.
    returned: bool,
    /// The last row was ended by the end of the input, not by the end of a line.
    unended: bool,
}

impl Default for Row {
    fn default() -> Self {
        let (bytes, ends) = (Vec::new(), Vec::new());
        Self { bytes, ends, state: State::Between, next_line: 1, first_line: 1, quote_line: 1, returned: false, unended: false }
    }
}

impl Row {
    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.state = State::Between;
    }

    /// Takes bytes up to the end of the row. Returns how many it took, and whether the row has ended.
    fn take(&mut self, piece: &[u8]) -> (usize, bool) {
        let end = piece.iter().position(|byte| self.step(*byte));
        end.map_or((piece.len(), false), |at| (at + 1, true))
    }

    /// Takes one byte. Returns true if it ends the row.
    fn step(&mut self, byte: u8) -> bool {
        if self.state == State::Quoted {
            self.quoted(byte);
            return false;
        }
        let between = self.state == State::Between;
        match byte {
            b'\r' | b'\n' => {
                self.end_line(byte);
                if !between {
                    self.end_field();
                }
                return !between;
            }
            _ => self.returned = false,
        }
        if between {
            (self.first_line, self.state) = (self.next_line, State::Begin);
        }
        match (self.state, byte) {
            (State::Begin, b'"') => (self.quote_line, self.state) = (self.next_line, State::Quoted),
            (State::Quote, b'"') => self.text(byte, State::Quoted),
            (_, b',') => self.end_field(),
            _ => self.text(byte, State::Text),
        }
        false
    }

    fn quoted(&mut self, byte: u8) {
        if byte == b'"' {
            self.state = State::Quote;
            return;
        }
        self.next_line += u64::from(byte == b'\n');
        self.bytes.push(byte);
    }

    fn text(&mut self, byte: u8, state: State) {
        self.bytes.push(byte);
        self.state = state;
    }

    fn end_field(&mut self) {
        self.ends.push(self.bytes.len());
        self.state = State::Begin;
    }

    fn end_line(&mut self, byte: u8) {
        let second = byte == b'\n' && self.returned;
        self.next_line += u64::from(!second);
        self.returned = byte == b'\r';
    }

    fn end_of_input(&mut self) -> Result<bool, SourceError> {
        match self.state {
            State::Between => Ok(false),
            State::Quoted => {
                let what = "the quote that begins a field here is never closed; close it, or double the quotes that are text".into();
                Err(SourceError::Unusable(Bad { line: self.quote_line, what }))
            }
            _ => {
                self.unended = true;
                self.end_field();
                Ok(true)
            }
        }
    }

    /// Gives up on a row that is too long for any record, before it takes all memory.
    fn check_length(&self) -> Result<(), SourceError> {
        if self.bytes.len() as u64 <= MAX_LINE && self.ends.len() <= MOST_FIELDS {
            return Ok(());
        }
        let (line, what) = if self.ends.len() > MOST_FIELDS {
            (self.first_line, "the row has more than a million fields; is this the right file and format?")
        } else if self.state == State::Quoted {
            (self.quote_line, "the field in quotes that begins here is longer than any record; is the quote closed?")
        } else {
            (self.first_line, "the row is longer than any record; is this the right file and format?")
        };
        Err(SourceError::Unusable(Bad { line, what: what.into() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Read = (Vec<(u64, Vec<Vec<u8>>)>, Option<u64>);

    /// Returns the rows with their lines, and the line of an error.
    fn rows(text: &[u8], piece: usize) -> Read {
        let mut rows = Rows::new(std::io::BufReader::with_capacity(piece, text));
        let mut found = Vec::new();
        loop {
            match rows.advance() {
                Ok(true) => found.push((rows.line(), (0..rows.len()).map(|at| rows.field(at).to_vec()).collect())),
                Ok(false) => return (found, None),
                Err(SourceError::Unusable(bad)) => return (found, Some(bad.line)),
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    fn lines(text: &str) -> Vec<u64> {
        rows(text.as_bytes(), 64).0.into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn lines_are_counted_alike_however_they_end() {
        let text = "a,b\n\"1\n\n2\",3\n\n\nc,d\n\"x\",\"y\n\"\ne,f";
        for ends in ["\n", "\r\n"] {
            assert_eq!(lines(&text.replace('\n', ends)), [1, 2, 7, 8, 10], "{ends:?}");
        }
        assert_eq!(lines("a\rb\r\rc"), [1, 2, 4]);
        assert_eq!(lines("\r\n\n\ra\n\r\nb"), [4, 6]);
    }

    #[test]
    fn an_open_quote_is_told_by_its_line() {
        assert_eq!(rows(b"a,b\r\n1,2\r\n3,\"4\r\n5,6\r\n", 64).1, Some(3));
        assert_eq!(rows(b"a,\"x\ny\",\n\"\"\"\n", 64).1, Some(3));
        assert_eq!(rows(b"a,\"b\"", 64), (vec![(1, vec![b"a".to_vec(), b"b".to_vec()])], None));
        assert_eq!(rows(b"a\"\n\"b\"c\n", 64).1, None);
    }

    /// Regression: fields without content counted for nothing, and took all memory.
    #[test]
    fn a_row_of_commas_is_given_up() {
        let commas = std::io::Read::take(std::io::repeat(b','), 64 << 20);
        let mut rows = Rows::new(std::io::BufReader::new(commas));
        let error = rows.advance().expect_err("a row of 64 million fields");
        assert!(matches!(&error, SourceError::Unusable(bad) if bad.line == 1 && bad.what.contains("fields")), "{error:?}");
    }

    #[test]
    fn a_byte_order_mark_is_dropped() {
        assert_eq!(rows(b"\xef\xbb\xbf\"a\"\n", 64).0, [(1, vec![b"a".to_vec()])]);
        assert_eq!(rows(b"\xef\xbb", 64).0, [(1, vec![b"\xef\xbb".to_vec()])]);
    }

    proptest! {
        /// Another CSV reader finds the same fields; it treats an open quote as closed at the end.
        #[test]
        fn fields_are_those_of_another_reader(text in "[ab,\"\r\n]{0,40}", piece in 1usize..8) {
            let (found, open) = rows(text.as_bytes(), piece);
            let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text.as_bytes());
            let all: Vec<Vec<Vec<u8>>> =
                reader.byte_records().map(|record| record.unwrap().iter().map(<[u8]>::to_vec).collect()).collect();
            let found: Vec<_> = found.into_iter().map(|(_, fields)| fields).collect();
            prop_assert_eq!(&found[..], &all[..all.len() - usize::from(open.is_some())]);
        }
    }
}
