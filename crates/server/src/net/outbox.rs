//! The replies of one connection, in order, some of which wait for durability.

use crate::commands::failure::of_store;
use hither::Error;
use hither_resp::{Protocol, Writer};
use std::collections::VecDeque;

/// While more bytes than this wait to be sent, no further command of the connection runs.
pub const PAUSE_BYTES: usize = 1 << 20;

/// The same for a client that has not logged in, which can be anybody who can connect.
pub const STRANGER_PAUSE_BYTES: usize = 16 << 10;

/// Once more than this has left, the rest may move to the front of the buffer.
const MOVE_BYTES: usize = 16 << 10;

/// An empty buffer, or list of waiting replies, larger than this is freed.
const KEEP_BYTES: usize = 4 << 10;

/// The replies of one connection, in order.
///
/// `bytes[..sent]` have left, `bytes[sent..released]` may leave, the rest waits. `held` has the bounds and versions of
/// waiting replies, in order; a reply without an entry waits for those before it.
#[derive(Default)]
pub struct Outbox {
    /// Where replies are appended; the caller must then call [`Outbox::appended`].
    pub bytes: Vec<u8>,
    sent: usize,
    released: usize,
    held: VecDeque<Held>,
    /// The newest version in `held`; 0: none. Searching for it would take longer the more replies wait.
    newest: u64,
}

/// A waiting reply.
struct Held {
    start: usize,
    end: usize,
    version: u64,
}

impl Outbox {
    /// A reply was appended from `start` on and rests on `version` (0: nothing).
    #[inline]
    pub fn appended(&mut self, start: usize, version: u64) {
        let end = self.bytes.len();
        if version != 0 {
            self.newest = version.max(self.newest);
            match self.held.back_mut() {
                // Consecutive writes without a reply share one entry.
                Some(last) if start == end && last.start == last.end => last.version = version.max(last.version),
                _ => self.held.push_back(Held { start, end, version }),
            }
        } else if self.held.is_empty() {
            self.released = self.bytes.len();
        }
    }

    /// Releases replies: everything up to version `durable` is durable.
    pub fn release(&mut self, durable: u64) {
        while self.held.front().is_some_and(|held| held.version <= durable) {
            self.held.pop_front();
        }
        if self.held.is_empty() {
            self.newest = 0;
        }
        self.released = self.held.front().map_or(self.bytes.len(), |held| held.start);
    }

    /// A sync failed: replies that wait for more than `durable` become errors.
    pub fn fail(&mut self, durable: u64, error: &Error) {
        self.release(durable);
        let mut replies = Vec::new();
        let mut at = self.released;
        for held in self.held.drain(..) {
            replies.extend_from_slice(&self.bytes[at..held.start]);
            if held.version <= durable {
                replies.extend_from_slice(&self.bytes[held.start..held.end]);
            } else if held.start < held.end {
                Writer::new(&mut replies, Protocol::Resp2).error(&of_store(error));
            }
            at = held.end;
        }
        self.newest = 0;
        replies.extend_from_slice(&self.bytes[at..]);
        self.bytes.truncate(self.released);
        self.bytes.extend_from_slice(&replies);
        self.released = self.bytes.len();
    }

    /// The bytes that may be sent now.
    pub fn ready(&self) -> &[u8] {
        &self.bytes[self.sent..self.released]
    }

