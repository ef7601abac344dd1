//! The explorer finds every planted bug, and passes the sound twins. Images to detection are printed.

use hither_pmem::Emulate;
use hither_testkit::explorer::{MEDIA, Subject, explore};
use hither_testkit::explorer_histories::{batches, full, mixed, swaps};
use hither_testkit::explorer_script::Config;
use hither_testkit::planted::{FLUSHES, Forgotten, SYNCS, hunt, plant};
use hither_testkit::reference::{MISTAKES, Mistake};

/// Images that a bug may take.
const PATIENCE: usize = 6000;

fn subjects(rules: Emulate, seed: u64) -> [Subject; 3] {
    let config = Config { rules, nodes: 1, shards: 1, max_segments: 40, seed };
    [mixed(&config, 60), batches(&config), full(&config)]
}

fn find(rules: Emulate, bugs: &[Forgotten]) {
    let rounds: Vec<_> = (1..4).map(|seed| subjects(rules, seed)).collect();
    for subject in rounds.iter().flatten() {
        explore(subject, 100).unwrap_or_else(|failure| panic!("the sound twin: {failure}"));
    }
    for &bug in bugs {
        let mut images = 0;
        let mut found = None;
        // The same histories again with a larger budget: other crash points.
        let tries = [200, 600, 1800].into_iter().flat_map(|budget| rounds.iter().flatten().map(move |subject| (subject, budget)));
        for (subject, budget) in tries {
            match explore(&plant(subject, bug), budget) {
                Ok(outcome) => images += outcome.images,
                Err(failure) => {
                    found = Some(failure.what.clone());
                    images += failure.images;
                    break;
                }
            }
            if images > PATIENCE {
                break;
            }
        }
        let what = found.unwrap_or_else(|| panic!("{bug:?} was not found in {images} images"));
        println!("{rules:?} {bug:?}: found after {images} images: {}", what.chars().take(160).collect::<String>());
    }
}

#[test]
fn forgotten_flushes_are_found() {
    find(Emulate::Adr, &FLUSHES);
}

#[test]
fn forgotten_syncs_are_found() {
    find(Emulate::File, &SYNCS);
}

/// An exchange of two pairs of names, written pair by pair, leaves one exchanged and the other not.
#[test]
fn swaps_in_two_steps_are_found() {
    for rules in MEDIA {
        let config = Config { rules, nodes: 1, shards: 1, max_segments: 40, seed: 1 };
        explore(&swaps(&config, false), PATIENCE).unwrap_or_else(|failure| panic!("the sound twin: {failure}"));
        let failure = explore(&swaps(&config, true), PATIENCE).expect_err("a swap in two steps was not found");
        println!("{rules:?} swap in two steps: found after {} images: {}", failure.images, failure.what);
        assert!(failure.what.contains("neither before a swap"), "{}", failure.what);
    }
}

#[test]
fn swaps_that_forget_what_was_written_before_are_found() {
    let config = Config { rules: Emulate::Adr, nodes: 1, shards: 1, max_segments: 40, seed: 1 };
    let failure = explore(&plant(&swaps(&config, false), Forgotten::FlushBeforeSwap), PATIENCE).expect_err("it was not found");
    println!("FlushBeforeSwap: found after {} images: {}", failure.images, failure.what);
}

#[test]
fn mistakes_of_recovery_are_found() {
    let rounds: Vec<_> = (1..5).map(|seed| subjects(Emulate::Adr, seed)).collect();
    let mut sound = 0;
    for subject in rounds.iter().flatten() {
        sound += hunt(subject, Mistake::None, 200).unwrap_or_else(|(_, what)| panic!("the sound twin: {what}"));
    }
    println!("the sound reference agrees on {sound} images");
    for mistake in MISTAKES {
        let mut images = 0;
        let found = rounds.iter().flatten().find_map(|subject| match hunt(subject, mistake, 600) {
            Ok(seen) => {
                images += seen;
                None
            }
            Err((seen, what)) => {
                images += seen;
                Some(what)
            }
        });
        let what = found.unwrap_or_else(|| panic!("{mistake:?} was not found in {images} images"));
        println!("{mistake:?}: found after {images} images: {}", what.chars().take(160).collect::<String>());
    }
}
