//! The recorder finds a planted bug and passes its correct twin; each set of rules allows exactly the states that it
//! states.

use std::collections::BTreeSet;

use super::*;
use crate::tracer::{Emulate, StoreKind, SyncPhase, Tracer};

fn log() -> std::sync::Arc<ShadowLog> {
    let log = ShadowLog::new();
    log.attach(&[0; 2048]);
    log
}

fn word(log: &ShadowLog, off: u64, value: u64) {
    log.store(off, &value.to_le_bytes(), StoreKind::Plain);
}

fn persist(log: &ShadowLog, off: u64, len: usize) {
    log.flush(off, len);
    log.fence();
}

fn read(image: &[u8], off: usize) -> u64 {
    u64::from_le_bytes(image[off..off + 8].try_into().unwrap())
}

/// The values of words at the offsets over all images at the last crash point.
fn outcomes(log: &ShadowLog, rules: Emulate, offs: &[usize]) -> BTreeSet<Vec<u64>> {
    let images = log.images(rules, log.len(), 1000, &mut ShadowRng::new(1));
    images.iter().map(|image| offs.iter().map(|&off| read(image, off)).collect()).collect()
}

/// Offset of the value that [`insert`] writes: in another line and another sector than the token, because a sector
/// survives as it is at one moment.
const VALUE: usize = 1024;

/// Writes value and token, either as level hashing did (token first, one fence for both) or correctly.
fn insert(log: &ShadowLog, value_first: bool) {
    if value_first {
        word(log, VALUE as u64, 42);
        persist(log, VALUE as u64, 8);
        word(log, 0, 1);
    } else {
        word(log, 0, 1);
        word(log, VALUE as u64, 42);
        log.flush(VALUE as u64, 8);
    }
    persist(log, 0, 8);
}

fn finds_token_without_value(log: &ShadowLog, rules: Emulate) -> bool {
    let mut replay = log.replay(rules);
    let (mut rng, mut found) = (ShadowRng::new(7), false);
    loop {
        replay.for_each_image(100, &mut rng, |image, _| found |= read(image, 0) == 1 && read(image, VALUE) != 42);
        if !replay.step() {
            return found;
        }
    }
}

#[test]
fn planted_token_before_value_is_found_and_its_twin_passes() {
    let (bad, good) = (log(), log());
    insert(&bad, false);
    insert(&good, true);
    for rules in [Emulate::Adr, Emulate::Eadr] {
        assert!(finds_token_without_value(&bad, rules), "{rules:?}");
        assert!(!finds_token_without_value(&good, rules), "{rules:?}");
    }
    // On a file, fences promise nothing: even the right order needs syncs.
    assert!(finds_token_without_value(&good, Emulate::File));
}

#[test]
fn adr_allows_every_subset_until_flush_and_fence() {
    let log = log();
    word(&log, 0, 1);
    word(&log, 8, 2);
    let all: BTreeSet<Vec<u64>> = [[0, 0], [0, 2], [1, 0], [1, 2]].map(|v| v.to_vec()).into();
    assert_eq!(outcomes(&log, Emulate::Adr, &[0, 8]), all);
    log.flush(0, 8);
    assert_eq!(outcomes(&log, Emulate::Adr, &[0, 8]), all, "a flush alone promises nothing");
    log.fence();
    assert_eq!(outcomes(&log, Emulate::Adr, &[0, 8]), [vec![1, 2]].into(), "the whole line was flushed");
}

#[test]
fn adr_flush_covers_the_content_at_its_time() {
    let log = log();
    word(&log, 0, 1);
    log.flush(0, 8);
    word(&log, 0, 2);
    log.fence();
    assert_eq!(outcomes(&log, Emulate::Adr, &[0]), [vec![1], vec![2]].into());
}

#[test]
fn fence_of_another_thread_promises_nothing() {
    let log = log();
    word(&log, 0, 1);
    log.flush(0, 8);
    std::thread::scope(|s| {
        s.spawn(|| log.fence());
    });
    assert_eq!(outcomes(&log, Emulate::Adr, &[0]), [vec![0], vec![1]].into());
}

#[test]
fn streaming_stores_need_the_fence_only() {
    for rules in [Emulate::Adr, Emulate::Eadr] {
        let log = log();
        log.store(0, &7u64.to_le_bytes(), StoreKind::Streaming);
        assert_eq!(outcomes(&log, rules, &[0]), [vec![0], vec![7]].into());
        log.fence();
        assert_eq!(outcomes(&log, rules, &[0]), [vec![7]].into());
    }
}

/// A streaming store waits in the buffers of its processor, which another processor's flush and fence do not reach; its
/// own thread's fence makes it durable.
#[test]
fn another_threads_flush_makes_no_streaming_store_durable() {
    for fenced in [false, true] {
        let log = log();
        log.store(0, &7u64.to_le_bytes(), StoreKind::Streaming);
        if fenced {
            log.fence();
        }
        // In the same line, which is flushed as a whole.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                word(&log, 8, 8);
                persist(&log, 0, 64);
            });
        });
        let expected = if fenced { vec![vec![7, 8]] } else { vec![vec![0, 8], vec![7, 8]] };
        assert_eq!(outcomes(&log, Emulate::Adr, &[0, 8]), expected.into_iter().collect(), "fenced: {fenced}");
    }
}