    /// Notes that `count` of these bytes were sent. The rest moves to the front once it is smaller than what has left:
    /// a byte moves at most once for each byte that was sent.
    pub fn sent(&mut self, count: usize) {
        self.sent += count;
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            (self.sent, self.released) = (0, 0);
            self.trim();
            // Only writes without a reply can still wait: they stood at the end, which is position 0 now.
            self.held.iter_mut().for_each(|held| (held.start, held.end) = (0, 0));
        } else if self.sent > MOVE_BYTES && self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.bytes.shrink_to(2 * self.bytes.len());
            self.released -= self.sent;
            for held in &mut self.held {
                held.start -= self.sent;
                held.end -= self.sent;
            }
            self.sent = 0;
        }
    }

    /// Frees what is empty and larger than an idle connection may keep: a reply that CLIENT REPLY suppresses leaves its
    /// room behind, though nothing is ever sent of it.
    pub fn trim(&mut self) {
        if self.bytes.is_empty() && self.bytes.capacity() > KEEP_BYTES {
            self.bytes = Vec::new();
        }
        if self.held.is_empty() && self.held.capacity() * size_of::<Held>() > KEEP_BYTES {
            self.held = VecDeque::new();
        }
    }

    /// Bytes that have not left.
    pub fn waiting(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// The newest version that a reply waits for; 0: none.
    pub fn newest_held(&self) -> u64 {
        self.newest
    }

    /// Whether a reply waits for durability.
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(outbox: &mut Outbox, text: &str, version: u64) {
        let start = outbox.bytes.len();
        outbox.bytes.extend_from_slice(text.as_bytes());
        outbox.appended(start, version);
    }

    fn take(outbox: &mut Outbox) -> String {
        let ready = String::from_utf8(outbox.ready().to_vec()).unwrap();
        outbox.sent(ready.len());
        ready
    }

    #[test]
    fn replies_leave_in_order_once_durable() {
        let mut outbox = Outbox::default();
        reply(&mut outbox, "a", 0);
        reply(&mut outbox, "b", 5);
        reply(&mut outbox, "c", 0);
        reply(&mut outbox, "d", 7);
        reply(&mut outbox, "e", 6);
        assert_eq!(outbox.newest_held(), 7);
        assert_eq!(take(&mut outbox), "a");
        outbox.release(4);
        assert_eq!(take(&mut outbox), "");
        outbox.release(5);
        assert_eq!(take(&mut outbox), "bc");
        outbox.release(6);
        assert_eq!(take(&mut outbox), "", "e waits behind d");
        outbox.release(7);
        assert_eq!(take(&mut outbox), "de");
        assert_eq!((outbox.waiting(), outbox.newest_held()), (0, 0));
    }

    /// Regression: after CLIENT REPLY OFF each of them became an error reply, which the client took for the answer to
    /// its next command.
    #[test]
    fn writes_without_a_reply_get_none_when_a_sync_fails() {
        let mut outbox = Outbox::default();
        reply(&mut outbox, "", 3);
        (4..1000).for_each(|version| reply(&mut outbox, "", version));
        assert_eq!((outbox.held.len(), outbox.newest_held()), (1, 999));
        reply(&mut outbox, "+on\r\n", 0);
        outbox.fail(0, &Error::SyncFailed("the device is gone".to_owned()));
        assert_eq!(take(&mut outbox), "+on\r\n");
    }

    /// Regression: its place stayed behind when all before it had left, so that the next reply left too early, or the
    /// thread panicked.
    #[test]
    fn a_write_without_a_reply_waits_at_the_front_when_all_has_left() {
        let mut outbox = Outbox::default();
        reply(&mut outbox, "+a\r\n", 0);
        reply(&mut outbox, "", 9);
        assert_eq!(take(&mut outbox), "+a\r\n");
        outbox.release(3);
        assert_eq!(take(&mut outbox), "", "nothing is there");
        reply(&mut outbox, "+on\r\n", 0);
        reply(&mut outbox, "+b\r\n", 10);
        outbox.release(3);
        assert_eq!(take(&mut outbox), "", "it stands behind a write that is not durable");
        outbox.fail(3, &Error::SyncFailed("the device is gone".to_owned()));
        let text = take(&mut outbox);
        assert!(text.starts_with("+on\r\n-MISCONF ") && text.lines().count() == 2, "{text}");
    }

    #[test]
    fn what_waits_becomes_an_error_when_a_sync_fails() {
        let mut outbox = Outbox::default();
        reply(&mut outbox, "+a\r\n", 3);
        reply(&mut outbox, "+b\r\n", 9);
        reply(&mut outbox, "+c\r\n", 0);
        reply(&mut outbox, "+d\r\n", 3);
        reply(&mut outbox, "+e\r\n", 8);
        outbox.fail(3, &Error::SyncFailed("no medium".into()));
        let text = take(&mut outbox);
        let lines: Vec<&str> = text.split("\r\n").collect();
        assert_eq!((lines[0], lines[2], lines[3], lines.len()), ("+a", "+c", "+d", 6));
        assert!(lines[1].starts_with("-MISCONF") && lines[4].starts_with("-MISCONF"), "{text}");
    }

    /// Regression: the list of waiting replies stayed as long as it had once been.
    #[test]
    fn nothing_is_kept_of_many_replies_that_have_waited() {
        let mut outbox = Outbox::default();
        for end in [Outbox::release as fn(&mut Outbox, u64), |outbox, _| outbox.fail(0, &Error::Closed)] {
            (1..=10_000).for_each(|version| reply(&mut outbox, "+OK\r\n", version));
            assert!(outbox.held.capacity() >= 10_000);
            end(&mut outbox, 10_000);
            take(&mut outbox);
            assert!(outbox.held.capacity() < 500, "{}", outbox.held.capacity());
        }
    }

    #[test]
    fn long_queues_are_cut_from_the_front() {
        let mut outbox = Outbox::default();
        reply(&mut outbox, &"x".repeat(2 * PAUSE_BYTES), 0);
        reply(&mut outbox, "y", 4);
        outbox.sent(PAUSE_BYTES + 1);
        assert_eq!(outbox.bytes.len(), PAUSE_BYTES);
        assert_eq!(take(&mut outbox).len(), PAUSE_BYTES - 1);
        outbox.release(4);
        assert_eq!(take(&mut outbox), "y");
    }

    /// Regression: while a reply left in pieces, its whole rest was moved at each MiB (128 GiB in all for one of 512
    /// MiB), and its buffer stayed.
    #[test]
    fn what_is_moved_and_kept_is_no_more_than_what_leaves() {
        let mut outbox = Outbox::default();
        let total = 40 * PAUSE_BYTES;
        reply(&mut outbox, &"x".repeat(total), 0);
        reply(&mut outbox, "y", 4);
        let (mut moved, mut moves) = (0, 0);
        for _ in 0..total / 4096 {
            let before = outbox.bytes.len();
            outbox.sent(4096);
            if outbox.bytes.len() != before {
                moved += outbox.bytes.len();
                moves += 1;
            }
            let waiting = outbox.waiting();
            assert!(outbox.bytes.capacity() <= 4 * waiting.max(PAUSE_BYTES), "{} for {waiting}", outbox.bytes.capacity());
        }
        assert!(moved <= total && moves > 0, "{moved} bytes moved");
        outbox.release(4);
        assert_eq!(take(&mut outbox), "y");
        assert_eq!(outbox.bytes.capacity(), 0);
    }
}
