//! A cache of log entries in DRAM (NStore, section III-B: remote access first, RAF), whose hits are validated by reference.
//!
//! A hash table of buckets with a few slots each, shared by all NUMA nodes: DRAM of another node is still faster than persistent memory of
//! one's own. Who stays in a bucket is decided by what misses cost: the read latency from the reader's node to the item's home node over that
//! of the home's own readers ([`Weights`]). Reading order: `layout` (a bucket's words), `bucket` (reading and changing them), `policy` (who
//! stays), [`Cache`] (what gets call), `control` (when it is on), [`sim`] (policies compared without a store).
//!
//! # Coherence: validation by reference
//!
//! The prototype looks a key up in its cache *instead of* the index, and writers bring the cache up to date after the index: between the two, and after
//! a lost race of two writers, it answers with values that are no longer the newest. Here the cache never says what a key's value is. It says what
//! the *entry* behind a reference contains, which does not change:
//!
//! * C1. A record holds key, value and expiry of the log entry that lay at `reference` while its segment had `generation`. (Whoever calls
//!   [`Cache::offer`] read it there under an epoch pin.)
//! * C2. While a segment has a generation, each of its bytes is written at most once (L1 of the log); a generation is a random number of 64
//!   bits, drawn whenever a segment is opened. So (reference, generation) names one entry for ever, and a record never becomes wrong.
//! * C3. A get asks the index first, and takes a record only if the index's reference and that segment's generation *now* are the record's. The get's
//!   epoch pin keeps the segment from being reused in between.
//!
//! By C1–C3 a hit returns exactly what reading the log at the index's reference would have returned. Hence gets are as linearizable with the cache as
//! without, and nothing that changes the index (writes, deletes, batches, collectors that move entries) has to tell the cache. A record
//! whose entry is no longer its key's newest is *stale*: it is never returned, and refilled, with its frequency, by the next get of the key. Writers
//! pay nothing; the get after an update reads the log once.
//!
//! # Thread safety
//!
//! Everything is `Send + Sync`. Gets take no lock; what changes a bucket takes the bucket's lock if it is free and else does without.
//! All methods but [`Cache::tick`] and [`Cache::stats`] are called under an epoch pin (`hither_sync::epoch`), taken before the cache was seen to be on:
//! the memory is divided anew only when all pins of the time when it was last on have ended. Breaking that rule cannot break memory safety, but C1.
//!
//! # Memory
//!
//! Fixed at creation, allocated when the cache is first switched on, and never exceeded: records lie in the buckets themselves.
//!
//! # Crash
//!
//! Nothing here survives one, and nothing is needed afterwards.

#![forbid(unsafe_code)]
// Under loom there is only the bucket, which its tests look at.
#![cfg_attr(loom, allow(dead_code))]

mod bucket;
#[cfg(not(loom))]
mod cache;
#[cfg(not(loom))]
mod control;
#[cfg(not(loom))]
mod counters;
mod layout;
#[cfg(all(test, loom))]
mod loom_tests;
mod policy;
#[cfg(not(loom))]
pub mod sim;
#[cfg(all(test, not(loom)))]
mod tests;

pub use bucket::{Found, Record};
#[cfg(not(loom))]
pub use cache::{Cache, CacheOptions, CacheStats, Holdings, MAX_KEY_BYTES, MAX_VALUE_BYTES};
#[cfg(not(loom))]
pub use control::{OffReason, State};
pub use layout::{GHOSTS, Geometry, SLOTS};
pub use policy::{AGE_UPDATES, Policy, UNIT, Weights};
