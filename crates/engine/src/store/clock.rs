//! The store's own time, which expiry goes by.
//!
//! It is the machine's, but never behind what somebody was told: a clock that is set back revives nothing, here and, once it is persisted, at a later opening.

use crate::error::Result;
use crate::options::{Expiry, WriteOptions, wall_clock_ms};
use crate::store::Core;
use std::sync::atomic::Ordering;

impl Core {
    /// The time for expiry, in milliseconds since 1970.
    pub fn now_ms(&self) -> u64 {
        wall_clock_ms().max(self.clock_floor_ms.load(Ordering::Relaxed))
    }

    /// When what is written now with these options expires; 0: never.
    pub fn expiry_ms(&self, options: &WriteOptions) -> u64 {
        match options.expiry {
            None => 0,
            Some(Expiry::AtMs(at)) => at,
            // Not less than what was asked for: of a time below a millisecond nothing would be left.
            Some(Expiry::After(ttl)) => self.now_ms().saturating_add(u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)),
        }
    }

    /// Whether an entry with this expiry counts as absent.
    #[inline(always)]
    pub fn is_expired(&self, expiry_ms: u64) -> bool {
        expiry_ms != 0 && (expiry_ms <= self.clock_floor_ms.load(Ordering::Relaxed) || self.expires_now(expiry_ms))
    }

    /// Whether this time has come by the machine's clock. Once somebody was told so it is remembered, should that clock be set back.
    #[inline(never)]
    fn expires_now(&self, expiry_ms: u64) -> bool {
        self.was_expired(expiry_ms, wall_clock_ms())
    }

    /// As [`Core::is_expired`], by the time `now_ms` that was read before.
    pub fn was_expired(&self, expiry_ms: u64, now_ms: u64) -> bool {
        let had_come = expiry_ms <= now_ms;
        if had_come {
            self.remember_time(expiry_ms);
        }
        had_come
    }

    /// What expires up to then somebody may have been told to be gone.
    #[cfg(test)]
    pub fn told_ms(&self) -> u64 {
        self.clock_floor_ms.load(Ordering::Relaxed)
    }

    /// Somebody was told that what expires at this time is not there any more.
    pub fn remember_time(&self, expiry_ms: u64) {
        if expiry_ms > self.clock_floor_ms.load(Ordering::Relaxed) {
            self.clock_floor_ms.fetch_max(expiry_ms, Ordering::Relaxed);
        }
    }

    /// Persists the time if what somebody was told is not on media yet. Waits for a sync then.
    pub fn persist_told(&self) -> Result<()> {
        let told = self.clock_floor_ms.load(Ordering::Relaxed);
        if told > self.log.pool(0).clock_ms() { self.persist_clock() } else { Ok(()) }
    }

    /// Persists the time, so that a clock that is set back revives nothing.
    pub fn persist_clock(&self) -> Result<()> {
        let now = self.now_ms();
        self.clock_floor_ms.fetch_max(now, Ordering::Relaxed);
        Ok(self.heeding_failed_syncs(self.log.pool(0).set_clock_ms(now))?)
    }
}
