//! The workloads of the experiments on placement and caching: which items are read, and from which node.
//!
//! An item lies on the node that wrote it last before the experiment ([`Skew::home`]). *Symmetric* readers are on every
//! node alike. With *affinity* a given share of each item's gets comes from one node, the item's favourite, which is
//! independent of its home. The rest comes evenly from the other nodes.

use crate::workload::permutation::mix64;
use crate::workload::random::Random;
use crate::workload::zipf::Zipf;
use hither_cache::sim::Share;
use hither_cache::{UNIT, Weights};

/// The items, and the nodes that read them.
#[derive(Clone, Debug)]
pub struct Skew {
    items: u64,
    nodes: u32,
    /// The textbook distribution; `None`: uniform.
    zipf: Option<Zipf>,
    /// Share of each item's gets that comes from its favourite node; `None`: symmetric.
    affinity: Option<f64>,
    /// Added to ranks, to move the hot spot.
    shift: u64,
}

impl Skew {
    /// `items` items on `nodes` nodes. `theta` 0 is uniform.
    pub fn new(items: u64, nodes: u32, theta: f64, affinity: Option<f64>) -> Skew {
        Skew { items, nodes, zipf: (theta > 0.0).then(|| Zipf::new(items, theta)), affinity, shift: 0 }
    }

    /// Makes other items hot: the item of the middle rank becomes the hottest.
    pub fn shift(&mut self) {
        self.shift = (self.shift + self.items / 2) % self.items;
    }

    /// The node that holds an item.
    #[inline]
    pub fn home(&self, item: u64) -> u32 {
        (mix64(item ^ 0x686f_6d65) % u64::from(self.nodes)) as u32
    }

    fn favourite(&self, item: u64) -> u32 {
        (mix64(item ^ 0x6661_766f_7572) % u64::from(self.nodes)) as u32
    }

    /// Draws the next item, and the node that reads it.
    #[inline]
    pub fn draw(&self, random: &mut Random) -> (u64, u32) {
        let rank = match &self.zipf {
            Some(zipf) => zipf.draw(random),
            None => random.below(self.items),
        };
        let item = rank + self.shift;
        let item = if item >= self.items { item - self.items } else { item };
        (item, self.reader(item, random))
    }

    fn reader(&self, item: u64, random: &mut Random) -> u32 {
        let Some(share) = self.affinity.filter(|_| self.nodes > 1) else { return random.below(self.nodes.into()) as u32 };
        let favourite = self.favourite(item);
        if random.unit() < share {
            return favourite;
        }
        let other = random.below(u64::from(self.nodes) - 1) as u32;
        other + u32::from(other >= favourite)
    }

    /// The share of all gets that come from `reader` for `item`.
    fn share(&self, item: u64, reader: u32) -> f64 {
        let of_item = self.zipf.map_or(1.0 / self.items as f64, |zipf| {
            let rank = (item + self.items - self.shift) % self.items;
            zipf.share_below(rank + 1) - zipf.share_below(rank)
        });
        let of_reader = match self.affinity.filter(|_| self.nodes > 1) {
            None => 1.0 / f64::from(self.nodes),
            Some(share) if reader == self.favourite(item) => share,
            Some(share) => (1.0 - share) / f64::from(self.nodes - 1),
        };
        of_item * of_reader
    }

    /// The weight of each item's gets: local, remote, and weighted by latency.
    pub fn shares(&self, weights: &Weights) -> Vec<Share> {
        let share = |item: u64| {
            let (home, mut sum) = (self.home(item), Share::default());
            for reader in 0..self.nodes {
                let share = self.share(item, reader);
                *if reader == home { &mut sum.local } else { &mut sum.remote } += share as f32;
                sum.weighted += (share * f64::from(weights.weight(reader, home)) / f64::from(UNIT)) as f32;
            }
            sum
        };
        (0..self.items).map(share).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_topology::Topology;

    /// The exact shares must agree with what is drawn; otherwise every comparison with the optimum is worthless.
    #[test]
    fn draws_follow_the_shares() {
        let weights = Weights::of(&Topology::emulated(4));
        for (theta, affinity) in [(0.0, None), (0.99, Some(0.9)), (0.5, None)] {
            let mut skew = Skew::new(1_000, 4, theta, affinity);
            skew.shift();
            let shares = skew.shares(&weights);
            let (mut random, mut local, mut remote) = (Random::new(3), vec![0u32; 1_000], vec![0u32; 1_000]);
            for _ in 0..1_000_000 {
                let (item, reader) = skew.draw(&mut random);
                *if reader == skew.home(item) { &mut local[item as usize] } else { &mut remote[item as usize] } += 1;
            }
            for item in 0..1_000 {
                for (seen, share) in [(local[item], shares[item].local), (remote[item], shares[item].remote)] {
                    let expected = f64::from(share) * 1e6;
                    let off = (f64::from(seen) - expected).abs();
                    assert!(off < 6.0 * expected.sqrt() + 3.0, "theta {theta}, item {item}: {seen} instead of {expected}");
                }
            }
            let whole: f32 = shares.iter().map(|share| share.local + share.remote).sum();
            assert!((whole - 1.0).abs() < 1e-3);
        }
    }
}
