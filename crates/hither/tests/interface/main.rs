//! The library as its users see it.

mod basic;
mod deferred;
mod edges;
mod swaps;
mod whole_batches;
