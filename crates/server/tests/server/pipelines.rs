//! Requests that arrive together are answered as if each had come alone, although they are parsed ahead of their turn.

use crate::common::{connect, read_some, receive, send, start, start_with, until};
use hither_server::Config;
use hither_server::config::DebugCommand;
use std::io::{Read, Write};
use std::net::TcpStream;

/// Small pseudo-random numbers, the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// Commands that change what the commands behind them do, and commands that do not.
const LINES: &[&str] = &[
    "INCR n",
    "INCR n",
    "GET n",
    "SET a 1",
    "APPEND a x",
    "GET a",
    "DEL a",
    "MGET a n a",
    "LPUSH n",
    "NOSUCH a",
    "GET",
    "PING",
    "ECHO a",
    "SELECT 1",
    "SELECT 0",
    "SELECT 99",
    "MULTI",
    "EXEC",
    "DISCARD",
    "WATCH n",
    "ZADD z 1 m",
    "BZPOPMIN z 0.001",
    "HSET h f v",
    "HGET h f",
    "FLUSHDB",
    "SWAPDB 0 1",
    "CLIENT REPLY SKIP",
    "CLIENT PAUSE 3 ALL",
    "RESET",
];

/// Some of these lines, in any order.
fn script(dice: &mut Dice) -> Vec<&'static str> {
    (0..1 + dice.below(60)).map(|_| LINES[dice.below(LINES.len())]).collect()
}

/// The bytes of a request, as an array or inline.
fn request(line: &str, dice: &mut Dice) -> Vec<u8> {
    if dice.below(4) == 0 {
        return format!("{line}\r\n").into_bytes();
    }
    let words: Vec<String> = line.split(' ').map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{}", words.len(), words.concat()).into_bytes()
}

/// Ends whatever was begun.
const END: [&str; 2] = ["RESET", "ECHO the-end"];

/// Everything up to the answer of [`END`].
fn rest(stream: &mut TcpStream) -> String {
    let (mut all, mut chunk) = (Vec::new(), vec![0; 64 << 10]);
    while !all.ends_with(b"$7\r\nthe-end\r\n") {
        match read_some(stream, &mut chunk).unwrap() {
            0 => panic!("it was closed after {}", String::from_utf8_lossy(&all)),
            count => all.extend_from_slice(&chunk[..count]),
        }
    }
    String::from_utf8(all).unwrap()
}

