//! SIGXFSZ: a file grew beyond the limit on the size of files (`ulimit -f`).
//!
//! The kernel's default action ends the process without a message. With the signal ignored, the call fails with EFBIG
//! instead. That is an error like a full disk: it names the pool, nothing that was acknowledged is lost, and the store
//! goes on with its current size.
//!
//! Programs that this one starts inherit the disposition.

/// Ignores SIGXFSZ for the whole process. Call it once at the start of a program that owns its signals.
pub fn ignore_file_size_signal() {
    // SAFETY: ignoring a signal runs no code of ours, and a program that owns its signals has no other handler that
    // this could replace.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
