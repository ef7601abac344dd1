//! Arrays of zeros that take memory only where something was written.
//!
//! What DRAM knows of a pool has a place for all that the pool may ever hold. The heap is not for that: an array that it has handed out before it fills with
//! zeros, all of it, and one that is larger than the machine's memory the system refuses it, however little of it may ever be touched. So it is mapped.
//!
//! Thread safety: that of the elements.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::alloc::{Layout, handle_alloc_error};
use std::ops::Deref;
use std::ptr::NonNull;

/// What may begin as zeros.
///
/// # Safety
/// Zero bytes are a valid value, and nothing is to be done when it ends.
pub(crate) unsafe trait FromZeros {}

// SAFETY: a plain number.
unsafe impl FromZeros for std::sync::atomic::AtomicU64 {}

/// The array.
pub(crate) struct Zeroed<T: FromZeros> {
    /// Dangling if there are no elements.
    first: NonNull<T>,
    count: usize,
}

// SAFETY: it owns its elements, like a box.
unsafe impl<T: FromZeros + Send> Send for Zeroed<T> {}
// SAFETY: as above.
unsafe impl<T: FromZeros + Sync> Sync for Zeroed<T> {}

impl<T: FromZeros> Zeroed<T> {
    /// So many elements; `None` if that many addresses cannot be had. O(1).
    pub fn try_new(count: usize) -> Option<Zeroed<T>> {
        let bytes = Layout::array::<T>(count).ok()?.size();
        if bytes == 0 {
            return Some(Zeroed { first: NonNull::dangling(), count });
        }
        // Whether there is memory for all of it does not matter.
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, at whatever addresses are free.
        let first = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) }.ok()?;
        Some(Zeroed { first: NonNull::new(first.cast())?, count })
    }

    /// So many elements. O(1).
    ///
    /// Ends the process if that many addresses cannot be had.
    pub fn new(count: usize) -> Zeroed<T> {
        Zeroed::try_new(count).unwrap_or_else(|| handle_alloc_error(Layout::array::<T>(count).unwrap_or(Layout::new::<T>())))
    }
}

impl<T: FromZeros> Deref for Zeroed<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: so many zeros were mapped, at the beginning of a page, which `FromZeros` makes values; they stay as long as this does.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

impl<T: FromZeros> Drop for Zeroed<T> {
    fn drop(&mut self) {
        let bytes = self.count * size_of::<T>();
        if bytes > 0 {
            // SAFETY: the mapping is this array's alone, and nobody borrows it any more.
            let _ = unsafe { munmap(self.first.as_ptr().cast(), bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Pages of the process that are in memory.
    fn resident_pages() -> u64 {
        let counts = std::fs::read_to_string("/proc/self/statm").unwrap();
        counts.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Regression: a store that might grow to 256 times the machine's memory ended the process, and each store after the first filled what it might need with zeros.
    #[test]
    fn an_array_may_be_larger_than_memory_and_takes_what_is_written() {
        let before = resident_pages();
        for _ in 0..3 {
            let array = Zeroed::<AtomicU64>::new(1 << 39);
            for at in [0, 1 << 38, (1 << 39) - 1] {
                assert_eq!(array[at].fetch_add(7, Ordering::Relaxed), 0);
                assert_eq!(array[at].load(Ordering::Relaxed), 7);
            }
        }
        assert!(resident_pages() < before + 100_000, "not the terabytes that they have addresses for");
        assert!(Zeroed::<AtomicU64>::try_new(0).unwrap().is_empty());
        assert!(Zeroed::<AtomicU64>::try_new(usize::MAX).is_none() && Zeroed::<AtomicU64>::try_new(1 << 55).is_none());
    }
}