#[test]
fn requests_that_come_together_are_answered_as_if_alone() {
    let mut dice = Dice(7);
    let (alone, together) = (start(), start());
    for round in 0..40 {
        let lines = script(&mut dice);
        let (mut one, mut many) = (connect(&alone), connect(&together));
        for client in [&mut one, &mut many] {
            send(client, "FLUSHALL");
            receive(client, 1);
        }
        for line in &lines {
            one.write_all(&request(line, &mut dice)).unwrap();
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        END.iter().for_each(|line| one.write_all(&request(line, &mut dice)).unwrap());
        let expected = rest(&mut one);
        let bytes: Vec<u8> = lines.iter().chain(&END).flat_map(|line| request(line, &mut dice)).collect();
        // All at once, or cut anywhere.
        let mut left = &bytes[..];
        while !left.is_empty() {
            let count = if round % 3 == 0 { left.len() } else { (1 + dice.below(400)).min(left.len()) };
            many.write_all(&left[..count]).unwrap();
            left = &left[count..];
            if round % 3 == 2 {
                std::thread::sleep(std::time::Duration::from_micros(300));
            }
        }
        assert_eq!(rest(&mut many), expected, "round {round}: {lines:?}");
    }
    alone.stop();
    together.stop();
}

/// Behind AUTH other limits apply than before it: what was parsed ahead with the old ones does not count.
#[test]
fn who_logs_in_has_the_larger_limits_at_once() {
    let server = start_with(Config { threads: 1, requirepass: Some("secret".into()), ..Config::default() });
    let value = "x".repeat(100_000);
    let mut client = connect(&server);
    client
        .write_all(format!("AUTH secret\r\nPING\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\n{value}\r\nSTRLEN k\r\n").as_bytes())
        .unwrap();
    assert_eq!(receive(&mut client, 4), ["OK", "PONG", "OK", "100000"]);
    // And a client that logs out has the smaller ones.
    client.write_all(format!("RESET\r\nPING\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\n{value}\r\nPING\r\n").as_bytes()).unwrap();
    let replies = receive(&mut client, 3);
    assert!(replies[0] == "RESET" && replies[1].contains("NOAUTH") && replies[2].contains("Protocol error"), "{replies:?}");
    server.stop();
}

/// Nothing behind QUIT, or behind a protocol error, is run.
#[test]
fn what_stands_behind_the_end_does_not_run() {
    let server = start();
    for end in ["QUIT", "*1\r\n:1"] {
        let mut client = connect(&server);
        send(&mut client, &format!("SET a 1; {end}; SET a 2; SET a 3"));
        let mut all = Vec::new();
        client.read_to_end(&mut all).unwrap();
        let mut other = connect(&server);
        send(&mut other, "GET a; DEL a");
        assert_eq!(receive(&mut other, 2), ["1", "1"], "{end}: {}", String::from_utf8_lossy(&all));
    }
    server.stop();
}

/// Many clients send while the only thread sleeps, so it reads from several before it serves the first of them. Each
/// gets its own answers, however much it has sent.
#[test]
fn clients_that_come_together_get_their_own_answers() {
    let server = start_with(Config { threads: 1, enable_debug_command: DebugCommand::Yes, ..Config::default() });
    let (mut dice, mut sleeper) = (Dice(11), connect(&server));
    let mut clients: Vec<TcpStream> = (0..37).map(|_| connect(&server)).collect();
    for round in 0..12 {
        send(&mut sleeper, "DEBUG SLEEP 0.03");
        let mut sent = Vec::new();
        for (number, client) in clients.iter_mut().enumerate() {
            // Around the most that is read at once from each: 16 KiB if many have sent something, and 64 KiB otherwise.
            let length = [1, 100, 16_300 + dice.below(200), 40_000, 65_400 + dice.below(200), 150_000][dice.below(6)];
            let value = format!("{number}:{round}:{}", "x".repeat(length));
            let request = format!("*3\r\n$3\r\nSET\r\n$4\r\nk{number:03}\r\n${}\r\n{value}\r\nGET k{number:03}\r\n", value.len());
            let cut = if dice.below(3) == 0 { dice.below(request.len()) } else { request.len() };
            client.write_all(&request.as_bytes()[..cut]).unwrap();
            sent.push((value, request.as_bytes()[cut..].to_vec()));
        }
        std::thread::sleep(std::time::Duration::from_millis(dice.below(40) as u64));
        for (client, (_, rest)) in clients.iter_mut().zip(&sent) {
            client.write_all(rest).unwrap();
        }
        assert_eq!(receive(&mut sleeper, 1), ["OK"]);
        for (number, (client, (value, _))) in clients.iter_mut().zip(&sent).enumerate() {
            let replies = receive(client, 2);
            assert!(replies[0] == "OK" && replies[1] == *value, "client {number} in round {round} got {:.80?}", replies);
        }
    }
    server.stop();
}

/// Regression: `timeout` never closed a client that sent commands and did not read, and nothing reported what it took.
#[test]
fn who_does_not_read_is_seen_and_closed() {
    let server = start_with(Config { threads: 1, timeout_s: 1, ..Config::default() });
    let mut client = connect(&server);
    send(&mut client, &format!("SETRANGE k {} x", (1 << 20) - 1));
    send(&mut client, &"GET k; ".repeat(64));
    let clients = &server.shared().clients;
    let told = |field: &str, text: &str| {
        let value = text.split(' ').find_map(|word| word.strip_prefix(field)?.strip_prefix('='));
        value.unwrap().parse::<usize>().unwrap()
    };
    until(|| clients.list().iter().any(|client| told("omem", &client.describe()) > 1 << 20));
    let text = clients.list()[0].describe();
    assert!(told("qbuf", &text) > 0 && told("tot-mem", &text) > told("omem", &text), "{text}");
    until(|| clients.is_empty());
    server.stop();
}
