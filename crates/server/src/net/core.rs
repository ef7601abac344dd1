//! The event loop of one thread.
//!
//! A round: wait for events; read and run the commands of all connections that have some; ask once for the durability of all that they rest on; send.
//! Sockets are registered once, edge-triggered.

use super::ahead::Ahead;
use super::connection::{Connection, READ_BYTES};
use super::refusals::Refusals;
use super::tls::{Channel, HANDSHAKE_TIME};
use crate::events::{self, Level};
use crate::session::Session;
use crate::shared::{CoreStats, Shared, now_ms};
use hither::Error;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long replies that wait are waited for at the end.
pub const LINGER: Duration = Duration::from_secs(3);
/// How often kills, time-outs and a stop are looked for.
const TICK: Duration = Duration::from_millis(100);
/// Until accepting is tried again when there are no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const WAKE: Token = Token(0);
/// Connections have the tokens from here on, listeners those below.
const FIRST_CONNECTION: usize = 1024;

/// What others leave for a thread.
struct Mailbox {
    waker: Waker,
    /// The last says whether with TLS.
    arrivals: Mutex<Vec<(TcpStream, SocketAddr, bool)>>,
    connections: AtomicUsize,
    /// A commit that was asked for is done.
    committed: AtomicBool,
    /// Why it failed.
    failure: Mutex<Option<String>>,
}

/// One thread's loop.
pub struct Core {
    index: usize,
    shared: Arc<Shared>,
    poll: Poll,
    mailboxes: Vec<Arc<Mailbox>>,
    /// Each with whether it is for TLS.
    listeners: Vec<(TcpListener, bool)>,
    connections: Vec<Option<Box<Connection>>>,
    free: Vec<usize>,
    /// Connections to be served, and to be sent to, in this round.
    to_serve: Vec<usize>,
    to_flush: Vec<usize>,
    /// Connections with replies that wait for durability.
    holding: Vec<usize>,
    /// When commands that wait must wait no longer, with their connections.
    deadlines: BTreeSet<(Instant, usize)>,
    /// A commit was asked for up to here.
    asked: u64,
    scratch: Vec<u8>,
    ahead: Ahead,
    /// When this round began. For what need not be exact: reading the clock for each client would cost as much as a small command.
    now: Instant,
    last_tick: Instant,
    accept_at: Option<Instant>,
    refusals: Refusals,
}

/// The loops of a server; the first one gets the listeners.
pub fn make(shared: &Arc<Shared>, mut listeners: Vec<(TcpListener, bool)>, count: usize) -> std::io::Result<Vec<Core>> {
    let mut polls = Vec::new();
    let mut mailboxes = Vec::new();
    for _ in 0..count {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        mailboxes.push(Arc::new(Mailbox {
            waker,
            arrivals: Mutex::default(),
            connections: AtomicUsize::new(0),
            committed: AtomicBool::new(false),
            failure: Mutex::default(),
        }));
        polls.push(poll);
    }
    for (index, mailbox) in mailboxes.iter().enumerate() {
        let mailbox: Arc<Mailbox> = mailbox.clone();
        // If that fails, the next tick looks.
        shared.waiting.set_ring(index, move || drop(mailbox.waker.wake()));
    }
    let mut cores = Vec::new();
    for (index, poll) in polls.into_iter().enumerate() {
        let mut own = std::mem::take(&mut listeners);
        for (number, (listener, _)) in own.iter_mut().enumerate() {
            poll.registry().register(listener, Token(1 + number), Interest::READABLE)?;
        }
        cores.push(Core {
            index,
            shared: shared.clone(),
            poll,
            mailboxes: mailboxes.clone(),
            listeners: own,
            connections: Vec::new(),
            free: Vec::new(),
            to_serve: Vec::new(),
            to_flush: Vec::new(),
            holding: Vec::new(),
            deadlines: BTreeSet::new(),
            asked: 0,
            scratch: vec![0; READ_BYTES],
            ahead: Ahead::default(),
            now: Instant::now(),
            last_tick: Instant::now(),
            accept_at: None,
            refusals: Refusals::default(),
        });
    }
    Ok(cores)
}

impl Core {
    /// Serves until the end.
    pub fn run(&mut self) {
        let mut events = Events::with_capacity(1024);
        while !self.shared.stopping.load(Ordering::Acquire) {
            self.round(&mut events);
        }
        self.listeners.clear();
        let end = Instant::now() + LINGER;
        for slot in 0..self.connections.len() {
            if let Some(connection) = &mut self.connections[slot] {
                connection.session.closing = true;
                self.to_flush.push(slot);
            }
        }
        self.settle();
        while self.connections.iter().any(Option::is_some) && Instant::now() < end {
            self.round(&mut events);
        }
        self.give_up();
    }

