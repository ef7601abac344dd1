//! Lets an index read keys from the log.

use hither_index::{Hasher, Ref, Resolver};
use hither_log::Log;

/// The log as an index sees it. Use only under an epoch pin.
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
        // Who asks an index for a key mostly wants its value.
        self.log.prefetch_rest(reference.0);
        self.log.key_matches(reference.0, key)
    }

    #[inline(always)]
    fn hash(&self, reference: Ref) -> u64 {
        self.hasher.hash(self.log.key(reference.0))
    }
}

/// The log as [`LogResolver`] shows it, but that a damaged entry matches whatever key the index compares it with: nobody knows what its key was.
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
        self.0.matches(reference, key) || self.0.log.verify_entry(reference.0).is_err()
    }

    fn hash(&self, reference: Ref) -> u64 {
        self.0.hash(reference)
    }
}
