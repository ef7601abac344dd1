//! The Redis protocol, versions 2 and 3, without input or output.
//!
//! * [`Parser`] finds requests in a growing buffer: arrays of bulk strings, or inline commands. It copies nothing
//!   except inline words, and never reads bytes again that it has parsed.
//! * [`Writer`] appends replies to a buffer, in the version that the client asked for.
//! * [`Value`] is any value of the protocol as an owned tree, as a client reads it. Tests and peers use it.
//!
//! # Limits
//!
//! Everything that a peer announces is bounded by [`Limits`] before anything is allocated for it. Besides the caller's
//! buffer, a parser holds 16 bytes for each argument that has arrived, and the words of an inline command.
//!
//! # Thread safety
//!
//! Plain values; nothing is shared.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod error;
mod inline;
mod limits;
mod number;
mod request;
mod value;
mod writer;

pub use error::ProtocolError;
pub use limits::Limits;
pub use number::{format_double, parse_integer};
pub use request::{Args, Parser, peek_key};
pub use value::{DecodeError, Value, decode};
pub use writer::{Protocol, Writer};
