//! The interface for tests: it reports everything that the production path does to a medium.
//!
//! A store is reported just *before* it is performed. Another thread that has seen the stored value therefore reports
//! its own next action after it, so the order of reports respects causality. Flushes and fences are reported in the
//! program order of their thread.

/// Which rules the memory of a shadow pool follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Emulate {
    /// Persistent memory behind volatile caches: flush and fence are needed.
    Adr,
    /// Caches are in the persistence domain: only the fence is needed.
    Eadr,
    /// A mapped file: only a sync is needed.
    File,
}

/// How bytes were stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreKind {
    /// Through the caches, possibly torn at aligned 8-byte words.
    Plain,
    /// Around the caches: durable after a fence of the same thread, without a flush.
    Streaming,
}

/// The two moments of a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SyncPhase {
    /// The sync was called: stores before it are covered.
    Begin,
    /// The sync returned success.
    End,
    /// The sync returned an error: nothing is promised.
    Failed,
}

/// Observer of a pool. Offsets are bytes in the pool. Called from any thread.
pub trait Tracer: Send + Sync {
    /// The pool's content before the first event.
    fn attach(&self, _image: &[u8]) {}
    /// The pool grew to `len` bytes; the new bytes are durably zero.
    fn resize(&self, _len: u64) {}
    /// Bytes are being stored.
    fn store(&self, off: u64, bytes: &[u8], kind: StoreKind);
    /// The lines of a range are being written back.
    fn flush(&self, off: u64, len: usize);
    /// A fence of this thread.
    fn fence(&self);
    /// A sync of this thread.
    fn sync(&self, phase: SyncPhase);
    /// A note of the test, such as "operation 7 was acknowledged".
    fn mark(&self, _note: u64) {}
}
