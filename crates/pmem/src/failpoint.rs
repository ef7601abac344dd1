//! Failures on demand, per pool and at run time. Checked in cold paths only.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

/// When an armed point fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailAt {
    /// Calls that still succeed.
    pub skip: u64,
    /// Calls that fail after those; `u64::MAX` means all.
    pub count: u64,
    /// The operating system error they fail with, such as `libc::ENOSPC`.
    pub errno: i32,
}

/// The failpoints of a pool: `fallocate`, `mmap_short`, `sync`, `grow`.
#[derive(Debug, Default)]
pub struct Failpoints {
    armed: Mutex<HashMap<&'static str, (FailAt, u64)>>,
}

impl Failpoints {
    /// No point armed.
    pub fn new() -> Arc<Failpoints> {
        Arc::new(Failpoints::default())
    }

    /// Arms a point (again: anew).
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

    /// Counts a call and fails it if it is its turn.
    pub fn check(&self, point: &'static str) -> io::Result<()> {
        let mut armed = self.armed.lock();
        let Some((at, calls)) = armed.get_mut(point) else { return Ok(()) };
        let call = *calls;
        *calls += 1;
        if call >= at.skip && call - at.skip < at.count { Err(io::Error::from_raw_os_error(at.errno)) } else { Ok(()) }
    }
}

/// Checks a point of optional failpoints.
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
