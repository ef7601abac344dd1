//! The golden images of format version 1: stores written by an earlier program, which every later program must read.
//!
//! `tests/data/format1-clean` was closed; `format1-open` was copied while it was open (a crash of the process). Each
//! has two pools, both kinds of keyspace, entries plain and with lengths, keyspaces and expiry, a batch over both
//! nodes' keys, tombstones, and a run of segments. [`crate::golden_layouts`] has the layouts that they lack.
//!
//! The files are stored with runs of one byte shortened (see [`pack`]). A change of the format adds images; it never
//! replaces these.
//!
//! `cargo test -p hither-testkit --test testkit golden::regenerate -- --ignored` writes them anew. Do that only while
//! version 1 is not released.

#![forbid(unsafe_code)]

use crate::common;
use hither::{Db, KeyspaceOptions, Kind, MediumChoice, Topology, WriteOptions};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Expiry times in milliseconds since 1970: in the year 2286, and long ago.
const FAR_MS: u64 = 9_999_999_999_999;
const PAST_MS: u64 = 1_000_000_000_000;

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn open(dir: &Path, create: bool) -> Db {
    let builder = Db::builder().path(dir).medium(MediumChoice::File).topology(Arc::new(Topology::emulated(2))).create(create);
    builder.capacity(64 << 10).max_capacity(512 << 10).segment_bytes(4096).shards(2).open().unwrap()
}

/// The content of the images: the ordered keyspace, the hash keyspace.
fn contents() -> [Pairs; 2] {
    let mut ordered: Pairs = (0..40u64).map(|i| (i.to_be_bytes().to_vec(), (i * 3).to_le_bytes().to_vec())).collect();
    ordered.retain(|key, _| key[7] % 5 != 4);
    ordered.insert(b"short".to_vec(), b"x".to_vec());
    ordered.insert(b"empty value".to_vec(), Vec::new());
    ordered.insert(vec![0, 0, 0], b"zeros".to_vec());
    ordered.insert(vec![b'L'; 65_536], b"the longest key".to_vec());
    ordered.insert(b"run".to_vec(), (0..9_000u32).map(|i| (i % 251) as u8).collect());
    ordered.insert(b"expires late".to_vec(), b"still here".to_vec());
    ordered.insert(b"in a batch".to_vec(), b"ordered".to_vec());
    let mut hash: Pairs = (100..130u64).map(|i| (i.to_be_bytes().to_vec(), vec![i as u8; (i % 40) as usize])).collect();
    hash.insert(b"overwritten".to_vec(), b"third".to_vec());
    hash.insert(b"in a batch".to_vec(), b"hash".to_vec());
    hash.insert(b"12345678".to_vec(), b"expiring".to_vec());
    [ordered, hash]
}

fn fill(db: &Db) {
    let spaces = [("ordered", KeyspaceOptions::ordered()), ("hash", KeyspaceOptions::hash()), ("dropped", KeyspaceOptions::ordered())]
        .map(|(name, options)| db.create_keyspace(name, options).unwrap());
    let contents = contents();
    for i in 0..40u64 {
        spaces[0].put(&i.to_be_bytes(), b"an old value").unwrap();
    }
    let late = WriteOptions::new().expires_at_ms(FAR_MS);
    for (space, pairs) in spaces.iter().zip(&contents) {
        for (number, (key, value)) in pairs.iter().enumerate() {
            // New threads are spread over the nodes.
            std::thread::scope(|scope| {
                scope.spawn(|| match key.as_slice() {
                    b"in a batch" => {}
                    b"expires late" | b"12345678" => space.put_with(key, value, &late).unwrap().wait().unwrap(),
                    _ => space.put(key, value).unwrap_or_else(|error| panic!("{number}: {error}")),
                });
            });
        }
    }
    for i in (4..40u64).step_by(5) {
        spaces[0].delete(&i.to_be_bytes()).unwrap();
    }
    let gone = WriteOptions::new().expires_at_ms(PAST_MS);
    spaces[0].put(b"expired", b"an older value").unwrap();
    spaces[0].put_with(b"expired", b"gone", &gone).unwrap().wait().unwrap();
    for text in ["first", "second", "third"] {
        spaces[1].put(b"overwritten", text.as_bytes()).unwrap();
    }
    spaces[2].put(b"key", b"of a dropped keyspace").unwrap();
    let mut batch = db.batch();
    batch.put(&spaces[0], b"in a batch", b"ordered").put(&spaces[1], b"in a batch", b"hash").put(&spaces[2], b"in a batch", b"dropped");
    batch.delete(&spaces[1], b"never there");
    batch.commit().unwrap();
    assert!(db.drop_keyspace("dropped").unwrap());
}

