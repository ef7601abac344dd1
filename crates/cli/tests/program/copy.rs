//! `hither copy` on the real program: the content of the new store, refusals, and SIGKILL in the middle of it.

use std::fmt::Write as _;
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;

use crate::common::{Ran, Store, flip, program, run};

/// A command on the store in this directory.
fn at(directory: &str, arguments: &[&str]) -> Ran {
    run(&[arguments, &["--data", directory]].concat())
}

fn copy(store: &Store, arguments: &[&str]) -> Ran {
    at(store.data().to_str().unwrap(), &[&["copy"], arguments].concat())
}

/// A place for a new store. On a disk, so that these tests do not depend on the size of memory.
fn place() -> (TempDir, String) {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let name = dir.path().join("new").to_str().unwrap().to_owned();
    (dir, name)
}

/// A store that every command opens without options of size. (Commands by [`Store::run`] have some, which would be the
/// new store's.)
fn filled(keys: u64) -> Store {
    let store = Store::on_file();
    let mut input = String::new();
    for number in 0..keys {
        writeln!(input, "key-{number:06}\t{:0100}", number * 7).unwrap();
    }
    store.feed(&["load"], input.as_bytes()).done();
    store
}

#[test]
fn the_new_store_has_everything_and_the_limit_that_was_asked_for() {
    let (store, (_dir, new)) = (filled(5_000), place());
    store.feed(&["load", "--keyspace", "hashed", "--kind", "hash"], b"a\t1\nb\t2\n").done();
    store.run(&["put", "session", "1", "--ttl", "7d", "--keyspace", "hashed"]).done();
    let copied = copy(&store, &[&new, "--max-capacity", "2G", "--json"]).done().document();
    assert_eq!((&copied["keyspaces"], &copied["keys"]), (&2.into(), &5_003.into()));
    for keyspace in ["default", "hashed"] {
        // Times of expiry are equal, too.
        assert!(at(&new, &["dump", "--keyspace", keyspace]).done().0.stdout == store.dump(keyspace), "{keyspace}");
    }
    assert_eq!(at(&new, &["keyspaces"]).done().out(), store.run(&["keyspaces"]).done().out());
    let stat = at(&new, &["stat", "--json"]).done().document();
    assert_eq!(stat["pools"][0]["max_bytes"], 2u64 << 30);
    at(&new, &["check"]).done();
    // Copies the copy, with output for people. The new store may grow as far as the one that it is copied from.
    let (_other_dir, other) = place();
    assert_eq!(at(&new, &["copy", &other]).done().out(), "5003 keys in 2 keyspaces\n");
    assert_eq!(at(&other, &["stat", "--json"]).done().document()["pools"][0]["max_bytes"], 2u64 << 30);
}

#[test]
fn what_is_refused_leaves_nothing() {
    let (store, (dir, new)) = (filled(5_000), place());
    assert!(copy(&store, &[&new, "--capacity", "64K", "--max-capacity", "128K"]).expect(6).err().contains("give a larger --max-capacity"));
    copy(&store, &[]).expect(2);
    assert!(copy(&store, &[&new, &format!("node1={new}")]).expect(2).err().contains("only as node0=DIR node1=DIR"));
    assert!(at(&new, &["copy", &new]).expect(7).err().contains("no store"));
    let old = store.data().to_str().unwrap().to_owned();
    assert!(copy(&store, &[&old]).expect(2).err().contains("node0.hither belongs to a store"));
    assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none());
    std::fs::write(&new, "a file").unwrap();
    assert!(copy(&store, &[&new]).expect(3).err().contains("cannot create the directory"));
    store.run(&["check"]).done();
}

/// Unreadable data is left out, and the rest is a sound store.
#[test]
fn salvage_makes_a_sound_store_of_what_is_readable() {
    let (store, (_dir, new)) = (Store::on_file(), place());
    store.run(&["put", "a-key", "a-value-to-damage"]).done();
    store.run(&["put", "b-key", "b", "--keyspace", "other"]).done();
    flip(&store.data().join("node0.hither"), b"a-value-to-damage");
    assert!(copy(&store, &[&new]).expect(4).err().contains("use --salvage"));
    let pool = || std::fs::read(store.data().join("node0.hither")).unwrap();
    let damaged = pool();
    assert!(copy(&store, &[&new, "--salvage"]).done().err().contains("damaged segment"));
    at(&new, &["check"]).done();
    assert_eq!(at(&new, &["dump"]).done().out(), "");
    assert_eq!(at(&new, &["get", "b-key", "--keyspace", "other"]).done().out(), "b\n");
    assert!(pool() == damaged, "it is looked at only");
}

/// Whenever it is killed, there is a whole store in the new place or none, and the next copy completes.
#[test]
fn a_kill_in_the_middle_leaves_no_store() {
    let store = filled(20_000);
    let dump = store.dump("default");
    let mut killed = 0;
    for round in 0..6 {
        let (dir, new) = place();
        let has_part =
            || std::fs::read_dir(dir.path()).unwrap().any(|file| file.unwrap().path().extension().is_some_and(|end| end == "part"));
        let mut child =
            program().args(["copy", &new, "--data"]).arg(store.data()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Until the copy has begun, or is done already.
        while !has_part() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(round / 2 * 20));
        child.kill().unwrap();
        child.wait().unwrap();
        let is_there = std::fs::exists(&new).unwrap();
        assert!(is_there != has_part(), "round {round}: a whole one, or its parts");
        if !is_there {
            killed += 1;
            at(&new, &["keyspaces"]).expect(7);
            copy(&store, &[&new]).done();
        }
        assert!(at(&new, &["dump"]).done().0.stdout == dump, "round {round}");
        at(&new, &["check"]).done();
    }
    assert!(killed > 0, "no kill met a copy");
    store.run(&["check"]).done();
}
