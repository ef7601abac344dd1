//! The stores of the paper's Fig. 7, 8 and 12 as counts, and the statements of its text on those figures.
//!
//! The text gives the counts of persistent-memory accesses, or they follow from the designs that it describes. NStore
//! writes one entry to its own node and reads one. Viper reads three times for a get (lock, data, lock), and on two
//! nodes half of everything is remote. A node-unaware log writes one entry, half of them remote. The paper does not
//! state processor times; they are chosen once for each kind of index and given here.

use super::model::{Access, OpCounts};

/// Processor time of an operation on a learned index in DRAM, in nanoseconds.
pub const LEARNED_NS: f64 = 350.0;
/// Processor time of an operation on a hash table in DRAM, in nanoseconds.
pub const HASH_NS: f64 = 250.0;
/// Length of an entry with a key and a value of 8 bytes each, in bytes.
const ENTRY: f64 = 32.0;
/// Number of bytes that a read moves.
const LINE: f64 = 64.0;

fn reads(local: f64, remote: f64) -> OpCounts {
    OpCounts {
        local_reads: Access { count: local, bytes: local * LINE },
        remote_reads: Access { count: remote, bytes: remote * LINE },
        ..OpCounts::default()
    }
}

fn writes(local: f64, remote: f64) -> OpCounts {
    OpCounts {
        local_writes: Access { count: local, bytes: local * ENTRY },
        remote_writes: Access { count: remote, bytes: remote * ENTRY },
        ..OpCounts::default()
    }
}

/// NStore writes one entry, to the own node.
pub fn nstore_put() -> OpCounts {
    OpCounts { cpu_ns: LEARNED_NS, ..writes(1.0, 0.0) }
}

/// NStore reads one entry, from the node of its writer.
pub fn nstore_get() -> OpCounts {
    OpCounts { cpu_ns: LEARNED_NS, ..reads(0.5, 0.5) }
}

/// NStore's put on a node-unaware log.
pub fn unaware_put() -> OpCounts {
    OpCounts { cpu_ns: LEARNED_NS, ..writes(0.5, 0.5) }
}

/// Viper reads the lock, the entry, and the lock again.
pub fn viper_get() -> OpCounts {
    OpCounts { cpu_ns: HASH_NS, ..reads(1.5, 1.5) }
}

/// A statement of the paper that can be compared with a number.
#[derive(Clone, Copy, Debug)]
pub struct Statement {
    /// The figure's number.
    pub figure: &'static str,
    /// Numerator and denominator of the ratio.
    pub what: &'static str,
    /// The statement in the text.
    pub paper: &'static str,
    /// The number in the text, if there is one.
    pub value: Option<f64>,
}

/// Statements in the order of [`super::table::projected`].
pub const STATEMENTS: [Statement; 6] = [
    Statement { figure: "7a, 8a", what: "NStore put, 32 threads / 2", paper: "increases steadily with the number of threads", value: None },
    Statement {
        figure: "7a, 8a",
        what: "put on a node-unaware log, 32 threads / 8",
        paper: "remote writes slow the growth of others; their rate falls or stops growing",
        value: None,
    },
    Statement { figure: "8d", what: "get, 32 threads, NStore / Viper", paper: "2.1 ×", value: Some(2.1) },
    Statement {
        figure: "12a",
        what: "NStore put, 32 threads on two nodes / 16 on one",
        paper: "hardly affected: goes on growing",
        value: None,
    },
    Statement { figure: "12a", what: "node-unaware put, 32 / 16", paper: "growth slows significantly from 17 to 32 threads", value: None },
    Statement {
        figure: "12b",
        what: "NStore get, 32 / 16",
        paper: "drops when socket 2 is added, then improves with threads",
        value: None,
    },
];
