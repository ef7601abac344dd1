//! What keeps clients out, holds them up, or limits what is held for them: pauses, addresses, clients that have not
//! logged in.

use crate::common::{Client, connect, say, send, skipped, start_with, until};
use hither::{Db, MediumChoice};
use hither_pmem::{OpenOptions, Pool};
use hither_server::config::DebugCommand;
use hither_server::shared::{CoreStats, now_ms};
use hither_server::{Config, Server, Shared};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

const HOUR_MS: u64 = 3_600_000;

fn open(dir: &Path) -> Db {
    Db::builder().path(dir).medium(MediumChoice::File).capacity(8 << 20).max_capacity(64 << 20).open().unwrap()
}

/// Regression: if the store's time was ahead of the machine's clock, a pause took longer by the difference.
#[test]
fn a_pause_is_counted_by_the_clock_that_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).close().unwrap();
    let options = OpenOptions { medium: MediumChoice::File.into(), ..OpenOptions::new() };
    Pool::open(&dir.path().join("node0.hither"), &options).unwrap().set_clock_ms(now_ms() + HOUR_MS).unwrap();
    let db = open(dir.path());
    assert!(db.now_ms() > now_ms() + HOUR_MS / 2, "the store is ahead");
    let shared = Shared::new(db, Config::default(), 1).unwrap();
    let mut client = Client::new(&shared);
    client.script("CLIENT PAUSE 1000 => OK");
    assert_eq!(shared.pause.at(|| now_ms() + 60_000), None);
    client.script("CLIENT PAUSE 600000 => OK");
    assert!(shared.pause.at(|| now_ms() + 60_000).is_some());
}

/// Regression: AUTH and HELLO waited for the end of a pause, so nobody could log in to end it.
#[test]
fn who_logs_in_during_a_pause_can_end_it() {
    let server = start_with(Config { threads: 2, requirepass: Some("secret".into()), ..Config::default() });
    let mut operator = connect(&server);
    assert_eq!(say(&mut operator, "AUTH secret"), "OK");
    for login in ["AUTH secret", "HELLO 2 AUTH default secret"] {
        assert_eq!(say(&mut operator, "CLIENT PAUSE 600000 ALL"), "OK");
        let mut other = connect(&server);
        assert!(!say(&mut other, login).starts_with('!'));
        assert_eq!(say(&mut other, "CLIENT UNPAUSE"), "OK");
        assert_eq!(say(&mut other, "PING"), "PONG");
    }
    server.stop();
}

fn listening_at(listen: &[IpAddr]) -> Server {
    start_with(Config { threads: 1, listen: listen.to_vec(), ..Config::default() })
}

/// Regression: with all addresses of both kinds, the second was reported as in use, by the first.
#[test]
fn all_addresses_of_both_kinds_can_be_listened_at() {
    let (four, six) = (IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED));
    if let Err(error) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) {
        eprintln!("this machine has no IPv6: {error}");
        return skipped("without_ipv6");
    }
    // The IPv6 address alone takes clients of both kinds.
    for listen in [&[four, six][..], &[six, four], &[six]] {
        let server = listening_at(listen);
        for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let mut client = TcpStream::connect((ip, server.address().port())).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            assert_eq!(say(&mut client, "PING"), "PONG", "{ip} of {listen:?}");
        }
        server.stop();
    }
}

/// The server's answer about its health; `None` once it does not answer.
fn ask(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok().filter(|length| *length > 0)?;
    Some(answer)
}

/// Regression: from a fifth of a second after the stop had begun it did not answer at all, however long the stop took.
#[test]
fn health_is_told_until_nobody_is_served() {
    let address = Some((Ipv4Addr::LOCALHOST, 0).into());
    let server = start_with(Config { threads: 2, metrics_address: address, ..Config::default() });
    let (shared, metrics) = (server.shared().clone(), server.metrics_address().unwrap());
    let mut client = connect(&server);
    // The stop waits for a reply that nobody reads.
    assert_eq!(say(&mut client, &format!("SETRANGE large {} x", (64 << 20) - 1)), (64 << 20).to_string());
    send(&mut client, "GET large");
    client.read_exact(&mut [0; 1]).unwrap();
    assert!(ask(metrics, "/readyz").unwrap().starts_with("HTTP/1.1 200"));
    let end = std::thread::spawn(move || server.stop());
    until(|| shared.stopping.load(Ordering::SeqCst));
    let mut answers = 0;
    while let Some(answer) = ask(metrics, "/readyz") {
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("stopping"), "{answer}");
        assert!(ask(metrics, "/healthz").is_none_or(|answer| answer.starts_with("HTTP/1.1 200")), "it is not to be killed");
        answers += 1;
    }
    assert!(shared.cores.iter().all(CoreStats::has_ended), "it was silent after {answers} answers, while a client was waited for");
    end.join().unwrap();
}

/// Regression: while a long command ran on the first thread nobody could connect, and the thread with the fewest
/// clients got new ones even if it was held up.
#[test]
fn a_thread_that_is_held_up_keeps_nobody_out() {
    for stuck in 0..2 {
        let server = start_with(Config { threads: 2, enable_debug_command: DebugCommand::Yes, ..Config::default() });
        // The thread to be held up has some clients, and no more than the other.
        let mut clients = Vec::new();
        let on = |thread: usize| server.shared().clients.list().iter().filter(|client| client.core == thread).count();
        while on(stuck) == 0 || on(stuck) > on(1 - stuck) {
            clients.push(connect(&server));
            assert_eq!(say(clients.last_mut().unwrap(), "PING"), "PONG");
        }
        let address = server.shared().clients.list().iter().find(|client| client.core == stuck).unwrap().address.clone();
        let sleeper = clients.iter_mut().find(|client| client.local_addr().unwrap().to_string() == address).unwrap();
        send(sleeper, "DEBUG SLEEP 6");
        until(|| server.shared().cores[stuck].is_held_up(server.shared().uptime_ms()));
        let mut others: Vec<TcpStream> = (0..3).map(|_| connect(&server)).collect();
        others.iter_mut().for_each(|other| assert_eq!(say(other, "PING"), "PONG"));
        sleeper.set_nonblocking(true).unwrap();
        let early = sleeper.read(&mut [0; 9]).map_err(|error| error.kind());
        assert_eq!(early, Err(ErrorKind::WouldBlock), "thread {stuck}: they were served after it");
        server.stop();
    }
}
