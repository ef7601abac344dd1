//! When the server closes a connection that its client did not want closed, the log states why, and the client gets an
//! error where the protocol allows one.

use crate::common;
use crate::common::Store;
use crate::common::wire::{Client, Server, text};
use hither_resp::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

/// How the log names this client.
fn address(client: &Client) -> String {
    format!("address={} ", client.stream.local_addr().unwrap())
}

/// Reads to the end of the connection, which may be abrupt.
#[track_caller]
fn expect_end(client: &mut Client) {
    while client.receive().is_some() {}
    assert!(!matches!(client.stream.read(&mut [0]), Ok(1..)), "it is still there");
}

#[test]
fn who_asks_for_more_than_it_reads_is_closed_with_a_line() {
    let server = Server::start(&Store::any(), &["--max-output", "1100000"]);
    let mut client = server.client();
    for (key, bytes) in [("large", 3 << 20), ("some", 1_000_000)] {
        client.call(&["SET", key, &"x".repeat(bytes)]);
    }
    // This reply is too large ever to be sent, and the client gets an error.
    assert!(matches!(client.run("GET large"), Value::Error(why) if why.starts_with(b"ERR the reply is larger than max-output")));
    // Each of these replies could be sent, but they come faster than the client reads.
    client.stream.write_all(&b"GET some\r\n".repeat(40)).unwrap();
    while matches!(client.stream.read(&mut [0; 64 << 10]), Ok(1..)) {
        std::thread::sleep(Duration::from_millis(10));
    }
    server.expect_log(&["level=warn event=client-closed", &address(&client), "max-output (1100000)"]);
}

#[test]
fn a_monitor_that_does_not_read_is_closed_with_a_line() {
    let server = Server::start(&Store::any(), &["--max-output", "2M"]);
    let mut monitor = server.client();
    monitor.run("MONITOR");
    // The sleeping thread of the monitor cannot send what gathers for it.
    let mut busy = server.client();
    let end = Instant::now() + Duration::from_secs(60);
    let large = "x".repeat(1 << 20);
    while server.client().number("CLIENT ID") > 0 && Instant::now() < end {
        busy.call(&["ECHO", &large]);
        let Value::Bulk(list) = busy.run("CLIENT LIST") else { panic!() };
        let there = address(&monitor).replace("address=", "addr=");
        if !String::from_utf8(list).unwrap().contains(&there) {
            break;
        }
    }
    server.expect_log(&["level=warn event=client-closed", &address(&monitor), "MONITOR"]);
}

/// Zero means no limit, also for the output that waits for a monitor.
#[test]
fn monitors_stay_where_output_has_no_limit() {
    let server = Server::start(&Store::any(), &["--max-output", "0"]);
    let (mut monitor, mut other) = (server.client(), server.client());
    assert_eq!(text(&monitor.run("MONITOR")), "OK");
    other.run("ECHO shown");
    assert!(text(&monitor.receive().expect("it is closed")).ends_with("\"ECHO\" \"shown\""));
}

#[test]
fn protocol_errors_and_administrators_leave_lines() {
    let server = Server::start(&Store::any(), &[]);
    let mut client = server.client();
    client.stream.write_all(b"*1\r\n:1\r\n").unwrap();
    assert!(text(&client.receive().unwrap()).starts_with("ERR Protocol error"));
    expect_end(&mut client);
    server.expect_log(&["event=client-closed", &address(&client), "expected '$', got ':'"]);

    let (mut operator, mut victim) = (server.client(), server.client());
    let id = victim.number("CLIENT ID");
    assert_eq!(operator.number(&format!("CLIENT KILL ID {id}")), 1);
    expect_end(&mut victim);
    server.expect_log(&["event=client-closed", &address(&victim), "CLIENT KILL by client"]);

    operator.run("ACL SETUSER ada on nopass +@all");
    let mut ada = server.client();
    assert_eq!(text(&ada.run("AUTH ada x")), "OK");
    assert_eq!(operator.number("ACL DELUSER ada"), 1);
    expect_end(&mut ada);
    server.expect_log(&["event=client-closed", &address(&ada), "its user was deleted"]);

    let mut browser = server.client();
    browser.stream.write_all(b"POST / HTTP/1.1\r\n\r\n").unwrap();
    expect_end(&mut browser);
    server.expect_log(&["event=http-refused", address(&browser).trim_end()]);
}

/// Regression: commands queued for EXEC, commands that wait for a sync, and a long request did not count as activity.
#[test]
fn idle_clients_are_closed_with_a_line_and_others_are_not() {
    let server = Server::start(&Store::any(), &["--timeout", "5"]);
    let (mut idle, mut queuing, mut slow, mut monitor) = (server.client(), server.client(), server.client(), server.client());
    idle.run("PING");
    monitor.run("MONITOR");
    queuing.run("MULTI");
    slow.stream.write_all(b"*2\r\n$4\r\nECHO\r\n$8\r\n").unwrap();
    for _ in 0..8 {
        std::thread::sleep(Duration::from_millis(1000));
        assert_eq!(text(&queuing.run("PING")), "QUEUED");
        slow.stream.write_all(b"x").unwrap();
    }
    slow.stream.write_all(b"\r\n").unwrap();
    assert_eq!(text(&slow.receive().expect("it was sending")), "xxxxxxxx");
    assert!(matches!(queuing.run("EXEC"), Value::Array(replies) if replies.len() == 8));
    assert!(monitor.receive().is_some(), "it is shown what others do, if they do something");
    expect_end(&mut idle);
    server.expect_log(&["event=client-closed", &address(&idle), "nothing came from it for 5 s"]);
}

