//! A store–load barrier in two halves of unequal cost: the frequent side's half is nearly free, the rare side's half
//! pays for both.
//!
//! If one thread stores a, calls [`Barrier::light`] and loads b, and another stores b, calls [`Barrier::heavy`] and
//! loads a, at least one of them sees the other's store.
//!
//! The heavy half is `membarrier(2)` (private expedited). It interrupts every processor that runs a thread of this
//! process and takes some microseconds; the light half then only keeps the compiler in order. Where the kernel lacks
//! the call, both halves are full fences.
//!
//! If the kernel grants the call first and refuses it later (a filter that was set up in between, see seccomp(2)), the
//! process ends: nothing can replace the barrier by then, and a panic would release memory that other threads may still
//! read.
//!
//! Thread safety: any thread; all threads that synchronise with each other must use the same barrier. Nothing is on
//! media.

use crate::atomic::{AtomicU32, Ordering, fence};

const UNKNOWN: u32 = 0;
const ASYMMETRIC: u32 = 1;
const FULL: u32 = 2;

/// See the module documentation.
pub(crate) struct Barrier(AtomicU32);

impl Barrier {
    /// Call [`Barrier::detect`] before the first use; until then both halves are full fences.
    #[cfg(not(loom))]
    pub const fn new() -> Barrier {
        Barrier(AtomicU32::new(UNKNOWN))
    }

    /// Under loom both halves are full fences.
    #[cfg(loom)]
    pub fn new() -> Barrier {
        Barrier(AtomicU32::new(FULL))
    }

    /// Asks the kernel once whether it supports `membarrier(2)`.
    pub fn detect(&self) {
        #[cfg(not(loom))]
        if self.0.load(Ordering::Relaxed) == UNKNOWN {
            let works = membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) && membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
            // The first thread decides for all: a thread that fences where others do not would be harmless, the
            // opposite would not.
            let _ = self.0.compare_exchange(UNKNOWN, if works { ASYMMETRIC } else { FULL }, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Whether the light half only keeps the compiler in order. Never changes after [`Barrier::detect`].
    #[cfg(not(loom))]
    pub fn is_asymmetric(&self) -> bool {
        self.0.load(Ordering::Relaxed) == ASYMMETRIC
    }

    /// The half of the frequent side.
    #[inline(always)]
    pub fn light(&self) {
        #[cfg(not(loom))]
        if self.0.load(Ordering::Relaxed) == ASYMMETRIC {
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
            return;
        }
        fence(Ordering::SeqCst);
    }

    /// The half of the rare side.
    pub fn heavy(&self) {
        // A thread on the frequent side may rely on a decision that this thread has not seen.
        self.detect();
        fence(Ordering::SeqCst);
        #[cfg(not(loom))]
        if self.0.load(Ordering::Relaxed) == ASYMMETRIC && !membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
            insist();
        }
    }
}

/// How often a barrier that failed is retried.
#[cfg(not(loom))]
const TRIES: u32 = 100;

/// Retries a barrier that has failed once: the kernel may have lacked memory for a moment. Without the barrier no
/// thread may go on.
#[cfg(not(loom))]
#[cold]
fn insist() {
    for _ in 0..TRIES {
        std::thread::yield_now();
        if membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
            return;
        }
    }
    let why = std::io::Error::last_os_error();
    eprintln!(
        "hither: the system refuses membarrier(2), which it granted when the process began ({why}). Nothing is safe without it: the process ends."
    );
    std::process::abort();
}

#[cfg(not(loom))]
fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: membarrier takes no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    const CHILD: &str = "HITHER_BARRIER_CHILD";

    /// From now on this thread's calls of membarrier fail.
    fn forbid_membarrier() {
        let statement = |code: u32, equal: u8, other: u8, k: u32| libc::sock_filter { code: code as u16, jt: equal, jf: other, k };
        let mut filter = [
            // The call's number.
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_membarrier as u32),
            statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: the program and its filter live as long as the call, which copies them.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
        };
        assert!(done, "no filter: {}", std::io::Error::last_os_error());
    }

    /// Regression: the thread panicked while it held the lock of the deferred work and dropped that work, which
    /// unmapped a directory of the hash index under its readers.
    #[test]
    fn a_kernel_that_refuses_later_ends_the_process() {
        let barrier = Barrier::new();
        barrier.detect();
        if std::env::var_os(CHILD).is_some() {
            barrier.heavy();
            forbid_membarrier();
            barrier.heavy();
            return;
        }
        if !barrier.is_asymmetric() {
            return;
        }
        let test = ["--exact", "barrier::tests::a_kernel_that_refuses_later_ends_the_process", "--nocapture"];
        let output = std::process::Command::new(std::env::current_exe().unwrap()).args(test).env(CHILD, "1").output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{told}");
        assert!(told.contains("refuses membarrier(2)"), "{told}");
    }

    #[test]
    fn the_rare_side_may_come_first() {
        let barrier = Barrier::new();
        barrier.heavy();
        assert_ne!(barrier.0.load(Ordering::Relaxed), UNKNOWN);
    }
}
