//! The shortest way of a batch: pairs of eight bytes each, of the victim's own keyspace, if that has a hash index. They
//! are most of what a collector of small values moves, so each instruction here counts (`docs/adr/0022`).
//!
//! The steps, their order and the writer section are those of [`super::puts`], the reference, which handles everything
//! unusual. This way leaves out two things. A pair is verified once, when the victim is read, and read again from the
//! caches when it is copied. Nothing of a pair is kept meanwhile but its place and where the index may name it.
//!
//! Pairs are looked up and copied in groups, two groups behind the reading: what the index has for a pair is loaded
//! meanwhile, and no more is requested at once than the processor can have under way. So the section begins with the
//! first group.
//!
//! Where the index may name a pair is found when the pair is requested. A split that comes in between leaves what it
//! moved in the old place, frozen. A pair that was current is still found there. One that is not found there was
//! superseded before, because nothing that comes into an index later leads to a victim.

use super::Emptied;
use super::puts::{HashKeyspace, Shown};
use crate::error::Result;
use crate::store::Core;
use hither_index::Ref;
use hither_index::hash::{NearHome, Spot};
use hither_log::{Pass, Relocator, SourceSegment, Writer};

/// Pairs that are requested together; as many are then copied.
const GROUP: usize = 8;
/// Pairs that are under way.
const AHEAD: usize = 2 * GROUP;

/// A pair that may be current.
#[derive(Clone, Copy)]
struct Pair {
    reference: Ref,
    hash: u64,
}

/// Where the index names a pair, and its copy.
struct Copied<'a> {
    spot: Spot<'a>,
    source: Ref,
    copy: Ref,
}

/// Such pairs of a batch.
pub(super) struct Pairs<'a, 'v> {
    /// The victim's keyspace.
    of: HashKeyspace<'a>,
    victim: SourceSegment<'v>,
    pairs: Vec<Pair>,
    /// Where the index may name them, as far as that was requested.
    near: Vec<NearHome<'a>>,
    /// How many of the pairs were looked up.
    found: usize,
    /// Those looked up that are not where their paths begin, by number.
    beyond: Vec<usize>,
    copied: Vec<Copied<'a>>,
    shown: Vec<Shown>,
}

impl<'a, 'v> Pairs<'a, 'v> {
    pub(super) fn with_capacity(of: HashKeyspace<'a>, victim: SourceSegment<'v>, count: usize) -> Pairs<'a, 'v> {
        let (pairs, copied) = (Vec::with_capacity(count), Vec::with_capacity(count));
        Pairs { of, victim, pairs, near: Vec::with_capacity(count), found: 0, beyond: Vec::new(), copied, shown: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.pairs.len()
    }

    /// The first one that was added.
    pub(super) fn first(&self) -> Option<Ref> {
        self.pairs.first().map(|pair| pair.reference)
    }

    pub(super) fn clear(&mut self) {
        self.pairs.clear();
        self.near.clear();
        self.found = 0;
        self.beyond.clear();
        self.copied.clear();
        self.shown.clear();
    }

    /// Adds a pair with this key. Returns true if a group of pairs is complete.
    #[inline(always)]
    pub(super) fn add(&mut self, core: &Core, reference: Ref, key: u64) -> bool {
        let hash = core.hasher.hash_word(key);
        self.pairs.push(Pair { reference, hash });
        self.pairs.len().is_multiple_of(GROUP)
    }

    /// Starts loading what the index has for the pairs that were added. Appends copies of those for which that was done
    /// before, or with `rest` of all that are left, if they are current or a snapshot shows them. Where space ends, so
    /// do the copies: the next call makes none. Call in the section that swings them.
    pub(super) fn copy(&mut self, core: &Core, relocator: &mut Relocator<'_>, rest: bool, emptied: &mut Emptied) -> Result<()> {
        let index = self.of.index;
        let asked = self.near.len();
        self.near.extend(self.pairs[asked..].iter().map(|pair| index.near_home(pair.hash)));
        let from = self.found;
        self.found = if rest { self.pairs.len() } else { from.max(self.pairs.len().saturating_sub(AHEAD)) };
        if self.of.keyspace.is_discarded() {
            return Ok(());
        }
        self.copy_beyond(core, relocator, emptied)?;
        for at in from..self.found {
            let (pair, near) = (self.pairs[at], self.near[at]);
            match index.find_at_home(near, pair.hash, pair.reference) {
                // The next place on its path is loaded by the time the next group is copied.
                None if index.prefetch_beyond(near, pair.hash) => self.beyond.push(at),
                spot => self.copy_one(core, pair.reference, spot, relocator, emptied)?,
            }
        }
        if rest { self.copy_beyond(core, relocator, emptied) } else { Ok(()) }
    }

    /// Looks up and copies those that are not where their paths begin.
    fn copy_beyond(&mut self, core: &Core, relocator: &mut Relocator<'_>, emptied: &mut Emptied) -> Result<()> {
        let mut beyond = std::mem::take(&mut self.beyond);
        let copied = beyond.drain(..).try_for_each(|at| {
            let Pair { reference, hash } = self.pairs[at];
            let spot = self.of.index.find_reference_near(self.near[at], hash, reference);
            self.copy_one(core, reference, spot, relocator, emptied)
        });
        self.beyond = beyond;
        copied
    }

    #[inline(always)]
    fn copy_one(
        &mut self,
        core: &Core,
        source: Ref,
        spot: Option<Spot<'a>>,
        relocator: &mut Relocator<'_>,
        emptied: &mut Emptied,
    ) -> Result<()> {
        let copied = match spot {
            Some(spot) => relocator.append_pair_again(source.0, &self.victim).map_err(|error| core.explain(error)).map(|(copy, size)| {
                emptied.bytes += size;
                self.copied.push(Copied { spot, source, copy: Ref(copy) });
            }),
            // After the look at the index: see the head of `puts`.
            None if core.snapshots.any() => self.of.copy_shown(core, source, relocator, emptied).map(|shown| self.shown.extend(shown)),
            None => Ok(()),
        };
        if copied.is_err() {
            self.found = self.pairs.len();
            self.beyond.clear();
        }
        copied
    }

    /// As [`super::puts::Puts::swing`].
    pub(super) fn swing(&self, core: &Core, pass: &Pass<'_>, writer: &mut Writer<'_>, emptied: &mut Emptied) -> bool {
        let mut too_late = false;
        let mut moved = pass.moved_entries();
        for &Copied { spot, source, copy } in &self.copied {
            too_late |= !self.of.swing(core, (spot, source, copy), writer, &mut moved, emptied);
        }
        self.shown.iter().for_each(|shown| shown.follow(&mut moved, emptied));
        writer.count_moved(moved);
        too_late
    }
}
