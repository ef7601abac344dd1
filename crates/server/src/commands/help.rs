//! HELP of every command that has subcommands, from the command table.

use super::table::{Command, Group, TABLE};
use super::{Context, Outcome};

/// The subcommand HELP of `container`.
pub const fn of(container: &'static str, group: Group, since: &'static str) -> Command {
    Command::new("help", 2, group, since, "Describes the subcommands.", help).of(container)
}

/// As in Redis: a line with the command, then for each subcommand its name and, indented, what it does.
fn help(context: &mut Context<'_>) -> Outcome {
    let name = &context.args[0];
    let subcommands = TABLE.named(name).map_or(&[][..], |command| command.subcommands);
    let reply = &mut context.reply;
    reply.array(1 + 2 * subcommands.len());
    let name = String::from_utf8_lossy(name).to_ascii_uppercase();
    reply.simple(&format!("{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for command in subcommands {
        reply.simple(&command.name.to_ascii_uppercase());
        reply.simple(&format!("    {}", command.summary));
    }
    Ok(())
}
