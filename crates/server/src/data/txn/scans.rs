//! Scans over a keyspace and the transaction's own writes.

use super::{Item, Place, Space, Txn};
use hither::Result;
use std::cell::Cell;
use std::ops::{Bound, ControlFlow};

/// The first rows of a scan, which the transaction has all deleted: later scans from there begin behind them, or many commands that each take the first
/// member would pass over all that were taken before. Rows that others add meanwhile change their collection's head, so the commit fails.
pub(super) struct Drained {
    database: u16,
    /// Where the scan begins.
    edge: Bound<Vec<u8>>,
    reverse: bool,
    /// The last of them.
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

impl Txn {
    /// Calls `f(row, value)` for the member rows between two bounds in order, its own writes included, until it breaks.
    pub fn rows(
        &mut self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        reverse: bool,
        f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let (database, edge) = (self.database.index, if reverse { to } else { from });
        let drained = self.drained.take();
        let known = drained.as_ref().filter(|drained| drained.begins_at(database, edge, reverse));
        let behind = known.map_or(edge, |drained| Bound::Excluded(drained.last.as_slice()));
        let (from, to) = if reverse { (from, behind) } else { (behind, to) };
        let passed = self.scan(Space::Rows, from, to, reverse, f)?;
        self.drained = match passed {
            Some(last) => Some(Drained { database, edge: edge.map(<[u8]>::to_vec), reverse, last }),
            None => drained,
        };
        Ok(())
    }

    /// Calls `f(key, entry)` for the keys between two bounds in order, its own writes included, until it breaks. Keys that others add meanwhile may
    /// be seen or not, in MULTI too.
    pub fn keys(
        &mut self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        reverse: bool,
        f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.scan(Space::Keys, from, to, reverse, f).map(drop)
    }

    /// A row is going to be there.
    pub(super) fn refill(&mut self, row: &[u8]) {
        let database = self.database.index;
        self.drained.take_if(|drained| drained.covers(database, row));
    }

    /// Returns the last of what it has passed over before the first call, because the transaction has deleted it.
    fn scan(
        &mut self,
        space: Space,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        reverse: bool,
        mut f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<Option<Vec<u8>>> {
        let keyspace = if space == Space::Keys { &self.database.keys } else { &self.database.rows };
        let mut own = self.own_writes(space, from, to, reverse).peekable();
        let before = |own: &[u8], key: &[u8]| if reverse { own > key } else { own < key };
        let (mut broken, shown, mut passed) = (false, Cell::new(false), Vec::new());
        let mut show = |key: &[u8], value: &[u8]| {
            shown.set(true);
            f(key, value)
        };
        let rests_on = keyspace.scan_deferred(from, to, reverse, |key, value, _| {
            while let Some((place, item)) = own.next_if(|(place, _)| before(place, key)) {
                if let Some(item) = item
                    && show(place, &item.entry).is_break()
                {
                    broken = true;
                    return ControlFlow::Break(());
                }
            }
            let flow = match own.next_if(|(place, _)| *place == key) {
                Some((_, Some(item))) => show(key, &item.entry),
                Some((_, None)) => {
                    if !shown.get() {
                        passed.clear();
                        passed.extend_from_slice(key);
                    }
                    ControlFlow::Continue(())
                }
                None => show(key, value),
            };
            broken |= flow.is_break();
            flow
        })?;
        if broken {
            drop(own);
        } else {
            let _ = own.filter_map(|(place, item)| item.map(|item| (place, item))).try_for_each(|(place, item)| show(place, &item.entry));
        }
        self.note(rests_on);
        Ok((!passed.is_empty()).then_some(passed))
    }

    /// Its writes between two bounds, in the order of a scan.
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
