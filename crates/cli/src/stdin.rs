//! Standard input, for commands that read a value or records from it.

use std::io::Stdin;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use rustix::fs::OFlags;

use crate::failure::Failure;

/// Opens standard input. Fails if it was closed when the program began: it would then read as an empty value, or as an
/// input without records. `instead` is the advice what to give instead.
pub fn open(instead: &str) -> Result<Stdin, Failure> {
    let stdin = std::io::stdin();
    if is_closed(&stdin) {
        let what = "closed (or the null device, opened for writing, too; give </dev/null for an empty input)";
        return Err(Failure::Usage(format!("standard input is to be read, but it is {what}; {instead}")));
    }
    Ok(stdin)
}

/// Whether a standard stream was closed when the program began. Rust then opens the null device in its place, for
/// reading and writing. A caller that opened it like that itself cannot be told apart.
fn is_closed(stream: impl AsFd) -> bool {
    let null = std::fs::metadata("/dev/null").map(|metadata| metadata.rdev());
    let here = rustix::fs::fstat(&stream).map(|stat| stat.st_rdev);
    let both_ways = rustix::fs::fcntl_getfl(&stream).is_ok_and(|flags| flags.contains(OFlags::RDWR));
    both_ways && matches!((null, here), (Ok(null), Ok(here)) if null == here)
}
