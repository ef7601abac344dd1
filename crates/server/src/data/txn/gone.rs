//! The stretches of rows and keys that a transaction has emptied, so that later scans do not pass over them again.
//!
//! Deleted entries stay in the store until the commit. Without these notes each of many commands that take the first
//! member would pass over all that were taken before.
//!
//! A stretch is `[low, high)`, within one database and space. Inside it the transaction writes nothing but deletes, and
//! of what is committed there it has deleted everything that it has seen. Others may add to it meanwhile: rows change
//! the head of their collection, so the commit fails; keys may or may not be seen ([`Txn::keys`](super::Txn::keys)).
//!
//! Stretches neither overlap nor touch. A scan adds one only for [`LEAST`] deletes, or makes known ones larger, and
//! only writes split them. So their number is at most that of the transaction's writes, those included that were taken
//! back. Their bytes count as what the transaction holds.
//!
//! Thread safety: belongs to one thread.

use super::{Place, Space};
use std::collections::BTreeMap;
use std::ops::Bound;

/// The fewest deletes in a row that become a stretch: to begin a scan of the store anew behind them costs as much as to
/// pass over about 20. Fewer in tests, where everything is small.
pub(super) const LEAST: usize = if cfg!(test) { 6 } else { 32 };

/// The first possible key behind this one.
pub(super) fn behind(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// A part of a space: from `low` on, up to but without `high`; `None`: to the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub low: Vec<u8>,
    pub high: Option<Vec<u8>>,
}

impl Span {
    /// The keys between two bounds.
    pub fn between(from: Bound<&[u8]>, to: Bound<&[u8]>) -> Span {
        let low = match from {
            Bound::Included(key) => key.to_vec(),
            Bound::Excluded(key) => behind(key),
            Bound::Unbounded => Vec::new(),
        };
        let high = match to {
            Bound::Included(key) => Some(behind(key)),
            Bound::Excluded(key) => Some(key.to_vec()),
            Bound::Unbounded => None,
        };
        Span { low, high }
    }

    pub fn is_empty(&self) -> bool {
        self.high.as_ref().is_some_and(|high| *high <= self.low)
    }

    /// Leaves what lies behind a stretch, in the direction of a scan, and returns what lies before it.
    pub fn split_at(&mut self, low: &[u8], high: &[u8], reverse: bool) -> Span {
        if reverse {
            let part = Span { low: high.to_vec(), high: self.high.take() };
            self.high = Some(low.to_vec());
            return part;
        }
        let rest = Span { low: high.to_vec(), high: self.high.take() };
        let before = std::mem::replace(self, rest).low;
        Span { low: before, high: Some(low.to_vec()) }
    }

    /// The only key that it has room for.
    pub fn only_key(&self) -> Option<&[u8]> {
        self.high.as_ref()?.strip_suffix(&[0]).filter(|key| *key == self.low)
    }

    fn ends_behind(&self, key: &[u8]) -> bool {
        self.high.as_deref().is_none_or(|high| key < high)
    }
}

/// See the head of this file.
#[derive(Default)]
pub(super) struct Gone {
    /// The end of each stretch, at its beginning. Only [`Gone::insert`] and [`Gone::remove`] change it.
    stretches: BTreeMap<Place, Vec<u8>>,
    bytes: usize,
}

/// Approximate bytes of a stretch.
fn held_by(low: &Place, high: &[u8]) -> usize {
    size_of::<(Place, Vec<u8>)>() + low.2.len() + high.len()
}

impl Gone {
    pub fn is_empty(&self) -> bool {
        self.stretches.is_empty()
    }

    pub fn clear(&mut self) {
        self.stretches.clear();
        self.bytes = 0;
    }

