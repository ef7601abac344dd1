//! The `hither` program. Everything is in the library of this package; see its pages for the commands and exit statuses.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    hither_cli::run(std::env::args_os())
}
