//! Refusals: wrong use; full, locked, damaged and unwritable stores. Checks message and status, and that nothing is lost or left behind.

use crate::common::wire::{Server, text};
use crate::common::{Store, bind, can_bind, flip, program, run, write};
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

#[test]
fn wrong_use_has_status_2() {
    let store = Store::any();
    store.run(&["put", "k", "v"]).done();
    for arguments in [&["fly"][..], &["get"], &["load", "--format", "xml"], &["scan", "--limit", "x"], &["get", "k", "--raw", "--json"]] {
        store.run(arguments).expect(2);
    }
    for arguments in [&["load", "--key", "a"][..], &["load", "--format", "jsonl"], &["load", "--format", "csv", "--raw"], &["put", "", "v"]]
    {
        store.run(arguments).expect(2);
    }
    assert!(run(&["get", "k"]).expect(2).err().contains("HITHER_DATA"));
    assert!(run(&["get", "k", "--data", "/a", "--data", "/b"]).expect(2).err().contains("node0=DIR"));
    let long = "k".repeat(65_537);
    store.run(&["put", &long, "v"]).expect(2);
    let refused = store.run(&["put", "", "v", "--json"]).expect(2);
    let error: serde_json::Value = serde_json::from_str(&refused.err()).unwrap();
    assert_eq!(error["status"], 2);
}

/// Regression: `--json` conflicted with `--raw` only after the command; before it, one of the two was ignored silently.
#[test]
fn raw_bytes_are_no_json_wherever_that_is_asked_for() {
    let store = Store::any();
    store.run(&["put", "k", "v"]).done();
    for arguments in [&["--json", "get", "k", "--raw"][..], &["--json", "scan", "--raw"]] {
        let refused = store.run(arguments).expect(2);
        assert!(refused.err().contains("--raw") && refused.out().is_empty(), "{}", refused.err());
    }
}

