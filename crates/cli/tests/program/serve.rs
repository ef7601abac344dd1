//! `hither serve` over the wire: pipelines, broken and greedy clients, settings, shutdown; redis-cli and
//! redis-benchmark as first clients.

use crate::common;
use crate::common::Store;
use crate::common::wire::{Server, push, text};
use hither_resp::Value;
use rustix::fs::OFlags;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

#[test]
fn pipelines_cut_anywhere_are_answered_in_order() {
    let store = Store::on_file();
    let server = Server::start(&store, &[]);
    let mut client = server.client();
    let mut out = Vec::new();
    for number in 0..500 {
        push(&mut out, &["SET", &format!("k{number}"), &format!("v{number}")]);
        push(&mut out, &["GET", &format!("k{number}")]);
    }
    for part in out.chunks(777) {
        client.stream.write_all(part).unwrap();
    }
    for number in 0..500 {
        assert_eq!(text(&client.receive().unwrap()), "OK");
        assert_eq!(text(&client.receive().unwrap()), format!("v{number}"));
    }
    let large = "x".repeat(3 << 20);
    assert_eq!(text(&client.call(&["SET", "large", &large])), "OK");
    assert!(text(&client.run("GET large")) == large);
    assert_eq!(server.terminate(), 0);
    let server = Server::start(&store, &[]);
    assert!(text(&server.client().run("GET large")) == large, "it is there after a restart");
}

#[test]
fn inline_commands_and_protocol_errors() {
    let server = Server::start(&Store::any(), &[]);
    let mut client = server.client();
    client.stream.write_all(b"PING\r\n\r\nset 'a b' \"c\\x21\"\r\nGET \"a b\"\r\nNOTHING\r\n").unwrap();
    let replies: Vec<String> = (0..4).map(|_| text(&client.receive().unwrap())).collect();
    assert_eq!(replies[..3], ["PONG", "OK", "c!"]);
    assert!(replies[3].starts_with("ERR unknown command"), "and the connection stays");
    client.stream.write_all(b"*1\r\n:1\r\nPING\r\n").unwrap();
    assert_eq!(text(&client.receive().unwrap()), "ERR Protocol error: expected '$', got ':'");
    assert!(client.receive().is_none(), "nobody knows where the next request begins");
}

#[test]
fn counters_of_many_connections_lose_nothing() {
    count_from_many_connections(&["SET n 0", "HSET h f0 0 f1 0 f2 0", "ZADD z 0 m"]);
}

/// A collection's head must not be visible before its rows.
#[test]
fn counters_that_begin_absent_lose_nothing() {
    count_from_many_connections(&[]);
}

fn count_from_many_connections(before: &[&str]) {
    for store in [Some(Store::on_file()), Store::on_dax()].into_iter().flatten() {
        let server = Server::start(&store, &[]);
        for first in before {
            server.client().run(first);
        }
        std::thread::scope(|scope| {
            for _ in 0..8 {
                let mut client = server.client();
                scope.spawn(move || {
                    let mut out = Vec::new();
                    for round in 0..100 {
                        push(&mut out, &["INCR", "n"]);
                        push(&mut out, &["HINCRBY", "h", &format!("f{}", round % 3), "1"]);
                        push(&mut out, &["ZINCRBY", "z", "1", "m"]);
                    }
                    client.stream.write_all(&out).unwrap();
                    for _ in 0..300 {
                        assert!(!matches!(client.receive().unwrap(), Value::Error(_)));
                    }
                });
            }
        });
        let mut client = server.client();
        assert_eq!(text(&client.run("GET n")), "800");
        assert_eq!(client.number("HGET h f0") + client.number("HGET h f1") + client.number("HGET h f2"), 800);
        assert_eq!(text(&client.run("ZSCORE z m")), "800");
        assert_eq!(client.number("ZCARD z"), 1);
    }
}

#[test]
fn clients_are_bounded() {
    let store = Store::any();
    let server = Server::start(&store, &["--max-clients", "2", "--max-output", "2M", "--timeout", "5"]);
    let mut first = server.client();
    let mut greedy = server.client();
    assert_eq!(text(&first.run("PING")), "PONG");
    assert_eq!(text(&greedy.run("PING")), "PONG");
    assert!(text(&server.client().receive().unwrap()).starts_with("ERR max number of clients"));

    first.call(&["SET", "large", &"x".repeat(3 << 20)]);
    greedy.send(&["MGET", "large", "large", "large", "large"]).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let mut received = Vec::new();
    // A closed connection may show as an error, but not as silence.
    let end = greedy.stream.read_to_end(&mut received).map_err(|error| error.kind());
    assert!(!matches!(end, Err(ErrorKind::WouldBlock | ErrorKind::TimedOut)), "it is not closed");
    assert!(received.len() < 12 << 20, "the greedy client got everything");
    assert!(first.receive().is_none(), "it is closed when it has been idle for five seconds");
}

