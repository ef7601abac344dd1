//! Whether any thread attends to a duty.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the threads that attend to some duty from time to time. May be used by any number of threads.
#[derive(Debug, Default)]
pub struct Attendance(AtomicUsize);

impl Attendance {
    /// Counts the calling thread as attending while `f` runs. Its attendance also ends if `f` panics.
    pub fn during<R>(&self, f: impl FnOnce() -> R) -> R {
        struct Until<'a>(&'a AtomicUsize);
        impl Drop for Until<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Release);
            }
        }
        self.0.fetch_add(1, Ordering::Release);
        let _until = Until(&self.0);
        f()
    }

    /// Whether any thread attends.
    #[inline]
    pub fn any(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lasts_as_long_as_somebody_is_there() {
        let attendance = Attendance::default();
        attendance.during(|| {
            attendance.during(|| assert!(attendance.any()));
            assert!(attendance.any(), "the other is");
        });
        assert!(!attendance.any());
        let panics = std::panic::AssertUnwindSafe(|| attendance.during(|| panic!("as a thread may")));
        assert!(std::panic::catch_unwind(panics).is_err() && !attendance.any());
    }
}
