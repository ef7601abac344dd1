//! The processes of the measured servers: hither, hither without commands (null), and Redis.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::scratch::{self, Scratch};
use crate::target::{Error, Result};

/// The kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// `hither serve` on tmpfs treated as persistent memory, sync durability.
    Dax,
    /// The same network code without commands and without a store behind it.
    Null,
    /// `hither serve` on a file, sync durability.
    File,
    /// redis-server without persistence.
    Redis,
    /// redis-server with appendfsync always.
    RedisAlways,
}

/// The paths that servers need.
#[derive(Clone, Debug)]
pub struct Places {
    /// The program `hither`.
    pub program: PathBuf,
    /// A directory on a disk.
    pub disk: PathBuf,
}

/// A running server; killed when dropped.
pub struct Server {
    child: Child,
    /// The address that it listens on.
    pub address: SocketAddr,
    /// Time from starting the process to its first answer.
    pub started_in: Duration,
    _directory: Option<Scratch>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn free_port() -> Result<u16> {
    let taken = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    Ok(taken.map_err(|error| Error::io("finding a free port".to_owned(), error))?.port())
}

/// Creates a directory for a server of this kind.
pub fn directory(kind: Kind, places: &Places) -> Result<Scratch> {
    let parent = if matches!(kind, Kind::Dax | Kind::Null) { Path::new("/dev/shm") } else { &places.disk };
    Scratch::new(scratch::Kind::Serve, parent)
}

impl Server {
    /// Starts an empty server in a directory of its own.
    pub fn fresh(kind: Kind, places: &Places) -> Result<Server> {
        let directory = directory(kind, places)?;
        let mut server = Self::on(kind, places, directory.path())?;
        server._directory = Some(directory);
        Ok(server)
    }

    /// Starts a server on `directory` and waits until it answers.
    pub fn on(kind: Kind, places: &Places, directory: &Path) -> Result<Server> {
        let port = free_port()?;
        let mut command = match kind {
            Kind::Redis | Kind::RedisAlways => redis(kind, directory),
            _ => hither(kind, &places.program, directory),
        };
        command.arg("--port").arg(port.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let began = Instant::now();
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().map_err(|error| Error::io(format!("starting {name}"), error))?;
        let mut server = Server { child, address: ([127, 0, 0, 1], port).into(), started_in: Duration::ZERO, _directory: None };
        server.wait_until_it_answers(&name)?;
        server.started_in = began.elapsed();
        Ok(server)
    }

    fn wait_until_it_answers(&mut self, name: &str) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(300);
        loop {
            // Redis accepts connections while it loads, and answers -LOADING.
            if self.ask("PING").is_ok_and(|reply| reply.starts_with("+PONG")) {
                return Ok(());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(Error::Config(format!("{name} ended before it answered: {status}")));
            }
            if Instant::now() > end {
                return Err(Error::Config(format!("{name} does not answer")));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Sends one inline command on a connection of its own; returns the beginning of the reply.
    pub fn ask(&self, line: &str) -> std::io::Result<String> {
        use std::io::{Read, Write};
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(300)))?;
        stream.write_all(format!("{line}\r\n").as_bytes())?;
        let mut buffer = [0; 256];
        let count = stream.read(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer[..count]).into_owned())
    }

    /// Processor time of the server so far, in seconds.
    pub fn cpu_s(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // The name may hold spaces; the fields are counted from behind it.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(f64::NAN);
        (ticks(11) + ticks(12)) / rustix::param::clock_ticks_per_second() as f64
    }

    /// Bytes of private memory of the server.
    pub fn private_bytes(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.and_then(|rest| rest.split_whitespace().next()).and_then(|kib| kib.parse::<f64>().ok());
        kib.map_or(f64::NAN, |kib| kib * 1024.0)
    }

    /// Sends SIGTERM and waits for the end of the process.
    pub fn terminate(&mut self) {
        if let Some(process) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            // If the process has already ended, the wait returns at once.
            let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }

    fn kill(&mut self) {
        // The kill fails only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn hither(kind: Kind, program: &Path, directory: &Path) -> Command {
    let mut command = Command::new(program);
    let medium = if kind == Kind::File { "file" } else { "forced-dax" };
    command.arg("serve").arg("--data").arg(directory.join("store")).args(["--medium", medium, "--durability", "sync"]);
    command.args(["--capacity", "256M", "--max-capacity", "8G", "--max-clients", "12000"]);
    if kind == Kind::Null {
        command.arg("--null");
    }
    command
}

fn redis(kind: Kind, directory: &Path) -> Command {
    let mut command = Command::new("redis-server");
    command.args(["--save", "", "--maxclients", "12000", "--dir"]).arg(directory);
    let append = kind == Kind::RedisAlways;
    command.args(["--appendonly", if append { "yes" } else { "no" }]);
    if append {
        command.args(["--appendfsync", "always"]);
    }
    command
}
