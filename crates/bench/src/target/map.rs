//! The map yardstick as a target, so that its figures come from the same loop as the store's.
//!
//! Thread safety: the map locks its shards itself. Only 8-byte keys and values; no batches, no order.

use super::{Error, Result, Session, Target};
use crate::yardstick::map::ShardedMap;

/// The yardstick of gets.
pub struct MapTarget {
    map: ShardedMap,
}

impl MapTarget {
    /// An empty map for about `keys` keys.
    pub fn new(keys: u64) -> Self {
        Self { map: ShardedMap::with_capacity(keys as usize) }
    }

    /// True if its memory is on huge pages.
    pub fn huge_pages(&self) -> bool {
        self.map.huge_pages()
    }
}

impl Target for MapTarget {
    type Session<'a> = MapSession<'a>;

    fn name(&self) -> &str {
        "yardstick-map"
    }

    fn settings(&self) -> Vec<(String, String)> {
        let text = |a: &str, b: String| (a.to_string(), b);
        vec![
            text("maps", ShardedMap::SHARDS.to_string()),
            text("lock", "parking_lot reader-writer".into()),
            text("huge pages", self.huge_pages().to_string()),
        ]
    }

    fn own_medium(&self) -> Option<(&'static str, &'static str)> {
        Some(("volatile", "none"))
    }

    fn session(&self) -> Result<MapSession<'_>> {
        Ok(MapSession { map: &self.map })
    }
}

/// A thread's view of the map.
pub struct MapSession<'a> {
    map: &'a ShardedMap,
}

fn word(bytes: &[u8], what: &str) -> Result<u64> {
    let bytes = bytes.try_into().map_err(|_| Error::Config(format!("the map yardstick takes 8-byte {what}, not {}", bytes.len())))?;
    Ok(u64::from_le_bytes(bytes))
}

fn lacking<T>(operation: &'static str) -> Result<T> {
    Err(Error::Unsupported { store: "yardstick-map".into(), operation })
}

impl Session for MapSession<'_> {
    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.map.insert(word(key, "keys")?, word(value, "values")?);
        Ok(())
    }

    #[inline(always)]
    fn get<R>(&mut self, key: &[u8], mut f: impl FnMut(&[u8]) -> R) -> Result<Option<R>> {
        Ok(self.map.get(word(key, "keys")?).map(|value| f(&value.to_le_bytes())))
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool> {
        Ok(self.map.remove(word(key, "keys")?))
    }

    fn read_modify_write(&mut self, _: &[u8], _: impl FnMut(Option<&[u8]>, &mut Vec<u8>)) -> Result<()> {
        lacking("read-modify-write")
    }

    fn scan(&mut self, _: &[u8], _: usize, _: impl FnMut(&[u8], &[u8])) -> Result<usize> {
        lacking("scan")
    }

    fn put_batch(&mut self, _: &[Vec<u8>], _: &[Vec<u8>]) -> Result<()> {
        lacking("put-batch")
    }
}
