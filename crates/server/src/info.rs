//! The sections of INFO.

use crate::commands::table::TABLE;
use crate::saving::Work;
use crate::shared::Shared;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::Ordering;

type Fill = fn(&Shared, &mut String) -> std::fmt::Result;

/// Name, title and contents of each section.
pub const SECTIONS: &[(&str, &str, Fill)] = &[
    ("server", "Server", server),
    ("clients", "Clients", clients),
    ("memory", "Memory", memory),
    ("persistence", "Persistence", persistence),
    ("durability", "Durability", durability),
    ("space", "Space", space),
    ("placement", "Placement", placement),
    ("stats", "Stats", stats),
    ("replication", "Replication", replication),
    ("commandstats", "Commandstats", command_stats),
    ("errorstats", "Errorstats", error_stats),
    ("cluster", "Cluster", cluster),
    ("keyspace", "Keyspace", keyspace),
];

/// Whether INFO shows a section only if that section, or all of them, are asked for.
pub fn is_extra(name: &str) -> bool {
    name == "commandstats"
}

/// Appends a section.
pub fn section(shared: &Shared, name: &str, text: &mut String) {
    if let Some((_, title, fill)) = SECTIONS.iter().find(|section| section.0 == name) {
        let separator = if text.is_empty() { "" } else { "\r\n" };
        // Writing to a string does not fail.
        let _ = write!(text, "{separator}# {title}\r\n");
        let _ = fill(shared, text);
    }
}

fn server(shared: &Shared, text: &mut String) -> std::fmt::Result {
    write!(text, "redis_version:{}\r\n", crate::commands::server::REDIS_VERSION)?;
    write!(text, "hither_version:{}\r\n", env!("CARGO_PKG_VERSION"))?;
    write!(text, "redis_mode:standalone\r\nos:{}\r\narch_bits:{}\r\n", std::env::consts::OS, usize::BITS)?;
    write!(text, "process_id:{}\r\nrun_id:{}\r\n", std::process::id(), shared.run_id)?;
    write!(text, "tcp_port:{}\r\n", shared.port.load(Ordering::Relaxed))?;
    let uptime = shared.started.elapsed().as_secs();
    write!(text, "uptime_in_seconds:{uptime}\r\nuptime_in_days:{}\r\nio_threads:{}\r\n", uptime / 86_400, shared.cores.len())
}

fn clients(shared: &Shared, text: &mut String) -> std::fmt::Result {
    let most = shared.settings.max_clients.load(Ordering::Relaxed);
    write!(text, "connected_clients:{}\r\nmaxclients:{most}\r\nblocked_clients:{}\r\n", shared.clients.len(), shared.waiting.len())
}

fn memory(shared: &Shared, text: &mut String) -> std::fmt::Result {
    let stats = shared.databases.db.stats();
    let index: u64 = stats.keyspaces.iter().map(|keyspace| keyspace.index_bytes).sum();
    let resident = resident_bytes();
    write!(text, "used_memory:{resident}\r\nused_memory_human:{}\r\n", human(resident))?;
    write!(text, "used_memory_rss:{resident}\r\nused_memory_rss_human:{}\r\n", human(resident))?;
    write!(text, "index_bytes:{index}\r\nmaxmemory:0\r\nmaxmemory_human:0B\r\nmaxmemory_policy:noeviction\r\n")
}

/// Formats a size as Redis shows it to people.
fn human(bytes: u64) -> String {
    let units = [(1 << 40, 'T'), (1 << 30, 'G'), (1 << 20, 'M'), (1 << 10, 'K')];
    match units.into_iter().find(|(size, _)| bytes >= *size) {
        Some((size, unit)) => format!("{:.2}{unit}", bytes as f64 / size as f64),
        None => format!("{bytes}B"),
    }
}

/// Resident bytes of the process, including mapped pools.
pub fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

fn persistence(shared: &Shared, text: &mut String) -> std::fmt::Result {
    let recovery = shared.databases.db.recovery();
    let saving = &shared.saving;
    let word = |good| if good { "ok" } else { "err" };
    let ((saved_s, saved), (_, rewritten)) = (saving.last(Work::Save), saving.last(Work::Rewrite));
    write!(text, "loading:0\r\nasync_loading:0\r\nrdb_bgsave_in_progress:{}\r\n", u8::from(saving.is_running(Work::Save)))?;
    write!(text, "rdb_last_save_time:{saved_s}\r\nrdb_last_bgsave_status:{}\r\n", word(saved))?;
    write!(text, "aof_enabled:0\r\naof_rewrite_in_progress:{}\r\n", u8::from(saving.is_running(Work::Rewrite)))?;
    write!(text, "aof_last_bgrewrite_status:{}\r\nrecovery_ms:{}\r\n", word(rewritten), recovery.elapsed_ms)
}

fn durability(shared: &Shared, text: &mut String) -> std::fmt::Result {
    let stats = shared.databases.db.stats();
    let durable = stats.pools.iter().all(|pool| pool.durable);
    write!(text, "survives_power_loss:{}\r\n", if durable { "yes" } else { "no" })?;
    for pool in &stats.pools {
        write!(text, "node{}:medium={},domain={},flush={}\r\n", pool.node, pool.medium, pool.persistence_domain, pool.flush)?;
    }
    write!(text, "durable_version:{}\r\n", shared.databases.db.durable_version())?;
    write!(text, "replies_that_waited:{}\r\n", shared.total(|core| &core.deferred))
}

