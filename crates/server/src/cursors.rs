//! Cursors of the SCAN family: numbers for clients, each of which stands for the key at which an iteration goes on.
//!
//! A position is a key, not a place in a table. So an iteration returns every key that exists from its beginning to its
//! end, exactly once, whatever happens to other keys meanwhile. A cursor may be used again.
//!
//! The newest [`CAPACITY`] cursors of all clients together are kept, or as many as have keys of [`MOST_BYTES`] in all.
//! A cursor that has been forgotten, or that an earlier run of the server gave, is an error and never ends an iteration
//! silently. The commands HITHER.RANGE and HITHER.PREFIX have cursors that never expire, because they are the key
//! itself.

use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of cursors kept.
pub const CAPACITY: usize = 1 << 16;

/// Maximum bytes of their keys, in all: each key may have 64 KiB.
pub const MOST_BYTES: usize = 32 << 20;

/// What an iteration goes over, within a database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    /// The keys of the database.
    Keys,
    /// Members of the collection that a key has, whichever it is: if it is replaced meanwhile, the iteration goes on in
    /// the new one, as in Redis. See [`Cursors::members_of`].
    Members(u64),
}

/// A database's number, and what the iteration goes over there.
pub type Scope = (u16, Over);

/// Cursors that an attempt has answered, and that are kept once it is applied: no more than [`Cursors`] would keep.
#[derive(Default)]
pub struct Given {
    cursors: VecDeque<(u64, Scope, Vec<u8>)>,
    /// Bytes of all positions.
    bytes: usize,
}

impl Given {
    /// Adds a cursor, and drops the oldest if there are too many.
    pub fn push(&mut self, cursor: u64, scope: Scope, position: Vec<u8>) {
        self.bytes += position.len();
        self.cursors.push_back((cursor, scope, position));
        while self.cursors.len() > CAPACITY || self.bytes > MOST_BYTES {
            let Some((_, _, oldest)) = self.cursors.pop_front() else { break };
            self.bytes -= oldest.len();
        }
    }

    /// Whether there are no cursors.
    pub fn is_empty(&self) -> bool {
        self.cursors.is_empty()
    }

    /// Drops all cursors.
    pub fn clear(&mut self) {
        *self = Given::default();
    }
}

/// All cursors of a server.
#[derive(Default)]
pub struct Cursors {
    last: AtomicU64,
    /// Maps keys to numbers that no client can foresee.
    hasher: RandomState,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    positions: HashMap<u64, (Scope, Vec<u8>)>,
    order: VecDeque<u64>,
    /// Bytes of all positions.
    bytes: usize,
}

impl Cursors {
    /// The members of what a key has. A position of one key must not count for another: the reply would reveal a name
    /// that readers of the other key may not know. A hash stands for the key, which may be long; two keys with the same
    /// hash are nothing that a client could look for.
    pub fn members_of(&self, key: &[u8]) -> Over {
        Over::Members(self.hasher.hash_one(key))
    }

    /// Returns a number for a cursor, never given twice.
    pub fn number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Keeps a cursor for what follows `position`; `cursor` must be a number given for it.
    pub fn insert(&self, cursor: u64, scope: Scope, position: Vec<u8>) {
        let mut state = self.state.lock();
        state.bytes += position.len();
        state.positions.insert(cursor, (scope, position));
        state.order.push_back(cursor);
        while state.order.len() > CAPACITY || state.bytes > MOST_BYTES {
            let Some(oldest) = state.order.pop_front() else { break };
            state.bytes -= state.positions.remove(&oldest).map_or(0, |(_, position)| position.len());
        }
    }

    /// Keeps all of these.
    pub fn insert_all(&self, given: Given) {
        given.cursors.into_iter().for_each(|(cursor, scope, position)| self.insert(cursor, scope, position));
    }

    /// The position of a cursor, if it has this scope.
    pub fn position(&self, scope: Scope, cursor: u64) -> Option<Vec<u8>> {
        let state = self.state.lock();
        state.positions.get(&cursor).filter(|(of, _)| *of == scope).map(|(_, position)| position.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(cursors: &Cursors, position: &[u8]) -> u64 {
        let cursor = cursors.number();
        cursors.insert(cursor, (0, Over::Keys), position.to_vec());
        cursor
    }

    #[test]
    fn cursors_are_kept_until_there_are_too_many() {
        let cursors = Cursors::default();
        let first = insert(&cursors, b"a");
        assert_ne!(first, 0);
        assert_eq!(cursors.position((0, Over::Keys), first), Some(b"a".to_vec()));
        assert_eq!(cursors.position((0, Over::Keys), first), Some(b"a".to_vec()), "a cursor may be used again");
        assert_eq!(cursors.position((1, Over::Keys), first), None, "of another database");
        assert_eq!(cursors.position((0, cursors.members_of(b"k")), first), None, "of keys");
        for _ in 0..CAPACITY {
            insert(&cursors, b"b");
        }
        assert_eq!(cursors.position((0, Over::Keys), first), None);
        assert_eq!(cursors.position((0, Over::Keys), first + 1), Some(b"b".to_vec()));
    }

    /// Regression: 65,536 cursors with keys of 64 KiB took 4 GiB.
    #[test]
    fn the_bytes_of_their_keys_are_bounded() {
        let cursors = Cursors::default();
        let newest = (0..1000).map(|_| insert(&cursors, &[b'k'; 64 << 10])).last().unwrap();
        let held = |cursors: &Cursors| cursors.state.lock().positions.values().map(|(_, position)| position.len()).sum::<usize>();
        assert!(held(&cursors) <= 32 << 20, "{}", held(&cursors));
        assert_eq!(cursors.position((0, Over::Keys), newest - 511).map(|position| position.len()), Some(64 << 10));
        assert_eq!(cursors.position((0, Over::Keys), newest - 512), None, "the oldest go");
        for _ in 0..1000 {
            insert(&cursors, b"b");
        }
        assert!(cursors.position((0, Over::Keys), newest).is_some(), "small ones push out none");
        let state = cursors.state.lock();
        assert_eq!((state.order.len(), state.bytes), (state.positions.len(), state.positions.values().map(|(_, p)| p.len()).sum()));
    }
}
