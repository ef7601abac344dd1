//! The recording medium of the crash tests, and the images that a crash may leave.
//!
//! Attach a [`ShadowLog`] to an in-memory pool (`CreateOptions::tracer`, with `emulate` naming the medium), run the
//! production code, then request images at any crash point and open them with `Pool::from_image`.
//!
//! A power loss may leave the following states. They determine the power and the limits of these tests:
//!
//! * [`Emulate::Adr`](crate::Emulate::Adr): any subset of the aligned 8-byte stores that were not flushed and then
//!   fenced by the same thread; later stores to a word include the effect of earlier ones. No order within a line is
//!   assumed. Streaming stores need only the fence. A flush covers the line's content at the time of the flush.
//! * [`Emulate::Eadr`](crate::Emulate::Eadr): a prefix of the global store order, at least up to what each thread has
//!   fenced. Several pools share one order ([`Replay::for_each_image_keeping`]). Streaming stores that are not fenced
//!   may be missing independently. Not modelled: one word stored both ways between two fences.
//! * [`Emulate::File`](crate::Emulate::File): for each 512-byte sector any of its states since the beginning of the
//!   last sync that returned.
//!
//! Stores are recorded just before they happen, so the order of the record respects causality between threads.

mod images;
mod log;
mod replay;
#[cfg(test)]
mod tests;

pub use images::{ImageKind, ShadowRng};
pub use log::{Event, ShadowLog, What, thread_number};
pub use replay::Replay;
