//! Cursors of the SCAN family: numbers for clients, that stand for the key at which an iteration goes on.
//!
//! A position is a key, not a place in a table, so an iteration returns every key that is there from its beginning to its end, exactly once, whatever
//! happens to other keys meanwhile. A cursor may be used again. The newest [`CAPACITY`] cursors are kept, all clients together, or as many as have keys of
//! [`MOST_BYTES`] in all; one that has been forgotten, or that an earlier run of the server gave, is an error, never a silent end. The commands HITHER.RANGE and HITHER.PREFIX have cursors
//! that never expire, because they are the key itself.

use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Cursors kept.
pub const CAPACITY: usize = 1 << 16;

/// Bytes of their keys, in all: each key may have 64 KiB.
pub const MOST_BYTES: usize = 32 << 20;

/// What an iteration goes over, in a database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    /// Its keys.
    Keys,
    /// Members of whichever collection a key has: if it is another one meanwhile, the iteration goes on in that, as in Redis. See [`Cursors::members_of`].
    Members(u64),
}

/// Database, and what of it.
pub type Scope = (u16, Over);

/// Cursors that were answered and are kept once the attempt is applied: no more of them than [`Cursors`] would keep.
#[derive(Default)]
pub struct Given {
    cursors: VecDeque<(u64, Scope, Vec<u8>)>,
    /// Of all positions.
    bytes: usize,
}

impl Given {
    /// Adds one; the oldest go.
    pub fn push(&mut self, cursor: u64, scope: Scope, position: Vec<u8>) {
        self.bytes += position.len();
        self.cursors.push_back((cursor, scope, position));
        while self.cursors.len() > CAPACITY || self.bytes > MOST_BYTES {
            let Some((_, _, oldest)) = self.cursors.pop_front() else { break };
            self.bytes -= oldest.len();
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.cursors.is_empty()
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        *self = Given::default();
    }
}

/// All cursors of a server.
#[derive(Default)]
pub struct Cursors {
    last: AtomicU64,
    /// Makes numbers of keys that nobody outside can foresee.
    hasher: RandomState,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    positions: HashMap<u64, (Scope, Vec<u8>)>,
    order: VecDeque<u64>,
    /// Of all positions.
    bytes: usize,
}

impl Cursors {
    /// The members of what a key has. A position of one key must not count for another: what comes behind it tells of a name that the other key's readers may not know. A
    /// hash stands for the key, which may be long; two that share one are nothing that somebody could look for.
    pub fn members_of(&self, key: &[u8]) -> Over {
        Over::Members(self.hasher.hash_one(key))
    }

    /// A number for a cursor: never given twice.
    pub fn number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Keeps a cursor for what follows `position`, under a number that was given for it.
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

    /// The position of a cursor of this scope.
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

    /// Regression: as many cursors of keys of 64 KiB took 4 GiB.
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
