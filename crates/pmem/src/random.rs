//! Sources of random numbers: the operating system, or a seed where a run must be repeatable.
//!
//! Thread safety: shared freely; clones of a seeded source draw from one sequence. Crash: nothing here outlives the
//! process.

use crate::shadow::ShadowRng;
use parking_lot::Mutex;
use std::sync::Arc;

/// A source of random numbers.
#[derive(Clone, Debug, Default)]
pub enum Randomness {
    /// The operating system.
    #[default]
    System,
    /// A seed, for crash tests that must be repeatable.
    Seeded(Arc<Mutex<ShadowRng>>),
}

impl Randomness {
    /// A source that gives the same numbers for the same seed.
    pub fn seeded(seed: u64) -> Randomness {
        Randomness::Seeded(Arc::new(Mutex::new(ShadowRng::new(seed))))
    }

    /// The next number.
    ///
    /// # Errors
    /// If the operating system provides none.
    pub fn next_u64(&self) -> Result<u64, getrandom::Error> {
        match self {
            Randomness::System => getrandom::u64(),
            Randomness::Seeded(rng) => Ok(rng.lock().next_u64()),
        }
    }

    /// A version-4 UUID.
    ///
    /// # Panics
    /// If the operating system provides no random numbers: then no store may be created, because UUIDs must be unique.
    pub fn uuid(&self) -> [u8; 16] {
        let draw = || self.next_u64().expect("the operating system provides random numbers");
        let mut uuid = (u128::from(draw()) << 64 | u128::from(draw())).to_le_bytes();
        uuid[6] = uuid[6] & 0x0f | 0x40;
        uuid[8] = uuid[8] & 0x3f | 0x80;
        uuid
    }
}
