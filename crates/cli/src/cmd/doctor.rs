//! `doctor`: reports what this machine and the given directories offer, without a store.
//!
//! To examine a directory, it creates a small pool where the store's would be and removes it again: so the answer is the
//! one that a store would get. Exit status 1 if a directory cannot hold a store.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use hither::MediumChoice;
use hither_pmem::{CreateOptions, FlushKind, MediumInfo, MediumKind, PersistenceDomain, Pool};
use hither_topology::Topology;
use serde::Serialize;

use super::dump::end_of_links;
use crate::args::StoreArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{Output, tree};
use crate::store;
use crate::units::Place;

const TRIAL_BYTES: u64 = 1 << 20;

#[derive(Serialize)]
struct Report {
    version: &'static str,
    nodes: Vec<NodeReport>,
    /// NUMA nodes with memory but without processors: they are not nodes of a store.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    memory_only_nodes: Vec<u32>,
    flush: &'static str,
    huge_pages: HugePages,
    places: Vec<PlaceReport>,
    advice: Vec<String>,
}

#[derive(Serialize)]
struct NodeReport {
    node: u32,
    os_id: u32,
    cpus: Vec<u32>,
    distances: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
}

#[derive(Serialize)]
struct HugePages {
    /// Setting for anonymous memory: always, madvise or never.
    transparent: String,
    /// Setting for tmpfs: always, within_size, advise or never.
    tmpfs: String,
    reserved: u64,
    page_bytes: u64,
}

#[derive(Serialize)]
struct PlaceReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<u32>,
    /// Bytes that are not UTF-8 are replaced, as in the paths of `stat`.
    path: String,
    /// Whether the path exists.
    exists: bool,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    medium: Option<MediumReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

#[derive(Serialize)]
struct MediumReport {
    medium: &'static str,
    filesystem: String,
    persistence_domain: &'static str,
    flush: &'static str,
    survives_power_loss: bool,
    placed_on_node: bool,
}

/// Runs the command.
pub fn run(args: &StoreArgs, out: &mut Output) -> Result<Outcome, Failure> {
    let is_named = !args.data.is_empty() || store::variable().is_some();
    let places = if is_named { store::places(args)? } else { Vec::new() };
    let report = examine(places, store::medium(args.medium));
    let usable = report.places.iter().all(|place| place.problem.is_none());
    if out.is_json() {
        out.document(&report)?;
    } else {
        let report = serde_json::to_value(report).map_err(|error| Failure::Usage(format!("the report cannot be written: {error}")))?;
        out.bytes(tree::render(&report).as_bytes())?;
    }
    Ok(Outcome::from_bool(usable))
}

fn examine(places: Vec<Place>, choice: MediumChoice) -> Report {
    let places: Vec<PlaceReport> = places.into_iter().map(|place| place_report(place, choice)).collect();
    let huge_pages = huge_pages(Path::new("/"));
    let advice = advice(&places, &huge_pages);
    let topology = Topology::detect();
    let (nodes, memory_only_nodes) = (nodes(&topology), topology.memory_only().to_vec());
    let flush = FlushKind::detect().name();
    Report { version: env!("CARGO_PKG_VERSION"), nodes, memory_only_nodes, flush, huge_pages, places, advice }
}

fn nodes(topology: &Topology) -> Vec<NodeReport> {
    let report = |number| {
        let node = topology.node(number)?;
        let memory_bytes = memory_bytes(Path::new("/"), node.os_id);
        Some(NodeReport { node: number, os_id: node.os_id, cpus: node.cpus.clone(), distances: node.distances.clone(), memory_bytes })
    };
    (0..topology.node_count()).filter_map(report).collect()
}

/// Memory of a node, read below the root directory `root`; that of the machine where sysfs has no nodes.
fn memory_bytes(root: &Path, os_id: u32) -> Option<u64> {
    let of_node = fs::read_to_string(root.join(format!("sys/devices/system/node/node{os_id}/meminfo")));
    let text = of_node.or_else(|_| fs::read_to_string(root.join("proc/meminfo"))).ok()?;
    meminfo(&text, "MemTotal:").map(|kib| kib * 1024)
}

/// The number after `name` in the text of a meminfo file.
fn meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| Some(line.split_once(name)?.1))?;
    line.split_whitespace().next()?.parse().ok()
}

fn huge_pages(root: &Path) -> HugePages {
    let chosen = |file: &str| {
        let text = fs::read_to_string(root.join("sys/kernel/mm/transparent_hugepage").join(file)).unwrap_or_default();
        let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
        inside.map_or_else(|| "unknown".to_owned(), |(chosen, _)| chosen.to_owned())
    };
    let meminfo_text = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    HugePages {
        transparent: chosen("enabled"),
        tmpfs: chosen("shmem_enabled"),
        reserved: meminfo(&meminfo_text, "HugePages_Total:").unwrap_or(0),
        page_bytes: meminfo(&meminfo_text, "Hugepagesize:").unwrap_or(0) * 1024,
    }
}

