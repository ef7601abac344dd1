//! Replacing a segment: by two halves, by a wide one, by one of the same keys ([`super::wear`]) or, when space is
//! reserved, by many empty ones.
//!
//! # Steps
//!
//! 1. Freeze all pairs in order. Pair 0 decides between two threads that try. From here on writers of this segment
//!    wait; readers do not.
//! 2. Read the hashes of its keys from the log, prefetching ahead.
//! 3. Build the successors, which nobody can reach yet.
//! 4. Under the directory's mutex, store them in the directory, doubled if needed.
//! 5. Release the old block after a grace period; its pairs stay frozen until it is reused.
//!
//! No lock except the segment's own pairs is held while keys are read and moved.
//!
//! Finding out whether an entry is sound may take long, since the whole entry is read, including its value. So where
//! the resolver does not know it at once ([`Resolver::doubts`]), a table asks before it freezes the segment, and
//! afterwards only about entries that have arrived since.
//!
//! # Split or grow
//!
//! A split helps only if it separates the keys. If one side would get more than three quarters of them (far beyond what
//! random hashes do), the hashes share their next bits. The segment then becomes wide instead, with doubled size when
//! it is full. So equal hashes cost neither a deep directory nor an endless loop, only long paths.

use super::HashTable;
use super::directory::{MAX_DEPTH, POSITION_BITS, POSITIONS, Segment, empty_segment, end_of, halves_of, home_line, position_of, share_of};
use super::line::{FROZEN, HAS_LOST, LINE_SLOTS, Line, OVERFLOW, PAIR_SLOTS, Pair, first_slot, free_slots, tag_at, tag_of, with_tag};
use super::protocol::{Point, Protocol, Rule};
use crate::{Ref, Resolver};
use hither_sync::epoch;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Number of log entries that are prefetched ahead of the one whose hash is read.
const AHEAD: usize = 32;
/// A new segment that holds more keys than this is wide: 15/16 of its slots.
const NARROW_MAX: usize = 420;
/// Greatest expected number of keys in a reserved segment; random scatter stays below what a segment takes.
const RESERVED_MAX: f64 = 382.0;

/// A key on its way into a new segment.
#[derive(Clone, Copy)]
struct Item {
    reference: Ref,
    hash: u64,
}

/// A reference whose key cannot be read, so that its hash is unknown. Each successor gets it, in the pair and with the
/// tag that it had, so that a lookup of its key still reaches it.
struct Lost {
    reference: Ref,
    tag: u64,
    pair: usize,
    /// Number of pairs before it from which paths may lead to it.
    run: usize,
}

/// A segment whose pairs are frozen; thaws them when dropped, unless it was replaced.
struct Frozen {
    segment: Segment,
    replaced: bool,
}

impl Frozen {
    /// Freezes all pairs. `None` if another thread is replacing the segment.
    fn new(segment: Segment, all: bool) -> Option<Frozen> {
        // SAFETY: the caller has read the segment from the directory under its pin.
        let mut pairs = unsafe { segment.all() };
        // Requests all lines at once: otherwise each lock below would wait for its own line.
        // SAFETY: as above.
        for pair in unsafe { segment.all() } {
            hither_sync::prefetch_write(pair);
        }
        pairs.next()?.lock(true)?.freeze();
        // From here on a panic thaws the frozen pairs.
        let frozen = Frozen { segment, replaced: false };
        let rest = segment.pairs() - 1 - usize::from(!all); // leaving one out is the planted bug of a twin
        for pair in pairs.take(rest) {
            pair.lock(true).expect("who froze pair 0 freezes the others").freeze();
        }
        Some(frozen)
    }

    /// Returns the references in the segment, with the hashes of the readable keys: all misses of the log overlap.
    fn keys<R: Resolver>(&self, known: &Known, resolver: &R) -> (Vec<Item>, Vec<Lost>) {
        let slots = slots_of(self.segment);
        let (mut items, mut lost) = (Vec::with_capacity(slots.len()), Vec::new());
        each_prefetched(&slots, resolver, |slot, tag, reference| {
            if known.is_sound(slot, reference, resolver) {
                items.push(Item { reference, hash: resolver.hash(reference) });
            } else {
                lost.push(self.lost(slot / PAIR_SLOTS, tag, reference));
            }
        });
        (items, lost)
    }