    /// The end does not wait any longer: whoever was not sent everything by now is not told what became of its last commands.
    fn give_up(&mut self) {
        self.refusals.log();
        for connection in self.connections.iter().flatten() {
            let why = format!("the server ends, and {} bytes of replies have not left", connection.outbox.waiting());
            connection.session.client.log_closed(Level::Warn, &why);
        }
    }

    fn round(&mut self, events: &mut Events) {
        let due = self.deadlines.first().map_or(TICK, |(deadline, _)| deadline.saturating_duration_since(Instant::now()));
        let wait = if self.to_serve.is_empty() { TICK.min(due) } else { Duration::ZERO };
        if let Err(error) = self.poll.poll(events, Some(wait))
            && error.kind() != ErrorKind::Interrupted
        {
            // Nothing can be known of any connection any more.
            self.shared.fail_stop(&format!("a thread can no longer wait for its connections: {error}"));
            return;
        }
        self.now = Instant::now();
        for event in events.iter() {
            match event.token() {
                WAKE => {}
                Token(token) if token >= FIRST_CONNECTION => {
                    let hung_up = event.is_read_closed() || event.is_error();
                    self.note(token - FIRST_CONNECTION, event.is_readable() || hung_up, hung_up)
                }
                Token(_) => self.accept_at = Some(self.now),
            }
        }
        self.take_mail();
        if self.shared.waiting.take_summons(self.index) {
            self.close_killed();
        }
        self.rouse();
        if self.accept_at.is_some_and(|at| at <= self.now) {
            self.accept();
        }
        self.serve();
        self.settle();
        if self.now.saturating_duration_since(self.last_tick) >= TICK {
            self.tick();
        }
    }

    fn note(&mut self, slot: usize, readable: bool, hung_up: bool) {
        let Some(Some(connection)) = self.connections.get_mut(slot) else { return };
        if hung_up {
            connection.note_hung_up();
        }
        if readable {
            connection.note_readable();
            self.to_serve.push(slot);
        }
        self.to_flush.push(slot);
    }

    /// Commands that wait run again if their clients were woken, or their time is over.
    fn rouse(&mut self) {
        if self.shared.waiting.is_empty() && self.shared.monitors.is_empty() {
            return;
        }
        let mut slots = self.shared.waiting.take_woken(self.index);
        let now = Instant::now();
        while let Some((_, slot)) = self.deadlines.first().filter(|(deadline, _)| *deadline <= now).copied() {
            self.deadlines.pop_first();
            slots.push(slot);
        }
        for slot in slots {
            if let Some(Some(connection)) = self.connections.get_mut(slot) {
                connection.rouse();
                self.to_serve.push(slot);
            }
        }
    }

    fn serve(&mut self) {
        let slots = std::mem::take(&mut self.to_serve);
        for slot in slots {
            let Some(Some(connection)) = self.connections.get_mut(slot) else { continue };
            let before = connection.deadline();
            let again = connection.serve(&self.shared, &mut self.scratch, &mut self.ahead, self.now);
            let after = connection.deadline();
            if before != after {
                before.map(|deadline| self.deadlines.remove(&(deadline, slot)));
                after.map(|deadline| self.deadlines.insert((deadline, slot)));
            }
            if again {
                self.to_serve.push(slot);
            }
            if connection.outbox.is_holding() {
                self.holding.push(slot);
            }
            self.to_flush.push(slot);
        }
    }

    /// Asks for durability, and sends.
    fn settle(&mut self) {
        self.request_commit();
        let mut slots = std::mem::take(&mut self.to_flush);
        slots.sort_unstable();
        slots.dedup();
        for slot in slots.drain(..) {
            let Some(Some(connection)) = self.connections.get_mut(slot) else { continue };
            connection.flush(&self.shared, self.now);
            if connection.is_over() {
                self.close(slot);
            } else if connection.can_go_on() {
                self.to_serve.push(slot);
            }
        }
        // Keeps the buffer.
        if self.to_flush.is_empty() {
            self.to_flush = slots;
        }
    }

