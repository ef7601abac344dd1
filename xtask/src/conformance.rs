//! `cargo xtask conformance`: runs client libraries of Redis against `hither serve`; see `conformance/README.md`.
//!
//! Each library is installed by its own package manager into the build directory, and its program runs against a fresh
//! server. If a needed program is missing, or an installation fails (probably without network), the client is skipped
//! with the reason. A program that does not compile, or a check that fails, is a failure. So is the skip of a client
//! that was requested by name.

use crate::args::Args;
use crate::exec::{Step, Tally, exists};
use crate::stage::Done;
use crate::workspace::{root, target_dir};
use crate::{Failure, suites};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// One library.
struct Client {
    /// Its folder in `conformance/`.
    name: &'static str,
    /// Programs that must be installed.
    needs: &'static [&'static str],
    /// Installs the library into a folder that holds a copy of the client's own.
    install: fn(&Path) -> Vec<Step>,
    /// Compiles its program, if running does not do that.
    build: fn(&Path) -> Vec<Step>,
    /// Runs the checks against a server's port.
    run: fn(&Path, &str) -> Step,
    /// Whether the client is checked for each push.
    short: bool,
}

const INSTALL_LIMIT_S: u64 = 300;
const RUN_LIMIT_S: u64 = 120;
/// How long a server may take until it reports that it is ready.
const READY_LIMIT: Duration = Duration::from_secs(120);

const CLIENTS: &[Client] = &[
    Client { name: "redis-py", needs: &["python3"], install: install_python, build: nothing, run: run_python, short: true },
    Client { name: "ioredis", needs: &["node", "npm"], install: install_node, build: nothing, run: run_node, short: true },
    Client { name: "go-redis", needs: &["go"], install: install_go, build: build_go, run: run_go, short: false },
    Client { name: "jedis", needs: &["java", "mvn"], install: install_java, build: nothing, run: run_java, short: false },
    Client { name: "ycsb", needs: &["java", "mvn"], install: install_java, build: nothing, run: run_java, short: true },
];

fn install(program: impl AsRef<std::ffi::OsStr>) -> Step {
    Step::limited(program, INSTALL_LIMIT_S)
}

fn install_python(dir: &Path) -> Vec<Step> {
    let venv = dir.join("venv");
    let pip = install(venv.join("bin/python")).args(["-m", "pip", "install", "--quiet", "-r"]).arg(dir.join("requirements.txt"));
    vec![install("python3").args(["-m", "venv"]).arg(&venv), pip]
}

fn run_python(dir: &Path, port: &str) -> Step {
    Step::limited(dir.join("venv/bin/python"), RUN_LIMIT_S).arg(dir.join("check.py")).arg(port)
}

fn install_node(dir: &Path) -> Vec<Step> {
    vec![install("npm").args(["ci", "--no-audit", "--no-fund", "--prefix"]).arg(dir)]
}

fn run_node(dir: &Path, port: &str) -> Step {
    Step::limited("node", RUN_LIMIT_S).arg(dir.join("check.js")).arg(port)
}

fn install_go(dir: &Path) -> Vec<Step> {
    vec![install("go").arg("-C").arg(dir).args(["mod", "download"])]
}

fn build_go(dir: &Path) -> Vec<Step> {
    vec![install("go").arg("-C").arg(dir).args(["build", "-o", "check"])]
}

fn nothing(_: &Path) -> Vec<Step> {
    Vec::new()
}

fn run_go(dir: &Path, port: &str) -> Step {
    Step::limited(dir.join("check"), RUN_LIMIT_S).arg(port)
}

fn install_java(dir: &Path) -> Vec<Step> {
    let copy = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies";
    vec![install("mvn").args(["--quiet", "--batch-mode", "--file"]).arg(dir.join("pom.xml")).arg(copy).arg("-DoutputDirectory=lib")]
}

fn run_java(dir: &Path, port: &str) -> Step {
    Step::limited("java", RUN_LIMIT_S).arg("-cp").arg(dir.join("lib/*")).arg(dir.join("Check.java")).arg(port)
}

