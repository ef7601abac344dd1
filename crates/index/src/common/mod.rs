//! Code shared by the ordered indexes: node memory, versions, slices of keys, counting, search and moves in sorted
//! words, visits; and planted bugs for tests.

pub(crate) mod arena;
pub(crate) mod counter;
pub(crate) mod node;
pub(crate) mod search;
pub(crate) mod shift;
pub(crate) mod slice;
#[cfg(test)]
pub(crate) mod twins;
pub(crate) mod version;
pub(crate) mod visit;
#[cfg(target_arch = "x86_64")]
mod wide;
