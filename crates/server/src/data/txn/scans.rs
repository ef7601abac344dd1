//! Scans over a keyspace and the transaction's own writes.
//!
//! A scan merges both. What it passes over because the transaction has deleted it, it notes in [`super::gone`], and
//! later scans begin anew behind it. So each delete is passed over about once, however many scans there are.

use super::gone::{LEAST, Span, end_of};
#[cfg(test)]
use super::steps;
use super::{Item, Place, Space, Txn};
use hither::{Keyspace, Result};
use std::ops::{Bound, ControlFlow};

/// Deleted entries and known stretches with nothing shown in between.
struct Run {
    low: Vec<u8>,
    high: Vec<u8>,
    deletes: usize,
    stretches: usize,
}

impl Run {
    /// Whether it is news that is worth to be noted.
    fn is_stretch(&self) -> bool {
        self.deletes >= LEAST || (self.stretches > 0 && self.deletes + self.stretches > 1)
    }
}

/// What a scan has shown so far.
struct Shown<F> {
    f: F,
    reverse: bool,
    broken: bool,
    /// What it has passed over since it last showed something.
    run: Option<Run>,
    /// The runs to be noted.
    found: Vec<Run>,
}

impl<F: FnMut(&[u8], Option<&[u8]>) -> ControlFlow<()>> Shown<F> {
    /// Shows an entry; `None`: it has expired.
    fn show(&mut self, key: &[u8], value: Option<&[u8]>) -> ControlFlow<()> {
        #[cfg(test)]
        steps::count();
        if value.is_some() {
            self.end_run();
        }
        let flow = (self.f)(key, value);
        self.broken = flow.is_break();
        flow
    }

    /// Shows what the transaction has written; `None`: deleted.
    fn own(&mut self, key: &[u8], item: Option<&Item>) -> ControlFlow<()> {
        if let Some(item) = item {
            return self.show(key, Some(&item.entry));
        }
        self.extend_run(key, [key, &[0]]).deletes += 1;
        ControlFlow::Continue(())
    }

    fn skip(&mut self, low: &[u8], high: &[u8]) {
        self.extend_run(low, [high, &[]]).stretches += 1;
    }

    /// The run, which now reaches from `low` or to `high`, according to the direction.
    fn extend_run(&mut self, low: &[u8], high: [&[u8]; 2]) -> &mut Run {
        #[cfg(test)]
        steps::count();
        if let Some(run) = &mut self.run {
            let end = if self.reverse { &mut run.low } else { &mut run.high };
            end.clear();
            let parts = if self.reverse { [low, &[]] } else { high };
            parts.iter().for_each(|part| end.extend_from_slice(part));
        }
        self.run.get_or_insert_with(|| Run { low: low.to_vec(), high: high.concat(), deletes: 0, stretches: 0 })
    }

    fn end_run(&mut self) {
        self.found.extend(self.run.take().filter(Run::is_stretch));
    }
}

/// Calls `f` for what has not expired.
fn there(mut f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> impl FnMut(&[u8], Option<&[u8]>) -> ControlFlow<()> {
    move |key, value| value.map_or(ControlFlow::Continue(()), |value| f(key, value))
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
        self.scan(Space::Rows, from, to, reverse, there(f))
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
        self.scan(Space::Keys, from, to, reverse, there(f))
    }

    /// As [`Txn::keys`] in order, but also calls `f(key, None)` for keys that have expired and were not swept yet.
    pub fn keys_and_expired(
        &mut self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        f: impl FnMut(&[u8], Option<&[u8]>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.scan(Space::Keys, from, to, false, f)
    }

    fn scan(
        &mut self,
        space: Space,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        reverse: bool,
        mut f: impl FnMut(&[u8], Option<&[u8]>) -> ControlFlow<()>,
    ) -> Result<()> {
        if self.writes.is_empty() {
            let show = |key: &[u8], there: Option<(&[u8], _)>| f(key, there.map(|(value, _)| value));
            let rests_on = self.committed_part(space).scan_deferred_with_expired(from, to, reverse, show)?;
            self.note(rests_on);
            return Ok(());
        }
        let mut shown = Shown { f, reverse, broken: false, run: None, found: Vec::new() };
        let rests_on = self.scan_merged(space, Span::between(from, to), &mut shown);
        shown.end_run();
        let (database, found) = (self.database.index, shown.found);
        found.into_iter().for_each(|run| self.gone.add(database, space, run.low, run.high));
        self.note(rests_on?);
        Ok(())
    }

    fn committed_part(&self, space: Space) -> &Keyspace {
        if space == Space::Keys { &self.database.keys } else { &self.database.rows }
    }

    /// Scans what lies between the known stretches of `left`. Returns the version that it rests on.
    fn scan_merged(
        &self,
        space: Space,
        mut left: Span,
        shown: &mut Shown<impl FnMut(&[u8], Option<&[u8]>) -> ControlFlow<()>>,
    ) -> Result<u64> {
        let mut rests_on = 0;
        while !shown.broken && !left.is_empty() {
            let Some((low, high)) = self.gone.next(self.database.index, space, &left, shown.reverse) else {
                return Ok(self.scan_part(space, &left, shown)?.max(rests_on));
            };
            let part = left.split_at(low, high, shown.reverse);
            if !part.is_empty() {
                rests_on = self.scan_part(space, &part, shown)?.max(rests_on);
            }
            if !shown.broken {
                shown.skip(low, high);
            }
        }
        Ok(rests_on)
    }

    /// Merges what is committed with the transaction's writes.
    fn scan_part(&self, space: Space, part: &Span, shown: &mut Shown<impl FnMut(&[u8], Option<&[u8]>) -> ControlFlow<()>>) -> Result<u64> {
        let reverse = shown.reverse;
        let mut own = self.own_writes(space, part, reverse).peekable();
        // Between two halves of a stretch.
        if let Some(key) = part.only_key()
            && let Some((_, item)) = own.peek()
        {
            let _ = shown.own(key, *item);
            return Ok(0);
        }
        let (from, to) = (Bound::Included(part.low.as_slice()), part.high.as_deref().map_or(Bound::Unbounded, Bound::Excluded));
        let rests_on = self.committed_part(space).scan_deferred_with_expired(from, to, reverse, |key, there| {
            let is_before = |own: &[u8]| if reverse { own > key } else { own < key };
            while let Some((place, item)) = own.next_if(|(place, _)| is_before(place)) {
                shown.own(place, item)?;
            }
            match own.next_if(|(place, _)| *place == key) {
                Some((_, item)) => shown.own(key, item),
                None => shown.show(key, there.map(|(value, _)| value)),
            }
        })?;
        if !shown.broken {
            let _ = own.try_for_each(|(place, item)| shown.own(place, item));
        }
        Ok(rests_on)
    }

    /// The transaction's writes in a part, in the order of a scan.
    fn own_writes(&self, space: Space, part: &Span, reverse: bool) -> impl Iterator<Item = (&[u8], Option<&Item>)> {
        let index = self.database.index;
        let low: Place = (index, space, part.low.clone());
        let high = part.high.as_ref().map_or_else(|| end_of(index, space), |high| (index, space, high.clone()));
        let mut own = self.writes.range(low..high);
        std::iter::from_fn(move || {
            let ((.., key), item) = if reverse { own.next_back()? } else { own.next()? };
            Some((key.as_slice(), item.as_ref()))
        })
    }
}
