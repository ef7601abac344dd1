//! Consistency as clients see it. Many connections work on few keys, some connections are cut, and the server is killed
//! and started again under load. The result must be linearizable for each key and atomic for each EXEC, and nothing
//! that was acknowledged may be missing after a restart.
//!
//! An *object* is data that changes only as a whole: a string; two strings that only MSET, EXEC and DEL of both change;
//! two fields of a hash; a member of a sorted set with its score. Each object is one register of
//! [`hither_testkit::history`]. A reply that shows half of a write, or an older state than another client has seen,
//! breaks the register's history. So reads look at one half alone, at both halves by MGET or HMGET, and at both halves
//! in EXEC. An operation that got no reply, because the connection or the server ended, may have happened until the end
//! of the server, but not later.
//!
//! It runs for `HITHER_LINEARIZABILITY_SECONDS` (2) on each medium. Its choices follow from `HITHER_SEED` (printed).

mod common;

use common::Store;
use common::wire::{Client, Random, Server, push, seed};
use hither_resp::Value;
use hither_testkit::history::{Action, Content, Operation, check};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const CLIENTS: usize = 8;
/// Least number of servers that are killed.
const KILLS: usize = 3;
/// One request in this many is cut off.
const CUT: usize = 150;

const OBJECTS: usize = 6;
/// Each object has more operations than this.
const LEAST: usize = 50;
const STRINGS: usize = 3;
const PAIR: usize = 3;
const HASH: usize = 4;
const MEMBER: usize = 5;

#[test]
fn on_file() {
    histories(&Store::on_file());
}

#[test]
fn on_dax() {
    if let Some(store) = Store::on_dax() {
        histories(&store);
    }
}

/// A request. A function derives each object's action from the last reply.
struct Request {
    commands: Vec<String>,
    /// The objects, and the action to assume if nobody sees the reply.
    touched: Vec<(usize, Action)>,
    told: fn(&Value, Action) -> Action,
}

/// One client's part of the history.
type History = Vec<(usize, Operation)>;

struct Clock {
    began: Instant,
    values: AtomicU64,
}

impl Clock {
    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// A value that no other write writes, and that no increment reaches.
    fn value(&self) -> u64 {
        (self.values.fetch_add(1, Ordering::Relaxed) + 1) * 1_000_000
    }
}

fn histories(store: &Store) {
    let seconds: u64 = std::env::var("HITHER_LINEARIZABILITY_SECONDS").map_or(2, |text| text.parse().unwrap());
    let mut random = Random(seed());
    let clock = Clock { began: Instant::now(), values: AtomicU64::new(0) };
    let mut history = History::new();
    let mut kills = 0;
    // Where each sync takes long, all clients together do only a few operations a second.
    let is_short = |history: &History| {
        (0..OBJECTS).any(|object| operations_of(object, history).len() <= LEAST) && clock.began.elapsed() < Duration::from_secs(120)
    };
    while kills < KILLS || clock.began.elapsed() < Duration::from_secs(seconds) || is_short(&history) {
        let server = Server::start(store, &[]);
        history.extend(load(server, &clock, &mut random));
        kills += 1;
    }
    let server = Server::start(store, &[]);
    let mut client = server.client();
    for request in last_looks() {
        let cut = perform(&mut client, &request, &clock, &mut history);
        assert!(!cut, "the last server lives");
    }
    judge(&history);
    assert_eq!(server.terminate(), 0);
    store.run(&["check"]).done();
    println!("HITHER_COUNT wire_operations {}", history.len());
}

/// Runs all clients for a moment, then kills the server under them.
fn load(server: Server, clock: &Clock, random: &mut Random) -> History {
    let port = server.port;
    let seeds: Vec<u64> = (0..CLIENTS).map(|_| random.below(usize::MAX >> 1) as u64 | 1).collect();
    let lives = Duration::from_millis(150 + random.below(400) as u64);
    let mut all = History::new();
    std::thread::scope(|scope| {
        let clients: Vec<_> = seeds.into_iter().map(|seed| scope.spawn(move || client(port, clock, Random(seed)))).collect();
        std::thread::sleep(lives);
        server.kill();
        let died = clock.now();
        for client in clients {
            let mut history = client.join().unwrap();
            // An operation without a reply may have happened until the server died. If it was sent later, it did not
            // happen.
            history.retain(|(_, operation)| operation.complete || operation.start < died);
            history.iter_mut().filter(|(_, operation)| !operation.complete).for_each(|(_, operation)| operation.end = died);
            all.append(&mut history);
        }
    });
    all
}

