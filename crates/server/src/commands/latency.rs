//! LATENCY: events that took long, and how long commands take.

use super::arguments::is;
use super::failure::{Failure, shown};
use super::table::flag::ADMIN;
use super::table::{Command, Group, TABLE, entries};
use super::{Context, Outcome, help};
use crate::shared::BUCKETS;
use std::fmt::Write as _;
use std::sync::atomic::Ordering;

entries!(command, Server.flags(ADMIN).of("latency"));

static LATENCY: &[Command] = &[
    command("doctor", 2, "2.8.13", "Tells in words what took long.", doctor),
    command("graph", 3, "2.8.13", "Draws the times of an event.", graph),
    command("histogram", -2, "7.0.0", "Returns how long commands take, in cumulative counts by microseconds.", histogram),
    command("history", 3, "2.8.13", "Returns the times of an event.", history),
    command("latest", 2, "2.8.13", "Returns the newest and the longest time of each event.", latest),
    command("reset", -2, "2.8.13", "Forgets events.", reset),
    help::of("latency", Group::Server, "2.8.13"),
];

/// The family's part of the table.
pub static COMMANDS: &[Command] = &[Command::container("latency", Group::Server, "2.8.13", "Commands about what takes long.", LATENCY)];

fn latest(context: &mut Context<'_>) -> Outcome {
    let events = context.shared.settings.latency.events();
    context.reply.array(events.len());
    for (event, samples) in events {
        let (at_s, ms) = samples.newest.back().copied().unwrap_or_default();
        context.reply.array(4);
        context.reply.bulk(event.as_bytes());
        [at_s, ms, samples.longest_ms].into_iter().for_each(|number| context.reply.integer(number as i64));
    }
    Ok(())
}

fn history(context: &mut Context<'_>) -> Outcome {
    let asked = &context.args[2];
    let samples = context.shared.settings.latency.events().into_iter().find(|(event, _)| is(asked, event));
    let samples = samples.map(|(_, samples)| samples.newest).unwrap_or_default();
    context.reply.array(samples.len());
    for (at_s, ms) in samples {
        context.reply.array(2);
        context.reply.integer(at_s as i64);
        context.reply.integer(ms as i64);
    }
    Ok(())
}

fn reset(context: &mut Context<'_>) -> Outcome {
    let args = context.args;
    let asked = |event: &str| args.len() == 2 || args.iter().skip(2).any(|word| is(word, event));
    let events: Vec<&str> =
        context.shared.settings.latency.events().into_iter().map(|(event, _)| event).filter(|event| asked(event)).collect();
    context.reply.count(events.len());
    context.once_applied(move |shared, _| {
        shared.settings.latency.reset(|event| events.contains(&event));
    });
    Ok(())
}

fn histogram(context: &mut Context<'_>) -> Outcome {
    let args = context.args;
    let asked = |command: &Command| {
        // A container's name stands for its subcommands.
        let of = |word: &[u8], name: &str| is(word, name) || name.split_once('|').is_some_and(|(container, _)| is(word, container));
        let name = command.full_name();
        args.len() == 2 || args.iter().skip(2).any(|word| of(word, &name))
    };
    let counts = |number: usize| -> Vec<u64> {
        let of = |bucket: usize| context.shared.total(|core| &core.histograms[number * BUCKETS + bucket]);
        (0..BUCKETS).map(of).collect()
    };
    let all = TABLE.all().enumerate().filter(|(_, command)| asked(command)).map(|(number, command)| (command, counts(number)));
    let called: Vec<_> = all.filter(|(_, counts)| counts.iter().any(|count| *count > 0)).collect();
    context.reply.map(called.len());
    for (command, counts) in called {
        context.reply.bulk(command.full_name().as_bytes());
        context.reply.map(2);
        context.reply.bulk(b"calls");
        context.reply.integer(counts.iter().sum::<u64>() as i64);
        context.reply.bulk(b"histogram_usec");
        let used: Vec<usize> = (0..BUCKETS).filter(|bucket| counts[*bucket] > 0).collect();
        context.reply.map(used.len());
        let mut below = 0;
        for bucket in used {
            below += counts[bucket];
            context.reply.integer(1 << bucket);
            context.reply.integer(below as i64);
        }
    }
    Ok(())
}

