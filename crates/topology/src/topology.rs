//! The nodes of the machine, real or emulated, and where the calling thread runs.
//!
//! Node numbers are dense (0, 1, …) whatever numbers the operating system uses. Thread safety: all methods take
//! `&self`; `current_node` touches thread-local state only. Paper: NStore, section III-C (one log per node) and III-B
//! (the ratio of latencies).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::process::getpid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use crate::cost::{LinkCost, NodeCosts};
use crate::sysfs::{self, SysfsNode};
use crate::thread::{self, BOUND, Cached};
use crate::{MAX_NODES, TopologyError};

/// Number of calls of `current_node` after which a thread of a real topology asks again where it runs.
const CALLS_PER_LOOKUP: u32 = 256;

/// The largest processor number that the affinity call can name.
const MAX_CPU: u32 = CpuSet::MAX_CPU as u32;

static NEXT_IDENTITY: AtomicU64 = AtomicU64::new(1);

/// One node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The operating system's number (equal to the dense number for emulated nodes).
    pub os_id: u32,
    /// The node's processors; empty for emulated and memory-only nodes.
    pub cpus: Vec<u32>,
    /// Distance to each node; 10 means local.
    pub distances: Vec<u32>,
}

/// The machine's nodes. Cloning is cheap and keeps the identity: clones share thread assignments.
#[derive(Clone)]
pub struct Topology(Arc<Inner>);

struct Inner {
    identity: u64,
    /// For threads that remember bindings: dead once the topology is gone.
    alive: Arc<()>,
    emulated: bool,
    nodes: Vec<Node>,
    memory_only: Vec<u32>,
    /// Dense node by processor number.
    node_of_cpu: Vec<u32>,
    /// Nodes that have processors, in order: threads are assigned to these only.
    assignable: Vec<u32>,
    costs: NodeCosts,
    next_assignment: AtomicU32,
}

impl Topology {
    /// The machine's nodes that have processors. A single node if sysfs shows none, or shows something that a store
    /// cannot use.
    ///
    /// Memory without processors, such as CXL memory as the system shows it, is [left out](Topology::memory_only). No
    /// thread is near it, so a pool there would be written only when all others are full.
    pub fn detect() -> Topology {
        Topology::with_processors(Path::new("/sys/devices/system/node")).unwrap_or_else(|_| Topology::single())
    }

    /// As [`Topology::from_sysfs`], but only with the nodes that have processors, or with all nodes if none has any.
    pub fn with_processors(root: &Path) -> Result<Topology, TopologyError> {
        let mut found = sysfs::read_nodes(root)?;
        let has_processors: Vec<bool> = found.iter().map(|node| !node.cpus.is_empty()).collect();
        if !has_processors.contains(&true) {
            return Topology::of_nodes(found, Vec::new());
        }
        let memory_only = found.iter().filter(|node| node.cpus.is_empty()).map(|node| node.os_id).collect();
        found.retain(|node| !node.cpus.is_empty());
        for node in &mut found {
            let mut stays = has_processors.iter();
            node.distances.retain(|_| stays.next() == Some(&true));
        }
        Topology::of_nodes(found, memory_only)
    }

    /// One node that holds everything.
    pub fn single() -> Topology {
        Topology::emulated(1)
    }

    /// Reads a topology from a folder with the layout of `/sys/devices/system/node`.
    pub fn from_sysfs(root: &Path) -> Result<Topology, TopologyError> {
        Topology::of_nodes(sysfs::read_nodes(root)?, Vec::new())
    }

    fn of_nodes(found: Vec<SysfsNode>, memory_only: Vec<u32>) -> Result<Topology, TopologyError> {
        if found.len() > MAX_NODES {
            return Err(TopologyError::TooManyNodes { found: found.len(), max: MAX_NODES });
        }
        let nodes = found.into_iter().map(|SysfsNode { os_id, cpus, distances }| Node { os_id, cpus, distances });
        Ok(TopologyBuilder { memory_only, ..TopologyBuilder::of(nodes.collect(), false) }.build())
    }

