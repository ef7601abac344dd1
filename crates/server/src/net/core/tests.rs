use super::*;
use crate::config::{Config, DebugCommand};
use crate::metrics::unhealthy;
use std::io::{Read, Write};
use std::net;

/// A loop that no thread runs, with this many clients in its first slots.
fn with_clients<const N: usize>() -> (Arc<Shared>, Core, [net::TcpStream; N]) {
    let config = Config { enable_debug_command: DebugCommand::Yes, ..Config::default() };
    let shared = Shared::new(hither::Db::builder().in_memory().open().unwrap(), config, 1).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let mut core = make(&shared, vec![(listener, false)], 1).unwrap().remove(0);
    let clients = [(); N].map(|()| {
        let client = net::TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        core.accept();
        client
    });
    (shared, core, clients)
}

/// Sends `bytes` to the loop's connection in this slot, and waits until they have arrived.
fn send(core: &Core, slot: usize, client: &mut net::TcpStream, bytes: &[u8]) {
    client.write_all(bytes).unwrap();
    let stream = &core.connections[slot].as_ref().unwrap().channel.stream;
    while stream.peek(&mut [0]).is_err() {
        std::thread::yield_now();
    }
}

/// Longer than a turn.
const SLOW: &[u8] = b"DEBUG SLEEP 0.021\r\n";

/// Regression: with each event of a round the client got one more turn in all later rounds.
#[test]
fn who_always_has_something_to_run_has_one_turn_in_a_round() {
    let (shared, mut core, [mut client]) = with_clients();
    send(&core, 0, &mut client, &SLOW.repeat(10));
    for round in 1..4 {
        core.note(0, true, false);
        core.serve();
        assert_eq!((core.to_serve.as_slice(), shared.total_calls()), (&[0][..], round));
    }
}

/// Regression: a client that had sent many slow commands kept the thread until all had run.
#[test]
fn slow_commands_of_one_client_let_others_have_their_turns() {
    let (shared, mut core, [mut slow, mut other]) = with_clients();
    send(&core, 0, &mut slow, &[&SLOW.repeat(3)[..], b"PING\r\n"].concat());
    send(&core, 1, &mut other, b"PING\r\n");
    core.note(0, true, false);
    core.note(1, true, false);
    // No further event reports what was read and has not run.
    for calls in 2..6 {
        core.serve();
        core.settle();
        assert_eq!(shared.total_calls(), calls);
    }
    for (mut client, expected) in [(slow, &b"+OK\r\n+OK\r\n+OK\r\n+PONG\r\n"[..]), (other, b"+PONG\r\n")] {
        let mut replies = vec![0; expected.len()];
        client.read_exact(&mut replies).unwrap();
        assert_eq!(replies, expected);
    }
}

/// Regression: a stop was noticed only after everything that a client had sent had run.
#[test]
fn a_stop_ends_turns() {
    let (shared, mut core, [mut client]) = with_clients();
    send(&core, 0, &mut client, &b"PING\r\n".repeat(3));
    shared.stopping.store(true, Ordering::Release);
    core.note(0, true, false);
    core.serve();
    core.run();
    assert_eq!(shared.total_calls(), 1);
    let mut replies = Vec::new();
    client.read_to_end(&mut replies).unwrap();
    assert_eq!(replies, b"+PONG\r\n");
}

/// Regression: the machine's clock decided. When it was set back, a stuck thread was taken for a healthy one; when it was
/// set forward, a healthy one was reported.
#[test]
fn setting_the_machines_clock_makes_no_thread_healthy_or_stuck() {
    let mut shared = Shared::new(hither::Db::builder().in_memory().open().unwrap(), Config::default(), 1).unwrap();
    assert_eq!(unhealthy(&shared), None);
    // The server has run for a minute, and the thread has not ticked since the start.
    Arc::get_mut(&mut shared).unwrap().started -= Duration::from_secs(60);
    assert_eq!(unhealthy(&shared), Some("thread 0 has not come round for 30 seconds".to_owned()));
    make(&shared, Vec::new(), 1).unwrap().remove(0).tick();
    assert_eq!(unhealthy(&shared), None);
    shared.cores[0].note_end();
    assert_eq!(unhealthy(&shared), None, "one that has ended need not tick");
}

/// Regression: the index of a database that had been flushed stayed until the last client that had used it said
/// something again.
#[test]
fn clients_that_say_nothing_keep_no_database_that_was_replaced() {
    let (shared, mut core, [mut user, mut watcher, mut waiter, mut bystander]) = with_clients();
    shared.databases.get(1).unwrap();
    user.write_all(b"SET k 1\r\n").unwrap();
    watcher.write_all(b"WATCH k\r\nMULTI\r\nSET k 2\r\n").unwrap();
    waiter.write_all(b"BZPOPMIN z 0\r\n").unwrap();
    bystander.write_all(b"SELECT 1\r\nWATCH k\r\nMULTI\r\nSET k 3\r\n").unwrap();
    let mut events = Events::with_capacity(16);
    let mut serve = |core: &mut Core, calls| {
        let rounds = (0..1_000).take_while(|_| shared.total_calls() < calls).map(|_| core.round(&mut events)).count();
        assert!(rounds < 1_000, "there were {} calls", shared.total_calls());
    };
    serve(&mut core, 7);
    let used = |connection: &Connection| connection.session.database.as_ref().map(|(_, database)| Arc::downgrade(database));
    let kept: Vec<_> = core.connections.iter().flatten().filter_map(|connection| used(connection)).collect();
    assert_eq!(kept.iter().filter(|database| database.strong_count() > 0).count(), 4);
    shared.databases.flush(0).unwrap();
    core.tick();
    let left: Vec<_> = kept.iter().map(|database| database.upgrade().map(|database| database.index)).collect();
    assert_eq!(left, [None, None, None, Some(1)], "one is still watched, in the other database");
    // They go on as if they had noticed it themselves.
    user.write_all(b"GET k\r\nZADD z 1 m\r\n").unwrap();
    watcher.write_all(b"EXEC\r\nGET k\r\n").unwrap();
    bystander.write_all(b"EXEC\r\n").unwrap();
    serve(&mut core, 13);
    // The client that waits was woken meanwhile.
    core.rouse();
    core.serve();
    core.settle();
    let expected = [
        "+OK\r\n$-1\r\n:1\r\n",
        "+OK\r\n+OK\r\n+QUEUED\r\n*-1\r\n$-1\r\n",
        "*3\r\n$1\r\nz\r\n$1\r\nm\r\n$1\r\n1\r\n",
        "+OK\r\n+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n",
    ];
    for (mut client, expected) in [user, watcher, waiter, bystander].into_iter().zip(expected) {
        let mut replies = vec![0; expected.len()];
        client.read_exact(&mut replies).unwrap();
        assert_eq!(String::from_utf8_lossy(&replies), expected);
    }
}
