//! Read-modify-write.

use crate::keyspace::Keyspace;
use hither_engine::{Error, Found, Result, WriteOptions};

/// What an update makes of a key; see [`Keyspace::update_with`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// The key stays as it is: nothing is written.
    Keep,
    /// The key gets this value. Its expiry stays; a key that was absent gets none.
    Put(Vec<u8>),
    /// The key gets this value, and expires at this time in milliseconds since 1970; 0: never.
    PutUntil(Vec<u8>, u64),
    /// The key is removed.
    Delete,
}

impl Keyspace {
    /// Read-modify-write: replaces the value with what `f` makes of it (`None` removes the key) and returns the new
    /// value. The key's expiry stays. `f` runs without any lock held, and may be called several times if other writers
    /// interfere.
    ///
    /// The write, and all data that it rests on, is durable at the store's level when this returns. The value given to
    /// `f` may not be durable yet, so that updates of one key by many threads share syncs.
    ///
    /// To leave a key as it is, or to fail, use [`Keyspace::update_with`].
    ///
    /// # Errors
    /// Those of [writes](crate#errors).
    pub fn update(&self, key: &[u8], mut f: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>) -> Result<Option<Vec<u8>>> {
        let change =
            self.update_with(key, |current| Ok::<_, Error>(f(current.map(|(value, _)| value)).map_or(Change::Delete, Change::Put)))?;
        Ok(match change {
            Change::Put(value) => Some(value),
            _ => None,
        })
    }

    /// Read-modify-write: calls `f` with the value of `key`, its version and expiry (`None` if the key is absent), makes
    /// the change that it returns, and returns that change. `f` runs without any lock held, and may be called several
    /// times if other writers interfere. If it fails, nothing is written.
    ///
    /// The change, and all data that it rests on, is durable at the store's level when this returns, also with
    /// [`Change::Keep`]. The value given to `f` may not be durable yet; so a failure of `f` may rest on a write that a
    /// crash undoes.
    ///
    /// ```
    /// # use hither::{Change, Error};
    /// # let db = hither::Db::builder().in_memory().open()?;
    /// let stock = db.keyspace("stock")?;
    /// stock.put(b"apples", &[1])?;
    /// let take_one = |current: Option<(&[u8], _)>| match current {
    ///     Some((&[left], _)) if left > 0 => Ok(Change::Put(vec![left - 1])),
    ///     _ => Ok::<_, Error>(Change::Keep),
    /// };
    /// assert_eq!(stock.update_with(b"apples", take_one)?, Change::Put(vec![0]));
    /// assert_eq!(stock.update_with(b"apples", take_one)?, Change::Keep);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of `f` and of [writes](crate#errors).
    pub fn update_with<E: From<Error>>(
        &self,
        key: &[u8],
        mut f: impl FnMut(Option<(&[u8], Found)>) -> Result<Change, E>,
    ) -> Result<Change, E> {
        loop {
            // Neither the value found nor a lost race needs a wait: the write has a later version than what was found,
            // or reports what it rests on itself.
            let (current, seen) = self.peek_with(key, |value, found| (value.to_vec(), found))?;
            let found = current.as_ref().map(|(_, found)| *found);
            let change = f(current.as_ref().map(|(value, found)| (value.as_slice(), *found)))?;
            let (value, expires_at_ms) = match &change {
                Change::Keep => {
                    self.store.wait_until_durable(seen)?;
                    return Ok(change);
                }
                Change::Put(value) => (Some(value), found.map_or(0, |found| found.expires_at_ms)),
                Change::PutUntil(value, at_ms) => (Some(value), *at_ms),
                Change::Delete => (None, 0),
            };
            let options = WriteOptions::new().expires_at_ms(expires_at_ms);
            let done = self.write_if_deferred(key, value.map(Vec::as_slice), found.map(|found| found.version), &options)?;
            if done.applied {
                self.store.wait_until_durable(done.rests_on)?;
                return Ok(change);
            }
        }
    }
}
