//! The library as users see it.

mod basic;
mod copies;
mod deferred;
mod edges;
mod settings;
mod space;
mod swaps;
mod updates;
mod views;
mod whole_batches;
