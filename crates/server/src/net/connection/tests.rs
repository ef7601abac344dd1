use super::*;
use crate::config::Config;

/// A connection, with the other end of its socket.
fn connection() -> (Arc<Shared>, Connection, std::net::TcpStream) {
    let shared = Shared::new(hither::Db::builder().in_memory().open().unwrap(), Config::default(), 1).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let other = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let stream = listener.accept().unwrap().0;
    stream.set_nonblocking(true).unwrap();
    let client = shared.clients.add("test".into(), "test".into(), 0);
    let session = Session::new(shared.clone(), client);
    (shared, Connection::new(Channel::plain(mio::net::TcpStream::from_std(stream)), session), other)
}

/// Takes requests in, in as many turns as they need where the machine is busy.
fn take_all_in(shared: &Arc<Shared>, connection: &mut Connection, requests: &str) {
    let begin = |connection: &mut Connection| (connection.cut, connection.session.began) = (false, None);
    begin(connection);
    connection.take_in(shared, requests.as_bytes(), &mut Ahead::default());
    while connection.cut && !connection.input.is_empty() {
        begin(connection);
        connection.run_input(shared, &mut Ahead::default());
    }
}

/// Regression: the room for a large request was given back at its second part, and made again in steps.
#[test]
fn room_for_a_large_request_is_kept_until_it_is_done() {
    let (shared, mut connection, _other) = connection();
    let mut ahead = Ahead::default();
    let mut request = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1048576\r\n".to_vec();
    request.resize(request.len() + (1 << 20), b'x');
    request.extend_from_slice(b"\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$9\r\nx");
    let mut parts = request.chunks(READ_BYTES);
    connection.take_in(&shared, parts.next().unwrap(), &mut ahead);
    let room = connection.input.capacity();
    assert!(room >= 1 << 20);
    for part in parts {
        assert_eq!(connection.input.capacity(), room);
        connection.take_in(&shared, part, &mut ahead);
    }
    assert_eq!((connection.outbox.ready(), connection.input.len()), (&b"+OK\r\n"[..], 25));
    assert!(connection.input.capacity() < room / 2, "it is done");
}

/// Regression: a client that read nothing was never idle.
#[test]
fn who_does_not_read_is_idle_and_who_waits_for_a_sync_is_not() {
    let (_shared, mut connection, _other) = connection();
    let mut reply = |version| {
        let start = connection.outbox.bytes.len();
        connection.outbox.bytes.extend_from_slice(b"+OK\r\n");
        connection.outbox.appended(start, version);
        connection.publish();
        let client = &connection.session.client;
        (connection.may_be_idle(), client.output_bytes.load(Ordering::Relaxed))
    };
    assert_eq!(reply(7), (false, 5));
    assert_eq!(reply(8), (false, 10));
    connection.outbox.release(7);
    assert!(connection.may_be_idle(), "the first could be read");
    connection.outbox.sent(5);
    assert!(!connection.may_be_idle());
}

/// Regression: a client that read as fast as the server sent kept the thread until all of its replies had left.
#[test]
fn a_turn_sends_a_part_of_long_replies() {
    use std::io::Read;
    let (shared, mut connection, mut other) = connection();
    connection.outbox.bytes = b"+OK\r\n".repeat(5);
    connection.outbox.appended(0, 0);
    let turns: Vec<_> = (0..3).map(|_| (connection.send(10, Instant::now()), connection.outbox.waiting())).collect();
    assert_eq!(turns, [(true, 15), (true, 5), (false, 0)]);
    connection.outbox.bytes = vec![b'x'; 2 * SENT_BYTES];
    connection.outbox.appended(0, 0);
    connection.flush(&shared, Instant::now());
    assert!(connection.outbox.waiting() >= SENT_BYTES, "a turn's bytes are left");
    let mut replies = [0; 25];
    other.read_exact(&mut replies).unwrap();
    assert_eq!(replies[..], *b"+OK\r\n".repeat(5));
}

/// Regression: what a turn had left of a reply counted, before the next turn, against a client that read as fast as the
/// server sent.
#[test]
fn more_than_max_output_may_wait_for_the_next_turn_but_not_for_the_client() {
    let (shared, mut connection, _other) = connection();
    shared.settings.max_output_bytes.store(12, Ordering::Relaxed);
    connection.outbox.bytes = b"+OK\r\n".repeat(5);
    connection.outbox.appended(0, 0);
    assert!(connection.flush_up_to(10, &shared, Instant::now()) && !connection.broken, "15 are left");
    assert!(!connection.flush_up_to(100, &shared, Instant::now()) && !connection.broken);
    connection.outbox.bytes = vec![b'x'; 64 << 20];
    connection.outbox.appended(0, 0);
    while connection.flush(&shared, Instant::now()) {}
    assert!(connection.broken && connection.outbox.waiting() > 12, "it does not read");
}