    /// Describes a reference in a slot of the segment that is to be kept without its hash.
    #[cold]
    fn lost(&self, number: usize, tag: u64, reference: Ref) -> Lost {
        let pairs = self.segment.pairs();
        let overflows = |step: &usize| {
            // SAFETY: as in `new`.
            let pair = unsafe { self.segment.pair((number + pairs - step) % pairs) };
            pair.lines.iter().any(|line| line.meta.load(Ordering::Relaxed) & OVERFLOW != 0)
        };
        Lost { reference, tag, pair: number, run: (1..self.segment.path_len()).take_while(overflows).count() }
    }
}

/// The content of a segment, which the caller has read from the directory under its pin: slot numbers, tags,
/// references.
fn slots_of(segment: Segment) -> Vec<(usize, u64, Ref)> {
    let mut all = Vec::with_capacity(segment.capacity());
    // SAFETY: by the caller's promise.
    let lines = unsafe { segment.all() }.flat_map(|pair: &Pair| &pair.lines);
    for (number, line) in lines.enumerate() {
        let meta = line.meta.load(Ordering::Acquire);
        let slots = line.refs.iter().enumerate().map(|(slot, word)| {
            let reference = Ref(word.load(Ordering::Acquire));
            (number * LINE_SLOTS + slot, tag_at(meta, slot), reference)
        });
        all.extend(slots.filter(|(_, tag, reference)| *tag != 0 && reference.is_some()));
    }
    all
}

/// Calls `visit` for each slot, prefetching the entries of the slots that follow.
#[inline(always)]
fn each_prefetched<R: Resolver>(slots: &[(usize, u64, Ref)], resolver: &R, mut visit: impl FnMut(usize, u64, Ref)) {
    for (.., reference) in slots.iter().take(AHEAD) {
        resolver.prefetch(*reference);
    }
    for (i, &(slot, tag, reference)) in slots.iter().enumerate() {
        if let Some((.., later)) = slots.get(i + AHEAD) {
            resolver.prefetch(*later);
        }
        visit(slot, tag, reference);
    }
}

/// The references that were in a segment's slots before it was frozen, and whether each is sound. Soundness does not
/// change under the caller's pin. May be empty.
#[derive(Default)]
struct Known(Vec<(Ref, bool)>);

impl Known {
    /// Asks about all entries of a segment while its writers go on. Stops as soon as another thread freezes the
    /// segment, since that thread has asked.
    #[cold]
    fn of<R: Resolver>(segment: Segment, resolver: &R) -> Known {
        let mut known = vec![(Ref::NONE, false); segment.capacity()];
        // SAFETY: the caller has read the segment from the directory under its pin.
        let is_taken = || unsafe { segment.pair(0) }.flags() & FROZEN != 0;
        each_prefetched(&slots_of(segment), resolver, |slot, _, reference| {
            if !is_taken() {
                known[slot] = (reference, resolver.is_sound(reference));
            }
        });
        Known(known)
    }

    #[inline(always)]
    fn is_sound<R: Resolver>(&self, slot: usize, reference: Ref, resolver: &R) -> bool {
        match self.0.get(slot) {
            Some((there, is_sound)) if *there == reference => *is_sound,
            _ => resolver.is_sound(reference),
        }
    }
}

impl Lost {
    /// Adds the reference to a segment that nobody else can reach, on every path that led to it before; false if there
    /// is no room.
    #[cold]
    fn append(&self, segment: Segment) -> bool {
        let pairs = segment.pairs();
        // SAFETY: the segment was just allocated from the table's arena.
        let pair = |step: usize| unsafe { segment.pair((self.pair + step) % pairs) };
        let pass_over = |step: usize| _ = pair(step).lines[0].meta.fetch_or(OVERFLOW, Ordering::Relaxed);
        if segment.wide() {
            (0..pairs).for_each(pass_over);
        } else {
            (pairs - self.run..pairs).for_each(pass_over);
        }
        for step in 0..segment.path_len() {
            if pair(step).lines.iter().any(|line| append_to(line, self.tag, self.reference)) {
                return true;
            }
            pass_over(step);
        }
        false
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if !self.replaced {
            // Backwards, since pair 0 is the one that other threads compete for.
            for number in (0..self.segment.pairs()).rev() {
                // SAFETY: as in `new`.
                unsafe { self.segment.pair(number) }.thaw();
            }
        }
    }
}

/// The successors of a segment, as they take shape.
struct Plan<'a, P: Protocol> {
    table: &'a HashTable<P>,
    /// Number of keys in the whole index that space is being reserved for.
    target: usize,
    /// Position prefix and segment.
    ready: Vec<(u64, Segment)>,
    lost: Vec<Lost>,
    /// Whether the segment may be split. A wide segment with lost references stays one: their paths may be longer than
    /// those of other keys. And where lost references are many, splits would make ever more copies of them.
    may_split: bool,
}

