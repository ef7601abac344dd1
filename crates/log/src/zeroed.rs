//! Arrays of zeros that take memory only where they were written.
//!
//! The DRAM state of a pool has a place for everything that the pool may ever hold. The heap is not suited for that: it
//! fills an array that reuses its memory with zeros, all of it, and the system refuses it an array larger than the
//! machine's memory, however little of that may ever be touched. So these arrays are mapped.
//!
//! Thread safety: that of the elements.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::alloc::{Layout, handle_alloc_error};
use std::ops::Deref;
use std::ptr::NonNull;

/// Types whose values may begin as zeros.
///
/// # Safety
/// Zero bytes are a valid value, and the type needs no drop.
pub(crate) unsafe trait FromZeros {}

// SAFETY: a plain number.
unsafe impl FromZeros for std::sync::atomic::AtomicU32 {}
// SAFETY: as above.
unsafe impl FromZeros for std::sync::atomic::AtomicU64 {}

/// A mapped array that begins as zeros.
pub(crate) struct Zeroed<T: FromZeros> {
    /// Dangling if the array is empty.
    first: NonNull<T>,
    count: usize,
}

// SAFETY: the array owns its elements, like a box.
unsafe impl<T: FromZeros + Send> Send for Zeroed<T> {}
// SAFETY: as above.
unsafe impl<T: FromZeros + Sync> Sync for Zeroed<T> {}

impl<T: FromZeros> Zeroed<T> {
    /// An array of `count` elements; `None` if the address space is not available. O(1).
    pub fn try_new(count: usize) -> Option<Zeroed<T>> {
        let bytes = Layout::array::<T>(count).ok()?.size();
        if bytes == 0 {
            return Some(Zeroed { first: NonNull::dangling(), count });
        }
        // There need not be memory for all of it.
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, at any free addresses.
        let first = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) }.ok()?;
        Some(Zeroed { first: NonNull::new(first.cast())?, count })
    }

    /// An array of `count` elements. O(1).
    ///
    /// Ends the process if the address space is not available.
    pub fn new(count: usize) -> Zeroed<T> {
        Zeroed::try_new(count).unwrap_or_else(|| handle_alloc_error(Layout::array::<T>(count).unwrap_or(Layout::new::<T>())))
    }
}

impl<T: FromZeros> Deref for Zeroed<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `count` zeroed elements were mapped from the beginning of a page; `FromZeros` makes them valid
        // values. They stay mapped as long as this lives.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

impl<T: FromZeros> Drop for Zeroed<T> {
    fn drop(&mut self) {
        let bytes = self.count * size_of::<T>();
        if bytes > 0 {
            // SAFETY: the mapping belongs to this array alone, and nobody borrows it any more.
            let _ = unsafe { munmap(self.first.as_ptr().cast(), bytes) };
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Number of pages of the process that are in memory.
    pub fn resident_pages() -> u64 {
        let counts = std::fs::read_to_string("/proc/self/statm").unwrap();
        counts.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Regression: a store that might grow to 256 times the machine's memory ended the process, and each store after
    /// the first filled the arrays that it might need with zeros.
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
