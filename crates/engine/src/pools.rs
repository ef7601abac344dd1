//! Finding, creating and opening the pools of a store.
//!
//! A directory holds `nodeN.hither` for each node N; if only one directory is given, all pools are in it. The pool of
//! node 0 names the members: every one must be there and belong to the store. A store is born when the magic of node
//! 0's pool is written, which happens last; until then its creation may start over. No store is made beside what is
//! left of another one (`remains`).
//!
//! Thread safety: runs while a store is opened, before any other thread has it.

use crate::error::{Error, Result};
use crate::options::{Durability, MediumChoice, Options};
use hither_log::LogOptions;
use hither_pmem::{CreateOptions, OpenOptions, Pool};
use hither_topology::{Meter, Topology};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Pools of fewer segments have none to spare for hot entries.
const MIN_SEGMENTS_FOR_HOT: u32 = 50;
/// Growth limit of a store whose user named none.
const DEFAULT_MAX_CAPACITY: u64 = 64 << 30;
const DEFAULT_CAPACITY: u64 = 64 << 20;
/// Shards for each processor of a node on media with direct access: as in the paper's best settings at 16 and 32
/// threads (64 and 128).
const SHARDS_PER_PROCESSOR: u64 = 4;
/// Bounds of that number. The lower one is the paper's best setting at 2 threads. Up to 64 shards cost the same here;
/// from 128 on puts are more expensive (`docs/experiments.md`), because of the segments that have to be opened.
const DAX_SHARDS: std::ops::RangeInclusive<u64> = 16..=64;
/// Segments of a pool for each shard, at least: open segments stay within 0.8 % of the capacity (`docs/adr/0021`), of
/// which half is empty on average.
const SEGMENTS_PER_SHARD: u64 = 128;

/// Limits for live bytes that can be set, in per cent of what the store may grow to. Above them collectors have no room
/// to work in.
const UTILIZATION: std::ops::RangeInclusive<u32> = 1..=95;

/// The most shards of a node: each has an open segment, and a chunk for each thread.
const MOST_SHARDS: u32 = 4096;
/// The most threads of one kind, for each node.
const MOST_THREADS: usize = 1024;

/// Pools, in node order, and the topology and meter that they were opened with.
pub(crate) struct Opened {
    pub pools: Vec<Pool>,
    pub topology: Arc<Topology>,
    pub meter: Option<Arc<Meter>>,
}

/// Opens or creates the pools that `options` describe.
pub(crate) fn open(options: &Options) -> Result<Opened> {
    if let Some(percent) = options.utilization.filter(|percent| !UTILIZATION.contains(percent)) {
        let (least, most) = (UTILIZATION.start(), UTILIZATION.end());
        return Err(Error::Config(format!(
            "utilization {percent} is not possible; give {least} to {most} per cent of max-capacity, or none"
        )));
    }
    refuse_excess(options)?;
    refuse_contradictions(options)?;
    let topology = options.topology.clone().unwrap_or_else(|| Arc::new(Topology::detect()));
    let meter = options.meter.then(|| Meter::new(&topology));
    let pools = if let Some(make) = &options.pools {
        make()?
    } else if options.in_memory {
        create(options, &topology, &meter, None)?
    } else {
        open_files(options, &topology, &meter)?
    };
    Ok(Opened { pools, topology, meter })
}

/// Refuses numbers that would take all memory, or all threads of the machine.
fn refuse_excess(options: &Options) -> Result<()> {
    let Options { shards, threads, gc_threads, ref delegation, .. } = *options;
    let numbers = [
        ("shards", shards as usize, MOST_SHARDS as usize),
        ("threads", threads, MOST_THREADS),
        ("gc-threads", gc_threads, MOST_THREADS),
        ("read-threads", delegation.threads, MOST_THREADS),
    ];
    match numbers.into_iter().find(|(_, given, most)| given > most) {
        None => Ok(()),
        Some((name, given, most)) => Err(Error::Config(format!("{name} {given} is not possible; give {most} at most"))),
    }
}

