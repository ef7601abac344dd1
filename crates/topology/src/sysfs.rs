//! Reads the nodes as Linux shows them under `/sys/devices/system/node`. The root folder is a parameter, so that tests
//! can use fixtures.

use std::path::{Path, PathBuf};

use crate::{TopologyError, parse_cpulist};

/// One node as sysfs shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SysfsNode {
    /// The operating system's number; numbers may have gaps.
    pub(crate) os_id: u32,
    /// Its processors; empty for memory-only nodes such as CXL memory.
    pub(crate) cpus: Vec<u32>,
    /// Distance to each online node, in the order of their numbers; 10 means local.
    pub(crate) distances: Vec<u32>,
}

/// Reads all online nodes below `root`, in ascending order.
pub(crate) fn read_nodes(root: &Path) -> Result<Vec<SysfsNode>, TopologyError> {
    let mut nodes = Vec::new();
    for os_id in online(root)? {
        let folder = root.join(format!("node{os_id}"));
        let cpus_path = folder.join("cpulist");
        let text = read(&cpus_path)?;
        let cpus = parse_cpulist(&text).ok_or_else(|| malformed(cpus_path, text, "processor list"))?;
        let distances_path = folder.join("distance");
        let text = read(&distances_path)?;
        let distances = text.split_whitespace().map(|d| d.parse::<u32>().ok()).collect::<Option<Vec<_>>>();
        let distances = distances.ok_or_else(|| malformed(distances_path, text, "row of distances"))?;
        nodes.push(SysfsNode { os_id, cpus, distances });
    }
    check_matrix(root, &nodes)?;
    Ok(nodes)
}

fn online(root: &Path) -> Result<Vec<u32>, TopologyError> {
    let path = root.join("online");
    let text = read(&path)?;
    match parse_cpulist(&text) {
        Some(ids) if !ids.is_empty() => Ok(ids),
        _ => Err(malformed(path, text, "node list")),
    }
}

fn check_matrix(root: &Path, nodes: &[SysfsNode]) -> Result<(), TopologyError> {
    for node in nodes {
        if node.distances.len() != nodes.len() {
            let path = root.join(format!("node{}", node.os_id)).join("distance");
            return Err(malformed(path, format!("{:?}", node.distances), "row with one distance per online node"));
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, TopologyError> {
    std::fs::read_to_string(path).map_err(|source| TopologyError::Read { path: path.to_owned(), source })
}

fn malformed(path: PathBuf, text: String, expected: &'static str) -> TopologyError {
    TopologyError::Parse { path, text, expected }
}

#[cfg(test)]
pub(crate) mod fixture {
    use std::fs;
    use std::path::Path;

    /// Writes a node folder tree: `(os id, cpulist, distance row)` each.
    pub(crate) fn write(root: &Path, online: &str, nodes: &[(u32, &str, &str)]) {
        fs::write(root.join("online"), online).unwrap();
        for (id, cpus, distances) in nodes {
            let folder = root.join(format!("node{id}"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("cpulist"), cpus).unwrap();
            fs::write(folder.join("distance"), distances).unwrap();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sockets_with_a_gap_and_a_memory_only_node() {
        let dir = tempfile::tempdir().unwrap();
        fixture::write(dir.path(), "0,2-3\n", &[(0, "0-1\n", "10 21 17\n"), (2, "2-3\n", "21 10 28\n"), (3, "\n", "17 28 10\n")]);
        let nodes = read_nodes(dir.path()).unwrap();
        assert_eq!(nodes.iter().map(|n| n.os_id).collect::<Vec<_>>(), [0, 2, 3]);
        assert_eq!(nodes[1].cpus, [2, 3]);
        assert!(nodes[2].cpus.is_empty());
        assert_eq!(nodes[0].distances, [10, 21, 17]);
    }

    #[test]
    fn damaged_trees_are_named() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(read_nodes(dir.path()), Err(TopologyError::Read { path, .. }) if path.ends_with("online")));
        fixture::write(dir.path(), "0-1", &[(0, "0", "10 20"), (1, "x", "20 10")]);
        assert!(matches!(read_nodes(dir.path()), Err(TopologyError::Parse { path, .. }) if path.ends_with("node1/cpulist")));
        fixture::write(dir.path(), "0-1", &[(1, "1", "20")]);
        assert!(matches!(read_nodes(dir.path()), Err(TopologyError::Parse { path, .. }) if path.ends_with("node1/distance")));
        fixture::write(dir.path(), "", &[]);
        assert!(matches!(read_nodes(dir.path()), Err(TopologyError::Parse { path, .. }) if path.ends_with("online")));
    }
}
