//! Runs a command's transaction until it is committed.
//!
//! What a command does is an attempt ([`crate::data::txn`]). If another client was faster, the command makes a further
//! attempt, which must find everything as it was before, including the session. After a few failed attempts it runs
//! alone ([`crate::turns`]).

use crate::acl::User;
use crate::changes::Change;
use crate::commands::failure::Failure;
use crate::commands::table::{Command, flag};
use crate::commands::{Context, Now};
use crate::data::Txn;
use crate::events::{self, Level};
use crate::session::{Replies, Session};
use crate::shared::{CoreStats, Shared};
use crate::transaction::Watches;
use crate::turns::{ATTEMPTS_ALONE, ATTEMPTS_BESIDE_OTHERS, Held};
use crate::waiting::Request;
use hither::{Error, WriteOptions};
use hither_resp::{Args, Protocol, Writer};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The outcome of a command, in one word. A larger outcome would be passed up through memory in pieces, and reading
/// those back as a whole would wait for the flush of what the command has just written.
pub type Ran = Result<(), Box<Failure>>;

impl Session {
    /// Runs `work` in a transaction until no other client was faster: a few times beside others, then alone
    /// ([`crate::turns`]). Each attempt begins with the replies and the session's database as they were before.
    ///
    /// With `watches` the transaction is one of several commands; [`Failure::Watched`] reports that a watched key has
    /// changed. `writes`: whether there may be something to commit.
    pub fn run(
        &mut self,
        shared: &Arc<Shared>,
        out: &mut Vec<u8>,
        rests_on: &mut u64,
        watches: Option<&Watches>,
        writes: bool,
        mut work: impl FnMut(&mut Session, &mut Txn, &mut Vec<u8>) -> Ran,
    ) -> Ran {
        let (mark, index, protocol) = (out.len(), self.index, self.protocol);
        // Only AUTH and HELLO change the user, and they run again only within EXEC.
        let before = watches.is_some().then(|| Before::of(self));
        for attempt in 0..ATTEMPTS_BESIDE_OTHERS + ATTEMPTS_ALONE {
            let turn = match () {
                () if attempt >= ATTEMPTS_BESIDE_OTHERS => Held::All(shared.turns.all()),
                () if writes => Held::Own(shared.turns.own(self.client.core)),
                () => Held::Nothing,
            };
            let outcome = self.take_txn(watches.is_some()).map_err(Box::new).and_then(|mut txn| {
                let outcome = self.attempt_once(&mut txn, shared, out, rests_on, watches, &mut work);
                if txn.is_spare() {
                    self.spare = Some(txn);
                }
                outcome
            });
            let Err(failure) = outcome.map_err(|failure| self.or_ask_for_lost(failure)) else { return Ok(()) };
            self.effects.clear();
            self.cursors.clear();
            self.looked_up = [0; 2];
            match *failure {
                // Another client was faster.
                Failure::Again => {}
                // The database was flushed meanwhile: try again with the new one.
                Failure::Store(Error::KeyspaceDropped(_)) => self.database = None,
                // Nothing of a transaction that fails as a whole stays in force.
                failure => {
                    if let Some(before) = &before {
                        self.undo(before);
                        self.refusals.clear();
                    }
                    self.take_effect(shared);
                    return Err(Box::new(failure));
                }
            }
            drop(turn);
            self.refusals.clear();
            CoreStats::add(&self.stats().retries, 1);
            out.truncate(mark);
            match &before {
                Some(before) => self.undo(before),
                None => (self.index, self.protocol) = (index, protocol),
            }
        }
        events::log_few(Level::Error, "command-given-up", &[("client", &self.client.id), ("attempts-alone", &ATTEMPTS_ALONE)]);
        Err(Box::new(Failure::Again))
    }

    /// A command may fail because a failed change has left nothing of a database ([`Databases::lost`]). Then it asks
    /// for the database to be made and waits; if that fails, its error is the command's answer.
    ///
    /// [`Databases::lost`]: crate::data::Databases::lost
    fn or_ask_for_lost(&self, failure: Box<Failure>) -> Box<Failure> {
        let Failure::Store(Error::KeyspaceDropped(name)) = &*failure else { return failure };
        let Some(index) = self.shared().databases.lost(name) else { return failure };
        let pending = self.shared().changes.begin(self.shared(), Change::Make(index), &self.client);
        Box::new(pending.map_or_else(|failure| failure, |pending| Failure::Wait(Box::new(Request::for_change(pending)))))
    }