/// Refuses settings of which one would be ignored, and values that are not a number.
fn refuse_contradictions(options: &Options) -> Result<()> {
    let config = |what: &str| Err(Error::Config(what.to_owned()));
    // For a store in memory, too, directories of nodes say which nodes have a pool.
    if options.in_memory && options.paths.iter().any(|(node, _)| node.is_none()) {
        return config("a store in memory has no directory, and nothing in it would be kept; leave out one of the two settings");
    }
    let unnamed = options.paths.iter().filter(|(node, _)| node.is_none()).count();
    if unnamed > 0 && unnamed < options.paths.len() {
        return config("one directory is for all nodes and others are for one each; give either one, or one for each node, from node 0 on");
    }
    if options.read_only && options.in_memory {
        return config("a store in memory begins empty, so there is nothing to be read; leave out one of the two settings");
    }
    if options.gc_threshold.is_nan() {
        return config("gc-threshold is not a number; give the share of garbage, between 0 and 1");
    }
    refuse_repeated_nodes(options)
}

/// Returns how many processors this process may use. The kernel is asked once: each answer reads the files of the
/// process's control groups, which is half of what opening a small store asks of the kernel.
pub(crate) fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Returns how the log is laid out over these pools.
pub(crate) fn log_options(options: &Options, opened: &Opened) -> LogOptions {
    let one_tail = opened.pools.iter().any(Pool::needs_sync);
    let cores = processors();
    let max_segments = opened.pools[0].max_segments();
    let shards = match options.shards {
        // Files get one log tail.
        0 if one_tail => 1,
        0 => derived_shards(cores.div_ceil(opened.pools.len()), max_segments),
        given => u64::from(given),
    };
    LogOptions {
        shards: 1 << shards.ilog2(),
        // One tail dirties the fewest pages per sync. Where writes do not wait for syncs, threads get tails of their
        // own.
        slots_per_node: if one_tail && options.durability == Durability::Sync { 1 } else { (2 * cores).clamp(8, 64) + 1 },
        chunk_bytes: 0,
        separate_hot: options.separate_hot && !one_tail && max_segments >= MIN_SEGMENTS_FOR_HOT,
        garbage_bits: options.techniques.garbage_bits,
        zero_ahead: options.durability == Durability::Sync,
        utilization: options.utilization,
        topology: opened.topology.clone(),
        random: options.random.clone(),
    }
}

/// Shards per node on media with direct access, by the processors of a node and the segments that its pool may grow to.
fn derived_shards(processors: usize, max_segments: u32) -> u64 {
    let wanted = (SHARDS_PER_PROCESSOR * processors as u64).clamp(*DAX_SHARDS.start(), *DAX_SHARDS.end());
    wanted.min(u64::from(max_segments) / SEGMENTS_PER_SHARD).max(1)
}

/// The name of a node's pool.
pub(crate) fn pool_file(node: u32) -> String {
    format!("node{node}.hither")
}

/// Returns the node whose pool has this name, if it is the name of a pool.
pub(crate) fn node_of_pool_file(name: &str) -> Option<u32> {
    name.strip_prefix("node")?.strip_suffix(".hither")?.parse().ok()
}

pub(crate) fn pool_path(options: &Options, node: u32) -> Option<PathBuf> {
    let named = options.paths.iter().find(|(given, _)| *given == Some(node));
    let dir = named.or_else(|| options.paths.iter().find(|(given, _)| given.is_none())).map(|(_, dir)| dir)?;
    Some(dir.join(pool_file(node)))
}

fn open_files(options: &Options, topology: &Arc<Topology>, meter: &Option<Arc<Meter>>) -> Result<Vec<Pool>> {
    if options.paths.iter().any(|(_, dir)| dir.as_os_str().is_empty()) {
        return Err(Error::Config("an empty directory name was given; name the directory of the store".into()));
    }
    let first = pool_path(options, 0).ok_or_else(|| {
        Error::Config("no directory was given for node 0; give the directory of the store, or one per node beginning with node 0".into())
    })?;
    if !is_there(&first)? {
        if (1..16).filter_map(|node| pool_path(options, node)).any(|path| path.exists()) {
            return Err(Error::MissingPool { node: 0, path: first });
        }
        return create_in_place(options, topology, meter, &first, false);
    }
    // Another node's pool knows the members, too, but has no catalogue.
    let first_pool = match Pool::open(&first, &OpenOptions { node: Some(0), ..open_options(options, topology, meter, 0) }) {
        Ok(pool) => pool,
        Err(hither_pmem::Error::HalfCreated { .. }) => return create_in_place(options, topology, meter, &first, true),
        Err(error) => return Err(error.into()),
    };
    let superblock = first_pool.superblock();
    refuse_strange_nodes(options, superblock.members.len() as u32, &first)?;
    let mut pools = vec![first_pool];
    for (node, uuid) in superblock.members.iter().enumerate().skip(1) {
        let node = node as u32;
        let path = pool_path(options, node).ok_or_else(|| Error::MissingPool { node, path: pool_file(node).into() })?;
        if !is_there(&path)? {
            return Err(Error::MissingPool { node, path });
        }
        let expected = OpenOptions {
            store_uuid: Some(superblock.store_uuid),
            pool_uuid: Some(*uuid),
            node: Some(node),
            ..open_options(options, topology, meter, node)
        };
        pools.push(Pool::open(&path, &expected).map_err(|error| match error {
            hither_pmem::Error::HalfCreated { .. } => holds_nothing(&path, node, &first, 0),
            error => error.into(),
        })?);
    }
    Ok(pools)
}