/// Sends requests until the server is gone.
fn client(port: u16, clock: &Clock, mut random: Random) -> History {
    let mut history = History::new();
    'connections: while let Ok(mut client) = Client::connect(port) {
        loop {
            let request = request(&mut random, clock);
            if random.below(CUT) == 0 {
                cut_off(client, &request, clock, &mut history);
                continue 'connections;
            }
            if perform(&mut client, &request, clock, &mut history) {
                continue 'connections;
            }
        }
    }
    history
}

fn note(request: &Request, reply: Option<&Value>, start: u64, clock: &Clock, history: &mut History) {
    let end = clock.now();
    if let Some(Value::Array(halves)) = reply
        && halves.first() != halves.last()
        && matches!(request.touched[..], [_])
    {
        panic!("{:?} tells of two states: {halves:?}", request.commands);
    }
    for (object, unseen) in &request.touched {
        let action = reply.map_or(*unseen, |reply| (request.told)(reply, *unseen));
        history.push((*object, Operation { start, end, complete: reply.is_some(), action }));
    }
}

/// Sends a request and closes the connection without reading the reply.
fn cut_off(mut client: Client, request: &Request, clock: &Clock, history: &mut History) {
    let start = clock.now();
    // Whether the request arrives is open in any case.
    let _ = client.stream.write_all(&bytes_of(request));
    note(request, None, start, clock, history);
}

/// Sends a request and reads the replies. Returns whether the connection ended.
fn perform(client: &mut Client, request: &Request, clock: &Clock, history: &mut History) -> bool {
    let start = clock.now();
    let sent = client.stream.write_all(&bytes_of(request)).is_ok();
    let mut reply = None;
    for _ in &request.commands {
        reply = if sent { client.receive() } else { None };
        match &reply {
            Some(Value::Error(text)) => panic!("{:?}: {}", request.commands, String::from_utf8_lossy(text)),
            Some(_) => {}
            None => break,
        }
    }
    note(request, reply.as_ref(), start, clock, history);
    reply.is_none()
}

fn bytes_of(request: &Request) -> Vec<u8> {
    let mut out = Vec::new();
    request.commands.iter().for_each(|line| push(&mut out, &line.split(' ').collect::<Vec<_>>()));
    out
}

fn operations_of(object: usize, history: &History) -> Vec<Operation> {
    history.iter().filter(|(of, _)| *of == object).map(|(_, operation)| *operation).collect()
}

fn judge(history: &History) {
    for object in 0..OBJECTS {
        let operations = operations_of(object, history);
        assert!(operations.len() > LEAST, "object {object} has only {} operations", operations.len());
        if let Err(violation) = check(None, &operations) {
            panic!("object {object}: no order explains its history beyond {} operations:\n{:#?}", violation.ordered, violation.around);
        }
    }
    let cut = history.iter().filter(|(_, operation)| !operation.complete).count();
    assert!(cut > KILLS, "only {cut} operations were cut short");
}

// Actions from replies.

fn number(value: &Value) -> Content {
    match value {
        Value::Null => None,
        Value::Integer(number) => Some(*number as u64),
        Value::Bulk(text) => Some(std::str::from_utf8(text).unwrap().parse().unwrap()),
        other => panic!("not a number: {other:?}"),
    }
}

fn both(value: &Value) -> Content {
    let Value::Array(halves) = value else { panic!("not two: {value:?}") };
    assert_eq!(halves.len(), 2);
    assert_eq!(halves[0], halves[1], "one half is older than the other");
    number(&halves[0])
}

fn written(_: &Value, action: Action) -> Action {
    action
}

fn read_one(reply: &Value, _: Action) -> Action {
    Action::Read(number(reply))
}

fn read_both(reply: &Value, _: Action) -> Action {
    Action::Read(both(reply))
}

fn added(reply: &Value, _: Action) -> Action {
    Action::Add { sum: number(reply).unwrap() }
}

fn added_to_both(reply: &Value, _: Action) -> Action {
    Action::Add { sum: both(reply).unwrap() }
}

fn deleted(reply: &Value, _: Action) -> Action {
    Action::Delete { existed: number(reply) != Some(0) }
}

fn deleted_both(reply: &Value, _: Action) -> Action {
    let count = number(reply).unwrap();
    assert_ne!(count, 1, "half was there");
    Action::Delete { existed: count == 2 }
}

// Requests.

fn one(object: usize, unseen: Action, told: fn(&Value, Action) -> Action, command: String) -> Request {
    Request { commands: vec![command], touched: vec![(object, unseen)], told }
}

