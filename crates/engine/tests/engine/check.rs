//! A check beside the store's own work: it must see one state of the store.

use hither_engine::{Condition, Kind, Options, Store, WriteOptions};
use std::sync::atomic::{AtomicBool, Ordering};

/// Found by the model test `in_memory`: the sweeper removed an expired key between the count of what the indexes hold
/// and that of what is accounted for.
#[test]
fn a_check_beside_the_sweeper_finds_nothing() {
    let store = Store::open(Options { in_memory: true, background: false, ..Options::default() }).unwrap();
    let keyspace = store.create_keyspace("k", Kind::Ordered).unwrap();
    let past = WriteOptions::new().expires_at_ms(1);
    for round in 0..5u64 {
        for key in 0..4_000u64 {
            store.write(&keyspace, &key.to_be_bytes(), Some(b"expired"), Condition::None, &past).unwrap().2.wait().unwrap();
        }
        let swept = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                store.sweep_expired();
                swept.store(true, Ordering::Release);
            });
            loop {
                let last = swept.load(Ordering::Acquire);
                let report = store.check().unwrap();
                assert!(report.is_sound(), "round {round}: {:?}", report.problems);
                if last {
                    break;
                }
            }
        });
        assert!(keyspace.is_empty(), "{} keys are left", keyspace.len());
    }
}
