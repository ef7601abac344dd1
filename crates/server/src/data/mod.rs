//! How Redis' data is laid out in a store, and how commands change it.
//!
//! # Databases
//!
//! Database *n* (`SELECT n`) is a pair of ordered keyspaces: `dbN` with one entry for each key, and `dbN.rows` with the
//! members of collections. An entry's expiry is the engine's own: the engine hides and sweeps what has expired. The
//! keyspace `server` holds the counter of collection numbers, and the version up to which collections are known to be
//! whole ([`mark`]).
//!
//! # Entries of `dbN`
//!
//! The key is the client's. The first byte of the value is its type:
//!
//! ```text
//! string      00 | bytes
//! hash        01 | number u64 | members u64
//! sorted set  02 | number u64 | members u64
//! ```
//!
//! All integers on media are big-endian here, so that bytes sort like numbers. What follows the type byte of a
//! collection is its *head*. The types 03 (list), 04 (set) and 05 (stream) are reserved.
//!
//! # Rows of `dbN.rows`
//!
//! ```text
//! 00 | number u64                                -> key in dbN           the collection is there, under this key
//! 01 | number u64 | 'f' | field                  -> value                field of a hash
//! 01 | number u64 | 'm' | member                 -> score, 8 bytes       member of a sorted set
//! 01 | number u64 | 's' | score 8 bytes | member -> nothing              the same, in the order of scores
//! 02                                             -> nothing              there are, or were, collections
//! ```
//!
//! The last row is durable before the first head is written, and stays. A loss of power may take all other rows, and
//! [`mend`] must know that there were some.
//!
//! A score is stored as its IEEE bits, with all bits inverted if it is negative and only the sign bit inverted if not,
//! so that bytes sort like scores. −0 is stored as 0.
//!
//! # Rules
//!
//! 1. A number is never used twice: numbers are taken from a counter on media, a block at a time.
//! 2. Every change of a collection writes its head in the same batch as the rows, on the condition that the head is as
//!    it was read. So the head's version stands for the whole collection: a reader that reads the head, then rows, and
//!    then finds the head unchanged has read one state. `WATCH` relies on that, too. It requires that rows become
//!    visible before their head, so a batch writes them in this order.
//! 3. A collection without members does not exist: removing the last member deletes the head.
//! 4. Deleting, overwriting and expiring a collection touch only its head: O(1) whatever its size. Its rows are then
//!    unreachable, since no head has their number, and [`reaper`] removes them in the background.
//! 5. A change builds on the one before it. If neither was durable, a loss of power may take the earlier one and keep
//!    the later one. [`mend`] repairs that before anything is served.
//!
//! # Atomicity and durability
//!
//! A command is a [`txn::Txn`]: it reads, remembers versions, collects writes, and commits one batch with what it read
//! as preconditions; on a conflict it runs again. MULTI/EXEC is the same with several commands, so it is atomic on
//! media as well.
//!
//! A transaction does not wait for its own durability. It returns the version that it rests on, and its reply is held
//! until that version is durable (see [`crate::net`]). Only two things wait for a sync while a command runs: the first
//! collection of a database ([`txn::Txn::register`]), and one in a million new collections
//! ([`Databases::next_number`]).

pub mod databases;
pub mod encoding;
pub mod mark;
pub mod mend;
pub mod reaper;
pub mod txn;

pub use databases::{Database, Databases, Found};
pub use txn::{Item, Txn};
