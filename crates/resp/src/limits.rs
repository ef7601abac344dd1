//! Limits on what a peer may send.

use crate::ProtocolError;

/// Limits of requests and values. Beyond them the peer gets a [`crate::ProtocolError`], and the connection must be
/// closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most arguments of one request, including the command's name.
    pub max_args: usize,
    /// Most bytes of one argument.
    pub max_bulk_bytes: usize,
    /// Most bytes of one request, including its framing.
    pub max_request_bytes: usize,
    /// Most bytes of an inline command, and of a line that announces a length.
    pub max_line_bytes: usize,
    /// The peer is not authenticated. A refused request within the default limits gets an error that says so.
    pub is_stranger: bool,
    /// Most levels of nesting of a [`crate::Value`]. (The grammar gives requests one level.)
    pub max_depth: usize,
}

impl Default for Limits {
    /// Arguments of 512 MiB, requests of 1 GiB and lines of 64 KiB, as in Redis; 1,048,576 arguments (Redis allows
    /// more); 32 levels.
    fn default() -> Limits {
        Limits {
            max_args: 1 << 20,
            max_bulk_bytes: 512 << 20,
            max_request_bytes: 1 << 30,
            max_line_bytes: 64 << 10,
            is_stranger: false,
            max_depth: 32,
        }
    }
}

impl Limits {
    /// Limits for a peer that is not authenticated: 10 arguments of 16 KiB.
    pub fn unauthenticated() -> Limits {
        Limits { max_args: 10, max_bulk_bytes: 16 << 10, max_request_bytes: 256 << 10, is_stranger: true, ..Limits::default() }
    }

    /// The error for this many arguments.
    #[cold]
    pub(crate) fn refuse_args(&self, count: i64) -> ProtocolError {
        let is_usual = count <= Limits::default().max_args as i64;
        if self.is_stranger && is_usual { ProtocolError::StrangersArrayLength } else { ProtocolError::ArrayLength }
    }

    /// The error for an argument of this many bytes.
    #[cold]
    pub(crate) fn refuse_bulk(&self, length: i64) -> ProtocolError {
        let is_usual = (0..=Limits::default().max_bulk_bytes as i64).contains(&length);
        if self.is_stranger && is_usual { ProtocolError::StrangersBulkLength } else { ProtocolError::BulkLength }
    }
}
