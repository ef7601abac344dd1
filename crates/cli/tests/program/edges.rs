//! Edge cases: times to live in resumed loads, the status when nobody reads the output, files that a dump must not
//! replace, and unusual inputs and directories.

use crate::common::{Store, flip, program, run, write};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

/// Regression: a record that was already there, but with a time to live, was reported as durable and then disappeared.
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

/// Regression: when nobody read its output, `check` ended as if a damaged store were sound.
#[test]
fn a_closed_pipe_does_not_change_what_was_found() {
    let store = Store::on_file();
    store.run(&["put", "key", "value to be damaged"]).done();
    flip(&store.data().join("node0.hither"), b"value to be damaged");
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

/// Regression: a dump replaced the pool that it was read from, and ended with success.
#[test]
fn a_dump_replaces_no_file_of_a_store() {
    let store = Store::on_file();
    store.run(&["put", "key", "value"]).done();
    // Found by hand: no such file existed yet, and the next open removed the dump.
    for name in ["checkpoint.hither.tmp", "node1.hither"] {
        let file = store.data().join(name);
        assert!(store.run(&["dump", file.to_str().unwrap()]).expect(2).err().contains("another file") && !file.exists(), "{name}");
    }
    let elsewhere = store.path("checkpoint.hither.tmp");
    store.run(&["dump", elsewhere.to_str().unwrap()]).done();
    for name in ["node0.hither", "checkpoint.hither"] {
        let file = store.data().join(name);
        let before = std::fs::read(&file).unwrap();
        assert!(store.run(&["dump", file.to_str().unwrap()]).expect(2).err().contains("another file"));
        assert!(std::fs::read(&file).unwrap() == before, "{name}");
    }
    assert_eq!(store.dump("default"), b"key\tvalue\n");
}

/// Found by hand: `dump /dev/stdout > file` replaced /dev/stdout with a file, where permissions allowed it, and wrote
/// nothing into `file`.
#[test]
fn a_dump_to_a_name_of_an_open_file_goes_there() {
    let store = Store::any();
    store.run(&["put", "key", "value"]).done();
    let (link, saved) = (store.path("stdout"), store.path("saved"));
    std::os::unix::fs::symlink("/proc/self/fd/1", &link).unwrap();
    let mut file = std::fs::File::create(&saved).unwrap();
    for name in [link.to_str().unwrap(), "/proc/self/fd/1", "/proc/self/fd/2"] {
        file.write_all(b"before\t0\n").unwrap();
        let mut command = store.command(&["dump", name]);
        if name.ends_with('2') {
            command.stderr(file.try_clone().unwrap())
        } else {
            command.stdout(file.try_clone().unwrap())
        };
        let output = command.output().unwrap();
        assert!(output.status.success() && link.is_symlink(), "{name}: {output:?}");
    }
    assert_eq!(std::fs::read_to_string(&saved).unwrap(), "before\t0\nkey\tvalue\n".repeat(3));
}

/// Regression: a dump replaced the link, and the file that it led to stayed old.
#[test]
fn a_dump_to_a_link_goes_where_it_leads() {
    let store = Store::any();
    store.run(&["put", "key", "value"]).done();
    let (link, target) = (store.path("latest"), store.path("monday.kv"));
    write(&target, "old");
    std::os::unix::fs::symlink(&target, &link).unwrap();
    store.run(&["dump", link.to_str().unwrap()]).done();
    assert_eq!((link.is_symlink(), std::fs::read(&target).unwrap().as_slice()), (true, &b"key\tvalue\n"[..]));
    // Also through several links to a file that does not exist yet, and with the longest name that the system allows.
    let long = "n".repeat(255);
    std::fs::create_dir(store.path("days")).unwrap();
    std::os::unix::fs::symlink(format!("days/{long}"), store.path("next")).unwrap();
    let first = store.path("first");
    std::os::unix::fs::symlink("next", &first).unwrap();
    store.run(&["dump", first.to_str().unwrap()]).done();
    assert_eq!(std::fs::read(store.path("days").join(&long)).unwrap(), b"key\tvalue\n");
    assert!(first.is_symlink() && store.path("next").is_symlink());
    assert_eq!(std::fs::read_dir(store.path("days")).unwrap().count(), 1);
    let pool = store.path("pool");
    std::os::unix::fs::symlink(store.data().join("node0.hither"), &pool).unwrap();
    store.run(&["dump", pool.to_str().unwrap()]).expect(2);
    assert_eq!(store.dump("default"), b"key\tvalue\n");
}

/// Found by hand: a file that only its owner may read was replaced by one that everybody may read.
#[test]
fn a_dump_is_for_no_more_users_than_what_it_replaces() {
    let store = Store::any();
    store.run(&["put", "key", "value"]).done();
    let file = store.path("secret.kv");
    write(&file, "");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    store.run(&["dump", file.to_str().unwrap()]).done();
    let metadata = std::fs::metadata(&file).unwrap();
    assert_eq!((metadata.permissions().mode() & 0o777, metadata.len()), (0o600, 10));
}

/// Found by hand: a full disk behind standard error caused a panic.
#[test]
fn a_full_standard_error_changes_nothing() {
    let store = Store::on_file();
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let input = store.path("input");
    write(&input, "key\tvalue to be damaged\nother\tvalue\n");
    let loaded = store.command(&["load", input.to_str().unwrap()]).stderr(full()).output().unwrap();
    assert_eq!((loaded.status.code(), loaded.stdout.as_slice()), (Some(0), &b"durable 2\n"[..]));
    flip(&store.data().join("node0.hither"), b"value to be damaged");
    let saved = store.command(&["dump", "--salvage"]).stderr(full()).output().unwrap();
    assert_eq!((saved.status.code(), saved.stdout.as_slice()), (Some(0), &b"other\tvalue\n"[..]));
    let told = store.run(&["dump", "--salvage", "--json"]).done().err();
    let told: Vec<serde_json::Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(told.iter().any(|line| line["salvaged"].is_string()), "{told:?}");
}

/// Found by hand: an empty store was created beside the pools.
#[test]
fn directories_that_were_swapped_are_no_new_store() {
    let store = Store::on_file();
    let node = |node: u32, dir: &str| format!("node{node}={}", store.path(dir).display());
    let on = |command: &[&str], first: &str, second: &str| {
        run(&[command, &["--medium", "file", "--capacity", "2M", "--data", &node(0, first), "--data", &node(1, second)]].concat())
    };
    on(&["put", "key", "value"], "a", "b").done();
    let refused = on(&["put", "newkey", "v"], "b", "a").expect(7).err();
    assert!(refused.contains("b/node1.hither is the pool of node 1") && refused.contains("give each node the directory"), "{refused}");
    run(&["put", "newkey", "v", "--data", &node(0, "b")]).expect(7);
    assert_eq!(on(&["dump"], "a", "b").done().out(), "key\tvalue\n");

    store.run(&["put", "key", "value"]).done();
    std::fs::remove_file(store.data().join("node0.hither")).unwrap();
    let refused = store.run(&["put", "key", "value"]).expect(7).err();
    assert!(refused.contains("belongs to a store whose pool") && !store.data().join("node0.hither").exists(), "{refused}");
}

/// Found by hand: the report ended in the middle of a JSON document.
#[test]
fn doctor_reports_a_directory_whose_name_is_not_utf8() {
    let store = Store::any();
    let mut name = store.data().into_os_string();
    name.push(std::ffi::OsStr::from_bytes(b"\xff"));
    for json in [&["--json"][..], &[]] {
        let output = program().arg("doctor").args(json).arg("--data").arg(&name).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains("data\u{fffd}"), "{text}");
        assert!(json.is_empty() || serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{text}");
    }
}

/// Found by hand: an empty value was stored, and a load of nothing succeeded.
#[test]
fn a_closed_standard_input_is_refused() {
    for arguments in ["put key -", "load", "load -"] {
        let store = Store::any();
        let ended = |input: &str| {
            let script = format!("exec \"$0\" {arguments} --data \"$1\" {input}");
            let mut command = std::process::Command::new("sh");
            command.args(["-c", &script, env!("CARGO_BIN_EXE_hither")]).arg(store.data()).output().unwrap()
        };
        let refused = ended("<&-");
        let text = String::from_utf8_lossy(&refused.stderr);
        assert!(refused.status.code() == Some(2) && text.contains("but it is closed"), "{arguments}: {refused:?}");
        assert!(!store.data().exists());
        assert_eq!(ended("</dev/null").status.code(), Some(0), "an empty file is an empty value, or no records");
    }
}

/// Found by hand: the number asked for was below the limit that the error named, and a measurement with that many
/// threads was aborted.
#[test]
fn numbers_that_are_too_large_are_refused_with_the_reason() {
    let store = Store::on_file();
    let place = store.data().display().to_string();
    let refused = |limit: &str, status| run(&["put", "k", "v", "--data", &place, "--max-capacity", limit]).expect(status).err();
    let text = refused("127T", 3);
    assert!(text.contains("not free in this process") && !text.contains("the limit is"), "{text}");
    assert!(refused("129T", 2).contains("lower the maximum capacity"));
    assert!(run(&["bench", "run", "-t", "99999"]).expect(2).err().contains("1024 at most"));
}
