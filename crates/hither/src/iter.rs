//! Iterators over pairs, from both ends.

use hither_engine::{Direction, Error, KeyspaceHandle, Result, ScanRange, Snapshot, Store};
use std::collections::VecDeque;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

/// Pairs fetched at once.
const GROUP: usize = 64;

type Pair = (Vec<u8>, Vec<u8>);

/// Where an iterator reads.
pub(crate) struct Source {
    pub store: Arc<Store>,
    pub handle: KeyspaceHandle,
    pub snapshot: Option<Arc<Snapshot>>,
}

impl Source {
    fn fetch(&self, range: &ScanRange<'_>) -> Result<VecDeque<Pair>> {
        let mut pairs = VecDeque::with_capacity(GROUP);
        let collect = |key: &[u8], value: &[u8]| {
            pairs.push_back((key.to_vec(), value.to_vec()));
            if pairs.len() == GROUP { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        match &self.snapshot {
            Some(snapshot) => snapshot.scan(&self.handle, range, collect)?,
            None => self.store.scan(&self.handle, range, collect)?,
        }
        Ok(pairs)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match &self.snapshot {
            Some(snapshot) => snapshot.get_with(&self.handle, key, <[u8]>::to_vec),
            None => self.store.get_with(&self.handle, key, <[u8]>::to_vec),
        }
    }
}

enum State {
    /// What lies between the bounds has not been fetched yet; the queues hold what was fetched from either end.
    Ordered { from: Bound<Vec<u8>>, to: Bound<Vec<u8>>, front: VecDeque<Pair>, back: VecDeque<Pair>, exhausted: bool },
    /// Keys still to be looked up; `None` until they are collected.
    Hash(Option<VecDeque<Vec<u8>>>),
    /// What is still to be told, and then nothing.
    Failed(Option<Error>),
}

/// An iterator over key–value pairs, from both ends. Fetches groups of pairs; after an error it ends.
pub struct Iter {
    source: Source,
    state: State,
}

impl Iter {
    pub(crate) fn ordered(source: Source, from: Bound<Vec<u8>>, to: Bound<Vec<u8>>) -> Iter {
        Iter { source, state: State::Ordered { from, to, front: VecDeque::new(), back: VecDeque::new(), exhausted: false } }
    }

    pub(crate) fn hash(source: Source) -> Iter {
        Iter { source, state: State::Hash(None) }
    }

    /// Gives this error, and ends.
    pub(crate) fn failed(source: Source, error: Error) -> Iter {
        Iter { source, state: State::Failed(Some(error)) }
    }

    fn step(&mut self, direction: Direction) -> Result<Option<Pair>> {
        match &mut self.state {
            State::Ordered { from, to, front, back, exhausted } => {
                let (near, far) = if direction == Direction::Forward { (&mut *front, &mut *back) } else { (&mut *back, &mut *front) };
                if near.is_empty() && !*exhausted {
                    *near = self.source.fetch(&ScanRange { from: borrowed(from), to: borrowed(to), direction, expect: usize::MAX })?;
                    *exhausted = near.len() < GROUP;
                    if let Some((key, _)) = near.back() {
                        *(if direction == Direction::Forward { from } else { to }) = Bound::Excluded(key.clone());
                    }
                }
                // What the other end fetched lies beyond: its last pair is the next one from here.
                Ok(near.pop_front().or_else(|| far.pop_back()))
            }
            State::Hash(keys) => {
                let keys = match keys {
                    Some(keys) => keys,
                    None => keys.insert(collect_keys(&self.source)?),
                };
                while let Some(key) = if direction == Direction::Forward { keys.pop_front() } else { keys.pop_back() } {
                    // Keys deleted or expired since are passed over.
                    if let Some(value) = self.source.get(&key)? {
                        return Ok(Some((key, value)));
                    }
                }
                Ok(None)
            }
            State::Failed(error) => error.take().map_or(Ok(None), Err),
        }
    }

    fn advance(&mut self, direction: Direction) -> Option<Result<Pair>> {
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

fn borrowed(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

impl Iterator for Iter {
    type Item = Result<Pair>;
    fn next(&mut self) -> Option<Self::Item> {
        self.advance(Direction::Forward)
    }
}

impl DoubleEndedIterator for Iter {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.advance(Direction::Backward)
    }
}