/// A limit on processes or memory causes no panic: what one thread can do is done.
#[test]
fn without_threads_a_store_is_read_and_written_and_a_load_refused() {
    let store = Store::any();
    let input = store.path("input");
    write(&input, (0..60_000).map(|i| format!("key {i}\tvalue {i}\n")).collect::<String>());
    let input = input.to_str().unwrap();
    store.run(&["load", "--keyspace", "ordered", input]).done();
    // No thread of the standard library can start with such a stack.
    let alone = |arguments: &[&str]| {
        let output = store.command(arguments).env("RUST_MIN_STACK", (1u64 << 60).to_string()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let refused = alone(&["load", "--keyspace", "more", input]);
    assert!(refused.0 == Some(3) && refused.2.contains("starting the threads of the load"), "{refused:?}");
    for (arguments, expected) in
        [(&["put", "--keyspace", "ordered", "key 7", "other"][..], ""), (&["get", "--keyspace", "ordered", "key 7"], "other\n")]
    {
        assert_eq!(alone(arguments), (Some(0), expected.to_owned(), String::new()), "{arguments:?}");
    }
    let refused = alone(&["put", "--durability", "interval:100", "--keyspace", "ordered", "key 7", "lost?"]);
    assert!(refused.0 == Some(3) && refused.2.contains("at each interval cannot be started"), "{refused:?}");
    assert_eq!(alone(&["get", "--durability", "interval:100", "--read-only", "--keyspace", "ordered", "key 7"]).1, "other\n");
    // Without the checkpoint the whole log is scanned.
    let checkpoint = std::fs::read_dir(store.data()).unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    checkpoint.filter(|path| path.to_string_lossy().contains("checkpoint")).for_each(|path| std::fs::remove_file(path).unwrap());
    assert_eq!(alone(&["get", "--keyspace", "ordered", "key 59999"]).1, "value 59999\n");
}

/// Programs that look only at the exit status pass the null device, for reading and writing.
#[test]
fn a_null_device_is_a_standard_output_like_any_other() {
    let store = Store::any();
    store.run(&["put", "k", "v"]).done();
    for (arguments, expected) in [(&["dump"][..], 0), (&["scan"], 0), (&["get", "k"], 0), (&["get", "no"], 1)] {
        let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null").unwrap();
        let status = store.command(arguments).stdout(null).stderr(Stdio::null()).status().unwrap();
        assert_eq!(status.code(), Some(expected), "{arguments:?}");
    }
}

/// Programs get one JSON object for every failure, also for a command line that cannot be parsed.
#[test]
fn wrong_use_is_json_for_programs() {
    for (arguments, what) in [
        (&["get", "k", "--nope", "--json"][..], "--nope"),
        (&["--json", "get"], "<KEY>"),
        (&["fly", "--json"], "fly"),
        (&["--json"], "requires a subcommand"),
        (&["stat", "--json", "--capacity", "many"], "not a size"),
        (&["get", "k", "--raw", "--json"], "cannot be used with"),
        (&["get", "k", "--json"], "HITHER_DATA"),
    ] {
        let ran = run(arguments).expect(2);
        let error: serde_json::Value = serde_json::from_str(&ran.err()).unwrap_or_else(|why| panic!("{arguments:?}: {why}: {}", ran.err()));
        let text = error["error"].as_str().unwrap();
        assert!(text.contains(what) && !text.contains("Usage") && !text.contains('\n'), "{arguments:?}: {text}");
        assert_eq!((&error["status"], ran.out().as_str()), (&json!(2), ""));
    }
    assert!(run(&["get", "--", "k", "x", "--json"]).expect(2).err().contains("Usage"), "behind -- it is no option");
    assert!(run(&["get", "--help", "--json"]).done().out().contains("Usage"));
}

/// Regression: the store was created before the first read of the input failed.
#[test]
fn an_input_that_is_a_directory_leaves_no_store() {
    let store = Store::on_file();
    let dir = tempfile::tempdir().unwrap();
    let refused = store.run(&["load", dir.path().to_str().unwrap()]).expect(3);
    assert!(refused.err().contains("is a directory"), "{}", refused.err());
    assert!(!store.data().exists());
}

#[test]
fn a_size_that_no_store_can_have_is_wrong_use() {
    let store = Store::on_file();
    let data = store.data();
    let put = |size: &[&str]| run(&[&["put", "k", "v", "--medium", "file", "--data", data.to_str().unwrap()], size].concat());
    for option in ["--capacity", "--max-capacity"] {
        for size in ["0", "1", "65535", "1K"] {
            assert!(put(&[option, size]).expect(2).err().contains("64K"), "{option} {size}");
        }
        put(&[option, "10000T"]).expect(2);
    }
    assert!(put(&["--max-capacity", "1M", "--capacity", "2M"]).expect(2).err().contains("below"));
    // More than the device has, but not more than a store can have.
    put(&["--capacity", "100T"]).expect(6);
    put(&["--capacity", "64K", "--max-capacity", "64K"]).done();
    assert_eq!(run(&["get", "k", "--data", data.to_str().unwrap()]).done().out(), "v\n");
}

#[test]
fn failures_have_their_own_status() {
    let store = Store::any();
    assert!(store.run(&["get", "k"]).expect(7).err().contains("make one with `hither load`"));
    store.run(&["check"]).expect(7);
    assert!(!store.data().exists(), "a command that reads makes no store");
    assert!(store.run(&["load", "/no/such/file"]).expect(3).err().contains("/no/such/file"));
    assert!(!store.data().exists(), "an input that cannot be read makes no store");
    store.run(&["put", "k", "v"]).done();
    for command in [&["get", "k"][..], &["dump"], &["check"], &["stat"]] {
        assert!(store.run(&[command, &["--keyspace", "other"]].concat()).expect(1).err().contains("no keyspace \"other\""), "{command:?}");
    }
    store.run(&["put", "k", "v", "--keyspace", "another"]).done();
    store.run(&["check", "--keyspace", "another"]).done();
    let names = |options: &[&str]| {
        let report = store.run(&[&["stat", "--json"], options].concat()).done().document();
        report["keyspaces"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((names(&[]), names(&["--keyspace", "another"])), (vec!["default".into(), "another".into()], vec!["another".to_owned()]));
    let no_dir = store.path("no/such/dir/dump");
    store.run(&["dump", no_dir.to_str().unwrap()]).expect(3);
}

#[test]
fn a_store_in_use_is_locked() {
    let store = Store::any();
    let mut load = store.command(&["load", "--group", "1"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = load.stdin.take().unwrap();
    // The reader fills its buffer before it parses, so send more than that.
    let record = format!("k\t{}\n", "v".repeat(1 << 20));
    input.write_all(record.as_bytes()).unwrap();
    let mut reports = BufReader::new(load.stdout.take().unwrap());
    let mut line = String::new();
    reports.read_line(&mut line).unwrap();
    assert_eq!(line, "durable 1\n");
    store.run(&["get", "k"]).expect(5);
    drop(input);
    assert!(load.wait().unwrap().success());
    store.run(&["get", "k"]).done();
}

#[test]
fn a_store_that_is_full_says_so() {
    let store = Store::any();
    let value = "v".repeat(1 << 20);
    let input: String = (0..200).map(|n| format!("key{n}\t{value}\n")).collect();
    let mut load = program();
    load.args(["load", "--capacity", "64M", "--max-capacity", "64M", "--data"]).arg(store.data());
    let mut child = load.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(6), "{}", String::from_utf8_lossy(&output.stderr));
    let reports = String::from_utf8(output.stdout).unwrap();
    let durable: usize = reports.lines().last().unwrap().strip_prefix("durable ").unwrap().parse().unwrap();
    assert!(durable > 20 && durable < 64, "{durable} records of 1 MiB in 64 MiB");
    for n in 0..durable {
        store.run(&["get", &format!("key{n}"), "--raw"]).done();
    }
    store.run(&["check"]).done();
}

#[test]
fn live_data_can_be_bounded() {
    let store = Store::any();
    let bounded = |percent: &str, arguments: &[&str]| {
        let mut command = program();
        command.args(["--capacity", "64M", "--max-capacity", "64M", "--utilization", percent, "--data"]).arg(store.data()).args(arguments);
        command
    };
    let value = "v".repeat(1 << 20);
    let input: String = (0..60).map(|n| format!("key{n}\t{value}\n")).collect();
    let mut child = bounded("25", &["load"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(6) && errors.contains("higher --utilization"), "{errors}");
    let reports = String::from_utf8(output.stdout).unwrap();
    let durable: usize = reports.lines().last().unwrap().strip_prefix("durable ").unwrap().parse().unwrap();
    // The first record that was refused may come before others that were not: several threads load.
    let stored = store.run(&["stat", "--json"]).done().document()["keyspaces"][0]["keys"].as_u64().unwrap() as usize;
    assert!((14..24).contains(&stored) && durable <= stored, "{stored} records of 1 MiB in a quarter of 64 MiB, {durable} durable");
    // An existing record may be overwritten, and a command with another limit uses that limit.
    assert!(bounded("25", &["put", "key0", "short"]).status().unwrap().success());
    assert!(bounded("90", &["put", "another", &"v".repeat(100_000)]).status().unwrap().success());
    let stat = String::from_utf8(bounded("25", &["stat"]).output().unwrap().stdout).unwrap();
    let shown: Vec<Vec<&str>> = stat.lines().map(|line| line.split_whitespace().collect()).collect();
    for expected in [["utilization", "limit", "25.0", "%"], ["live", "limit", "16.0", "MiB"]] {
        assert!(shown.iter().any(|line| *line == expected), "{stat}");
    }
    assert_eq!(bounded("96", &["stat"]).output().unwrap().status.code(), Some(2));
    store.run(&["check"]).done();
}

/// The kernel sends a signal when a file grows beyond the limit; without a handler it would end the program silently.
#[test]
fn a_limit_on_the_size_of_files_is_told_and_loses_nothing() {
    let store = Store::on_file();
    let (data, input, dump) = (store.data(), store.path("input"), store.path("dump"));
    // 64 MiB or, where the shell counts in units of 1024 bytes, 128 MiB.
    let limited = |units: u32, arguments: &[&str]| {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &format!("ulimit -f {units}; exec \"$@\""), "sh", env!("CARGO_BIN_EXE_hither")]).args(arguments);
        command.arg("--data").arg(&data).args(["--medium", "file"]).output().unwrap()
    };
    let refused = |output: std::process::Output| {
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(6), "{}: {errors}", output.status);
        (String::from_utf8(output.stdout).unwrap(), errors)
    };
    let (_, errors) = refused(limited(2048, &["put", "k", "v", "--capacity", "8M", "--max-capacity", "1G"]));
    assert!(errors.contains("node0.hither") && errors.contains("ulimit -f"), "{errors}");

    let value = "v".repeat(1 << 20);
    write(&input, (0..200).map(|n| format!("key{n:03}\t{value}\n")).collect::<String>());
    let load = ["load", "--capacity", "8M", "--max-capacity", "1G", input.to_str().unwrap()];
    let (reports, errors) = refused(limited(64 << 11, &load));
    assert!(errors.contains("ulimit -f"), "{errors}");
    let durable: usize = reports.lines().last().unwrap().strip_prefix("durable ").unwrap().parse().unwrap();
    assert!(durable > 8 && durable < 130, "{durable} records of 1 MiB, first 8 MiB and then below the limit");
    let keys = store.run(&["keyspaces", "--json"]).done().document()[0]["keys"].as_u64().unwrap();
    assert!(keys >= durable as u64, "{keys} of {durable} records");

    let (_, errors) = refused(limited(1024, &["dump", dump.to_str().unwrap()]));
    assert!(errors.contains("dump") && !dump.exists(), "{errors}");
}

#[test]
fn damage_is_found_and_not_served() {
    let store = Store::on_file();
    // More than a segment, so that the damaged record is in a sealed one, where a crash leaves no holes.
    let filling = "x".repeat(8000);
    let input: String = (0..4000).map(|n| format!("key{n}\tvalue number {n} of many {filling}\n")).collect();
    store.feed(&["load"], input.as_bytes()).done();
    let pool = store.data().join("node0.hither");
    let bytes = flip(&pool, b"value number 50 of many");
    let report = store.run(&["check", "--json"]).expect(1).document();
    assert_eq!(report["sound"], false);
    assert!(!report["problems"].as_array().unwrap().is_empty(), "{report}");
    assert!(store.run(&["check"]).expect(1).out().contains("NOT SOUND"));
    store.run(&["get", "key50"]).expect(4);
    // Found by hand: for a store that cannot be opened, the number of problems was missing.
    write(&pool, &bytes[..bytes.len() / 2]);
    let report = store.run(&["check", "--json"]).expect(1).document();
    assert_eq!((&report["sound"], &report["problem_count"]), (&false.into(), &1.into()), "{report}");
    let fields = ["segments", "entries", "bytes", "torn", "keys"].map(|field| report.get(field));
    assert!(fields.iter().all(|field| field.is_some_and(serde_json::Value::is_null)), "as in every report: {report}");
}

#[test]
fn a_file_that_is_no_pool_is_refused() {
    let store = Store::on_file();
    std::fs::create_dir_all(store.data()).unwrap();
    write(&store.data().join("node0.hither"), "something else ".repeat(10_000));
    store.run(&["get", "k"]).expect(4);
    store.run(&["put", "k", "v"]).expect(4);
}

/// Every path below a directory, sorted.
fn names(dir: &std::path::Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        found.push(entry.path().display().to_string());
        if entry.file_type().unwrap().is_dir() {
            found.extend(names(&entry.path()));
        }
    }
    found.sort();
    found
}

#[test]
fn a_creation_that_fails_leaves_what_was_there_and_nothing_else() {
    let store = Store::on_file();
    let root = store.path("");
    let put = |places: &[String]| {
        let places = places.iter().flat_map(|place| ["--data", place.as_str()]);
        run(&["put", "k", "v", "--medium", "file", "--capacity", "100T"].into_iter().chain(places).collect::<Vec<_>>())
    };
    let node = |number: u32, dir: &str| format!("node{number}={}", store.path(dir).display());
    put(&[store.path("a/b/c").display().to_string()]).expect(6);
    put(&[node(0, "a/0"), node(1, "a/1")]).expect(6);
    assert_eq!(names(&root), [""; 0]);

    // The pool of node 0 can be created, that of node 1 cannot.
    std::fs::create_dir_all(store.path("was/here")).unwrap();
    write(&store.path("was/note"), "x");
    let before = names(&root);
    let (node0, node1) = (node(0, "was/here/0"), node(1, "was/note/1"));
    run(&["put", "k", "v", "--medium", "file", "--capacity", "1M", "--data", &node0, "--data", &node1]).expect(3);
    put(&[store.path("was").display().to_string()]).expect(6);
    assert_eq!(names(&root), before);

    // An empty file that was there before is used, or left there.
    write(&store.path("was/node0.hither"), "");
    put(&[store.path("was").display().to_string()]).expect(6);
    assert!(store.path("was/node0.hither").exists());
}

#[test]
fn what_cannot_be_written_is_named_with_what_to_do() {
    use std::os::unix::fs::PermissionsExt;
    if !can_bind() {
        return;
    }
    let store = Store::on_file();
    let mode = |name: &str, mode: u32| std::fs::set_permissions(store.path(name), PermissionsExt::from_mode(mode)).unwrap();
    store.run(&["put", "k", "v"]).done();
    std::fs::create_dir(store.path("empty")).unwrap();
    mode("", 0o755);
    let command = |arguments: &[&str], place: &str| {
        let mut command = program();
        command.args(arguments).args(["--medium", "file", "--data"]).arg(store.path(place));
        bind(&mut command).output()
    };
    let refused = |arguments: &[&str], place: &str, parts: &[&str]| {
        let output = command(arguments, place).unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{errors}");
        assert!(parts.iter().all(|part| errors.contains(part)), "{parts:?}: {errors}");
    };
    mode("data/node0.hither", 0o444);
    mode("data", 0o555);
    mode("empty", 0o555);
    refused(&["get", "k"], "data", &["data/node0.hither cannot be opened for writing", "write permission", "--read-only"]);
    let looked = command(&["get", "k", "--read-only"], "data").unwrap();
    assert_eq!((looked.status.code(), looked.stdout.as_slice()), (Some(0), &b"v\n"[..]), "{looked:?}");
    refused(&["put", "k", "v"], "empty", &["empty/node0.hither cannot be opened for writing", "its directory"]);
    let empty = store.path("empty").display().to_string();
    refused(&["put", "k", "v"], "empty/a/b", &["empty/a/b: Permission denied", &format!("write permission for {empty},")]);
    mode("data", 0o000);
    refused(&["get", "k"], "data", &["data/node0.hither", "enter the directory"]);
    // Other users may enter the directory but not read it, so nobody can make names in it durable.
    mode("data/node0.hither", 0o666);
    mode("data", 0o711);
    let entered = command(&["get", "k"], "data").unwrap();
    assert_eq!((entered.status.code(), entered.stdout.as_slice()), (Some(0), &b"v\n"[..]), "{entered:?}");
    mode("data", 0o755);
    mode("empty", 0o755);
}

#[test]
fn a_node_that_the_store_does_not_have_is_refused() {
    let store = Store::on_file();
    let dir = |node: u32| format!("node{node}={}", store.path(&format!("n{node}")).display());
    let (node0, node1, node2) = (dir(0), dir(1), dir(2));
    let get = |places: &[&String]| {
        let places = places.iter().flat_map(|place| ["--data", place.as_str()]);
        run(&["get", "k"].into_iter().chain(places).collect::<Vec<_>>())
    };
    run(&["put", "k", "v", "--data", &node0, "--data", &node1, "--capacity", "16M"]).done();
    let refused = get(&[&node0, &node1, &node2]).expect(2).err();
    assert!(refused.contains(&node2) && refused.contains("has 2 nodes") && refused.contains("new store"), "{refused}");
    assert!(!store.path("n2").exists());
    let twice = get(&[&node0, &node1, &format!("node1={}", store.path("n2").display())]).expect(2).err();
    assert!(twice.contains("node 1 was given two directories"), "{twice}");
    get(&[&node0]).expect(7);
    get(&[&node1, &node0]).done();
    store.run(&["put", "k", "v"]).done();
    let own = format!("node0={}", store.data().display());
    assert!(get(&[&own, &node1]).expect(2).err().contains("has 1 node"));
    get(&[&own]).done();
}

/// Regression: a place meant for a node became a directory of that very name.
#[test]
fn numbers_that_no_node_has_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for place in ["node99999999999=x", "node-1=x", "node16=x"] {
        let ran = std::process::Command::new(env!("CARGO_BIN_EXE_hither"))
            .current_dir(dir.path())
            .args(["put", "k", "v", "--data", place])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.code() == Some(2) && text.contains("nodes have the numbers 0 to 15"), "{text}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{place}");
    }
}

