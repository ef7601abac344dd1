//! Settings, levels and handles at their edges.

use hither::{Db, Error};
use std::time::Duration;

/// Found by review: the end of the wait was beyond what a clock can show, and the write panicked.
#[test]
fn patience_may_have_no_end() {
    let db = Db::builder().in_memory().capacity(1 << 20).max_capacity(1 << 20).space_patience(Duration::MAX).open().unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let refused = (0..10_000u64).find_map(|key| keyspace.put(&key.to_be_bytes(), &[1; 500]).err());
    assert!(matches!(refused, Some(Error::Full { .. })), "what cannot be had is refused all the same: {refused:?}");
}