fn space(shared: &Shared, text: &mut String) -> std::fmt::Result {
    for pool in &shared.databases.db.stats().pools {
        write!(
            text,
            "node{}:max={},capacity={},live={},dead={},segments={},segments_free={}\r\n",
            pool.node, pool.max_bytes, pool.capacity_bytes, pool.live_bytes, pool.dead_bytes, pool.segments, pool.segments_free
        )?;
    }
    write!(text, "collections_reaped:{}\r\n", shared.databases.reaper.reaped.load(Ordering::Relaxed))
}

fn placement(shared: &Shared, text: &mut String) -> std::fmt::Result {
    write!(text, "nodes:{}\r\nthreads:{}\r\n", shared.databases.db.stats().pools.len(), shared.cores.len())?;
    let mut counts = vec![0; shared.cores.len()];
    for client in shared.clients.list() {
        if let Some(count) = counts.get_mut(client.core) {
            *count += 1;
        }
    }
    counts.iter().enumerate().try_for_each(|(core, count)| write!(text, "thread{core}:clients={count}\r\n"))
}

fn stats(shared: &Shared, text: &mut String) -> std::fmt::Result {
    write!(text, "total_connections_received:{}\r\n", shared.total(|core| &core.connections))?;
    write!(text, "rejected_connections:{}\r\n", shared.total(|core| &core.rejected))?;
    write!(text, "total_commands_processed:{}\r\n", shared.total_calls())?;
    write!(text, "instantaneous_ops_per_sec:{}\r\n", shared.rate.per_second())?;
    write!(text, "total_net_input_bytes:{}\r\n", shared.total(|core| &core.input_bytes))?;
    write!(text, "total_net_output_bytes:{}\r\n", shared.total(|core| &core.output_bytes))?;
    write!(text, "total_error_replies:{}\r\n", shared.total(|core| &core.errors))?;
    write!(text, "transaction_retries:{}\r\n", shared.total(|core| &core.retries))?;
    write!(text, "keyspace_hits:{}\r\n", shared.total(|core| &core.hits))?;
    write!(text, "keyspace_misses:{}\r\nevicted_keys:0\r\n", shared.total(|core| &core.misses))
}

fn replication(_: &Shared, text: &mut String) -> std::fmt::Result {
    text.write_str("role:master\r\nconnected_slaves:0\r\nmaster_repl_offset:0\r\n")
}

fn command_stats(shared: &Shared, text: &mut String) -> std::fmt::Result {
    for (number, command) in TABLE.all().enumerate() {
        let calls = shared.total(|core| &core.calls[number]);
        let (failed, refused) = (shared.total(|core| &core.failed[number]), shared.total(|core| &core.refused[number]));
        if calls + refused > 0 {
            let us = shared.total(|core| &core.nanoseconds[number]) / 1000;
            write!(text, "cmdstat_{}:calls={calls},usec={us}", command.full_name())?;
            write!(text, ",usec_per_call={:.2},rejected_calls={refused},failed_calls={failed}\r\n", us as f64 / calls.max(1) as f64)?;
        }
    }
    Ok(())
}

fn error_stats(shared: &Shared, text: &mut String) -> std::fmt::Result {
    let mut counts = BTreeMap::<Box<str>, u64>::new();
    for core in &shared.cores {
        for (code, count) in &*core.errors_by_code.lock() {
            *counts.entry(code.clone()).or_default() += count;
        }
    }
    counts.iter().try_for_each(|(code, count)| write!(text, "errorstat_{code}:count={count}\r\n"))
}

fn cluster(_: &Shared, text: &mut String) -> std::fmt::Result {
    text.write_str("cluster_enabled:0\r\n")
}

/// In Redis' form, which clients parse. Average times to live are not kept: 0, as in Redis until it has sampled them.
fn keyspace(shared: &Shared, text: &mut String) -> std::fmt::Result {
    let stats = shared.databases.db.stats();
    for database in shared.databases.existing() {
        let keys = database.keys.len();
        if keys > 0 {
            let counted = stats.keyspaces.iter().find(|keyspace| keyspace.name == database.keys.name());
            let expires = counted.map_or(0, |keyspace| keyspace.expiring);
            write!(text, "db{}:keys={keys},expires={expires},avg_ttl=0\r\n", database.index)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_counted_by_their_threads() {
        let shared = Shared::new(hither::Db::builder().in_memory().open().unwrap(), crate::Config::default(), 3).unwrap();
        [0, 2, 2].iter().for_each(|core| drop(shared.clients.add("test".into(), "test".into(), *core)));
        let mut text = String::new();
        placement(&shared, &mut text).unwrap();
        assert_eq!(text, "nodes:1\r\nthreads:3\r\nthread0:clients=1\r\nthread1:clients=0\r\nthread2:clients=2\r\n");
    }

    #[test]
    fn sizes_for_people() {
        let shown = [0, 1023, 1024, 1536 << 10, (1 << 30) - 1, 5 << 30, 3 << 40].map(human);
        assert_eq!(shown, ["0B", "1023B", "1.00K", "1.50M", "1024.00M", "5.00G", "3.00T"]);
    }
}