/// The error for a store of which one pool is blank and another one is not. No creation leaves that, and to begin the
/// store anew would destroy what the other pool holds.
fn holds_nothing(blank: &Path, node: u32, other: &Path, other_node: u32) -> Error {
    Error::WrongPool(format!(
        "{} of node {node} holds nothing any more, though {} of node {other_node} was in use; restore it from a backup or mount its device (nothing was \
         changed)",
        blank.display(),
        other.display()
    ))
}

/// Whether there is a file. A directory that cannot be entered is an error: it need not be empty.
fn is_there(path: &Path) -> Result<bool> {
    match path.try_exists() {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Err(Error::Io(format!(
            "cannot look for {}: {error}; give this user permission to enter the directory, or name another one",
            path.display()
        ))),
        // Anything else (a name below a file, a dangling link) is as good as nothing there.
        found => Ok(found.unwrap_or(false)),
    }
}

/// Refuses directories for nodes that the store does not have: whoever gives one believes that data are kept there.
fn refuse_strange_nodes(options: &Options, members: u32, first: &Path) -> Result<()> {
    let named = options.paths.iter().filter_map(|(node, dir)| Some(((*node)?, dir)));
    match named.into_iter().find(|(node, _)| *node >= members) {
        None => Ok(()),
        Some((node, dir)) => Err(Error::Config(format!(
            "node{node}={} was given, but the store of {} has {members} {} and keeps that number; leave it out, or copy it to a new store with \
             more nodes",
            dir.display(),
            first.display(),
            if members == 1 { "node" } else { "nodes" },
        ))),
    }
}

/// Refuses two directories for one node, or two for all nodes that have none of their own: one of them would be
/// ignored.
fn refuse_repeated_nodes(options: &Options) -> Result<()> {
    for (at, (node, dir)) in options.paths.iter().enumerate() {
        if let Some((_, other)) = options.paths[..at].iter().find(|(earlier, _)| earlier == node) {
            let who = node.map_or_else(|| "the store".to_owned(), |node| format!("node {node}"));
            let (dir, other) = (dir.display(), other.display());
            return Err(Error::Config(format!("{who} was given two directories, {other} and {dir}; give each node one")));
        }
    }
    Ok(())
}

/// The node of the kernel on which a node's pool is to be placed, if there is a choice.
fn os_node(topology: &Topology, node: u32) -> Option<u32> {
    let is_real = !topology.is_emulated() && topology.node_count() > 1;
    topology.node(node).filter(|_| is_real).map(|node| node.os_id)
}

fn open_options(options: &Options, topology: &Topology, meter: &Option<Arc<Meter>>, node: u32) -> OpenOptions {
    OpenOptions {
        salvage: options.salvage,
        medium: options.medium,
        hugepages: options.hugepages,
        bind_os_node: os_node(topology, node),
        meter: meter.clone(),
        failpoints: options.failpoints.clone(),
        ..OpenOptions::new()
    }
}

fn create_in_place(
    options: &Options,
    topology: &Arc<Topology>,
    meter: &Option<Arc<Meter>>,
    first: &Path,
    unborn: bool,
) -> Result<Vec<Pool>> {
    crate::remains::refuse(options, first)?;
    if !options.create {
        return Err(Error::NotFound(first.parent().unwrap_or(first).to_owned()));
    }
    let mut made = Made { failpoints: options.failpoints.clone(), ..Made::default() };
    let created = create(options, topology, meter, Some((unborn, &mut made)));
    if created.is_err() {
        made.remove();
    }
    created
}