/// Rows of a graph.
const GRAPH_ROWS: u64 = 4;

fn graph(context: &mut Context<'_>) -> Outcome {
    let asked = &context.args[2];
    let found = context.shared.settings.latency.events().into_iter().find(|(event, _)| is(asked, event));
    let (event, samples) = found.ok_or_else(|| Failure::made(format!("ERR No samples available for event '{}'", shown(asked))))?;
    let times = samples.newest.iter().copied().collect::<Vec<_>>();
    context.reply.verbatim(&draw(event, samples.longest_ms, &times, context.now.ms() / 1000));
    Ok(())
}

/// Draws a column for each sample, the oldest at the left; below each, read downwards, is its age.
fn draw(event: &str, longest_ms: u64, samples: &[(u64, u64)], now_s: u64) -> String {
    let high = samples.iter().map(|(_, ms)| *ms).max().unwrap_or(0);
    let low = samples.iter().map(|(_, ms)| *ms).min().unwrap_or(0);
    let mut text = format!("{event} - high {high} ms, low {low} ms (all time high {longest_ms} ms)\n{}\n", "-".repeat(80));
    let heights = samples.iter().map(|(_, ms)| (ms - low) * (2 * GRAPH_ROWS - 1) / (high - low).max(1));
    let heights: Vec<u64> = heights.collect();
    for row in (0..GRAPH_ROWS).rev() {
        let mark = |height: &u64| match height.checked_sub(2 * row) {
            None => ' ',
            Some(0) => '_',
            Some(1) => 'o',
            Some(_) => '|',
        };
        text += heights.iter().map(mark).collect::<String>().trim_end();
        text.push('\n');
    }
    let ages: Vec<Vec<char>> = samples.iter().map(|(at_s, _)| age(now_s.saturating_sub(*at_s)).chars().collect()).collect();
    text.push('\n');
    for line in 0..ages.iter().map(Vec::len).max().unwrap_or(0) {
        let letters: String = ages.iter().map(|age| age.get(line).copied().unwrap_or(' ')).collect();
        text += letters.trim_end();
        text.push('\n');
    }
    text
}

fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

fn doctor(context: &mut Context<'_>) -> Outcome {
    let monitor = &context.shared.settings.latency;
    let threshold = monitor.threshold_ms.load(Ordering::Relaxed);
    let mut text = String::new();
    if threshold == 0 {
        text.push_str("Latency monitoring is off: CONFIG SET latency-monitor-threshold <milliseconds> switches it on.\n");
    }
    let events = monitor.events();
    if events.is_empty() && threshold != 0 {
        // Writing to a string does not fail.
        let _ = writeln!(text, "Nothing took {threshold} ms or longer.");
    }
    for (event, samples) in events {
        let average = samples.newest.iter().map(|(_, ms)| ms).sum::<u64>() / samples.newest.len().max(1) as u64;
        let advice = match event {
            "command" => "SLOWLOG GET shows which; long ones (KEYS, large ranges) hold up the other clients of their thread.",
            "fast-command" => "Usually short: the processor may be busy with something else.",
            "durability-wait" => "The medium takes long to sync; see INFO durability.",
            _ => "A round had many or long commands.",
        };
        let _ = writeln!(text, "{event}: {} times, {average} ms on average, {} ms at most. {advice}", samples.count, samples.longest_ms);
    }
    context.reply.verbatim(&text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_has_a_column_for_each_sample() {
        let text = draw("command", 900, &[(100, 10), (4000, 80), (4055, 45)], 4060);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "command - high 80 ms, low 10 ms (all time high 900 ms)");
        assert_eq!(lines[2..], [" o", " |", " |o", "_||", "", "115", "hms"]);
    }
}
