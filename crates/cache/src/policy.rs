//! Which items stay in a bucket: one structure, four policies.
//!
//! | policy | a hit adds | a miss |
//! |---|---|---|
//! | [`Policy::Raf`] (NStore, III-B, equations 1, 2) | read latency of (reader, home) / latency of (home, home) | replaces the smallest |
//! | [`Policy::Lfu`] | 1 | replaces the smallest |
//! | [`Policy::Lru`] | – (the time is noted) | replaces the oldest |
//! | [`Policy::Adaptive`] | as RAF | is counted among the bucket's ghosts, and replaces the smallest only once it has become larger |
//!
//! The published policy lets any missed item replace the coldest one, which in a skewed workload is usually the better
//! item. And it halves frequencies only when they overflow, so that yesterday's hot items keep their slots. The default
//! therefore adds *admission* and *ageing*:
//!
//! * A missed item is remembered by 16 bits of its hash, with a frequency of its own, as a ghost in place of the
//!   weakest one. An item that is admitted keeps the frequency that it had as a ghost, and the victim becomes a ghost
//!   with its own frequency.
//! * After [`AGE_UPDATES`] updates of a bucket all its frequencies, ghosts included, are halved.
//!
//! Frequencies are fixed-point numbers; [`UNIT`] is one local access. Everything here runs under the bucket's lock.

use hither_topology::{MAX_NODES, Topology};

/// One local access.
pub const UNIT: u32 = 16;
/// Updates of a bucket between two halvings ([`Policy::Adaptive`]).
pub const AGE_UPDATES: u64 = 800;
/// Above this value all frequencies of the bucket are halved, whatever the policy.
pub(crate) const OVERFLOW: u32 = u32::MAX - (1 << 20);

/// A replacement policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Remote access first with admission and ageing: the default.
    #[default]
    Adaptive,
    /// Remote access first, as published.
    Raf,
    /// Least frequently used.
    Lfu,
    /// Least recently used.
    Lru,
}

impl Policy {
    /// Name of the policy in output.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Adaptive => "raf",
            Policy::Raf => "raf-published",
            Policy::Lfu => "lfu",
            Policy::Lru => "lru",
        }
    }

    /// Whether missed items are admitted only once they are hotter than the coldest item.
    pub(crate) fn has_admission(self) -> bool {
        self == Policy::Adaptive
    }

    /// A slot's frequency after an access of this weight at this clock.
    #[inline(always)]
    pub(crate) fn after(self, frequency: u32, weight: u32, clock: u64) -> u32 {
        match self {
            Policy::Adaptive | Policy::Raf => frequency.saturating_add(weight),
            Policy::Lfu => frequency.saturating_add(UNIT),
            Policy::Lru => clock as u32,
        }
    }

    /// Whether frequencies are halved after the update with this number.
    pub(crate) fn ages_at(self, clock: u64) -> bool {
        self == Policy::Adaptive && clock.is_multiple_of(AGE_UPDATES)
    }

    /// Whether a slot's number is a frequency, which may be halved.
    pub(crate) fn counts(self) -> bool {
        self != Policy::Lru
    }
}

/// The cost of a miss by (reader, home), in [`UNIT`]s: the latency of the link divided by that of the home's own
/// readers.
#[derive(Clone, Debug)]
pub struct Weights {
    of: Box<[u16; MAX_NODES * MAX_NODES]>,
}

impl Weights {
    /// The weights of a topology.
    pub fn of(topology: &Topology) -> Weights {
        let mut of = Box::new([UNIT as u16; MAX_NODES * MAX_NODES]);
        for reader in 0..MAX_NODES {
            for home in 0..MAX_NODES {
                let latency = |from: usize| topology.link(from as u32, home as u32).read_ns;
                let ratio = latency(reader) / latency(home);
                if ratio.is_finite() {
                    of[reader * MAX_NODES + home] = (ratio * f64::from(UNIT)).round().clamp(1.0, 4096.0) as u16;
                }
            }
        }
        Weights { of }
    }

    /// The weight of an access from `reader` to an item of `home`.
    #[inline(always)]
    pub fn weight(&self, reader: u32, home: u32) -> u32 {
        self.of[(reader as usize % MAX_NODES) * MAX_NODES + home as usize % MAX_NODES].into()
    }

    /// Whether some access from the first `readers` nodes to the first `homes` costs more than the home's own, by at
    /// least a twentieth: otherwise the cache has nothing to gain.
    pub fn differ(&self, readers: u32, homes: u32) -> bool {
        (0..readers).any(|reader| (0..homes).any(|home| self.weight(reader, home) > UNIT + UNIT / 20))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_topology::TopologyBuilder;

    #[test]
    fn weights_are_ratios_of_read_latencies() {
        let topology = TopologyBuilder::emulated(2).latency(0, 0, 100.0, 1.0).latency(1, 0, 250.0, 1.0).latency(0, 1, 100.0, 1.0).build();
        let weights = Weights::of(&topology);
        assert_eq!(weights.weight(0, 0), UNIT);
        assert_eq!(weights.weight(1, 0), UNIT * 5 / 2);
        assert_eq!(weights.weight(1, 1), UNIT);
        assert!(weights.weight(0, 1) < UNIT, "node 1's own memory is slower than its access from node 0");
        assert!(weights.differ(2, 2));
        let single = Weights::of(&Topology::single());
        assert!(!single.differ(1, 1) && !single.differ(1, 2), "nobody reads from a node that the machine does not have");
        let equal = TopologyBuilder::emulated(2).latency(0, 1, 113.4, 1.0).latency(1, 0, 113.4, 1.0).build();
        assert!(!Weights::of(&equal).differ(2, 2));
    }

    #[test]
    fn only_frequencies_grow() {
        assert_eq!(Policy::Raf.after(100, 26, 7), 126);
        assert_eq!(Policy::Lfu.after(100, 26, 7), 100 + UNIT);
        assert_eq!(Policy::Lru.after(100, 26, 7), 7);
        assert!(Policy::Adaptive.ages_at(AGE_UPDATES) && !Policy::Raf.ages_at(AGE_UPDATES));
    }
}
