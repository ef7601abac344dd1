//! Concurrency building blocks that several layers share:
//!
//! * an epoch scheme with cheap announcements ([`epoch`]),
//! * striped key latches that also order versions ([`latch`]),
//! * turns of threads that one thread can take all together ([`turns`]),
//! * a way to wake background threads ([`Bell`]) and to know whether any attend ([`Attendance`]),
//! * a pause for loops that wait for another thread ([`pause()`]),
//! * a thread-local value that applies while a closure runs ([`with_value`]),
//! * the kernel's scheduling policy of a thread ([`schedule`]) and the bytes of sockets ([`socket`]),
//! * work that several threads share ([`together()`]), and cache-line padding ([`Padded`]).
//!
//! Nothing here touches media. Locks never live on media (rule 3 of the crash model): a crash forgets them all.

pub mod atomic;
mod attendance;
mod barrier;
mod bell;
pub mod epoch;
pub mod latch;
mod pause;
pub mod schedule;
mod scoped;
pub mod socket;
mod together;
pub mod turns;

pub use attendance::Attendance;
pub use bell::Bell;
pub use pause::pause;
pub use scoped::with_value;
pub use together::{map_together, together};

/// Aligns `T` to a pair of cache lines, so that neither false sharing nor the adjacent-line prefetcher couples two
/// values.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Padded<T>(pub T);

impl<T> std::ops::Deref for Padded<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// Hints that the cache line at `address` will be read soon. Never faults, whatever the address is.
#[inline(always)]
pub fn prefetch_read<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint; it neither faults nor changes memory.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Hints that the cache line at `address` will be written soon. Never faults, whatever the address is.
#[inline(always)]
pub fn prefetch_write<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: `prefetchw` is a hint; it neither faults nor changes memory. (core::arch has no stable name for it.)
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