#[test]
fn settings_from_a_file_and_the_environment() {
    let store = Store::any();
    let file = store.path("settings.toml");
    common::write(&file, "timeout = 7\nmax-clients = 70\nrequirepass = \"from the file\"\n");
    let server = Server::start(&store, &["--config", file.to_str().unwrap(), "--max-clients", "71"]);
    let mut client = server.client();
    assert!(text(&client.run("PING")).starts_with("NOAUTH"));
    assert_eq!(text(&client.call(&["AUTH", "from the file"])), "OK");
    assert_eq!(client.number("CLIENT ID"), 1);
    for (name, value) in [("timeout", "7"), ("maxclients", "71")] {
        let Value::Array(pair) = client.run(&format!("CONFIG GET {name}")) else { panic!() };
        assert_eq!(text(&pair[1]), value);
    }
    client.send(&["SHUTDOWN"]).unwrap();
    assert_eq!(server.wait(), 0);
    common::write(&file, "prot = 7\n");
    let refused = store.run(&["serve", "--port", "0", "--config", file.to_str().unwrap()]);
    assert_eq!(refused.status(), 2);
}

fn tool(name: &str, server: &Server, arguments: &[&str]) -> Output {
    let port = server.port.to_string();
    let output = Command::new(name).args(["-p", &port]).args(arguments).output();
    output.unwrap_or_else(|error| panic!("{name}: {error}; `cargo xtask setup` installs it"))
}

#[test]
fn the_tools_of_redis_work() {
    let server = Server::start(&Store::any(), &[]);
    let cli = |arguments: &[&str]| String::from_utf8(tool("redis-cli", &server, arguments).stdout).unwrap();
    assert_eq!(cli(&["SET", "a", "1"]), "OK\n");
    assert_eq!(cli(&["-3", "HSET", "h", "f", "v"]), "1\n");
    assert_eq!(cli(&["--scan"]), "a\nh\n");
    assert!(cli(&["INFO"]).contains("hither_version:"));
    let tests = "ping_inline,ping_mbulk,set,get,incr,hset,zadd,zpopmin,mset";
    let output = tool("redis-benchmark", &server, &["-n", "2000", "-P", "4", "-r", "1000", "--csv", "-t", tests]);
    let report = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{report}");
    assert_eq!(report.lines().filter(|line| line.starts_with('"')).count(), 10, "nine tests and a title: {report}");
}

/// A full store soon refuses writes that add to it, with an error that says so. It serves everything else meanwhile,
/// and accepts writes again after deletes.
#[test]
fn a_full_store_refuses_soon_and_recovers() {
    let store = Store::on_file();
    // The limit of growth is fixed at creation.
    let data = store.data();
    common::run(&["put", "--data", data.to_str().unwrap(), "--capacity", "4M", "--max-capacity", "4M", "first", "1"]).done();
    let server = Server::start(&store, &[]);
    let (mut client, mut other) = (server.client(), server.client());
    let value = "v".repeat(1000);
    let refused = (0..10_000).map(|number| text(&client.call(&["SET", &format!("k{number}"), &value]))).find(|reply| reply != "OK");
    assert!(refused.as_ref().is_some_and(|reply| reply.starts_with("OOM ")), "{refused:?}");
    let kept = other.number("DBSIZE");
    assert!(kept > 500, "{kept}");
    assert!(text(&other.run("GET k0")) == value);
    for number in 0..kept / 2 {
        assert_eq!(other.number(&format!("DEL k{number}")), 1);
    }
    assert_eq!(text(&client.call(&["SET", "again", &value])), "OK");
    assert_eq!(other.number("DBSIZE"), kept - kept / 2 + 1);
}

/// Regression: with an empty password, which means none, or with users from a file, there was no warning.
#[test]
fn a_server_that_is_open_to_all_says_so() {
    let store = Store::any();
    let open = ["--listen", "0.0.0.0", "--protected-mode", "no"];
    let (settings, users) = (store.path("settings.toml"), store.path("users.acl"));
    common::write(&settings, "requirepass = \"\"");
    common::write(&users, "user default on nopass ~* &* +@all");
    for more in [["--config", settings.to_str().unwrap()], ["--aclfile", users.to_str().unwrap()]] {
        let server = Server::start(&store, &[&open[..], &more].concat());
        server.expect_log(&["event=unprotected"]);
    }
}

