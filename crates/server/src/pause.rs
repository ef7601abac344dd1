//! CLIENT PAUSE: commands of all clients wait, or only those that write.
//!
//! A command that waits when the pause begins is answered once its time is over, but takes nothing meanwhile.
//!
//! Thread safety: any thread. The state is one word, so that a reader sees one pause, not parts of two.

use crate::commands::table::{Numbered, TABLE, flag};
use crate::session::Session;
use crate::shared::{Shared, now_ms};
use crate::transaction::Multi;
use hither_resp::Args;
use std::sync::atomic::{AtomicU64, Ordering};

/// A pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Its end, in milliseconds since 1970.
    pub until_ms: u64,
    /// Whether only commands that write wait.
    pub writes_only: bool,
}

/// The pause in force, if there is one.
#[derive(Default)]
pub struct Pauses {
    /// The end, times two, plus one if only writes wait; 0: no pause.
    word: AtomicU64,
}

impl Pauses {
    /// Begins a pause. If one is in force, the later end counts, and all commands wait if either of them says so, as in
    /// Redis.
    pub fn begin(&self, pause: Pause) {
        let now_ms = crate::shared::now_ms();
        let join = |word| {
            let old = decode(word).filter(|old| old.until_ms > now_ms).unwrap_or(pause);
            let until_ms = old.until_ms.max(pause.until_ms).min(u64::MAX >> 1);
            Some(until_ms << 1 | u64::from(old.writes_only && pause.writes_only))
        };
        // `join` always returns a value.
        let _ = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, join);
    }

    /// Ends the pause.
    pub fn end(&self) {
        self.word.store(0, Ordering::Release);
    }

    /// The pause in force at this time.
    #[inline]
    pub fn at(&self, now_ms: impl FnOnce() -> u64) -> Option<Pause> {
        let word = self.word.load(Ordering::Acquire);
        if word == 0 { None } else { decode(word).filter(|pause| pause.until_ms > now_ms()) }
    }
}

fn decode(word: u64) -> Option<Pause> {
    (word != 0).then_some(Pause { until_ms: word >> 1, writes_only: word & 1 == 1 })
}

impl Session {
    /// Whether a command has to wait for the end of CLIENT PAUSE. Exempt are commands that would be refused anyway,
    /// CLIENT UNPAUSE, the commands needed to log in to send it (in Redis all of these wait), and the end of a wait.
    #[inline]
    pub fn must_wait(&mut self, shared: &Shared, args: Args<'_>) -> bool {
        let Some(pause) = shared.pause.at(now_ms) else { return false };
        let Ok(Numbered { command, .. }) = TABLE.find(args) else { return false };
        let queued = || self.multi.iter().flat_map(Multi::queue).any(|queued| queued.found.command.has(flag::WRITE));
        let is_held = match pause.writes_only {
            false => !command.has(flag::NO_AUTH) && command.full_name() != "client|unpause",
            true => command.has(flag::WRITE) || command.has(flag::EXEC) && queued(),
        };
        is_held && !self.only_answers()
    }

    /// Whether its command waits and has no more to do than to answer: its time is over, or it asked for work outside
    /// its database. From here on it does not look at keys, which must stay as they are until the end of the pause.
    #[cold]
    fn only_answers(&mut self) -> bool {
        let id = self.client.id;
        let Some(wait) = &mut self.wait else { return false };
        if wait.note != 0 || wait.change.as_ref().is_some_and(|change| change.is_made_for(id)) {
            return true;
        }
        wait.over = wait.end().is_some();
        wait.over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_and_the_stricter_count() {
        let (pauses, now_ms) = (Pauses::default(), crate::shared::now_ms());
        assert_eq!(pauses.at(|| now_ms), None);
        pauses.begin(Pause { until_ms: now_ms + 50_000, writes_only: true });
        assert_eq!(pauses.at(|| now_ms), Some(Pause { until_ms: now_ms + 50_000, writes_only: true }));
        assert_eq!(pauses.at(|| now_ms + 50_000), None, "it is over by itself");
        pauses.begin(Pause { until_ms: now_ms + 20_000, writes_only: false });
        assert_eq!(pauses.at(|| now_ms), Some(Pause { until_ms: now_ms + 50_000, writes_only: false }));
        pauses.end();
        assert_eq!(pauses.at(|| now_ms), None);
        pauses.begin(Pause { until_ms: u64::MAX, writes_only: false });
        assert!(pauses.at(|| now_ms).is_some(), "for ever");
    }
}