fn verify(db: &Db) {
    let names: Vec<_> = db.keyspaces().into_iter().map(|info| (info.name, info.kind, info.id)).collect();
    assert_eq!(names, [("ordered".to_owned(), Kind::Ordered, 1), ("hash".to_owned(), Kind::Hash, 2)]);
    for ((name, _, _), expected) in names.iter().zip(contents()) {
        let space = db.open_keyspace(name).unwrap().unwrap();
        let found: Pairs = space.iter().map(Result::unwrap).collect();
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{name}");
        assert!(found == expected, "{name}: values differ");
        for (key, value) in &expected {
            assert_eq!(space.get(key).unwrap().as_ref(), Some(value));
        }
    }
    let report = db.check().unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);
}

/// Shortens runs of one byte to records: run length, byte, number of bytes that follow, these bytes. Numbers have 4
/// bytes, little-endian.
pub fn pack(bytes: &[u8]) -> Vec<u8> {
    let run_at = |at: usize| bytes[at..].iter().take_while(|byte| **byte == bytes[at]).count();
    let mut packed = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let run = run_at(at);
        let start = at + run;
        let mut end = start;
        while end < bytes.len() && run_at(end) < 16 {
            end += 1;
        }
        packed.extend((run as u32).to_le_bytes());
        packed.push(bytes[at]);
        packed.extend(((end - start) as u32).to_le_bytes());
        packed.extend(&bytes[start..end]);
        at = end;
    }
    packed
}

pub fn unpack(mut packed: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some((head, rest)) = packed.split_first_chunk::<9>() {
        let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes")) as usize;
        bytes.resize(bytes.len() + number(0), head[4]);
        let (some, rest) = rest.split_at(number(5));
        bytes.extend(some);
        packed = rest;
    }
    bytes
}

#[test]
fn packing_is_reversible() {
    for bytes in [&[][..], &[0; 100], &[1; 5], &[0, 0, 1, 0, 0, 2], &[[0; 40], [3; 40], [0; 40]].concat()] {
        assert_eq!(unpack(&pack(bytes)), bytes);
    }
}

fn copy(from: &Path, image: &str) {
    for node in 0..2 {
        let packed = pack(&std::fs::read(from.join(format!("node{node}.hither"))).unwrap());
        std::fs::write(data(&format!("{image}-node{node}")), packed).unwrap();
    }
}

#[test]
#[ignore = "writes the golden images anew"]
fn regenerate() {
    std::fs::create_dir_all(data("")).unwrap();
    let dir = common::shm();
    let db = open(dir.path(), true);
    fill(&db);
    verify(&db);
    copy(dir.path(), "format1-open");
    db.close().unwrap();
    open_again(dir.path());
    copy(dir.path(), "format1-clean");
}

/// Opens and closes the store once more, so that the image has recovered segments, too.
fn open_again(dir: &Path) {
    let db = open(dir, false);
    verify(&db);
    db.close().unwrap();
}

#[test]
fn images_of_format_1_open_with_all_their_contents() {
    for image in ["format1-clean", "format1-open"] {
        let dir = common::shm();
        for node in 0..2 {
            let packed = std::fs::read(data(&format!("{image}-node{node}"))).unwrap();
            assert!(packed.len() < 200 << 10);
            std::fs::write(dir.path().join(format!("node{node}.hither")), unpack(&packed)).unwrap();
        }
        let db = open(dir.path(), false);
        assert_eq!(db.recovery().clean, image == "format1-clean");
        assert!(db.stats().pools.iter().all(|pool| pool.live_bytes > 0), "{image}: both nodes hold data");
        verify(&db);
        db.open_keyspace("hash").unwrap().unwrap().put(b"new", b"value").unwrap();
        db.close().unwrap();
        let db = open(dir.path(), false);
        let hash = db.open_keyspace("hash").unwrap().unwrap();
        assert_eq!(hash.get(b"new").unwrap().unwrap(), b"value");
        hash.delete(b"new").unwrap();
        verify(&db);
    }
}
