//! Whether somebody sees to something.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How many threads see to something from time to time. May be used by any number of threads.
#[derive(Debug, Default)]
pub struct Attendance(AtomicUsize);

impl Attendance {
    /// Runs `f`, which sees to it; also an `f` that panics does no more afterwards.
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

    /// Whether anybody does.
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
