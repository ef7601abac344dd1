//! The recording medium of the crash tests, and the images that a crash may leave.
//!
//! Attach a [`ShadowLog`] to an in-memory pool (`CreateOptions::tracer`, with `emulate` naming the medium), run the production code,
//! then ask for images at any crash point and open them with `Pool::from_image`.
//!
//! What a power loss may leave (and so the power and the limits of these tests):
//!
//! * [`Emulate::Adr`](crate::Emulate::Adr): any subset of the aligned 8-byte stores that were not flushed and then fenced by the same
//!   thread; later stores to a word include the effect of earlier ones. No order within a line is assumed. Streaming stores need the fence
//!   only. A flush covers the line's content at the time of the flush.
//! * [`Emulate::Eadr`](crate::Emulate::Eadr): a prefix of the global store order, which of several pools is one
//!   ([`Replay::for_each_image_keeping`]), at least up to what each thread fenced; streaming
//!   stores that are not fenced may be missing independently. Not modelled: one word stored both ways between two fences.
//! * [`Emulate::File`](crate::Emulate::File): per 512-byte sector any of its states since the last sync that began later and returned.
//!
//! Stores are recorded just before they happen, so the record's order respects causality between threads.

mod images;
mod log;
mod replay;
#[cfg(test)]
mod tests;

pub use images::{ImageKind, ShadowRng};
pub use log::{Event, ShadowLog, What};
pub use replay::Replay;
