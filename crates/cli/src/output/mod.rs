//! Standard output and standard error.
//!
//! A closed standard output is not an error ([`Failure::ClosedPipe`]). In JSON, bytes that are UTF-8 are a string, and
//! any others are `{"base64": "…"}`.

pub mod tree;

use std::io::{BufWriter, Stdout, Write};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::escape::escape;
use crate::failure::Failure;
use crate::input::BYTE_ORDER_MARK;
use hither_server::events::{Level, log};

/// Standard output of a command.
pub struct Output {
    json: bool,
    out: BufWriter<Stdout>,
    line: Vec<u8>,
}

impl Output {
    /// Opens standard output; `json` if the reader is a program.
    pub fn new(json: bool) -> Self {
        Self { json, out: BufWriter::with_capacity(64 << 10, std::io::stdout()), line: Vec::new() }
    }

    /// Whether the reader is a program.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Refuses `--raw` together with `--json`. `--json` may stand before the command, where the command's parser does
    /// not see it.
    pub fn refuse_both(&self, raw: bool) -> Result<(), Failure> {
        let both = "--raw gives bytes as they are, --json gives text; leave one of them out";
        if raw && self.json { Err(Failure::Usage(both.into())) } else { Ok(()) }
    }

    /// Writes a line of text.
    pub fn text(&mut self, text: impl AsRef<str>) -> Result<(), Failure> {
        writeln!(self.out, "{}", text.as_ref()).map_err(Failure::stdout)
    }

    /// Writes a JSON document in one line.
    pub fn document(&mut self, document: &impl Serialize) -> Result<(), Failure> {
        serde_json::to_writer(&mut self.out, document).map_err(|error| Failure::stdout(error.into()))?;
        self.bytes(b"\n")
    }

    /// Writes bytes unchanged.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.out.write_all(bytes).map_err(Failure::stdout)
    }

    /// Writes escaped bytes and a newline.
    pub fn escaped(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.line.clear();
        escape(bytes, &mut self.line);
        self.line.push(b'\n');
        self.out.write_all(&self.line).map_err(Failure::stdout)
    }

    /// Writes a record: a line of the kv format, or a JSON object. Includes the time at which it expires, in
    /// milliseconds since 1970, unless that is 0.
    pub fn record(&mut self, key: &[u8], value: &[u8], expires_at_ms: u64) -> Result<(), Failure> {
        if self.json {
            return self.document(&Record { key: Bytes(key), value: Bytes(value), expires_at_ms });
        }
        self.line.clear();
        kv_line(key, value, expires_at_ms, &mut self.line);
        self.out.write_all(&self.line).map_err(Failure::stdout)
    }

    /// Flushes the buffer.
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.out.flush().map_err(Failure::stdout)
    }
}

/// Marks the time at which a record of the kv format expires. It is not a valid escape, so programs that do not know
/// such times refuse the line.
pub const EXPIRY: &[u8] = br"\E";

/// Appends a line of the kv format: key, tab, value, newline. The time of expiry precedes them, unless it is 0. A byte
/// order mark at the beginning of a key would be dropped on reading, so it is written with `\xHH`.
pub fn kv_line(key: &[u8], value: &[u8], expires_at_ms: u64, line: &mut Vec<u8>) {
    if expires_at_ms != 0 {
        line.extend_from_slice(EXPIRY);
        line.extend_from_slice(expires_at_ms.to_string().as_bytes());
        line.push(b'\t');
    }
    let rest = key.strip_prefix(BYTE_ORDER_MARK);
    if rest.is_some() {
        line.extend_from_slice(br"\xef\xbb\xbf");
    }
    escape(rest.unwrap_or(key), line);
    line.push(b'\t');
    escape(value, line);
    line.push(b'\n');
}

/// Bytes in JSON: a string if they are UTF-8, otherwise `{"base64": "…"}`.
#[derive(Debug, Clone, Copy)]
pub struct Bytes<'a>(pub &'a [u8]);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Ok(text) = std::str::from_utf8(self.0) {
            return serializer.serialize_str(text);
        }
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry("base64", &BASE64_STANDARD.encode(self.0))?;
        map.end()
    }
}

#[derive(Serialize)]
struct Record<'a> {
    key: Bytes<'a>,
    value: Bytes<'a>,
    #[serde(skip_serializing_if = "is_zero")]
    expires_at_ms: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Reports on standard error why a command failed.
pub fn error(failure: &Failure, json: bool) {
    if json {
        json_on_stderr(&serde_json::json!({ "error": failure.to_string(), "status": failure.status() }));
    } else {
        stderr(&format!("hither: {failure}"));
    }
}

/// Writes an object as a line to standard error. All its control characters are escaped, also those that JSON allows in
/// strings: a terminal would obey them.
fn json_on_stderr(object: &serde_json::Value) {
    let escaped = |c: char| if c.is_control() { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    let shown: String = object.to_string().chars().map(escaped).collect();
    let _ = writeln!(std::io::stderr(), "{shown}");
}

/// Writes a line to standard error. If that fails, nobody is left to report it to. Control characters are escaped:
/// names in the line may come from anywhere, and a terminal would obey them.
pub fn stderr(line: &str) {
    let obeyed = |c: char| c.is_control() && c != '\n';
    let shown: String = line.chars().map(|c| if obeyed(c) { c.escape_default().to_string() } else { c.to_string() }).collect();
    let _ = writeln!(std::io::stderr(), "{shown}");
}

/// Form of a note or warning on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A line of text.
    Text,
    /// A JSON object.
    Json,
    /// An event of the server's log.
    Log,
}

/// Writes a note, which is not a failure, to standard error.
pub fn note(what: &str, form: Form) {
    tell("note", Level::Info, what, form);
}

/// Warns on standard error: the command continues, but something is wrong.
pub fn warning(what: &str, form: Form) {
    tell("warning", Level::Warn, what, form);
}

/// Reports on standard error damage that was passed over.
pub fn salvaged(what: &str, form: Form) {
    tell("salvaged", Level::Warn, what, form);
}

fn tell(kind: &str, level: Level, what: &str, form: Form) {
    match form {
        Form::Text => stderr(&format!("hither: {kind}: {what}")),
        Form::Json => json_on_stderr(&serde_json::json!({ kind: what })),
        Form::Log => log(level, kind, &[("what", &what)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_in_json() {
        assert_eq!(serde_json::to_string(&Bytes("gr\u{fc}n\n".as_bytes())).unwrap(), "\"gr\u{fc}n\\n\"");
        assert_eq!(serde_json::to_string(&Bytes(b"\xff\0")).unwrap(), r#"{"base64":"/wA="}"#);
    }

    #[test]
    fn a_record_is_one_line() {
        let mut line = Vec::new();
        kv_line(b"a\tb", b"c\nd", 0, &mut line);
        assert_eq!(line, b"a\\tb\tc\\nd\n");
        line.clear();
        kv_line("\u{feff}a".as_bytes(), "\u{feff}".as_bytes(), 0, &mut line);
        assert_eq!(line, "\\xef\\xbb\\xbfa\t\u{feff}\n".as_bytes());
    }
}
