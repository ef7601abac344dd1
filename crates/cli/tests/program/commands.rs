//! Every command of the real program: its output, its exit status, the shape of its JSON.

use crate::common;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use crate::common::wire::Server;
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
    // A lone hyphen stands for standard input.
    store.run(&["put", "hyphen", r"\x2d", "--escape"]).done();
    assert_eq!(store.run(&["get", "hyphen"]).done().out(), "-\n");
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

/// Regression: only `dump` showed when a key expires.
#[test]
fn programs_see_when_a_key_expires() {
    let store = Store::any();
    let input = b"a\t1\n\\E33177117420000\tb\t2\nc\t3\n";
    let time = json!(33_177_117_420_000u64);
    for kind in ["ordered", "hash"] {
        store.feed(&["load", "--kind", kind, "--keyspace", kind], input).done();
        let get = |key: &str| store.run(&["get", key, "--keyspace", kind, "--json"]).done().document();
        assert_eq!(get("b"), json!({"found": true, "key": "b", "value": "2", "expires_at_ms": time}));
        assert_eq!(get("a"), json!({"found": true, "key": "a", "value": "1"}));
        let looked = store.run(&["get", "b", "--keyspace", kind, "--json", "--read-only"]).done().document();
        assert_eq!(looked["expires_at_ms"], time);
    }
    let scan = |options: &[&str]| store.run(&[&["scan", "--keyspace", "ordered"], options].concat()).done();
    let b = json!({"key": "b", "value": "2", "expires_at_ms": time});
    assert_eq!(scan(&["--json"]).json(), [json!({"key": "a", "value": "1"}), b.clone(), json!({"key": "c", "value": "3"})]);
    assert_eq!(scan(&["--json", "--reverse", "--limit", "1", "--to", "c"]).json(), [b]);
    assert_eq!(scan(&[]).out(), "a\t1\nb\t2\nc\t3\n", "people see the records");
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
    // Found by hand: an empty range was accepted, and reported as empty.
    for range in [&[][..], &["--from", "b", "--to", "a"], &["--limit", "0"]] {
        assert!(store.run(&[&["scan", "--keyspace", "h"], range].concat()).expect(2).err().contains("hither dump"), "{range:?}");
    }
    assert_eq!(store.dump("h"), b"a\t1\nb\t2\nc\t3\n");
    assert!(store.feed(&["load", "--kind", "ordered", "--keyspace", "h"], b"").expect(2).err().contains("is hash"));
    store.feed(&["load", "--keyspace", "h"], b"d\t4\n").done();
    let rows = store.run(&["keyspaces", "--json"]).done().document();
    assert_eq!((&rows[0]["name"], &rows[0]["kind"], &rows[0]["keys"]), (&json!("h"), &json!("hash"), &json!(4)));
    assert!(store.run(&["keyspaces"]).done().out().starts_with("h  hash     4 keys"));
}

