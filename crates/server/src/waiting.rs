//! Clients whose commands wait: for members of sorted sets (BZPOPMIN, BZPOPMAX, BZMPOP), for time (WAIT), for
//! background work (SAVE, FLUSHDB: [`crate::changes`]).
//!
//! # How it works
//!
//! A command that has nothing to answer yet fails with `Failure::Wait`. The session then *enters* the queues of the
//! keys that the command waits for, and runs it once more, because something may have arrived in between. If that fails
//! in the same way, the client sleeps: its request stays in its connection's buffer, nothing behind it is read, and its
//! thread goes on with other clients. When the client is woken, the request runs once more, as if it had just arrived,
//! but it keeps its place in the queues and its deadline. No command ever runs on behalf of a client on another thread.
//!
//! # Contract
//!
//! 1. *No wake is lost.* A thread that commits a sorted set at a key wakes the first client in that key's queue, after
//!    the commit; a client that leaves a queue wakes the new first one. A client is in the queues before it looks for
//!    the last time. There is a fence between the commit and the look at [`Waiting::count`], and one between entering
//!    and that last look: one of the two sees the other.
//! 2. *In order of arrival.* A command takes from a key only if no client waits for that key that came before; this
//!    includes a command that has just arrived. (ZPOPMIN and similar commands do not wait and do not check this.) A
//!    command for several keys takes from the first one that holds something and where it is first.
//! 3. *At most once.* A member is removed by the commit of the command that answers it, which is durable before the
//!    answer leaves, like every write. If the connection ends in that moment, the answer is lost, as with Redis. A
//!    client that hangs up while it sleeps leaves its queues when its thread learns of it. But a wait for background
//!    work goes on, and the commands behind it run.
//! 4. Within MULTI nothing waits: a command that would wait is answered as if its time were over.
//! 5. A wait ends by an answer, its deadline, CLIENT UNBLOCK, or the end of the connection. A client that was killed
//!    takes nothing that arrives after that. A crash ends a wait without a trace: nothing of it is on media. A wait that
//!    ends during a CLIENT PAUSE takes nothing, not even what has arrived before.
//!
//! While no client waits, a commit of a sorted set pays for a fence and one load, and other commits for a look at what
//! they wrote.
//!
//! Thread safety: any thread. One lock for all queues, held for a few map operations, none of which copies or hashes a
//! key; it is the innermost lock.

use crate::changes::Pending;
use crate::shared::Client;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Maximum number of keys that one command may wait for: each has a place in the queues, and all are entered while the
/// lock is held once.
pub const MOST_KEYS: usize = 1 << 16;

/// Maximum bytes of these keys, in all: each may have 64 KiB, and they are kept as long as the command waits.
pub const MOST_KEY_BYTES: usize = 1 << 20;

/// A key of a database, with its hash, which is computed before the lock is taken.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    hash: u64,
    database: u16,
    key: Arc<[u8]>,
}

impl Hash for Place {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// What a command waits for.
#[derive(Debug, Default)]
pub struct Request {
    /// Keys of the session's database; empty if it waits for something else.
    pub keys: Vec<Arc<[u8]>>,
    /// Its deadline; `None`: it waits for ever.
    pub deadline: Option<Instant>,
    /// The number of the background work that it waits for, which the command needs when it runs again; 0: none.
    pub note: u64,
    /// The change of databases that it waits for.
    pub change: Option<Arc<Pending>>,
}

impl Request {
    /// Whether the wait is for background work, which ends soon without other clients.
    fn ends_by_itself(&self) -> bool {
        self.change.is_some() || self.note != 0
    }