/// Regression: a client that had hung up while its command waited took what came in the same turn.
#[test]
fn who_has_hung_up_takes_nothing() {
    let (shared, mut connection, _other) = connection();
    let (mut room, now) = (Room::default(), Instant::now());
    connection.take_in(&shared, b"BZPOPMIN z 0\r\n", &mut Ahead::default());
    assert!(connection.session.is_waiting());
    connection.note_hung_up();
    let client = shared.clients.add("test".into(), "test".into(), 0);
    let mut session = Session::new(shared.clone(), client);
    session.execute(&shared, Args::new(b"ZADDz1m", &[0..4, 4..5, 5..6, 6..7]), &mut Vec::new());
    connection.rouse();
    connection.serve(&shared, &[], &mut room, now);
    assert!(connection.session.closing && !connection.session.is_waiting());
    let mut reply = Vec::new();
    session.execute(&shared, Args::new(b"ZCARDz", &[0..5, 5..6]), &mut reply);
    assert_eq!(reply, b":1\r\n");
}

/// Regression: anybody who could connect could make the server hold a MiB of errors.
#[test]
fn little_is_held_for_who_has_not_logged_in() {
    let (shared, mut connection, _other) = connection();
    shared.acl().set_default_password(Some("secret"));
    connection.session.reset();
    let mut ahead = Ahead::default();
    for _ in 0..100 {
        connection.take_in(&shared, &b"PING\r\n".repeat(10_000), &mut ahead);
        let (waiting, room) = (connection.outbox.waiting(), connection.outbox.bytes.capacity());
        assert!(waiting <= 17 << 10 && room <= 64 << 10, "{waiting} bytes wait in {room}");
        connection.stalled |= connection.is_paused();
        // The client reads a little at a time.
        connection.outbox.sent(waiting / 2);
        assert!(connection.can_go_on());
        connection.input.clear();
    }
    connection.outbox.sent(connection.outbox.waiting());
    take_all_in(&shared, &mut connection, "AUTH secret\r\nPING\r\n");
    assert_eq!(connection.outbox.ready(), b"+OK\r\n+PONG\r\n");
}

/// Regression: a client that had read everything was closed because a sync took long.
#[test]
fn replies_that_wait_for_a_sync_do_not_count_against_max_output() {
    let (shared, mut connection, _other) = connection();
    shared.settings.max_output_bytes.store(12, Ordering::Relaxed);
    connection.outbox.bytes = b"+OK\r\n".repeat(5);
    connection.outbox.appended(0, 7);
    assert!(!connection.flush(&shared, Instant::now()) && !connection.broken);
    connection.outbox.release(7);
    assert!(!connection.flush(&shared, Instant::now()) && !connection.broken);
    assert_eq!(connection.outbox.waiting(), 0);
}

/// Regression: up to a MiB of replies waited for a sync, which exceeded a smaller max-output once the sync was done.
#[test]
fn no_more_waits_for_a_sync_than_may_wait_for_the_client() {
    let (shared, mut connection, _other) = connection();
    connection.outbox.bytes = b"+OK\r\n".repeat(7_000);
    connection.outbox.appended(0, 7);
    let mut is_paused_with = |max_output| {
        shared.settings.max_output_bytes.store(max_output, Ordering::Relaxed);
        connection.flush(&shared, Instant::now());
        connection.is_paused()
    };
    assert!(!is_paused_with(1 << 20));
    assert!(is_paused_with(64 << 10), "more than half of it is there");
    assert!(!is_paused_with(0), "there is no bound");
}

/// What was read ahead of a connection's turn belongs to that connection, even if its bound has changed since or its
/// replies have become too many. If a later turn took the buffer, it would run what another client has sent.
#[test]
fn what_has_arrived_is_taken_in_whatever_has_changed_since() {
    use std::io::Write;
    let (shared, mut connection, mut other) = connection();
    let (mut room, mut early, now) = (Room::default(), [0; 100], Instant::now());
    other.write_all(b"SET a 1\r\n").unwrap();
    connection.note_readable();
    while connection.arrived.as_ref().is_none_or(|read| read.is_err()) {
        connection.arrived = None;
        connection.receive(&mut early);
    }
    connection.outbox.bytes = b"+OK\r\n".repeat(2_000);
    connection.outbox.appended(0, 7);
    connection.most_held = 8 << 10;
    assert!(connection.is_paused());
    connection.serve(&shared, &early, &mut room, now);
    assert!(connection.arrived.is_none() && connection.stalled);
    connection.outbox.release(7);
    connection.outbox.sent(connection.outbox.waiting());
    connection.serve(&shared, b"SET b 2\r\n", &mut room, now);
    let client = shared.clients.add("test".into(), "test".into(), 0);
    let mut reply = Vec::new();
    Session::new(shared.clone(), client).execute(&shared, Args::new(b"EXISTSab", &[0..6, 6..7, 7..8]), &mut reply);
    assert_eq!(reply, b":1\r\n");
    assert_eq!(connection.outbox.ready(), b"+OK\r\n");
}

