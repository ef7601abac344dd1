//! The explorer finds every planted bug and passes the sound twins. The tests print the number of images up to the
//! detection.

use hither_engine::Kind;
use hither_pmem::Emulate;
use hither_pmem::shadow::{ImageKind, What};
use hither_testkit::coverage::Item;
use hither_testkit::explorer::{Failure, MEDIA, Subject, crash_points, explore, explore_at};
use hither_testkit::explorer_histories::{batches, full, mixed, swaps};
use hither_testkit::explorer_script::{Config, Level, Life};
use hither_testkit::oracle::{Contents, Deed, Done, Dump, Effect, Expectation, History};
use hither_testkit::planted::{Detection, FLUSHES, Forgotten, ORDERS, SYNCS, changed_steps, hunt, plant};
use hither_testkit::reference::{MISTAKES, Mistake};
use std::collections::BTreeMap;

/// The most images that finding a bug may take.
const PATIENCE: usize = 6000;

fn subjects(rules: Emulate, nodes: usize, seed: u64) -> [Subject; 3] {
    let config = Config { rules, nodes, shards: 1, max_segments: 40, seed };
    [mixed(&config, 60), batches(&config), full(&config)]
}

/// Requires that what was found in a planted subject is due to the plant: at the same crash points with the same
/// budget, nothing is wrong with the subject itself.
fn attribute(subject: &Subject, planted: &Subject, budget: usize, failure: &Failure) {
    explore_at(subject, planted, failure.position, budget)
        .unwrap_or_else(|other| panic!("the sound twin fails, too: {other}\nplanted: {failure}"));
}

/// Looks for a bug in these subjects, as far as it changes them; the number of images, and what was found.
fn hunt_plant(rounds: &[[Subject; 3]], bug: Forgotten) -> (usize, Option<String>) {
    let planted: Vec<_> = rounds.iter().flatten().map(|subject| (subject, plant(subject, bug))).collect();
    let planted: Vec<_> = planted.into_iter().filter(|(subject, planted)| changed_steps(subject, planted) > 0).collect();
    assert!(!planted.is_empty(), "{bug:?} changes no step of any history");
    let mut images = 0;
    // The same histories again with a larger budget, which adds other crash points.
    let tries = [200, 600, 1800].into_iter().flat_map(|budget| planted.iter().map(move |pair| (pair, budget)));
    for ((subject, planted), budget) in tries {
        match explore(planted, budget) {
            Ok(outcome) => images += outcome.images,
            Err(failure) => {
                attribute(subject, planted, budget, &failure);
                return (images + failure.images, Some(failure.what.clone()));
            }
        }
        if images > PATIENCE {
            break;
        }
    }
    (images, None)
}

fn find(rules: Emulate, nodes: usize, bugs: &[Forgotten]) {
    // On two nodes, two rounds have steps for each bug to change.
    let rounds: Vec<_> = (1..if nodes == 1 { 4 } else { 3 }).map(|seed| subjects(rules, nodes, seed)).collect();
    for subject in rounds.iter().flatten() {
        explore(subject, 100).unwrap_or_else(|failure| panic!("the sound twin: {failure}"));
    }
    for &bug in bugs {
        let (images, found) = hunt_plant(&rounds, bug);
        let what = found.unwrap_or_else(|| panic!("{bug:?} was not found in {images} images"));
        assert!(!what.starts_with("panic:"), "{bug:?} is told, not met by chance: {what}");
        println!("{rules:?} {bug:?}, nodes {nodes}: found after {images} images: {}", what.chars().take(160).collect::<String>());
    }
}

#[test]
fn forgotten_flushes_are_found() {
    find(Emulate::Adr, 1, &FLUSHES);
}

#[test]
fn forgotten_flushes_are_found_on_two_nodes() {
    find(Emulate::Adr, 2, &FLUSHES);
}

#[test]
fn wrong_orders_are_found_where_caches_persist() {
    find(Emulate::Eadr, 1, &ORDERS);
}

#[test]
fn wrong_orders_are_found_where_caches_persist_on_two_nodes() {
    find(Emulate::Eadr, 2, &ORDERS);
}

/// Moved entries, too, are stored around the caches. If the planted bug lost those, it would be found for another
/// reason.
#[test]
fn forgotten_zeroing_takes_zeros_alone() {
    let subject = batches(&Config { rules: Emulate::Adr, nodes: 1, shards: 1, max_segments: 40, seed: 1 });
    assert!(!subject.coverage.missing().contains(&Item::Moved), "nothing was moved");
    let planted = plant(&subject, Forgotten::Zeroing);
    let steps = subject.recording.steps.iter().zip(&planted.recording.steps);
    let erased: Vec<_> = steps.filter(|(before, after)| before.pool != after.pool).map(|(before, _)| &before.what).collect();
    assert!(!erased.is_empty());
    assert!(erased.iter().all(|what| matches!(what, What::Zeros { .. })), "{} steps were taken out", erased.len());
}

#[test]
fn forgotten_syncs_are_found() {
    find(Emulate::File, 1, &SYNCS);
}

