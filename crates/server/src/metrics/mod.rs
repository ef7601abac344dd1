//! The server in numbers for Prometheus (text format 0.0.4), and whether it is healthy and ready.
//!
//! [`text`] reads the same counters as INFO: O(segments + clients). [`http`] serves it at an address of its own.

pub mod http;

use crate::acl::log::Reason;
use crate::commands::table::TABLE;
use crate::shared::{BUCKETS, CoreStats, Shared};
use std::fmt::{Display, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};

/// A thread that has not ticked for this long is stuck.
const STUCK_MS: u64 = 30_000;

/// The page under construction.
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = write!(self.0, "# HELP hither_{name} {help}\n# TYPE hither_{name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &dyn Display)], value: impl Display) {
        let _ = write!(self.0, "hither_{name}");
        for (index, (label, text)) in labels.iter().enumerate() {
            let text = text.to_string().replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.0, "{}{label}=\"{text}\"", if index == 0 { "{" } else { "," });
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Returns the page for Prometheus.
pub fn text(shared: &Shared) -> String {
    let mut page = Page(String::with_capacity(32 << 10));
    process(shared, &mut page);
    commands(shared, &mut page);
    connections(shared, &mut page);
    store(shared, &mut page);
    page.0
}

fn process(shared: &Shared, page: &mut Page) {
    page.family("build_info", "gauge", "Version of the server; always 1.");
    page.sample("build_info", &[("version", &env!("CARGO_PKG_VERSION"))], 1);
    page.one("uptime_seconds", "gauge", "Seconds since the server started.", shared.started.elapsed().as_secs());
    page.one("recovery_seconds", "gauge", "What opening the store took.", shared.databases.db.recovery().elapsed_ms as f64 / 1e3);
    page.one("resident_bytes", "gauge", "Memory of the process, mapped pools included.", crate::info::resident_bytes());
}

fn commands(shared: &Shared, page: &mut Page) {
    let sum = |all: fn(&CoreStats) -> &Vec<AtomicU64>, at: usize| -> u64 {
        shared.cores.iter().map(|core| all(core)[at].load(Ordering::Relaxed)).sum()
    };
    let called: Vec<(usize, String, u64)> = TABLE
        .all()
        .enumerate()
        .map(|(number, command)| (number, command.full_name(), sum(|core| &core.calls, number)))
        .filter(|(_, _, calls)| *calls > 0)
        .collect();
    page.family("commands_total", "counter", "Commands run, by name; of a transaction once it is applied.");
    for (_, name, calls) in &called {
        page.sample("commands_total", &[("command", name)], calls);
    }
    page.family("command_duration_seconds", "histogram", "Time of commands in the server, without the wait for durability.");
    for (number, name, _) in &called {
        let mut below = 0;
        for bucket in 0..BUCKETS {
            below += sum(|core| &core.histograms, number * BUCKETS + bucket);
            // The last bucket has no bound.
            let bound = if bucket + 1 == BUCKETS { "+Inf".to_owned() } else { seconds(1000 << bucket).to_string() };
            page.sample("command_duration_seconds_bucket", &[("command", name), ("le", &bound)], below);
        }
        page.sample("command_duration_seconds_sum", &[("command", name)], seconds(sum(|core| &core.nanoseconds, *number)));
        page.sample("command_duration_seconds_count", &[("command", name)], below);
    }
    page.one("error_replies_total", "counter", "Replies that were errors.", shared.total(|core| &core.errors));
    page.one("transaction_retries_total", "counter", "Commands that ran again after a conflict.", shared.total(|core| &core.retries));
    page.one("key_hits_total", "counter", "Keys that were found.", shared.total(|core| &core.hits));
    page.one("key_misses_total", "counter", "Keys that were not found.", shared.total(|core| &core.misses));
    page.one("slow_commands", "gauge", "Entries of the slow log.", shared.slowlog.len());
    page.family("refusals_total", "counter", "Refused by access control, by reason.");
    for reason in [Reason::Command, Reason::Key, Reason::Auth] {
        page.sample("refusals_total", &[("reason", &reason.name())], shared.acl().log.count(reason));
    }
}

fn connections(shared: &Shared, page: &mut Page) {
    page.family("connections", "gauge", "Clients that are connected, by thread.");
    let clients = shared.clients.list();
    for thread in 0..shared.cores.len() {
        page.sample("connections", &[("thread", &thread)], clients.iter().filter(|client| client.core == thread).count());
    }
    page.one("connections_max", "gauge", "Clients at a time.", shared.settings.max_clients.load(Ordering::Relaxed));
    page.one("connections_accepted_total", "counter", "Connections accepted.", shared.total(|core| &core.connections));
    page.one("connections_rejected_total", "counter", "Connections refused.", shared.total(|core| &core.rejected));
    page.one("tls_handshakes", "gauge", "TLS handshakes under way.", shared.tls.as_ref().map_or(0, |tls| tls.handshakes()));
    page.one("received_bytes_total", "counter", "Bytes of requests.", shared.total(|core| &core.input_bytes));
    page.one("sent_bytes_total", "counter", "Bytes of replies.", shared.total(|core| &core.output_bytes));
}

fn store(shared: &Shared, page: &mut Page) {
    let db = &shared.databases.db;
    let stats = db.stats();
    let failed = shared.failed.load(Ordering::Relaxed);
    page.one("durability_failed", "gauge", "1 after a failed sync: writes are refused until the store was opened again.", u8::from(failed));
    page.one(
        "durability_waits_total",
        "counter",
        "Requests for durability, each for all replies that waited for one.",
        shared.total(|core| &core.deferred),
    );
    page.one(
        "durability_wait_seconds_total",
        "counter",
        "Time of these requests, from the first of their writes on.",
        seconds(shared.total(|core| &core.waited_ns)),
    );
    page.one("durability_commits_total", "counter", "Syncs of the store.", stats.commit_groups);
    // 0: every write is durable when it returns.
    let lag = if stats.durable_version == 0 { 0 } else { stats.version.saturating_sub(stats.durable_version) };
    page.one("durability_lag_versions", "gauge", "Versions given out that are not durable yet; an upper bound.", lag);
    page.one("utilization_ratio", "gauge", "Live bytes as a share of segments in use.", stats.utilization);
    page.one("garbage_ratio", "gauge", "Garbage as a share of what was written into segments in use.", stats.garbage);
    page.one("memory_bytes", "gauge", "Memory of indexes, segments' states and the cache.", stats.dram_bytes);
    let pools = &stats.pools;
    page.family("pool_info", "gauge", "Medium of each node's pool; always 1.");
    for pool in pools {
        let labels: [(&str, &dyn Display); 4] =
            [("node", &pool.node), ("medium", &pool.medium), ("domain", &pool.persistence_domain), ("survives_power_loss", &pool.durable)];
        page.sample("pool_info", &labels, 1);
    }
    type Read = fn(&hither::PoolStats) -> u64;
    let gauges: [(&str, &str, Read); 7] = [
        ("pool_capacity_bytes", "Size of a node's pool.", |pool| pool.capacity_bytes),
        ("pool_max_bytes", "How far it may grow.", |pool| pool.max_bytes),
        ("pool_live_bytes", "Bytes of entries that count.", |pool| pool.live_bytes),
        ("pool_dead_bytes", "Bytes of entries that do not.", |pool| pool.dead_bytes),
        ("pool_segments", "Segments.", |pool| pool.segments),
        ("pool_segments_free", "Segments that are free.", |pool| pool.segments_free),
        ("pool_full", "1 if it is full.", |pool| u64::from(pool.full)),
    ];
    for (name, help, read) in gauges {
        page.family(name, "gauge", help);
        pools.iter().for_each(|pool| page.sample(name, &[("node", &pool.node)], read(pool)));
    }
    let done = &stats.collections;
    page.one("collected_segments_total", "counter", "Segments that collection has freed.", done.segments);
    page.one("collected_moved_bytes_total", "counter", "Bytes that it has moved.", done.moved_bytes);
    page.one("collected_seconds_total", "counter", "Time that it took.", done.elapsed_ms as f64 / 1e3);
    page.one("collection_stalls_total", "counter", "Writes that had to collect by themselves.", done.stalls);
    page.one(
        "collections_reaped_total",
        "counter",
        "Deleted hashes and sorted sets whose rows were removed.",
        shared.databases.reaper.reaped.load(Ordering::Relaxed),
    );
    page.one("checkpoint_age_seconds", "gauge", "Age of the newest checkpoint.", stats.checkpoints.age_ms as f64 / 1e3);
    page.one("crash_restart_seconds", "gauge", "What a restart after a crash would take.", stats.checkpoints.crash_restart_ms as f64 / 1e3);
    placement(&stats, page);
    page.family("keys", "gauge", "Keys by database, expired ones that were not swept yet included.");
    for database in shared.databases.existing() {
        page.sample("keys", &[("database", &database.index)], database.keys.len());
    }
}

fn placement(stats: &hither::Stats, page: &mut Page) {
    let cache = &stats.cache;
    page.one("cache_used_bytes", "gauge", "Bytes of the cache.", cache.used_bytes);
    page.one("cache_capacity_bytes", "gauge", "Bytes that it may have.", cache.capacity_bytes);
    for (name, help, local, remote) in [
        ("cache_hits_total", "Reads that the cache answered, by where the entry lies.", cache.local_hits, cache.remote_hits),
        ("cache_misses_total", "Reads that it did not answer, by where the entry lies.", cache.local_misses, cache.remote_misses),
    ] {
        page.family(name, "counter", help);
        page.sample(name, &[("where", &"local")], local);
        page.sample(name, &[("where", &"remote")], remote);
    }
    page.one("nodes", "gauge", "NUMA nodes of the store.", stats.pools.len());
    let Some(meter) = &stats.meter else { return };
    page.family("node_access_bytes_total", "counter", "Bytes read and written, from and to a node; with the meter on.");
    for access in &meter.accesses {
        for (kind, bytes) in [("read", access.read_bytes), ("write", access.write_bytes)] {
            page.sample("node_access_bytes_total", &[("from", &access.from), ("to", &access.to), ("kind", &kind)], bytes);
        }
    }
}

/// Why the process should be restarted, if it should.
pub fn unhealthy(shared: &Shared) -> Option<String> {
    let uptime_ms = shared.uptime_ms();
    let stuck = |core: &CoreStats| uptime_ms.saturating_sub(core.alive_ms.load(Ordering::Relaxed)) > STUCK_MS;
    shared.cores.iter().position(stuck).map(|thread| format!("thread {thread} has not come round for 30 seconds"))
}

/// Why clients should use another server, if they should.
pub fn unready(shared: &Shared) -> Option<String> {
    if shared.stopping.load(Ordering::Relaxed) {
        return Some("stopping".to_owned());
    }
    if shared.failed.load(Ordering::Relaxed) {
        return Some("a sync has failed: writes are refused until the store was opened again".to_owned());
    }
    unhealthy(shared)
}