#[test]
fn refused_connections_leave_a_line() {
    let server = Server::start(&Store::any(), &["--max-clients", "2"]);
    let (mut first, mut second) = (server.client(), server.client());
    first.run("PING");
    second.run("PING");
    let mut third = server.client();
    assert_eq!(text(&third.receive().unwrap()), "ERR max number of clients reached");
    server.expect_log(&["event=connections-refused count=1", "max number of clients reached"]);
}

/// Regression: clients, even without a password, could take all files that the process may have open. Later clients got
/// no answer, and no checkpoint or backup could be written.
#[test]
fn clients_leave_files_for_the_server() {
    let store = Store::on_file();
    let server = Server::start_limited(&store, "ulimit -Sn 60 && ulimit -Hn 200", &[]);
    server.expect_log(&["level=warn event=max-clients-lowered asked=10000", "open_files=200"]);
    let mut first = server.client();
    let clients = text(&first.run("INFO clients"));
    let most: usize = clients.lines().find_map(|line| line.strip_prefix("maxclients:")).unwrap().parse().unwrap();
    assert!((100..200).contains(&most), "the limit was not raised, or nothing is kept: {most}");
    let others: Vec<Client> = (1..most).map(|_| server.client()).collect();
    assert_eq!(text(&server.client().receive().unwrap()), "ERR max number of clients reached");
    first.run("SET k v");
    assert_eq!(text(&first.run("SAVE")), "OK");
    let more = text(&first.run("CONFIG SET maxclients 5000"));
    assert!(more.ends_with("the limit of open files (ulimit -n) has no room for so many clients"), "{more}");
    drop(others);
}

#[test]
fn a_lack_of_descriptors_leaves_a_line_and_ends() {
    let server = Server::start(&Store::any(), &[]);
    let mut first = server.client();
    first.run("PING");
    let open = std::fs::read_dir(format!("/proc/{}/fd", server.id())).unwrap().count();
    let limit = |most: usize| {
        let status = Command::new("prlimit").args(["--pid", &server.id().to_string(), &format!("--nofile={most}:")]).status();
        assert!(status.unwrap().success());
    };
    limit(open + 2);
    let clients: Vec<Client> = (0..6).map(|_| server.client()).collect();
    server.expect_log(&["level=warn event=accept-failed", "Too many open files"]);
    drop(clients);
    assert_eq!(text(&first.run("PING")), "PONG", "those who are there are served");
    assert_eq!(text(&server.client().run("PING")), "PONG", "and others once somebody has left");
}

/// The end of a server does not wait for a client that does not read; the log names the client that gets no answer.
#[test]
fn an_end_names_those_whose_replies_have_not_left() {
    let server = Server::start(&Store::any(), &[]);
    let mut client = server.client();
    client.call(&["SET", "large", &"x".repeat(64 << 20)]);
    client.send(&["GET", "large"]).unwrap();
    let mut first = [0; 1];
    client.stream.read_exact(&mut first).unwrap();
    server.client().send(&["SHUTDOWN"]).unwrap();
    server.expect_log(&["level=warn event=client-closed", &address(&client), "bytes of replies have not left"]);
    assert_eq!(server.wait(), 0);
}

#[test]
fn handshakes_that_fail_or_never_end_leave_lines() {
    let store = Store::any();
    let (key, certificate) = (store.path("server.key"), store.path("server.pem"));
    let own = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    common::write(&certificate, own.cert.pem());
    common::write(&key, own.signing_key.serialize_pem());
    let files = ["--tls-cert-file", certificate.to_str().unwrap(), "--tls-key-file", key.to_str().unwrap(), "--tls-auth-clients", "no"];
    let server = Server::start(&store, &[&["--tls-port", "0"], &files[..]].concat());
    let port = server.logged_port("event=tls address=");
    let mut half = TcpStream::connect(("127.0.0.1", port)).unwrap();
    half.write_all(&[22, 3, 1]).unwrap();
    let mut wrong = Client::connect(port).unwrap();
    wrong.stream.write_all(b"PING\r\nPING\r\n").unwrap();
    // The alert is not a reply.
    let _ = wrong.stream.read_to_end(&mut Vec::new());
    server.expect_log(&["level=warn event=client-closed", &address(&wrong), "its socket failed, in the handshake"]);
    server.expect_log(&["event=client-closed", &half.local_addr().unwrap().to_string(), "TLS handshake has taken"]);
}
