//! Lets an index read keys from the log.
//!
//! Thread safety: use a resolver only under an epoch pin, which keeps the entries readable. Crash: nothing here is on
//! media.

use hither_index::{Hasher, Ref, Resolver};
use hither_log::Log;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// An entry's key ends within so many bytes.
const MOST_TO_THE_KEY: u64 = 66 << 10;

/// The log as an index sees it.
#[derive(Clone, Copy)]
pub(crate) struct LogResolver<'a> {
    pub log: &'a Log,
    pub hasher: Hasher,
}

impl Resolver for LogResolver<'_> {
    #[inline(always)]
    fn prefetch(&self, reference: Ref) {
        self.log.prefetch_key(reference.0);
    }

    #[inline(always)]
    fn key(&self, reference: Ref) -> &[u8] {
        self.log.key(reference.0)
    }

    #[inline(always)]
    fn matches(&self, reference: Ref, key: &[u8]) -> bool {
        // A caller that asks an index for a key mostly wants its value, too.
        self.log.prefetch_rest(reference.0);
        self.log.key_matches(reference.0, key)
    }

    #[inline(always)]
    fn hash(&self, reference: Ref) -> u64 {
        self.hasher.hash(self.log.key(reference.0))
    }

    #[inline(always)]
    fn doubts(&self) -> bool {
        self.log.has_unverified()
    }

    #[inline(always)]
    fn is_sound(&self, reference: Ref) -> bool {
        !self.log.has_unverified() || self.log.verify_entry(reference.0).is_ok()
    }
}

/// The log for an index that is built from a checkpoint. Entries that nobody has read are not trusted. A damaged one is
/// remembered, because it makes the index void.
pub(crate) struct Wary<'a> {
    resolver: LogResolver<'a>,
    /// Whether there are entries that nobody has read.
    pub doubts: bool,
    damaged: &'a AtomicU64,
    /// The entry that was last found whole: lookups of neighbours ask for the same one.
    whole: AtomicU64,
}

impl<'a> Wary<'a> {
    /// `damaged` receives the reference of a damaged entry, if one is met.
    pub fn new(resolver: LogResolver<'a>, doubts: bool, damaged: &'a AtomicU64) -> Wary<'a> {
        Wary { resolver, doubts, damaged, whole: AtomicU64::new(0) }
    }

    /// Checks that the pages of an unread entry can be read. If one cannot, nobody knows whose entry it is.
    #[inline(always)]
    fn look_before(&self, reference: Ref, most: u64) {
        if self.doubts && !self.resolver.log.look_before(reference.0, most) {
            self.damaged.store(reference.0, Relaxed);
        }
    }

    #[inline(never)]
    fn look_closely(&self, reference: Ref) -> bool {
        self.look_before(reference, u64::MAX);
        let is_whole = self.resolver.log.verified_entry(reference.0).is_some();
        if is_whole { &self.whole } else { self.damaged }.store(reference.0, Relaxed);
        is_whole
    }
}

impl Resolver for Wary<'_> {
    #[inline(always)]
    fn prefetch(&self, reference: Ref) {
        self.resolver.prefetch(reference);
    }

    #[inline(always)]
    fn key(&self, reference: Ref) -> &[u8] {
        self.look_before(reference, MOST_TO_THE_KEY);
        self.resolver.key(reference)
    }

    #[inline(always)]
    fn matches(&self, reference: Ref, key: &[u8]) -> bool {
        self.look_before(reference, MOST_TO_THE_KEY);
        self.resolver.matches(reference, key) && self.is_sound(reference)
    }

    #[inline(always)]
    fn hash(&self, reference: Ref) -> u64 {
        self.look_before(reference, MOST_TO_THE_KEY);
        self.resolver.hash(reference)
    }

    #[inline(always)]
    fn doubts(&self) -> bool {
        self.doubts
    }

    /// Remembers a damaged entry.
    #[inline(always)]
    fn is_sound(&self, reference: Ref) -> bool {
        !self.doubts || self.whole.load(Relaxed) == reference.0 || self.look_closely(reference)
    }
}

/// The log as [`LogResolver`] shows it, except that a damaged entry matches every key that the index compares with it:
/// nobody knows what its key was.
#[derive(Clone, Copy)]
pub(crate) struct Doubting<'a>(pub LogResolver<'a>);

impl Resolver for Doubting<'_> {
    fn prefetch(&self, reference: Ref) {
        self.0.prefetch(reference);
    }

    fn key(&self, reference: Ref) -> &[u8] {
        self.0.key(reference)
    }

    fn matches(&self, reference: Ref, key: &[u8]) -> bool {
        self.0.matches(reference, key) || !self.is_sound(reference)
    }

    fn hash(&self, reference: Ref) -> u64 {
        self.0.hash(reference)
    }

    fn is_sound(&self, reference: Ref) -> bool {
        self.0.log.verify_entry(reference.0).is_ok()
    }
}

/// The log as [`LogResolver`] shows it to the verification in the background: what is not verified yet is checked before
/// it is read, since nobody has asked for it.
#[derive(Clone, Copy)]
pub(crate) struct Looking<'a> {
    pub resolver: LogResolver<'a>,
    /// An entry of the segment that is being verified: all of that was checked.
    pub checked: u64,
}

impl Looking<'_> {
    fn look_before(&self, reference: Ref, most: u64) {
        let log = self.resolver.log;
        if !log.is_same_segment(reference.0, self.checked) {
            log.look_at_unverified_entry(reference.0, most);
        }
    }
}

impl Resolver for Looking<'_> {
    fn prefetch(&self, reference: Ref) {
        self.resolver.prefetch(reference);
    }

    fn key(&self, reference: Ref) -> &[u8] {
        self.look_before(reference, MOST_TO_THE_KEY);
        self.resolver.key(reference)
    }

    fn matches(&self, reference: Ref, key: &[u8]) -> bool {
        self.look_before(reference, MOST_TO_THE_KEY);
        self.resolver.matches(reference, key)
    }

    fn hash(&self, reference: Ref) -> u64 {
        self.look_before(reference, MOST_TO_THE_KEY);
        self.resolver.hash(reference)
    }

    fn doubts(&self) -> bool {
        self.resolver.doubts()
    }

    fn is_sound(&self, reference: Ref) -> bool {
        self.look_before(reference, u64::MAX);
        self.resolver.is_sound(reference)
    }
}