    /// `count` emulated nodes (clamped to 1..=[`MAX_NODES`]) with the paper's costs.
    pub fn emulated(count: usize) -> Topology {
        TopologyBuilder::emulated(count).build()
    }

    /// Number of nodes, at least 1.
    #[inline]
    pub fn node_count(&self) -> u32 {
        self.0.nodes.len() as u32
    }

    /// Whether nodes are emulated.
    pub fn is_emulated(&self) -> bool {
        self.0.emulated
    }

    /// The node with this number.
    pub fn node(&self, node: u32) -> Option<&Node> {
        self.0.nodes.get(node as usize)
    }

    /// The operating system's numbers of the nodes that were left out because they have no processors
    /// ([`Topology::detect`]).
    pub fn memory_only(&self) -> &[u32] {
        &self.0.memory_only
    }

    /// Cost of accesses from `accessor` to memory of `home`.
    pub fn link(&self, accessor: u32, home: u32) -> LinkCost {
        self.0.costs.link(accessor, home)
    }

    /// The costs of all pairs of nodes.
    pub fn costs(&self) -> &NodeCosts {
        &self.0.costs
    }

    /// The node of the calling thread. In an emulated topology it is the node to which the thread is bound; a thread
    /// that is not bound gets the next node, round-robin. In a real topology it is the node where the thread runs,
    /// which is asked again every 256 calls, unless the thread is bound or pinned.
    #[inline(always)]
    pub fn current_node(&self) -> u32 {
        let cached = thread::cached();
        if cached.topology == self.0.identity {
            if cached.remaining == BOUND {
                return cached.node;
            }
            if cached.remaining > 0 {
                thread::cache(Cached { remaining: cached.remaining - 1, ..cached });
                return cached.node;
            }
        }
        self.look_up()
    }

    /// Binds the calling thread to `node` without changing its affinity: from now on its accesses count as that node's.
    pub fn bind_current_thread(&self, node: u32) -> Result<(), TopologyError> {
        self.check(node)?;
        thread::bind(self.0.identity, &self.0.alive, node);
        Ok(())
    }

    /// Assigns the calling thread to the next node that has processors, round-robin, binds it and returns the node.
    pub fn assign_thread(&self) -> u32 {
        let turn = self.0.next_assignment.fetch_add(1, Ordering::Relaxed);
        let node = self.0.assignable[turn as usize % self.0.assignable.len()];
        thread::bind(self.0.identity, &self.0.alive, node);
        node
    }

    /// Ends a binding. In an emulated topology the thread is assigned again at its next use, in a real one it is looked
    /// up again.
    pub fn unbind_current_thread(&self) {
        thread::unbind(self.0.identity);
    }

    /// Binds the calling thread to `node`. On a real topology the operating system then runs it only on that node's
    /// processors, as far as the process may use them.
    ///
    /// # Errors
    /// The node does not exist, or the process may use no processor of it; then nothing has changed.
    pub fn pin_current_thread_to_node(&self, node: u32) -> Result<(), TopologyError> {
        self.check(node)?;
        if !self.0.emulated {
            let set = those_allowed(&self.0.nodes[node as usize].cpus, &affinities());
            // The kernel answers EINVAL for an empty set: a memory-only node cannot run a thread.
            sched_setaffinity(None, &set).map_err(|e| TopologyError::Pin { node, source: e.into() })?;
        }
        thread::bind(self.0.identity, &self.0.alive, node);
        Ok(())
    }

    fn check(&self, node: u32) -> Result<(), TopologyError> {
        let count = self.node_count();
        if node < count { Ok(()) } else { Err(TopologyError::NoSuchNode { node, count }) }
    }

    #[cold]
    #[inline(never)]
    fn look_up(&self) -> u32 {
        let topology = self.0.identity;
        if let Some(node) = thread::binding(topology) {
            thread::cache(Cached { topology, node, remaining: BOUND });
            return node;
        }
        if self.0.emulated {
            return self.assign_thread();
        }
        let node = self.0.node_of_cpu.get(sched_getcpu()).copied().unwrap_or(0);
        thread::cache(Cached { topology, node, remaining: CALLS_PER_LOOKUP - 1 });
        node
    }
}

