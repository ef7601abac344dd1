//! DRAM per key after loads of several sizes. The memory of an index depends on how full its tables are, and the worst
//! size counts.
//!
//! All sizes must be measured, or there is no result: without the missing size, the worst of the others may look better
//! than it is.

use super::process::Runner;
use crate::target::store::Index;
use crate::target::{Error, Result};

/// The sizes, in fifths of the keys of a table.
const FIFTHS: [u64; 4] = [3, 4, 5, 6];

/// Bytes per key at all sizes, each measured in a process of its own.
///
/// # Errors
/// One of them was not measured.
pub(super) fn dram_of_sizes(runner: &mut Runner, index: Index, keys: u64, threads: usize) -> Result<[f64; FIFTHS.len()]> {
    let mut sizes = [0.0; FIFTHS.len()];
    for (size, fifths) in sizes.iter_mut().zip(FIFTHS) {
        let keys = keys / 5 * fifths;
        let args = format!("--keys {keys} --threads {threads}");
        let measured = runner.store(index, &args, &["load"])?[0].dram_bytes_per_key;
        *size = measured.ok_or_else(|| Error::Config(format!("the system does not tell the memory of a load of {keys} keys")))?;
    }
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::record::Record;

    fn sizes(first: &str, dram_bytes_per_key: Option<f64>) -> Result<[f64; 4]> {
        let script = Runner::script_of(first, &Record { dram_bytes_per_key, ..Record::default() });
        dram_of_sizes(&mut Runner::of_script(&script), Index::Hash, 5_000_000, 2)
    }

    #[test]
    fn there_are_all_sizes_or_none() {
        assert_eq!(sizes("", Some(15.5)).expect("all were measured"), [15.5; 4]);
        let killed = sizes("case \"$*\" in *'--keys 6000000'*) echo killed >&2; exit 3;; esac", Some(15.5));
        assert!(killed.expect_err("the largest is missing").to_string().contains("killed"));
        assert!(sizes("", None).expect_err("nobody knows").to_string().contains("3000000 keys"));
    }
}