#[test]
fn a_keyspace_is_dropped_by_its_name() {
    let store = Store::any();
    store.feed(&["load", "--keyspace", "a"], b"k\t1\nl\t2\n").done();
    store.feed(&["load", "--keyspace", "b"], b"k\t1\n").done();
    store.run(&["drop"]).expect(2);
    store.run(&["drop", "default"]).expect(1);
    assert_eq!(store.run(&["drop", "a"]).done().out(), "2 keys\n");
    assert!(store.run(&["drop", "a"]).expect(1).err().contains("hither keyspaces"));
    assert_eq!(store.run(&["keyspaces"]).done().out(), "b  ordered  1 keys\n");
    // The keyspace can be created again, as another kind.
    store.feed(&["load", "--kind", "hash", "--keyspace", "a"], b"m\t3\n").done();
    assert_eq!(store.dump("a"), b"m\t3\n");
    assert_eq!(store.run(&["drop", "a", "--json"]).done().document(), json!({ "keys": 1 }));
    assert!(store.run(&["drop", "b", "--keyspace", "a"]).expect(2).err().contains("which keyspace?"));
    // These names belong to a server only in a store that has had one.
    for name in ["db0", "server"] {
        store.feed(&["load", "--keyspace", name], b"k\t1\n").done();
    }
    for name in ["db0", "server"] {
        store.run(&["drop", name]).done();
    }
    assert_eq!(Server::start(&store, &[]).terminate(), 0);
    for name in ["server", "db0", "db0.rows"] {
        assert!(store.run(&["drop", name]).expect(2).err().contains("FLUSHDB"), "{name}");
    }
    store.feed(&["load", "--keyspace", "db00"], b"").done();
    store.run(&["drop", "db00"]).done();
    store.run(&["check"]).done();
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

/// Regression: the directory was tried out where the pool is a link to another file system, and a store in memory was
/// said to survive a loss of power.
#[test]
fn doctor_tries_out_the_place_to_which_a_pool_is_a_link() {
    let (folder, memory) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
    std::os::unix::fs::symlink(memory.path().join("pool"), folder.path().join("node0.hither")).unwrap();
    let directory = folder.path().to_str().unwrap();
    let place = run(&["doctor", "--json", "--data", directory]).done().document()["places"][0].clone();
    assert_eq!((&place["medium"], &place["survives_power_loss"]), (&json!("volatile"), &json!(false)), "{place}");
    assert_eq!(std::fs::read_dir(memory.path()).unwrap().count(), 0, "doctor leaves nothing behind");
    run(&["put", "k", "v", "--data", directory, "--capacity", "1M", "--max-capacity", "4M"]).done();
    let stat = run(&["stat", "--json", "--data", directory]).done().document();
    assert_eq!(stat["pools"][0]["medium"], place["medium"]);
}

/// Regression: in a container each run has the same process number, so what a killed run left kept all later ones from
/// working.
#[test]
fn doctor_clears_what_a_killed_one_has_left() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"mkdir "$1/.hither-doctor-$$" && touch "$1/.hither-doctor-$$/pool" && exec "$0" doctor --json --data "$1/store""#;
    let program = env!("CARGO_BIN_EXE_hither");
    let output = std::process::Command::new("sh").args(["-c", script, program]).arg(folder.path()).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success() && report["places"][0]["problem"].is_null(), "{report}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Regression: a terminal obeyed an escape sequence in a name that an error showed.
#[test]
fn errors_show_no_control_characters() {
    let store = Store::on_file();
    store.run(&["put", "k", "v"]).done();
    let failed = store.run(&["get", "--keyspace", "no\u{1b}[31msuch", "k"]);
    let told = String::from_utf8_lossy(&failed.0.stderr).into_owned();
    assert!(!failed.0.status.success() && told.contains("such") && !told.contains('\u{1b}'), "{told:?}");
}

/// The README states these sizes.
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
    // A store that has grown was created with less: a user who gives the same options each time gets no note.
    for size in [
        &[][..],
        &["--capacity", "64M"],
        &["--capacity", "1M"],
        &["--max-capacity", "1G"],
        &["--capacity", "67108864", "--max-capacity", "1024M"],
    ] {
        assert_eq!(get(size), "", "{size:?}");
    }
    for size in [["--capacity", "128M"], ["--max-capacity", "2G"], ["--max-capacity", "512M"]] {
        let note = get(&size);
        assert!(note.contains("keeps its size: 64.0 MiB, growing to 1.0 GiB"), "{size:?}: {note}");
    }
    let note: serde_json::Value = serde_json::from_str(&get(&["--capacity", "128M", "--json"])).unwrap();
    assert!(note["note"].as_str().unwrap().contains("new stores"));
}

