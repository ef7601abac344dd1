//! The Redis protocol, versions 2 and 3, without input or output.
//!
//! * [`Parser`] finds requests in a buffer that grows: arrays of bulk strings, or inline commands. It copies nothing and never looks twice at
//!   bytes that it has understood.
//! * [`Writer`] appends replies to a buffer, in the version that the client asked for.
//! * [`Value`] is any value of the protocol as an owned tree: what a client reads. Tests and peers use it.
//!
//! # Limits
//!
//! Everything that a peer announces is bounded by [`Limits`] before anything is allocated for it. The memory that a parser holds besides the
//! caller's buffer is 16 bytes for each argument that has really arrived.
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
