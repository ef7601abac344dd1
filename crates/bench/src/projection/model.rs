//! The formulas: the latencies of a thread add up, and so do the demands on a link.
//!
//! Let t threads run on a node, T be the time of one of their operations without waiting, and s the slow-down of the
//! busiest memory that they use. Then
//!
//! ```text
//! rate of the node's threads = t / (T · s)        s ≥ 1, as small as no memory is busy for more than all the time
//! ```
//!
//! The bandwidth of remote writes falls with the number of threads that are in a remote write, and a thread that waits
//! for the link is in one. So the rates are a fixed point, found by iteration: a lower rate means more threads in
//! remote writes, and that means a lower bandwidth.

use hither::NodeAccess;
use hither_topology::{LINE_BYTES, LinkCost};

/// The accesses of one kind that one operation makes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Access {
    /// Number of accesses that take the latency.
    pub count: f64,
    /// Number of bytes that the media move for them.
    pub bytes: f64,
}

/// The average accesses and processor time of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OpCounts {
    /// Reads of the thread's own node.
    pub local_reads: Access,
    /// Reads of other nodes.
    pub remote_reads: Access,
    /// Persisted writes to the thread's own node.
    pub local_writes: Access,
    /// Persisted writes to other nodes.
    pub remote_writes: Access,
    /// Processor time for everything else: index, caches, copying.
    pub cpu_ns: f64,
}

impl OpCounts {
    /// Computes the counts from a store's meter at two moments, between which there were `ops` operations. A read takes
    /// the read latency, a fence the write latency. Links carry whole cache lines for reads, and the stored bytes for
    /// writes. The paper's bandwidths are those of accesses of 32 bytes, so they already include what the media write
    /// beyond that.
    pub fn from_accesses(before: &[NodeAccess], after: &[NodeAccess], ops: u64, cpu_ns: f64) -> OpCounts {
        let mut counts = OpCounts { cpu_ns, ..OpCounts::default() };
        let per_op = |amount: u64| amount as f64 / ops.max(1) as f64;
        let add = |access: &mut Access, count: u64, bytes: u64| {
            access.count += per_op(count);
            access.bytes += per_op(bytes);
        };
        for (then, now) in before.iter().zip(after) {
            let (reads, writes) = match now.from == now.to {
                true => (&mut counts.local_reads, &mut counts.local_writes),
                false => (&mut counts.remote_reads, &mut counts.remote_writes),
            };
            add(reads, now.reads - then.reads, (now.read_lines - then.read_lines) * LINE_BYTES);
            add(writes, now.fences - then.fences, now.write_bytes - then.write_bytes);
        }
        counts
    }

    /// A mix with `share` of `self` and the rest of `other`.
    pub fn mixed(&self, share: f64, other: &OpCounts) -> OpCounts {
        let blend = |a: f64, b: f64| share * a + (1.0 - share) * b;
        let access = |a: Access, b: Access| Access { count: blend(a.count, b.count), bytes: blend(a.bytes, b.bytes) };
        OpCounts {
            local_reads: access(self.local_reads, other.local_reads),
            remote_reads: access(self.remote_reads, other.remote_reads),
            local_writes: access(self.local_writes, other.local_writes),
            remote_writes: access(self.remote_writes, other.remote_writes),
            cpu_ns: blend(self.cpu_ns, other.cpu_ns),
        }
    }

    /// The same accesses on a machine with one node, where all of them are local.
    pub fn on_one_node(&self) -> OpCounts {
        let sum = |a: Access, b: Access| Access { count: a.count + b.count, bytes: a.bytes + b.bytes };
        OpCounts {
            local_reads: sum(self.local_reads, self.remote_reads),
            local_writes: sum(self.local_writes, self.remote_writes),
            remote_reads: Access::default(),
            remote_writes: Access::default(),
            cpu_ns: self.cpu_ns,
        }
    }
}

/// Which nodes the threads run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Evenly over all nodes (the paper's Fig. 7 and 8).
    Spread,
    /// A node is filled before the next is used (Fig. 12). Nodes without threads hold no data.
    Fill,
}

