//! A safe handle on RocksDB: owned options, errors as results, values lent to closures.
//!
//! Thread safety: RocksDB's `DB`, and options that are not changed, may be used by any number of threads. Iterators,
//! batches and pinned values stay inside one call here. Invariant: every pointer in [`Handle`] is valid until the
//! handle is dropped.

use std::ffi::{CStr, CString, c_char};
use std::path::Path;
use std::ptr::null_mut;

use super::ffi;

/// An open database with its options.
pub struct Handle {
    db: *mut ffi::Db,
    options: *mut ffi::Options,
    table: *mut ffi::BlockOptions,
    cache: *mut ffi::Cache,
    read: *mut ffi::ReadOptions,
    write: *mut ffi::WriteOptions,
}

// SAFETY: RocksDB documents `DB` as usable from any thread; the option objects are not changed after `open`.
unsafe impl Send for Handle {}
// SAFETY: as above: concurrent calls on one `DB` are allowed, and options are only read.
unsafe impl Sync for Handle {}

type Answer<T> = Result<T, String>;

/// Calls `f` with a place for an error message; returns the message as an error if there is one.
fn checked<T>(f: impl FnOnce(*mut *mut c_char) -> T) -> Answer<T> {
    let mut message: *mut c_char = null_mut();
    let result = f(&mut message);
    if message.is_null() {
        return Ok(result);
    }
    // SAFETY: RocksDB sets the place to a NUL-terminated string that the caller owns.
    let text = unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned();
    // SAFETY: the string was allocated by RocksDB, and is not used again.
    unsafe { ffi::rocksdb_free(message.cast()) };
    Err(text)
}

fn chars(bytes: &[u8]) -> *const c_char {
    bytes.as_ptr().cast()
}

/// The bytes at an address that RocksDB returned.
///
/// # Safety
/// `len` bytes at `at` are valid for `'a`; `at` may be anything if `len` is 0.
unsafe fn lent<'a>(at: *const c_char, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller guarantees the bytes.
    unsafe { std::slice::from_raw_parts(at.cast(), len) }
}

impl Handle {
    /// Opens a new database: no compression, an LRU block cache of `cache_bytes`, `sync` for every write or none.
    pub fn open(directory: &Path, threads: i32, cache_bytes: usize, sync: bool) -> Answer<Self> {
        let name = CString::new(directory.as_os_str().as_encoded_bytes()).map_err(|_| "the path holds a zero byte".to_string())?;
        // SAFETY: constructors without arguments, and setters on what they returned; the table factory copies its
        // options.
        let mut this = unsafe {
            let (options, table) = (ffi::rocksdb_options_create(), ffi::rocksdb_block_based_options_create());
            let cache = ffi::rocksdb_cache_create_lru(cache_bytes);
            let (read, write) = (ffi::rocksdb_readoptions_create(), ffi::rocksdb_writeoptions_create());
            ffi::rocksdb_options_set_create_if_missing(options, 1);
            ffi::rocksdb_options_increase_parallelism(options, threads);
            ffi::rocksdb_options_set_compression(options, 0);
            ffi::rocksdb_block_based_options_set_block_cache(table, cache);
            ffi::rocksdb_options_set_block_based_table_factory(options, table);
            ffi::rocksdb_writeoptions_set_sync(write, u8::from(sync));
            Self { db: null_mut(), options, table, cache, read, write }
        };
        // SAFETY: the options and the name are valid; RocksDB copies the name.
        this.db = checked(|error| unsafe { ffi::rocksdb_open(this.options, name.as_ptr(), error) })?;
        Ok(this)
    }

