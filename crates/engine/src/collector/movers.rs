//! Permits to move entries where room is short.
//!
//! A pass frees its victim only when everything that is needed has been moved. Several passes that begin with room for
//! one of them, or one pass that needs more than the room, would take the last free segments and free none: the store
//! would be full for ever, whatever garbage it holds.
//!
//! So a pass asks for a permit first. Alone, it gets the permit if everything that it has to move fits. Beside other
//! passes, it gets the permit if that fits besides everything promised to them, and waits otherwise.
//!
//! Thread safety: any number of threads. A thread that holds a permit asks for no other and waits for no thread that
//! does, so there is no deadlock.

use hither_log::MoveRoom;
use parking_lot::{Condvar, Mutex};
use std::time::Instant;

/// Passes of one node that are moving entries.
#[derive(Debug, Default)]
pub(crate) struct Movers {
    busy: Mutex<Busy>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct Busy {
    passes: u64,
    /// The most bytes that these passes may still take, each with a gap at the end of a segment.
    promised: u64,
}

/// Permission to move entries, until it is dropped.
#[must_use = "others may move when this is dropped"]
#[derive(Debug)]
pub(crate) struct Permit<'a> {
    movers: &'a Movers,
    promised: u64,
}

impl Movers {
    /// Returns a permit for moving up to `bytes`. Waits for other passes if there is no room beside them, until `end`
    /// if there is one. Returns `None` if there is no room even alone, or not in time. `gap`: bytes of a segment.
    pub fn enter(&self, bytes: u64, gap: u64, end: Option<Instant>, room: impl Fn() -> MoveRoom) -> Option<Permit<'_>> {
        let promised = bytes + gap;
        let mut busy = self.busy.lock();
        loop {
            let room = room();
            let fits = if busy.passes == 0 { bytes <= room.most() } else { busy.promised + promised <= room.fresh };
            if fits {
                busy.passes += 1;
                busy.promised += promised;
                return Some(Permit { movers: self, promised });
            }
            if busy.passes == 0 {
                return None;
            }
            match end {
                None => self.left.wait(&mut busy),
                Some(end) if self.left.wait_until(&mut busy, end).timed_out() => return None,
                Some(_) => {}
            }
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut busy = self.movers.busy.lock();
        busy.passes -= 1;
        busy.promised -= self.promised;
        drop(busy);
        self.movers.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    const SEGMENT: u64 = 1000;

    #[test]
    fn alone_a_pass_needs_room_for_itself_and_beside_others_for_all() {
        let movers = Movers::default();
        let enter = |bytes, fresh, rest| movers.enter(bytes, SEGMENT, Some(Instant::now()), || MoveRoom { fresh, rest });
        assert!(enter(900, 0, 0).is_none(), "no room at all");
        assert!(enter(900, 800, 800).is_none(), "it may not be split at a gap");
        assert!(enter(900, 0, 900).is_some() && enter(900, 1000, 0).is_some());
        let first = enter(900, SEGMENT, 0).expect("alone");
        let second = enter(900, 4 * SEGMENT, 0).expect("room for both, with a gap each");
        assert!(enter(900, SEGMENT, 0).is_none(), "beside them there is no room in time");
        drop(first);
        drop(second);
        assert_eq!(movers.busy.lock().promised, 0);
    }

    #[test]
    fn who_finds_no_room_beside_others_waits_for_them() {
        let (movers, most, now) = (Movers::default(), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let permit =
                            movers.enter(900, SEGMENT, None, || MoveRoom { fresh: 2 * SEGMENT, rest: 0 }).expect("alone there is room");
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::yield_now();
                        now.fetch_sub(1, Ordering::SeqCst);
                        drop(permit);
                    }
                });
            }
        });
        assert_eq!(most.into_inner(), 1);
    }
}
