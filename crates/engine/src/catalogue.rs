//! The catalogue of keyspaces: small, kept whole in the lowest pool, and changed by the pool's two-slot protocol, which
//! is atomic under crashes.
//!
//! Layout (`docs/format.md`): next id u32, count u32, then per keyspace id u32, kind u8 (1 ordered, 2 hash), name
//! length u8, name. Ids start at 1 and are never used again, since old entries may still be on media; 0 means "no
//! keyspace".
//!
//! Thread safety: plain data; the store changes it under a lock.

use crate::error::{Error, Result};
use crate::keyspace::{KeyspaceInfo, Kind};
use std::collections::HashSet;

/// The first id.
const FIRST_ID: u32 = 1;
const MAX_NAME_BYTES: usize = 64;
/// Number of keyspaces that fits the pool's catalogue area, whatever their names are.
const MAX_KEYSPACES: usize = (hither_pmem::CATALOGUE_MAX_BYTES - 8) / (6 + MAX_NAME_BYTES);

/// Whether a keyspace may have this name: 1 to 64 bytes of UTF-8 without control characters.
///
/// # Errors
/// [`Error::KeyspaceName`].
pub fn check_name(name: &str) -> Result<()> {
    let bad = name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control);
    if bad { Err(Error::KeyspaceName(name.to_owned())) } else { Ok(()) }
}

/// The decoded catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Catalogue {
    pub next_id: u32,
    pub keyspaces: Vec<KeyspaceInfo>,
}

impl Catalogue {
    pub fn empty() -> Catalogue {
        Catalogue { next_id: FIRST_ID, keyspaces: Vec::new() }
    }

    /// Adds a keyspace under a fresh id.
    pub fn add(&mut self, name: &str, kind: Kind) -> Result<KeyspaceInfo> {
        check_name(name)?;
        if self.keyspaces.iter().any(|known| known.name == name) {
            return Err(Error::KeyspaceExists(name.to_owned()));
        }
        if self.keyspaces.len() >= MAX_KEYSPACES || self.next_id == u32::MAX {
            return Err(Error::TooManyKeyspaces(self.keyspaces.len()));
        }
        let info = KeyspaceInfo { name: name.to_owned(), id: self.next_id, kind };
        self.next_id += 1;
        self.keyspaces.push(info.clone());
        Ok(info)
    }

    /// Adds an ordered keyspace of which only the id is known; returns its name.
    pub fn add_numbered(&mut self, id: u32) -> String {
        let mut name = format!("keyspace-{id}");
        while self.keyspaces.iter().any(|known| known.name == name) {
            name.push('+');
        }
        self.keyspaces.push(KeyspaceInfo { name: name.clone(), id, kind: Kind::Ordered });
        self.next_id = self.next_id.max(id.saturating_add(1));
        name
    }

    /// Removes a keyspace; its id is not given out again.
    pub fn remove(&mut self, name: &str) -> Option<KeyspaceInfo> {
        let at = self.keyspaces.iter().position(|known| known.name == name)?;
        Some(self.keyspaces.remove(at))
    }

    /// Exchanges two names. Returns false if one of them is not there.
    pub fn swap(&mut self, a: &str, b: &str) -> bool {
        let place = |name| self.keyspaces.iter().position(|known| known.name == name);
        let (Some(at_a), Some(at_b)) = (place(a), place(b)) else { return false };
        self.keyspaces[at_a].name = b.to_owned();
        self.keyspaces[at_b].name = a.to_owned();
        true
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&self.next_id.to_le_bytes());
        bytes.extend_from_slice(&(self.keyspaces.len() as u32).to_le_bytes());
        for keyspace in &self.keyspaces {
            bytes.extend_from_slice(&keyspace.id.to_le_bytes());
            bytes.push(if keyspace.kind == Kind::Ordered { 1 } else { 2 });
            bytes.push(keyspace.name.len() as u8);
            bytes.extend_from_slice(keyspace.name.as_bytes());
        }
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Catalogue> {
        Self::parse(bytes).ok_or_else(|| {
            Error::NewerFormat(
                "the catalogue of keyspaces cannot be read although its checksum is right; use the version of hither that wrote it".into(),
            )
        })
    }

