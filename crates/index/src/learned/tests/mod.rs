//! White-box tests.

use super::LearnedIndex;
use crate::conformance::{ordered, point};

#[test]
fn conformance_ordered() {
    ordered::run_all(LearnedIndex::new);
}

#[test]
fn conformance_point() {
    point::run_all(LearnedIndex::new);
}
