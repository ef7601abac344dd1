//! Throughput of 1 to 32 threads on the paper's machine, projected from counted accesses (NStore, Fig. 7, 8 and 12;
//! `docs/projection.md`).
//!
//! A store over two emulated nodes on forced dax counts the accesses of its puts, updates and gets, made from both
//! nodes by turns. A second store, with all entries on one node, is counted in the same way.
//!
//! Processor time comes from the same operations on a store in memory, which needs neither flush nor meter. It is
//! durable at return like the other, so that both take the same path. This time includes the misses of this machine's
//! DRAM for the entries, so the projection is a little too low. Keys and their order are made before. The profiles of
//! stores in the paper stand beside the results.

use std::sync::Arc;

use hither::{Builder, Db, Durability, MediumChoice, Topology};

use super::drive::{Opened, directory, failed, processor_ns};
use super::{Chart, NstoreArgs, Report};
use crate::harness::scratch::Scratch;
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

/// A store that counts accesses, and one whose processor time is measured. Both are durable by their fence, so that
/// operations take the same path in both.
struct Stores {
    counting: Opened,
    timing: Opened,
    topology: Topology,
    _directories: [Scratch; 2],
}

impl Stores {
    fn new(keys: u64, index: Index, single_log: bool) -> Result<Stores> {
        let directories = [directory()?, directory()?];
        let topology = Topology::emulated(NODES as usize);
        let capacity = (keys * 32 * 6 + (64 << 20)).next_multiple_of(8 << 20) * u64::from(NODES);
        let common = |builder: Builder| {
            let builder = builder.topology(Arc::new(topology.clone())).durability(Durability::Sync);
            builder.cache_bytes(0).gc_threads(0).capacity(capacity).max_capacity(capacity)
        };
        let pools = if single_log { 1 } else { NODES };
        let on_media = (0..pools).fold(Db::builder(), |builder, node| builder.node_path(node, directories[node as usize].path()));
        let counting = Opened::new(common(on_media).medium(MediumChoice::ForcedDax).meter(true), index)?;
        let timing = Opened::new(common(Db::builder().in_memory()), index)?;
        Ok(Stores { counting, timing, topology, _directories: directories })
    }
}

/// Measures the accesses and the processor time of each operation.
fn measured(keys: u64, index: Index, single_log: bool) -> Result<Vec<(&'static str, OpCounts)>> {
    let Stores { counting, timing, topology, .. } = &Stores::new(keys, index, single_log)?;
    let mut profiles = Vec::new();
    for (operation, name) in OPERATIONS {
        let items = order(keys, operation);
        let accesses = |opened: &Opened| opened.db.stats().meter.map_or_else(Vec::new, |meter| meter.accesses);
        let before = accesses(counting);
        perform(counting, topology, operation, &items)?;
        let after = accesses(counting);
        let used = processor_ns();
        perform(timing, topology, operation, &items)?;
        profiles.push((name, OpCounts::from_accesses(&before, &after, keys, (processor_ns() - used) / keys as f64)));
    }
    Ok(profiles)
}

/// Each item once with its key, in an order of its own for each operation, so that items are not read by the node that
/// wrote them last. Drawn before the clock starts.
fn order(keys: u64, operation: Operation) -> Vec<([u8; 8], u64)> {
    let order = Permutation::new(keys, operation as u64);
    let item = |i: u64| if operation == Operation::Put { i } else { order.at(i) };
    (0..keys).map(item).map(|item| (key(item), item)).collect()
}

/// Number of operations that a node does in a row, so that the cost of switching to the other node does not matter.
fn in_a_row(keys: u64) -> usize {
    (keys / 64).clamp(1, 1024) as usize
}

/// Performs the operation on all items in their order, from both nodes by turns.
fn perform(opened: &Opened, topology: &Topology, operation: Operation, items: &[([u8; 8], u64)]) -> Result<()> {
    for (turn, items) in items.chunks(in_a_row(items.len() as u64)).enumerate() {
        topology.bind_current_thread(turn as u32 % NODES).map_err(|error| Error::store("hither", error))?;
        for (key, item) in items {
            if operation == Operation::Get {
                let right = opened.keyspace.get_with(key, |value| value == item.to_le_bytes()).map_err(failed)?;
                if right != Some(true) {
                    return Err(Error::WrongData(format!("item {item} is not what was written")));
                }
            } else {
                opened.keyspace.put(key, &item.to_le_bytes()).map_err(failed)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the counted writes took one path, and the timed ones another.
    #[test]
    fn both_stores_write_by_the_same_path() {
        let stores = Stores::new(20_000, Index::Ordered, false).unwrap();
        for opened in [&stores.counting, &stores.timing] {
            assert_eq!(opened.db.stats().durability, "sync");
        }
    }

    #[test]
    fn both_nodes_do_all_operations_in_turn() {
        for operation in OPERATIONS.map(|(operation, _)| operation) {
            let mut items = order(1_000, operation);
            assert_eq!(items.len(), 1_000);
            items.sort_unstable_by_key(|(_, item)| *item);
            assert!(items.iter().enumerate().all(|(i, (found, item))| i as u64 == *item && *found == key(*item)));
        }
        for keys in [1, 1_000, 20_000, 5_000_000u64] {
            let turns = keys.div_ceil(in_a_row(keys) as u64);
            assert!(turns >= keys.min(64), "{turns} turns of {keys}");
        }
    }

    /// Puts persist once, on their own node. Gets read once, half of them remote. On one log half of the writes are
    /// remote.
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
