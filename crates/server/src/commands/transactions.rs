//! MULTI, EXEC, DISCARD, WATCH, UNWATCH.
//!
//! All commands of a transaction run in one [`crate::data::Txn`]. Each sees what those before it wrote, other clients
//! see nothing before EXEC has committed, and the commit is one batch, all or nothing after a crash. The commit depends
//! on the watched keys and on everything that was read being unchanged, so the commands see one state. An error of one
//! command is its reply; the command leaves nothing behind, and the others count.

use super::failure::Failure;
use super::table::flag::{EXEC, FAST, IMMEDIATE, WRITE};
use super::table::{Command, entries};
use super::{Context, Outcome};
use crate::attempts::{Ran, run_command};
use crate::data::Txn;
use crate::session::Session;
use crate::shared::{CoreStats, Shared};
use crate::transaction::{Multi, Queued};
use hither_resp::Writer;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

entries!(command, Transactions);

/// The family's part of the table.
pub static COMMANDS: &[Command] = &[
    command("multi", 1, "1.2.0", "Starts a transaction.", multi).flags(FAST | IMMEDIATE),
    command("exec", 1, "1.2.0", "Runs all commands of a transaction, atomically.", exec_outside).flags(IMMEDIATE | EXEC),
    command("discard", 1, "2.0.0", "Drops a transaction.", discard).flags(FAST | IMMEDIATE),
    command("watch", -2, "2.2.0", "Makes the next transaction depend on keys staying as they are.", watch)
        .flags(FAST | IMMEDIATE)
        .keys(1, -1, 1),
    command("unwatch", 1, "2.2.0", "Forgets all watched keys.", unwatch).flags(FAST),
];

fn multi(context: &mut Context<'_>) -> Outcome {
    if context.session.multi.is_some() {
        return Err(Failure::text("ERR MULTI calls can not be nested"));
    }
    context.session.multi = Some(Multi::default());
    context.session.publish();
    context.reply.ok();
    Ok(())
}

fn discard(context: &mut Context<'_>) -> Outcome {
    if context.session.multi.take().is_none() {
        return Err(Failure::text("ERR DISCARD without MULTI"));
    }
    context.session.watches.clear();
    context.session.publish();
    context.reply.ok();
    Ok(())
}

fn watch(context: &mut Context<'_>) -> Outcome {
    if context.session.multi.is_some() {
        return Err(Failure::text("ERR WATCH inside MULTI is not allowed"));
    }
    let database = context.txn.database().clone();
    let limit = context.shared.settings.started.max_request_bytes;
    for key in context.args.iter().skip(1) {
        if context.session.watches.has(database.index, key) {
            continue;
        }
        let version = context.txn.version_of(&database, key)?;
        if !context.session.watches.add(&database, key, version, limit) {
            context.session.publish();
            return Err(Failure::text("ERR the watched keys are larger than max-request"));
        }
    }
    context.session.publish();
    context.reply.ok();
    Ok(())
}

fn unwatch(context: &mut Context<'_>) -> Outcome {
    context.session.watches.clear();
    context.session.publish();
    context.reply.ok();
    Ok(())
}

/// [`exec`] runs EXEC; this only holds its place in the table.
fn exec_outside(_: &mut Context<'_>) -> Outcome {
    Err(Failure::text("ERR EXEC without MULTI"))
}

/// The outcome of a command of a transaction. It counts once the transaction is applied.
struct Done {
    /// The database that it ran in.
    index: u16,
    took: Duration,
    end: End,
}

