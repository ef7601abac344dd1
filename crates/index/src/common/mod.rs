//! What the ordered indexes share: node memory, versions, slices of keys, counting, search in sorted words.

pub(crate) mod arena;
pub(crate) mod counter;
pub(crate) mod node;
pub(crate) mod search;
pub(crate) mod slice;
pub(crate) mod version;
