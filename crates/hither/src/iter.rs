//! Iterators over pairs, from both ends.

use hither_engine::{Direction, Error, KeyspaceHandle, Result, ScanRange, Snapshot, Store};
use std::collections::VecDeque;
use std::fmt;
use std::iter::FusedIterator;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

/// Pairs of the first group: a caller that wants only the next pair shall not pay for many. Each group is twice as
/// large as the one before, up to the largest.
const FIRST_GROUP: usize = 4;
const LARGEST_GROUP: usize = 64;
/// Bytes of keys and values at which a group ends, however few pairs it has.
const GROUP_BYTES: usize = 1 << 20;

type Pair = (Vec<u8>, Vec<u8>);

/// A key of a keyspace with its value and expiry, as [`Iter::entries`] yields it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
    /// When it expires by the store's time, in milliseconds since 1970; 0: never.
    pub expires_at_ms: u64,
}

impl Entry {
    pub(crate) fn copied(key: &[u8], value: &[u8], expires_at_ms: u64) -> Entry {
        Entry { key: key.to_vec(), value: value.to_vec(), expires_at_ms }
    }
}

impl From<Entry> for Pair {
    fn from(entry: Entry) -> Pair {
        (entry.key, entry.value)
    }
}

/// What an iterator reads: a keyspace, now or as a snapshot shows it.
pub(crate) struct Source {
    pub store: Arc<Store>,
    pub handle: KeyspaceHandle,
    pub snapshot: Option<Arc<Snapshot>>,
}

