//! `hither compact` on the real program: what it reclaims, what it refuses, and SIGKILL in the middle of it.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use crate::common::Store;

const KEYS: u64 = 40_000;

/// A store with as much garbage as data, in every segment.
fn overwritten(store: &Store) {
    let mut input = String::new();
    for number in (0..KEYS).chain((0..KEYS).step_by(2)).chain((0..KEYS).step_by(3)) {
        writeln!(input, "key-{number:06}\t{:0100}", number * 7).unwrap();
    }
    store.feed(&["load"], input.as_bytes()).done();
    for key in ["key-000001", "key-000005"] {
        store.run(&["del", key]).done();
    }
}

#[test]
fn it_gives_space_back_and_says_how_much() {
    let store = Store::any();
    overwritten(&store);
    let dump = store.dump("default");
    let report = store.run(&["compact", "--json"]).done().document();
    let bytes = |when: &str, what: &str| report[when][what].as_u64().unwrap();
    assert!(bytes("after", "dead_bytes") < bytes("before", "dead_bytes") / 5, "{report}");
    assert!(bytes("after", "used_bytes") < bytes("before", "used_bytes") && report["complete"] == true, "{report}");
    assert!(store.dump("default") == dump, "another content");
    store.run(&["check"]).done();
    let text = store.run(&["compact"]).done().out();
    assert!(text.contains("segments") && text.contains("used"), "{text}");
}

#[test]
fn it_needs_a_store_that_nobody_has_open_and_a_share() {
    let store = Store::any();
    assert!(store.run(&["compact"]).expect(7).err().contains("no store"));
    store.feed(&["load"], b"a\t1\n").done();
    store.run(&["compact", "--garbage", "0"]).expect(2);
    let hold = || {
        let mut holder = store.command(&["load"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        // The store is opened for the first record. A program that is refused does not read it.
        let _ = holder.stdin.as_mut().unwrap().write_all(b"b\t2\n");
        holder
    };
    let mut holder = hold();
    let refused = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        // The holder may itself have been refused, because a compaction had the store open.
        if holder.try_wait().unwrap().is_some() {
            holder = hold();
        }
        store.run(&["compact"]).status() == 5
    });
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success() && refused);
}

/// Whenever it is killed, no data is lost, none comes back, and the next compaction completes.
#[test]
fn a_kill_in_the_middle_changes_nothing() {
    let store = Store::any();
    let mut killed = 0;
    for round in 0..8u64 {
        overwritten(&store);
        let dump = store.dump("default");
        let mut child = store.command(&["compact"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(3 + 7 * round));
        child.kill().unwrap();
        killed += u64::from(child.wait().unwrap().code().is_none());
        store.run(&["check"]).done();
        assert!(store.dump("default") == dump, "another content after the kill of round {round}");
    }
    assert!(killed >= 3, "only {killed} of 8 kills met a compaction");
    store.run(&["compact"]).done();
    store.run(&["check"]).done();
}
