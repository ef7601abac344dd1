//! The commands: one file per family, each with its part of the one table ([`table`]).
//!
//! A command is a function of a [`Context`]. It may run several times (see [`Session::run`]), so it changes nothing
//! except through the transaction, the reply and, where that is its purpose, the session. Everything else that it does
//! is left until the transaction is applied ([`Context::once_applied`]). It checks all arguments and types before it
//! writes, so that an error leaves nothing behind.
//!
//! A reply has room for max-output bytes; what does not fit is left out, and [`crate::attempts::run_command`] makes an
//! error of it. A command whose reply can be large checks the room as it goes ([`Writer::is_full`], [`Room`]), so that
//! it does not gather what can never leave.

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
    /// The state that all threads share.
    pub shared: &'a Arc<Shared>,
    /// The client's session.
    pub session: &'a mut Session,
    /// The arguments, the command's name first.
    pub args: Args<'a>,
    /// The transaction through which the command reads and writes.
    pub txn: &'a mut Txn,
    /// Where the reply goes.
    pub reply: Writer<'a>,
    /// The time of the command.
    pub now: Now<'a>,
}

impl Context<'_> {
    /// Has `effect` run once, and only if the command's transaction is applied: after the commit, in the order of the
    /// commands. A reply that depends on the effect must be known before.
    pub fn once_applied(&mut self, effect: impl FnOnce(&Arc<Shared>, &mut Session) + Send + 'static) {
        self.session.effects.push(Box::new(effect));
    }

    /// Notes that the command gives a collection an expiry. The reaper is told once the expiry is applied: otherwise
    /// its next sweep might be the last and not see it.
    pub fn note_expiring(&mut self) {
        self.once_applied(|shared, _| shared.databases.reaper.note_expiring());
    }
}

/// The time of a command, the same however often it is asked for. Most commands never ask, and reading the clock takes
/// a good part of a short command.
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

    /// The time in milliseconds since 1970.
    pub fn ms(&self) -> u64 {
        if self.ms.get() == 0 {
            self.ms.set(self.db.now_ms());
        }
        self.ms.get()
    }
}

/// The result of a command's function.
pub type Outcome = Result<(), Failure>;

/// [`ControlFlow::Break`] once a reply is full.
#[inline]
pub fn while_it_fits(reply: &Writer<'_>) -> ControlFlow<()> {
    if reply.is_full() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// The room for strings that a command gathers: those of a reply that begins with their number, or those that it holds
/// besides until it ends.
pub struct Room {
    left: usize,
    exceeded: bool,
    of_reply: bool,
    /// Bytes that a string takes besides its own.
    besides: usize,
}

impl Room {
    /// `$`, a digit, and two line ends: no string in a reply takes less.
    pub const LEAST_BYTES: usize = 6;

    /// A string that is held takes an allocation and a place in a table or list, or two.
    const HELD_BYTES: usize = 64;

    /// Approximate further bytes of a key that was read: a place in a table that may be half empty, and in what is
    /// committed.
    const READ_BYTES: usize = 192;

    /// Approximate further bytes of a row to be written or deleted: the row that was found, two places in the tree of
    /// writes with a key each, and the store's own list of writes.
    const ROW_BYTES: usize = 384;

    /// The room that a reply still has.
    pub fn of(reply: &Writer<'_>) -> Room {
        Room { left: reply.room(), exceeded: false, of_reply: true, besides: Room::LEAST_BYTES }
    }

    /// Room for what is not a reply: as much as a request may have.
    pub fn held(shared: &Shared) -> Room {
        Room { left: shared.settings.started.max_request_bytes, exceeded: false, of_reply: false, besides: Room::HELD_BYTES }
    }

    /// Room for rows to be written or deleted.
    pub fn of_rows(shared: &Shared) -> Room {
        Room { besides: Room::ROW_BYTES, ..Room::held(shared) }
    }

    /// Room for members of sorted sets to be written or deleted: each has two rows.
    pub fn of_members(shared: &Shared) -> Room {
        Room { besides: 2 * Room::ROW_BYTES, ..Room::held(shared) }
    }

    /// Takes room for a string of this many bytes. Breaks if there is not enough; then [`Room::check`] fails.
    #[inline]
    pub fn take(&mut self, bytes: usize) -> ControlFlow<()> {
        match self.left.checked_sub(bytes.saturating_add(self.besides)) {
            Some(left) => self.left = left,
            None => self.exceeded = true,
        }
        if self.exceeded { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Takes room for a key that the commit is going to depend on: it is kept until then, and once more in what is
    /// committed.
    pub fn take_read(&mut self, key: &[u8]) -> Outcome {
        match self.take(2 * key.len() + Room::READ_BYTES) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => self.check(),
        }
    }

    /// Fails if something did not fit.
    pub fn check(&self) -> Outcome {
        match self.exceeded {
            false => Ok(()),
            true => Err(if self.of_reply { Failure::ReplyTooLarge } else { Failure::HeldTooLarge }),
        }
    }
}