/// Regression: the store was reported missing, with the advice to mount its device.
#[test]
fn a_directory_that_takes_no_files_is_named_so() {
    let ran = run(&["put", "k", "v", "--data", "/proc"]).expect(3);
    assert!(ran.err().contains("/proc/node0.hither cannot be created") && ran.err().contains("name another directory"), "{}", ran.err());
}

/// Regression: the store was created before the key was checked.
#[test]
fn a_bad_call_leaves_no_store_behind() {
    let store = Store::any();
    let long = "k".repeat(65_537);
    for call in [&["put", "", "v"][..], &["put", &long, "v"], &["put", "k", "v", "--keyspace", ""], &["load", "--keyspace", "a\nb"]] {
        assert!(!store.feed(call, b"k\tv\n").expect(2).err().is_empty());
        assert!(!store.data().exists(), "{:?} makes a store", &call[..1]);
    }
    // Nor does an input whose first line is not a record.
    for (call, input) in [(&["load", "--kind", "hash"][..], "no tab\n"), (&["load", "--format", "jsonl", "--key", "id"], "{\"other\":1}\n")]
    {
        assert!(store.feed(call, input.as_bytes()).expect(2).err().contains("line 1"));
        assert!(!store.data().exists(), "{call:?} makes a store");
    }
    assert!(store.feed(&["load", "--skip-bad"], b"no tab\nk\tv\n").done().err().contains("1 bad line"));
    assert_eq!(store.dump("default"), b"k\tv\n");
}

