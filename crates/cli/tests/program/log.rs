//! The server's log, where nobody reads it.

use crate::common::Store;
use crate::common::wire::{Client, text};
use rustix::fs::OFlags;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

/// A server with one thread, whose standard error is a full pipe.
struct Stuck {
    child: Child,
    log: BufReader<ChildStderr>,
    port: u16,
    // Last, so that it goes after the server.
    _store: Store,
}

impl Stuck {
    fn begin() -> Stuck {
        let store = Store::any();
        let mut command = store.command(&["serve", "--port", "0", "--threads", "1"]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let mut server = Stuck { child, log, port: 0, _store: store };
        server.port = server.ready_port();
        server.fill();
        server
    }

    fn ready_port(&mut self) -> u16 {
        let mut said = String::new();
        while !said.contains("event=ready") {
            assert!(self.log.read_line(&mut said).unwrap() > 0, "the server has not started:\n{said}");
        }
        said.trim_end().rsplit(':').next().unwrap().parse().unwrap()
    }

    /// Writes into the server's pipe until it takes no more.
    fn fill(&self) {
        let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
        let path = format!("/proc/{}/fd/2", self.child.id());
        let mut pipe = std::fs::OpenOptions::new().write(true).custom_flags(nonblocking).open(path).unwrap();
        loop {
            match pipe.write(b"\n") {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Breaks the protocol, which leaves a line.
    fn leave_a_line(&self) {
        let mut client = Client::connect(self.port).unwrap();
        client.stream.write_all(b"*x\r\n").unwrap();
        assert!(text(&client.receive().unwrap()).starts_with("ERR Protocol error"));
        assert!(client.receive().is_none(), "it is closed");
    }

    fn terminate(&self) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        // The server has ended, or the test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Regression: a thread that logged waited for the reader of the pipe, and all its clients waited with it.
#[test]
fn lines_that_nobody_reads_wait_and_hold_up_nobody() {
    let mut server = Stuck::begin();
    let mut client = Client::connect(server.port).unwrap();
    (0..5).for_each(|_| server.leave_a_line());
    assert_eq!(text(&client.run("PING")), "PONG");
    // The reader is back. It reads before the server ends, whose patience is a second.
    let mut said = String::new();
    while said.matches("event=client-closed").count() < 5 {
        assert!(server.log.read_line(&mut said).unwrap() > 0, "the server has ended:\n{said}");
    }
    server.terminate();
    server.log.read_to_string(&mut said).unwrap();
    assert_eq!(server.child.wait().unwrap().code(), Some(0), "{said}");
    let events: Vec<&str> = said.lines().filter_map(|line| line.split_once("event=")?.1.split(' ').next()).collect();
    assert_eq!(events, [&["client-closed"; 5][..], &["stopping", "closed"]].concat(), "{said}");
}

/// Regression: SIGTERM did not end a server whose log nobody read.
#[test]
fn a_log_that_nobody_reads_does_not_keep_a_server_from_its_end() {
    let mut server = Stuck::begin();
    server.terminate();
    let end = Instant::now() + Duration::from_secs(60);
    let status = loop {
        match server.child.try_wait().unwrap() {
            Some(status) => break status,
            None => assert!(Instant::now() < end, "it has not ended"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(status.code(), Some(0));
}
