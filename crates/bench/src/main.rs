//! The program `hither-bench`; everything is in the library.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    hither_bench::main_with_prefix(&[], std::env::args_os())
}
