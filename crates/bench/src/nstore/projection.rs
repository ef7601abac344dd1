//! Throughput of 1 to 32 threads on the paper's machine, projected from counted accesses (NStore, Fig. 7, 8 and 12; `docs/projection.md`).
//!
//! A store over two emulated nodes on forced dax counts the accesses of its puts, updates and gets, from both nodes in turn; so does one that keeps all entries on
//! one node. The processor's part comes from the same operations on a store in memory without flushes and meter: it contains the misses of
//! this machine's DRAM for the entries, so the projection is a little too low. Beside them stand the profiles of stores in the paper.

use std::sync::Arc;

use hither::{Builder, Db, Durability, MediumChoice, Topology};

use super::drive::{Opened, directory, failed, processor_ns};
use super::{Chart, NstoreArgs, Report};
use crate::projection::table::{THREADS, beside_the_paper};
use crate::projection::{Machine, OpCounts, Placement, paper, project};
use crate::target::store::Index;
use crate::target::{Error, Result};
use crate::workload::permutation::{Permutation, mix64};

const NODES: u32 = 2;

fn key(item: u64) -> [u8; 8] {
    mix64(item).to_be_bytes()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Put,
    Update,
    Get,
}

const OPERATIONS: [(Operation, &str); 3] = [(Operation::Put, "put"), (Operation::Update, "update"), (Operation::Get, "get")];

/// Runs the experiment.
pub fn run(args: &NstoreArgs) -> Result<Report> {
    let columns = vec!["placement", "store", "1", "2", "4", "8", "16", "24", "32", "bound_at_32"];
    debug_assert!(THREADS.iter().zip(&columns[2..]).all(|(threads, column)| threads.to_string() == *column));
    let keys = args.keys();
    let title = format!(
        "Projected million operations per second by threads, two nodes of the paper's machine; hither's accesses counted over {keys} keys of 8 B / 8 B"
    );
    let chart = Chart { value: "32", label: &["store"], group: &["placement"] };
    let mut report = Report { title, columns, chart: Some(chart), ..Report::default() };
    let mut profiles = vec![
        ("paper: NStore put".to_owned(), paper::nstore_put()),
        ("paper: NStore get".to_owned(), paper::nstore_get()),
        ("paper: node-unaware put".to_owned(), paper::unaware_put()),
        ("paper: Viper get".to_owned(), paper::viper_get()),
    ];
    for (name, index, single_log) in [
        ("hither, ordered", Index::Ordered, false),
        ("hither, hash", Index::Hash, false),
        ("hither, all on one node", Index::Ordered, true),
    ] {
        profiles.extend(measured(keys, index, single_log)?.into_iter().map(|(operation, counts)| (format!("{name}: {operation}"), counts)));
    }
    for (placement, name) in [(Placement::Spread, "spread"), (Placement::Fill, "fill")] {
        for (store, counts) in &profiles {
            let points = project(counts, &Machine::paper(NODES, placement), &THREADS);
            let rates = points.iter().map(|point| point.mops.into());
            let bound = points.last().map_or_else(String::new, |point| format!("{:?}", point.bound).to_lowercase());
            report.push([name.into(), store.as_str().into()].into_iter().chain(rates).chain([bound.into()]).collect());
        }
    }
    report.notes = notes(&profiles);
    Ok(report)
}

fn notes(profiles: &[(String, OpCounts)]) -> Vec<String> {
    let mut notes = vec![
        "Spread: threads evenly over both nodes (Fig. 7, 8). Fill: node 0 first (Fig. 12). Counted for each operation:".to_owned(),
        String::new(),
    ];
    let line = |(name, c): &(String, OpCounts)| {
        format!(
            "{name}: reads {:.2} local, {:.2} remote; persisted writes {:.2} local, {:.2} remote; processor {:.0} ns",
            c.local_reads.count, c.remote_reads.count, c.local_writes.count, c.remote_writes.count, c.cpu_ns
        )
    };
    notes.extend(profiles.iter().map(line));
    notes.push(String::new());
    notes.extend(beside_the_paper().lines().map(String::from));
    notes
}

/// What each operation does.
fn measured(keys: u64, index: Index, single_log: bool) -> Result<Vec<(&'static str, OpCounts)>> {
    let directories = [directory()?, directory()?];
    let topology = Topology::emulated(NODES as usize);
    let capacity = (keys * 32 * 6 + (64 << 20)).next_multiple_of(8 << 20) * u64::from(NODES);
    let common = |builder: Builder| {
        builder.topology(Arc::new(topology.clone())).cache_bytes(0).gc_threads(0).capacity(capacity).max_capacity(capacity)
    };
    let pools = if single_log { 1 } else { NODES };
    let on_media = (0..pools).fold(Db::builder(), |builder, node| builder.node_path(node, directories[node as usize].path()));
    let on_media = common(on_media).medium(MediumChoice::ForcedDax).durability(Durability::Sync).meter(true);
    let counting = Opened::new(on_media, index)?;
    let timing = Opened::new(common(Db::builder().in_memory()).durability(Durability::Process), index)?;
    let mut profiles = Vec::new();
    for (operation, name) in OPERATIONS {
        let accesses = |opened: &Opened| opened.db.stats().meter.map_or_else(Vec::new, |meter| meter.accesses);
        let before = accesses(&counting);
        perform(&counting, &topology, operation, keys)?;
        let after = accesses(&counting);
        let used = processor_ns();
        perform(&timing, &topology, operation, keys)?;
        profiles.push((name, OpCounts::from_accesses(&before, &after, keys, (processor_ns() - used) / keys as f64)));
    }
    Ok(profiles)
}

/// Each key once, from both nodes in turn.
fn perform(opened: &Opened, topology: &Topology, operation: Operation, keys: u64) -> Result<()> {
    // An order of its own for each operation, so that who reads is not who wrote last.
    let order = Permutation::new(keys, operation as u64);
    for i in 0..keys {
        topology.bind_current_thread((i % u64::from(NODES)) as u32).map_err(|error| Error::store("hither", error))?;
        let item = if operation == Operation::Put { i } else { order.at(i) };
        if operation == Operation::Get {
            let right = opened.keyspace.get_with(&key(item), |value| value == item.to_le_bytes()).map_err(failed)?;
            if right != Some(true) {
                return Err(Error::WrongData(format!("item {item} is not what was written")));
            }
        } else {
            opened.keyspace.put(&key(item), &item.to_le_bytes()).map_err(failed)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts persist once, on their own node; gets read once, half of them remote; on one log half of the writes are remote.
    #[test]
    fn counted_operations_are_those_of_the_design() {
        let about = |value: f64, expected: f64| (value - expected).abs() < 0.1;
        let found = measured(20_000, Index::Ordered, false).unwrap();
        let (put, get) = (found[0].1, found[2].1);
        assert!(about(put.local_writes.count, 1.0) && put.remote_writes.count < 0.01, "{put:?}");
        assert!(about(get.local_reads.count, 0.5) && about(get.remote_reads.count, 0.5), "{get:?}");
        let unaware = measured(20_000, Index::Ordered, true).unwrap()[0].1;
        assert!(about(unaware.remote_writes.count, 0.5), "{unaware:?}");
    }
}