/// Files and directories that a creation has made.
#[derive(Default)]
pub(crate) struct Made {
    files: Vec<PathBuf>,
    directories: Vec<PathBuf>,
    failpoints: Option<Arc<hither_pmem::Failpoints>>,
}

impl Made {
    /// Makes the directory of a pool that is about to be created, and those above it, with durable names: what is
    /// acknowledged in a file is lost with the name of a directory above it.
    fn prepare(&mut self, pool: &Path) -> Result<()> {
        if let Some(dir) = pool.parent() {
            self.make_directory(dir).and_then(|()| self.sync_name(dir)).map_err(|error| cannot_create(dir, &error))?;
        }
        if !pool.exists() {
            self.files.push(pool.to_owned());
        }
        Ok(())
    }

    /// Makes a directory, and those above it, durably.
    pub(crate) fn make_directory(&mut self, dir: &Path) -> std::io::Result<()> {
        if dir.as_os_str().is_empty() || dir.is_dir() {
            return Ok(());
        }
        match dir.parent() {
            // Its name, too: the process that made it may have been killed before that was durable.
            Some(above) if above.is_dir() => self.sync_name(above)?,
            Some(above) => self.make_directory(above)?,
            None => {}
        }
        match std::fs::create_dir(dir) {
            Ok(()) => self.directories.push(dir.to_owned()),
            // Another process was faster.
            Err(_) if dir.is_dir() => return Ok(()),
            Err(error) => return Err(error),
        }
        self.sync_name(dir)
    }

    /// Makes the name of a directory durable, also of one that was there: the process that made it may have been killed
    /// before that.
    fn sync_name(&self, dir: &Path) -> std::io::Result<()> {
        if let Some(failpoints) = &self.failpoints {
            failpoints.check("sync_directory")?;
        }
        sync_name(dir)
    }

    /// Takes back a creation that failed. Returns no error, because the caller reports that of the creation. A file
    /// that cannot be removed stays, and with it the lowest pool. That goes last: without it, the others would be what
    /// is left of a store.
    pub(crate) fn remove(&self) {
        let mut stays = false;
        for (at, file) in self.files.iter().enumerate().rev() {
            let was_there = file.exists();
            if at > 0 || !stays {
                let _ = Pool::discard_unborn(file);
            }
            // A file is gone only when that is durable: a power loss could bring it back, without the lowest pool.
            stays |= file.exists() || (was_there && self.sync_name(file).is_err());
        }
        for dir in self.directories.iter().rev() {
            let _ = std::fs::remove_dir(dir);
        }
    }
}

/// Makes the name of a file or directory durable.
pub(crate) fn sync_name(path: &Path) -> std::io::Result<()> {
    let above = match path.parent() {
        None => return Ok(()),
        Some(above) if above.as_os_str().is_empty() => Path::new("."),
        Some(above) => above,
    };
    sync_directory(above)
}

/// Makes the names in a directory durable. A directory that may be passed through but not read cannot be synced:
/// whoever made it so answers for its names.
pub(crate) fn sync_directory(directory: &Path) -> std::io::Result<()> {
    match std::fs::File::open(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Ok(()),
        directory => directory?.sync_all(),
    }
}

pub(crate) fn cannot_create(dir: &Path, error: &std::io::Error) -> Error {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    let above = dir.ancestors().skip(1).find(|above| above.is_dir()).filter(|above| !above.as_os_str().is_empty());
    let above = above.unwrap_or(Path::new(".")).display();
    let advice = match error.kind() {
        PermissionDenied => format!("give this user write permission for {above}, or name another directory"),
        ReadOnlyFilesystem => format!("mount the file system of {above} writable, or name another directory"),
        _ => "correct the name, or name another directory".into(),
    };
    Error::Io(format!("cannot create the directory {}: {error}; {advice}", dir.display()))
}

