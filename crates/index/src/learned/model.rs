//! A linear model from slices to blocks: one subtraction, one multiplication, one addition, two conversions.
//!
//! Differences are signed and counted from the middle of the range, so that for every range they fit into a sign and 63
//! bits. The float then keeps 53 of these bits, far more than needed for the number of blocks of any array.

/// block = start + (slice − middle) · slope, rounded down. All parameters are always finite.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Model {
    pub(super) middle: u64,
    pub(super) slope: f64,
    pub(super) start: f64,
}

impl Model {
    /// A model that predicts this block for every slice.
    pub(super) const fn constant(block: usize) -> Model {
        Model { middle: 0, slope: 0.0, start: block as f64 }
    }

    /// The prediction, not yet bounded. Far beyond the range that the line was made for, it may be anything.
    #[inline(always)]
    pub(super) fn predict(self, slice: u64) -> i64 {
        let x = (slice.wrapping_sub(self.middle) as i64 as f64) * self.slope + self.start;
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_mm_cvttsd_si64, _mm_set_sd};
            // SAFETY: SSE2 is part of x86-64. Unlike a cast, this is one instruction; a value that does not fit becomes
            // the least number.
            unsafe { _mm_cvttsd_si64(_mm_set_sd(x)) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            x as i64
        }
    }

    /// The line through (slice, block) with this slope in blocks per unit, to be used up to `last`.
    pub(super) fn line(slice: u64, block: f64, slope: f64, last: u64) -> Model {
        if !slope.is_finite() || slope <= 0.0 {
            return Model::constant(block.max(0.0) as usize);
        }
        let half = last.saturating_sub(slice).div_ceil(2);
        Model { middle: slice + half, slope, start: block + half as f64 * slope }
    }

    /// The least-squares line through (slice i, i · step) of ascending slices.
    pub(super) fn fit(slices: impl ExactSizeIterator<Item = u64> + Clone, step: f64) -> Model {
        let n = slices.len() as f64;
        let Some(first) = slices.clone().next() else { return Model::constant(0) };
        let (mut last, mut sum, mut squares, mut products) = (first, 0.0, 0.0, 0.0);
        for (i, slice) in slices.enumerate() {
            let x = (slice - first) as f64;
            sum += x;
            squares += x * x;
            products += x * i as f64;
            last = slice;
        }
        let (mean_x, mean_i) = (sum / n, (n - 1.0) / 2.0);
        let slope = (products - n * mean_x * mean_i) / (squares - n * mean_x * mean_x);
        Model::line(first, (mean_i - slope * mean_x) * step, slope * step, last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found() {
        for (first, gap) in [(0u64, 1u64), (0, 1 << 50), (1 << 63, 1 << 40), (12345, 7), (u64::MAX - 70_000, 10)] {
            let slices = (0..7000u64).map(|i| first + i * gap);
            let model = Model::fit(slices.collect::<Vec<_>>().into_iter(), 1.0 / 7.0);
            for i in 0..7000u64 {
                let (found, real) = (model.predict(first + i * gap), i as i64 / 7);
                assert!(found.abs_diff(real) <= 1, "{i}: {found} instead of {real} from {first} by {gap}");
            }
        }
    }

    #[test]
    fn odd_lines_predict_something() {
        for slices in [vec![0], vec![u64::MAX], vec![0, u64::MAX], vec![5, 6], vec![0, 1, u64::MAX - 1, u64::MAX]] {
            for step in [0.2, 8.0] {
                let model = Model::fit(slices.clone().into_iter(), step);
                // Checked within half of all slices from the middle; beyond that, a prediction may be anything.
                let (low, high) = (slices[0], slices[slices.len() - 1]);
                let part = |i| if i < 4 { low + (high - low) / 4 * i } else { high };
                let found = [0, 1, 2, 3, 4].map(|i| model.predict(part(i)));
                assert!(found.is_sorted(), "{slices:?}: {found:?}");
                assert!(model.slope.is_finite() && model.start.is_finite());
            }
        }
    }

    #[test]
    fn a_line_that_begins_behind_the_first_slice() {
        let model = Model::line(1000, -4.0, 0.01, 2000);
        assert_eq!((model.predict(900), model.predict(1450), model.predict(1501)), (-5, 0, 1));
    }
}
