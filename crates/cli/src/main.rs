//! The `hither` program. Everything is in the library of this package; see its pages for the commands and exit statuses.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    // A pool that is truncated under the program, or poisoned memory, ends it with a message instead of silence.
    hither::install_sigbus_guard();
    hither_cli::run(std::env::args_os())
}
