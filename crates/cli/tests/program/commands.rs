//! Every command of the real program: what it prints, its exit status, the shape of its JSON.

use crate::common;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use crate::common::{Store, program, run, write};
use serde_json::json;

#[test]
fn put_get_del() {
    let store = Store::any();
    store.run(&["put", "colour", "gr\u{fc}n"]).done();
    assert_eq!(store.run(&["get", "colour"]).done().out(), "gr\u{fc}n\n");
    assert_eq!(store.run(&["get", "colour", "--raw"]).done().out(), "gr\u{fc}n");
    assert_eq!(store.run(&["get", "colour", "--json"]).done().document(), json!({"found": true, "key": "colour", "value": "gr\u{fc}n"}));
    assert_eq!(store.run(&["put", "n", "-5", "--json"]).done().document(), json!({"stored": true, "key": "n", "value_bytes": 2}));
    assert_eq!(store.run(&["del", "colour", "--json"]).done().document(), json!({"deleted": true, "key": "colour"}));
    assert_eq!(store.run(&["del", "colour", "--json"]).expect(1).document(), json!({"deleted": false, "key": "colour"}));
    assert!(store.run(&["del", "colour"]).expect(1).err().contains("no such key: colour"));
    assert!(store.run(&["get", "colour"]).expect(1).err().contains("no such key: colour"));
    assert_eq!(store.run(&["get", "colour", "--json"]).expect(1).document(), json!({"found": false, "key": "colour"}));
    assert_eq!(store.run(&["get", "n"]).done().out(), "-5\n");
}

#[test]
fn binary_keys_and_values() {
    let store = Store::any();
    let bytes: Vec<u8> = (0..=255).collect();
    store.feed(&["put", r"a\x00\n", "-", "--escape"], &bytes).done();
    assert_eq!(store.run(&["get", r"a\x00\n", "--escape", "--raw"]).done().0.stdout, bytes);
    let escaped = store.run(&["get", r"a\x00\n", "--escape"]).done().out();
    assert!(escaped.starts_with(r"\x00\x01") && escaped.contains(r"\x08\t\n\x0b\x0c\r\x0e") && escaped.ends_with("\\xff\n"), "{escaped}");
    let found = store.run(&["get", r"a\x00\n", "--escape", "--json"]).done().document();
    assert_eq!(found["key"], "a\0\n");
    assert!(found["value"]["base64"].as_str().unwrap().starts_with("AAEC"));
    assert!(store.run(&["get", r"a\q", "--escape"]).expect(2).err().contains("bad escape"));
}

#[test]
fn a_record_with_a_time_to_live_disappears() {
    let store = Store::any();
    store.run(&["put", "short", "x", "--ttl", "300ms"]).done();
    store.run(&["put", "long", "x", "--ttl", "1h"]).done();
    std::thread::sleep(std::time::Duration::from_millis(400));
    store.run(&["get", "short"]).expect(1);
    store.run(&["get", "long"]).done();
}

#[test]
fn scan_ranges() {
    let store = Store::any();
    store.feed(&["load"], b"a\t1\nab\t2\nac\\xff\t3\nb\t4\n\\xff\t5\n").done();
    let scan = |options: &[&str]| store.run(&[&["scan"], options].concat()).done().out();
    assert_eq!(scan(&[]), "a\t1\nab\t2\nac\\xff\t3\nb\t4\n\\xff\t5\n");
    assert_eq!(scan(&["--prefix", "a"]), "a\t1\nab\t2\nac\\xff\t3\n");
    assert_eq!(scan(&["--prefix", "a", "--from", "ab", "--reverse"]), "ac\\xff\t3\nab\t2\n");
    assert_eq!(scan(&["--from", "ab", "--to", "b"]), "ab\t2\nac\\xff\t3\n");
    assert_eq!(scan(&["--reverse", "--limit", "2"]), "\\xff\t5\nb\t4\n");
    assert_eq!(scan(&["--from", r"\xff", "--escape"]), "\\xff\t5\n");
    assert_eq!(scan(&["--from", "z", "--to", "a"]), "");
    assert_eq!(scan(&["--limit", "0"]), "");
    assert_eq!(store.run(&["scan", "--prefix", "ac", "--raw"]).done().0.stdout, b"ac\xff\t3\n");
    let records = store.run(&["scan", "--prefix", "a", "--json"]).done().json();
    assert_eq!(records[1], json!({"key": "ab", "value": "2"}));
    assert_eq!(records[2]["key"], json!({"base64": "YWP/"}));
}

