//! The commands: one file per family, each with its part of the one table ([`table`]).
//!
//! A command is a function of a [`Context`]. It may run several times (see [`Session::run`]), so it changes nothing but through the transaction, the
//! reply and, where it is its business, the session. Whatever else it does is left for when that is applied ([`Context::once_applied`]). It checks all arguments and types before it writes: an error leaves nothing behind.
//!
//! A reply has room for max-output bytes; what does not fit is left out, and [`crate::attempts::run_command`] makes an error of it. A command whose reply can
//! be large looks at that as it goes ([`Writer::is_full`], [`Room`]), so that it does not gather for nothing what can never leave.

pub mod acl;
pub mod arguments;
pub mod bitfield;
pub mod bits;
pub mod blocking;
pub mod client;
pub mod collection;
pub mod connection;
pub mod dump;
pub mod expiry;
pub mod failure;
pub mod floats;
pub mod hashes;
pub mod help;
pub mod keys;
pub mod latency;
pub mod lcs;
pub mod objects;
pub mod ordered;
pub mod saving;
pub mod server;
pub mod sort;
pub mod strings;
pub mod table;
pub mod transactions;
pub mod zsets;

use crate::data::Txn;
use crate::session::Session;
use crate::shared::Shared;
use failure::Failure;
use hither::Db;
use hither_resp::{Args, Writer};
use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::Arc;

/// What a command works with.
pub struct Context<'a> {
    /// What all threads share.
    pub shared: &'a Arc<Shared>,
    /// The client.
    pub session: &'a mut Session,
    /// The arguments, the command's name first.
    pub args: Args<'a>,
    /// What it reads and writes.
    pub txn: &'a mut Txn,
    /// Where the reply goes.
    pub reply: Writer<'a>,
    /// The time.
    pub now: Now<'a>,
}

impl Context<'_> {
    /// Has something be done once, and only if the command's transaction is applied: in the order of the commands, after the commit. What a command answers of it, it has
    /// to know before.
    pub fn once_applied(&mut self, effect: impl FnOnce(&Arc<Shared>, &mut Session) + Send + 'static) {
        self.session.effects.push(Box::new(effect));
    }

    /// It gives a collection an expiry. The reaper is told once that is there, or its next sweep might be the last and not see it.
    pub fn note_expiring(&mut self) {
        self.once_applied(|shared, _| shared.databases.reaper.note_expiring());
    }
}

/// The time of a command: the same however often it is asked for. Most commands never ask, and reading the clock is a good part of a short one.
pub struct Now<'a> {
    db: &'a Db,
    /// 0: not asked for yet.
    ms: Cell<u64>,
}

impl<'a> Now<'a> {
    /// The time of a store.
    pub fn new(db: &'a Db) -> Now<'a> {
        Now { db, ms: Cell::new(0) }
    }

    /// In milliseconds since 1970.
    pub fn ms(&self) -> u64 {
        if self.ms.get() == 0 {
            self.ms.set(self.db.now_ms());
        }
        self.ms.get()
    }
}

/// What a command's function gives.
pub type Outcome = Result<(), Failure>;

/// [`ControlFlow::Break`] once a reply is full.
#[inline]
pub fn while_it_fits(reply: &Writer<'_>) -> ControlFlow<()> {
    if reply.is_full() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// The room for strings that a command gathers: those of a reply that begins with their number, or what it holds besides until it ends.
pub struct Room {
    left: usize,
    exceeded: bool,
    of_reply: bool,
    /// What a string takes besides its bytes.
    besides: usize,
}

impl Room {
    /// `$`, a digit, and two ends of lines: no string takes less.
    pub const LEAST_BYTES: usize = 6;

    /// What is held is in an allocation and a place in a table or list, or two.
    const HELD_BYTES: usize = 64;

    /// What a key that was read takes more than that, roughly: a place in a table that may be half empty, and in what is committed.
    const READ_BYTES: usize = 192;

    /// What a row takes that is going to be written or deleted, besides, roughly: what was found, two places in the tree of writes with a key each, and the store's own list of what it is to do.
    const ROW_BYTES: usize = 384;

    /// What a reply still has.
    pub fn of(reply: &Writer<'_>) -> Room {
        Room { left: reply.room(), exceeded: false, of_reply: true, besides: Room::LEAST_BYTES }
    }

    /// For what is no reply: as much as a request may have.
    pub fn held(shared: &Shared) -> Room {
        Room { left: shared.settings.started.max_request_bytes, exceeded: false, of_reply: false, besides: Room::HELD_BYTES }
    }

    /// For rows that are going to be written, or deleted.
    pub fn of_rows(shared: &Shared) -> Room {
        Room { besides: Room::ROW_BYTES, ..Room::held(shared) }
    }

    /// For members of sorted sets that are: each has two rows.
    pub fn of_members(shared: &Shared) -> Room {
        Room { besides: 2 * Room::ROW_BYTES, ..Room::held(shared) }
    }

    /// Takes room for a string of so many bytes. Breaks when there is not enough; then [`Room::check`] fails.
    #[inline]
    pub fn take(&mut self, bytes: usize) -> ControlFlow<()> {
        match self.left.checked_sub(bytes.saturating_add(self.besides)) {
            Some(left) => self.left = left,
            None => self.exceeded = true,
        }
        if self.exceeded { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Takes room for a key that the commit is going to depend on: it is kept until then, and once more in what is committed.
    pub fn take_read(&mut self, key: &[u8]) -> Outcome {
        match self.take(2 * key.len() + Room::READ_BYTES) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => self.check(),
        }
    }

    /// Whether everything fits so far.
    pub fn check(&self) -> Outcome {
        match self.exceeded {
            false => Ok(()),
            true => Err(if self.of_reply { Failure::ReplyTooLarge } else { Failure::HeldTooLarge }),
        }
    }
}
