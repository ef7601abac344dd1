//! Bugs that the explorer must find.
//!
//! A forgotten flush or fence is planted by editing the recording: the step is removed (or swapped with another) before
//! images are made. That is exactly what the medium would have seen of code that forgets it. Mistakes of recovery are
//! planted in [`crate::reference`]. Every planted bug has a sound twin: the unedited recording, or the reference
//! without mistake.

use crate::explorer::Subject;
use crate::explorer_script::SEGMENT;
use crate::images::{FEWEST, Machine, NOTE, Recording, Step};
use crate::oracle::{Deed, Expectation};
use crate::reference::{Mistake, recover};
use hither_pmem::StoreKind;
use hither_pmem::shadow::{ShadowRng, What};
use std::ops::Range;

/// Offset of a pool's segment table, in bytes.
const TABLE: u64 = 139_264;
/// Offset of the catalogue, in bytes; it begins with its commit word.
const CATALOGUE: u64 = 4096;
/// Offset of the superblock's commit word, in bytes.
const SUPERBLOCK_WORD: u64 = 8;
/// Offsets of the superblock's two slots, in bytes.
const SUPERBLOCK: Range<u64> = 64..2112;
/// Offset of the settled version, in bytes.
const SETTLED: u64 = 2176;
/// Offset of the state in a descriptor's slot; 0 is free.
const STATE: usize = 46;

/// Offset at which the segments of the subject's pools begin, in bytes.
fn data_of(subject: &Subject) -> u64 {
    (TABLE + subject.config.max_segments * 128).next_multiple_of(SEGMENT)
}

/// What the planted code forgets or does in the wrong order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgotten {
    /// The lines of an entry behind the first are not flushed.
    SecondLine,
    /// The last line of an entry or batch is not flushed, if there are three or more.
    LastLine,
    /// There is no fence after the flush of an entry, or after an entry that was stored around the caches.
    EntryFence,
    /// A descriptor's slot is not flushed before its commit word.
    SlotFlush,
    /// A descriptor's commit word is stored before its slot.
    WordBeforeSlot,
    /// The magic is written before the superblock.
    MagicFirst,
    /// A reused segment is not zeroed.
    Zeroing,
    /// The catalogue is not flushed.
    CatalogueFlush,
    /// There is no fence between the catalogue's slot and its commit word.
    FenceOfSlot,
    /// A sync of the store does not flush what was written at process level before.
    RelaxedFlush,
    /// An exchange of names does not flush what was written before.
    FlushBeforeSwap,
    /// A write on a file is acknowledged without a sync.
    SyncOfWrite,
    /// The catalogue on a file is changed without a sync between slot and commit word. (A descriptor would be safe: its
    /// slots share a sector with the commit word, and a sector is written as it is at some moment.)
    SyncOfSlot,
    /// The superblock's slot is not flushed before its commit word.
    SuperblockFlush,
    /// The superblock's commit word is not flushed.
    SuperblockWordFlush,
    /// The settled version is not flushed.
    SettledFlush,
    /// DEAD marks are not flushed.
    DeadMarkFlush,
    /// A segment on a file is freed without a sync of what was copied from it and marked dead. (The sync of the
    /// descriptor's slot would do as well, so it is forgotten, too.)
    SyncBeforeFree,
}

/// Bugs on media that need flushes.
pub const FLUSHES: [Forgotten; 13] = [
    Forgotten::SecondLine,
    Forgotten::LastLine,
    Forgotten::EntryFence,
    Forgotten::SlotFlush,
    Forgotten::WordBeforeSlot,
    Forgotten::MagicFirst,
    Forgotten::Zeroing,
    Forgotten::CatalogueFlush,
    Forgotten::RelaxedFlush,
    Forgotten::SuperblockFlush,
    Forgotten::SuperblockWordFlush,
    Forgotten::SettledFlush,
    Forgotten::DeadMarkFlush,
];

/// Bugs on media that keep the order of stores and need no flushes.
pub const ORDERS: [Forgotten; 4] = [Forgotten::WordBeforeSlot, Forgotten::MagicFirst, Forgotten::EntryFence, Forgotten::Zeroing];

/// Bugs on files.
pub const SYNCS: [Forgotten; 3] = [Forgotten::SyncOfWrite, Forgotten::SyncOfSlot, Forgotten::SyncBeforeFree];

fn erase(step: &mut Step) {
    *step = Step { pool: NOTE, what: What::Mark(0), ..*step };
}

