//! Planted bugs, each caught by the part of the suite that aims at it. The sound twin with the same pauses passes.

use crate::btree::BTree;
use crate::btree::protocol::Rule;
use crate::common::twins::{Twin, assert_caught, with_sound_twins};
use crate::conformance::ordered::concurrent;

macro_rules! caught {
    ($test:ident, $rule:ident, $part:path) => {
        #[test]
        fn $test() {
            assert_caught(Rule::$rule, || $part(BTree::<Twin>::new, 0), 40);
        }
    };
}

caught!(a_scan_that_does_not_validate, ScanValidates, concurrent::scans_see_what_stays);
caught!(a_sibling_published_before_it_is_linked, LinkFirst, concurrent::gets_see_what_stays);
caught!(a_root_split_in_steps, RootAtomic, concurrent::roots_grow_and_shrink);
caught!(a_leaf_unlinked_in_steps, UnlinkAtomic, concurrent::leaves_empty_and_fill);
caught!(a_descent_without_coupling, Coupled, concurrent::gets_see_what_stays);
caught!(a_claim_that_does_not_exclude, ClaimsExclude, concurrent::places_exclude);
caught!(a_hint_that_does_not_hold, HintsHold, concurrent::hints_beside_writers);
caught!(an_inner_node_that_keeps_its_bounds, BoundsHold, concurrent::gets_see_what_stays);

/// For runs overnight: `cargo test -p hither-index --release -- --ignored soak`.
#[test]
#[ignore = "takes minutes"]
fn soak() {
    let make = BTree::<Twin>::new;
    with_sound_twins(|| {
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
    });
}
