//! What the program reports and advises when something is wrong, and that a refusal leaves nothing behind.

use crate::common::{Store, flip, program, run};

/// A store with a flipped bit in a sealed segment, where a crash leaves no holes.
fn damaged() -> Store {
    let store = Store::on_file();
    let filling = "x".repeat(8000);
    let records = |from: u32| (from..4000).map(|n| format!("key{n}\tvalue number {n} of many {filling}\n")).collect::<String>();
    store.feed(&["load"], records(0).as_bytes()).done();
    // Half of the data becomes garbage, so that a compaction is worth it.
    store.feed(&["load"], records(2000).as_bytes()).done();
    flip(&store.data().join("node0.hither"), b"value number 50 of many");
    store
}

fn count(text: &str, part: &str) -> usize {
    text.matches(part).count()
}

/// Regression: `compact` ended with status 3, and all these commands gave the advice twice, or in terms of the library.
#[test]
fn damage_has_one_status_and_one_advice() {
    let store = damaged();
    for command in [&["get", "key50"][..], &["dump"], &["compact", "--garbage", "1"]] {
        let text = store.run(command).expect(4).err();
        assert!(count(&text, "use --salvage") == 1 && count(&text, "salvage") == 1, "{command:?}: {text}");
    }
    let report = store.run(&["check", "--json"]).expect(1).document();
    let problem = report["problems"][0].as_str().unwrap();
    assert!(problem.starts_with("damaged segment ") && !problem.contains("salvage"), "findings only: {problem}");
    let text = store.run(&["check"]).expect(1).out();
    assert!(count(&text, "use --salvage") == 1, "{text}");
}

#[test]
fn names_of_keyspaces_are_quoted_and_looked_at() {
    let store = Store::any();
    store.run(&["put", "k", "v"]).done();
    assert!(store.run(&["get", "k", "--keyspace", "other"]).expect(1).err().contains("no keyspace \"other\""));
    // Regression: the keyspace was reported missing.
    assert!(store.run(&["get", "k", "--keyspace", ""]).expect(2).err().contains("name \"\" cannot be used"));
    let told = store.feed(&["load", "--skip-bad"], b"a\tb\nbad\n").done().err();
    assert!(told.contains("1 record durable") && told.contains("1 bad line") && !told.contains("1 bad lines"), "{told}");
}

/// Regression: the store was created before the address was tried.
#[test]
fn a_server_that_cannot_listen_leaves_no_store() {
    let store = Store::on_file();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let port = address.port().to_string();
    for arguments in [&["serve", "--port", &port][..], &["serve", "--port", "0", "--metrics-address", &address.to_string()]] {
        let refused = store.run(arguments).expect(3).err();
        assert!(refused.contains(&port) && refused.contains("in use"), "{refused}");
        assert!(!store.data().exists());
    }
}

#[test]
fn a_note_says_where_no_loss_of_power_is_survived() {
    let store = Store::any();
    let data = store.path("memory");
    let put = |more: &[&str]| run(&[&["put", "k", "v", "--medium", "volatile", "--data", data.to_str().unwrap()], more].concat()).done();
    let told = put(&[]).err();
    assert!(count(&told, "note:") == 1 && told.contains("not a power loss"), "{told}");
    let ran = put(&["--json"]);
    assert_eq!(ran.document()["stored"], true);
    let note: serde_json::Value = serde_json::from_str(&ran.err()).unwrap();
    assert!(note["note"].as_str().unwrap().contains("volatile"), "{note}");
    assert_eq!(put(&["--durability", "process"]).err(), "", "nobody expects it");
    assert_eq!(Store::on_file().run(&["put", "k", "v"]).done().err(), "");
}

/// Regression: the error was reported as wrong use, with the advice to lower a limit that is fixed at creation.
#[test]
fn a_process_with_too_few_addresses_is_told_what_helps() {
    let store = Store::on_file();
    let data = store.path("large");
    let place = ["--medium", "file", "--data", data.to_str().unwrap()];
    run(&[&["put", "k", "v", "--capacity", "1M", "--max-capacity", "64G"][..], &place].concat()).done();
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -v 2000000; exec \"$@\"", "sh", program().get_program().to_str().unwrap(), "get", "k"]).args(place);
    let output = limited.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(3) && text.contains("raise `ulimit -v`") && !text.contains("lower it"), "{text}");
}
