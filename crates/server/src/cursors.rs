//! Cursors of the SCAN family: numbers for clients, that stand for the key at which an iteration goes on.
//!
//! A position is a key, not a place in a table, so an iteration returns every key that is there from its beginning to its end, exactly once, whatever
//! happens to other keys meanwhile. A cursor may be used again. The newest [`CAPACITY`] cursors are kept, all clients together; one that has been
//! forgotten, or that an earlier run of the server gave, is an error, never a silent end. The commands HITHER.RANGE and HITHER.PREFIX have cursors
//! that never expire, because they are the key itself.

use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};

/// Cursors kept.
pub const CAPACITY: usize = 1 << 16;

/// What an iteration goes over: database, and the collection's number or 0 for the keys.
pub type Scope = (u16, u64);

/// All cursors of a server.
#[derive(Default)]
pub struct Cursors {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: u64,
    positions: HashMap<u64, (Scope, Vec<u8>)>,
    order: VecDeque<u64>,
}

impl Cursors {
    /// A cursor for what follows `position`.
    pub fn insert(&self, scope: Scope, position: Vec<u8>) -> u64 {
        let mut state = self.state.lock();
        state.last += 1;
        let cursor = state.last;
        state.positions.insert(cursor, (scope, position));
        state.order.push_back(cursor);
        if state.order.len() > CAPACITY
            && let Some(oldest) = state.order.pop_front()
        {
            state.positions.remove(&oldest);
        }
        cursor
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

    #[test]
    fn cursors_are_kept_until_there_are_too_many() {
        let cursors = Cursors::default();
        let first = cursors.insert((0, 0), b"a".to_vec());
        assert_ne!(first, 0);
        assert_eq!(cursors.position((0, 0), first), Some(b"a".to_vec()));
        assert_eq!(cursors.position((0, 0), first), Some(b"a".to_vec()), "a cursor may be used again");
        assert_eq!(cursors.position((1, 0), first), None, "of another database");
        for _ in 0..CAPACITY {
            cursors.insert((0, 0), b"b".to_vec());
        }
        assert_eq!(cursors.position((0, 0), first), None);
        assert_eq!(cursors.position((0, 0), first + 1), Some(b"b".to_vec()));
    }
}