    /// Approximate bytes of all stretches.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn insert(&mut self, low: Place, high: Vec<u8>) {
        self.bytes += held_by(&low, &high);
        self.stretches.insert(low, high);
    }

    fn remove(&mut self, low: &Place) -> Option<(Place, Vec<u8>)> {
        let (low, high) = self.stretches.remove_entry(low)?;
        self.bytes -= held_by(&low, &high);
        Some((low, high))
    }

    /// Notes that something is written at a place: a stretch around it is split. O(log n).
    pub fn cut(&mut self, place: &Place) {
        if let Some((low, high)) = self.take_around(place) {
            let (database, space, key) = place;
            if low < *key {
                self.insert((*database, *space, low), key.clone());
            }
            let behind = behind(key);
            if behind < high {
                self.insert((*database, *space, behind), high);
            }
        }
    }

    /// Notes that a write at a place is taken back: a stretch around it is forgotten. Not split, since many such places
    /// may lie side by side, with nothing in between that is worth a stretch. O(log n).
    pub fn forget(&mut self, place: &Place) {
        self.take_around(place);
    }

    /// Takes out the stretch around a place.
    fn take_around(&mut self, place: &Place) -> Option<(Vec<u8>, Vec<u8>)> {
        if self.is_empty() {
            return None;
        }
        let (low, high) = self.stretches.range(..=place).next_back()?;
        if (low.0, low.1) != (place.0, place.1) || *high <= place.2 {
            return None;
        }
        let low = low.clone();
        self.remove(&low).map(|((.., low), high)| (low, high))
    }

    /// Adds a stretch, and merges it with those that it overlaps or touches. O(log n + merged).
    pub fn add(&mut self, database: u16, space: Space, low: Vec<u8>, mut high: Vec<u8>) {
        let mut begin = (database, space, low);
        if let Some((before, end)) = self.stretches.range(..&begin).next_back()
            && (before.0, before.1) == (database, space)
            && *end >= begin.2
        {
            begin = before.clone();
        }
        while let Some((next, _)) = self.stretches.range(&begin..).next()
            && (next.0, next.1) == (database, space)
            && next.2 <= high
        {
            let next = next.clone();
            high = self.remove(&next).map_or_else(Vec::new, |(_, end)| end).max(high);
        }
        self.insert(begin, high);
    }

    /// The stretch that a scan of `span` meets next: at its beginning or later, in the direction of the scan.
    pub fn next(&self, database: u16, space: Space, span: &Span, reverse: bool) -> Option<(&[u8], &[u8])> {
        if self.is_empty() {
            return None;
        }
        let at = |key: &[u8]| -> Place { (database, space, key.to_vec()) };
        let is_near = |(low, high): &(&Place, &Vec<u8>)| {
            (low.0, low.1) == (database, space) && high.as_slice() > span.low.as_slice() && span.ends_behind(&low.2)
        };
        let found = if reverse {
            let end = span.high.as_ref().map_or_else(|| end_of(database, space), |high| at(high));
            self.stretches.range(..end).next_back().filter(is_near)
        } else {
            let begin = at(&span.low);
            let around = self.stretches.range(..=&begin).next_back().filter(is_near);
            around.or_else(|| self.stretches.range(&begin..).next().filter(is_near))
        };
        found.map(|(low, high)| (low.2.as_slice(), high.as_slice()))
    }
}

/// The first place behind a space.
pub(super) fn end_of(database: u16, space: Space) -> Place {
    match space {
        Space::Rows => (database, Space::Keys, Vec::new()),
        Space::Keys => (database + 1, Space::Rows, Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(gone: &Gone) -> Vec<(&str, &str)> {
        let text = |bytes| std::str::from_utf8(bytes).unwrap();
        assert_eq!(gone.bytes(), gone.stretches.iter().map(|(low, high)| held_by(low, high)).sum::<usize>());
        gone.stretches.iter().map(|((.., low), high)| (text(low), text(high))).collect()
    }

    fn with(stretches: &[(&str, &str)]) -> Gone {
        let mut gone = Gone::default();
        stretches.iter().for_each(|(low, high)| gone.add(0, Space::Rows, low.as_bytes().to_vec(), high.as_bytes().to_vec()));
        gone
    }

    #[test]
    fn stretches_that_overlap_or_touch_are_merged() {
        assert_eq!(all(&with(&[("b", "d"), ("f", "h"), ("k", "l"), ("d", "f")])), [("b", "h"), ("k", "l")]);
        assert_eq!(all(&with(&[("b", "d"), ("f", "h"), ("a", "z")])), [("a", "z")]);
        assert_eq!(all(&with(&[("b", "z"), ("c", "d")])), [("b", "z")]);
        assert_eq!(all(&with(&[("b", "c"), ("a", "b")])), [("a", "c")]);
    }

    #[test]
    fn a_write_splits_a_stretch() {
        let mut gone = with(&[("b", "f")]);
        for (key, left) in
            [("d", &[("b", "d"), ("d\0", "f")][..]), ("b", &[("b\0", "d"), ("d\0", "f")]), ("f", &[("b\0", "d"), ("d\0", "f")])]
        {
            gone.cut(&(0, Space::Rows, key.as_bytes().to_vec()));
            assert_eq!(all(&gone), left, "{key}");
        }
        gone.cut(&(0, Space::Keys, b"c".to_vec()));
        gone.cut(&(1, Space::Rows, b"c".to_vec()));
        assert_eq!(all(&gone).len(), 2);
        gone.forget(&(0, Space::Rows, b"c".to_vec()));
        assert_eq!(all(&gone), [("d\0", "f")]);
    }

    #[test]
    fn the_next_stretch_lies_around_the_beginning_or_behind() {
        let gone = with(&[("b", "d"), ("f", "h")]);
        let next = |low: &str, high: Option<&str>, reverse| {
            let span = Span { low: low.as_bytes().to_vec(), high: high.map(|high| high.as_bytes().to_vec()) };
            gone.next(0, Space::Rows, &span, reverse).map(|(low, _)| low[0])
        };
        for (low, high, first, last) in [
            ("a", None, Some(b'b'), Some(b'f')),
            ("c", Some("f"), Some(b'b'), Some(b'b')),
            ("d", Some("f"), None, None),
            ("d", Some("f\0"), Some(b'f'), Some(b'f')),
            ("h", None, None, None),
            ("a", Some("b"), None, None),
        ] {
            assert_eq!((next(low, high, false), next(low, high, true)), (first, last), "{low} {high:?}");
        }
        let everything = Span { low: Vec::new(), high: None };
        assert!([(0, Space::Keys), (1, Space::Rows)].into_iter().all(|(database, space)| {
            gone.next(database, space, &everything, false).is_none() && gone.next(database, space, &everything, true).is_none()
        }));
    }
}