impl Source {
    /// Fetches up to `limit` entries, fewer if they are large. Also returns whether there is nothing behind them.
    fn fetch(&self, range: &ScanRange<'_>, limit: usize) -> Result<(VecDeque<Entry>, bool)> {
        let mut pairs = VecDeque::with_capacity(limit);
        let (mut bytes, mut is_last) = (0, true);
        let collect = |key: &[u8], value: &[u8], expires_at_ms: u64| {
            pairs.push_back(Entry::copied(key, value, expires_at_ms));
            bytes += key.len() + value.len();
            is_last = pairs.len() < limit && bytes < GROUP_BYTES;
            if is_last { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        match &self.snapshot {
            Some(snapshot) => snapshot.scan_expiring(&self.handle, range, collect)?,
            None => self.store.scan_expiring(&self.handle, range, collect)?,
        }
        Ok((pairs, is_last))
    }

    /// Returns the value and its expiry.
    fn get(&self, key: &[u8]) -> Result<Option<(Vec<u8>, u64)>> {
        match &self.snapshot {
            Some(snapshot) => snapshot.get_expiring(&self.handle, key, |value, expires_at_ms| (value.to_vec(), expires_at_ms)),
            None => self.store.get_expiring(&self.handle, key, |value, expires_at_ms| (value.to_vec(), expires_at_ms)),
        }
    }
}

enum State {
    Ordered(Ordered),
    /// Keys that are still to be looked up; `None` until they are collected.
    Hash(Option<VecDeque<Vec<u8>>>),
    /// The error that is still to be returned; `None` after that: the iterator has ended.
    Failed(Option<Error>),
}

/// The range between the bounds is not fetched yet. The queues hold the entries fetched from either end.
struct Ordered {
    from: Bound<Vec<u8>>,
    to: Bound<Vec<u8>>,
    front: VecDeque<Entry>,
    back: VecDeque<Entry>,
    exhausted: bool,
    /// Number of pairs to fetch next.
    group: usize,
}

impl Ordered {
    fn step(&mut self, source: &Source, direction: Direction) -> Result<Option<Entry>> {
        let forward = direction == Direction::Forward;
        if !self.exhausted && if forward { &self.front } else { &self.back }.is_empty() {
            let range = ScanRange { from: borrowed(&self.from), to: borrowed(&self.to), direction, expect: self.group };
            let (pairs, is_last) = source.fetch(&range, self.group)?;
            self.exhausted = is_last;
            self.group = (self.group * 2).min(LARGEST_GROUP);
            if let Some(last) = pairs.back() {
                *(if forward { &mut self.from } else { &mut self.to }) = Bound::Excluded(last.key.clone());
            }
            *(if forward { &mut self.front } else { &mut self.back }) = pairs;
        }
        let (near, far) = if forward { (&mut self.front, &mut self.back) } else { (&mut self.back, &mut self.front) };
        // The entries that the other end fetched lie beyond this range. The last of them is the next one from here.
        Ok(near.pop_front().or_else(|| far.pop_back()))
    }
}

/// An iterator over key–value pairs, from both ends. After an error it ends.
///
/// Pairs are fetched in groups: four at first, then more, up to 64. A group ends at 1 MiB, and has at least one pair.
/// So the iterator takes little more memory than 1 MiB, or than the largest pair, for each end that it is read from.
/// Over a hash keyspace it takes the memory of all keys and one value. It keeps the store open.
///
/// ```
/// # let db = hither::Db::builder().in_memory().open()?;
/// let ages = db.keyspace("ages")?;
/// for (name, age) in [("ada", "36"), ("alan", "41"), ("grace", "85")] {
///     ages.put(name.as_bytes(), age.as_bytes())?;
/// }
/// let mut pairs = ages.range(&b"alan"[..]..)?;
/// let (name, _) = pairs.next_back().unwrap()?;
/// assert_eq!(name, b"grace");
/// assert_eq!(pairs.next().unwrap()?, (b"alan".to_vec(), b"41".to_vec()));
/// assert!(pairs.next().is_none());
/// # Ok::<(), hither::Error>(())
/// ```
#[must_use = "an iterator does nothing before it is asked for pairs"]
pub struct Iter {
    source: Source,
    state: State,
}

impl Iter {
    pub(crate) fn ordered(source: Source, from: Bound<Vec<u8>>, to: Bound<Vec<u8>>) -> Iter {
        let (front, back) = (VecDeque::new(), VecDeque::new());
        Iter { source, state: State::Ordered(Ordered { from, to, front, back, exhausted: false, group: FIRST_GROUP }) }
    }

    pub(crate) fn hash(source: Source) -> Iter {
        Iter { source, state: State::Hash(None) }
    }

    /// An iterator that yields this error and ends.
    pub(crate) fn failed(source: Source, error: Error) -> Iter {
        Iter { source, state: State::Failed(Some(error)) }
    }

    /// Turns it into an iterator over entries, which have the time at which each key expires, too.
    ///
    /// ```
    /// # let db = hither::Db::builder().in_memory().open()?;
    /// let sessions = db.keyspace("sessions")?;
    /// sessions.put_with(b"1", b"ada", &hither::WriteOptions::new().expires_at_ms(33_177_117_420_000))?.wait()?;
    /// let entry = db.snapshot().iter(&sessions).entries().next().unwrap()?;
    /// assert_eq!((entry.key, entry.value, entry.expires_at_ms), (b"1".to_vec(), b"ada".to_vec(), 33_177_117_420_000));
    /// # Ok::<(), hither::Error>(())
    /// ```
    pub fn entries(self) -> Entries {
        Entries(self)
    }

    fn step(&mut self, direction: Direction) -> Result<Option<Entry>> {
        match &mut self.state {
            State::Ordered(ordered) => ordered.step(&self.source, direction),
            State::Hash(keys) => {
                let keys = match keys {
                    Some(keys) => keys,
                    None => keys.insert(collect_keys(&self.source)?),
                };
                while let Some(key) = if direction == Direction::Forward { keys.pop_front() } else { keys.pop_back() } {
                    // Skips keys that were deleted or have expired since.
                    if let Some((value, expires_at_ms)) = self.source.get(&key)? {
                        return Ok(Some(Entry { key, value, expires_at_ms }));
                    }
                }
                Ok(None)
            }
            State::Failed(error) => error.take().map_or(Ok(None), Err),
        }
    }

    fn advance(&mut self, direction: Direction) -> Option<Result<Entry>> {
        let outcome = self.step(direction);
        if outcome.is_err() {
            self.state = State::Failed(None);
        }
        outcome.transpose()
    }
}

fn collect_keys(source: &Source) -> Result<VecDeque<Vec<u8>>> {
    if let Some(snapshot) = &source.snapshot {
        return Ok(snapshot.sorted_keys(&source.handle)?.into());
    }
    let mut keys = VecDeque::with_capacity(source.handle.len());
    source.store.for_each(&source.handle, |key, _| {
        keys.push_back(key.to_vec());
        ControlFlow::Continue(())
    })?;
    Ok(keys)
}

pub(crate) fn borrowed(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

impl Iterator for Iter {
    type Item = Result<Pair>;
    fn next(&mut self) -> Option<Self::Item> {
        self.advance(Direction::Forward).map(|entry| entry.map(Pair::from))
    }
}

impl DoubleEndedIterator for Iter {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.advance(Direction::Backward).map(|entry| entry.map(Pair::from))
    }
}

impl FusedIterator for Iter {}

impl fmt::Debug for Iter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iter").field("keyspace", &self.source.handle.info().name).finish_non_exhaustive()
    }
}

