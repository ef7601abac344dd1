//! A model of the protocol by which writers, collector, checkpointer and recovery share the media, and an explorer that
//! walks all its states.
//!
//! # Purpose
//!
//! The rules of `docs/adr/0011-collection-and-checkpoints.md` are few, but they hold only together. Whether a deleted
//! key can come back depends on the order of a dozen steps of four parties, and on what two crashes leave. The model
//! has those steps and nothing else.
//!
//! The explorer takes every order of the steps within [`Bounds`], breadth first. In every state it lets the power fail
//! with every subset of what was not durable, recovers, and compares the result with what was acknowledged. The first
//! violation comes with its shortest trace.
//!
//! # Structure
//!
//! * [`media`]: segments, entries and checkpoints as they are on media. [`state`]: the media, what is only in memory,
//!   and what was promised to callers.
//! * [`writer`], [`collector`], [`checkpointer`] and [`crash`]: which party may take which steps. [`batched`] is the
//!   second way to empty a victim, and the sweep.
//! * [`recovery`]: what an opening makes of the media.
//! * [`check`]: the properties. [`mod@explore`]: the walk. [`scenarios`]: bounds that together reach every kind of
//!   step.
//! * [`flaw`]: rules that can be taken out, one at a time. If the explorer finds no violation without a rule, either
//!   the protocol does not need the rule or the model is blind.
//!
//! # What is simplified
//!
//! * Steps are atomic where the code has a latch or a commit word.
//! * A segment has one or two slots instead of bytes. Generations count up and are compared whole.
//! * There is one collector.
//! * Drawing a stable version is one step, which is possible once no writer is in its section.
//! * A sync makes everything durable at one moment. A sync under way that has persisted only a part needs no step of
//!   its own: a power failure just before the sync leaves the same.

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