/// Regression: the option was ignored silently, and `copy --keyspace` copied all keyspaces.
#[test]
fn a_keyspace_is_refused_by_commands_that_are_about_all() {
    let store = Store::any();
    store.run(&["put", "k", "v"]).done();
    let (copy, absent) = (store.path("copy").display().to_string(), store.path("absent").display().to_string());
    // If a server accepts the option, it still ends, with another status.
    let commands = [&["copy", &copy][..], &["compact"], &["keyspaces"], &["serve", "--aclfile", &absent]];
    for command in commands {
        let refused = store.run(&[command, &["--keyspace", "default"]].concat()).expect(2).err();
        assert!(refused.contains("--keyspace is for commands") && refused.contains("scan"), "{command:?}: {refused}");
    }
    assert!(!store.path("copy").exists());
    assert!(store.run(&["drop", "other", "--keyspace", "default"]).expect(2).err().contains("which keyspace?"));
    store.run(&["drop", "default", "--keyspace", "default"]).done();
}

/// Regression: `hither --json bench` printed no JSON, and no error.
#[test]
fn options_of_a_store_are_refused_before_those_of_a_benchmark() {
    let help = ["run", "--help"];
    for option in [&["--json"][..], &["--data", "/x"], &["--keyspace", "k"], &["--read-only"], &["--durability", "sync"], &["--salvage"]] {
        for line in [[option, &["bench"], &help].concat(), [&["bench"], option, &help].concat()] {
            let refused = run(&line).expect(2).err();
            assert!(refused.contains(option[0]) && refused.contains("hither bench run"), "{line:?}: {refused}");
        }
    }
    run(&["bench", "run", "--json", "--help"]).done();
}