/// If an exchange of two pairs of names is written pair by pair, a crash leaves one pair exchanged and the other not.
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
    let subject = swaps(&config, false);
    let planted = plant(&subject, Forgotten::FlushBeforeSwap);
    assert!(changed_steps(&subject, &planted) > 0);
    let failure = explore(&planted, PATIENCE).expect_err("it was not found");
    attribute(&subject, &planted, PATIENCE, &failure);
    assert!(!failure.what.starts_with("panic:"), "{}", failure.what);
    println!("FlushBeforeSwap: found after {} images: {}", failure.images, failure.what);
}

/// Creates keyspaces while the other node has unawaited writes. From the first such write on, both nodes have lines
/// that a power loss may take.
fn creations(config: &Config) -> Subject {
    let mut life = Life::begin(config);
    let one = life.create("one", Kind::Hash);
    life.bind(1);
    let mut from = 0;
    for number in 0..6u8 {
        let value = life.value(100);
        life.write(one, &[number], Some(value), Level::Process, false);
        if number == 0 {
            from = life.recorder.position();
        }
        life.create(&format!("keyspace {number}"), Kind::Hash);
    }
    life.finish(from)
}

/// Images in which everything is lost or everything is kept do not show the bug. The commit word has to become durable
/// without its slot while lines of the other node are pending, too.
#[test]
fn a_fence_that_one_line_of_one_of_two_nodes_needs_is_missed() {
    let subject = creations(&Config { rules: Emulate::Adr, nodes: 2, shards: 1, max_segments: 40, seed: 1 });
    // The budget gives each point the fewest images.
    let budget = hither_testkit::images::FEWEST * crash_points(&subject).len();
    explore(&subject, budget).unwrap_or_else(|failure| panic!("the sound twin: {failure}"));
    let planted = plant(&subject, Forgotten::FenceOfSlot);
    assert!(changed_steps(&subject, &planted) > 0);
    let failure = explore(&planted, budget).expect_err("it was not found");
    attribute(&subject, &planted, budget, &failure);
    println!("FenceOfSlot: found after {} images: {failure}", failure.images);
    assert!(failure.what.contains("catalogue"), "{}", failure.what);
    assert!(!matches!(failure.kind, ImageKind::AllLost | ImageKind::AllKept), "{failure}");
}

/// Mistakes that show in no answer after the first crash of a store. A collector settles the batch of an entry before
/// it marks the entry dead, so ignoring the entry changes no answer. (Recovery marks entries before it settles their
/// batches, so a second crash could reveal the mistake; these histories have one crash.) The mistake shows only because
/// a full segment has fewer entries than were sealed in it, and that is a refusal.
const REFUSED: [Mistake; 1] = [Mistake::DeadBreaksChecksum];

/// Hunts a mistake in all rounds: the number of images judged, and the first detection.
fn hunt_all(rounds: &[[Subject; 3]], mistake: Mistake, detection: Detection) -> (usize, Option<String>) {
    let mut images = 0;
    let found = rounds.iter().flatten().find_map(|subject| match hunt(subject, mistake, detection, 600) {
        Ok(seen) => {
            images += seen;
            None
        }
        Err((seen, what)) => {
            images += seen;
            Some(what)
        }
    });
    (images, found)
}

#[test]
fn mistakes_of_recovery_are_found() {
    let rounds: Vec<_> = (1..5).map(|seed| subjects(Emulate::Adr, 1, seed)).collect();
    let mut sound = 0;
    for subject in rounds.iter().flatten() {
        let agreed = hunt(subject, Mistake::None, Detection::AnswerOrRefusal, 200);
        sound += agreed.unwrap_or_else(|(_, what)| panic!("the sound twin: {what}"));
    }
    println!("the sound reference agrees on {sound} images");
    for mistake in MISTAKES {
        let detection = if REFUSED.contains(&mistake) { Detection::AnswerOrRefusal } else { Detection::Answer };
        let (images, found) = hunt_all(&rounds, mistake, detection);
        let what = found.unwrap_or_else(|| panic!("{mistake:?} was not found in {images} images"));
        println!("{mistake:?}: found after {images} images: {}", what.chars().take(160).collect::<String>());
    }
}

/// The judged store lost a write at process level, although only the process died.
#[test]
fn losses_by_a_kill_are_found() {
    let effect = Effect { keyspace: 0, key: b"k".to_vec(), value: Some(b"v".to_vec()), expired: false };
    let done = |begin, deed| Done { begin, end: begin + 1, deed };
    let deeds = vec![done(0, Deed::Create(0)), done(1, Deed::Write(vec![effect], false))];
    let history = History { keyspaces: vec![("one".to_owned(), Kind::Hash)], deeds };
    let holds = |pairs: BTreeMap<Vec<u8>, Vec<u8>>| {
        let len = pairs.len();
        Dump { keyspaces: BTreeMap::from([("one".to_owned(), Contents { kind: Kind::Hash, pairs, len })]) }
    };
    let (lost, kept) = (holds(BTreeMap::new()), holds(BTreeMap::from([(b"k".to_vec(), b"v".to_vec())])));
    assert_eq!(Expectation::at(&history, 2).judge(&lost), Ok(()), "a power loss may take it");
    assert!(Expectation::at_kill(&history, 2).judge(&lost).is_err());
    assert_eq!(Expectation::at_kill(&history, 2).judge(&kept), Ok(()));
    assert_eq!(Expectation::at_kill(&history, 1).judge(&lost), Ok(()), "it has not begun");
}
