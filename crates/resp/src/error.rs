//! Errors in requests.

/// A request that cannot be parsed. The beginning of the next request is unknown, so the connection must be closed
/// after this message was sent. The messages are those of Redis, because some clients check them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The number of arguments is not a number, or beyond the limit.
    #[error("Protocol error: invalid multibulk length")]
    ArrayLength,
    /// More arguments than an unauthenticated peer may send.
    #[error("Protocol error: unauthenticated multibulk length")]
    StrangersArrayLength,
    /// The line with the number of arguments does not end.
    #[error("Protocol error: too big mbulk count string")]
    ArrayLine,
    /// An argument does not begin with `$`.
    #[error("Protocol error: expected '$', got '{}'", shown(*.0))]
    ExpectedBulk(u8),
    /// The length of an argument is not a number, or beyond the limit.
    #[error("Protocol error: invalid bulk length")]
    BulkLength,
    /// A longer argument than an unauthenticated peer may send.
    #[error("Protocol error: unauthenticated bulk length")]
    StrangersBulkLength,
    /// The line with the length of an argument does not end.
    #[error("Protocol error: too big bulk count string")]
    BulkLine,
    /// An argument is longer than announced.
    #[error("Protocol error: expected CRLF after an argument")]
    BulkEnd,
    /// The request as a whole is too long.
    #[error("Protocol error: request of more than {0} bytes")]
    RequestLength(usize),
    /// An inline command does not end.
    #[error("Protocol error: too big inline request")]
    InlineLine,
    /// Quotes of an inline command do not match.
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
}

/// Replaces a byte that cannot be put into a line of text.
fn shown(byte: u8) -> char {
    if byte.is_ascii_graphic() || byte == b' ' { char::from(byte) } else { '?' }
}
