//! The measured stores, and the yardstick that behaves like one, behind one trait.
//!
//! Purpose: the harness is generic over [`Target`], so a measured call is a direct call without dynamic dispatch.
//! Values and pairs are handed to closures, so that a store need not copy what it can lend.
//!
//! Thread safety: all threads share a `Target`; each thread opens its own [`Session`] (which may hold read
//! transactions, buffers and handles). Invariant: a call returns when the operation is as durable as the target's
//! durability promises.

pub mod map;
pub mod store;

use std::error::Error as StdError;

/// A result of the benchmark.
pub type Result<T> = std::result::Result<T, Error>;

/// The errors of a measurement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store refused an operation.
    #[error("{store}: {source}")]
    Store {
        /// The store.
        store: String,
        /// The store's error.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// A value, key or order that was read differs from what was written.
    #[error("wrong data: {0}")]
    WrongData(String),
    /// The target has no such operation.
    #[error("{store} cannot do `{operation}`")]
    Unsupported {
        /// The store.
        store: String,
        /// The operation.
        operation: &'static str,
    },
    /// The request makes no sense.
    #[error("{0}")]
    Config(String),
    /// A measuring process failed.
    #[error("{0}")]
    Process(String),
    /// An access to a file or a process failed.
    #[error("{what}: {source}")]
    Io {
        /// What was attempted.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
}

impl Error {
    /// Wraps a store's error.
    pub fn store(store: &str, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Error::Store { store: store.into(), source: source.into() }
    }

    /// Wraps a system error.
    pub fn io(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Error::Io { what: what.into(), source: source.into() }
    }
}

/// A store under measurement.
pub trait Target: Sync {
    /// A thread's access to the store.
    type Session<'a>: Session
    where
        Self: 'a;

    /// The name in records, for example `hither-hash`.
    fn name(&self) -> &str;

    /// The settings that determine the meaning of a figure; printed with it.
    fn settings(&self) -> Vec<(String, String)>;

    /// Medium and durability for records, if they are the target's own, whatever was requested.
    fn own_medium(&self) -> Option<(&'static str, &'static str)> {
        None
    }

    /// Opens the calling thread's session.
    fn session(&self) -> Result<Self::Session<'_>>;

    /// True if its keys have an order, so that all of them can be scanned.
    fn is_ordered(&self) -> bool {
        false
    }

    /// Bytes of the medium that are now in use, if the target knows: segments with pairs, and open ones, in full.
    fn media_bytes(&self) -> Option<u64> {
        None
    }
}

/// One thread's access. Methods that a target lacks return [`Error::Unsupported`].
pub trait Session {
    /// Writes a pair.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Returns the result of `f` on the value, if there is one.
    fn get<R>(&mut self, key: &[u8], f: impl FnMut(&[u8]) -> R) -> Result<Option<R>>;

    /// Deletes a key; returns false if it was absent.
    fn delete(&mut self, key: &[u8]) -> Result<bool>;

    /// Reads a value, lets `f` build the new one in the buffer, and writes it, atomically for this key.
    fn read_modify_write(&mut self, key: &[u8], f: impl FnMut(Option<&[u8]>, &mut Vec<u8>)) -> Result<()>;

    /// Lends up to `limit` pairs from `from` on, in order; returns how many.
    fn scan(&mut self, from: &[u8], limit: usize, f: impl FnMut(&[u8], &[u8])) -> Result<usize>;

    /// Lends the values of several keys, in any order, each with the position of its key.
    fn multi_get(&mut self, keys: &[Vec<u8>], mut f: impl FnMut(usize, Option<&[u8]>)) -> Result<()> {
        for (i, key) in keys.iter().enumerate() {
            if self.get(key, |value| f(i, Some(value)))?.is_none() {
                f(i, None);
            }
        }
        Ok(())
    }

    /// Writes several pairs as one atomic batch.
    fn put_batch(&mut self, keys: &[Vec<u8>], values: &[Vec<u8>]) -> Result<()>;
}