/// The processors on which the process may run, as far as they are known: those of its first thread, with which it was
/// started, and those of the calling thread.
fn affinities() -> Vec<CpuSet> {
    [Some(getpid()), None].into_iter().filter_map(|thread| sched_getaffinity(thread).ok()).collect()
}

/// The processors that are in one of the sets; all processors if there are no sets.
fn those_allowed(cpus: &[u32], sets: &[CpuSet]) -> CpuSet {
    let is_allowed = |cpu: usize| sets.is_empty() || sets.iter().any(|set| set.is_set(cpu));
    let mut allowed = CpuSet::new();
    cpus.iter().filter(|&&cpu| cpu < MAX_CPU).map(|&cpu| cpu as usize).filter(|&cpu| is_allowed(cpu)).for_each(|cpu| allowed.set(cpu));
    allowed
}

impl std::fmt::Debug for Topology {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Topology").field("emulated", &self.0.emulated).field("nodes", &self.0.nodes).finish()
    }
}

/// Builds a topology with custom figures.
#[derive(Debug, Clone)]
pub struct TopologyBuilder {
    nodes: Vec<Node>,
    memory_only: Vec<u32>,
    emulated: bool,
    costs: NodeCosts,
}

impl TopologyBuilder {
    /// `count` emulated nodes (clamped to 1..=[`MAX_NODES`]) with the paper's costs.
    pub fn emulated(count: usize) -> TopologyBuilder {
        let count = count.clamp(1, MAX_NODES);
        let distance = |from: usize, to: usize| if from == to { 10 } else { 21 };
        let node = |i: usize| Node { os_id: i as u32, cpus: vec![], distances: (0..count).map(|to| distance(i, to)).collect() };
        TopologyBuilder::of((0..count).map(node).collect(), true)
    }

    fn of(nodes: Vec<Node>, emulated: bool) -> TopologyBuilder {
        let costs = NodeCosts::defaults(nodes.len());
        TopologyBuilder { nodes, memory_only: Vec::new(), emulated, costs }
    }

    /// Sets the latencies from `accessor` to `home`, in nanoseconds. Unknown nodes are ignored.
    #[must_use]
    pub fn latency(mut self, accessor: u32, home: u32, read_ns: f64, write_ns: f64) -> Self {
        let link = LinkCost { read_ns, write_ns, ..self.costs.link(accessor, home) };
        self.costs.set(accessor, home, link);
        self
    }

    /// Sets the bandwidths from `accessor` to `home`, in GB/s. Unknown nodes are ignored.
    #[must_use]
    pub fn bandwidth(mut self, accessor: u32, home: u32, read_gb_s: f64, write_gb_s: f64) -> Self {
        let link = LinkCost { read_gb_s, write_gb_s, ..self.costs.link(accessor, home) };
        self.costs.set(accessor, home, link);
        self
    }

    /// Sets all figures of one pair. Unknown nodes are ignored.
    #[must_use]
    pub fn link(mut self, accessor: u32, home: u32, cost: LinkCost) -> Self {
        self.costs.set(accessor, home, cost);
        self
    }