    /// Writes a pair.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Answer<()> {
        // SAFETY: the handle is valid; RocksDB copies key and value within the call.
        checked(|error| unsafe { ffi::rocksdb_put(self.db, self.write, chars(key), key.len(), chars(value), value.len(), error) })
    }

    /// Writes pairs as one batch.
    pub fn put_batch(&self, keys: &[Vec<u8>], values: &[Vec<u8>]) -> Answer<()> {
        // SAFETY: the batch is created, filled (it copies), written and destroyed here, once.
        unsafe {
            let batch = ffi::rocksdb_writebatch_create();
            for (key, value) in keys.iter().zip(values) {
                ffi::rocksdb_writebatch_put(batch, chars(key), key.len(), chars(value), value.len());
            }
            let result = checked(|error| ffi::rocksdb_write(self.db, self.write, batch, error));
            ffi::rocksdb_writebatch_destroy(batch);
            result
        }
    }

    /// Deletes a key, whether it exists or not.
    pub fn delete(&self, key: &[u8]) -> Answer<()> {
        // SAFETY: the handle is valid; the key is read within the call.
        checked(|error| unsafe { ffi::rocksdb_delete(self.db, self.write, chars(key), key.len(), error) })
    }

    /// Lends the value of a key to `f`; returns `None` if there is none.
    pub fn get<R>(&self, key: &[u8], f: impl FnOnce(&[u8]) -> R) -> Answer<Option<R>> {
        // SAFETY: the handle is valid; the key is read within the call.
        let pinned = checked(|error| unsafe { ffi::rocksdb_get_pinned(self.db, self.read, chars(key), key.len(), error) })?;
        if pinned.is_null() {
            return Ok(None);
        }
        let mut len = 0;
        // SAFETY: the slice is pinned until it is destroyed below; `f` cannot keep what it is lent.
        let result = f(unsafe { lent(ffi::rocksdb_pinnableslice_value(pinned, &mut len), len) });
        // SAFETY: destroyed once, after its last use.
        unsafe { ffi::rocksdb_pinnableslice_destroy(pinned) };
        Ok(Some(result))
    }

    /// Lends up to `limit` pairs from `from` on; returns how many.
    pub fn scan(&self, from: &[u8], limit: usize, mut f: impl FnMut(&[u8], &[u8])) -> Answer<usize> {
        // SAFETY: the iterator is created, used and destroyed here. Key and value are valid until it moves; they are
        // read only while it is valid, and `f` cannot keep them.
        unsafe {
            let iter = ffi::rocksdb_create_iterator(self.db, self.read);
            ffi::rocksdb_iter_seek(iter, chars(from), from.len());
            let mut seen = 0;
            while seen < limit && ffi::rocksdb_iter_valid(iter) != 0 {
                let (mut key_len, mut value_len) = (0, 0);
                let (key, value) = (ffi::rocksdb_iter_key(iter, &mut key_len), ffi::rocksdb_iter_value(iter, &mut value_len));
                f(lent(key, key_len), lent(value, value_len));
                seen += 1;
                ffi::rocksdb_iter_next(iter);
            }
            let result = checked(|error| ffi::rocksdb_iter_get_error(iter, error));
            ffi::rocksdb_iter_destroy(iter);
            result.map(|()| seen)
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: each object is destroyed once, the database (null only if it never opened) before its options.
        unsafe {
            if !self.db.is_null() {
                ffi::rocksdb_close(self.db);
            }
            ffi::rocksdb_readoptions_destroy(self.read);
            ffi::rocksdb_writeoptions_destroy(self.write);
            ffi::rocksdb_options_destroy(self.options);
            ffi::rocksdb_block_based_options_destroy(self.table);
            ffi::rocksdb_cache_destroy(self.cache);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_come_back_in_order_and_go() {
        let directory = std::env::temp_dir().join(format!("hither-rocks-{}", std::process::id()));
        let handle = Handle::open(&directory, 1, 8 << 20, false).expect("open");
        handle.put(b"b", b"2").expect("put");
        handle.put_batch(&[b"a".to_vec(), b"c".to_vec()], &[b"1".to_vec(), Vec::new()]).expect("batch");
        assert_eq!(handle.get(b"b", <[u8]>::to_vec).expect("get"), Some(b"2".to_vec()));
        let mut seen = Vec::new();
        assert_eq!(handle.scan(b"a", 10, |k, v| seen.push((k.to_vec(), v.to_vec()))).expect("scan"), 3);
        assert_eq!(seen[2], (b"c".to_vec(), Vec::new()));
        handle.delete(b"b").expect("delete");
        assert_eq!(handle.get(b"b", |_| ()).expect("get"), None);
        drop(handle);
        assert!(Handle::open(Path::new("/proc/nowhere"), 1, 1 << 20, false).is_err());
        let _ = std::fs::remove_dir_all(directory);
    }
}