    /// Makes one attempt: runs `work` and commits. [`Failure::Again`] if another client was faster.
    fn attempt_once(
        &mut self,
        txn: &mut Txn,
        shared: &Arc<Shared>,
        out: &mut Vec<u8>,
        rests_on: &mut u64,
        watches: Option<&Watches>,
        work: &mut impl FnMut(&mut Session, &mut Txn, &mut Vec<u8>) -> Ran,
    ) -> Ran {
        let outcome = match watches.map_or(Ok(true), |watches| txn.require_unchanged(watches)) {
            Ok(true) => work(self, txn, out),
            Ok(false) => Err(Box::new(Failure::Watched)),
            Err(error) => Err(Box::new(error.into())),
        };
        // An error reports what was read, so it rests on that, too.
        *rests_on = txn.rests_on().max(*rests_on);
        if let Err(failure) = outcome {
            // Although nothing is committed, everything that the command read must have been so at one moment. If the
            // store cannot check that, the error stands.
            let is_torn = watches.is_none() && failure.is_of_one_command() && !txn.is_as_read(&shared.databases.db).unwrap_or(true);
            return Err(if is_torn { Box::new(Failure::Again) } else { failure });
        }
        // A killed client must not take anything that was written since: it would be lost with the reply.
        if self.client.is_killed() {
            return Err(Box::new(Failure::KILLED));
        }
        // Most commands have written already, or their only read was answered at once.
        if txn.is_spare() {
            self.take_effect(shared);
            return Ok(());
        }
        let done = txn.commit(&shared.databases.db).map_err(|error| Box::new(error.into()))?;
        if !done.applied {
            return Err(Box::new(Failure::Again));
        }
        *rests_on = done.rests_on.max(*rests_on);
        self.take_effect(shared);
        shared.waiting.fed(txn.sorted_sets());
        done.orphans.into_iter().for_each(|(database, number)| shared.databases.reaper.announce(database, number));
        if done.unseen {
            shared.databases.reaper.sweep_soon();
        }
        Ok(())
    }
}

impl Session {
    /// The attempt is applied: does what its commands left to be done outside the store.
    #[inline]
    fn take_effect(&mut self, shared: &Arc<Shared>) {
        let [found, not_found] = std::mem::take(&mut self.looked_up);
        CoreStats::add(&self.stats().hits, found);
        CoreStats::add(&self.stats().misses, not_found);
        if !self.cursors.is_empty() {
            shared.cursors.insert_all(std::mem::take(&mut self.cursors));
        }
        // Hardly any command has any of these.
        if !self.refusals.is_empty() || !self.effects.is_empty() {
            let refusals = std::mem::take(&mut self.refusals);
            refusals.into_iter().chain(std::mem::take(&mut self.effects)).for_each(|effect| effect(shared, self));
        }
    }
}

/// What commands of a transaction may change in their session, as it was before.
struct Before {
    index: u16,
    protocol: Protocol,
    user: Arc<User>,
    /// Restored with the user, so that a user that has changed meanwhile is looked up again.
    generation: u64,
    authenticated: bool,
    options: WriteOptions,
    replies: Replies,
    closing: bool,
}

impl Before {
    fn of(session: &Session) -> Before {
        Before {
            index: session.index,
            protocol: session.protocol,
            user: session.user.clone(),
            generation: session.generation,
            authenticated: session.authenticated,
            options: session.options,
            replies: session.replies,
            closing: session.closing,
        }
    }
}

impl Session {
    /// Takes back what the commands of a failed attempt have changed in the session.
    fn undo(&mut self, before: &Before) {
        self.index = before.index;
        self.client.database.store(usize::from(before.index), Ordering::Relaxed);
        (self.protocol, self.authenticated) = (before.protocol, before.authenticated);
        self.client.protocol.store(if before.protocol == Protocol::Resp3 { 3 } else { 2 }, Ordering::Relaxed);
        (self.options, self.replies, self.closing) = (before.options, before.replies, before.closing);
        self.generation = before.generation;
        if !Arc::ptr_eq(&before.user, &self.user) {
            self.client.user.lock().clone_from(&before.user.name);
            self.user = before.user.clone();
        }
    }
}

/// Runs a command in a transaction. A reply that is too large is an error, so that nothing is committed.
pub fn run_command(
    shared: &Arc<Shared>,
    session: &mut Session,
    txn: &mut Txn,
    command: &Command,
    args: Args<'_>,
    out: &mut Vec<u8>,
) -> Ran {
    let reply = Writer::bounded(out, session.protocol, session.output_limit);
    let mut context = Context { shared, session, args, txn, reply, now: Now::new(&shared.databases.db) };
    (command.run)(&mut context).map_err(Box::new)?;
    let full = context.reply.is_full();
    let looked_up = std::mem::take(&mut txn.looked_up);
    if command.has(flag::READONLY) {
        session.looked_up = [session.looked_up[0] + looked_up[0], session.looked_up[1] + looked_up[1]];
    }
    txn.end_command().map_err(|error| Box::new(error.into()))?;
    if full { Err(Box::new(Failure::ReplyTooLarge)) } else { Ok(()) }
}