enum End {
    Good,
    /// It failed with this error.
    Failed(Cow<'static, str>),
    /// It did not run, because of this error.
    Refused(Cow<'static, str>),
}

/// Runs the commands queued in `session`.
pub fn exec(session: &mut Session, shared: &Arc<Shared>, out: &mut Vec<u8>, rests_on: &mut u64) -> Ran {
    let Some(multi) = session.multi.take() else { return Err(Box::new(Failure::text("ERR EXEC without MULTI"))) };
    let watches = std::mem::take(&mut session.watches);
    session.publish();
    if multi.is_refused() {
        return Err(Box::new(Failure::text("EXECABORT Transaction discarded because of previous errors.")));
    }
    let writes = multi.queue().iter().any(|queued| queued.found.command.has(WRITE));
    let mut done = Vec::with_capacity(multi.queue().len());
    let outcome = session.run(shared, out, rests_on, Some(&watches), writes, |session, txn, out| {
        done.clear();
        run_all(shared, session, txn, multi.queue(), out, &mut done)
    });
    let Err(failure) = outcome else {
        multi.queue().iter().zip(&done).for_each(|(queued, done)| note(session, shared, queued, done));
        return Ok(());
    };
    match *failure {
        Failure::Watched => {
            Writer::new(out, session.protocol).null_array();
            Ok(())
        }
        // A database is being made or replaced: EXEC runs again afterwards.
        Failure::Wait(request) => {
            (session.multi, session.watches) = (Some(multi), watches);
            session.publish();
            Err(Box::new(Failure::Wait(request)))
        }
        failure => Err(Box::new(failure)),
    }
}

/// Runs all commands once. Their replies make up one reply, which is bounded as a whole.
fn run_all(shared: &Arc<Shared>, session: &mut Session, txn: &mut Txn, queue: &[Queued], out: &mut Vec<u8>, done: &mut Vec<Done>) -> Ran {
    let mut reply = Writer::bounded(out, session.protocol, session.output_limit);
    reply.array(queue.len());
    if reply.is_full() {
        return Err(Box::new(Failure::ReplyTooLarge));
    }
    let most = shared.settings.started.max_request_bytes;
    let mut started = Instant::now();
    for queued in queue {
        let index = session.index;
        let end = run_one(shared, session, txn, queued, out)?;
        if txn.holds_more_than(most) {
            return Err(Box::new(Failure::TransactionTooLarge));
        }
        let ended = Instant::now();
        done.push(Done { index, took: ended.duration_since(started), end });
        started = ended;
    }
    Ok(())
}

fn run_one(shared: &Arc<Shared>, session: &mut Session, txn: &mut Txn, queued: &Queued, out: &mut Vec<u8>) -> Result<End, Box<Failure>> {
    let (mark, effects) = (out.len(), session.effects.len());
    txn.begin_command();
    let allowed = session.check_queued(queued).map_err(Box::new);
    let end = if allowed.is_ok() { End::Failed } else { End::Refused };
    let outcome = allowed.and_then(|()| run_command(shared, session, txn, queued.found.command, queued.args(), out));
    let Err(failure) = outcome else { return Ok(End::Good) };
    // The store refuses, everything has to run again, or the client could never learn the outcome.
    if !failure.is_of_one_command() {
        return Err(failure);
    }
    txn.undo_command();
    session.effects.truncate(effects);
    out.truncate(mark);
    let mut reply = Writer::bounded(out, session.protocol, session.output_limit);
    let message = failure.message();
    reply.error(&message);
    if reply.is_full() { Err(Box::new(Failure::ReplyTooLarge)) } else { Ok(end(message)) }
}

/// Counts a command of an applied transaction like any other.
fn note(session: &Session, shared: &Shared, queued: &Queued, done: &Done) {
    let (found, stats) = (queued.found, session.stats());
    let counted = match &done.end {
        End::Good => None,
        End::Failed(message) => Some((&stats.failed, message)),
        End::Refused(message) => Some((&stats.refused, message)),
    };
    if let Some((counters, message)) = counted {
        stats.note_error(message);
        CoreStats::add(&counters[found.number], 1);
    }
    if !matches!(done.end, End::Refused(_)) {
        CoreStats::add(&stats.calls[found.number], 1);
        session.note_time(shared, found, queued.args(), done.took);
    }
    if !shared.monitors.is_empty() {
        shared.monitors.show(shared, &session.client, done.index, found.command, queued.args());
    }
}
