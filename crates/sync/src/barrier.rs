//! A store–load barrier in two halves of unequal cost: one side runs it at every turn for nearly nothing, the other hardly ever and pays for both.
//!
//! If one thread stores a, calls [`Barrier::light`] and loads b, and another stores b, calls [`Barrier::heavy`] and loads a, at least one of them sees the other's store. The
//! heavy half is `membarrier(2)` (private expedited), which interrupts every processor that runs a thread of this process, some microseconds; the light one then only
//! keeps the compiler in order. Where the kernel lacks it, both are full fences.
//!
//! Thread safety: any thread; all that meet must use the same barrier. Nothing is on media.

use crate::atomic::{AtomicU32, Ordering, fence};

const UNKNOWN: u32 = 0;
const ASYMMETRIC: u32 = 1;
const FULL: u32 = 2;

/// See the module's head.
pub(crate) struct Barrier(AtomicU32);

impl Barrier {
    /// Call [`Barrier::detect`] before its first use; until then it is two full fences.
    #[cfg(not(loom))]
    pub const fn new() -> Barrier {
        Barrier(AtomicU32::new(UNKNOWN))
    }

    /// Under loom it is two full fences.
    #[cfg(loom)]
    pub fn new() -> Barrier {
        Barrier(AtomicU32::new(FULL))
    }

    /// Asks the kernel, once.
    pub fn detect(&self) {
        #[cfg(not(loom))]
        if self.0.load(Ordering::Relaxed) == UNKNOWN {
            let works = membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) && membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
            // The first thread decides for all: a thread that fences where others do not would be harmless, the
            // opposite would not.
            let _ = self.0.compare_exchange(UNKNOWN, if works { ASYMMETRIC } else { FULL }, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Whether the frequent side's half only keeps the compiler in order. Never changes after [`Barrier::detect`].
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
        fence(Ordering::SeqCst);
        #[cfg(not(loom))]
        if self.0.load(Ordering::Relaxed) == ASYMMETRIC {
            let done = membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
            assert!(done, "membarrier worked at registration and must go on working: epochs and turns rest on it");
        }
    }
}

#[cfg(not(loom))]
fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: membarrier takes no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
