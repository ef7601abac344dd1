//! Planted bugs, each caught by the part of the suite that aims at it; the unplanted twin with the same pauses passes.

use crate::btree::BTree;
use crate::common::twins::{BlindScan, LateUnlink, LooseClaim, LooseHint, Paused, TornRoot, Uncoupled, UnlinkedSibling, runs_to_failure};
use crate::conformance::ordered::concurrent;

macro_rules! caught {
    ($test:ident, $twin:ident, $part:path) => {
        #[test]
        fn $test() {
            let runs = runs_to_failure(|| $part(BTree::<$twin>::new, 0), 40);
            assert!(runs.is_some(), "the planted bug goes unnoticed");
            assert_eq!(runs_to_failure(|| $part(BTree::<Paused>::new, 0), 2), None, "the sound twin passes");
        }
    };
}

caught!(a_scan_that_does_not_validate, BlindScan, concurrent::scans_see_what_stays);
caught!(a_sibling_published_before_it_is_linked, UnlinkedSibling, concurrent::gets_see_what_stays);
caught!(a_root_split_in_steps, TornRoot, concurrent::roots_grow_and_shrink);
caught!(a_leaf_unlinked_in_steps, LateUnlink, concurrent::leaves_empty_and_fill);
caught!(a_descent_without_coupling, Uncoupled, concurrent::gets_see_what_stays);
caught!(a_claim_that_does_not_exclude, LooseClaim, concurrent::places_exclude);
caught!(a_hint_that_does_not_hold, LooseHint, concurrent::hints_beside_writers);

/// For nights: `cargo test -p hither-index --release -- --ignored soak`.
#[test]
#[ignore = "takes minutes"]
fn soak() {
    let make = BTree::<Paused>::new;
    for round in 0..60 {
        concurrent::scans_see_what_stays(make, round);
        concurrent::gets_see_what_stays(make, round);
        concurrent::leaves_empty_and_fill(make, round);
        concurrent::layers_come_and_go(make, round);
        concurrent::roots_grow_and_shrink(make, round);
        concurrent::installs_exclude(make, round);
        concurrent::places_exclude(make, round);
        concurrent::hints_beside_writers(make, round);
    }
}