/// Regression: the room for a reply that CLIENT REPLY had suppressed stayed as long as the connection.
#[test]
fn a_suppressed_reply_leaves_no_room_behind() {
    let (shared, mut connection, _other) = connection();
    for (lines, sent) in [("CLIENT REPLY SKIP\r\nGET k\r\n", ""), ("PING\r\nCLIENT REPLY OFF\r\nGET k\r\n", "+PONG\r\n")] {
        take_all_in(&shared, &mut connection, "SETRANGE k 99999 x\r\n");
        connection.flush(&shared, Instant::now());
        take_all_in(&shared, &mut connection, lines);
        assert_eq!(connection.outbox.ready(), sent.as_bytes());
        connection.flush(&shared, Instant::now());
        let room = connection.outbox.bytes.capacity();
        assert!(connection.outbox.waiting() == 0 && room <= 4 << 10, "{room} bytes for {lines}");
    }
}

/// Regression: SKIP ended with RESET, which was answered; in Redis it holds until its command has been.
#[test]
fn a_reset_behind_skip_is_not_answered_and_one_behind_off_is() {
    let (shared, mut connection, _other) = connection();
    take_all_in(&shared, &mut connection, "CLIENT REPLY SKIP\r\nRESET\r\nPING\r\nCLIENT REPLY OFF\r\nPING\r\nRESET\r\n");
    assert_eq!(connection.outbox.ready(), b"+PONG\r\n+RESET\r\n");
}

/// Has the connection's waiting command run again, as its thread does when it wakes the client, and returns the answer.
fn roused(shared: &Arc<Shared>, connection: &mut Connection) -> String {
    connection.rouse();
    connection.serve(shared, &[], &mut Room::default(), Instant::now());
    let answer = String::from_utf8(connection.outbox.ready().to_vec()).unwrap();
    connection.outbox.sent(answer.len());
    answer
}

/// Regression: a wait that had ended was answered only after the pause.
#[test]
fn a_wait_ends_during_a_pause_and_takes_nothing() {
    let (shared, mut connection, _other) = connection();
    let pause = crate::pause::Pause { until_ms: u64::MAX, writes_only: true };
    for (refuse, answer) in [(false, "*-1\r\n"), (true, "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n")] {
        take_all_in(&shared, &mut connection, "BZPOPMIN z 0\r\n");
        shared.pause.begin(pause);
        assert_eq!((roused(&shared, &mut connection), connection.is_held()), (String::new(), true), "it goes on");
        assert!(shared.waiting.unblock(&connection.session.client, refuse));
        assert_eq!((roused(&shared, &mut connection), connection.is_held()), (answer.to_owned(), false));
        shared.pause.end();
    }
    // What has come just before the pause stays where it is.
    take_all_in(&shared, &mut connection, "BZMPOP 0.001 1 z MIN\r\n");
    let client = shared.clients.add("test".into(), "test".into(), 0);
    let mut other = Session::new(shared.clone(), client);
    other.execute(&shared, Args::new(b"ZADDz1m", &[0..4, 4..5, 5..6, 6..7]), &mut Vec::new());
    shared.pause.begin(pause);
    while connection.deadline().is_some_and(|deadline| deadline > Instant::now()) {
        std::thread::yield_now();
    }
    assert_eq!(roused(&shared, &mut connection), "*-1\r\n");
    shared.pause.end();
    take_all_in(&shared, &mut connection, "ZCARD z\r\nBZPOPMIN z 0\r\n");
    assert_eq!(connection.outbox.ready(), b":1\r\n*3\r\n$1\r\nz\r\n$1\r\nm\r\n$1\r\n1\r\n");
}

/// Regression: what a client had asked for before the pause was done, but it was told only afterwards.
#[test]
fn who_waits_for_a_change_or_a_save_is_answered_during_a_pause() {
    use crate::changes::Change;
    let (shared, mut connection, _other) = connection();
    let nobody = shared.clients.add("test".into(), "test".into(), 0);
    for line in ["FLUSHALL\r\n", "SWAPDB 0 1\r\n", "SAVE\r\n"] {
        // Changes wait until the client does.
        let barrier: &std::sync::Barrier = Box::leak(Box::new(std::sync::Barrier::new(2)));
        shared.changes.begin(&shared, Change::Hold(3, barrier), &nobody).unwrap();
        barrier.wait();
        take_all_in(&shared, &mut connection, line);
        shared.pause.begin(crate::pause::Pause { until_ms: u64::MAX, writes_only: false });
        barrier.wait();
        shared.changes.finish();
        shared.saving.join();
        assert_eq!(roused(&shared, &mut connection), "+OK\r\n", "{line}");
        take_all_in(&shared, &mut connection, line);
        assert!(connection.is_held() && connection.outbox.ready().is_empty(), "the next one is held up");
        (connection.input, connection.held) = (Vec::new(), false);
        shared.pause.end();
    }
}
