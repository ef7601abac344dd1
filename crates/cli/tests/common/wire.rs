//! Server processes, and a small client.
#![allow(dead_code, reason = "each test file uses its own part")]

use super::Store;
use hither_resp::{Limits, Protocol, Value, Writer, decode};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Long enough for whatever ends at all: a sync can take long where much else is written.
pub const FOR_EVER: Duration = Duration::from_secs(200);

/// The log of a server.
#[derive(Clone)]
enum Log {
    /// On standard error, as far as it has been read.
    Read(Arc<Mutex<String>>),
    /// In this file.
    File(PathBuf),
    /// Nobody reads it.
    Unknown,
}

impl Log {
    fn text(&self) -> String {
        match self {
            Log::Read(text) => text.lock().unwrap().clone(),
            Log::File(path) => std::fs::read_to_string(path).unwrap_or_default(),
            Log::Unknown => "(unknown)".into(),
        }
    }
}

/// A server that is killed when the test ends.
pub struct Server {
    child: Child,
    pub port: u16,
    log: Log,
}

impl Server {
    /// Starts `hither serve` on this store, on any free port, and waits until it is ready. Uses two threads unless the
    /// arguments set another number.
    pub fn start(store: &Store, arguments: &[&str]) -> Server {
        let threads: &[&str] = if arguments.contains(&"--threads") { &[] } else { &["--threads", "2"] };
        Server::begin(store.command(&[&["serve", "--port", "0"], threads, arguments].concat()))
    }