    fn parse(mut bytes: &[u8]) -> Option<Catalogue> {
        if bytes.is_empty() {
            return Some(Catalogue::empty());
        }
        let next_id = take_u32(&mut bytes)?;
        let count = take_u32(&mut bytes)?;
        let mut keyspaces = Vec::new();
        for _ in 0..count {
            let id = take_u32(&mut bytes)?;
            let (&[kind, len], rest) = bytes.split_first_chunk()?;
            let (name, rest) = rest.split_at_checked(usize::from(len))?;
            bytes = rest;
            let kind = match kind {
                1 => Kind::Ordered,
                2 => Kind::Hash,
                _ => return None,
            };
            keyspaces.push(KeyspaceInfo { name: std::str::from_utf8(name).ok()?.to_owned(), id, kind });
        }
        let ids: HashSet<u32> = keyspaces.iter().map(|keyspace: &KeyspaceInfo| keyspace.id).collect();
        let names: HashSet<&str> = keyspaces.iter().map(|keyspace| keyspace.name.as_str()).collect();
        let distinct = ids.len() == keyspaces.len() && names.len() == keyspaces.len();
        let given_out = next_id >= FIRST_ID && ids.iter().all(|id| (FIRST_ID..next_id).contains(id));
        (bytes.is_empty() && distinct && given_out).then_some(Catalogue { next_id, keyspaces })
    }
}

fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    let (word, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u32::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_ids_never_come_back() {
        let mut catalogue = Catalogue::empty();
        let first = catalogue.add("a", Kind::Ordered).unwrap();
        catalogue.add("b é", Kind::Hash).unwrap();
        assert!(matches!(catalogue.add("a", Kind::Hash), Err(Error::KeyspaceExists(_))));
        assert_eq!(Catalogue::decode(&catalogue.encode()).unwrap(), catalogue);
        catalogue.remove("a").unwrap();
        let again = catalogue.add("a", Kind::Hash).unwrap();
        assert!(again.id > first.id);
        assert_eq!(Catalogue::decode(&catalogue.encode()).unwrap(), catalogue);
        assert_eq!(Catalogue::decode(&[]).unwrap(), Catalogue::empty());
    }

    #[test]
    fn the_fullest_catalogue_fits_its_area() {
        let mut catalogue = Catalogue::empty();
        for i in 0..MAX_KEYSPACES {
            catalogue.add(&format!("{i:064}"), Kind::Hash).unwrap();
        }
        assert!(matches!(catalogue.add("one more", Kind::Hash), Err(Error::TooManyKeyspaces(_))));
        assert!(catalogue.encode().len() <= hither_pmem::CATALOGUE_MAX_BYTES);
    }

    #[test]
    fn bad_names_and_bad_bytes_are_refused() {
        let mut catalogue = Catalogue::empty();
        for name in ["", "a\n", &"x".repeat(65)] {
            assert!(matches!(catalogue.add(name, Kind::Hash), Err(Error::KeyspaceName(_))));
        }
        catalogue.add("abc", Kind::Hash).unwrap();
        let bytes = catalogue.encode();
        for cut in 1..bytes.len() {
            assert!(Catalogue::decode(&bytes[..cut]).is_err());
        }
    }

    /// Regression: with a next id of 0, recovery subtracted 1 from it.
    #[test]
    fn impossible_ids_and_names_that_come_twice_are_refused() {
        let info = |name: &str, id| KeyspaceInfo { name: name.to_owned(), id, kind: Kind::Hash };
        let refused = |next_id, keyspaces| {
            let outcome = Catalogue::decode(&Catalogue { next_id, keyspaces }.encode());
            assert!(matches!(outcome, Err(Error::NewerFormat(_))), "{outcome:?}");
        };
        refused(0, vec![]);
        refused(0, vec![info("a", 0)]);
        refused(2, vec![info("a", 0)]);
        refused(2, vec![info("a", 2)]);
        refused(3, vec![info("a", 1), info("b", 1)]);
        refused(3, vec![info("a", 1), info("a", 2)]);
        assert!(Catalogue::decode(&Catalogue { next_id: 3, keyspaces: vec![info("a", 2), info("b", 1)] }.encode()).is_ok());
    }
}