    /// Builds the topology, which gets its own identity.
    pub fn build(self) -> Topology {
        let highest = self.nodes.iter().flat_map(|n| &n.cpus).max().map_or(0, |&cpu| cpu as usize + 1);
        let mut node_of_cpu = vec![0; highest];
        for (number, node) in self.nodes.iter().enumerate() {
            node.cpus.iter().for_each(|&cpu| node_of_cpu[cpu as usize] = number as u32);
        }
        let all = 0..self.nodes.len() as u32;
        let mut assignable: Vec<u32> = all.clone().filter(|&n| self.emulated || !self.nodes[n as usize].cpus.is_empty()).collect();
        if assignable.is_empty() {
            assignable = all.collect();
        }
        Topology(Arc::new(Inner {
            identity: NEXT_IDENTITY.fetch_add(1, Ordering::Relaxed),
            alive: Arc::new(()),
            emulated: self.emulated,
            nodes: self.nodes,
            memory_only: self.memory_only,
            node_of_cpu,
            assignable,
            costs: self.costs,
            next_assignment: AtomicU32::new(0),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sysfs::fixture;

    #[test]
    fn emulated_threads_take_turns() {
        let topology = Topology::emulated(3);
        let nodes: Vec<u32> = (0..6)
            .map(|_| {
                let topology = topology.clone();
                std::thread::spawn(move || (topology.current_node(), topology.current_node())).join().unwrap()
            })
            .map(|(first, second)| {
                assert_eq!(first, second);
                first
            })
            .collect();
        assert_eq!(nodes, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn bindings_survive_questions_to_another_topology() {
        let (a, b) = (Topology::emulated(4), Topology::emulated(2));
        a.bind_current_thread(3).unwrap();
        b.bind_current_thread(1).unwrap();
        assert_eq!((a.current_node(), b.current_node(), a.current_node()), (3, 1, 3));
        assert!(matches!(a.bind_current_thread(4), Err(TopologyError::NoSuchNode { node: 4, count: 4 })));
        a.unbind_current_thread();
        assert_eq!(a.current_node(), 0);
    }

    /// Regression: the seventeenth topology that a thread met removed its oldest binding.
    #[test]
    fn a_binding_lasts_as_long_as_its_topology() {
        let bound = Topology::emulated(4);
        bound.bind_current_thread(3).unwrap();
        let others: Vec<Topology> = (0..40).map(|_| Topology::emulated(2)).collect();
        let nodes: Vec<u32> = others.iter().map(|other| other.bind_current_thread(1).map(|()| other.current_node()).unwrap()).collect();
        assert_eq!((bound.current_node(), nodes), (3, vec![1; 40]));
        assert!(others.iter().all(|other| other.current_node() == 1));
        let remembered = thread::remembered();
        drop(others);
        bound.bind_current_thread(2).unwrap();
        assert!(remembered > 40 && thread::remembered() <= remembered - 40, "those of topologies that are gone are forgotten");
    }

    #[test]
    fn real_nodes_come_from_the_fixture() {
        let dir = tempfile::tempdir().unwrap();
        fixture::write(dir.path(), "0-2", &[(0, "0-255", "10 21 17"), (1, "256-300", "21 10 28"), (2, "", "17 28 10")]);
        let topology = Topology::from_sysfs(dir.path()).unwrap();
        assert_eq!(topology.node_count(), 3);
        assert!(!topology.is_emulated());
        assert_eq!(topology.current_node(), 0);
        assert_eq!((0..4).map(|_| topology.assign_thread()).collect::<Vec<_>>(), [0, 1, 0, 1]);
        assert!(matches!(topology.pin_current_thread_to_node(2), Err(TopologyError::Pin { node: 2, .. })));
    }

    /// Regression: memory without processors got a pool of its own, which was written only when all others were full.
    /// Where its number lay between those of two nodes, threads of the second node wrote to the pool of the first.
    #[test]
    fn memory_without_processors_is_no_node_of_a_store() {
        let dir = tempfile::tempdir().unwrap();
        let nodes = [(0, "0-99", "10 17 21"), (1, "", "17 10 28"), (2, "100-999", "21 28 10")];
        fixture::write(dir.path(), "0-2", &nodes);
        let topology = Topology::with_processors(dir.path()).unwrap();
        assert_eq!((topology.node_count(), topology.memory_only()), (2, &[1][..]));
        let seen = [0, 1].map(|node| topology.node(node).unwrap().clone());
        assert_eq!(seen.each_ref().map(|node| (node.os_id, &node.distances[..])), [(0, &[10, 21][..]), (2, &[21, 10])]);
        assert_eq!((0..4).map(|_| topology.assign_thread()).collect::<Vec<_>>(), [0, 1, 0, 1]);
        // More nodes than a store may have, of which only two count.
        let (distances, dir) = ("10 ".repeat(18), tempfile::tempdir().unwrap());
        let nodes: Vec<_> = (0..18).map(|id| (id, if id < 2 { ["0", "1"][id as usize] } else { "" }, distances.as_str())).collect();
        fixture::write(dir.path(), "0-17", &nodes);
        assert!(matches!(Topology::from_sysfs(dir.path()), Err(TopologyError::TooManyNodes { found: 18, .. })));
        assert_eq!(Topology::with_processors(dir.path()).unwrap().node_count(), 2);
        // No node has processors, so all of them count.
        let dir = tempfile::tempdir().unwrap();
        fixture::write(dir.path(), "0-1", &[(0, "", "10 21"), (1, "", "21 10")]);
        assert_eq!(Topology::with_processors(dir.path()).unwrap().node_count(), 2);
    }

    /// Asks where the thread runs while its thread-local values are destroyed, and sends whether that worked.
    struct AsksAtTheEnd(Topology, std::sync::mpsc::Sender<bool>);

    impl Drop for AsksAtTheEnd {
        fn drop(&mut self) {
            let ask = std::panic::AssertUnwindSafe(|| {
                self.0.bind_current_thread(1).unwrap();
                (0..2 * CALLS_PER_LOOKUP).for_each(|_| assert_eq!(self.0.current_node(), 1));
                self.0.unbind_current_thread();
                (0..2 * CALLS_PER_LOOKUP).all(|_| self.0.current_node() < 2)
            });
            self.1.send(std::panic::catch_unwind(ask).unwrap_or(false)).unwrap();
        }
    }

    thread_local! {
        static LAST_WORDS: std::cell::RefCell<Option<AsksAtTheEnd>> = const { std::cell::RefCell::new(None) };
    }

    /// Regression: the list of a thread's bindings is gone by then, so using a store in the destructor of a
    /// thread-local value ended the process.
    #[test]
    fn a_thread_that_ends_is_somewhere_still() {
        let dir = tempfile::tempdir().unwrap();
        fixture::write(dir.path(), "0-1", &[(0, "0-511", "10 21"), (1, "512-1023", "21 10")]);
        for topology in [Topology::emulated(2), Topology::from_sysfs(dir.path()).unwrap()] {
            let (sender, outcome) = std::sync::mpsc::channel();
            let thread = std::thread::spawn(move || {
                // Set before the bindings are first used; the bindings are then destroyed first.
                LAST_WORDS.set(Some(AsksAtTheEnd(topology.clone(), sender)));
                topology.current_node();
            });
            thread.join().unwrap();
            assert!(outcome.recv().unwrap());
        }
    }

    #[test]
    fn pinning_to_a_real_node_works() {
        let topology = Topology::detect();
        assert!(topology.node_count() >= 1);
        std::thread::spawn(move || {
            topology.pin_current_thread_to_node(0).unwrap();
            assert_eq!(topology.current_node(), 0);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn pinning_keeps_to_the_processors_of_the_process() {
        let set = |cpus: &[usize]| {
            let mut set = CpuSet::new();
            cpus.iter().for_each(|&cpu| set.set(cpu));
            set
        };
        let cpus = [2, 3, 5, MAX_CPU];
        assert_eq!(those_allowed(&cpus, &[set(&[0, 3]), set(&[5, 6])]), set(&[3, 5]));
        assert_eq!(those_allowed(&cpus, &[set(&[0, 1])]), set(&[]), "the node is not for this process");
        assert_eq!(those_allowed(&cpus, &[]), set(&[2, 3, 5]), "a kernel that does not tell");
    }

    #[test]
    fn too_many_nodes_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let row = vec!["10"; 17].join(" ");
        let nodes: Vec<(u32, &str, &str)> = (0..17).map(|i| (i, "", row.as_str())).collect();
        fixture::write(dir.path(), "0-16", &nodes);
        assert!(matches!(Topology::from_sysfs(dir.path()), Err(TopologyError::TooManyNodes { found: 17, .. })));
    }

    #[test]
    fn builder_changes_single_pairs() {
        let topology = TopologyBuilder::emulated(2).latency(0, 1, 200.0, 600.0).bandwidth(1, 0, 4.0, 0.2).build();
        assert_eq!(topology.link(0, 1).write_ns, 600.0);
        assert_eq!(topology.link(1, 0).write_gb_s, 0.2);
        assert_eq!(topology.link(0, 0), LinkCost::LOCAL);
    }
}