    /// One request for all that waits, if it is not asked for already.
    fn request_commit(&mut self) {
        self.holding.sort_unstable();
        self.holding.dedup();
        let held =
            self.holding.iter().filter_map(|slot| self.connections[*slot].as_ref()).map(|connection| connection.outbox.newest_held());
        let newest = held.max().unwrap_or(0);
        if newest <= self.asked {
            return;
        }
        self.asked = newest;
        let stats = &self.shared.cores[self.index];
        CoreStats::add(&stats.deferred, 1);
        let (mailbox, shared, index, asked) = (self.mailboxes[self.index].clone(), self.shared.clone(), self.index, Instant::now());
        self.shared.databases.db.ticket_at(newest).on_durable(move |outcome| {
            shared.cores[index].waited_ns.fetch_add(asked.elapsed().as_nanos() as u64, Ordering::Relaxed);
            shared.settings.latency.note("durability-wait", asked.elapsed());
            if let Err(error) = outcome {
                // Why the sync failed, without what that means.
                let why = match error {
                    Error::ReadOnly(why) => why,
                    error => error.to_string(),
                };
                shared.note_failed_sync(&why);
                *mailbox.failure.lock() = Some(why);
            }
            mailbox.committed.store(true, Ordering::Release);
            // If that fails, the next tick looks.
            let _ = mailbox.waker.wake();
        });
    }

    fn take_mail(&mut self) {
        let mailbox = self.mailboxes[self.index].clone();
        if mailbox.committed.swap(false, Ordering::AcqRel) {
            let durable = self.shared.databases.db.durable_version();
            // A failure is for good: what is held later gets it, too.
            let failure = mailbox.failure.lock().clone();
            let holding = std::mem::take(&mut self.holding);
            for slot in holding {
                let Some(Some(connection)) = self.connections.get_mut(slot) else { continue };
                match &failure {
                    None => connection.outbox.release(durable),
                    Some(why) => connection.outbox.fail(durable, &Error::ReadOnly(why.clone())),
                }
                if connection.outbox.is_holding() {
                    self.holding.push(slot);
                }
                self.to_flush.push(slot);
            }
        }
        let arrivals = std::mem::take(&mut *mailbox.arrivals.lock());
        for (stream, peer, tls) in arrivals {
            if self.shared.stopping.load(Ordering::Acquire) {
                self.mailboxes[self.index].connections.fetch_sub(1, Ordering::Relaxed);
                self.refuse(peer, "the server ends");
            } else {
                self.admit(stream, peer, tls);
            }
        }
    }

    fn accept(&mut self) {
        self.accept_at = None;
        for number in 0..self.listeners.len() {
            loop {
                let (listener, tls) = &self.listeners[number];
                let tls = *tls;
                match listener.accept() {
                    Ok((stream, peer)) => self.hand_out(stream, peer, tls),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                    Err(error) => {
                        // Out of descriptors, most likely: others will close. Who came waits in the system's queue.
                        self.refusals.note_failure(&error);
                        self.accept_at = Some(Instant::now() + ACCEPT_PAUSE);
                        break;
                    }
                }
            }
        }
    }

    /// Gives a connection to the thread with the fewest.
    fn hand_out(&mut self, mut stream: TcpStream, peer: SocketAddr, tls: bool) {
        if let Some(refusal) = self.refusal(peer) {
            // It is closed either way.
            if !tls {
                let _ = stream.write(format!("-{refusal}\r\n").as_bytes());
            }
            self.refuse(peer, refusal);
            return;
        }
        let load = |mailbox: &Arc<Mailbox>| mailbox.connections.load(Ordering::Relaxed);
        let Some((index, mailbox)) = self.mailboxes.iter().enumerate().min_by_key(|(_, mailbox)| load(mailbox)) else { return };
        mailbox.connections.fetch_add(1, Ordering::Relaxed);
        if index == self.index {
            self.admit(stream, peer, tls);
        } else {
            mailbox.arrivals.lock().push((stream, peer, tls));
            // If that fails, the thread's next tick looks.
            let _ = mailbox.waker.wake();
        }
    }

