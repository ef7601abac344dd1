//! MULTI, EXEC, DISCARD, WATCH, UNWATCH.
//!
//! All commands of a transaction run in one [`crate::data::Txn`]: each sees what those before it wrote, nobody else sees anything before EXEC has
//! committed, and the commit is one batch, all or nothing after a crash. It depends on everything that was read being as it was, so the commands see
//! one state, and on the watched keys. An error of one command is its reply; it leaves nothing, and the others count.

use super::failure::Failure;
use super::table::flag::{EXEC, FAST, IMMEDIATE, WRITE};
use super::table::{Command, entries};
use super::{Context, Outcome};
use crate::attempts::{Ran, run_command};
use crate::session::Session;
use crate::shared::{CoreStats, Shared};
use crate::transaction::Multi;
use hither_resp::Writer;
use std::sync::Arc;

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

/// EXEC is run by [`exec`]; this is its place in the table.
fn exec_outside(_: &mut Context<'_>) -> Outcome {
    Err(Failure::text("ERR EXEC without MULTI"))
}

/// Runs the commands that wait in `session`.
pub fn exec(session: &mut Session, shared: &Arc<Shared>, out: &mut Vec<u8>, rests_on: &mut u64) -> Ran {
    let Some(multi) = session.multi.take() else { return Err(Box::new(Failure::text("ERR EXEC without MULTI"))) };
    let watches = std::mem::take(&mut session.watches);
    session.publish();
    if multi.is_refused() {
        return Err(Box::new(Failure::text("EXECABORT Transaction discarded because of previous errors.")));
    }
    let most = shared.settings.started.max_request_bytes;
    let writes = multi.queue().iter().any(|queued| queued.found.command.has(WRITE));
    // The database of each command, for MONITOR.
    let mut indexes = Vec::with_capacity(multi.queue().len());
    let outcome = session.run(shared, out, rests_on, Some(&watches), writes, |session, txn, out| {
        // Their replies are one reply, which is bounded as a whole.
        let mut reply = Writer::bounded(out, session.protocol, session.output_limit);
        reply.array(multi.queue().len());
        if reply.is_full() {
            return Err(Box::new(Failure::ReplyTooLarge));
        }
        indexes.clear();
        for queued in multi.queue() {
            indexes.push(session.index);
            let (mark, effects) = (out.len(), session.effects.len());
            txn.begin_command();
            let allowed = session.check_queued(queued).map_err(Box::new);
            match allowed.and_then(|()| run_command(shared, session, txn, queued.found.command, queued.args(), out)) {
                Ok(()) if txn.holds_more_than(most) => return Err(Box::new(Failure::WritesTooLarge)),
                Ok(()) => {}
                // The store refuses, everything has to run again, or nobody would ever be told what came of it.
                Err(failure) if !failure.is_of_one_command() => return Err(failure),
                Err(failure) => {
                    txn.undo_command();
                    session.effects.truncate(effects);
                    CoreStats::add(&session.stats().errors, 1);
                    out.truncate(mark);
                    let mut reply = Writer::bounded(out, session.protocol, session.output_limit);
                    reply.error(&failure.message());
                    if reply.is_full() {
                        return Err(Box::new(Failure::ReplyTooLarge));
                    }
                }
            }
        }
        Ok(())
    });
    if outcome.is_ok() && !shared.monitors.is_empty() {
        for (queued, index) in multi.queue().iter().zip(&indexes) {
            shared.monitors.show(shared, &session.client, *index, queued.found.command, queued.args());
        }
    }
    let Err(failure) = outcome else { return Ok(()) };
    match *failure {
        Failure::Watched => {
            Writer::new(out, session.protocol).null_array();
            Ok(())
        }
        // For a database that is being made or replaced: EXEC runs again.
        Failure::Wait(request) => {
            (session.multi, session.watches) = (Some(multi), watches);
            session.publish();
            Err(Box::new(Failure::Wait(request)))
        }
        failure => Err(Box::new(failure)),
    }
}