/// Regression: the record was stored, reported as stored, and gone.
#[test]
fn no_time_to_live_is_refused() {
    let store = Store::any();
    for ttl in ["0", "0ms", "0d"] {
        assert!(store.run(&["put", "k", "v", "--ttl", ttl]).expect(2).err().contains("hither del"), "{ttl}");
        assert!(!store.data().exists());
    }
}

/// Regression: after `put` into the keyspace `server`, the next hash showed the fields of another. `load` and `del` had similar effects.
#[test]
fn databases_of_a_server_take_no_writes_from_beside() {
    let store = Store::any();
    let server = Server::start(&store, &[]);
    server.client().run("HSET first secret 42");
    assert_eq!(server.terminate(), 0);
    for name in ["server", "db0", "db0.rows", "db9"] {
        let calls =
            [&["put", "next collection", "oops"][..], &["load"], &["load", "--skip", "1"], &["del", "first"], &["del", "--from", "a"]];
        // A keyspace that does not exist yet belongs to the server, too.
        for call in calls.iter().filter(|call| name != "db9" || call[0] == "put" || call.len() == 1) {
            let refused = store.feed(&[*call, &["--keyspace", name]].concat(), b"k\tv\n").expect(2).err();
            assert!(refused.contains("hither serve") && refused.contains("load dumps"), "{call:?} {name}: {refused}");
        }
    }
    let dumps = ["server", "db0", "db0.rows"].map(|name| (name, store.dump(name)));
    let names = store.run(&["keyspaces"]).done().out();
    assert!(!names.contains("db9"), "{names}");
    // They can be loaded into a new store in any order; without the counter, numbers continue after those in use.
    for order in [&[0, 1, 2][..], &[2, 1, 0], &[1, 2]] {
        let restored = Store::any();
        for (name, dump) in order.iter().map(|number| &dumps[*number]) {
            restored.feed(&["load", "--keyspace", name], dump).done();
        }
        let server = Server::start(&restored, &[]);
        let mut client = server.client();
        client.run("HSET second mine 1");
        assert_eq!(
            (text(&client.run("HGET first secret")), client.number("HLEN first"), client.number("HLEN second")),
            ("42".into(), 1, 1)
        );
        assert_eq!(server.terminate(), 0);
    }
}