/// The number of steps that differ from the subject's in a planted one.
pub fn changed_steps(subject: &Subject, planted: &Subject) -> usize {
    let steps = subject.recording.steps.iter().zip(&planted.recording.steps);
    steps.filter(|(before, after)| before.pool != after.pool || before.what != after.what).count()
}

/// Returns `subject` as if the code had forgotten something. Steps keep their positions.
pub fn plant(subject: &Subject, bug: Forgotten) -> Subject {
    let (mut planted, data) = (subject.clone(), data_of(subject));
    match bug {
        Forgotten::WordBeforeSlot => swap_words_and_slots(&mut planted.recording, data),
        Forgotten::MagicFirst => magic_first(&mut planted.recording),
        Forgotten::EntryFence => erase_entry_fences(&mut planted.recording, data),
        Forgotten::RelaxedFlush | Forgotten::FlushBeforeSwap => within(
            subject,
            &mut planted.recording,
            |deed| matches!((deed, bug), (Deed::Sync, Forgotten::RelaxedFlush) | (Deed::Swap(_), Forgotten::FlushBeforeSwap)),
            |what| matches!(what, What::Flush { off, .. } if *off >= data),
        ),
        Forgotten::SyncOfWrite => {
            within(subject, &mut planted.recording, |deed| matches!(deed, Deed::Write(..)), |what| matches!(what, What::Sync(_)))
        }
        // A sync is recorded as two steps, its beginning and its end.
        Forgotten::SyncOfSlot => erase_before_catalogue(&mut planted.recording, 2, |what| matches!(what, What::Sync(_))),
        Forgotten::SyncBeforeFree => erase_syncs_before_free(&mut planted.recording, data),
        Forgotten::FenceOfSlot => erase_before_catalogue(&mut planted.recording, 1, |what| matches!(what, What::Fence)),
        _ => planted.recording.steps.iter_mut().for_each(|step| forget(step, bug, data)),
    }
    planted
}

/// Edits one step on its own.
fn forget(step: &mut Step, bug: Forgotten, data: u64) {
    match (&mut step.what, bug) {
        (What::Flush { off, len }, Forgotten::SecondLine) if *off >= data => *len = (*len).min(64 - (*off % 64) as usize),
        (What::Flush { off, len }, Forgotten::LastLine) if *off >= data && *len > 192 => *len -= 64,
        (What::Flush { off, len: 56 }, Forgotten::SlotFlush) if (TABLE..data).contains(off) => erase(step),
        (What::Flush { off, .. }, Forgotten::CatalogueFlush) if (CATALOGUE..TABLE).contains(off) => erase(step),
        (What::Zeros { off, .. }, Forgotten::Zeroing) if *off >= data => erase(step),
        (What::Flush { off, .. }, Forgotten::SuperblockFlush) if SUPERBLOCK.contains(off) => erase(step),
        (What::Flush { off: SUPERBLOCK_WORD, len: 8 }, Forgotten::SuperblockWordFlush) => erase(step),
        (What::Flush { off: SETTLED, len: 8 }, Forgotten::SettledFlush) => erase(step),
        // No entry is that short.
        (What::Flush { off, len: 8 }, Forgotten::DeadMarkFlush) if *off >= data => erase(step),
        _ => {}
    }
}

/// Erases steps that satisfy `steps` within operations that satisfy `deeds`.
fn within(subject: &Subject, recording: &mut Recording, deeds: impl Fn(&Deed) -> bool, steps: impl Fn(&What) -> bool) {
    for done in subject.history.deeds.iter().filter(|done| deeds(&done.deed)) {
        recording.steps[done.begin..done.end].iter_mut().filter(|step| steps(&step.what)).for_each(erase);
    }
}

/// Erases each fence that follows the flush or the streaming of an entry in the same pool.
fn erase_entry_fences(recording: &mut Recording, data: u64) {
    let mut after_entry = vec![false; recording.initial.len()];
    for step in &mut recording.steps {
        let Some(after) = after_entry.get_mut(step.pool) else { continue };
        match step.what {
            What::Fence if *after => erase(step),
            What::Flush { off, .. } => *after = off >= data,
            What::Store { off, kind: StoreKind::Streaming, .. } => *after |= off >= data,
            _ => {}
        }
    }
}

/// Whether a step stores `len` bytes somewhere in `places`.
fn stores(step: &Step, places: &Range<u64>, len: usize) -> bool {
    matches!(&step.what, What::Store { off, bytes, .. } if places.contains(off) && bytes.len() == len)
}

