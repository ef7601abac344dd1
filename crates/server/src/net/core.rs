//! The event loop of one thread.
//!
//! A round waits for events, then reads and runs the commands of all connections that have some, then sends what need
//! not wait. Up to [`GROUP`] such connections are all read before the first one's commands run, so that the store can
//! begin to load what the commands lead to.
//!
//! Replies that rest on what is not yet durable are held. The loop requests durability for all of them at once: when
//! nothing has arrived that could be served first, or after the round in which [`GATHER`] ends. What is written by then
//! shares one sync. This delays the request by one round at most, and only while there is work.
//!
//! Sockets are registered once, edge-triggered.

mod admission;

use super::connection::{Connection, Room};
use super::refusals::Refusals;
use super::tls::HANDSHAKE_TIME;
use crate::events::{self, Level};
use crate::session::Session;
use crate::shared::{CoreStats, Shared};
use hither::Error;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long the loop waits, once the server stops, for replies that have not left.
pub const LINGER: Duration = Duration::from_secs(3);
/// How often the loop looks for kills, time-outs and a stop.
const TICK: Duration = Duration::from_millis(100);
/// How long a thread begins further rounds before it requests durability for the oldest write: about as long as a sync
/// takes on a fast disk.
const GATHER: Duration = Duration::from_micros(100);
/// How long accepting pauses when there are no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Number of clients that are read before the first of them is served: as many as an index looks up at once.
const GROUP: usize = 16;
/// Bytes that are read ahead from each of them.
const EARLY_BYTES: usize = 16 << 10;

const WAKE: Token = Token(0);
/// Connections have the tokens from here on; listeners have tokens below.
const FIRST_CONNECTION: usize = 1024;

/// What other threads leave for this one.
struct Mailbox {
    waker: Waker,
    /// New connections; the last part says whether with TLS.
    arrivals: Mutex<Vec<(TcpStream, SocketAddr, bool)>>,
    connections: AtomicUsize,
    /// A requested commit is done: set by the committer's callback, and at each tick while replies wait; cleared by the
    /// loop.
    committed: AtomicBool,
    /// Why a commit failed; never cleared.
    failure: Mutex<Option<String>>,
}

type Listeners = Vec<(TcpListener, bool)>;

/// The event loop of one thread.
pub struct Core {
    index: usize,
    shared: Arc<Shared>,
    poll: Poll,
    mailboxes: Vec<Arc<Mailbox>>,
    /// The listeners, each with whether it is for TLS.
    listeners: Weak<Listeners>,
    /// The first thread owns the listeners: their events come to it, and they are closed when it ends, whatever keeps
    /// the other threads.
    own_listeners: Option<Arc<Listeners>>,
    connections: Vec<Option<Box<Connection>>>,
    free: Vec<usize>,
    /// Connections to be served in this round; `to_flush`: those to be sent to.
    to_serve: Vec<usize>,
    to_flush: Vec<usize>,
    /// Connections with replies that wait for durability.
    holding: Vec<usize>,
    /// Deadlines of waiting commands, with the slots of their connections.
    deadlines: BTreeSet<(Instant, usize)>,
    /// The newest version that a client's write or read rests on, including clients that have gone since.
    wanted: u64,
    /// Since when `wanted` is above what was requested.
    unasked_since: Option<Instant>,
    room: Room,
    /// Read-ahead bytes of the clients of a group, [`EARLY_BYTES`] for each.
    early: Vec<u8>,
    /// When this round began, for uses that need not be exact: reading the clock for each client would cost as much as
    /// a small command.
    now: Instant,
    last_tick: Instant,
    /// The databases' generation at the last tick.
    generation: u64,
    accept_at: Option<Instant>,
    refusals: Refusals,
}

/// Makes the loops of a server; the first one receives the events of the listeners.
pub fn make(shared: &Arc<Shared>, mut listeners: Listeners, count: usize) -> std::io::Result<Vec<Core>> {
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
    for (number, (listener, _)) in listeners.iter_mut().enumerate() {
        polls[0].registry().register(listener, Token(1 + number), Interest::READABLE)?;
    }
    let listeners = Arc::new(listeners);
    for (index, mailbox) in mailboxes.iter().enumerate() {
        let mailbox: Arc<Mailbox> = mailbox.clone();
        // If waking fails, the next tick looks.
        shared.waiting.set_ring(index, move || drop(mailbox.waker.wake()));
    }
    let mut cores = Vec::new();
    for (index, poll) in polls.into_iter().enumerate() {
        cores.push(Core {
            index,
            shared: shared.clone(),
            poll,
            mailboxes: mailboxes.clone(),
            listeners: Arc::downgrade(&listeners),
            own_listeners: (index == 0).then(|| listeners.clone()),
            connections: Vec::new(),
            free: Vec::new(),
            to_serve: Vec::new(),
            to_flush: Vec::new(),
            holding: Vec::new(),
            deadlines: BTreeSet::new(),
            wanted: 0,
            unasked_since: None,
            room: Room::default(),
            early: vec![0; EARLY_BYTES * GROUP],
            now: Instant::now(),
            last_tick: Instant::now(),
            generation: 0,
            accept_at: None,
            refusals: Refusals::default(),
        });
    }
    Ok(cores)
}

