//! Moves runs of words in a node by one place, as an insert or a removal among sorted words does.
//!
//! Moving word by word takes five instructions and a store each, and these stand between a write's flush and the next
//! write's first miss (`docs/adr/0010`). So eight or four words are moved at once where the processor can.
//!
//! Thread safety: for the holder of the node's lock. Readers may look meanwhile: they find old words, new ones, or
//! anything, and validate by the node's version. (Wide stores need only the alignment of words, and only whole words
//! are promised: none of these processors tears an aligned word.)

#[cfg(target_arch = "x86_64")]
use super::wide;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Two runs of words that are moved alike, given by their first words.
pub(crate) type Runs = [*const AtomicU64; 2];

/// Moves `count` words of each run up by one place.
///
/// # Safety
/// Each run must have `count + 1` words, the runs must not overlap, and the caller must be the only writer.
#[inline(always)]
pub(crate) unsafe fn up(runs: Runs, count: usize) {
    // SAFETY: passed on; what is called is available.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if wide::available() {
            return up_by_eight(runs, count);
        }
        #[cfg(target_arch = "x86_64")]
        if wide::halves_available() {
            return up_by_four(runs, count);
        }
        up_by_one(runs, count);
    }
}

/// Moves `count` words of each run, the ones after its first word, down by one place.
///
/// # Safety
/// As for [`up`].
#[inline(always)]
pub(crate) unsafe fn down(runs: Runs, count: usize) {
    // SAFETY: passed on; what is called is available.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if wide::available() {
            return down_by_eight(runs, count);
        }
        #[cfg(target_arch = "x86_64")]
        if wide::halves_available() {
            return down_by_four(runs, count);
        }
        down_by_one(runs, count);
    }
}

/// # Safety
/// As for [`up`], and [`wide::available`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn up_by_eight(runs: Runs, count: usize) {
    let mut left = count & !7;
    // The words that do not fill eight come first, from the top. After the others, a masked load of them would span
    // words just stored, although the mask leaves these out, and would wait until the stores have left the store
    // buffer, where they stand behind the write's fence.
    for run in runs {
        // SAFETY: the last words, fewer than eight, and the place after them.
        unsafe { wide::move_some(run.add(left), run.add(left + 1), count & 7) };
    }
    while left > 0 {
        left -= 8;
        for run in runs {
            // SAFETY: the last eight of the words that are left, and the place behind them.
            unsafe { wide::move_eight(run.add(left), run.add(left + 1)) };
        }
    }
}

/// # Safety
/// As for [`down`], and [`wide::available`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn down_by_eight(runs: Runs, count: usize) {
    let mut done = 0;
    while count - done >= 8 {
        for run in runs {
            // SAFETY: the first eight of the words that are left, and the place before them.
            unsafe { wide::move_eight(run.add(done + 1), run.add(done)) };
        }
        done += 8;
    }
    for run in runs {
        // SAFETY: the words that are left, fewer than eight.
        unsafe { wide::move_some(run.add(done + 1), run.add(done), count - done) };
    }
}

/// # Safety
/// As for [`up`], and [`wide::halves_available`].
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn up_by_four(runs: Runs, count: usize) {
    let mut left = count;
    while left >= 4 {
        left -= 4;
        for run in runs {
            // SAFETY: the last four of the words that are left, and the place behind them.
            unsafe { wide::move_four(run.add(left), run.add(left + 1)) };
        }
    }
    // SAFETY: passed on.
    unsafe { up_by_one(runs, left) };
}

/// # Safety
/// As for [`down`], and [`wide::halves_available`].
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn down_by_four(runs: Runs, count: usize) {
    let mut done = 0;
    while count - done >= 4 {
        for run in runs {
            // SAFETY: the first four of the words that are left, and the place before them.
            unsafe { wide::move_four(run.add(done + 1), run.add(done)) };
        }
        done += 4;
    }
    // SAFETY: passed on.
    unsafe { down_by_one(runs.map(|run| run.add(done)), count - done) };
}

/// # Safety
/// As for [`up`].
#[inline]
unsafe fn up_by_one(runs: Runs, count: usize) {
    for (i, run) in (0..count).rev().flat_map(|i| runs.map(|run| (i, run))) {
        // SAFETY: both words are there, by the caller's promise.
        unsafe { (*run.add(i + 1)).store((*run.add(i)).load(Relaxed), Relaxed) };
    }
}

/// # Safety
/// As for [`down`].
#[inline]
unsafe fn down_by_one(runs: Runs, count: usize) {
    for (i, run) in (0..count).flat_map(|i| runs.map(|run| (i, run))) {
        // SAFETY: both words are there, by the caller's promise.
        unsafe { (*run.add(i)).store((*run.add(i + 1)).load(Relaxed), Relaxed) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: usize = 72;

    /// Moves words of two arrays by `shift`, and compares the result with that of `expect`.
    fn compare(what: &str, shift: unsafe fn(Runs, usize), expect: impl Fn(&mut [u64], usize, usize)) {
        for (from, count) in (0..=9).flat_map(|from| (0..=61).map(move |count| (from, count))) {
            let mut expected = [1u64, 1 << 32].map(|base| (0..WORDS as u64).map(|i| base + i * i).collect::<Vec<_>>());
            let arrays = expected.clone().map(|array| array.into_iter().map(AtomicU64::new).collect::<Vec<_>>());
            // SAFETY: 71 words at most of arrays that nobody else has.
            unsafe { shift(arrays.each_ref().map(|array| array.as_ptr().add(from)), count) };
            expected.iter_mut().for_each(|array| expect(array, from, count));
            let found = arrays.map(|array| array.into_iter().map(AtomicU64::into_inner).collect::<Vec<_>>());
            assert_eq!(found, expected, "{what}: {count} words from {from}");
        }
    }

    fn moved_up(array: &mut [u64], from: usize, count: usize) {
        array.copy_within(from..from + count, from + 1);
    }

    fn moved_down(array: &mut [u64], from: usize, count: usize) {
        array.copy_within(from + 1..from + 1 + count, from);
    }

    #[test]
    fn runs_move_by_one_place_and_nothing_else_does() {
        compare("up", up, moved_up);
        compare("down", down, moved_down);
        compare("up by one", up_by_one, moved_up);
        compare("down by one", down_by_one, moved_down);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn halves_of_lines_move_alike() {
        if std::arch::is_x86_feature_detected!("avx2") {
            compare("up by four", up_by_four, moved_up);
            compare("down by four", down_by_four, moved_down);
        }
    }
}
