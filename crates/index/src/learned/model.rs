//! A linear model from slices to blocks, in fixed point: one subtraction, one multiplication, two shifts.

/// Binary digits behind the point of a scale.
const FRACTION: u32 = 20;

/// block = offset + (slice − base) · scale, rounded down. Slices below the base lead to the offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Model {
    pub(super) base: u64,
    /// Differences are shifted left by this, so that the greatest one uses all 64 bits.
    pub(super) shift: u32,
    pub(super) scale: u64,
    pub(super) offset: usize,
}

impl Model {
    /// Everything is predicted at this block.
    pub(super) const fn constant(offset: usize) -> Model {
        Model { base: 0, shift: 0, scale: 0, offset }
    }

    /// The prediction, not yet bounded from above.
    #[inline(always)]
    pub(super) fn predict(self, slice: u64) -> usize {
        let difference = slice.saturating_sub(self.base).min(u64::MAX >> self.shift) << self.shift;
        self.offset + (((u128::from(difference) * u128::from(self.scale)) >> 64) as u64 >> FRACTION) as usize
    }

    /// The line through (slice, block) with this slope in blocks per unit, to be used up to `last`.
    pub(super) fn line(slice: u64, block: f64, slope: f64, last: u64) -> Model {
        if slope.is_nan() || slope <= 0.0 || slope.is_infinite() {
            return Model::constant(block.max(0.0) as usize);
        }
        // The base is where a block begins: at or before the slice, as far as slices reach.
        let back = ((block.max(0.0) / slope) as u64).min(slice);
        let (base, left) =
            if block < 0.0 { (slice.saturating_add((-block / slope) as u64), 0.0) } else { (slice - back, block - back as f64 * slope) };
        let range = last.saturating_sub(base).max(1);
        let shift = range.leading_zeros();
        let scale = slope * 2f64.powi(64 - shift as i32 + FRACTION as i32);
        // A steeper line than this jumps from the first to the last block at once.
        Model { base, shift, scale: scale.min(2f64.powi(62)) as u64, offset: left.max(0.0).round() as usize }
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
                let (found, real) = (model.predict(first + i * gap), i as usize / 7);
                assert!(found.abs_diff(real) <= 1, "{i}: {found} instead of {real} from {first} by {gap}");
            }
        }
    }

    #[test]
    fn odd_lines_predict_something() {
        for slices in [vec![0], vec![u64::MAX], vec![0, u64::MAX], vec![5, 6], vec![0, 1, u64::MAX - 1, u64::MAX]] {
            let model = Model::fit(slices.clone().into_iter(), 0.2);
            let found: Vec<_> = [0, 5, 1 << 40, u64::MAX].map(|slice| model.predict(slice)).to_vec();
            assert!(found.is_sorted(), "{slices:?}: {found:?}");
            assert!(found.iter().all(|block| *block <= 1 << 43));
        }
    }

    #[test]
    fn a_line_that_begins_behind_the_first_slice() {
        let model = Model::line(1000, -4.0, 0.01, 2000);
        assert_eq!((model.predict(900), model.predict(1400), model.predict(1501)), (0, 0, 1));
    }
}