/// The machine for which throughput is projected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Number of nodes.
    pub nodes: u32,
    /// Number of processors of each node.
    pub threads_per_node: u32,
    /// How threads are distributed over the nodes.
    pub placement: Placement,
    /// A node's own memory.
    pub local: LinkCost,
    /// Memory of another node.
    pub remote: LinkCost,
}

impl Machine {
    /// The paper's processors and memory, with `nodes` nodes.
    pub fn paper(nodes: u32, placement: Placement) -> Machine {
        Machine { nodes: nodes.max(1), threads_per_node: 16, placement, local: LinkCost::LOCAL, remote: LinkCost::REMOTE }
    }

    /// Number of threads on each node that has any.
    fn threads_by_node(&self, threads: u32) -> Vec<f64> {
        let nodes = match self.placement {
            Placement::Spread => self.nodes.min(threads.max(1)),
            Placement::Fill => threads.div_ceil(self.threads_per_node).clamp(1, self.nodes),
        };
        let on = |node: u32| match self.placement {
            Placement::Spread => threads / nodes + u32::from(node < threads % nodes),
            Placement::Fill if node + 1 == nodes => threads - node * self.threads_per_node,
            Placement::Fill => self.threads_per_node,
        };
        (0..nodes).map(|node| f64::from(on(node))).collect()
    }
}

/// The limit of a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Each thread waits for its own accesses only.
    Latency,
    /// A node's memory is busy all the time.
    Bandwidth,
}

/// The projection for one number of threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Number of threads.
    pub threads: u32,
    /// Million operations per second, all threads together.
    pub mops: f64,
    /// The limit of the rate.
    pub bound: Bound,
    /// Average number of threads of one node that are in remote writes.
    pub remote_writers: f64,
}

/// The projected throughput of operations that do `counts`, for each number of threads.
///
/// `counts` describe the operation with all nodes in use; if only one node has threads, all accesses are local.
pub fn project(counts: &OpCounts, machine: &Machine, threads: &[u32]) -> Vec<Point> {
    threads.iter().map(|&threads| point(counts, machine, threads.max(1))).collect()
}

/// The time of one operation of a thread that does not wait for others, in nanoseconds.
pub fn latency_ns(counts: &OpCounts, machine: &Machine) -> f64 {
    counts.cpu_ns
        + counts.local_reads.count * machine.local.read_ns
        + counts.remote_reads.count * machine.remote.read_ns
        + counts.local_writes.count * machine.local.write_ns
        + counts.remote_writes.count * machine.remote.write_ns
}

/// The most rounds of the iteration. It ends long before, or creeps towards rates that differ by less than a millionth.
const ROUNDS: usize = 1000;

/// The threads of one node.
struct Group {
    threads: f64,
    /// Operations per nanosecond.
    rate: f64,
    /// Share of their time that the threads spend in remote writes.
    writing: f64,
}

fn point(counts: &OpCounts, machine: &Machine, threads: u32) -> Point {
    let by_node = machine.threads_by_node(threads);
    let counts = if by_node.len() == 1 { counts.on_one_node() } else { *counts };
    let alone_ns = latency_ns(&counts, machine);
    let remote_write_ns = counts.remote_writes.count * machine.remote.write_ns;
    let group = |&threads: &f64| Group { threads, rate: threads / alone_ns, writing: remote_write_ns / alone_ns };
    let mut groups: Vec<Group> = by_node.iter().map(group).collect();
    let mut slow_down = vec![1.0f64; groups.len()];
    for _ in 0..ROUNDS {
        for (home, slow_down) in slow_down.iter_mut().enumerate() {
            *slow_down = (*slow_down * busy(&counts, machine, &groups, home)).max(1.0);
        }
        let mut change = 0.0f64;
        for (node, group) in groups.iter_mut().enumerate() {
            let used = slow_down.iter().enumerate().filter(|&(home, _)| uses(&counts, node, home));
            let before = group.rate;
            group.rate = group.threads / (alone_ns * used.map(|(_, slow_down)| *slow_down).fold(1.0, f64::max));
            // All waiting is attributed to the remote writes, because other threads wait behind those.
            let taken_ns = group.threads / group.rate;
            group.writing = if remote_write_ns > 0.0 { (taken_ns - alone_ns + remote_write_ns) / taken_ns } else { 0.0 };
            change = change.max((group.rate - before).abs() / before);
        }
        if change < 1e-10 {
            break;
        }
    }
    let full = slow_down.iter().any(|slow_down| *slow_down > 1.0);
    Point {
        threads,
        mops: groups.iter().map(|group| group.rate).sum::<f64>() * 1e3,
        bound: if full { Bound::Bandwidth } else { Bound::Latency },
        remote_writers: groups.iter().map(|group| group.threads * group.writing).fold(0.0, f64::max),
    }
}