fn exec(touched: Vec<(usize, Action)>, told: fn(&Value, Action) -> Action, commands: [String; 2]) -> Request {
    let [first, second] = commands;
    Request { commands: vec!["MULTI".into(), first, second, "EXEC".into()], touched, told }
}

const LOOK: Action = Action::Read(None);
const ADD: Action = Action::Add { sum: 0 };
const DELETE: Action = Action::Delete { existed: false };

fn request(random: &mut Random, clock: &Clock) -> Request {
    let value = clock.value();
    let write = Action::Write(Some(value));
    match random.below(6) {
        0 | 1 => on_string(random.below(STRINGS), random, value),
        2 => on_pair(random, value),
        3 => on_hash(random, value),
        4 => on_member(random, value),
        // Two objects of different types in one transaction.
        _ => exec(vec![(0, write), (MEMBER, write)], written, [format!("SET s0 {value}"), format!("ZADD z {value} m")]),
    }
}

fn on_string(string: usize, random: &mut Random, value: u64) -> Request {
    match random.below(8) {
        0..=2 => one(string, LOOK, read_one, format!("GET s{string}")),
        3 | 4 => one(string, Action::Write(Some(value)), written, format!("SET s{string} {value}")),
        5 | 6 => one(string, ADD, added, format!("INCR s{string}")),
        _ => one(string, DELETE, deleted, format!("DEL s{string}")),
    }
}

fn on_pair(random: &mut Random, value: u64) -> Request {
    let write = Action::Write(Some(value));
    match random.below(12) {
        0 | 1 => one(PAIR, LOOK, read_one, "GET p".into()),
        2 | 3 => one(PAIR, LOOK, read_one, "GET q".into()),
        4 => one(PAIR, LOOK, read_both, "MGET q p".into()),
        5 => exec(vec![(PAIR, LOOK)], read_both, ["GET p".into(), "GET q".into()]),
        6 | 7 => one(PAIR, write, written, format!("MSET p {value} q {value}")),
        8 => exec(vec![(PAIR, write)], written, [format!("SET q {value}"), format!("SET p {value}")]),
        9 | 10 => exec(vec![(PAIR, ADD)], added_to_both, ["INCR p".into(), "INCR q".into()]),
        _ => one(PAIR, DELETE, deleted_both, "DEL p q".into()),
    }
}

fn on_hash(random: &mut Random, value: u64) -> Request {
    match random.below(10) {
        0 | 1 => one(HASH, LOOK, read_one, "HGET h f".into()),
        2 | 3 => one(HASH, LOOK, read_one, "HGET h g".into()),
        4 | 5 => one(HASH, LOOK, read_both, "HMGET h f g".into()),
        6 | 7 => one(HASH, Action::Write(Some(value)), written, format!("HSET h f {value} g {value}")),
        8 => exec(vec![(HASH, ADD)], added_to_both, ["HINCRBY h f 1".into(), "HINCRBY h g 1".into()]),
        _ => one(HASH, DELETE, deleted, "DEL h".into()),
    }
}

fn on_member(random: &mut Random, value: u64) -> Request {
    match random.below(7) {
        0..=2 => one(MEMBER, LOOK, read_one, "ZSCORE z m".into()),
        3 | 4 => one(MEMBER, Action::Write(Some(value)), written, format!("ZADD z {value} m")),
        5 => one(MEMBER, ADD, added, "ZINCRBY z 1 m".into()),
        _ => one(MEMBER, DELETE, deleted, "ZREM z m".into()),
    }
}

/// Reads of every object, and of both halves where an object has two.
fn last_looks() -> Vec<Request> {
    let mut looks: Vec<Request> = (0..STRINGS).map(|string| one(string, LOOK, read_one, format!("GET s{string}"))).collect();
    looks.push(one(PAIR, LOOK, read_both, "MGET p q".into()));
    looks.push(one(HASH, LOOK, read_both, "HMGET h f g".into()));
    looks.push(one(MEMBER, LOOK, read_one, "ZSCORE z m".into()));
    looks
}

/// The check finds a violation that it is meant to find.
#[test]
fn a_half_seen_write_is_found() {
    let operation = |start, action| (PAIR, Operation { start, end: start + 1, complete: true, action });
    let mut history: History = vec![operation(0, Action::Write(Some(1))), operation(2, Action::Write(Some(2)))];
    // `GET p` shows the new half, then `GET q` the old one.
    history.extend([operation(4, Action::Read(Some(2))), operation(6, Action::Read(Some(1)))]);
    let operations: Vec<Operation> = history.into_iter().map(|(_, operation)| operation).collect();
    assert!(check(None, &operations).is_err());
}
