//! The `hither` program. Its code is in the library of this package, whose pages describe the commands and exit
//! statuses.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    // If a pool is truncated under the program, or memory is poisoned, the program ends with a message instead of
    // silently.
    hither::install_sigbus_guard();
    // A file that reaches the limit on the size of files is then an error like a full disk, not a silent end of the
    // program.
    hither::ignore_file_size_signal();
    hither_cli::run(std::env::args_os())
}
