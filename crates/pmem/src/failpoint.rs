//! Failures on demand, per pool and at run time. Only cold paths check them.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

/// When an armed point fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailAt {
    /// Calls that still succeed.
    pub skip: u64,
    /// Calls that fail after the skipped ones; `u64::MAX` means all.
    pub count: u64,
    /// The operating system error they fail with, such as `libc::ENOSPC`.
    pub errno: i32,
}

/// The failpoints of a pool: `fallocate`, `mmap_short`, `sync`, `grow`, `zero`.
#[derive(Debug, Default)]
pub struct Failpoints {
    armed: Mutex<HashMap<&'static str, (FailAt, u64)>>,
    /// Points that are held, and how many threads wait at each.
    held: Mutex<HashMap<&'static str, usize>>,
    released: Condvar,
    /// Ranges of the pool that are treated as unreadable.
    unreadable: Mutex<Vec<(u64, u64)>>,
    /// Bytes that were checked for readability.
    checked_bytes: AtomicU64,
}

impl Failpoints {
    /// Failpoints of which none is armed.
    pub fn new() -> Arc<Failpoints> {
        Arc::new(Failpoints::default())
    }

    /// Arms a point. Arming it again starts its count anew.
    pub fn arm(&self, point: &'static str, at: FailAt) {
        self.armed.lock().insert(point, (at, 0));
    }

    /// Disarms a point.
    pub fn disarm(&self, point: &'static str) {
        self.armed.lock().remove(point);
    }

    /// How often an armed point was reached.
    pub fn reached(&self, point: &'static str) -> u64 {
        self.armed.lock().get(point).map_or(0, |entry| entry.1)
    }

    /// Makes every thread that comes to a point wait there until the point is released.
    pub fn hold(&self, point: &'static str) {
        self.held.lock().insert(point, 0);
    }

    /// How many threads wait at a held point.
    pub fn waiting(&self, point: &'static str) -> usize {
        self.held.lock().get(point).copied().unwrap_or(0)
    }

    /// Lets the waiting threads go on.
    pub fn release(&self, point: &'static str) {
        self.held.lock().remove(point);
        self.released.notify_all();
    }

    /// Makes the bytes from `from` to `to` of the pool count as unreadable, for
    /// [`Pool::cover_unreadable`](crate::Pool::cover_unreadable) and [`Pool::is_zero`](crate::Pool::is_zero).
    pub fn make_unreadable(&self, from: u64, to: u64) {
        self.unreadable.lock().push((from, to));
    }

    /// Bytes whose readability was checked so far, which means that they were read in.
    pub fn checked_bytes(&self) -> u64 {
        self.checked_bytes.load(Ordering::Relaxed)
    }

    /// As [`Failpoints::is_unreadable`]. Counts the range among the checked bytes.
    pub(crate) fn is_unreadable_if_checked(&self, from: u64, to: u64) -> bool {
        self.checked_bytes.fetch_add(to - from, Ordering::Relaxed);
        self.is_unreadable(from, to)
    }

    /// Whether some byte of the range counts as unreadable.
    pub(crate) fn is_unreadable(&self, from: u64, to: u64) -> bool {
        self.unreadable.lock().iter().any(|&(first, end)| first < to && from < end)
    }

    fn pass(&self, point: &'static str) {
        let mut held = self.held.lock();
        if let Some(waiting) = held.get_mut(point) {
            *waiting += 1;
            self.released.wait_while(&mut held, |held| held.contains_key(point));
        }
    }

    /// Counts a call, and fails it if it is among those that are to fail. Waits first if the point is held.
    pub fn check(&self, point: &'static str) -> io::Result<()> {
        self.pass(point);
        let mut armed = self.armed.lock();
        let Some((at, calls)) = armed.get_mut(point) else { return Ok(()) };
        let call = *calls;
        *calls += 1;
        if call >= at.skip && call - at.skip < at.count { Err(io::Error::from_raw_os_error(at.errno)) } else { Ok(()) }
    }
}

/// Checks a point; passes if there are no failpoints.
pub(crate) fn check(points: Option<&Arc<Failpoints>>, point: &'static str) -> io::Result<()> {
    points.map_or(Ok(()), |points| points.check(point))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fails_exactly_the_calls_asked_for() {
        let points = Failpoints::new();
        points.arm("sync", FailAt { skip: 1, count: 2, errno: libc::EIO });
        let failed: Vec<bool> = (0..5).map(|_| points.check("sync").is_err()).collect();
        assert_eq!(failed, [false, true, true, false, false]);
        assert_eq!(points.reached("sync"), 5);
        assert!(points.check("other").is_ok());
        points.arm("sync", FailAt { skip: 0, count: u64::MAX, errno: libc::EIO });
        assert_eq!(points.check("sync").unwrap_err().raw_os_error(), Some(libc::EIO));
        points.disarm("sync");
        assert!(points.check("sync").is_ok());
    }
}
