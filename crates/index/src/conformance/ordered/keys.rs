//! Keys that are difficult for ordered indexes.

use super::super::Rng;

/// A family of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Random eight-byte words.
    Words,
    /// Dense eight-byte words: neighbours everywhere.
    Dense,
    /// One to 25 bytes from a tiny alphabet with 0x00 and 0xff: prefixes of one another, padding that looks like data,
    /// ends at slice boundaries.
    Tiny,
    /// Random bytes after common prefixes of many lengths, mostly around the slice boundaries.
    Prefixed,
    /// File paths.
    Paths,
    /// Prefixes of one long key, all lengths.
    Nested,
    /// Keys of up to 65,536 bytes that differ near their end.
    Huge,
}

impl Shape {
    /// All shapes.
    pub const ALL: [Shape; 7] = [Shape::Words, Shape::Dense, Shape::Tiny, Shape::Prefixed, Shape::Paths, Shape::Nested, Shape::Huge];

    /// Number of operations per phase of the model test.
    pub(super) fn steps(self) -> usize {
        match self {
            Shape::Huge => 300,
            Shape::Nested => 1500,
            _ => 6000,
        }
    }

    /// The keys to choose from, in no particular order; some may be equal.
    pub fn pool(self, rng: &mut Rng) -> Vec<Vec<u8>> {
        let count = match self {
            Shape::Huge => 60,
            Shape::Nested => 600,
            _ => 3000,
        };
        (0..count).map(|i| self.key(i, rng)).collect()
    }

    fn key(self, i: usize, rng: &mut Rng) -> Vec<u8> {
        match self {
            Shape::Words => rng.word().to_be_bytes().to_vec(),
            Shape::Dense => (i as u64 + (1 << 40)).to_be_bytes().to_vec(),
            Shape::Tiny => {
                let len = [1, 2, 7, 8, 9, 15, 16, 17, 24, 25][rng.below(10)];
                (0..len).map(|_| [0, 0, 0, 0xff, 0xff, b'a'][rng.below(6)]).collect()
            }
            Shape::Prefixed => {
                let len = [0, 3, 7, 8, 9, 15, 16, 17, 40, 300][rng.below(10)];
                let fill = [0, b'p', 0xff][rng.below(3)];
                let mut key = vec![fill; len];
                key.extend((0..1 + rng.below(12)).map(|_| (rng.below(8) * 32) as u8));
                key
            }
            Shape::Paths => format!(
                "/srv/data/{}/{}/entry-{:04}.bin",
                ["images", "images/2023", "documents", "a"][rng.below(4)],
                ["alpha", "beta", "gamma-delta-epsilon", "z"][rng.below(4)],
                rng.below(400)
            )
            .into_bytes(),
            Shape::Nested => (0..=i).map(|j| (j * j % 3) as u8).collect(),
            Shape::Huge => {
                let len = [65_536, 65_535, 65_529, 65_528, 40_000, 9][rng.below(6)];
                let mut key = vec![b'h'; len];
                if len > 9 {
                    let at = len - 1 - [0, 1, 7, 8, 20, 30_000][rng.below(6)];
                    key[at] = rng.below(4) as u8 * 80;
                }
                key
            }
        }
    }
}

/// Changes a key a little: longer, shorter, one byte up or down.
pub fn mutate(key: &mut Vec<u8>, rng: &mut Rng) {
    let at = rng.below(key.len());
    match rng.below(6) {
        0 => key.push(0),
        1 => key.push(0xff),
        2 if key.len() > 1 => key.truncate(1 + at / 2),
        3 if key.len() > 1 => drop(key.pop()),
        4 => key[at] = key[at].wrapping_add(1),
        _ => key[at] = key[at].wrapping_sub(1),
    }
}