/// The exit status of a server that is not expected to start, and its log. A server that does start is killed.
fn said_instead_of_serving(store: &Store, arguments: &[&str]) -> (i32, String) {
    said_until_ready(store.command(&[&["serve", "--port", "0"], arguments].concat()))
}

fn said_until_ready(mut command: Command) -> (i32, String) {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    for line in BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok) {
        said += &(line + "\n");
        if ["event=ready", "\"event\":\"ready\""].iter().any(|ready| said.contains(ready)) {
            child.kill().unwrap();
        }
    }
    (child.wait().unwrap().code().unwrap_or(-1), said)
}

/// Regression: when its disk was not mounted, a server created an empty store on the disk below, and no setting could
/// forbid that.
#[test]
fn no_store_is_made_where_that_is_forbidden() {
    let store = Store::any();
    let file = store.path("settings.toml");
    common::write(&file, "create = false\n");
    let file = file.to_str().unwrap();
    for more in [["--create", "no"], ["--config", file]] {
        let (status, said) = said_instead_of_serving(&store, &more);
        assert!(status == 7 && said.contains("no store in") && said.contains("mount its disk"), "{status}: {said}");
        assert!(!store.data().exists(), "{more:?}: a store was made");
    }
    assert_eq!(Server::start(&store, &["--config", file, "--create", "yes"]).terminate(), 0);
    assert_eq!(Server::start(&store, &["--create", "no"]).terminate(), 0, "one that is there is served");
}

/// Regression: files of users and certificates were checked only after the store was open. It was created or recovered
/// for nothing, and the next server scanned its collections.
#[test]
fn files_that_cannot_be_taken_are_refused_before_the_store_is_opened() {
    let store = Store::any();
    let (users, absent, place) = (store.path("users.acl"), store.path("absent"), store.path(""));
    let [users, absent, place] = [&users, &absent, &place].map(|path| path.to_str().unwrap());
    common::write(&store.path("users.acl"), "user a on >x +foo");
    let refused = |arguments: &[&str], status: i32, part: &str| {
        let error = store.run(&[&["serve", "--port", "0"], arguments].concat()).expect(status).err();
        assert!(error.contains(part), "{arguments:?}: {error}");
        assert!(!store.data().exists(), "{arguments:?}: a store was made");
    };
    refused(&["--aclfile", users], 2, "users.acl:1: ");
    // Regression: the error did not name the setting that had named the file.
    refused(&["--aclfile", absent], 3, "reading the file of aclfile, ");
    refused(&["--aclfile", place], 3, "reading the file of aclfile, ");
    let tls = ["--tls-port", "0", "--tls-auth-clients", "no", "--tls-cert-file"];
    refused(&[&tls[..], &[absent, "--tls-key-file", users]].concat(), 3, &format!("reading the file of tls-cert-file, {absent}: "));
    refused(&[&tls[..], &[users, "--tls-key-file", absent]].concat(), 3, "tls-key-file, ");
    refused(&[&tls[..], &[users, "--tls-key-file", users, "--tls-ca-cert-file", absent]].concat(), 3, "tls-ca-cert-file, ");
    refused(&[&tls[..], &[users, "--tls-key-file", users]].concat(), 2, "users.acl");
}

