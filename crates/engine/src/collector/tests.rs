use super::*;
use crate::{Kind, Options, Store};
use hither_topology::Topology;
use std::sync::{Arc, Barrier};

/// A batch says of what it replaces that it is garbage before it is durable itself. A collector that has passed over such an entry must not free it before.
#[test]
fn victims_are_freed_only_when_sections_under_way_have_ended() {
    let options = Options {
        in_memory: true,
        capacity: 1 << 20,
        max_capacity: 1 << 20,
        segment_bytes: 16 << 10,
        shards: 1,
        topology: Some(Arc::new(Topology::single())),
        background: false,
        ..Options::default()
    };
    let store = Store::open(options).unwrap();
    let keyspace = store.create_keyspace("keys", Kind::Hash).unwrap();
    for key in 0..4000u64 {
        store.write_wait(&keyspace, &(key % 1000).to_be_bytes(), Some(&[7; 48])).unwrap();
    }
    let core = &store.core;
    core.seal(TakeBack::All).unwrap();
    let wanted = Wanted { node: None, need: Need::Any, least: 0.1, first: false, turn: Turn::Pass };
    let mut passes = core.begin_passes(&wanted, Growth::None).unwrap();
    assert!(passes.len() == 1 && core.run_pass(&passes[0], Growth::None).unwrap());
    let (begun, ended) = (Barrier::new(2), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _section = epoch::pin_writer();
            begun.wait();
            std::thread::sleep(Duration::from_millis(50));
            ended.store(true, Ordering::SeqCst);
        });
        begun.wait();
        assert_eq!(core.free_victims(std::mem::take(&mut passes)).unwrap(), 1);
        assert!(ended.load(Ordering::SeqCst), "a section is under way still");
    });
}