fn place_report(place: Place, choice: MediumChoice) -> PlaceReport {
    let (node, path) = match place {
        Place::Store(path) => (None, path),
        Place::Node(node, path) => (Some(node), path),
    };
    let (medium, problem) = match try_out(&path, node.unwrap_or(0), choice) {
        Ok(medium) => (medium.map(medium_report), None),
        Err(problem) => (None, Some(problem)),
    };
    PlaceReport { node, exists: path.exists(), path: path.display().to_string(), medium, problem }
}

/// Creates a small pool where that of a node would be, or in the nearest existing directory above it, and removes it
/// again. `None` if the pool is on a device, where nothing is tried.
fn try_out(path: &Path, node: u32, choice: MediumChoice) -> Result<Option<MediumInfo>, String> {
    let absolute = std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))?;
    // A pool may be a link to another place, also one where nothing is yet.
    let name = absolute.join(format!("node{node}.hither"));
    let end = end_of_links(&name);
    if fs::metadata(&end).is_ok_and(|found| found.file_type().is_char_device()) {
        return Ok(None);
    }
    let absolute = if end == name { absolute } else { end.parent().map_or(absolute, Path::to_owned) };
    let existing = absolute.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    if !existing.is_dir() {
        return Err(format!("{} is not a directory", existing.display()));
    }
    let trial = Trial::new(existing)?;
    let options = CreateOptions { medium: choice.into(), max_bytes: TRIAL_BYTES, ..CreateOptions::new(TRIAL_BYTES) };
    let pool = Pool::create(&trial.0.join("pool"), &options).map_err(|error| error.to_string())?;
    Ok(Some(pool.medium()))
}

/// A directory that is removed when this is dropped.
struct Trial(PathBuf);

impl Trial {
    fn new(parent: &Path) -> Result<Self, String> {
        let path = parent.join(format!(".hither-doctor-{}", std::process::id()));
        // Removes what a killed run with the same process number left: in a container all runs have the same. A link is
        // not followed.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).map_err(|error| format!("creating a directory in {}: {error}", parent.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        // A directory that cannot be removed is empty and hidden; the report is worth more than this failure.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn medium_report(info: MediumInfo) -> MediumReport {
    MediumReport {
        medium: medium_name(info.kind),
        filesystem: info.filesystem,
        persistence_domain: domain_name(info.domain),
        flush: info.flush.name(),
        survives_power_loss: info.durable,
        placed_on_node: info.locality,
    }
}

fn medium_name(kind: MediumKind) -> &'static str {
    match kind {
        MediumKind::FsDax => "fsdax",
        MediumKind::DevDax => "devdax",
        MediumKind::File => "file",
        MediumKind::Volatile => "volatile",
        MediumKind::Shadow => "shadow",
    }
}

fn domain_name(domain: PersistenceDomain) -> &'static str {
    match domain {
        PersistenceDomain::Adr => "ADR: memory controller (flush and fence)",
        PersistenceDomain::Eadr => "eADR: caches (fence)",
        PersistenceDomain::PageCache => "device behind the page cache (sync)",
        PersistenceDomain::None => "none",
    }
}

fn advice(places: &[PlaceReport], huge_pages: &HugePages) -> Vec<String> {
    let mut advice = Vec::new();
    for place in places {
        if place.medium.as_ref().is_some_and(|medium| !medium.survives_power_loss) {
            advice.push(format!("{}: nothing survives a loss of power; use a directory on a disk or on persistent memory", place.path));
        }
    }
    if huge_pages.transparent == "never" {
        advice.push("huge pages are off: reads gain 20 to 50 % with /sys/kernel/mm/transparent_hugepage/enabled = madvise".into());
    }
    let in_memory = places.iter().filter_map(|place| place.medium.as_ref()).any(|medium| medium.filesystem == "tmpfs");
    if in_memory && !matches!(huge_pages.tmpfs.as_str(), "always" | "advise" | "within_size" | "force") {
        advice.push("tmpfs has no huge pages: set /sys/kernel/mm/transparent_hugepage/shmem_enabled = advise".into());
    }
    advice
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_files() {
        let text = "MemTotal:  100 kB\nHugePages_Total:  3\nNode 1 MemFree: 5 kB\n";
        assert_eq!(meminfo(text, "MemTotal:"), Some(100));
        assert_eq!(meminfo(text, "MemFree:"), Some(5));
        assert_eq!(meminfo(text, "Absent:"), None);
    }

    #[test]
    fn huge_page_settings() {
        let root = tempfile::tempdir().unwrap();
        let mm = root.path().join("sys/kernel/mm/transparent_hugepage");
        fs::create_dir_all(&mm).unwrap();
        fs::write(mm.join("enabled"), "always [madvise] never\n").unwrap();
        let found = huge_pages(root.path());
        assert_eq!((found.transparent.as_str(), found.tmpfs.as_str(), found.reserved), ("madvise", "unknown", 0));
    }

    #[test]
    fn a_directory_is_tried_out_and_left_clean() {
        let parent = tempfile::tempdir().unwrap();
        let info = try_out(&parent.path().join("not/there"), 0, MediumChoice::Volatile).unwrap().unwrap();
        assert_eq!(info.kind, MediumKind::Volatile);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
        let file = parent.path().join("file");
        fs::write(&file, "x").unwrap();
        assert!(try_out(&file, 0, MediumChoice::File).unwrap_err().contains("not a directory"));
    }
}
