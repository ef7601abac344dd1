//! What a peer may ask for.

use crate::ProtocolError;

/// Bounds of requests and values. Beyond them the peer gets a [`crate::ProtocolError`] and the connection has to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Arguments of one request, the command's name included.
    pub max_args: usize,
    /// Bytes of one argument.
    pub max_bulk_bytes: usize,
    /// Bytes of one request, its framing included.
    pub max_request_bytes: usize,
    /// Bytes of an inline command, and of the line that announces a length.
    pub max_line_bytes: usize,
    /// The peer has not said who it is: what would be within the usual limits is refused for that.
    pub is_stranger: bool,
    /// Levels of nesting of a [`crate::Value`]. (Requests have one level by their grammar.)
    pub max_depth: usize,
}

impl Default for Limits {
    /// 512 MiB for each argument, 1 GiB in all, lines of 64 KiB, as in Redis; 1,048,576 arguments, where Redis takes more; 32 levels.
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
    /// What a peer may send before it has said who it is: 10 arguments of 16 KiB.
    pub fn unauthenticated() -> Limits {
        Limits { max_args: 10, max_bulk_bytes: 16 << 10, max_request_bytes: 256 << 10, is_stranger: true, ..Limits::default() }
    }

    /// What is wrong with so many arguments.
    #[cold]
    pub(crate) fn refuse_args(&self, count: i64) -> ProtocolError {
        let is_usual = count <= Limits::default().max_args as i64;
        if self.is_stranger && is_usual { ProtocolError::StrangersArrayLength } else { ProtocolError::ArrayLength }
    }

    /// What is wrong with an argument of so many bytes.
    #[cold]
    pub(crate) fn refuse_bulk(&self, length: i64) -> ProtocolError {
        let is_usual = (0..=Limits::default().max_bulk_bytes as i64).contains(&length);
        if self.is_stranger && is_usual { ProtocolError::StrangersBulkLength } else { ProtocolError::BulkLength }
    }
}
