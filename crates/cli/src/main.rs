//! The `hither` program. Everything is in the library of this package; see its pages for the commands and exit statuses.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    // A pool that is truncated under the program, or poisoned memory, ends it with a message instead of silence.
    hither::install_sigbus_guard();
    // A file that meets the limit on the size of files is an error like a full disk, not the silent end of the program.
    hither::ignore_file_size_signal();
    hither_cli::run(std::env::args_os())
}
