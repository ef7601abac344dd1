//! Crashes the production engine at many points and recovers it, on every medium.
//!
//! `HITHER_EXPLORE_BUDGET` sets the number of images per test (default: a few seconds each), `HITHER_SEED` the seed of
//! the first history.

use hither_pmem::Emulate;
use hither_testkit::coverage::{Coverage, Item};
use hither_testkit::explorer::{MEDIA, budget, crash_points, explore, seed};
use hither_testkit::explorer_histories::{
    batches, batches_of_pairs, checkpoints, collections, deletes_in_batches, full, large, mixed, pairs, swaps,
};
use hither_testkit::explorer_script::Config;
use std::time::Instant;

/// The most seeds to try for items that were not reached.
const MOST_HISTORIES: u64 = 30;

fn run(rules: Emulate, nodes: usize) {
    let (budget, first, started) = (budget(2000), seed(1), Instant::now());
    let mut coverage = Coverage::default();
    let (mut images, mut points, mut deep, mut histories) = (0, 0, 0, 0);
    let missing = |coverage: &Coverage| {
        // On eADR stores become durable in their order, so no child outlives its parent; on files that is rare.
        let wanted = |item: &Item| rules == Emulate::Adr || *item != Item::ChainMended;
        coverage.missing().into_iter().filter(wanted).collect::<Vec<_>>()
    };
    // At least two seeds, because the collector changes with the shards. Items that are rare in a history may need more
    // seeds, which get a small share each.
    while images < budget || histories < 2 || histories < MOST_HISTORIES && !missing(&coverage).is_empty() {
        let number = first + histories;
        let config = Config { rules, nodes, shards: 1 + (number % 2) as u32, max_segments: 40, seed: number };
        let share = if images < budget { (budget / 16).max(60) } else { 60 };
        let long = [
            mixed(&config, 60),
            large(&config, 12),
            full(&config),
            batches(&config),
            collections(&config),
            checkpoints(&config, 60),
            pairs(&config),
            batches_of_pairs(&config),
            swaps(&config, false),
        ];
        for subject in long {
            let outcome = explore(&subject, share).unwrap_or_else(|failure| panic!("{failure}"));
            images += outcome.images;
            points += outcome.points;
            deep += outcome.deep;
            coverage.merge(&outcome.coverage);
        }
        histories += 1;
    }
    let rate = images as f64 / started.elapsed().as_secs_f64();
    println!("{rules:?}, {nodes} nodes: {images} images at {points} crash points of {histories} seeds, {deep} deep, {rate:.0} images/s");
    println!("  covered: {coverage}");
    println!("HITHER_COUNT explorer_images {images}\nHITHER_COUNT explorer_points {points}\nHITHER_COUNT explorer_deep {deep}");
    let missing = missing(&coverage);
    assert!(missing.is_empty(), "never reached: {missing:?}");
}

/// Regression: the oracle assumed that a batch's delete of an absent key has no effect. If an earlier delete was lost,
/// and only that one was left, the oracle reported that the lost batch was there in part.
#[test]
fn a_delete_may_be_all_that_keeps_a_key_gone() {
    for rules in MEDIA {
        let config = Config { rules, nodes: 1, shards: 1, max_segments: 40, seed: seed(1) };
        explore(&deletes_in_batches(&config), 1500).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// Explores every crash point of short histories and, where there are few images, every image.
#[test]
fn short_histories_exhaustively() {
    let (budget, mut images) = (budget(2000).max(2000), 0);
    for number in seed(1)..seed(1) + 4 {
        for rules in MEDIA {
            let config = Config { rules, nodes: 1, shards: 1, max_segments: 12, seed: number };
            let subject = mixed(&config, 2);
            let outcome = explore(&subject, budget / 2).unwrap_or_else(|failure| panic!("{failure}"));
            assert_eq!(outcome.points, crash_points(&subject).len(), "the history is too long for the budget");
            images += outcome.images;
        }
    }
    println!("short histories: {images} images");
    println!("HITHER_COUNT explorer_images {images}");
}

/// A failure names a seed. With that seed everything must happen again, the store's random numbers included.
///
/// Regression: of two sweeps within one millisecond the second had no later time to store, so that a recording had
/// three steps less.
#[test]
fn an_exploration_can_be_repeated() {
    for (rules, nodes, shards, seed) in [(Emulate::Adr, 1, 1, 5), (Emulate::File, 2, 2, 6)] {
        let config = Config { rules, nodes, shards, max_segments: 40, seed };
        for history in
            [|config: &Config| large(config, 12), collections, |config: &Config| checkpoints(config, 60), pairs, batches_of_pairs]
        {
            let run = || {
                let subject = history(&config);
                let outcome = explore(&subject, 60).unwrap_or_else(|failure| panic!("{failure}"));
                (subject.recording.steps.len(), outcome.images, outcome.deep, outcome.coverage.to_string())
            };
            assert_eq!(run(), run());
        }
    }
}

/// Recovery marks the members of an incomplete batch, and then the entries hidden by children of those members. If the
/// power fails between the two, the next recovery must complete both. Once it ignored the marked members and so never
/// found the children.
#[test]
fn a_recovery_that_was_cut_short_is_completed() {
    for number in 1..4 {
        let config = Config { rules: Emulate::Adr, nodes: 1, shards: 1 + (number % 2) as u32, max_segments: 40, seed: number };
        explore(&batches(&config), 375).unwrap_or_else(|failure| panic!("batches {failure}"));
        explore(&mixed(&config, 60), 375).unwrap_or_else(|failure| panic!("mixed {failure}"));
    }
}

#[test]
fn adr_one_node() {
    run(Emulate::Adr, 1);
}

#[test]
fn adr_two_nodes() {
    run(Emulate::Adr, 2);
}

#[test]
fn eadr_one_node() {
    run(Emulate::Eadr, 1);
}

#[test]
fn eadr_two_nodes() {
    run(Emulate::Eadr, 2);
}

#[test]
fn file_one_node() {
    run(Emulate::File, 1);
}

#[test]
fn file_two_nodes() {
    run(Emulate::File, 2);
}
