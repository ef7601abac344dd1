//! The protocol of writers, collector, checkpointer and recovery: the model passes, and reports a violation for every
//! rule that is taken out.
//!
//! `cargo test --release -p hither-testkit --test testkit protocol -- --ignored --nocapture` walks the full bounds.
//! `docs/testing.md` explains what is printed.

use hither_testkit::protocol::step::KINDS;
use hither_testkit::protocol::{Bounds, Flaw, explore, scenarios};

fn passes(all: &[Bounds]) {
    let mut taken = vec![0; KINDS.len()];
    let (mut states, mut images, mut dropped, mut repairs) = (0, 0, 0, 0);
    for bounds in all {
        let outcome = explore(bounds).unwrap_or_else(|violation| panic!("{:?}, {}:\n{violation}", bounds.medium, bounds.name));
        println!(
            "{:?}, {}: {} states, {} steps, {} images recovered, depth {}",
            bounds.medium, bounds.name, outcome.states, outcome.steps, outcome.images, outcome.depth
        );
        taken.iter_mut().zip(&outcome.taken).for_each(|(sum, times)| *sum += times);
        (states, images) = (states + outcome.states, images + outcome.images);
        (dropped, repairs) = (dropped + outcome.batches_dropped, repairs + outcome.repairs);
    }
    println!("HITHER_COUNT protocol_states {states}\nHITHER_COUNT protocol_images {images}");
    println!("recoveries that dropped a batch: {dropped}, that repaired a chain: {repairs}");
    for (kind, times) in KINDS.iter().zip(&taken) {
        println!("{kind:>16} {times}");
        assert!(*times > 0, "no {kind} was ever taken: the bounds do not reach it");
    }
    assert!(dropped > 0 && repairs > 0, "recovery was never put to the test");
}

#[test]
fn the_protocol_holds() {
    passes(&scenarios::reduced());
}

#[test]
#[ignore = "a minute of exploration, in release"]
fn the_protocol_holds_in_wide_bounds() {
    passes(&scenarios::full());
}

#[test]
fn every_rule_is_missed_when_it_is_taken_out() {
    for flaw in Flaw::ALL {
        let bounds = scenarios::that_misses(flaw);
        match explore(&bounds) {
            Ok(outcome) => panic!("{flaw:?} hurts nobody in {} states of \"{}\"", outcome.states, bounds.name),
            Err(violation) => println!("{flaw:?}: found after {} states in \"{}\"\n{violation}\n", violation.states, bounds.name),
        }
    }
}