/// Regression: a mistyped option was stored as the value.
#[test]
fn a_value_with_a_hyphen_stands_behind_two() {
    let store = Store::any();
    for wrong in [&["put", "k", "--escap"][..], &["put", "k", "-V"], &["put", "k", "--ttl", "1h"]] {
        store.run(wrong).expect(2);
    }
    assert!(!store.data().exists());
    let data = store.data();
    for (rest, value) in [(&["k", "-5"][..], "-5\n"), (&["--", "k", "--x"], "--x\n"), (&["--ttl", "1h", "--", "k", "-V"], "-V\n")] {
        run(&[&["put", "--data", data.to_str().unwrap()], rest].concat()).done();
        assert_eq!(store.run(&["get", "k"]).done().out(), value);
    }
    store.feed(&["put", "k", "-"], b"from a pipe").done();
    assert_eq!(store.run(&["get", "k"]).done().out(), "from a pipe\n");
    // Regression: a negative number was a value, but not a key.
    store.run(&["put", "-5", "five below"]).done();
    assert_eq!(store.run(&["get", "-5"]).done().out(), "five below\n");
    assert_eq!(store.run(&["scan", "--prefix", "-5"]).done().out(), "-5\tfive below\n");
    store.run(&["del", "-5"]).done();
    store.run(&["get", "-5"]).expect(1);
    store.run(&["get", "-x"]).expect(2);
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

/// Regression: an empty variable hid the store of a settings file, and `doctor` asked for a store.
#[test]
fn an_empty_variable_names_no_store() {
    let store = Store::any();
    let file = store.path("settings.toml");
    // A directory that can hold no store, so that no server starts.
    write(&file, "data = [\"/proc\"]\nport = 0\n");
    for empty in ["", ":"] {
        let ended = |arguments: &[&str]| common::Ran(program().args(arguments).env("HITHER_DATA", empty).output().unwrap());
        assert_eq!(ended(&["doctor", "--json"]).done().document()["places"], json!([]));
        assert!(ended(&["serve", "--config", file.to_str().unwrap()]).expect(3).err().contains("/proc/node0.hither"));
        assert!(ended(&["get", "k"]).expect(2).err().contains("which store?"));
    }
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

#[test]
fn read_only_changes_no_byte_and_is_for_commands_that_read() {
    let store = Store::on_file();
    store.run(&["put", "a-key", "a-value"]).done();
    let files = || ["node0.hither", "checkpoint.hither"].map(|name| std::fs::read(store.data().join(name)).unwrap());
    let before = files();
    let looks = |command: &[&str]| store.run(&[command, &["--read-only"]].concat());
    assert_eq!(looks(&["get", "a-key"]).done().out(), "a-value\n");
    for reading in ["scan", "dump"] {
        assert_eq!(looks(&[reading]).done().out(), "a-key\ta-value\n");
    }
    for reading in ["stat", "keyspaces", "check"] {
        looks(&[reading]).done();
    }
    let copy = store.path("copy").display().to_string();
    looks(&["copy", &copy]).done();
    for writing in
        [&["put", "b", "c"][..], &["del", "a-key"], &["load", "/dev/null"], &["drop", "default"], &["compact"], &["serve"], &["doctor"]]
    {
        assert!(looks(writing).expect(2).err().contains("commands that only read"), "{writing:?}");
    }
    assert!(files() == before, "a file has changed");
    run(&["put", "b", "c", "--data", &copy]).done();
    assert_eq!(run(&["get", "a-key", "--data", &copy]).done().out(), "a-value\n");
    run(&["get", "a-key", "--read-only", "--data", &store.path("absent").display().to_string()]).expect(7);
}

/// With a flipped byte the store refuses and advises what to do; `--salvage` then saves the rest and changes no byte.
/// Once it marked the store as closed without that entry, and removed the checkpoint.
#[test]
fn dump_salvage_saves_what_is_readable() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let hither =
        |args: &[&str]| std::process::Command::new(env!("CARGO_BIN_EXE_hither")).args(args).arg("--data").arg(&data).output().unwrap();
    assert!(hither(&["put", "a-key", "a-value-to-damage"]).status.success());
    assert!(hither(&["put", "b-key", "b-value"]).status.success());
    common::flip(&data.join("node0.hither"), b"a-value-to-damage");
    let refused = hither(&["dump"]);
    assert_eq!(refused.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("use --salvage"));
    assert!(String::from_utf8_lossy(&hither(&["check"]).stdout).contains("use --salvage"));
    // The temporary file of a checkpoint that a crash left must stay as well.
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
    assert_eq!(hither(&["dump"]).status.code(), Some(4), "nor does writing make it forgotten");
    assert_eq!(String::from_utf8_lossy(&hither(&["dump", "--salvage"]).stdout), "b-key\tb-value\nc-key\tc\n");
}

/// Regression: with a flipped bit in page 0, in the catalogue or in a descriptor, or with a truncated end, `--salvage`
/// saved nothing. `check` reports such a store as not sound, and commands that write still refuse it.
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
        assert!(refused.contains("--salvage to keep"), "{number}: {refused}");
        hither(&["check"]).expect(1);
        let saved = hither(&["dump", "--salvage"]).expect(0);
        assert_eq!(saved.out(), records, "{number}");
        assert!(saved.err().contains("hither: salvaged: ") && !saved.err().contains("restore"), "{number}: {}", saved.err());
        let checked = hither(&["check", "--salvage"]).expect(1).out();
        assert!(checked.contains("is damaged") || checked.contains("bytes long"), "{number}: {checked}");
        assert!(checked.contains("hither copy --salvage") && !checked.contains("use --salvage"), "{number}: {checked}");
        assert!(std::fs::read(&pool).unwrap() == *image, "{number}: it is looked at only");
    }
    std::fs::write(&pool, &images[1]).unwrap();
    let refused = hither(&["put", "k", "v", "--salvage"]).expect(4).err();
    assert!(refused.contains("`hither copy DIR --salvage`") && !refused.contains("use --salvage"), "{refused}");
    // Without a superblock nothing states what the pool is.
    std::fs::write(&pool, [&[0; 4096], &whole[4096..]].concat()).unwrap();
    for command in [&["dump"][..], &["stat"], &["copy", dir.path().join("copy").to_str().unwrap()]] {
        let refused = hither(&[command, &["--salvage"]].concat()).expect(4).err();
        assert!(refused.contains("from a backup") && !refused.contains("use --salvage"), "{command:?}: {refused}");
    }
    let checked = hither(&["check", "--salvage"]).expect(1).out();
    assert!(checked.contains("NOT SOUND") && !checked.contains("use --salvage"), "{checked}");
    std::fs::write(&pool, &whole).unwrap();
    hither(&["check"]).done();
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