/// Opens a pipe for writing, once somebody has opened it for reading.
fn opened_by_a_reader(pipe: &Path) -> File {
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        // Without a reader this fails; a blocking open would wait for ever.
        match File::options().write(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(pipe) {
            Ok(file) => return file,
            Err(error) => assert!(Instant::now() < end, "nobody reads {}: {error}", pipe.display()),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A password that must not be in a file comes from a pipe, which can be read only once.
#[test]
fn users_can_come_from_a_pipe() {
    let store = Store::any();
    let pipe = store.path("users.pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let writer = {
        let pipe = pipe.clone();
        std::thread::spawn(move || opened_by_a_reader(&pipe).write_all(b"user default on >piped ~* &* +@all").unwrap())
    };
    let server = Server::start(&store, &["--aclfile", pipe.to_str().unwrap()]);
    writer.join().unwrap();
    assert_eq!(text(&server.client().call(&["AUTH", "piped"])), "OK");
}

/// Regression: the password of the settings no longer counted, and there was no warning.
#[test]
fn a_password_that_does_not_count_is_told() {
    let store = Store::any();
    let (settings, users) = (store.path("settings.toml"), store.path("users.acl"));
    common::write(&settings, "requirepass = \"old\"");
    common::write(&users, "user default on >new ~* &* +@all");
    let server = Server::start(&store, &["--config", settings.to_str().unwrap(), "--aclfile", users.to_str().unwrap()]);
    server.expect_log(&["event=requirepass-ignored", "level=warn"]);
    assert_eq!(text(&server.client().call(&["AUTH", "new"])), "OK");
}

/// Regression: the second address was already used by the first, which was found only after the store was recovered.
#[test]
fn all_addresses_of_both_kinds_are_listened_at() {
    if let Err(error) = std::net::TcpListener::bind("[::1]:0") {
        eprintln!("this machine has no IPv6: {error}");
        common::skipped("without_ipv6");
        return;
    }
    let server = Server::start(&Store::any(), &["--listen", "0.0.0.0", "--listen", "::"]);
    assert_eq!(text(&server.client().run("PING")), "PONG");
    let mut stream = std::net::TcpStream::connect(("::1", server.port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(b"PING\r\n").unwrap();
    let mut reply = [0; 7];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+PONG\r\n");
}

/// Regression: `--json` was ignored silently.
#[test]
fn a_server_for_programs_logs_json() {
    let store = Store::any();
    let mut command = store.command(&["serve", "--port", "0", "--json"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    std::thread::spawn(move || {
        let mut line = String::new();
        let _ = log.read_line(&mut line);
        let _ = tell.send(line);
    });
    let line = told.recv_timeout(Duration::from_secs(120));
    child.kill().unwrap();
    child.wait().unwrap();
    let line = line.unwrap();
    let event: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
    assert_eq!(event["event"], "recovered", "{line}");
    let absent = store.path("absent").display().to_string();
    let both = store.run(&["serve", "--json", "--log-format", "text", "--aclfile", &absent]).expect(2).err();
    assert!(both.contains("--log-format text"), "{both}");
}

/// Regression: notes, warnings and the failure that ends the server were text among the JSON objects.
#[test]
fn all_that_a_server_says_is_one_log() {
    let store = Store::any();
    let events = |arguments: &[&str], level: &str, event: &str| {
        let (status, said) = said_instead_of_serving(&store, arguments);
        let events: Vec<serde_json::Value> = said.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        assert!(events.iter().all(|event| event["time"].is_number() && event["level"].is_string()), "{said}");
        assert!(events.iter().any(|one| one["level"] == level && one["event"] == event), "{event}: {said}");
        status
    };
    assert_eq!(events(&["--log-format", "json", "--create", "no"], "error", "failed"), 7);
    assert_eq!(events(&["--log-format", "json", "--max-clients", "0"], "error", "failed"), 2);
    assert_eq!(events(&["--json", "--config", "/no/such/file"], "error", "failed"), 3);
    let small = ["--capacity", "1M", "--max-capacity", "1M"];
    common::run(&[&["put", "k", "v", "--data", store.data().to_str().unwrap()][..], &small].concat()).done();
    assert_eq!(events(&["--log-format", "json"], "info", "note"), -1, "it keeps its size, and serves");
    let (status, said) = said_instead_of_serving(&Store::any(), &["--create", "no"]);
    assert!(status == 7 && said.starts_with("time=") && said.contains(" level=error event=failed status=7 why="), "{said}");
}

/// Regression: under a unit that lets a server write to few places, the first ACL SAVE or backup was the first to
/// report that.
#[test]
fn directories_that_cannot_be_written_to_are_told() {
    use std::os::unix::fs::PermissionsExt;
    if !common::can_bind() {
        return;
    }
    let store = Store::on_file();
    let mode = |name: &str, mode: u32| std::fs::set_permissions(store.path(name), PermissionsExt::from_mode(mode)).unwrap();
    let [users, backups] = ["etc/users.acl", "backups"].map(|name| store.path(name).to_str().unwrap().to_owned());
    for name in ["etc", "backups"] {
        std::fs::create_dir(store.path(name)).unwrap();
    }
    common::write(&store.path("etc/users.acl"), "user default on nopass ~* &* +@all");
    mode("", 0o777);
    let said = |directories: u32| {
        mode("etc", directories);
        mode("backups", directories);
        let mut command = store.command(&["serve", "--port", "0", "--aclfile", &users, "--backup-dir", &backups]);
        common::bind(&mut command);
        said_until_ready(command).1
    };
    let told = said(0o555);
    for setting in ["aclfile", "backup-dir"] {
        assert!(told.contains(&format!("level=warn event=not-writable setting={setting} path=")), "{told}");
    }
    assert!(told.contains("event=ready"), "it serves all the same: {told}");
    assert!(!said(0o777).contains("not-writable"));
}

/// Regression: a recovery that took longer than the unit allows was killed and started again, without end. A close that
/// took longer was killed, which made the next start take long.
#[test]
fn the_service_manager_is_told_to_have_patience() {
    let store = Store::any();
    let socket = std::os::unix::net::UnixDatagram::bind(store.path("notify")).unwrap();
    let server = Server::start_limited(&store, &format!("export NOTIFY_SOCKET={}", store.path("notify").display()), &[]);
    assert_eq!(server.terminate(), 0);
    socket.set_nonblocking(true).unwrap();
    let mut buffer = [0; 100];
    let told = std::iter::from_fn(|| socket.recv(&mut buffer).ok().map(|length| String::from_utf8_lossy(&buffer[..length]).into_owned()));
    let told: Vec<String> = told.map(|message| message.split('=').next().unwrap().to_owned()).collect();
    assert_eq!(told, ["EXTEND_TIMEOUT_USEC", "READY", "STOPPING", "EXTEND_TIMEOUT_USEC"]);
}

/// A settings file with a wrong line is refused with the number of the line, and without the password.
#[test]
fn a_wrong_settings_file_is_refused_by_its_line() {
    let store = Store::any();
    let file = store.path("settings.toml");
    common::write(&file, "port = 0\nrequirepass = 123456\n");
    let text = store.run(&["serve", "--config", file.to_str().unwrap()]).expect(2).err();
    assert!(text.contains("settings.toml:2: requirepass takes one text in quotes") && !text.contains("123456"), "{text}");
}

/// Found by hand: `timeout` sends SIGTERM twice, and the second one killed the server before it had closed the store.
#[test]
fn a_second_sigterm_does_not_keep_it_from_closing() {
    let store = Store::any();
    let server = Server::start(&store, &[]);
    let mut client = server.client();
    // A reply that nobody reads: the server waits for it to be sent.
    client.call(&["SET", "large", &"x".repeat(64 << 20)]);
    client.send(&["GET", "large"]).unwrap();
    client.stream.read_exact(&mut [0; 1]).unwrap();
    for _ in 0..2 {
        assert!(Command::new("kill").args(["-TERM", &server.id().to_string()]).status().unwrap().success());
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(server.wait(), 0);
    assert_eq!(store.run(&["stat", "--json"]).done().document()["recovery"]["source"], "clean");
}

/// Found by hand: collectors, bound to the processors of their node, left the processors that `taskset` had given the
/// server.
#[test]
fn its_threads_keep_to_the_processors_it_was_given() {
    let store = Store::any();
    let (server, only) = std::thread::scope(|scope| {
        let start = || {
            let (mut only, all) = (CpuSet::new(), sched_getaffinity(None).unwrap());
            only.set((0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap());
            // Sets the processors of this thread; the process that it starts inherits them.
            sched_setaffinity(None, &only).unwrap();
            (Server::start(&store, &[]), only)
        };
        scope.spawn(start).join().unwrap()
    });
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.id())).unwrap();
    let threads = tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap());
    let affinities = threads.map(|thread| sched_getaffinity(Pid::from_raw(thread)).unwrap()).collect::<Vec<_>>();
    assert!(affinities.len() > 3 && affinities.iter().all(|affinity| *affinity == only), "{affinities:?}");
}

/// Regression: serving threads took the first processors, so those of several servers took the same ones.
#[test]
fn fewer_threads_than_processors_go_where_there_is_room() {
    let all = sched_getaffinity(None).unwrap();
    if (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).count() < 2 {
        common::skipped("with_one_processor");
        return;
    }
    let server = Server::start(&Store::any(), &["--threads", "1"]);
    // A thread sets its name and its processors when it starts.
    let mut client = server.client();
    assert_eq!(text(&client.run("PING")), "PONG");
    let mut tasks = std::fs::read_dir(format!("/proc/{}/task", server.id())).unwrap().map(|task| task.unwrap().path());
    let is_serving = |task: &PathBuf| std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "hither-serve-0\n");
    let thread = tasks.find(is_serving).unwrap().file_name().unwrap().to_str().unwrap().parse().unwrap();
    assert_eq!(sched_getaffinity(Pid::from_raw(thread)).unwrap(), all);
}
