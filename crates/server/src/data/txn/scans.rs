//! Scans over a keyspace and the transaction's own writes.

use super::{Item, Place, Space, Txn};
use hither::Result;
use std::ops::{Bound, ControlFlow};

/// Number of scans whose deleted first rows are remembered: both ends of some sets from which a transaction takes in
/// turn. The most recently used are kept.
const MOST_DRAINED: usize = 16;

/// The first rows of a scan, all of which the transaction has deleted. Later scans from the same place begin behind
/// them. Otherwise each of many commands that take the first member would pass over all that were taken before. If
/// other clients add such rows meanwhile, the head of their collection changes, so the commit fails.
pub(super) struct Drained {
    database: u16,
    /// Where the scan begins.
    edge: Bound<Vec<u8>>,
    reverse: bool,
    /// The last of these rows.
    last: Vec<u8>,
}

impl Drained {
    fn begins_at(&self, database: u16, edge: Bound<&[u8]>, reverse: bool) -> bool {
        (self.database, self.reverse) == (database, reverse) && self.edge.as_ref().map(Vec::as_slice) == edge
    }

    fn covers(&self, database: u16, row: &[u8]) -> bool {
        let (Bound::Included(edge) | Bound::Excluded(edge)) = &self.edge else { return true };
        let (low, high) = if self.reverse { (&self.last, edge) } else { (edge, &self.last) };
        self.database == database && low.as_slice() <= row && row <= high.as_slice()
    }
}

/// What a scan has shown so far.
struct Shown<F> {
    f: F,
    any: bool,
    broken: bool,
    /// The last deleted row before the first one shown.
    passed: Vec<u8>,
}

impl<F: FnMut(&[u8], &[u8]) -> ControlFlow<()>> Shown<F> {
    fn show(&mut self, key: &[u8], value: &[u8]) -> ControlFlow<()> {
        self.any = true;
        let flow = (self.f)(key, value);
        self.broken = flow.is_break();
        flow
    }

    /// Shows what the transaction has written; `None`: deleted.
    fn own(&mut self, key: &[u8], item: Option<&Item>) -> ControlFlow<()> {
        if let Some(item) = item {
            return self.show(key, &item.entry);
        }
        if !self.any {
            self.passed.clear();
            self.passed.extend_from_slice(key);
        }
        ControlFlow::Continue(())
    }
}

impl Txn {
    /// Calls `f(row, value)` for the member rows between two bounds in order, including the transaction's own writes,
    /// until it breaks.
    pub fn rows(
        &mut self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        reverse: bool,
        f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let (database, edge) = (self.database.index, if reverse { to } else { from });
        let known = self.drained.iter().position(|drained| drained.begins_at(database, edge, reverse));
        let known = known.map(|at| self.drained.remove(at));
        let behind = known.as_ref().map_or(edge, |drained| Bound::Excluded(drained.last.as_slice()));
        let (from, to) = if reverse { (from, behind) } else { (behind, to) };
        let passed = self.scan(Space::Rows, from, to, reverse, f)?;
        let drained = passed.map(|last| Drained { database, edge: edge.map(<[u8]>::to_vec), reverse, last });
        self.drained.extend(drained.or(known));
        if self.drained.len() > MOST_DRAINED {
            self.drained.remove(0);
        }
        Ok(())
    }

    /// Calls `f(key, entry)` for the keys between two bounds in order, including the transaction's own writes, until it
    /// breaks. Keys that other clients add meanwhile may or may not be seen, in MULTI too.
    pub fn keys(
        &mut self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        reverse: bool,
        f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.scan(Space::Keys, from, to, reverse, f).map(drop)
    }

    /// Forgets deleted rows that a row to be written would be among.
    pub(super) fn refill(&mut self, row: &[u8]) {
        let database = self.database.index;
        self.drained.retain(|drained| !drained.covers(database, row));
    }

    /// Returns the last row that it passed over before the first call, because the transaction has deleted it.
    fn scan(
        &mut self,
        space: Space,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        reverse: bool,
        f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<Option<Vec<u8>>> {
        let keyspace = if space == Space::Keys { &self.database.keys } else { &self.database.rows };
        let mut own = self.own_writes(space, from, to, reverse).peekable();
        let mut shown = Shown { f, any: false, broken: false, passed: Vec::new() };
        let rests_on = keyspace.scan_deferred(from, to, reverse, |key, value, _| {
            let is_before = |own: &[u8]| if reverse { own > key } else { own < key };
            while let Some((place, item)) = own.next_if(|(place, _)| is_before(place)) {
                shown.own(place, item)?;
            }
            match own.next_if(|(place, _)| *place == key) {
                Some((_, item)) => shown.own(key, item),
                None => shown.show(key, value),
            }
        })?;
        if !shown.broken {
            let _ = own.by_ref().try_for_each(|(place, item)| shown.own(place, item));
        }
        let passed = shown.passed;
        drop(own);
        self.note(rests_on);
        Ok((!passed.is_empty()).then_some(passed))
    }

    /// The transaction's writes between two bounds, in the order of a scan.
    fn own_writes(
        &self,
        space: Space,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        reverse: bool,
    ) -> impl Iterator<Item = (&[u8], Option<&Item>)> {
        use Bound::{Excluded, Included, Unbounded};
        let index = self.database.index;
        let place = |key: &[u8]| -> Place { (index, space, key.to_vec()) };
        let is_empty = match (from, to) {
            (Included(from), Included(to)) => from > to,
            (Included(from) | Excluded(from), Included(to) | Excluded(to)) => from >= to,
            _ => false,
        };
        let mut own = (!is_empty && !self.writes.is_empty()).then(|| {
            let lower = if from == Unbounded { Included(place(b"")) } else { from.map(place) };
            let upper = match (to, space) {
                (Unbounded, Space::Rows) => Excluded((index, Space::Keys, Vec::new())),
                (Unbounded, Space::Keys) => Excluded((index + 1, Space::Rows, Vec::new())),
                (to, _) => to.map(place),
            };
            self.writes.range((lower, upper))
        });
        std::iter::from_fn(move || {
            let own = own.as_mut()?;
            let ((.., key), item) = if reverse { own.next_back()? } else { own.next()? };
            Some((key.as_slice(), item.as_ref()))
        })
    }
}
