//! SAVE, BGSAVE, LASTSAVE, BGREWRITEAOF, and the part of ACL SAVE that works like them: see [`crate::saving`].

use super::arguments::is;
use super::failure::Failure;
use super::table::flag::{ADMIN, DANGEROUS, FAST, NO_MULTI};
use super::table::{Command, entries};
use super::{Context, Outcome};
use crate::events::{self, Level};
use crate::saving::Work;
use crate::waiting::Request;

entries!(command, Server);

/// The family's part of the table.
pub static COMMANDS: &[Command] = &[
    command(
        "save",
        1,
        "1.0.0",
        "Takes a checkpoint, so that the next start is fast, and a backup where they are to be; waits for that.",
        save,
    )
    .flags(ADMIN | NO_MULTI),
    command("bgsave", -1, "1.0.0", "Takes a checkpoint, and a backup where they are to be, in the background.", bgsave).flags(ADMIN),
    command("lastsave", 1, "1.0.0", "Returns when SAVE or BGSAVE last ended well, in seconds since 1970.", lastsave)
        .flags(DANGEROUS | FAST),
    command("bgrewriteaof", 1, "1.0.0", "Gives back the space of what was overwritten and deleted, in the background.", bgrewriteaof)
        .flags(ADMIN),
];

const SAVING: Failure = Failure::text("ERR Background save already in progress");

fn begin(context: &Context<'_>, work: Work, waits: bool) -> Result<Option<u64>, Failure> {
    let waiter = waits.then_some(&context.session.client);
    let begun = context.shared.saving.begin(context.shared, work, waiter);
    begun.map_err(|error| Failure::made(format!("ERR cannot start a thread: {error}")))
}

fn save(context: &mut Context<'_>) -> Outcome {
    wait_for(context, Work::Save)
}

/// Starts background work and waits; when the work has ended, the command runs again and answers.
pub fn wait_for(context: &mut Context<'_>, work: Work) -> Outcome {
    let number = match &context.session.wait {
        Some(wait) => wait.note,
        None => begin(context, work, true)?.ok_or(SAVING)?,
    };
    match context.shared.saving.outcome(work, number) {
        None => Err(Failure::Wait(Box::new(Request { note: number, ..Request::default() }))),
        Some(Ok(())) => {
            context.reply.ok();
            Ok(())
        }
        Some(Err(why)) => Err(Failure::made(why)),
    }
}

fn bgsave(context: &mut Context<'_>) -> Outcome {
    match context.args.get(1) {
        None => {}
        Some(word) if context.args.len() == 2 && is(word, "schedule") => {}
        Some(_) => return Err(Failure::SYNTAX),
    }
    begin_behind(context, Work::Save, "Background saving", SAVING)
}

fn lastsave(context: &mut Context<'_>) -> Outcome {
    context.reply.integer(context.shared.saving.last(Work::Save).0 as i64);
    Ok(())
}

fn bgrewriteaof(context: &mut Context<'_>) -> Outcome {
    let already = Failure::text("ERR Background append only file rewriting already in progress");
    begin_behind(context, Work::Rewrite, "Background append only file rewriting", already)
}

/// Starts work that no client waits for, and answers that it did; `already`: the error if it is under way.
fn begin_behind(context: &mut Context<'_>, work: Work, what: &str, already: Failure) -> Outcome {
    if context.txn.is_isolated() {
        context.once_applied(move |shared, _| {
            // If the system has no thread left, only the log can report it.
            if let Err(error) = shared.saving.begin(shared, work, None) {
                events::log(Level::Error, "save-failed", &[("why", &error)]);
            }
        });
        context.reply.simple(&format!("{what} scheduled"));
    } else if begin(context, work, false)?.is_some() {
        context.reply.simple(&format!("{what} started"));
    } else {
        return Err(already);
    }
    Ok(())
}
