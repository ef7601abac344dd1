//! A checkpoint store for tests that remembers which checkpoint a crash at each position of a recording would leave.
//!
//! Publishing and removing are atomic and durable, as the production store promises. Both happen between two steps of
//! the recording. A crash exactly there may come after the change ([`Checkpoints::at`]) or before it
//! ([`Checkpoints::before`]).

use crate::images::Recorder;
use hither_engine::{CheckpointDraft, CheckpointImage, CheckpointStore};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// A checkpoint's bytes, if there is one.
pub type Kept = Option<Arc<Vec<u8>>>;

/// A place for checkpoints that remembers every one it held, and since which position.
#[derive(Clone)]
pub struct Checkpoints {
    recorder: Option<Arc<Recorder>>,
    history: Arc<Mutex<Vec<(usize, Kept)>>>,
}

impl Checkpoints {
    /// A place that holds `first`. With a `recorder`, changes carry its positions; without one, all carry position 0.
    pub fn new(first: Kept, recorder: Option<Arc<Recorder>>) -> Checkpoints {
        Checkpoints { recorder, history: Arc::new(Mutex::new(vec![(0, first)])) }
    }

    fn with<R>(&self, f: impl FnOnce(&mut Vec<(usize, Kept)>) -> R) -> R {
        f(&mut self.history.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, kept: Kept) {
        let position = self.recorder.as_ref().map_or(0, |recorder| recorder.position());
        self.with(|history| history.push((position, kept)));
    }

    /// The checkpoint that is there now.
    pub fn latest(&self) -> Kept {
        self.at(usize::MAX)
    }

    /// The checkpoint that is there after `position` steps, including a change made right behind the last of them.
    pub fn at(&self, position: usize) -> Kept {
        self.with(|history| history.iter().rev().find(|(from, _)| *from <= position).and_then(|(_, kept)| kept.clone()))
    }

    /// The checkpoint that is there after `position` steps if a change made right behind the last of them has not
    /// happened yet.
    pub fn before(&self, position: usize) -> Kept {
        self.at(position.saturating_sub(1))
    }
}

impl CheckpointStore for Checkpoints {
    fn open(&self) -> io::Result<Option<Box<dyn CheckpointImage>>> {
        Ok(self.latest().map(|bytes| Box::new(bytes) as Box<dyn CheckpointImage>))
    }

    fn draft(&self) -> io::Result<Box<dyn CheckpointDraft>> {
        Ok(Box::new(Draft { place: self.clone(), bytes: Vec::new() }))
    }

    fn remove(&self) -> io::Result<()> {
        if self.latest().is_some() {
            self.set(None);
        }
        Ok(())
    }
}

struct Draft {
    place: Checkpoints,
    bytes: Vec<u8>,
}

impl CheckpointDraft for Draft {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn harden(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn publish(self: Box<Self>) -> io::Result<()> {
        self.place.set(Some(Arc::new(self.bytes)));
        Ok(())
    }
}
