//! The rows of the server's table: their demands, and what several rounds come to.
//!
//! Thread safety: plain values.

use super::load::Ask;
use crate::figures::row::{Demand, Unit, without_aim};

/// The demands on rates at each pipeline, as a multiple of Redis. Where 0.9 times the null server is less, that is the
/// demand.
pub const RATES: [(&str, &str, usize, Ask, f64); 6] = [
    ("set-1", "SET, pipeline 1, sync on dax", 1, Ask::Set, 1.1),
    ("get-1", "GET, pipeline 1", 1, Ask::Get, 1.1),
    ("set-16", "SET, pipeline 16, sync on dax", 16, Ask::Set, 1.5),
    ("get-16", "GET, pipeline 16", 16, Ask::Get, 1.5),
    ("set-64", "SET, pipeline 64, sync on dax", 64, Ask::Set, 2.0),
    ("get-64", "GET, pipeline 64", 64, Ask::Get, 2.0),
];
/// The share of the null server's rate that is demanded at most.
pub const OF_NULL: f64 = 0.9;

/// The other rows with a demand.
pub const OTHERS: [Demand; 6] = [
    without_aim("cpu-1", "processor time per SET, pipeline 1", Unit::RedisCost, 1.0),
    without_aim("file-set", "SET, pipeline 1, sync on a file", Unit::RedisAlways, 1.5),
    without_aim("dram", "DRAM per 100-byte pair", Unit::RedisCost, 0.3),
    without_aim("idle", "10,000 idle connections", Unit::Megabytes, 100.0),
    without_aim("restart-clean", "restart after SIGTERM, against Redis loading its RDB", Unit::RedisCost, 0.2),
    without_aim("restart-kill", "restart after SIGKILL, against Redis loading its RDB", Unit::RedisCost, 0.2),
];

/// Rows without a demand: their ratio is only reported.
pub const YCSB: [(&str, &str, char); 6] = [
    ("ycsb-a", "YCSB-A over the wire, sync on dax", 'a'),
    ("ycsb-b", "YCSB-B over the wire, sync on dax", 'b'),
    ("ycsb-c", "YCSB-C over the wire", 'c'),
    ("ycsb-d", "YCSB-D over the wire, sync on dax", 'd'),
    ("ycsb-e", "YCSB-E over the wire, sync on dax", 'e'),
    ("ycsb-f", "YCSB-F over the wire, sync on dax", 'f'),
];

/// The short names of all rows.
pub fn ids() -> impl Iterator<Item = &'static str> + Clone {
    RATES.iter().map(|rate| rate.0).chain(OTHERS.iter().map(|other| other.id)).chain(YCSB.iter().map(|ycsb| ycsb.0))
}

/// The multiple of Redis that one round demands of a rate: `times`, or [`OF_NULL`] times the null server where that is
/// less. A null server that was slower than hither was disturbed, since it does less; it bounds nothing.
pub fn demanded(times: f64, ours: f64, theirs: f64, null: f64) -> f64 {
    if null >= ours { times.min(OF_NULL * null / theirs) } else { times }
}

/// The remark of the round with the median value; of an even number of rounds those of the middle two.
pub fn of_median(remarks: &[(f64, String)]) -> String {
    let mut sorted: Vec<&(f64, String)> = remarks.iter().collect();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let middle = sorted.len().saturating_sub(1) / 2..=sorted.len() / 2;
    let middle = sorted.get(middle).unwrap_or_default();
    middle.iter().map(|(_, remark)| remark.as_str()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own() {
        let mut ids: Vec<&str> = ids().collect();
        let all = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), all);
        assert!(RATES.iter().all(|rate| rate.0.ends_with(&format!("-{}", rate.2))));
    }

    /// Regression: a null server that was slower than hither lowered the demand below what hither had reached.
    #[test]
    fn a_null_server_that_is_slower_bounds_nothing() {
        let demanded = |null| demanded(1.5, 150.0, 100.0, null);
        assert_eq!([demanded(300.0), demanded(160.0), demanded(150.0)], [1.5, 1.44, 1.35]);
        assert_eq!([demanded(149.0), demanded(50.0)], [1.5, 1.5]);
    }

    #[test]
    fn the_remark_is_that_of_the_median_round() {
        let remarks = |values: &[f64]| of_median(&values.iter().map(|value| (*value, format!("{value}"))).collect::<Vec<_>>());
        assert_eq!([&[][..], &[2.0], &[3.0, 1.0], &[3.0, 1.0, 2.0], &[4.0, 1.0, 3.0, 2.0]].map(remarks), ["", "2", "1; 3", "2", "2; 3"]);
    }
}
