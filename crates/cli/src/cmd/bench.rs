//! `bench`: the benchmark program of the package `hither-bench`, with its own arguments and exit status.

use std::ffi::OsString;

use crate::args::BenchArgs;
use crate::failure::Outcome;

/// Runs the benchmark program.
pub fn run(bench: BenchArgs) -> Outcome {
    let arguments = std::iter::once(OsString::from("hither bench")).chain(bench.arguments);
    Outcome::Exit(hither_bench::main_with_prefix(&["bench"], arguments))
}
