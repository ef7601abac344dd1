//! Errors of reading and using a topology.

use std::path::PathBuf;

/// Why a topology could not be read or applied.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// A sysfs file or folder could not be read.
    #[error("cannot read {}: {source}; the machine may not expose NUMA nodes, use an emulated topology", path.display())]
    Read {
        /// The path that was read.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A sysfs file holds text that is not a list or matrix of numbers.
    #[error("{} holds {text:?}, which is no {expected}; please report it with the kernel version", path.display())]
    Parse {
        /// The path that was read.
        path: PathBuf,
        /// The text in the file.
        text: String,
        /// What was expected.
        expected: &'static str,
    },
    /// More nodes than a reference can encode.
    #[error("{found} nodes, but a store spans at most {max}; give the nodes to use explicitly")]
    TooManyNodes {
        /// Number of nodes found.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// No node has this number.
    #[error("node {node} does not exist: the topology has {count} nodes, numbered from 0")]
    NoSuchNode {
        /// The requested number.
        node: u32,
        /// Number of nodes in the topology.
        count: u32,
    },
    /// The operating system refused to pin a thread.
    #[error("cannot pin this thread to the processors of node {node}: {source}; check cgroup and affinity limits")]
    Pin {
        /// The requested node.
        node: u32,
        /// The operating system's error.
        source: std::io::Error,
    },
}