    /// A request to wait for a change of databases, at whose end the client is woken.
    pub fn for_change(change: Arc<Pending>) -> Request {
        Request { change: Some(change), ..Request::default() }
    }
}

/// All waiting clients, their queues, and the ways to wake them.
pub struct Waiting {
    /// Number of clients that wait.
    count: AtomicUsize,
    state: Mutex<State>,
    hasher: RandomState,
    doors: Vec<Door>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// The clients that wait for each key, in order of arrival.
    queues: HashMap<Place, BTreeMap<u64, Arc<Client>>>,
}

/// How other threads reach a serving thread.
#[derive(Default)]
struct Door {
    /// Slots of its connections whose clients were woken.
    woken: Mutex<Vec<usize>>,
    /// The thread is to look for killed clients: set by [`Waiting::summon`], cleared by [`Waiting::take_summons`].
    summoned: AtomicBool,
    ring: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Door {
    fn ring(&self) {
        if let Some(ring) = self.ring.get() {
            ring();
        }
    }
}

/// The state of a client's wait ([`Client::wait`]).
#[derive(Default, Debug)]
pub struct WaitState(AtomicU8);

/// The client does not wait for others.
const AWAKE: u8 = 0;
/// The client waits for others.
const ASLEEP: u8 = 1;
/// After CLIENT UNBLOCK: as if its time were over.
const TIMED_OUT: u8 = 2;
/// After CLIENT UNBLOCK with ERROR.
const REFUSED: u8 = 3;

impl WaitState {
    /// Whether its client waits for others.
    pub fn is_asleep(&self) -> bool {
        self.0.load(Ordering::Acquire) != AWAKE
    }

    fn end(&self, how: u8) -> bool {
        self.0.compare_exchange(ASLEEP, how, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its time was over, or CLIENT UNBLOCK ended it that way.
    TimedOut,
    /// CLIENT UNBLOCK asked for an error.
    Refused,
}

/// A client's wait; it ends when this is dropped.
pub struct Wait {
    /// Its deadline; `None`: for ever.
    pub deadline: Option<Instant>,
    /// See [`Request::note`].
    pub note: u64,
    /// See [`Request::change`].
    pub change: Option<Arc<Pending>>,
    /// The request was for a change of databases only.
    pub for_changes: bool,
    /// It has ended during a pause: its command answers without a look at the keys.
    pub over: bool,
    ticket: u64,
    places: Vec<Place>,
    client: Arc<Client>,
    waiting: Arc<Waiting>,
}

impl Waiting {
    /// The state for this many threads; no client waits.
    pub fn new(threads: usize) -> Waiting {
        let doors = (0..threads).map(|_| Door::default()).collect();
        Waiting { count: AtomicUsize::new(0), state: Mutex::default(), hasher: RandomState::new(), doors }
    }

    /// Number of clients that wait.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether no client waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets how to wake a thread that has clients to wake. Call once for each thread.
    pub fn set_ring(&self, thread: usize, ring: impl Fn() + Send + Sync + 'static) {
        // A second one would not be needed.
        let _ = self.doors[thread].ring.set(Box::new(ring));
    }

    /// Takes the slots of a thread's connections to be served because their clients were woken.
    pub fn take_woken(&self, thread: usize) -> Vec<usize> {
        std::mem::take(&mut *self.doors[thread].woken.lock())
    }

    fn place(&self, database: u16, key: impl Into<Arc<[u8]>>) -> Place {
        let key = key.into();
        Place { hash: self.hasher.hash_one((database, &key)), database, key }
    }

    /// Enters the queues. The caller must run the command again before the client sleeps.
    pub fn enter(self: &Arc<Self>, client: &Arc<Client>, database: u16, request: Request) -> Wait {
        let ends_by_itself = request.ends_by_itself();
        let mut places: Vec<Place> = request.keys.into_iter().map(|key| self.place(database, key)).collect();
        places.sort_unstable();
        places.dedup();
        if !ends_by_itself {
            client.wait.0.store(ASLEEP, Ordering::Release);
        }
        self.count.fetch_add(1, Ordering::SeqCst);
        let mut state = self.state.lock();
        let ticket = state.next;
        state.next += 1;
        for place in &places {
            state.queues.entry(place.clone()).or_default().insert(ticket, client.clone());
        }
        drop(state);
        // Rule 1: the queues before the last look.
        fence(Ordering::SeqCst);
        let Request { deadline, note, change, .. } = request;
        let (client, waiting) = (client.clone(), self.clone());
        Wait { deadline, note, for_changes: change.is_some(), change, over: false, ticket, places, client, waiting }
    }

    /// Whether no client waits for the key that came before the asking one; `own` is its wait, if it waits itself.
    pub fn is_first(&self, own: Option<&Wait>, database: u16, key: &[u8]) -> bool {
        if self.is_empty() {
            return true;
        }
        let place = self.place(database, key);
        let state = self.state.lock();
        let first = state.queues.get(&place).and_then(|queue| queue.first_key_value()).map(|(ticket, _)| *ticket);
        first.is_none_or(|first| own.is_some_and(|own| own.ticket <= first))
    }

    /// Wakes clients because sorted sets were committed at these places.
    #[inline]
    pub fn fed<'a>(&self, places: impl Iterator<Item = (u16, &'a [u8])>) {
        let mut places = places.peekable();
        if places.peek().is_none() {
            return;
        }
        // Rule 1: the commit before the look.
        fence(Ordering::SeqCst);
        if self.is_empty() {
            return;
        }
        let places: Vec<Place> = places.map(|(database, key)| self.place(database, key)).collect();
        let state = self.state.lock();
        places.iter().for_each(|place| self.wake_first(&state, place));
    }

