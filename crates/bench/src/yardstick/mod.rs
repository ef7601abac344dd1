//! Yardsticks: what the machine can do, measured in the same run as the store, so that figures are ratios.
//!
//! *Append limit* ([`append`]): each thread writes 32-byte records one after the other into its own pre-touched
//! huge-page tmpfs mapping, with a flush of the line and a fence after each. No durable store that writes one entry per
//! operation exceeds it.
//!
//! *Map* ([`map`]): 256 `hashbrown` maps behind reader–writer locks, on huge pages: the read rate of a good volatile
//! map.
//!
//! This is the only part of the crate with `unsafe`: mappings, the flush instruction, an allocator.

pub mod append;
mod flush;
pub mod huge;
pub mod map;
pub mod measure;

/// The range of a yardstick on the kind of machine for which the figures were set (two threads), in operations per
/// second.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// The yardstick's name.
    pub name: &'static str,
    /// Lowest and highest figure seen.
    pub range: (f64, f64),
}

/// Append limit, two threads.
pub const APPEND: Scale = Scale { name: "append limit", range: (7.0e6, 8.9e6) };
/// Map, uniform gets, two threads, 5 M keys.
pub const MAP_UNIFORM: Scale = Scale { name: "map get uniform", range: (20.6e6, 20.6e6) };
/// Map, scrambled Zipf 0.99 gets, two threads, 5 M keys.
pub const MAP_ZIPF: Scale = Scale { name: "map get zipf", range: (25.3e6, 25.3e6) };

impl Scale {
    /// True within 25 % of the range. Outside it, the machine was disturbed or is another one, and the run does not
    /// count.
    pub fn admits(&self, value: f64) -> bool {
        (self.range.0 * 0.75..=self.range.1 * 1.25).contains(&value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_is_a_quarter_either_way() {
        assert!(APPEND.admits(5.3e6) && APPEND.admits(11.0e6));
        assert!(!APPEND.admits(5.2e6) && !APPEND.admits(11.2e6));
        assert!(MAP_UNIFORM.admits(20.6e6) && !MAP_UNIFORM.admits(15.0e6));
    }
}