impl Core {
    /// Serves until the server stops and its replies have left.
    pub fn run(&mut self) {
        let mut events = Events::with_capacity(1024);
        while !self.shared.stopping.load(Ordering::Acquire) {
            self.round(&mut events);
        }
        (self.listeners, self.own_listeners) = (Weak::new(), None);
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

    /// Ends the wait for replies: clients that have not received everything by now do not learn what became of their
    /// last commands.
    fn give_up(&mut self) {
        self.refusals.log();
        for connection in self.connections.iter().flatten() {
            let why = format!("the server ends, and {} bytes of replies have not left", connection.outbox.waiting());
            connection.session.client.log_closed(Level::Warn, &why);
        }
    }

    fn round(&mut self, events: &mut Events) {
        if let Err(error) = self.await_events(events)
            && error.kind() != ErrorKind::Interrupted
        {
            // Nothing can be learnt about any connection any more.
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
        self.shared.settings.latency.note_since("loop", self.now);
    }

    /// Waits until there is something to do; requests durability for what was written before it does.
    fn await_events(&mut self, events: &mut Events) -> std::io::Result<()> {
        if let Some(since) = self.unasked_since {
            if since.elapsed() < GATHER {
                self.poll.poll(events, Some(Duration::ZERO))?;
                if !events.is_empty() || !self.to_serve.is_empty() {
                    return Ok(());
                }
            }
            self.request_commit(since);
        }
        let wait = self.patience();
        self.poll.poll(events, Some(wait))
    }

    /// How long the loop may wait for events: not beyond anything that is due by itself.
    fn patience(&self) -> Duration {
        if !self.to_serve.is_empty() || !self.to_flush.is_empty() {
            return Duration::ZERO;
        }
        let deadline = self.deadlines.first().map(|(deadline, _)| *deadline);
        let due = deadline.into_iter().chain(self.accept_at).min();
        due.map_or(TICK, |due| TICK.min(due.saturating_duration_since(Instant::now())))
    }

    fn note(&mut self, slot: usize, readable: bool, hung_up: bool) {
        let Some(Some(connection)) = self.connections.get_mut(slot) else { return };
        if hung_up {
            connection.note_hung_up();
        }
        if readable {
            connection.note_readable();
            // Serving a connection queues it for sending, too.
            self.to_serve.push(slot);
        } else {
            self.to_flush.push(slot);
        }
    }

    /// Has waiting commands run again whose clients were woken or whose deadlines have passed.
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
        let mut slots = std::mem::take(&mut self.to_serve);
        // A connection that had commands left over from the last round may have had an event since.
        slots.sort_unstable();
        slots.dedup();
        for group in slots.chunks(GROUP) {
            self.receive(group);
            self.room.ended = None;
            for (number, slot) in group.iter().enumerate() {
                self.serve_one(*slot, number);
            }
        }
        // Keeps the buffer.
        if self.to_serve.is_empty() {
            slots.clear();
            self.to_serve = slots;
        }
    }

    /// Reads ahead from a group of clients, so that the store can begin to load what all of their first requests will
    /// touch.
    fn receive(&mut self, group: &[usize]) {
        if group.len() < 2 {
            return;
        }
        for (early, slot) in self.early.chunks_exact_mut(EARLY_BYTES).zip(group) {
            if let Some(Some(connection)) = self.connections.get_mut(*slot) {
                connection.receive(early);
            }
        }
        let (mut keys, mut count, mut sessions) = ([&[][..]; GROUP], 0, None::<&Session>);
        for (early, slot) in self.early.chunks_exact(EARLY_BYTES).zip(group) {
            let Some(Some(connection)) = self.connections.get(*slot) else { continue };
            let Some(key) = connection.key_to_come(early) else { continue };
            // Nearly all clients use one database.
            if sessions.get_or_insert(&connection.session).index == connection.session.index {
                keys[count] = key;
                count += 1;
            }
        }
        if let Some(session) = sessions.filter(|_| count > 1) {
            session.prefetch(&keys[..count]);
        }
    }

    /// Serves a client; `number` is its place in its group.
    fn serve_one(&mut self, slot: usize, number: usize) {
        let Some(Some(connection)) = self.connections.get_mut(slot) else { return };
        let (before, held_before) = (connection.deadline(), connection.outbox.is_holding());
        let early = &self.early[number * EARLY_BYTES..][..EARLY_BYTES];
        let again = connection.serve(&self.shared, early, &mut self.room, self.now);
        let after = connection.deadline();
        if before != after {
            before.map(|deadline| self.deadlines.remove(&(deadline, slot)));
            after.map(|deadline| self.deadlines.insert((deadline, slot)));
        }
        if again {
            self.to_serve.push(slot);
        }
        if connection.outbox.is_holding() {
            if !held_before {
                self.holding.push(slot);
            }
            let newest = connection.outbox.newest_held();
            if newest > self.wanted {
                self.wanted = newest;
                self.unasked_since.get_or_insert(self.now);
            }
        }
        self.to_flush.push(slot);
    }

    /// Sends what need not wait.
    fn settle(&mut self) {
        let mut slots = std::mem::take(&mut self.to_flush);
        slots.sort_unstable();
        slots.dedup();
        for slot in slots.drain(..) {
            let Some(Some(connection)) = self.connections.get_mut(slot) else { continue };
            if connection.flush(&self.shared, self.now) {
                self.to_flush.push(slot);
            }
            connection.publish();
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

    /// Makes one request for everything that waits; `since` is when the oldest of it began to wait.
    fn request_commit(&mut self, since: Instant) {
        self.unasked_since = None;
        // A slot is there twice if another client has taken it over meanwhile.
        self.holding.sort_unstable();
        self.holding.dedup();
        let stats = &self.shared.cores[self.index];
        CoreStats::add(&stats.deferred, 1);
        let (mailbox, shared, index) = (self.mailboxes[self.index].clone(), self.shared.clone(), self.index);
        self.shared.databases.db.ticket_at(self.wanted).on_durable(move |outcome| {
            shared.cores[index].waited_ns.fetch_add(since.elapsed().as_nanos() as u64, Ordering::Relaxed);
            shared.settings.latency.note("durability-wait", since.elapsed());
            if let Err(error) = outcome {
                // Why the sync failed, without the consequence that the error's text adds.
                let why = match error {
                    Error::SyncFailed(why) => why,
                    error => error.to_string(),
                };
                shared.note_failed_sync(&why);
                *mailbox.failure.lock() = Some(why);
            }
            mailbox.committed.store(true, Ordering::Release);
            // If waking fails, the next tick looks.
            let _ = mailbox.waker.wake();
        });
    }

    fn take_mail(&mut self) {
        let mailbox = self.mailboxes[self.index].clone();
        if mailbox.committed.swap(false, Ordering::AcqRel) {
            let durable = self.shared.databases.db.durable_version();
            // A failure is permanent: later replies get it, too.
            let failure = mailbox.failure.lock().clone();
            let holding = std::mem::take(&mut self.holding);
            for slot in holding {
                let Some(Some(connection)) = self.connections.get_mut(slot) else { continue };
                match &failure {
                    None => connection.outbox.release(durable),
                    Some(why) => connection.outbox.fail(durable, &Error::SyncFailed(why.clone())),
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

    fn close(&mut self, slot: usize) {
        let Some(mut connection) = self.connections[slot].take() else { return };
        connection.deadline().map(|deadline| self.deadlines.remove(&(deadline, slot)));
        // Dropping the connection closes it, whatever these return.
        connection.channel.finish();
        let _ = self.poll.registry().deregister(&mut connection.channel.stream);
        self.shared.clients.remove(connection.session.client.id);
        self.mailboxes[self.index].connections.fetch_sub(1, Ordering::Relaxed);
        self.free.push(slot);
    }

    /// Reads the certificates again at SIGHUP, or when the files have changed.
    fn reload_if_need_be(&self) {
        let asked = self.shared.reload.swap(false, Ordering::AcqRel);
        let Some(tls) = self.shared.tls.as_ref().filter(|tls| tls.is_changed() || asked) else { return };
        match tls.reload() {
            Ok(()) => events::log(Level::Info, "certificates-reloaded", &[]),
            Err(why) => events::log(Level::Error, "certificates-kept", &[("why", &why)]),
        }
    }

    /// Closes clients that were killed or idle for too long, and handles pauses that are over and wakes that failed.
    fn tick(&mut self) {
        self.last_tick = Instant::now();
        self.shared.cores[self.index].alive_ms.store(self.shared.uptime_ms(), Ordering::Relaxed);
        self.refusals.log_if_due();
        if self.index == 0 {
            events::tell_left_out();
            self.shared.rate.note(self.last_tick, self.shared.total_calls());
            self.reload_if_need_be();
        } else if self.shared.cores[0].is_held_up(self.shared.uptime_ms()) {
            self.accept();
        }
        if !self.holding.is_empty() {
            self.mailboxes[self.index].committed.store(true, Ordering::Release);
        }
        let generation = self.shared.databases.generation();
        if std::mem::replace(&mut self.generation, generation) != generation {
            self.connections.iter_mut().flatten().for_each(|connection| connection.session.let_go_of_replaced());
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

#[cfg(test)]
mod tests;