/// Whether threads on `node` move bytes of the memory of `home`.
fn uses(counts: &OpCounts, node: usize, home: usize) -> bool {
    let bytes = |reads: Access, writes: Access| reads.bytes + writes.bytes > 0.0;
    if node == home { bytes(counts.local_reads, counts.local_writes) } else { bytes(counts.remote_reads, counts.remote_writes) }
}

/// The share of the time for which the memory of node `home` is busy; above 1 if the demand exceeds its bandwidth.
fn busy(counts: &OpCounts, machine: &Machine, groups: &[Group], home: usize) -> f64 {
    let others = (groups.len() - 1).max(1) as f64;
    let mut busy = 0.0;
    for (node, group) in groups.iter().enumerate() {
        // 1 GB/s is one byte per nanosecond.
        let occupied_ns = if node == home {
            counts.local_reads.bytes / machine.local.read_gb_s + counts.local_writes.bytes / machine.local.write_gb_s
        } else {
            let write_gb_s = write_bandwidth(&machine.remote, group.threads * group.writing / others);
            (counts.remote_reads.bytes / machine.remote.read_gb_s + counts.remote_writes.bytes / write_gb_s) / others
        };
        busy += group.rate * occupied_ns;
    }
    busy
}

/// [`LinkCost::write_bandwidth`] for an average number of writers.
fn write_bandwidth(link: &LinkCost, writers: f64) -> f64 {
    match link.collapse_threads {
        Some(limit) if writers > f64::from(limit) => link.write_gb_s * f64::from(limit) / writers,
        _ => link.write_gb_s,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [u32; 8] = [1, 2, 4, 8, 12, 16, 24, 32];

    fn entry(count: f64) -> Access {
        Access { count, bytes: count * 32.0 }
    }

    fn mops(counts: &OpCounts, machine: &Machine) -> Vec<f64> {
        project(counts, machine, &ALL).iter().map(|point| point.mops).collect()
    }

    fn never_falls(rates: &[f64]) -> bool {
        rates.windows(2).all(|pair| pair[1] >= pair[0] * (1.0 - 1e-9))
    }

    #[test]
    fn one_thread_takes_the_sum_of_its_latencies() {
        let machine = Machine::paper(2, Placement::Spread);
        let counts = OpCounts { local_reads: entry(1.0), local_writes: entry(2.0), cpu_ns: 100.0, ..OpCounts::default() };
        let one = project(&counts, &machine, &[1])[0];
        assert!((one.mops - 1e3 / (100.0 + 113.4 + 2.0 * 310.5)).abs() < 1e-9);
        assert_eq!(one.bound, Bound::Latency);
        let remote = OpCounts { remote_reads: entry(1.0), remote_writes: entry(1.0), ..OpCounts::default() };
        assert!((latency_ns(&remote, &machine) - 180.7 - 496.8).abs() < 1e-9);
    }

    #[test]
    fn local_work_never_gets_slower_with_more_threads_and_stops_at_the_bandwidth() {
        for nodes in 1..=4 {
            let machine = Machine::paper(nodes, Placement::Spread);
            for counts in [
                OpCounts { local_writes: entry(1.0), ..OpCounts::default() },
                OpCounts { local_writes: entry(1.0), cpu_ns: 500.0, ..OpCounts::default() },
                OpCounts { local_reads: entry(2.0), cpu_ns: 50.0, ..OpCounts::default() },
            ] {
                assert!(never_falls(&mops(&counts, &machine)), "{nodes} nodes, {counts:?}");
            }
        }
        let counts = OpCounts { local_writes: Access { count: 1.0, bytes: 256.0 }, ..OpCounts::default() };
        let full = project(&counts, &Machine::paper(2, Placement::Spread), &[32])[0];
        assert_eq!(full.bound, Bound::Bandwidth);
        assert!((full.mops * 256.0 / 1e3 - 2.0 * 0.73).abs() < 1e-9, "both nodes write at their bandwidth");
    }

    #[test]
    fn more_of_anything_is_never_faster() {
        // Without the collapse. With it, work elsewhere keeps threads out of remote writes.
        let remote = LinkCost { collapse_threads: None, ..LinkCost::REMOTE };
        let base = OpCounts {
            local_reads: entry(0.5),
            remote_reads: entry(0.5),
            local_writes: entry(0.5),
            remote_writes: entry(0.5),
            cpu_ns: 200.0,
        };
        let more: [fn(&mut OpCounts); 5] = [
            |c| c.local_reads = entry(1.5),
            |c| c.remote_reads = entry(1.5),
            |c| c.local_writes = entry(1.5),
            |c| c.remote_writes = entry(1.5),
            |c| c.cpu_ns = 900.0,
        ];
        let machine = Machine { remote, ..Machine::paper(2, Placement::Spread) };
        for change in more {
            let mut counts = base;
            change(&mut counts);
            for (less, more) in mops(&base, &machine).iter().zip(mops(&counts, &machine)).skip(1) {
                assert!(more <= less * (1.0 + 1e-6), "{counts:?}: {more} after {less}");
            }
        }
    }

    #[test]
    fn remote_writes_collapse_and_local_ones_do_not() {
        let machine = Machine::paper(2, Placement::Spread);
        let remote = project(&OpCounts { remote_writes: entry(1.0), ..OpCounts::default() }, &machine, &ALL);
        let best = remote.iter().map(|point| point.mops).fold(0.0, f64::max);
        let last = remote.last().expect("there are points");
        // 16 writers on each link instead of 5.
        assert!((last.mops * 32.0 / 1e3 - 2.0 * 0.37 * 5.0 / 16.0).abs() < 1e-6, "{last:?}");
        assert!(last.mops < best / 2.0 && last.remote_writers > 15.0, "{remote:?}");
        let gentle = Machine { remote: LinkCost { collapse_threads: None, ..LinkCost::REMOTE }, ..machine };
        assert!(never_falls(&mops(&OpCounts { remote_writes: entry(1.0), ..OpCounts::default() }, &gentle)));
    }

    #[test]
    fn filling_nodes_keeps_everything_local_until_the_first_is_full() {
        let machine = Machine::paper(2, Placement::Fill);
        let counts = OpCounts { local_reads: entry(0.5), remote_reads: entry(0.5), cpu_ns: 100.0, ..OpCounts::default() };
        let local = OpCounts { local_reads: entry(1.0), cpu_ns: 100.0, ..OpCounts::default() };
        let (half, all) = (project(&counts, &machine, &[16, 32]), project(&local, &machine, &[16, 32]));
        assert_eq!(half[0], all[0]);
        assert!(half[1].mops < all[1].mops);
        assert_eq!(machine.threads_by_node(20), [16.0, 4.0]);
        assert_eq!(Machine::paper(4, Placement::Spread).threads_by_node(6), [2.0, 2.0, 1.0, 1.0]);
    }

    #[test]
    fn counts_are_differences_by_operation() {
        let access = |from, to, scale: u64| NodeAccess {
            from,
            to,
            reads: scale * 10,
            read_bytes: scale * 80,
            read_lines: scale * 10,
            writes: scale * 20,
            write_bytes: scale * 320,
            flushes: scale * 10,
            fences: scale * 10,
        };
        let counts = OpCounts::from_accesses(&[access(0, 0, 1), access(0, 1, 5)], &[access(0, 0, 2), access(0, 1, 5)], 10, 70.0);
        assert_eq!(counts.local_reads, Access { count: 1.0, bytes: 64.0 });
        assert_eq!(counts.local_writes, Access { count: 1.0, bytes: 32.0 });
        assert_eq!((counts.remote_reads, counts.remote_writes, counts.cpu_ns), (Access::default(), Access::default(), 70.0));
        let mixed = counts.mixed(0.5, &OpCounts::default());
        assert_eq!(mixed.local_reads.count, 0.5);
    }
}
