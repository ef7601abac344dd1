//! Chooses which pending stores survive: exhaustively if the budget allows, otherwise always the extremes and a sample.

use super::replay::Pending;

/// The rule that chose an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ImageKind {
    /// One of all possible images.
    Exhaustive,
    /// Every store that may be lost is lost.
    AllLost,
    /// No store is lost.
    AllKept,
    /// One line (or sector) is lost, the rest is kept.
    OneLineLost,
    /// One line (or sector) is kept, the rest is lost.
    OneLineKept,
    /// Chosen at random.
    Sampled,
}

/// A small seeded random generator, so that a failing image can be made again.
#[derive(Debug, Clone)]
pub struct ShadowRng(u64);

impl ShadowRng {
    /// A generator with this seed.
    pub fn new(seed: u64) -> ShadowRng {
        ShadowRng(seed)
    }

    /// The next number (splitmix64).
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, or 0 if `limit` is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        if limit == 0 { 0 } else { (self.next_u64() % limit as u64) as usize }
    }
}

/// The pending stores of one cell, see [`super::replay`]: a prefix of them survives, of at least `least` stores.
pub(super) struct Choice<'a> {
    pub(super) group: u64,
    pub(super) list: &'a [Pending],
    pub(super) least: usize,
}

impl Choice<'_> {
    fn ways(&self) -> usize {
        self.list.len() - self.least + 1
    }
}

/// Makes one image at a time: patches `durable` with the chosen prefixes, shows it, and undoes the patch.
struct Patcher<'a, F> {
    durable: &'a mut Vec<u8>,
    cells: &'a [Choice<'a>],
    show: F,
    shown: usize,
}

impl<F: FnMut(&[u8], ImageKind)> Patcher<'_, F> {
    /// Shows the image in which the first `keep[i]` stores of cell `i` survive.
    fn image(&mut self, keep: &[usize], kind: ImageKind) {
        let mut kept: Vec<&Pending> = self.cells.iter().zip(keep).flat_map(|(cell, &n)| &cell.list[..n]).collect();
        // Cells are independent, except where a word was stored both through and around the caches: there the later
        // store wins.
        kept.sort_by_key(|p| p.seq);
        let mut undo = Vec::with_capacity(kept.len());
        for pending in kept {
            let word = &mut self.durable[pending.off as usize..pending.off as usize + 8];
            let mut before = [0; 8];
            before.copy_from_slice(word);
            undo.push((pending.off as usize, before));
            word.copy_from_slice(&pending.value);
        }
        (self.show)(self.durable, kind);
        self.shown += 1;
        for (at, before) in undo.into_iter().rev() {
            self.durable[at..at + 8].copy_from_slice(&before);
        }
    }

    /// For each cell, the fewest and the most stores that may survive.
    fn bounds(&self) -> (Vec<usize>, Vec<usize>) {
        self.cells.iter().map(|cell| (cell.least, cell.list.len())).unzip()
    }

    fn all(&mut self) {
        let (least, full) = self.bounds();
        let mut keep = least.clone();
        self.image(&keep, ImageKind::Exhaustive);
        if least == full {
            return;
        }
        // As in `some`, everything lost and everything kept come first: tests that combine the images of several pools
        // pair these.
        self.image(&full, ImageKind::Exhaustive);
        loop {
            // Counts up in mixed radix.
            let digit = (0..keep.len()).find(|&i| keep[i] < full[i]).expect("the last of them was shown already");
            keep[digit] += 1;
            keep[..digit].copy_from_slice(&least[..digit]);
            if keep == full {
                return;
            }
            self.image(&keep, ImageKind::Exhaustive);
        }
    }

    fn some(&mut self, budget: usize, rng: &mut ShadowRng) {
        let (least, full) = self.bounds();
        self.image(&least, ImageKind::AllLost);
        self.image(&full, ImageKind::AllKept);
        let mut groups: Vec<u64> = self.cells.iter().map(|cell| cell.group).collect();
        groups.dedup();
        let room = (budget.saturating_sub(2) / 4).max(1);
        while groups.len() > room {
            groups.swap_remove(rng.below(groups.len()));
        }
        for group in groups {
            let choose = |in_group: bool| {
                let kept = |cell: &Choice<'_>| if (cell.group == group) == in_group { cell.list.len() } else { cell.least };
                self.cells.iter().map(kept).collect::<Vec<_>>()
            };
            let (kept, lost) = (choose(true), choose(false));
            self.image(&lost, ImageKind::OneLineLost);
            self.image(&kept, ImageKind::OneLineKept);
        }
        while self.shown < budget {
            // Biased towards either side as well as even: rare losses and rare survivors find different bugs.
            let bias = [2, 8, 14][rng.below(3)];
            let keep: Vec<usize> = self
                .cells
                .iter()
                .map(|cell| match rng.below(16) {
                    r if r >= bias => cell.least,
                    r if r % 2 == 0 => cell.list.len(),
                    _ => cell.least + rng.below(cell.ways()),
                })
                .collect();
            self.image(&keep, ImageKind::Sampled);
        }
    }
}

/// Shows images made of `durable` and any prefix of each cell's stores. Returns how many.
pub(super) fn generate(
    durable: &mut Vec<u8>,
    cells: &[Choice<'_>],
    budget: usize,
    rng: &mut ShadowRng,
    show: impl FnMut(&[u8], ImageKind),
) -> usize {
    let total = cells.iter().try_fold(1usize, |total, cell| total.checked_mul(cell.ways()).filter(|&t| t <= budget.max(1)));
    let mut patcher = Patcher { durable, cells, show, shown: 0 };
    match total {
        Some(_) => patcher.all(),
        None => patcher.some(budget, rng),
    }
    patcher.shown
}