    /// As [`Server::start`], from a shell that first runs `first`.
    pub fn start_limited(store: &Store, first: &str, arguments: &[&str]) -> Server {
        let command = store.command(&[&["serve", "--port", "0", "--threads", "2"], arguments].concat());
        let mut shell = std::process::Command::new("bash");
        shell.args(["-c", &format!("{first} && exec \"$0\" \"$@\"")]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        Server::begin(shell)
    }

    fn begin(mut command: std::process::Command) -> Server {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        // From here on the server is killed and waited for, whatever happens.
        let kept = Arc::new(Mutex::<String>::default());
        let mut server = Server { child, port: 0, log: Log::Read(kept.clone()) };
        let lines = BufReader::new(server.child.stderr.take().unwrap());
        // The server must not block because nobody reads its log.
        let reader = std::thread::spawn(move || {
            for line in lines.split(b'\n').map_while(Result::ok) {
                *kept.lock().unwrap() += &(String::from_utf8_lossy(&line) + "\n");
            }
        });
        server.port = server.ready_port(|| reader.is_finished());
        server
    }

    /// The port in the line that reports the server ready, which must come before the log ends.
    fn ready_port(&self, has_ended: impl Fn() -> bool) -> u16 {
        let end = Instant::now() + Duration::from_secs(120);
        loop {
            let ended = has_ended();
            let log = self.log.text();
            if let Some((_, rest)) = log.split_once("event=ready address=") {
                return rest.lines().next().unwrap().trim().rsplit(':').next().unwrap().parse().unwrap();
            }
            assert!(!ended, "the server has not started:\n{log}");
            assert!(Instant::now() < end, "the server is not ready:\n{log}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Starts Debian's Redis in this directory, and waits until it is ready.
    pub fn redis(dir: &Path) -> Server {
        loop {
            let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            // Another process may have taken the port since.
            if let Some(server) = Server::redis_at(dir, port) {
                return server;
            }
        }
    }

    /// As [`Server::redis`], on this port; `None` if another process has it.
    pub fn redis_at(dir: &Path, port: u16) -> Option<Server> {
        let log = dir.join(format!("log-{port}"));
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--save", "", "--appendonly", "no", "--dir"]).arg(dir).arg("--logfile").arg(&log);
        // In Redis, SORT orders texts by the locale.
        let child = command.env("LC_ALL", "C").stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let child = child.expect("redis-server is needed to compare with: `cargo xtask setup` installs it");
        let mut server = Server { child, port, log: Log::File(log) };
        let end = Instant::now() + FOR_EVER;
        while !server.log.text().contains("Ready to accept connections") {
            if server.child.try_wait().unwrap().is_some() {
                let said = server.log.text();
                assert!(said.contains("Address already in use"), "it does not start:\n{said}");
                return None;
            }
            assert!(Instant::now() < end, "it is not ready:\n{}", server.log.text());
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(server)
    }

    /// A new connection; waits until the server takes it.
    pub fn client(&self) -> Client {
        let end = Instant::now() + FOR_EVER;
        loop {
            match Client::connect(self.port) {
                Ok(client) => return Client { id: self.id(), log: self.log.clone(), ..client },
                Err(error) => assert!(Instant::now() < end, "no connection: {error}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The id of the server's process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The port at the end of the first log line that contains `what`.
    pub fn logged_port(&self, what: &str) -> u16 {
        self.expect_log(&[what]);
        let log = self.log.text();
        let line = log.lines().find(|line| line.contains(what)).unwrap();
        line.trim().rsplit(':').next().unwrap().parse().unwrap()
    }

    /// Waits until the log has a line that contains all parts.
    #[track_caller]
    pub fn expect_log(&self, parts: &[&str]) {
        let end = Instant::now() + FOR_EVER;
        while !self.log.text().lines().any(|line| parts.iter().all(|part| line.contains(part))) {
            assert!(Instant::now() < end, "no line with {parts:?} in:\n{}", self.log.text());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Kills the server by SIGKILL; it must not have ended before for another reason.
    #[track_caller]
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        let status = self.child.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "{status}; its log:\n{}", self.log.text());
    }

    /// Sends SIGTERM and returns the exit status.
    pub fn terminate(mut self) -> i32 {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        self.child.wait().unwrap().code().unwrap_or(-1)
    }

    /// Waits for the server to end and returns the exit status.
    pub fn wait(mut self) -> i32 {
        self.child.wait().unwrap().code().unwrap_or(-1)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server has ended, or the test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection.
pub struct Client {
    pub stream: TcpStream,
    buffer: Vec<u8>,
    /// The server's process (0: unknown) and log, for the message of a failure.
    id: u32,
    log: Log,
}

impl Client {
    /// A new connection to this machine.
    pub fn connect(port: u16) -> std::io::Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(FOR_EVER))?;
        Ok(Client { stream, buffer: Vec::new(), id: 0, log: Log::Unknown })
    }

    /// Sends a command.
    pub fn send<W: AsRef<[u8]>>(&mut self, words: &[W]) -> std::io::Result<()> {
        let mut out = Vec::new();
        push(&mut out, words);
        self.stream.write_all(&out)
    }

    /// Reads a reply; `None` if the connection ended. A connection that stays open must deliver a reply in time.
    #[track_caller]
    pub fn receive(&mut self) -> Option<Value> {
        loop {
            if let Some((value, length)) = decode(&self.buffer, &Limits::default()).unwrap() {
                self.buffer.drain(..length);
                return Some(value);
            }
            let mut chunk = [0; 16 << 10];
            match self.stream.read(&mut chunk) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => self.ended(),
                // A read with a time limit may be interrupted without a signal (signal(7)), when the process or the
                // machine is stopped and continued.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return None,
                Ok(count) => self.buffer.extend_from_slice(&chunk[..count]),
            }
        }
    }

    /// Runs a command.
    #[track_caller]
    pub fn call<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Value {
        self.send(words).unwrap();
        self.receive().unwrap_or_else(|| self.ended())
    }

    /// Fails, and shows the server's log.
    #[track_caller]
    pub fn ended(&self) -> ! {
        // The server's last lines may still be on their way.
        std::thread::sleep(Duration::from_secs(1));
        // The state of the process; if it has ended, the exit status is at the end of the line: proc(5).
        let state = std::fs::read_to_string(format!("/proc/{}/stat", self.id)).unwrap_or_default();
        panic!("the connection ended, or no reply came for 30 s; the server has said:\n{}\nits process: {state}", self.log.text())
    }

    /// Runs a command given as words.
    #[track_caller]
    pub fn run(&mut self, line: &str) -> Value {
        self.call(&line.split(' ').collect::<Vec<_>>())
    }

    /// Runs a command whose reply is a number or a text with a number.
    #[track_caller]
    pub fn number(&mut self, line: &str) -> i64 {
        match self.run(line) {
            Value::Integer(number) => number,
            Value::Bulk(text) => String::from_utf8(text).unwrap().parse().unwrap(),
            Value::Null => 0,
            other => panic!("{line}: {other:?}"),
        }
    }
}

/// Appends a command in the form of the protocol.
pub fn push<W: AsRef<[u8]>>(out: &mut Vec<u8>, words: &[W]) {
    let mut writer = Writer::new(out, Protocol::Resp2);
    writer.array(words.len());
    words.iter().for_each(|word| writer.bulk(word.as_ref()));
}

/// Marsaglia's xorshift.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    pub fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }
}

/// The seed from `HITHER_SEED`, or from the time.
pub fn seed() -> u64 {
    let given = std::env::var("HITHER_SEED").ok().map(|text| text.parse().unwrap());
    let seed = given.unwrap_or_else(|| std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64);
    println!("HITHER_SEED={seed}");
    seed | 1
}

/// Returns a reply as text.
pub fn text(value: &Value) -> String {
    match value {
        Value::Simple(text) | Value::Bulk(text) | Value::Error(text) => String::from_utf8_lossy(text).into_owned(),
        other => format!("{other:?}"),
    }
}