/// Swaps each descriptor slot with the commit word that names it.
fn swap_words_and_slots(recording: &mut Recording, data: u64) {
    let steps = &mut recording.steps;
    for slot in 0..steps.len() {
        if stores(&steps[slot], &(TABLE..data), 56) {
            let pool = steps[slot].pool;
            let word = (slot + 1..steps.len()).find(|&at| steps[at].pool == pool && stores(&steps[at], &(TABLE..data), 8));
            if let Some(word) = word {
                steps.swap(slot, word);
            }
        }
    }
}

/// Erases the last `count` steps of some kind before each store of the catalogue's commit word, in the same pool.
fn erase_before_catalogue(recording: &mut Recording, count: usize, kind: impl Fn(&What) -> bool) {
    let steps = &mut recording.steps;
    for word in 0..steps.len() {
        if stores(&steps[word], &(CATALOGUE..CATALOGUE + 8), 8) {
            let of_kind = |&at: &usize| steps[at].pool == steps[word].pool && kind(&steps[at].what);
            let last: Vec<usize> = (0..word).rev().filter(of_kind).take(count).collect();
            last.into_iter().for_each(|at| erase(&mut steps[at]));
        }
    }
}

/// Erases the syncs between the last store to a segment and each commit word that frees one, in the same pool.
fn erase_syncs_before_free(recording: &mut Recording, data: u64) {
    let steps = &mut recording.steps;
    let frees = |step: &Step| stores(step, &(TABLE..data), 56) && matches!(&step.what, What::Store { bytes, .. } if bytes[STATE] == 0);
    for slot in 0..steps.len() {
        if !frees(&steps[slot]) {
            continue;
        }
        let pool = steps[slot].pool;
        let word = (slot + 1..steps.len()).find(|&at| steps[at].pool == pool && stores(&steps[at], &(TABLE..data), 8));
        let is_content = |step: &Step| step.pool == pool && matches!(step.what, What::Store { off, .. } if off >= data);
        let content = (0..slot).rev().find(|&at| is_content(&steps[at]));
        if let (Some(content), Some(word)) = (content, word) {
            let syncs = steps[content..word].iter_mut().filter(|step| step.pool == pool && matches!(step.what, What::Sync(_)));
            syncs.for_each(erase);
        }
    }
}

/// Swaps the magic of the lowest pool with the first store to its superblock.
fn magic_first(recording: &mut Recording) {
    let store_at = |step: &Step, wanted: u64| step.pool == 0 && matches!(step.what, What::Store { off, .. } if off == wanted);
    let superblock =
        recording.steps.iter().position(|step| matches!(step.what, What::Store { off, .. } if step.pool == 0 && SUPERBLOCK.contains(&off)));
    let magic = recording.steps.iter().position(|step| store_at(step, 0));
    if let (Some(superblock), Some(magic)) = (superblock, magic) {
        recording.steps.swap(superblock, magic);
    }
}

/// What counts as detecting a mistake of recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detection {
    /// The oracle finds a wrong answer. A refused image does not count: the mistake would make recovery refuse it, and
    /// nothing would be judged.
    Answer,
    /// A refusal counts, too: for the sound reference, and for mistakes whose nature it is to refuse.
    AnswerOrRefusal,
}

/// Judges what the reference recovery makes of images of `subject`; returns the number of images judged.
///
/// # Errors
/// The first detection: the number of images judged so far, this one included, and what was found.
pub fn hunt(subject: &Subject, mistake: Mistake, detection: Detection, budget: usize) -> Result<usize, (usize, String)> {
    let mut rng = ShadowRng::new(subject.config.seed);
    let steps = subject.recording.steps.len();
    let mut points: Vec<usize> = (0..budget.div_ceil(FEWEST)).map(|_| subject.born + rng.below(steps - subject.born + 1)).collect();
    points.sort_unstable();
    let mut machine = Machine::new(&subject.recording);
    let mut images = 0;
    for position in points {
        machine.advance_to(position);
        let expectation = Expectation::at(&subject.history, position);
        for (image, _) in machine.images(FEWEST, &mut rng) {
            images += 1;
            let judged = match recover(&image, subject.config.rules, mistake) {
                Ok(dump) => expectation.judge(&dump),
                Err(_) if detection == Detection::Answer => Ok(()),
                Err(refusal) => Err(refusal),
            };
            judged.map_err(|what| (images, what))?;
        }
    }
    Ok(images)
}
