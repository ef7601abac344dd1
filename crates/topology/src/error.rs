//! Errors of reading and using a topology.

use std::path::PathBuf;

/// Why a topology could not be read or applied.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// A sysfs file or folder could not be read.
    #[error("cannot read {}: {source}; the machine may not expose NUMA nodes, use an emulated topology", path.display())]
    Read {
        /// What was read.
        path: PathBuf,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// A sysfs file holds text that is no list or matrix of numbers.
    #[error("{} holds {text:?}, which is no {expected}; please report it with the kernel version", path.display())]
    Parse {
        /// What was read.
        path: PathBuf,
        /// What it held.
        text: String,
        /// What was expected.
        expected: &'static str,
    },
    /// More nodes than a reference can name.
    #[error("{found} nodes, but a store spans at most {max}; give the nodes to use explicitly")]
    TooManyNodes {
        /// How many there are.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// No node of that number.
    #[error("node {node} does not exist: the topology has {count} nodes, numbered from 0")]
    NoSuchNode {
        /// The number asked for.
        node: u32,
        /// How many there are.
        count: u32,
    },
    /// The operating system refused to pin a thread.
    #[error("cannot pin this thread to the processors of node {node}: {source}; check cgroup and affinity limits")]
    Pin {
        /// The node asked for.
        node: u32,
        /// The operating system's answer.
        source: std::io::Error,
    },
}
