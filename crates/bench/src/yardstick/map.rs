//! The map yardstick: 256 `hashbrown` maps from `u64` to `u64` behind `parking_lot` reader–writer locks, on huge pages.
//!
//! The shard is the high byte of a multiply-mix hash. Inside a shard, `hashbrown` takes its tag from the high bits and
//! the bucket from the low bits of its hash, so the inner hash uses another multiplier.
//!
//! Thread safety: one lock per shard, each on cache lines of its own.

use std::hash::{BuildHasherDefault, Hasher};

use hashbrown::HashMap;
use parking_lot::RwLock;

use super::huge::HugeArena;

/// Folded multiplication: the high and low halves of a 128-bit product, joined.
#[inline]
fn multiply_mix(key: u64, multiplier: u64) -> u64 {
    let product = u128::from(key ^ multiplier) * u128::from(multiplier);
    (product >> 64) as u64 ^ product as u64
}

/// The hash inside a shard.
#[derive(Default)]
pub struct InnerHasher(u64);

impl Hasher for InnerHasher {
    #[inline]
    fn write_u64(&mut self, key: u64) {
        self.0 = multiply_mix(key, 0xD6E8_FEB8_6659_FD93);
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.0 = multiply_mix(self.0 ^ u64::from(*b), 0xD6E8_FEB8_6659_FD93));
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

type Inner = HashMap<u64, u64, BuildHasherDefault<InnerHasher>, HugeArena>;

#[repr(align(128))]
struct Shard(RwLock<Inner>);

/// The map.
pub struct ShardedMap {
    shards: Box<[Shard]>,
    arena: HugeArena,
}

impl ShardedMap {
    /// Number of shards.
    pub const SHARDS: usize = 256;

    /// A map with room for about `keys` keys.
    pub fn with_capacity(keys: usize) -> Self {
        let arena = HugeArena::new();
        let each = keys.div_ceil(Self::SHARDS);
        let shard = |_| Shard(RwLock::new(HashMap::with_capacity_and_hasher_in(each, BuildHasherDefault::default(), arena.clone())));
        Self { shards: (0..Self::SHARDS).map(shard).collect(), arena }
    }

    #[inline]
    fn shard(&self, key: u64) -> &RwLock<Inner> {
        &self.shards[(multiply_mix(key, 0x9E37_79B9_7F4A_7C15) >> 56) as usize].0
    }

    /// The value of a key.
    #[inline]
    pub fn get(&self, key: u64) -> Option<u64> {
        self.shard(key).read().get(&key).copied()
    }

    /// Sets a value.
    #[inline]
    pub fn insert(&self, key: u64, value: u64) {
        self.shard(key).write().insert(key, value);
    }

    /// Removes a key; returns false if it was absent.
    pub fn remove(&self, key: u64) -> bool {
        self.shard(key).write().remove(&key).is_some()
    }

    /// True if its memory is on huge pages.
    pub fn huge_pages(&self) -> bool {
        self.arena.huge_pages()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaves_like_a_map_and_spreads() {
        let map = ShardedMap::with_capacity(1000);
        (0..10_000u64).for_each(|i| map.insert(i, i * 3));
        assert!((0..10_000).all(|i| map.get(i) == Some(i * 3)));
        assert_eq!(map.get(10_000), None);
        assert!(map.remove(5) && !map.remove(5) && map.get(5).is_none());
        let fullest = map.shards.iter().map(|s| s.0.read().len()).max().expect("shards");
        assert!(fullest < 80, "{fullest} of 10,000 in one of 256 shards");
    }
}
