//! What a crash has torn, and what is written afterwards.

use crate::common::{crash, damage, get, put, small};
use hither_engine::{CheckpointMode, Durability, Kind, MediumChoice, Options, Store};
use std::path::Path;

/// Regression: a segment went on being filled right behind the last line of a torn entry that was there. Where a byte of
/// the torn entry was missing, one new entry in 256 began with that byte. Then the torn entry was whole, and the next
/// restart saw it instead of the new one, which was lost. (Found by the explorer.)
#[test]
fn nothing_is_written_into_the_space_of_a_torn_entry() {
    let options = |dir: &Path| Options {
        paths: vec![(None, dir.to_owned())],
        medium: MediumChoice::File,
        durability: Durability::Sync,
        checkpoints: CheckpointMode::Off,
        shards: 1,
        ..small()
    };
    for missing in [1, 2, 8, 9] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(options(dir.path())).unwrap();
        // A head of 24 bytes, a key of 3; so these last bytes of the value lie in a line of their own.
        let torn = vec![b'v'; 64 - 27 + missing];
        put(&store, &store.create_keyspace("k", Kind::Hash).unwrap(), b"key", &torn);
        let crashed = crash(dir.path());
        drop(store);
        let pool = crashed.path().join("node0.hither");
        damage(&pool, &torn, |value| value[torn.len() - missing..].fill(0));
        let place = |held: &[u8]| std::fs::read(&pool).unwrap().windows(held.len()).rposition(|window| window == held).unwrap();
        let begins = place(&torn[..torn.len() - missing]) - 27;

        let store = Store::open(options(crashed.path())).unwrap();
        let keyspace = store.open_keyspace("k").unwrap();
        assert_eq!((get(&store, &keyspace, b"key"), store.recovery().torn), (None, 1), "{missing}");
        put(&store, &keyspace, b"new", b"the next value");
        let next = place(b"the next value") - 27;
        assert!(next >= begins + 64 + missing, "{missing} bytes are missing behind {begins}, and {next} is the next entry");
        let again = crash(crashed.path());
        drop((store, keyspace));
        let store = Store::open(options(again.path())).unwrap();
        assert_eq!(get(&store, &store.open_keyspace("k").unwrap(), b"new").as_deref(), Some(&b"the next value"[..]), "{missing}");
    }
}