impl<P: Protocol> HashTable<P> {
    /// Makes room in a segment that could not take a key. On return the directory leads elsewhere, or another thread is
    /// replacing the segment.
    #[cold]
    pub(super) fn rebuild<R: Resolver>(&self, segment: Segment, hash: u64, resolver: &R) {
        self.replace_segment(segment, hash, false, resolver);
    }

    /// Replaces a narrow segment by one of the same keys. Each key is as near to its home pair as there is room, with
    /// the overflow flags that this needs. If the keys do not fit in this way, replaces it as [`HashTable::rebuild`]
    /// does. The caller holds no pair of the segment.
    #[cold]
    pub(super) fn renew<R: Resolver>(&self, segment: Segment, hash: u64, resolver: &R) {
        debug_assert!(!segment.wide());
        self.replace_segment(segment, hash, true, resolver);
    }

    fn replace_segment<R: Resolver>(&self, segment: Segment, hash: u64, alike: bool, resolver: &R) {
        let known = if resolver.doubts() { Known::of(segment, resolver) } else { Known::default() };
        let Some(frozen) = Frozen::new(segment, P::heeds(Rule::FreezeAll)) else {
            return;
        };
        let (mut items, lost) = frozen.keys(&known, resolver);
        P::pause(Point::Collected);
        let may_split = lost.is_empty() || (!segment.wide() && lost.len() * 4 <= items.len());
        let mut plan = Plan { table: self, target: 0, ready: Vec::new(), lost, may_split };
        let depth = segment.depth();
        let prefix = position_of(hash) >> (POSITION_BITS - depth);
        if !alike || !plan.build(&items, prefix, depth, 0, false) {
            plan.divide(&mut items, prefix, depth, true);
        }
        self.replace_by(frozen, plan.ready);
    }

    /// Splits the segments that are still empty until `keys` keys fit. Segments that hold keys are left to split one by
    /// one: the hashes of their keys are in the log, which is not available here.
    pub(super) fn reserve_segments(&self, keys: usize) {
        let _pin = epoch::pin();
        let mut position = 0;
        while position < POSITIONS {
            let segment = self.segment_at(position);
            let depth = segment.depth();
            let prefix = position >> (POSITION_BITS - depth);
            position = end_of(prefix, depth);
            let mut plan = Plan { table: self, target: keys, ready: Vec::new(), lost: Vec::new(), may_split: true };
            if !plan.overfull(prefix, depth) {
                continue;
            }
            if let Some(frozen) = Frozen::new(segment, true)
                && slots_of(frozen.segment).is_empty()
            {
                plan.divide(&mut [], prefix, depth, false);
                self.replace_by(frozen, plan.ready);
            }
        }
    }

    /// Publishes the successors of a frozen segment and retires it.
    fn replace_by(&self, mut frozen: Frozen, successors: Vec<(u64, Segment)>) {
        let late = if P::heeds(Rule::FillFirst) { Vec::new() } else { successors.iter().map(|(_, segment)| unfill(*segment)).collect() };
        self.publish(&successors);
        frozen.replaced = true;
        P::pause(Point::Published);
        for (content, (_, segment)) in late.iter().zip(&successors) {
            refill(*segment, content);
        }
        let (old, arena) = (frozen.segment, Arc::downgrade(&self.arena));
        epoch::defer(move || {
            // An index that was dropped meanwhile has dropped its arena, too.
            if let Some(arena) = arena.upgrade() {
                arena.release(old.block(), old.class());
            }
        });
    }

    pub(super) fn publish(&self, successors: &[(u64, Segment)]) {
        let deepest = successors.iter().map(|(_, segment)| segment.depth()).max().expect("a segment has a successor");
        let mut directory = self.directory.lock();
        if deepest <= directory.depth() {
            successors.iter().for_each(|(prefix, segment)| directory.set(*prefix, *segment));
            return;
        }
        let deeper = directory.deepened(deepest);
        successors.iter().for_each(|(prefix, segment)| deeper.set(*prefix, *segment));
        // Release: readers that follow the word see the entries.
        self.word.store(deeper.word().0, Ordering::Release);
        let old = std::mem::replace(&mut *directory, deeper);
        drop(directory);
        epoch::defer(move || drop(old));
    }
}