#[test]
fn eadr_allows_prefixes_only() {
    let log = log();
    word(&log, 0, 1);
    word(&log, 64, 2);
    assert_eq!(outcomes(&log, Emulate::Eadr, &[0, 64]), [vec![0, 0], vec![1, 0], vec![1, 2]].into());
    log.fence();
    word(&log, 128, 3);
    assert_eq!(outcomes(&log, Emulate::Eadr, &[64, 128]), [vec![2, 0], vec![2, 3]].into());
}

#[test]
fn file_mixes_sectors_until_the_sync_returns() {
    let log = log();
    word(&log, 0, 1);
    word(&log, 512, 2);
    persist(&log, 0, 1024);
    let all: BTreeSet<Vec<u64>> = [[0, 0], [0, 2], [1, 0], [1, 2]].map(|v| v.to_vec()).into();
    assert_eq!(outcomes(&log, Emulate::File, &[0, 512]), all);
    log.sync(SyncPhase::Begin);
    word(&log, 0, 9);
    log.sync(SyncPhase::End);
    assert_eq!(outcomes(&log, Emulate::File, &[0, 512]), [vec![1, 2], vec![9, 2]].into(), "a store during the sync is not covered");
    log.sync(SyncPhase::Begin);
    log.sync(SyncPhase::Failed);
    assert_eq!(outcomes(&log, Emulate::File, &[0]).len(), 2, "a failed sync promises nothing");
}

#[test]
fn partial_words_keep_their_neighbours() {
    let log = log();
    word(&log, 0, 0x0101_0101_0101_0101);
    persist(&log, 0, 8);
    log.store(6, &[2, 2, 3], StoreKind::Plain);
    let low = 0x0101_0101_0101;
    let torn = low | 0x0202 << 48;
    let whole = low | 0x0101 << 48;
    assert_eq!(outcomes(&log, Emulate::Adr, &[0, 8]), [vec![whole, 0], vec![whole, 3], vec![torn, 0], vec![torn, 3]].into());
}

#[test]
fn large_histories_are_sampled_with_the_extremes() {
    let log = log();
    (0..128).for_each(|i| word(&log, i * 8, i + 1));
    let mut replay = log.replay(Emulate::Adr);
    replay.advance_to(log.len());
    let mut kinds = std::collections::HashMap::new();
    let before = replay.durable_for_test().to_vec();
    let shown = replay.for_each_image(200, &mut ShadowRng::new(3), |image, kind| {
        *kinds.entry(kind).or_insert(0) += 1;
        let kept = (0..128).filter(|&i| read(image, i * 8) != 0).count();
        match kind {
            ImageKind::AllLost => assert_eq!(kept, 0),
            ImageKind::AllKept => assert_eq!(kept, 128),
            ImageKind::OneLineLost => assert_eq!(kept, 120),
            ImageKind::OneLineKept => assert_eq!(kept, 8),
            _ => {}
        }
    });
    assert_eq!(shown, 200);
    assert_eq!((kinds[&ImageKind::AllLost], kinds[&ImageKind::OneLineLost], kinds[&ImageKind::OneLineKept]), (1, 16, 16));
    assert!(kinds[&ImageKind::Sampled] > 100);
    assert_eq!(replay.durable_for_test(), before, "images are undone");
}

/// Tests that combine the images of several pools pair the first two of each list: everything lost, everything kept.
#[test]
fn small_histories_begin_with_the_extremes_and_show_each_image_once() {
    for words in 1..4u64 {
        let log = log();
        // Two stores for each word, the first of which may survive alone.
        (0..2 * words).for_each(|i| word(&log, i % words * 64, i + 1));
        let images = log.images(Emulate::Adr, log.len(), 1000, &mut ShadowRng::new(1));
        let seen: Vec<Vec<u64>> = images.iter().map(|image| (0..words).map(|i| read(image, (i * 64) as usize)).collect()).collect();
        assert_eq!(seen[0], vec![0; words as usize]);
        assert_eq!(seen[1], (0..words).map(|i| i + 1 + words).collect::<Vec<_>>());
        assert_eq!(seen.len(), 3usize.pow(words as u32));
        assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), seen.len());
    }
}

#[test]
fn marks_tell_what_was_acknowledged_before_the_crash() {
    let log = log();
    log.mark(1);
    word(&log, 0, 1);
    log.mark(2);
    let mut replay = log.replay(Emulate::Adr);
    replay.advance_to(2);
    assert_eq!(replay.marks(), [1]);
    replay.advance_to(99);
    assert_eq!((replay.marks(), replay.position()), (&[1, 2][..], 3));
}