#[test]
fn a_hash_keyspace_has_no_ranges_but_a_dump_in_key_order() {
    let store = Store::any();
    store.feed(&["load", "--kind", "hash", "--keyspace", "h"], b"c\t3\na\t1\nb\t2\n").done();
    assert!(store.run(&["scan", "--keyspace", "h"]).expect(2).err().contains("hither dump"));
    assert_eq!(store.dump("h"), b"a\t1\nb\t2\nc\t3\n");
    assert!(store.feed(&["load", "--kind", "ordered", "--keyspace", "h"], b"").expect(2).err().contains("is hash"));
    store.feed(&["load", "--keyspace", "h"], b"d\t4\n").done();
    let rows = store.run(&["keyspaces", "--json"]).done().document();
    assert_eq!((&rows[0]["name"], &rows[0]["kind"], &rows[0]["keys"]), (&json!("h"), &json!("hash"), &json!(4)));
    assert!(store.run(&["keyspaces"]).done().out().starts_with("h  hash     4 keys"));
}

#[test]
fn check_and_stat() {
    let store = Store::any();
    store.feed(&["load"], b"a\t1\nb\t2\n").done();
    let report = store.run(&["check", "--json"]).done().document();
    assert_eq!((&report["sound"], &report["problems"]), (&json!(true), &json!([])));
    assert!(store.run(&["check"]).done().out().ends_with("sound\n"));
    let stat = store.run(&["stat", "--json"]).done().document();
    for field in ["keyspaces", "pools", "utilization", "garbage", "shards", "durability", "recovery"] {
        assert!(!stat[field].is_null(), "no {field} in {stat}");
    }
    assert!(store.run(&["stat"]).done().out().contains("garbage"));
}

#[test]
fn doctor_needs_no_store() {
    let report = run(&["doctor", "--json"]).done().document();
    for field in ["version", "nodes", "flush", "huge_pages", "places"] {
        assert!(!report[field].is_null(), "no {field} in {report}");
    }
    let store = Store::on_file();
    let report = store.run(&["doctor", "--json"]).done().document();
    assert_eq!(report["places"][0]["medium"], "file", "{report}");
    assert!(!store.data().exists(), "doctor leaves nothing behind");
    assert!(store.run(&["doctor"]).done().out().contains("persistence domain"));
}

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

/// Programs get one JSON object for every failure, also for a command line that cannot be read.
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

/// The README promises these sizes.
#[test]
fn a_new_store_has_66_mib_and_may_grow_to_64_gib() {
    let store = Store::on_file();
    let node0 = format!("node0={}", store.data().display());
    run(&["put", "k", "v", "--data", &node0]).done();
    assert_eq!(std::fs::metadata(store.data().join("node0.hither")).unwrap().len(), 66 << 20);
    let stat = run(&["stat", "--json", "--data", &node0]).done().document();
    assert_eq!((&stat["pools"][0]["capacity_bytes"], &stat["pools"][0]["max_bytes"]), (&json!(64 << 20), &json!(64u64 << 30)));
}

#[test]
fn an_existing_store_keeps_its_size_and_says_so() {
    let store = Store::on_file();
    let data = store.data();
    let get = |size: &[&str]| run(&[&["get", "k", "--data", data.to_str().unwrap()], size].concat()).done().err();
    assert_eq!(store.run(&["put", "k", "v"]).done().err(), "");
    for size in [&[][..], &["--capacity", "64M"], &["--max-capacity", "1G"], &["--capacity", "67108864", "--max-capacity", "1024M"]] {
        assert_eq!(get(size), "", "{size:?}");
    }
    for size in [["--capacity", "128M"], ["--capacity", "1M"], ["--max-capacity", "2G"], ["--max-capacity", "512M"]] {
        let note = get(&size);
        assert!(note.contains("keeps its size: 64.0 MiB, growing to 1.0 GiB"), "{size:?}: {note}");
    }
    let note: serde_json::Value = serde_json::from_str(&get(&["--capacity", "128M", "--json"])).unwrap();
    assert!(note["note"].as_str().unwrap().contains("new stores"));
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
    assert!(store.run(&["get", "k", "--keyspace", "other"]).expect(1).err().contains("no keyspace other"));
    let no_dir = store.path("no/such/dir/dump");
    store.run(&["dump", no_dir.to_str().unwrap()]).expect(3);
}

