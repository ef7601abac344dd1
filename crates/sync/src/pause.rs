//! Waiting for another thread without a lock.
//!
//! Thread safety: a counter per waiting thread.

use crate::atomic::yield_now;

/// For a loop that waits for another thread. `rounds` counts the calls and begins at 0.
///
/// Spins at first, then yields: that thread may have been preempted. In the end it sleeps between the looks: that
/// thread may wait for a disk, and needs no help from a processor that does nothing but look.
#[cold]
pub fn pause(rounds: &mut u32) {
    const SPINS: u32 = 128;
    const YIELDS: u32 = 1024;
    *rounds = rounds.saturating_add(1);
    if cfg!(loom) || (SPINS..SPINS + YIELDS).contains(rounds) {
        yield_now();
    } else if *rounds < SPINS {
        std::hint::spin_loop();
    } else {
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    /// Processor time that the calling thread has used.
    pub fn processor_time() -> Duration {
        let mut used = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the structure outlives the call.
        assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut used) }, 0);
        Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
    }
}