/// An [`Iter`] that yields the expiry of each key, too.
#[must_use = "an iterator does nothing before it is asked for entries"]
#[derive(Debug)]
pub struct Entries(Iter);

impl Iterator for Entries {
    type Item = Result<Entry>;
    fn next(&mut self) -> Option<Self::Item> {
        self.0.advance(Direction::Forward)
    }
}

impl DoubleEndedIterator for Entries {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.advance(Direction::Backward)
    }
}

impl FusedIterator for Entries {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Db;

    /// Number of pairs that were fetched and not returned yet.
    fn waiting(iter: &Iter) -> usize {
        let State::Ordered(ordered) = &iter.state else { panic!("of an ordered keyspace") };
        ordered.front.len() + ordered.back.len()
    }

    fn filled(pairs: u32, bytes: usize) -> (Db, crate::Keyspace) {
        let db = Db::builder().in_memory().capacity(64 << 20).open().unwrap();
        let keyspace = db.keyspace("k").unwrap();
        (0..pairs).for_each(|n| keyspace.put(&n.to_be_bytes(), &vec![n as u8; bytes]).unwrap());
        (db, keyspace)
    }

    /// Regression: 64 pairs were fetched at once, whatever their size.
    #[test]
    fn a_group_of_large_pairs_is_small() {
        let (db, keyspace) = filled(20, 700_000);
        for mut iter in [keyspace.iter(), db.snapshot().iter(&keyspace)] {
            for number in 0..10u32 {
                assert_eq!(iter.next().unwrap().unwrap().0, number.to_be_bytes());
                assert_eq!(iter.next_back().unwrap().unwrap().0, (19 - number).to_be_bytes());
                assert!(waiting(&iter) <= 2, "{} wait", waiting(&iter));
            }
            assert!(iter.next().is_none() && iter.next_back().is_none());
        }
        let (_db, keyspace) = filled(3, 3 << 20);
        let mut iter = keyspace.iter();
        iter.next().unwrap().unwrap();
        assert_eq!(waiting(&iter), 0, "each is a group by itself");
        assert_eq!(iter.count(), 2);
    }

    #[test]
    fn groups_of_small_pairs_grow() {
        let (_db, keyspace) = filled(1000, 8);
        let mut iter = keyspace.iter();
        let mut most = 0;
        for number in 0..1000u32 {
            assert_eq!(iter.next().unwrap().unwrap().0, number.to_be_bytes());
            if number == 0 {
                assert_eq!(waiting(&iter), FIRST_GROUP - 1);
            }
            most = most.max(waiting(&iter));
        }
        assert_eq!(most, LARGEST_GROUP - 1);
        assert!(iter.next().is_none() && iter.next().is_none());
        assert_eq!(format!("{iter:?}"), "Iter { keyspace: \"k\", .. }");
    }

    #[test]
    fn entries_tell_when_keys_expire() {
        const LATER: u64 = 33_177_117_420_000;
        let db = Db::builder().in_memory().open().unwrap();
        for (name, options) in [("ordered", crate::KeyspaceOptions::ordered()), ("hash", crate::KeyspaceOptions::hash())] {
            let keyspace = db.create_keyspace(name, options).unwrap();
            for key in 0..200u64 {
                let options = crate::WriteOptions::new().expires_at_ms(if key.is_multiple_of(3) { LATER + key } else { 0 });
                keyspace.put_with(&key.to_be_bytes(), b"some value", &options).unwrap().wait().unwrap();
            }
            let before = db.snapshot();
            (0..100u64).for_each(|key| keyspace.put(&key.to_be_bytes(), b"for ever").unwrap());
            let expected = |key: u64| if key.is_multiple_of(3) { LATER + key } else { 0 };
            let shown: Vec<u64> = before.iter(&keyspace).entries().map(|entry| entry.unwrap().expires_at_ms).collect();
            assert_eq!(shown, (0..200).map(expected).collect::<Vec<_>>(), "{name}");
            let now = keyspace.iter().entries().rev().map(|entry| entry.unwrap());
            for entry in now {
                let key = u64::from_be_bytes(entry.key.try_into().unwrap());
                let wanted: (&[u8], u64) = if key < 100 { (b"for ever", 0) } else { (b"some value", expected(key)) };
                assert_eq!((&*entry.value, entry.expires_at_ms), wanted, "{name}");
            }
        }
    }
}