/// Runs the command.
pub fn run(mut args: Args) -> Result<ExitCode, Failure> {
    let only = args.values("--only")?;
    args.finish()?;
    if let Some(unknown) = only.iter().find(|name| CLIENTS.iter().all(|client| client.name != name.as_str())) {
        return Err(format!("no client named {unknown}; there are: {}", CLIENTS.iter().map(|c| c.name).collect::<Vec<_>>().join(", ")));
    }
    let done = check(|client| only.is_empty() || only.iter().any(|name| name == client.name));
    match done.and_then(|done| if only.is_empty() { Ok(done) } else { whole(done) }) {
        Ok(_) => Ok(ExitCode::SUCCESS),
        Err(failure) => {
            eprintln!("xtask: {failure}");
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Checks the clients that each push needs.
pub fn short() -> Result<Done, Failure> {
    check(|client| client.short)
}

/// Checks all clients.
pub fn all() -> Result<Done, Failure> {
    check(|_| true)
}

/// Makes the skip of a client that was requested by name a failure.
fn whole(done: Done) -> Result<Done, Failure> {
    match done {
        Done::Passed(tally) => Ok(Done::Passed(tally)),
        Done::Partly(_, why) => Err(why),
        Done::Skipped(why) => Err(format!("skipped: {why}")),
    }
}

fn check(wanted: impl Fn(&Client) -> bool) -> Result<Done, Failure> {
    suites::build_program()?;
    let mut total = Tally::default();
    let (mut ran, mut skipped, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for client in CLIENTS.iter().filter(|client| wanted(client)) {
        match of(client, &target_dir().join("conformance").join(client.name)) {
            Ok(Done::Passed(tally) | Done::Partly(tally, _)) => {
                ran.push(client.name);
                total.add(&tally);
            }
            Ok(Done::Skipped(why)) => skipped.push(format!("{} ({why})", client.name)),
            Err(why) => failed.push(format!("{}: {why}", client.name)),
        }
    }
    println!("ran: {}", list(&ran));
    println!("skipped: {}", list(&skipped));
    match (failed.is_empty(), ran.is_empty(), skipped.is_empty()) {
        (false, ..) => Err(failed.join("; ")),
        (true, true, _) => Ok(Done::Skipped(skipped.join("; "))),
        (true, false, true) => Ok(Done::Passed(total)),
        (true, false, false) => Ok(Done::Partly(total, format!("without {}", skipped.join("; ")))),
    }
}

fn list<S: AsRef<str>>(names: &[S]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(", ") }
}

/// Prepares the client's program in a folder, and runs it.
fn of(client: &Client, dir: &Path) -> Result<Done, Failure> {
    if let Some(missing) = client.needs.iter().find(|program| !exists(program)) {
        return Ok(Done::Skipped(format!("{missing} is not installed")));
    }
    copy(&root().join("conformance").join(client.name), dir).map_err(|error| format!("copying it: {error}"))?;
    if let Err(why) = all_of((client.install)(dir)) {
        return Ok(Done::Skipped(format!("cannot be installed: {why}")));
    }
    all_of((client.build)(dir))?;
    against_fresh_server(client, dir).map(Done::Passed)
}

fn all_of(steps: Vec<Step>) -> Result<(), Failure> {
    steps.into_iter().try_for_each(|step| step.run().map(drop))
}

/// Copies the files of a folder, so that nothing is installed into the source tree. Libraries of other versions left
/// there are removed, because they would be found first.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    let libraries = to.join("lib");
    if libraries.exists() {
        std::fs::remove_dir_all(libraries)?;
    }
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

fn against_fresh_server(client: &Client, dir: &Path) -> Result<Tally, Failure> {
    let server = Server::start(&dir.join("data"))?;
    // The server logs why it closes a connection, so its log goes into the failure.
    (client.run)(dir, &server.port).run().and_then(counted).map_err(|why| format!("{why}; the server's log:\n{}", server.log()))
}

/// Fails unless the program has reported at least one check.
fn counted(tally: Tally) -> Result<Tally, Failure> {
    match tally.counts.get("conformance_checks") {
        Some(1..) => Ok(tally),
        _ => Err("it ended well, but has not said how much it checked".to_owned()),
    }
}

/// A server that is killed when it goes out of scope.
struct Server {
    child: Child,
    port: String,
    log: Arc<Mutex<String>>,
}

impl Server {
    fn start(data: &Path) -> Result<Server, Failure> {
        if data.exists() {
            std::fs::remove_dir_all(data).map_err(|error| format!("{}: {error}", data.display()))?;
        }
        let mut command = Command::new(target_dir().join("debug/hither"));
        command.args(["serve", "--port", "0", "--medium", "file", "--data"]).arg(data);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|error| format!("cannot start hither: {error}"))?;
        let mut server = Server { child, port: String::new(), log: Arc::default() };
        let Some(stderr) = server.child.stderr.take() else { return Err("the server has no standard error".to_owned()) };
        let (log, (sender, ready)) = (server.log.clone(), channel());
        // A thread reads its output, so that the server never blocks on a full pipe.
        std::thread::spawn(move || listen(BufReader::new(stderr), &log, &sender));
        server.port = port(&ready, READY_LIMIT).map_err(|why| format!("{why}; its log:\n{}", server.log()))?;
        Ok(server)
    }

    /// The server's log so far.
    fn log(&self) -> String {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Keeps a server's log, and passes its port on.
fn listen(stderr: impl BufRead, log: &Mutex<String>, port: &Sender<String>) {
    for line in stderr.lines().map_while(Result::ok) {
        if let Some((_, address)) = line.split_once("event=ready address=") {
            // If this fails, the waiting thread has given up.
            let _ = port.send(address.trim().rsplit(':').next().unwrap_or_default().to_owned());
        }
        *log.lock().unwrap_or_else(PoisonError::into_inner) += &(line + "\n");
    }
}

/// The port of a server that reports it within `limit`.
fn port(ready: &Receiver<String>, limit: Duration) -> Result<String, Failure> {
    ready.recv_timeout(limit).map_err(|error| match error {
        RecvTimeoutError::Timeout => format!("the server was not ready after {} s", limit.as_secs()),
        RecvTimeoutError::Disconnected => "the server ended before it was ready".to_owned(),
    })
}

impl Drop for Server {
    fn drop(&mut self) {
        // This fails only if the server has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_checks_nothing_fails() {
        let says = |checks: &[u64]| {
            let counts = checks.iter().map(|count| ("conformance_checks".to_owned(), *count)).collect();
            counted(Tally { counts, ..Tally::default() }).is_ok()
        };
        assert!(says(&[1]));
        assert!(!says(&[0]) && !says(&[]));
    }

    /// Regression: a server that reported nothing was waited for without end.
    #[test]
    fn a_server_is_waited_for_until_it_says_its_port_ends_or_takes_too_long() {
        let (sender, ready) = channel();
        assert!(port(&ready, Duration::ZERO).unwrap_err().contains("not ready"));
        let (said, log) = (&b"level=info event=ready address=127.0.0.1:7001\nlater\n"[..], Mutex::default());
        listen(said, &log, &sender);
        assert_eq!(port(&ready, Duration::ZERO).unwrap(), "7001");
        assert!(log.into_inner().unwrap().ends_with("later\n"));
        drop(sender);
        assert!(port(&ready, READY_LIMIT).unwrap_err().contains("ended"));
    }

    /// The result for a client with these steps; `check` inspects its folder afterwards.
    fn done_of(install: fn(&Path) -> Vec<Step>, build: fn(&Path) -> Vec<Step>, check: fn(&Path)) -> Result<Done, Failure> {
        let dir = target_dir().join(format!("conformance-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("lib")).unwrap();
        std::fs::write(dir.join("lib/old.jar"), "").unwrap();
        let client = Client { name: "redis-py", needs: &["sh"], install, build, run: run_python, short: false };
        let done = of(&client, &dir);
        check(&dir);
        std::fs::remove_dir_all(&dir).unwrap();
        done
    }

    /// Regression: a program that did not compile was skipped as if it could not be installed; and old libraries
    /// stayed.
    #[test]
    fn what_cannot_be_fetched_is_left_out_and_what_does_not_compile_fails() {
        let fails = |_: &Path| vec![Step::new("false")];
        let has_no_library = |dir: &Path| assert!(dir.join("check.py").is_file() && !dir.join("lib").exists());
        assert!(matches!(done_of(fails, nothing, has_no_library), Ok(Done::Skipped(why)) if why.contains("installed")));
        assert!(matches!(done_of(nothing, fails, has_no_library), Err(why) if why.contains("exit status 1")));
    }

    /// Regression: a client that was requested by name and skipped was a success.
    #[test]
    fn a_client_that_is_asked_for_is_not_left_out() {
        assert!(whole(Done::Skipped("go is not installed".to_owned())).is_err());
        assert!(whole(Done::Partly(Tally::default(), "without go-redis".to_owned())).is_err());
        assert!(whole(Done::Passed(Tally::default())).is_ok());
    }

    #[test]
    fn every_client_has_a_folder_that_the_readme_names() {
        let readme = std::fs::read_to_string(root().join("conformance/README.md")).unwrap();
        for client in CLIENTS {
            assert!(root().join("conformance").join(client.name).is_dir(), "{}", client.name);
            assert!(readme.contains(&format!("| `{}` |", client.name)), "{}", client.name);
        }
    }
}
