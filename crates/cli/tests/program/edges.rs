//! What a load leaves of times to live, what the status says when nobody reads the output, and what a dump must not replace.

use crate::common::{Store, write};
use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

/// Regression: a record that was there with a time to live was reported as durable, and then disappeared.
#[test]
fn a_resumed_load_writes_what_would_expire() {
    let store = Store::any();
    store.run(&["put", "a", "1", "--ttl", "3s"]).done();
    let input = b"a\t1\nb\t2\n";
    assert_eq!(store.feed(&["load", "--resume"], input).done().out(), "durable 2\n");
    assert!(store.feed(&["load", "--resume"], input).done().err().contains("2 unchanged"));
    std::thread::sleep(Duration::from_millis(3500));
    assert_eq!(store.dump("default"), input);
}

/// Regression: with nobody to read it, `check` ended as if a damaged store were sound.
#[test]
fn a_closed_pipe_does_not_change_what_was_found() {
    let store = Store::on_file();
    store.run(&["put", "key", "value to be damaged"]).done();
    let pool = store.data().join("node0.hither");
    let mut bytes = std::fs::read(&pool).unwrap();
    let needle = b"value to be damaged";
    let at = bytes.windows(needle.len()).position(|window| window == needle).unwrap();
    bytes[at] ^= 1;
    write(&pool, &bytes);
    for (arguments, status) in
        [(&["check"][..], 1), (&["check", "--json"], 1), (&["get", "nothing", "--json"], 1), (&["keyspaces", "--json"], 0)]
    {
        let mut child = store.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let mut errors = String::new();
        child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert_eq!((child.wait().unwrap().code(), errors.as_str()), (Some(status), ""), "{arguments:?}");
    }
}

/// Regression: a dump took the place of the pool that it was read from, and ended as if all was well.
#[test]
fn a_dump_replaces_no_file_of_a_store() {
    let store = Store::on_file();
    store.run(&["put", "key", "value"]).done();
    for name in ["node0.hither", "checkpoint.hither"] {
        let file = store.data().join(name);
        let before = std::fs::read(&file).unwrap();
        assert!(store.run(&["dump", file.to_str().unwrap()]).expect(2).err().contains("another file"));
        assert!(std::fs::read(&file).unwrap() == before, "{name}");
    }
    assert_eq!(store.dump("default"), b"key\tvalue\n");
}
