//! OBJECT and MEMORY: how values are stored, and how much they take.

use super::arguments::{Options, integer, is};
use super::collection::{part_of, walk};
use super::failure::Failure;
use super::table::flag::READONLY;
use super::table::{Command, Group, entries};
use super::{Context, Outcome, help};
use crate::data::Txn;
use crate::data::encoding::{Head, ROW_PREFIX_BYTES, Type};
use crate::info::resident_bytes;
use std::fmt::Write as _;
use std::ops::ControlFlow;

entries!(memory, Server.of("memory"));

const fn object(name: &'static str, summary: &'static str, since: &'static str, run: fn(&mut Context<'_>) -> Outcome) -> Command {
    Command::new(name, 3, Group::Generic, since, summary, run).flags(READONLY).keys(2, 2, 1).of("object")
}

static MEMORY: &[Command] = &[
    memory("usage", -3, "4.0.0", "Returns the bytes that a key takes, in the log and in the index.", memory_usage)
        .flags(READONLY)
        .keys(2, 2, 1),
    memory("stats", 2, "4.0.0", "Returns what takes memory, in bytes.", memory_stats),
    memory("doctor", 2, "4.0.0", "Tells in words where memory is.", memory_doctor),
    memory("purge", 2, "4.0.0", "Accepted for compatibility, does nothing: freed memory stays with the process, for reuse.", memory_purge),
    memory("malloc-stats", 2, "4.0.0", "Says that the allocator keeps no statistics.", memory_malloc_stats),
    help::of("memory", Group::Server, "4.0.0"),
];

static OBJECT: &[Command] = &[
    object("encoding", "Returns how Redis would keep a value of this kind.", "2.2.3", object_encoding),
    object("refcount", "Returns 1 for a key that is there.", "2.2.3", object_refcount),
    object("idletime", "Refused for a key that is there: idle times are not kept.", "2.2.3", object_idletime),
    object("freq", "Refused for a key that is there: frequencies are not kept.", "4.0.0", object_freq),
    help::of("object", Group::Generic, "6.2.0"),
];

/// The family's part of the table.
pub static COMMANDS: &[Command] = &[
    Command::container("memory", Group::Server, "4.0.0", "Commands about memory.", MEMORY),
    Command::container("object", Group::Generic, "2.2.3", "Commands about values.", OBJECT),
];

/// Approximate bytes of an entry in the log besides key and value, and in the index.
const PER_ENTRY: usize = 48;

fn memory_usage(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    let mut rest = Options::new(*args, 3);
    let mut samples = 5;
    while let Some(word) = rest.next() {
        if !is(word, "samples") {
            return Err(Failure::SYNTAX);
        }
        samples = usize::try_from(integer(rest.value()?)?).map_err(|_| Failure::SYNTAX)?;
    }
    let Some((entry_bytes, head)) = txn.examine(&args[2], |found| found.map(|(entry, _)| (entry.len(), Head::decode(entry))))? else {
        reply.null();
        return Ok(());
    };
    let mut bytes = args[2].len() + entry_bytes + PER_ENTRY;
    if let Some(head) = head {
        bytes += members_bytes(txn, head, samples)?;
    }
    reply.count(bytes);
    Ok(())
}

/// The bytes that the members of a collection take, if all are as large as the first `samples` (0: all) on average.
fn members_bytes(txn: &mut Txn, head: Head, samples: usize) -> Result<usize, Failure> {
    let (mut bytes, mut seen) = (0, 0);
    walk(txn, head.number, part_of(head.kind), false, |name, value| {
        bytes += ROW_PREFIX_BYTES + name.len() + value.len() + PER_ENTRY;
        seen += 1;
        if seen == samples { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    // A member of a sorted set has another row, with the score in its name and without a value.
    let rows = if head.kind == Type::SortedSet { 2 } else { 1 };
    Ok((rows * bytes as u128 * u128::from(head.count) / seen.max(1) as u128) as usize)
}

fn object_encoding(context: &mut Context<'_>) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    let encoding = txn.view(&args[2], |found| {
        found.map(|(entry, _)| match Type::of(entry) {
            Some(Type::String) if entry.len() <= 21 && hither_resp::parse_integer(&entry[1..]).is_some() => "int",
            Some(Type::String) if entry.len() <= 45 => "embstr",
            Some(Type::Hash) => "hashtable",
            Some(Type::SortedSet) => "skiplist",
            _ => "raw",
        })
    })?;
    match encoding {
        Some(encoding) => reply.bulk(encoding.as_bytes()),
        None => reply.null(),
    }
    Ok(())
}

/// Runs `answer` if the key exists; otherwise answers null.
fn if_there(context: &mut Context<'_>, answer: impl FnOnce(&mut Context<'_>) -> Outcome) -> Outcome {
    if context.txn.view(&context.args[2], |found| found.is_some())? {
        return answer(context);
    }
    context.reply.null();
    Ok(())
}

fn object_refcount(context: &mut Context<'_>) -> Outcome {
    if_there(context, |context| {
        context.reply.integer(1);
        Ok(())
    })
}

fn object_idletime(context: &mut Context<'_>) -> Outcome {
    if_there(context, |_| Err(Failure::text("ERR idle times are not kept: nothing is ever evicted")))
}

/// In Redis' words, where this is so unless an eviction policy needs frequencies.
fn object_freq(context: &mut Context<'_>) -> Outcome {
    if_there(context, |_| {
        Err(Failure::text(
            "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust.",
        ))
    })
}

/// Resident bytes of the process, number of keys, bytes of indexes, and number of clients with the bytes of their
/// transactions and buffers.
fn amounts(context: &Context<'_>) -> [(&'static str, u64); 6] {
    let stats = context.shared.databases.db.stats();
    let clients = context.shared.clients.list();
    [
        ("total.allocated", resident_bytes()),
        ("keys.count", context.shared.databases.existing().iter().map(|database| database.keys.len() as u64).sum()),
        ("index.bytes", stats.keyspaces.iter().map(|keyspace| keyspace.index_bytes).sum()),
        ("clients.count", clients.len() as u64),
        ("clients.transactions", clients.iter().map(|client| client.held_bytes() as u64).sum()),
        ("clients.buffers", clients.iter().map(|client| client.buffered_bytes() as u64).sum()),
    ]
}

fn memory_stats(context: &mut Context<'_>) -> Outcome {
    let amounts = amounts(context);
    context.reply.map(amounts.len());
    for (name, amount) in amounts {
        context.reply.bulk(name.as_bytes());
        context.reply.integer(amount as i64);
    }
    Ok(())
}

fn memory_doctor(context: &mut Context<'_>) -> Outcome {
    let mut text = String::from("Values are on the medium (INFO space), indexes in DRAM. Mapped pools count as resident.\n");
    for (name, amount) in amounts(context) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name}: {amount}");
    }
    context.reply.verbatim(&text);
    Ok(())
}

fn memory_purge(context: &mut Context<'_>) -> Outcome {
    context.reply.ok();
    Ok(())
}

fn memory_malloc_stats(context: &mut Context<'_>) -> Outcome {
    context.reply.verbatim("Stats not supported for the current allocator");
    Ok(())
}