#[test]
fn a_store_in_use_is_locked() {
    let store = Store::any();
    let mut load = store.command(&["load", "--group", "1"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = load.stdin.take().unwrap();
    // The reader fills its buffer before it parses: send more than that.
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
    assert!((14..24).contains(&durable), "{durable} records of 1 MiB in a quarter of 64 MiB");
    // One that is there may be overwritten; and a command with another bound has that.
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

/// The kernel's answer to a file that grows beyond the limit is a signal, which would end the program without a word.
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
    // More than a segment, so that the damaged record is in a sealed one: there a crash leaves no holes.
    let filling = "x".repeat(8000);
    let input: String = (0..4000).map(|n| format!("key{n}\tvalue number {n} of many {filling}\n")).collect();
    store.feed(&["load"], input.as_bytes()).done();
    let pool = store.data().join("node0.hither");
    let mut bytes = std::fs::read(&pool).unwrap();
    let needle = b"value number 50 of many";
    let at = bytes.windows(needle.len()).position(|window| window == needle).unwrap();
    bytes[at] ^= 1;
    write(&pool, &bytes);
    let report = store.run(&["check", "--json"]).expect(1).document();
    assert_eq!(report["sound"], false);
    assert!(!report["problems"].as_array().unwrap().is_empty(), "{report}");
    assert!(store.run(&["check"]).expect(1).out().contains("NOT SOUND"));
    store.run(&["get", "key50"]).expect(4);
}

#[test]
fn a_file_that_is_no_pool_is_refused() {
    let store = Store::on_file();
    std::fs::create_dir_all(store.data()).unwrap();
    write(&store.data().join("node0.hither"), "something else ".repeat(10_000));
    store.run(&["get", "k"]).expect(4);
    store.run(&["put", "k", "v"]).expect(4);
}

#[test]
fn bench_has_its_own_arguments() {
    assert!(run(&["bench", "--help"]).done().out().contains("bench"));
    run(&["bench", "no-such-command"]).expect(2);
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let store = Store::any();
    let input: String = (0..20_000).map(|n| format!("key{n:06}\tvalue of a certain length\n")).collect();
    store.feed(&["load"], input.as_bytes()).done();
    for command in ["scan", "dump"] {
        let mut child = store.command(&[command]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("key000000\t"));
        let mut errors = String::new();
        child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert_eq!((child.wait().unwrap().code(), errors.as_str()), (Some(0), ""), "{command}");
    }
}

#[test]
fn the_environment_names_the_store() {
    let store = Store::on_file();
    store.run(&["put", "k", "v"]).done();
    let output = program().args(["get", "k"]).env("HITHER_DATA", store.data()).output().unwrap();
    assert_eq!(output.stdout, b"v\n", "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_store_over_two_nodes() {
    let store = Store::on_file();
    let (node0, node1) = (format!("node0={}", store.path("n0").display()), format!("node1={}", store.path("n1").display()));
    let both = ["--data", node0.as_str(), "--data", node1.as_str(), "--capacity", "128M"];
    let on_both = |command: &[&str]| run(&[command, &both].concat());
    let input = store.path("input");
    write(&input, (0..5000).map(|n| format!("key{n:05}\t{n}\n")).collect::<String>());
    on_both(&["load", input.to_str().unwrap()]).done();
    assert_eq!(on_both(&["dump"]).done().0.stdout, std::fs::read(&input).unwrap());
    run(&["get", "key00001", "--data", &node0]).expect(7);
}

/// Every name below a directory, sorted.
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

    // The pool of node 0 is made, that of node 1 cannot be.
    std::fs::create_dir_all(store.path("was/here")).unwrap();
    write(&store.path("was/note"), "x");
    let before = names(&root);
    let (node0, node1) = (node(0, "was/here/0"), node(1, "was/note/1"));
    run(&["put", "k", "v", "--medium", "file", "--capacity", "1M", "--data", &node0, "--data", &node1]).expect(3);
    put(&[store.path("was").display().to_string()]).expect(6);
    assert_eq!(names(&root), before);

    // An empty file was there before: it is used, or left.
    write(&store.path("was/node0.hither"), "");
    put(&[store.path("was").display().to_string()]).expect(6);
    assert!(store.path("was/node0.hither").exists());
}

#[test]
fn what_cannot_be_written_is_named_with_what_to_do() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::process::CommandExt;
    let store = Store::on_file();
    let mode = |name: &str, mode: u32| std::fs::set_permissions(store.path(name), PermissionsExt::from_mode(mode)).unwrap();
    store.run(&["put", "k", "v"]).done();
    std::fs::create_dir(store.path("empty")).unwrap();
    mode("", 0o755);
    let root = std::fs::metadata(store.data()).unwrap().uid() == 0;
    // Permissions do not bind the superuser.
    let command = |arguments: &[&str], place: &str| {
        let mut command = program();
        command.args(arguments).args(["--medium", "file", "--data"]).arg(store.path(place));
        if root { command.uid(65534).gid(65534).output() } else { command.output() }
    };
    if let Err(error) = command(&["--version"], "data") {
        eprintln!("skipped: another user cannot run the program here: {error}");
        return;
    }
    let refused = |arguments: &[&str], place: &str, parts: &[&str]| {
        let output = command(arguments, place).unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{errors}");
        assert!(parts.iter().all(|part| errors.contains(part)), "{parts:?}: {errors}");
    };
    mode("data/node0.hither", 0o444);
    mode("data", 0o555);
    mode("empty", 0o555);
    refused(&["get", "k"], "data", &["data/node0.hither cannot be opened for writing", "write permission"]);
    refused(&["put", "k", "v"], "empty", &["empty/node0.hither cannot be opened for writing", "its directory"]);
    let empty = store.path("empty").display().to_string();
    refused(&["put", "k", "v"], "empty/a/b", &["empty/a/b: Permission denied", &format!("write permission for {empty},")]);
    mode("data", 0o000);
    refused(&["get", "k"], "data", &["data/node0.hither", "enter the directory"]);
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

/// A flipped byte makes the store refuse, by name of the way out; `--salvage` then saves the rest. That changes no byte: it once made the store pass for one that was
/// closed without that entry, and removed the checkpoint.
#[test]
fn dump_salvage_saves_what_is_readable() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let hither =
        |args: &[&str]| std::process::Command::new(env!("CARGO_BIN_EXE_hither")).args(args).arg("--data").arg(&data).output().unwrap();
    assert!(hither(&["put", "a-key", "a-value-to-damage"]).status.success());
    assert!(hither(&["put", "b-key", "b-value"]).status.success());
    let pool = data.join("node0.hither");
    let mut bytes = std::fs::read(&pool).unwrap();
    let at = bytes.windows(17).position(|window| window == b"a-value-to-damage").unwrap();
    bytes[at] ^= 1;
    std::fs::write(&pool, bytes).unwrap();
    let refused = hither(&["dump"]);
    assert_eq!(refused.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("use --salvage"));
    assert!(String::from_utf8_lossy(&hither(&["check"]).stdout).contains("use --salvage"));
    // What a crash left of a checkpoint is somebody else's to remove.
    std::fs::write(data.join("checkpoint.hither.tmp"), "half a checkpoint").unwrap();
    let files = || ["node0.hither", "checkpoint.hither", "checkpoint.hither.tmp"].map(|name| std::fs::read(data.join(name)).ok());
    let before = files();
    assert!(before.iter().all(Option::is_some));
    let saved = hither(&["dump", "--salvage"]);
    assert!(saved.status.success());
    assert_eq!(String::from_utf8_lossy(&saved.stdout), "b-key\tb-value\n");
    assert!(String::from_utf8_lossy(&saved.stderr).contains("damaged segment"));
    for reading in [&["get", "b-key"][..], &["scan"], &["stat"], &["keyspaces"], &["check"]] {
        let status = hither(&[reading, &["--salvage"]].concat()).status.code();
        assert!(matches!(status, Some(0 | 1)), "{reading:?}: {status:?}");
    }
    assert!(files() == before, "looking at it changes nothing");
    assert_eq!(hither(&["dump"]).status.code(), Some(4), "it is as damaged as before");
    assert!(hither(&["put", "c-key", "c", "--salvage"]).status.success());
    assert_eq!(String::from_utf8_lossy(&hither(&["dump"]).stdout), "b-key\tb-value\nc-key\tc\n", "who writes decides to go on without it");
}

/// Regression: a flipped bit of page 0, of the catalogue or of a descriptor, or an end cut off, and `--salvage` saved nothing. `check` calls such a store not sound, and
/// who writes is refused still.
#[test]
fn dump_salvage_saves_all_where_only_metadata_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let (data, input) = (dir.path().join("data"), dir.path().join("in.kv"));
    let hither = |args: &[&str]| run(&[args, &["--data", data.to_str().unwrap()]].concat());
    let records: String = (0..2000).map(|i| format!("key{i:05}\tvalue {i}\n")).collect();
    std::fs::write(&input, &records).unwrap();
    hither(&["load", input.to_str().unwrap(), "--capacity", "1M", "--max-capacity", "1M"]).done();
    let pool = data.join("node0.hither");
    let whole = std::fs::read(&pool).unwrap();
    let slot = |commit: usize, slots: [usize; 2]| slots[usize::from(whole[commit + 7] >> 7)];
    let places =
        [0, 7, 9, slot(8, [64, 1088]) + 100, 2183, 4097, slot(4096, [8192, 73_728]) + 12, 139_265, slot(139_264, [139_272, 139_328]) + 3];
    let mut images: Vec<Vec<u8>> = vec![whole[..whole.len() - 1].to_vec()];
    for place in places {
        let mut image = whole.clone();
        image[place] ^= 2;
        images.push(image);
    }
    for (number, image) in images.iter().enumerate() {
        std::fs::write(&pool, image).unwrap();
        let refused = hither(&["dump"]).expect(4).err();
        assert!(refused.contains("dump --salvage"), "{number}: {refused}");
        hither(&["check"]).expect(1);
        let saved = hither(&["dump", "--salvage"]).expect(0);
        assert_eq!(saved.out(), records, "{number}");
        assert!(saved.err().contains("hither: salvaged: ") && !saved.err().contains("restore"), "{number}: {}", saved.err());
        let checked = hither(&["check", "--salvage"]).expect(1).out();
        assert!(checked.contains("is damaged") || checked.contains("bytes long"), "{number}: {checked}");
        assert!(std::fs::read(&pool).unwrap() == *image, "{number}: it is looked at only");
    }
    std::fs::write(&pool, &images[1]).unwrap();
    hither(&["put", "k", "v", "--salvage"]).expect(4);
    std::fs::write(&pool, &whole).unwrap();
    hither(&["check"]).done();
}

