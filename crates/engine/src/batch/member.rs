//! The members of a batch during its commit: flat words, in memory that a thread keeps from one commit to the next.
//!
//! Thread safety: the memory belongs to the thread.

use super::{Contents, Operation};
use hither_index::{Index, Key, Located, Ref};
use std::cell::Cell;

/// A member during its commit.
#[derive(Clone, Copy)]
pub(super) struct Member {
    /// A copy, so that rounds over members look nowhere else for it.
    pub operation: Operation,
    /// The key's entry before the batch; unverified unless `verified`.
    pub candidate: Ref,
    pub reference: Ref,
    pub token: AnyToken,
    pub verified: bool,
}

const _: () = assert!(size_of::<Member>() <= 96);

/// The token of any index.
#[derive(Clone, Copy)]
pub(super) enum AnyToken {
    Ordered(<hither_index::btree::BTreeIndex as Index>::Token),
    Learned(<hither_index::learned::LearnedIndex as Index>::Token),
    Hash(<hither_index::hash::HashIndex as Index>::Token),
    None,
}

/// Runs `$body` with `$index` bound to the keyspace's index and `$place` to the token that the index gave.
macro_rules! with_token {
    ($keyspace:expr, $token:expr, $index:ident, $place:ident => $body:expr) => {
        match (&*$keyspace.index, $token) {
            (AnyIndex::Ordered($index), AnyToken::Ordered($place)) => $body,
            (AnyIndex::Learned($index), AnyToken::Learned($place)) => $body,
            (AnyIndex::Hash($index), AnyToken::Hash($place)) => $body,
            _ => unreachable!("a member's token comes from its keyspace's index"),
        }
    };
}
pub(super) use with_token;

impl Member {
    /// Stores what the index found.
    #[inline(always)]
    pub fn note<T>(&mut self, located: Located<T>, token: impl FnOnce(T) -> AnyToken) {
        (self.candidate, self.verified, self.token) = (located.candidate, located.verified, token(located.token));
    }

    /// The member's key. The hash is not computed again.
    #[inline(always)]
    pub fn key<'a>(&self, contents: &'a Contents) -> Key<'a> {
        Key { bytes: contents.key(&self.operation), hash: self.operation.hash }
    }
}

/// Memory that a commit works in.
#[derive(Default)]
pub(super) struct Scratch {
    pub members: Vec<Member>,
    /// The members' latches in the order of the operations; `sorted` holds them sorted, if that is needed, with those
    /// of conditions.
    pub stripes: Vec<usize>,
    pub sorted: Vec<usize>,
}

/// Longer lists of members or latches are not kept.
const SPARE_MEMBERS: usize = 1 << 10;

thread_local! {
    static SPARE: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

impl Scratch {
    #[inline(always)]
    pub fn take() -> Box<Scratch> {
        SPARE.try_with(Cell::take).ok().flatten().unwrap_or_default()
    }

    #[inline(always)]
    pub fn give_back(self: Box<Scratch>) {
        // Among the lists of latches only the sorted one can be longer than the members: it includes those of
        // conditions.
        if self.members.capacity() <= SPARE_MEMBERS && self.sorted.capacity() <= SPARE_MEMBERS {
            // While the thread ends there is no place for a spare.
            let _ = SPARE.try_with(|spare| spare.set(Some(self)));
        }
    }

    /// Makes one member of each operation of a batch.
    #[inline(always)]
    pub fn gather(&mut self, contents: &Contents) {
        self.members.clear();
        self.members.extend(contents.operations.iter().map(|&operation| Member {
            operation,
            candidate: Ref::NONE,
            reference: Ref::NONE,
            token: AnyToken::None,
            verified: true,
        }));
    }
}

/// Keeps only the last operation of each key.
pub(super) fn drop_overwritten(contents: &Contents, members: &mut Vec<Member>) {
    let mut order: Vec<u32> = (0..members.len() as u32).collect();
    let identity = |i: u32| {
        let operation = &members[i as usize].operation;
        (operation.hash, contents.keyspace(operation).info.id)
    };
    order.sort_unstable_by_key(|&i| (identity(i), i));
    let bytes = |i: u32| members[i as usize].key(contents).bytes;
    let same = |a: u32, b: u32| identity(a) == identity(b) && bytes(a) == bytes(b);
    let mut overwritten: Vec<u32> = Vec::new();
    for (position, &earlier) in order.iter().enumerate() {
        // Equal hashes are neighbours; several keys may share a hash.
        let mut later = order[position + 1..].iter().take_while(|&&other| identity(other) == identity(earlier));
        if later.any(|&other| same(earlier, other)) {
            overwritten.push(earlier);
        }
    }
    if overwritten.is_empty() {
        return;
    }
    overwritten.sort_unstable();
    let mut number = 0;
    members.retain(|_| {
        number += 1;
        overwritten.binary_search(&(number - 1)).is_err()
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::{Kind, Options, Store};

    /// Regression: the size of the members alone decided what a thread kept for its next batch, so many conditions
    /// stayed with it for ever.
    #[test]
    fn many_conditions_are_not_kept() {
        let store = Store::open(Options { in_memory: true, background: false, ..Options::default() }).unwrap();
        let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
        let mut batch = Batch::default();
        batch.put(&keyspace, b"key", b"value", 0);
        (0..10_000u32).for_each(|number| batch.require_version(&keyspace, &number.to_le_bytes(), None));
        store.commit_wait(&batch).unwrap();
        drop(batch);
        assert!(Scratch::take().sorted.capacity() <= SPARE_MEMBERS);
        assert!(Batch::default().contents().preconditions.capacity() <= SPARE_MEMBERS);
    }
}