impl<P: Protocol> Plan<'_, P> {
    /// Whether the reserved keys alone need a prefix to be split.
    fn overfull(&self, prefix: u64, depth: u32) -> bool {
        depth < MAX_DEPTH && self.target as f64 * share_of(prefix, depth) > RESERVED_MAX
    }

    /// Puts the items of a position prefix into one or more new segments. `crowded`: one segment like the old one does
    /// not suffice.
    fn divide(&mut self, items: &mut [Item], prefix: u64, depth: u32, crowded: bool) {
        let wants_split = crowded || items.len() > NARROW_MAX;
        if self.may_split && (self.overfull(prefix, depth) || (wants_split && depth < MAX_DEPTH)) {
            let ones = part(items, depth);
            let (left, right) = (ones, items.len() - ones);
            if left.max(right) * 4 <= items.len() * 3 {
                let (left, right) = items.split_at_mut(ones);
                for (half, (prefix, depth)) in [left, right].into_iter().zip(halves_of(prefix, depth)) {
                    self.divide(half, prefix, depth, false);
                }
                return;
            }
        }
        if wants_split || !self.build(items, prefix, depth, 0, false) {
            let mut class = 0;
            // A wide segment takes anything up to its capacity; an eighth is left for further keys.
            while items.len() + self.lost.len() >= Segment::new(0, 0, class, true).capacity() / 8 * 7 {
                class += 1;
            }
            let built = self.build(items, prefix, depth, class, true);
            assert!(built, "a wide segment takes as many keys as it has slots");
        }
    }

    /// Builds one segment; returns false, leaving no trace, if a path has no room.
    fn build(&mut self, items: &[Item], prefix: u64, depth: u32, class: usize, wide: bool) -> bool {
        let segment = empty_segment(&self.table.arena, depth, class, wide);
        let fits = self.lost.iter().all(|lost| lost.append(segment)) && items.iter().all(|item| append(segment, item));
        if fits {
            if !self.lost.is_empty() {
                // SAFETY: the segment was just allocated from the table's arena.
                unsafe { segment.pair(0) }.lines[0].meta.fetch_or(HAS_LOST, Ordering::Relaxed);
            }
            self.ready.push((prefix, segment));
        } else {
            self.table.arena.release(segment.block(), class);
        }
        fits
    }
}

/// Moves the items whose position bit below `depth` is 0 to the front; returns how many these are.
fn part(items: &mut [Item], depth: u32) -> usize {
    let shift = POSITION_BITS - 1 - depth;
    let mut zeros = 0;
    for i in 0..items.len() {
        let one = position_of(items[i].hash) >> shift & 1 == 1;
        items.swap(i, zeros);
        zeros += usize::from(!one);
    }
    zeros
}

/// Adds an item to a segment that nobody else can reach: with plain steps, which the directory publishes later.
fn append(segment: Segment, item: &Item) -> bool {
    let (tag, home) = (tag_of(item.hash), home_line(item.hash));
    for step in 0..segment.path_len() {
        // SAFETY: the segment was just allocated from the table's arena.
        let pair = unsafe { segment.pair(segment.pair_number(item.hash, step)) };
        if append_to(&pair.lines[home], tag, item.reference) || append_to(&pair.lines[home ^ 1], tag, item.reference) {
            return true;
        }
        let meta = pair.lines[0].meta.load(Ordering::Relaxed);
        pair.lines[0].meta.store(meta | OVERFLOW, Ordering::Relaxed);
    }
    false
}

#[inline(always)]
fn append_to(line: &Line, tag: u64, reference: Ref) -> bool {
    let meta = line.meta.load(Ordering::Relaxed);
    let free = free_slots(meta);
    if free == 0 {
        return false;
    }
    let slot = first_slot(free);
    line.refs[slot].store(reference.0, Ordering::Relaxed);
    line.meta.store(with_tag(meta, slot, tag), Ordering::Relaxed);
    true
}

/// The planted bug of a twin: removes the tags before the segment is published …
#[cold]
fn unfill(segment: Segment) -> Vec<u64> {
    // SAFETY: the segment was just built by this thread.
    let lines = unsafe { segment.all() }.flat_map(|pair: &Pair| &pair.lines);
    lines.map(|line| line.meta.swap(0, Ordering::Relaxed)).collect()
}

/// … and brings them back afterwards.
#[cold]
fn refill(segment: Segment, content: &[u64]) {
    // SAFETY: as in `unfill`.
    let lines = unsafe { segment.all() }.flat_map(|pair: &Pair| &pair.lines);
    lines.zip(content).for_each(|(line, meta)| line.meta.store(*meta, Ordering::Release));
}
