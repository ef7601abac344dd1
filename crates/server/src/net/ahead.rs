//! Requests that are parsed before their turn, so that the store can begin to load what they will touch.
//!
//! A client that pipelines has many requests under way. If they run one after the other, each waits for its own cache
//! misses; if their keys are prefetched together ([`Keyspace::prefetch`](hither::Keyspace::prefetch)), the misses
//! overlap. So a connection parses the first request that has arrived, and this module parses the complete ones behind
//! it, up to [`AHEAD`].
//!
//! The requests still run in order, each as if it had just been parsed. Whatever ends the turn in between (a command
//! that waits, a client to be closed, too many replies, the turn's time) forgets those that have not run, and they are
//! parsed again. Incomplete and wrong requests are left to the connection's own parser, which remembers how far it came
//! and answers errors.
//!
//! There is one `Ahead` per thread, empty between turns.

use hither_resp::{Args, Limits, Parser};

/// Requests behind the first one; together they are as many as an index looks up at once.
const AHEAD: usize = 15;

/// The requests behind the one that runs.
pub struct Ahead {
    parsers: Vec<Parser>,
    /// Where each request found begins and ends.
    found: Vec<(usize, usize)>,
}

impl Default for Ahead {
    fn default() -> Ahead {
        Ahead { parsers: (0..AHEAD).map(|_| Parser::default()).collect(), found: Vec::with_capacity(AHEAD) }
    }
}

impl Ahead {
    /// Parses the complete requests in `bytes`, which begin at a request; `first` is the request before them. Passes
    /// their keys to `warm` if there are several: the first argument of each, which is a guess, since the commands are
    /// not known here.
    pub fn look(&mut self, bytes: &[u8], limits: Limits, first: Args<'_>, warm: impl FnOnce(&[&[u8]])) {
        self.found.clear();
        let mut at = 0;
        for parser in &mut self.parsers {
            if at == bytes.len() {
                break;
            }
            parser.set_limits(limits);
            let Ok(Some(length)) = parser.parse(&bytes[at..]) else {
                parser.restart();
                break;
            };
            self.found.push((at, at + length));
            at += length;
        }
        if self.found.is_empty() {
            return;
        }
        let (mut keys, mut count) = ([&[][..]; AHEAD + 1], 0);
        for args in std::iter::once(first).chain((0..self.count()).map(|number| self.args(bytes, number))) {
            if let Some(key) = args.get(1) {
                keys[count] = key;
                count += 1;
            }
        }
        if count > 1 {
            warm(&keys[..count]);
        }
    }

    /// Number of requests found.
    pub fn count(&self) -> usize {
        self.found.len()
    }

    /// The arguments of request `number`; `bytes` must be the same as in [`Ahead::look`].
    pub fn args<'a>(&'a self, bytes: &'a [u8], number: usize) -> Args<'a> {
        self.parsers[number].args(&bytes[self.found[number].0..])
    }

    /// Where request `number` ends.
    pub fn end(&self, number: usize) -> usize {
        self.found[number].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys_of(ahead: &mut Ahead, bytes: &[u8]) -> Vec<String> {
        let (mut parser, mut keys) = (Parser::default(), Vec::new());
        let length = parser.parse(bytes).unwrap().unwrap();
        let first = parser.args(bytes);
        ahead.look(&bytes[length..], Limits::default(), first, |found| {
            keys = found.iter().map(|key| String::from_utf8(key.to_vec()).unwrap()).collect();
        });
        keys
    }

    #[test]
    fn complete_requests_are_found_in_order() {
        let mut ahead = Ahead::default();
        let bytes = b"GET a\r\n*2\r\n$3\r\nGET\r\n$1\r\nb\r\nPING\r\n\r\nSET c \"x y\"\r\n*2\r\n$3\r\nGET\r\n$1\r";
        assert_eq!(keys_of(&mut ahead, bytes), ["a", "b", "c"]);
        let rest = &bytes[7..];
        let found: Vec<Vec<&[u8]>> = (0..ahead.count()).map(|number| ahead.args(rest, number).iter().collect()).collect();
        assert_eq!(found, [vec![&b"GET"[..], b"b"], vec![b"PING"], vec![], vec![b"SET", b"c", b"x y"]]);
        assert_eq!((ahead.end(0), &rest[ahead.end(3)..]), (20, &b"*2\r\n$3\r\nGET\r\n$1\r"[..]));
    }

    /// A parser that was given something incomplete or wrong begins anew.
    #[test]
    fn what_is_left_over_leaves_nothing() {
        let mut ahead = Ahead::default();
        for rest in [&b"*2\r\n$3\r\nG"[..], b"*x\r\n", b"*2\r\n$9999999999\r\n", b"GET \"b\r\n"] {
            assert!(keys_of(&mut ahead, &[&b"GET a\r\n"[..], rest].concat()).is_empty());
            assert_eq!(ahead.count(), 0);
            assert_eq!(keys_of(&mut ahead, b"GET a\r\nGET b\r\n"), ["a", "b"]);
        }
    }

    #[test]
    fn no_more_than_fit_are_found() {
        let mut ahead = Ahead::default();
        let keys = keys_of(&mut ahead, &b"GET a\r\n".repeat(100));
        assert_eq!((keys.len(), ahead.count(), ahead.end(AHEAD - 1)), (AHEAD + 1, AHEAD, 7 * AHEAD));
    }
}
