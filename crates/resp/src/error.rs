//! What is wrong with a request.

/// A request that cannot be understood. Where the next one begins is unknown, so the connection has to be closed after the message was sent.
/// The messages are those of Redis, which some clients look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The number of arguments is no number, or beyond the limit.
    #[error("Protocol error: invalid multibulk length")]
    ArrayLength,
    /// More arguments than a peer may send who has not said who it is.
    #[error("Protocol error: unauthenticated multibulk length")]
    StrangersArrayLength,
    /// The line with the number of arguments does not end.
    #[error("Protocol error: too big mbulk count string")]
    ArrayLine,
    /// An argument does not begin with `$`.
    #[error("Protocol error: expected '$', got '{}'", shown(*.0))]
    ExpectedBulk(u8),
    /// The length of an argument is no number, or beyond the limit.
    #[error("Protocol error: invalid bulk length")]
    BulkLength,
    /// A longer argument than a peer may send who has not said who it is.
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

/// A byte that can be put into a line of text.
fn shown(byte: u8) -> char {
    if byte.is_ascii_graphic() || byte == b' ' { char::from(byte) } else { '?' }
}
