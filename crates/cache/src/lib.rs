//! A cache of log entries in DRAM (NStore, section III-B: remote access first, RAF), whose hits are validated by
//! reference.
//!
//! The cache is a hash table of buckets with a few slots each, shared by all NUMA nodes: DRAM of another node is still
//! faster than local persistent memory. The cost of misses decides which items stay in a bucket: the read latency from
//! the reader's node to the item's home node, divided by the latency for the home's own readers ([`Weights`]).
//!
//! Reading order: `layout` (a bucket's words), `bucket` (reading and changing them), `policy` (which items stay),
//! [`Cache`] (the interface for gets), `control` (when the cache is on), [`sim`] (compares policies without a store).
//!
//! # Coherence: validation by reference
//!
//! The prototype looks a key up in its cache *instead of* the index, and writers update the cache after the index.
//! Between these two steps, and after a lost race of two writers, it returns values that are no longer the newest. Here
//! the cache never decides what a key's value is. It only reproduces the content of the *entry* behind a reference,
//! which does not change:
//!
//! * C1. A record holds key, value and expiry of the log entry that lay at `reference` while its segment had
//!   `generation`. (The caller of [`Cache::offer`] read them there under an epoch pin.)
//! * C2. While a segment has a generation, each of its bytes is written at most once (L1 of the log). A generation is a
//!   random number of 64 bits, drawn whenever a segment is opened. So (reference, generation) identifies one entry for
//!   ever, and a record never becomes wrong.
//! * C3. A get queries the index first, and takes a record only if the index's reference and the *current* generation
//!   of that segment are the record's. The get's epoch pin keeps the segment from being reused in between.
//!
//! By C1–C3 a hit returns exactly what reading the log at the index's reference would have returned. Hence gets are as
//! linearizable with the cache as without, and operations that change the index (writes, deletes, batches, collectors
//! that move entries) need not update the cache.
//!
//! A record whose entry is no longer its key's newest is *stale*: it is never returned. The next get of the key refills
//! it and keeps its frequency. Writers pay nothing; the get after an update reads the log once.
//!
//! # Thread safety
//!
//! Everything is `Send + Sync`. Gets take no lock. An operation that changes a bucket takes the bucket's lock if it is
//! free, and otherwise gives up.
//!
//! All methods but [`Cache::tick`] and [`Cache::stats`] are called under an epoch pin (`hither_sync::epoch`) that was
//! taken before the cache was seen to be on: the memory is divided anew only when all pins of the time when the cache
//! was last on have ended. Breaking that rule cannot break memory safety, but it breaks C1.
//!
//! # Memory
//!
//! Fixed at creation, allocated when the cache is first switched on, and never exceeded: records lie in the buckets
//! themselves.
//!
//! # Crash
//!
//! Nothing here survives a crash, and nothing is needed afterwards.

#![forbid(unsafe_code)]
// Under loom only the bucket exists; its tests use it directly.
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