#[test]
fn ranges_are_deleted() {
    let store = Store::any();
    let input: String = (0..3_000).map(|number| format!("k{number:04}\tv\n")).collect();
    store.feed(&["load"], format!("a\t1\n{input}z\t1\n").as_bytes()).done();
    assert_eq!(store.run(&["del", "--prefix", "k1"]).done().out(), "1000 keys\n");
    assert_eq!(store.run(&["del", "--from", r"k000\x35", "--to", "k0010", "--escape"]).done().out(), "5 keys\n");
    assert_eq!(
        store.run(&["del", "--from", "k2", "--to", "k3", "--prefix", "k29", "--json"]).done().document(),
        json!({"deleted": true, "keys": 100})
    );
    assert!(store.run(&["del", "--from", "z", "--to", "a"]).expect(1).err().contains("no key"));
    assert_eq!(store.run(&["del", "--prefix", "k1", "--json"]).expect(1).document(), json!({"deleted": false, "keys": 0}));
    assert_eq!(store.run(&["scan"]).done().out().lines().count(), 2 + 3_000 - 1_000 - 5 - 100);
    // An unset variable in a script must not delete everything.
    for wrong in
        [&["del"][..], &["del", "k", "--prefix", "k"], &["del", "--escape"], &["del", "--prefix", ""], &["del", "--from", "", "--to", "z"]]
    {
        store.run(wrong).expect(2);
    }
    store.feed(&["load", "--kind", "hash", "--keyspace", "h"], b"k\tv\n").done();
    assert!(store.run(&["del", "--prefix", "k", "--keyspace", "h"]).expect(2).err().contains("hither drop"));
    assert_eq!(store.run(&["del", "--to", "zz"]).done().out(), format!("{} keys\n", 2 + 3_000 - 1_000 - 5 - 100));
    store.run(&["check"]).done();
}
