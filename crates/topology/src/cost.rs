//! Costs of an access from one node to another node's memory. Defaults are the measured figures of the NStore paper.

use crate::MAX_NODES;

/// Cost of accesses over one (accessor, home) pair.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkCost {
    /// Latency of a small read, nanoseconds.
    pub read_ns: f64,
    /// Latency of a small persisted write, nanoseconds.
    pub write_ns: f64,
    /// Read bandwidth, GB/s.
    pub read_gb_s: f64,
    /// Write bandwidth, GB/s.
    pub write_gb_s: f64,
    /// With more writers than this, the pair's write bandwidth falls in proportion (that of remote persistent memory
    /// collapses).
    pub collapse_threads: Option<u32>,
}

impl LinkCost {
    /// A node's access to its own persistent memory.
    pub const LOCAL: LinkCost = LinkCost { read_ns: 113.4, write_ns: 310.5, read_gb_s: 6.38, write_gb_s: 0.73, collapse_threads: None };

    /// Access to the persistent memory of another node.
    pub const REMOTE: LinkCost = LinkCost { read_ns: 180.7, write_ns: 496.8, read_gb_s: 5.09, write_gb_s: 0.37, collapse_threads: Some(5) };

    /// Write bandwidth that `threads` concurrent writers share, GB/s.
    pub fn write_bandwidth(&self, threads: u32) -> f64 {
        match self.collapse_threads {
            Some(limit) if threads > limit => self.write_gb_s * f64::from(limit) / f64::from(threads),
            _ => self.write_gb_s,
        }
    }
}

/// The matrix of costs, row = accessor node, column = home node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeCosts {
    count: usize,
    links: Vec<LinkCost>,
}

impl NodeCosts {
    /// The defaults for `count` nodes (1 to [`MAX_NODES`]).
    pub fn defaults(count: usize) -> NodeCosts {
        let count = count.clamp(1, MAX_NODES);
        let link = |i: usize| if i / count == i % count { LinkCost::LOCAL } else { LinkCost::REMOTE };
        NodeCosts { count, links: (0..count * count).map(link).collect() }
    }

    /// Cost of an access from `accessor` to memory of `home`. Nodes outside the matrix cost as much as remote ones.
    pub fn link(&self, accessor: u32, home: u32) -> LinkCost {
        match self.index(accessor, home) {
            Some(i) => self.links[i],
            None => LinkCost::REMOTE,
        }
    }

    /// Sets the cost of one pair. Returns false if there is no such pair.
    pub fn set(&mut self, accessor: u32, home: u32, cost: LinkCost) -> bool {
        match self.index(accessor, home) {
            Some(i) => {
                self.links[i] = cost;
                true
            }
            None => false,
        }
    }

    fn index(&self, accessor: u32, home: u32) -> Option<usize> {
        let (a, h) = (accessor as usize, home as usize);
        (a < self.count && h < self.count).then_some(a * self.count + h)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paper_defaults_and_collapse() {
        let costs = NodeCosts::defaults(2);
        assert_eq!(costs.link(0, 0), LinkCost::LOCAL);
        assert_eq!(costs.link(1, 0), LinkCost::REMOTE);
        assert_eq!(LinkCost::LOCAL.write_bandwidth(32), 0.73);
        assert_eq!(LinkCost::REMOTE.write_bandwidth(5), 0.37);
        assert!((LinkCost::REMOTE.write_bandwidth(10) - 0.185).abs() < 1e-9);
        assert_eq!(costs.link(0, 9), LinkCost::REMOTE);
    }
}
