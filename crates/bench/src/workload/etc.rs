//! Facebook's ETC pool as used in papers on log-structured stores (Pacman, section 4.4). 40 % of the keys have values
//! of 1 to 13 bytes, 55 % of 14 to 300, and 5 % of more than 300. Keys of large values are chosen uniformly, the others
//! by Zipf 0.99.
//!
//! The class of a key and the length of its value follow from its id, so every write of a key has the same length.
//! Thread safety: pure functions.

use super::permutation::mix64;

/// Number of consecutive ids in which each class has its share.
const PERIOD: u64 = 20;
/// Length of the longest value in bytes.
pub const MAX_VALUE_BYTES: usize = 1024;

/// Whether the value of an id is large.
pub fn is_large(id: u64) -> bool {
    id % PERIOD == PERIOD - 1
}

/// The `n`-th id with a large value.
pub fn large(n: u64) -> u64 {
    n * PERIOD + PERIOD - 1
}

/// Number of ids below `keys` with large values.
pub fn count_large(keys: u64) -> u64 {
    keys / PERIOD
}

/// Length of the value of an id in bytes.
pub fn value_bytes(id: u64) -> usize {
    let between = |least: u64, most: u64| (least + mix64(id) % (most - least + 1)) as usize;
    match id % PERIOD {
        0..8 => between(1, 13),
        8..19 => between(14, 300),
        _ => between(301, MAX_VALUE_BYTES as u64),
    }
}

/// The mean length of the values of the first `keys` ids in bytes. For many keys it is that of the first hundred
/// thousand, which have all lengths.
pub fn mean_value_bytes(keys: u64) -> f64 {
    let ids = keys.clamp(1, 100_000);
    (0..ids).map(value_bytes).sum::<usize>() as f64 / ids as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_have_their_shares_and_lengths() {
        let lengths: Vec<usize> = (0..100_000).map(value_bytes).collect();
        let share = |least: usize, most: usize| lengths.iter().filter(|bytes| (least..=most).contains(bytes)).count();
        assert_eq!([share(1, 13), share(14, 300), share(301, 1024)], [40_000, 55_000, 5_000]);
        assert!((0..1_000).all(|id| is_large(id) == (value_bytes(id) > 300)));
        let mean = mean_value_bytes(50_000_000);
        assert!((120.0..125.0).contains(&mean), "0.4 × 7 + 0.55 × 157 + 0.05 × 662.5: {mean}");
        assert!((0..count_large(1_000)).all(|n| is_large(large(n)) && large(n) < 1_000));
    }
}