/// Regression: what was meant for a node became a directory of that very name.
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

/// Regression: it was said to be missing, and that its device should be mounted.
#[test]
fn a_directory_that_takes_no_files_is_named_so() {
    let ran = run(&["put", "k", "v", "--data", "/proc"]).expect(3);
    assert!(ran.err().contains("/proc/node0.hither cannot be created") && ran.err().contains("name another directory"), "{}", ran.err());
}

/// Regression: the store was made before the key was looked at.
#[test]
fn a_bad_call_leaves_no_store_behind() {
    let store = Store::any();
    let long = "k".repeat(65_537);
    for call in [&["put", "", "v"][..], &["put", &long, "v"], &["put", "k", "v", "--keyspace", ""], &["load", "--keyspace", "a\nb"]] {
        assert!(!store.feed(call, b"k\tv\n").expect(2).err().is_empty());
        assert!(!store.data().exists(), "{:?} makes a store", &call[..1]);
    }
}

#[test]
fn a_full_node_is_a_warning_and_shows_in_stat() {
    for json in [false, true] {
        let store = Store::on_file();
        let program = |arguments: &[&str]| {
            let mut command = program();
            command.args(arguments).args(["--medium", "file", "--capacity", "2M", "--max-capacity", "2M"]);
            for node in 0..2 {
                command.arg("--data").arg(format!("node{node}={}", store.path(&format!("node{node}")).display()));
            }
            if json {
                command.arg("--json");
            }
            common::Ran(command.output().unwrap())
        };
        let input = store.path("input");
        let rows = |range: std::ops::Range<u32>| range.map(|key| format!("key {key}\t{}\n", "v".repeat(200))).collect::<String>();
        write(&input, rows(0..1_000));
        let load = ["load", "--threads", "1", input.to_str().unwrap()];
        let loaded = program(&load).done();
        assert!(!loaded.err().contains("warning"), "a quarter of a megabyte fits a node of one: {}", loaded.err());
        write(&input, rows(1_000..5_500));
        let errors = program(&load).done().err();
        let warnings: Vec<_> = errors.lines().filter(|line| line.contains("warning")).collect();
        assert_eq!(warnings.len(), 1, "{errors}");
        assert!(warnings[0].starts_with(if json { "{\"warning\":" } else { "hither: warning: the pool of node " }), "{errors}");
        let stat = program(&["stat"]).done();
        if json {
            let pools = stat.document()["pools"].clone();
            assert_eq!([&pools[0]["full"], &pools[1]["full"]].iter().filter(|full| ***full == json!(true)).count(), 1, "{pools}");
            assert_eq!((&pools[0]["spilling"], &pools[0]["spills"]), (&json!(false), &json!(0)), "this program wrote nothing");
        } else {
            let out = stat.out();
            let has = |field: &str, value: &str| out.lines().any(|line| line.split_whitespace().eq([field, value]));
            assert!(has("full", "yes") && has("spills", "0"), "{out}");
        }
        let errors = program(&["put", "one", "more"]).done().err();
        assert!(errors.contains("warning") && errors.contains("full"), "{errors}");
    }
}
