//! The used part of RocksDB's C interface (`rocksdb/c.h`), as declared by version 7.8.

use std::ffi::{c_char, c_int, c_uchar};

macro_rules! opaque {
    ($($name:ident),*) => { $(
        #[doc = "A type of RocksDB that is known by its address only."]
        #[repr(C)]
        pub struct $name {
            bytes: [u8; 0],
        }
    )* };
}

opaque!(Db, Options, BlockOptions, Cache, ReadOptions, WriteOptions, WriteBatch, Iter, Pinned);

unsafe extern "C" {
    pub fn rocksdb_options_create() -> *mut Options;
    pub fn rocksdb_options_destroy(options: *mut Options);
    pub fn rocksdb_options_set_create_if_missing(options: *mut Options, on: c_uchar);
    pub fn rocksdb_options_increase_parallelism(options: *mut Options, threads: c_int);
    pub fn rocksdb_options_set_compression(options: *mut Options, kind: c_int);
    pub fn rocksdb_options_set_block_based_table_factory(options: *mut Options, table: *mut BlockOptions);
    pub fn rocksdb_block_based_options_create() -> *mut BlockOptions;
    pub fn rocksdb_block_based_options_destroy(table: *mut BlockOptions);
    pub fn rocksdb_block_based_options_set_block_cache(table: *mut BlockOptions, cache: *mut Cache);
    pub fn rocksdb_cache_create_lru(capacity: usize) -> *mut Cache;
    pub fn rocksdb_cache_destroy(cache: *mut Cache);
    pub fn rocksdb_open(options: *const Options, name: *const c_char, error: *mut *mut c_char) -> *mut Db;
    pub fn rocksdb_close(db: *mut Db);
    pub fn rocksdb_free(memory: *mut std::ffi::c_void);
    pub fn rocksdb_readoptions_create() -> *mut ReadOptions;
    pub fn rocksdb_readoptions_destroy(options: *mut ReadOptions);
    pub fn rocksdb_writeoptions_create() -> *mut WriteOptions;
    pub fn rocksdb_writeoptions_destroy(options: *mut WriteOptions);
    pub fn rocksdb_writeoptions_set_sync(options: *mut WriteOptions, on: c_uchar);
    #[rustfmt::skip]
    pub fn rocksdb_put(
        db: *mut Db,
        options: *const WriteOptions,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
        error: *mut *mut c_char,
    );
    pub fn rocksdb_delete(db: *mut Db, options: *const WriteOptions, key: *const c_char, key_len: usize, error: *mut *mut c_char);
    #[rustfmt::skip]
    pub fn rocksdb_get_pinned(
        db: *mut Db,
        options: *const ReadOptions,
        key: *const c_char,
        key_len: usize,
        error: *mut *mut c_char,
    ) -> *mut Pinned;
    pub fn rocksdb_pinnableslice_value(pinned: *const Pinned, len: *mut usize) -> *const c_char;
    pub fn rocksdb_pinnableslice_destroy(pinned: *mut Pinned);
    pub fn rocksdb_writebatch_create() -> *mut WriteBatch;
    pub fn rocksdb_writebatch_destroy(batch: *mut WriteBatch);
    pub fn rocksdb_writebatch_put(batch: *mut WriteBatch, key: *const c_char, key_len: usize, value: *const c_char, value_len: usize);
    pub fn rocksdb_write(db: *mut Db, options: *const WriteOptions, batch: *mut WriteBatch, error: *mut *mut c_char);
    pub fn rocksdb_create_iterator(db: *mut Db, options: *const ReadOptions) -> *mut Iter;
    pub fn rocksdb_iter_destroy(iter: *mut Iter);
    pub fn rocksdb_iter_valid(iter: *const Iter) -> c_uchar;
    pub fn rocksdb_iter_seek(iter: *mut Iter, key: *const c_char, key_len: usize);
    pub fn rocksdb_iter_next(iter: *mut Iter);
    pub fn rocksdb_iter_key(iter: *const Iter, len: *mut usize) -> *const c_char;
    pub fn rocksdb_iter_value(iter: *const Iter, len: *mut usize) -> *const c_char;
    pub fn rocksdb_iter_get_error(iter: *const Iter, error: *mut *mut c_char);
}