/// Creates all pools: files if `files` is given, which says whether an unborn store lies in the way, and records what
/// is made.
fn create(
    options: &Options,
    topology: &Arc<Topology>,
    meter: &Option<Arc<Meter>>,
    mut files: Option<(bool, &mut Made)>,
) -> Result<Vec<Pool>> {
    let nodes = count_nodes(options, topology)?;
    let store_uuid = hither_pmem::new_uuid();
    let members: Vec<_> = (0..nodes).map(|_| hither_pmem::new_uuid()).collect();
    let per_node = |bytes: u64| bytes.div_ceil(u64::from(nodes));
    let max = if options.max_capacity == 0 { DEFAULT_MAX_CAPACITY.max(options.capacity) } else { options.max_capacity };
    let capacity = if options.capacity == 0 { DEFAULT_CAPACITY.min(max) } else { options.capacity };
    if max < capacity {
        return Err(Error::Config(format!("max-capacity {max} is below capacity {capacity}; raise it or lower the capacity")));
    }
    let overwrite_unborn = files.as_ref().is_some_and(|(unborn, _)| *unborn);
    let segment_bytes = if options.segment_bytes == 0 { hither_pmem::default_segment_bytes(per_node(max)) } else { options.segment_bytes };
    let of_node = |node| CreateOptions {
        segment_bytes,
        max_bytes: per_node(max),
        overwrite_unborn,
        medium: options.medium,
        hugepages: options.hugepages,
        bind_os_node: os_node(topology, node),
        meter: meter.clone(),
        failpoints: options.failpoints.clone(),
        ..CreateOptions::member(store_uuid, members.clone(), node, per_node(capacity))
    };
    if overwrite_unborn && nodes > 1 {
        (0..nodes).try_for_each(|node| check_file(options, node, &of_node(node)))?;
    }
    let mut pools = Vec::new();
    for node in 0..nodes {
        pools.push(match &mut files {
            None => Pool::create_in_memory(&CreateOptions { medium: in_memory_medium(options.medium), ..of_node(node) })?,
            Some((_, made)) => create_file(options, node, &of_node(node), made)?,
        });
    }
    // Node 0 last: its magic is the birth of the store.
    for pool in pools.iter().rev() {
        pool.finish_creation()?;
    }
    Ok(pools)
}

fn in_memory_medium(choice: MediumChoice) -> MediumChoice {
    if choice == MediumChoice::Auto { MediumChoice::Volatile } else { choice }
}

fn create_file(options: &Options, node: u32, create: &CreateOptions, made: &mut Made) -> Result<Pool> {
    let path = path_to_create(options, node)?;
    made.prepare(&path)?;
    Ok(Pool::create(&path, create)?)
}

/// Refuses what `create_file` would refuse, before the pool of any node is changed.
fn check_file(options: &Options, node: u32, create: &CreateOptions) -> Result<()> {
    let path = path_to_create(options, node)?;
    Pool::check_creatable(&path, create).map_err(|error| match (error, pool_path(options, 0)) {
        (hither_pmem::Error::WasInUse { .. }, Some(first)) => holds_nothing(&first, 0, &path, node),
        (error, _) => error.into(),
    })
}

fn path_to_create(options: &Options, node: u32) -> Result<PathBuf> {
    pool_path(options, node).ok_or_else(|| Error::Config(format!("no directory was given for node {node}; give it one, too")))
}

fn count_nodes(options: &Options, topology: &Topology) -> Result<u32> {
    let named: Vec<u32> = options.paths.iter().filter_map(|(node, _)| *node).collect();
    if named.is_empty() {
        return Ok(topology.node_count().clamp(1, hither_log::address::MAX_NODES as u32));
    }
    let count = named.len() as u32;
    if (0..count).any(|node| !named.contains(&node)) {
        return Err(Error::Config(format!("directories were given for nodes {named:?}; they must be node0, node1, … without a gap")));
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::derived_shards;

    #[test]
    fn shards_follow_processors_and_capacity() {
        let large = 1 << 20;
        let by_processors: Vec<u64> = [1, 2, 4, 8, 16, 32, 128].map(|n| derived_shards(n, large)).into();
        assert_eq!(by_processors, [16, 16, 16, 32, 64, 64, 64]);
        for (segments, shards) in [(0, 1), (1, 1), (255, 1), (256, 2), (2047, 15), (2048, 16), (8191, 63), (8192, 64)] {
            assert_eq!(derived_shards(64, segments), shards, "{segments} segments");
        }
    }
}
