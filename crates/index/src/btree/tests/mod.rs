//! White-box tests.

use super::BTreeIndex;

#[test]
fn conformance_ordered() {
    crate::conformance::ordered::run_all(BTreeIndex::new);
}
