//! A model of the protocol by which writers, collector, checkpointer and recovery share the media, and an explorer that walks all its states.
//!
//! # Purpose
//!
//! The rules of `docs/adr/0011-collection-and-checkpoints.md` are few, but they hold only together: whether a deleted key can come back depends
//! on the order of a dozen steps of four parties and on what two crashes leave. The model has those steps and nothing else. The explorer takes every
//! order of them within [`Bounds`], breadth first, lets the power fail in every state with every subset of what was not durable, recovers, and
//! compares with what was acknowledged. The first violation comes with its shortest trace.
//!
//! # Structure
//!
//! * [`media`]: segments, entries and checkpoints as they are on media; [`state`]: that, what is only in memory, and what the outside was promised.
//! * [`writer`], [`collector`] (with [`batched`]: the second way to empty a victim, and the sweep), [`checkpointer`], [`crash`]: who may take which steps; [`recovery`]: what an opening makes of the media.
//! * [`check`]: the properties; [`mod@explore`]: the walk; [`scenarios`]: bounds that together reach every kind of step.
//! * [`flaw`]: rules that can be taken out, one at a time. A model that does not miss a rule does not need it, or cannot see.
//!
//! # What is simplified
//!
//! Steps are atomic where the code has a latch or a commit word. A segment has one or two slots instead of bytes, generations count up and are compared whole,
//! there is one collector, drawing a stable version is a step that is possible once no writer is in its section. A sync makes durable all there is at that moment; that one
//! under way may persist any part is what the failure before it shows.

pub mod batched;
pub mod bounds;
pub mod check;
pub mod checkpointer;
pub mod collector;
pub mod crash;
pub mod explore;
pub mod flaw;
pub mod media;
pub mod recovery;
pub mod scenarios;
pub mod state;
pub mod step;
pub mod writer;

pub use bounds::{Bounds, Collector, Medium, Op};
pub use explore::{Outcome, Violation, explore};
pub use flaw::Flaw;