    fn refusal(&self, peer: SocketAddr) -> Option<&'static str> {
        let settings = &self.shared.settings;
        let total: usize = self.mailboxes.iter().map(|mailbox| mailbox.connections.load(Ordering::Relaxed)).sum();
        if total >= settings.max_clients.load(Ordering::Relaxed) {
            return Some("ERR max number of clients reached");
        }
        let guarded = settings.protected_mode.load(Ordering::Relaxed) && settings.acl.is_open();
        if guarded && !peer.ip().to_canonical().is_loopback() {
            return Some(
                "DENIED hither is in protected mode: it has no password and serves this machine only. Set requirepass, or switch protected-mode off if everybody who can reach it may use it.",
            );
        }
        None
    }

    /// Takes a connection into the loop.
    fn admit(&mut self, mut stream: TcpStream, peer: SocketAddr, tls: bool) {
        // Replies are sent whole: nothing is gained by waiting for more. If it is refused, they are only later.
        let _ = stream.set_nodelay(true);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let interests = Interest::READABLE | Interest::WRITABLE;
        if let Err(error) = self.poll.registry().register(&mut stream, Token(FIRST_CONNECTION + slot), interests) {
            return self.turn_away(slot, peer, &format!("its events cannot be had: {error}"));
        }
        let local = stream.local_addr().map_or_else(|_| "?".to_owned(), |address| address.to_string());
        let channel = match &self.shared.tls {
            Some(config) if tls => config.accept(stream),
            _ => Ok(Channel::plain(stream)),
        };
        let channel = match channel {
            Ok(channel) => channel,
            // The socket was dropped, and with it its registration.
            Err(why) => return self.turn_away(slot, peer, &why),
        };
        CoreStats::add(&self.shared.cores[self.index].connections, 1);
        let client = self.shared.clients.add(peer.to_string(), local, self.index);
        client.slot.store(slot, Ordering::Relaxed);
        let session = Session::new(self.shared.clone(), client);
        self.connections[slot] = Some(Box::new(Connection::new(channel, session)));
    }

    /// Gives back the place of a connection that cannot be taken.
    fn turn_away(&mut self, slot: usize, peer: SocketAddr, why: &str) {
        self.mailboxes[self.index].connections.fetch_sub(1, Ordering::Relaxed);
        self.free.push(slot);
        self.refuse(peer, why);
    }

    /// Counts a connection that is refused, and has the log say so.
    fn refuse(&mut self, peer: SocketAddr, why: &str) {
        CoreStats::add(&self.shared.cores[self.index].rejected, 1);
        self.refusals.note(peer, why);
    }

    fn close(&mut self, slot: usize) {
        let Some(mut connection) = self.connections[slot].take() else { return };
        connection.deadline().map(|deadline| self.deadlines.remove(&(deadline, slot)));
        // It is closed by being dropped, whatever this says.
        connection.channel.finish();
        let _ = self.poll.registry().deregister(&mut connection.channel.stream);
        self.shared.clients.remove(connection.session.client.id);
        self.mailboxes[self.index].connections.fetch_sub(1, Ordering::Relaxed);
        self.free.push(slot);
    }

    /// New certificates: at SIGHUP, or because the files have changed.
    fn reload_if_need_be(&self) {
        let asked = self.shared.reload.swap(false, Ordering::AcqRel);
        let Some(tls) = self.shared.tls.as_ref().filter(|tls| tls.is_changed() || asked) else { return };
        match tls.reload() {
            Ok(()) => events::log(Level::Info, "certificates-reloaded", &[]),
            Err(why) => events::log(Level::Error, "certificates-kept", &[("why", &why)]),
        }
    }

    /// Closes clients that were killed or are idle for too long, and sees to pauses that are over and wakes that failed.
    fn tick(&mut self) {
        // A round waits for TICK at most, and comes here TICK after the last time: more is work.
        self.shared.settings.latency.note("loop", self.last_tick.elapsed().saturating_sub(2 * TICK));
        self.last_tick = Instant::now();
        self.shared.cores[self.index].alive_ms.store(now_ms(), Ordering::Relaxed);
        self.refusals.log_if_due();
        if self.index == 0 {
            events::tell_left_out();
            self.reload_if_need_be();
        }
        if !self.holding.is_empty() {
            self.mailboxes[self.index].committed.store(true, Ordering::Release);
        }
        let timeout_s = self.shared.settings.timeout_s.load(Ordering::Relaxed);
        for slot in 0..self.connections.len() {
            let Some(connection) = &self.connections[slot] else { continue };
            let client = &connection.session.client;
            if timeout_s != 0 && connection.may_be_idle() && client.idle() >= Duration::from_secs(timeout_s) {
                client.kill(Level::Info, &format!("nothing came from it for {timeout_s} s (timeout)"));
            } else if connection.channel.is_handshaking() && client.connected.elapsed() >= HANDSHAKE_TIME {
                client.kill(Level::Info, &format!("its TLS handshake has taken {} s", HANDSHAKE_TIME.as_secs()));
            }
            if connection.is_held() {
                self.to_serve.push(slot);
            }
        }
        self.close_killed();
    }

    fn close_killed(&mut self) {
        for slot in 0..self.connections.len() {
            if self.connections[slot].as_ref().is_some_and(|connection| connection.session.client.is_killed()) {
                self.close(slot);
            }
        }
    }
}
