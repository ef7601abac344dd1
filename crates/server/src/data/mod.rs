//! How Redis' data lie in a store, and how commands change them.
//!
//! # Databases
//!
//! Database *n* (`SELECT n`) is a pair of ordered keyspaces: `dbN` with one entry for each key, and `dbN.rows` with the members of collections.
//! An expiry is the entry's own: the engine hides and sweeps what has expired. The keyspace `server` holds the counter of collection numbers, and up to which version collections are
//! known to be whole ([`mark`]).
//!
//! # Entries of `dbN`
//!
//! The key is the client's. The value begins with a byte for its type:
//!
//! ```text
//! string      00 | bytes
//! hash        01 | number u64 | members u64
//! sorted set  02 | number u64 | members u64
//! ```
//!
//! All integers on media are big-endian here, so that bytes sort like numbers. What follows the type of a collection is its *head*. 03 (list),
//! 04 (set) and 05 (stream) are kept free.
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
//! The last one is durable before the first head is written, and stays: a loss of power may take all other rows, and [`mend`] has to know that there were some.
//!
//! A score is its IEEE bits, all of them inverted if it is negative, the sign alone if not: bytes sort like scores. −0 is stored as 0.
//!
//! # Rules
//!
//! 1. A number is never used twice: numbers are taken from a counter on media, a block at a time.
//! 2. Every change of a collection writes its head, in the same batch as the rows, on the condition that the head is as it was read. So the head's
//!    version stands for the whole collection: whoever read the head, then rows, and then finds the head unchanged has read one state. `WATCH` uses
//!    that, too. It takes that rows become visible before their head: a batch writes them in this order.
//! 3. A collection without members does not exist: the last member's removal deletes the head.
//! 4. Deleting, overwriting and expiring a collection touch its head only: O(1) whatever its size. Its rows then are unreachable, since no head
//!    has their number, and [`reaper`] removes them in the background.
//! 5. A change builds on the one before it, of which a loss of power may take the earlier one if neither was durable. [`mend`] puts that right before anything is served.
//!
//! # Atomicity and durability
//!
//! A command is a [`txn::Txn`]: it reads, remembers versions, collects writes, and commits one batch with what it read as preconditions; on a conflict
//! it runs again. MULTI/EXEC is the same with several commands, so it is atomic on media as well. A transaction does not wait for its own durability: it tells
//! the version it rests on, and its reply is held back until that is durable (see [`crate::net`]). What waits for a sync while it runs is the first collection of a database
//! ([`txn::Txn::register`]), and one in a million of new ones ([`Databases::next_number`]).

pub mod databases;
pub mod encoding;
pub mod mark;
pub mod mend;
pub mod reaper;
pub mod txn;

pub use databases::{Database, Databases, Found};
pub use txn::{Item, Txn};