    /// Wakes clients because everything may have changed in these databases.
    pub fn stirred(&self, databases: &[u16]) {
        fence(Ordering::SeqCst);
        let state = self.state.lock();
        let places = state.queues.keys().filter(|place| databases.contains(&place.database));
        places.for_each(|place| self.wake_first(&state, place));
    }

    /// Ends a client's wait for others, with an error if `refuse`; returns whether it was waiting.
    pub fn unblock(&self, client: &Client, refuse: bool) -> bool {
        let ended = client.wait.end(if refuse { REFUSED } else { TIMED_OUT });
        if ended {
            self.wake(client);
        }
        ended
    }

    fn wake_first(&self, state: &State, place: &Place) {
        if let Some((_, client)) = state.queues.get(place).and_then(|queue| queue.first_key_value()) {
            self.wake(client);
        }
    }

    /// Has a client's command run again.
    pub fn wake(&self, client: &Client) {
        let Some(door) = self.doors.get(client.core) else { return };
        door.woken.lock().push(client.slot.load(Ordering::Relaxed));
        door.ring();
    }

    /// Has a thread look for clients that were killed.
    pub fn summon(&self, thread: usize) {
        let Some(door) = self.doors.get(thread) else { return };
        door.summoned.store(true, Ordering::Release);
        door.ring();
    }

    /// Whether a thread was asked to look for killed clients since it last called this.
    #[inline]
    pub fn take_summons(&self, thread: usize) -> bool {
        // Nearly always the load alone.
        self.doors[thread].summoned.load(Ordering::Relaxed) && self.doors[thread].summoned.swap(false, Ordering::AcqRel)
    }
}

impl Wait {
    /// Whether the wait is for background work, which ends soon without other clients.
    pub fn ends_by_itself(&self) -> bool {
        self.change.is_some() || self.note != 0
    }

    /// How the wait ended; `None`: it goes on.
    pub fn end(&self) -> Option<End> {
        match self.client.wait.0.load(Ordering::Acquire) {
            REFUSED => Some(End::Refused),
            TIMED_OUT => Some(End::TimedOut),
            _ => self.deadline.filter(|deadline| *deadline <= Instant::now()).map(|_| End::TimedOut),
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let mut state = self.waiting.state.lock();
        for place in &self.places {
            let Some(queue) = state.queues.get_mut(place) else { continue };
            let was_first = queue.first_key_value().is_some_and(|(ticket, _)| *ticket == self.ticket);
            queue.remove(&self.ticket);
            if queue.is_empty() {
                state.queues.remove(place);
            } else if was_first {
                self.waiting.wake_first(&state, place);
            }
        }
        drop(state);
        self.waiting.count.fetch_sub(1, Ordering::SeqCst);
        self.client.wait.0.store(AWAKE, Ordering::Release);
    }
}
