//! The store's own time, by which keys expire.
//!
//! It is the machine's time, but never behind an expiry that was reported as past. So a clock that is set back revives
//! no key: not in this opening and, once the time is persisted, not in a later one either. Nor is it behind the time of
//! a snapshot, which no longer matters in a later opening.
//!
//! Thread safety: atomic numbers, any number of threads. Crash: the time on media may be older than the last reports
//! ([`Core::persist_clock`] raises it).

use crate::error::Result;
use crate::options::{Expiry, WriteOptions, wall_clock_ms};
use crate::store::Core;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Core {
    /// The time for expiry, in milliseconds since 1970.
    pub fn now_ms(&self) -> u64 {
        // SeqCst: see `tell_expired`.
        wall_clock_ms().max(self.clock_floor_ms.load(Ordering::SeqCst)).max(self.snapshots.newest_ms())
    }

    /// The time at which an entry that is written now with these options expires, in milliseconds since 1970; 0: never.
    pub fn expiry_ms(&self, options: &WriteOptions) -> u64 {
        match options.expiry {
            None => 0,
            Some(Expiry::AtMs(at)) => at,
            Some(Expiry::After(ttl)) => end_of(self.now_ms(), ttl),
        }
    }

    /// Whether an entry with this expiry counts as absent.
    #[inline(always)]
    pub fn is_expired(&self, expiry_ms: u64) -> bool {
        // Acquire: whoever relies on the report sees the versions of the snapshots that it was held up for.
        expiry_ms != 0 && (expiry_ms <= self.told_ms.load(Ordering::Acquire) || self.expires_now(expiry_ms))
    }

    /// Whether this time has come by now. If so, remembers it, in case the machine's clock is set back later.
    #[inline(never)]
    fn expires_now(&self, expiry_ms: u64) -> bool {
        self.was_expired(expiry_ms, self.now_ms())
    }

    /// As [`Core::is_expired`], by the time `now_ms`, which the caller has read before.
    pub fn was_expired(&self, expiry_ms: u64, now_ms: u64) -> bool {
        let had_come = expiry_ms <= now_ms;
        if had_come {
            self.tell_expired(expiry_ms);
        }
        had_come
    }

    /// The latest expiry that may have been reported as past.
    #[cfg(test)]
    pub fn latest_told_ms(&self) -> u64 {
        self.clock_floor_ms.load(Ordering::Relaxed)
    }

    /// Notes that an entry with this expiry is going to be reported as absent. First waits for snapshots that have read
    /// an earlier time and have no version yet: who gets the report may write next, and that write must not be in a
    /// snapshot that still shows the entry.
    ///
    /// The time is raised before the question which snapshots there are. So a snapshot that is not seen here reads a
    /// time that is not earlier.
    pub fn tell_expired(&self, expiry_ms: u64) {
        if expiry_ms > self.told_ms.load(Ordering::Acquire) {
            self.clock_floor_ms.fetch_max(expiry_ms, Ordering::SeqCst);
            self.snapshots.wait_for_those_before(expiry_ms);
            self.told_ms.fetch_max(expiry_ms, Ordering::Release);
        }
    }

    /// Persists the time if an expiry was reported as past that is later than the time on media. Waits for a sync in
    /// that case.
    pub fn persist_told(&self) -> Result<()> {
        let told = self.clock_floor_ms.load(Ordering::Relaxed);
        if told > self.log.pool(0).clock_ms() { self.persist_clock() } else { Ok(()) }
    }

    /// Persists the time, so that a clock that is set back revives no key at a later opening.
    pub fn persist_clock(&self) -> Result<()> {
        let now = self.now_ms();
        self.clock_floor_ms.fetch_max(now, Ordering::Relaxed);
        Ok(self.heeding_failed_syncs(self.log.pool(0).set_clock_ms(now))?)
    }
}

/// The time at which something expires that lives for `ttl` from `now_ms` on. Rounded up, so that it lives at least as
/// long as asked for. Never 0, which would mean that it does not expire: not all machines have a clock that runs while
/// they are off.
fn end_of(now_ms: u64, ttl: Duration) -> u64 {
    let ms = u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    now_ms.saturating_add(ms).max(1)
}

#[cfg(test)]
mod tests {
    use super::end_of;
    use std::time::Duration;

    /// Found by a program: where the clock stood at 1970, a key that was to expire at once lived for ever.
    #[test]
    fn what_lives_for_some_time_expires() {
        assert_eq!([end_of(0, Duration::ZERO), end_of(5, Duration::ZERO), end_of(5, Duration::from_nanos(1))], [1, 5, 6]);
        assert_eq!(end_of(5, Duration::MAX), u64::MAX);
    }
}
