//! One connection: bytes in, commands, replies out.
//!
//! # How it ends
//!
//! A connection ends because the client wants it (it hangs up or sends QUIT), or with a line in the log that says why
//! ([`Client::log_closed`](crate::shared::Client::log_closed)). A client that breaks the protocol gets an error first.
//! A client that reads too little of its replies, or whose socket fails, cannot be sent anything.

use super::ahead::Ahead;
use super::outbox::{Outbox, PAUSE_BYTES, STRANGER_PAUSE_BYTES};
use super::tls::Channel;
use crate::events::Level;
use crate::session::Session;
use crate::shared::{CoreStats, Shared};
use hither_resp::{Args, Limits, Parser, Protocol, Writer, peek_key};
use std::io::{Error, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bytes per read.
const READ_BYTES: usize = 64 << 10;
/// Reads per turn; then other connections have their turns.
const READS: usize = 8;
/// Once the commands of a turn have taken this long, the turn ends after the running command.
const TURN_TIME: Duration = Duration::from_millis(20);
/// Bytes sent per turn; then other connections have their turns. A client that reads as fast as the server sends would
/// otherwise keep the thread until all of a long reply has left.
const SENT_BYTES: usize = 1 << 20;
/// Most room that is allocated at once for the missing rest of a request.
const MOST_AHEAD: usize = 1 << 20;

/// Buffers of a thread, which its connections use one after the other.
pub struct Room {
    scratch: Vec<u8>,
    ahead: Ahead,
    /// When the last command of a group of clients ended, if the next one's follows at once.
    pub ended: Option<Instant>,
}

impl Default for Room {
    fn default() -> Room {
        Room { scratch: vec![0; READ_BYTES], ahead: Ahead::default(), ended: None }
    }
}

/// A client's connection: its socket, its session, and the bytes in both directions.
pub struct Connection {
    /// The socket, with or without TLS.
    pub channel: Channel,
    /// The client's session.
    pub session: Session,
    /// The replies.
    pub outbox: Outbox,
    parser: Parser,
    /// Received bytes that have not run: an incomplete request, and requests that have to wait.
    input: Vec<u8>,
    /// There may be more to read: set by an event, cleared once a read has emptied the socket.
    readable: bool,
    /// The other side sends no more: set when a read reports the end.
    ended: bool,
    /// Nothing can be sent any more: set when the socket fails, or when more than max-output waits for the client.
    broken: bool,
    authenticated: bool,
    /// Commands wait until replies have left: set by a turn that finds too many, cleared as the next turn begins.
    stalled: bool,
    /// Commands wait until CLIENT PAUSE is over: set by [`run_one`], cleared as the next turn begins.
    held: bool,
    /// Commands wait for the next turn, because this one has used up its time or the server stops; cleared as that turn
    /// begins.
    cut: bool,
    /// The waiting command is to run again: set by [`Connection::rouse`], cleared as the next turn begins.
    roused: bool,
    /// The other side has hung up, though some of what it sent may still be unread: set by an event, never cleared.
    hung_up: bool,
    /// The result of a read ahead of the turn ([`Connection::receive`]), until the turn takes it.
    arrived: Option<std::io::Result<usize>>,
    /// [`most_held`] as of the last flush, so that it does not change within a turn.
    most_held: usize,
}

/// Bytes of waiting replies above which further commands wait, for a small output limit. What waits for a sync becomes
/// ready to be sent all at once. As long as replies are small, it must then not exceed what may wait for the client.
fn most_held(shared: &Shared) -> usize {
    match shared.settings.max_output_bytes.load(Ordering::Relaxed) {
        0 => usize::MAX,
        max_output => max_output / 2,
    }
}

impl Connection {
    /// Makes a connection for a new client.
    pub fn new(channel: Channel, session: Session) -> Connection {
        let authenticated = session.authenticated;
        let limits = limits_for(&session);
        Connection {
            most_held: most_held(session.shared()),
            channel,
            session,
            outbox: Outbox::default(),
            parser: Parser::new(limits),
            input: Vec::new(),
            readable: false,
            ended: false,
            broken: false,
            authenticated,
            stalled: false,
            held: false,
            cut: false,
            roused: false,
            hung_up: false,
            arrived: None,
        }
    }

    /// Notes that the socket has something to read.
    pub fn note_readable(&mut self) {
        self.readable = true;
    }

    /// Notes that the other side has hung up: nobody waits for the answer of a command that waits for other clients.
    pub fn note_hung_up(&mut self) {
        self.hung_up = true;
    }

    /// Has the waiting command run again at the next turn.
    pub fn rouse(&mut self) {
        self.roused = true;
    }

    /// The deadline of the waiting command.
    pub fn deadline(&self) -> Option<Instant> {
        self.session.wait.as_ref()?.deadline
    }

    /// Whether the connection is finished: everything that can be sent has been sent.
    pub fn is_over(&self) -> bool {
        self.broken || ((self.ended || self.session.closing) && self.outbox.waiting() == 0 && !self.channel.is_pending())
    }

    /// Whether commands have to wait until replies have left.
    fn is_paused(&self) -> bool {
        let most = if self.session.authenticated { PAUSE_BYTES } else { STRANGER_PAUSE_BYTES };
        self.outbox.waiting() > most.min(self.most_held)
    }

    /// Reads into `early` ahead of the turn, if the turn is going to read. [`Connection::serve`] must follow, with the
    /// same bytes.
    pub fn receive(&mut self, early: &mut [u8]) {
        let runs_at_once = self.input.is_empty() && !self.session.is_waiting() && self.session.watching.is_none() && !self.is_paused();
        let is_at_rest = self.stalled || self.held || self.ended || self.session.closing;
        if self.readable && runs_at_once && !is_at_rest && self.arrived.is_none() {
            self.arrived = Some(self.channel.read(early));
        }
    }

    /// The key of the first request, if what was read ahead of the turn tells it.
    pub fn key_to_come<'a>(&self, early: &'a [u8]) -> Option<&'a [u8]> {
        let count = *self.arrived.as_ref()?.as_ref().ok()?;
        peek_key(&early[..count])
    }

    /// Reads and runs commands until there are no more, or others have their turns. Returns whether it has to be called
    /// again without an event. `now` need not be exact.
    pub fn serve(&mut self, shared: &Arc<Shared>, early: &[u8], room: &mut Room, now: Instant) -> bool {
        self.session.ended = room.ended.take();
        let again = self.serve_now(shared, early, room, now);
        room.ended = self.session.ended.take();
        again
    }

    fn serve_now(&mut self, shared: &Arc<Shared>, early: &[u8], room: &mut Room, now: Instant) -> bool {
        let Room { scratch, ahead, .. } = room;
        self.give_up_if_hung_up();
        // A command that waits for data runs again only if there may be some, or if it could not run when there was.
        let runs = !self.session.is_waiting() || self.roused || self.stalled || self.held;
        (self.stalled, self.held, self.cut, self.roused) = (false, false, false, false);
        self.session.began = None;
        if !self.input.is_empty() && runs {
            self.run_input(shared, ahead);
        }
        self.show_commands();
        for _ in 0..READS {
            // What was read ahead is taken in any case: only this turn has it.
            self.stalled |= self.arrived.is_none() && self.is_paused();
            if self.session.is_waiting() {
                self.give_up_if_hung_up();
                return false;
            }
            // As in Redis: clients that give up come again, and each of their attempts would run at the end of the
            // pause.
            self.session.closing |= self.held && self.hung_up;
            if self.cut {
                return !self.session.closing && !self.stalled;
            }
            if !self.readable || self.ended || self.session.closing || self.stalled || self.held {
                return false;
            }
            let (read, buffer) = match self.arrived.take() {
                Some(read) => (read, early),
                None => {
                    // This read takes time that belongs to no command.
                    self.session.ended = None;
                    (self.channel.read(scratch), &scratch[..])
                }
            };
            match read {
                Ok(0) => self.ended = true,
                Ok(count) => {
                    CoreStats::add(&self.session.stats().input_bytes, count as u64);
                    self.session.client.note_active(now);
                    // Reading once more only to find nothing would be one system call in three. Whatever comes from now
                    // on is an event of its own (epoll(7)). So is the end, but its event may have come already.
                    self.readable = count == buffer.len() || self.hung_up || self.channel.is_encrypted();
                    self.take_in(shared, &buffer[..count], ahead);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => self.lose(&error),
            }
            if self.broken {
                return false;
            }
        }
        true
    }

    /// Ends a wait for other clients once the client has hung up: nobody is there to take the answer.
    fn give_up_if_hung_up(&mut self) {
        // A wait that ends by itself goes on: there may be commands behind it, and perhaps the other side has only
        // stopped sending.
        if self.hung_up && self.session.wait.as_ref().is_some_and(|wait| !wait.ends_by_itself()) {
            self.session.closing = true;
            self.session.wait = None;
        }
    }

    /// Passes on what MONITOR shows of others' commands.
    fn show_commands(&mut self) {
        if let Some(watching) = &self.session.watching
            && !self.is_paused()
        {
            let start = self.outbox.bytes.len();
            watching.take(&mut self.outbox.bytes);
            self.outbox.appended(start, 0);
        }
    }

    /// Runs the requests in new bytes, in place if no request has begun before.
    fn take_in(&mut self, shared: &Arc<Shared>, bytes: &[u8], ahead: &mut Ahead) {
        if self.input.is_empty() {
            let done = self.run(shared, bytes, ahead);
            if !self.session.closing {
                self.input.reserve(self.parser.missing(&bytes[done..]).min(MOST_AHEAD) + bytes.len() - done);
                self.input.extend_from_slice(&bytes[done..]);
            }
        } else {
            self.input.extend_from_slice(bytes);
            self.run_input(shared, ahead);
        }
    }

    fn run_input(&mut self, shared: &Arc<Shared>, ahead: &mut Ahead) {
        let mut input = std::mem::take(&mut self.input);
        let done = self.run(shared, &input, ahead);
        if done == input.len() {
            return;
        }
        input.drain(..done);
        // A large request has come and gone. A request that is still arriving got its room before.
        let room = READ_BYTES.max(input.len() + self.parser.missing(&input).min(MOST_AHEAD));
        if done > 0 && input.capacity() / 4 > room {
            input.shrink_to(room);
        }
        self.input = input;
    }

    /// Runs the requests in `bytes` and returns how many bytes they had.
    fn run(&mut self, shared: &Arc<Shared>, bytes: &[u8], ahead: &mut Ahead) -> usize {
        let mut at = 0;
        while self.may_run() {
            let rest = &bytes[at..];
            let length = match self.parser.parse(rest) {
                Ok(Some(length)) => length,
                Ok(None) => break,
                Err(error) => {
                    self.say(&format!("ERR {error}"));
                    self.session.client.log_closed(Level::Info, &error);
                    self.session.closing = true;
                    break;
                }
            };
            let (first, behind) = (self.parser.args(rest), &rest[length..]);
            ahead.look(behind, limits_for(&self.session), first, |keys| self.session.prefetch(keys));
            if !run_one(shared, &mut self.session, &mut self.outbox, &mut self.held, first) {
                break;
            }
            at += length;
            self.cut = self.is_turn_over(shared);
            let mut done = 0;
            for number in 0..ahead.count() {
                // The limits have changed, so the other requests must be parsed again.
                if self.take_limits() || !self.may_run() {
                    break;
                }
                if !run_one(shared, &mut self.session, &mut self.outbox, &mut self.held, ahead.args(behind, number)) {
                    return at + done;
                }
                done = ahead.end(number);
                self.cut = self.is_turn_over(shared);
            }
            at += done;
            self.take_limits();
        }
        at
    }

    /// Whether requests that have arrived may run. A waiting command runs however many replies wait: other clients may
    /// be queued behind it.
    fn may_run(&self) -> bool {
        !self.cut && !self.session.closing && !self.session.client.is_killed() && (!self.is_paused() || self.session.is_waiting())
    }

    /// Whether the turn ends after this command, so that others have theirs.
    fn is_turn_over(&self, shared: &Shared) -> bool {
        self.session.turn_time() > TURN_TIME || shared.stopping.load(Ordering::Relaxed)
    }

    /// Takes over the client's limits, which change when it logs in or out; returns whether they changed.
    fn take_limits(&mut self) -> bool {
        let changed = self.session.authenticated != self.authenticated;
        if changed {
            self.authenticated = self.session.authenticated;
            self.parser.set_limits(limits_for(&self.session));
        }
        changed
    }

    /// Sends an error that answers no command.
    pub fn say(&mut self, text: &str) {
        let start = self.outbox.bytes.len();
        Writer::new(&mut self.outbox.bytes, Protocol::Resp2).error(text);
        self.outbox.appended(start, 0);
    }

    /// Sends what may be sent, up to [`SENT_BYTES`]. Returns whether there is more and it has to be called again,
    /// because no event will come. `now` need not be exact.
    pub fn flush(&mut self, shared: &Shared, now: Instant) -> bool {
        self.flush_up_to(SENT_BYTES, shared, now)
    }

    fn flush_up_to(&mut self, bytes: usize, shared: &Shared, now: Instant) -> bool {
        if let Err(error) = self.channel.flush()
            && error.kind() != ErrorKind::WouldBlock
        {
            self.lose(&error);
        }
        let again = self.send(bytes, now);
        self.outbox.trim();
        let most = shared.settings.max_output_bytes.load(Ordering::Relaxed);
        self.most_held = most_held(shared);
        // What waits for a sync does not count, nor what only this turn's bound has left over: the client reads.
        let waiting = self.outbox.ready().len();
        if most > 0 && waiting > most && !again && !self.broken {
            // The client asks for more than it reads.
            let why = format!("{waiting} bytes of replies wait for it, more than max-output ({most})");
            self.session.client.log_closed(Level::Warn, &why);
            self.broken = true;
        }
        again
    }

    /// Sends up to `most` bytes; returns whether there is more that the socket may take.
    fn send(&mut self, most: usize, now: Instant) -> bool {
        let mut left = most;
        while !self.broken && !self.outbox.ready().is_empty() {
            if left == 0 {
                return true;
            }
            let ready = self.outbox.ready();
            match self.channel.write(&ready[..ready.len().min(left)]) {
                Ok(0) => self.lose(&ErrorKind::WriteZero.into()),
                Ok(count) => {
                    CoreStats::add(&self.session.stats().output_bytes, count as u64);
                    self.session.client.note_active(now);
                    self.outbox.sent(count);
                    left -= count;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => self.lose(&error),
            }
        }
        false
    }

    /// Handles a failed socket. A client that hangs up without having read everything, as killed clients do, does so on
    /// purpose.
    #[cold]
    fn lose(&mut self, error: &Error) {
        let hung_up = matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe);
        let (level, what) = if hung_up { (Level::Debug, "it has hung up") } else { (Level::Warn, "its socket failed") };
        let handshake = if self.channel.is_handshaking() { ", in the handshake" } else { "" };
        self.session.client.log_closed(level, &format!("{what}{handshake}: {error}"));
        self.broken = true;
    }

    /// Whether the next step is the client's: none of its commands is under way, and it could read what there is. A
    /// client that watches others by MONITOR need not send anything.
    pub fn may_be_idle(&self) -> bool {
        let waits_for_sync = self.outbox.is_holding() && self.outbox.ready().is_empty();
        !self.held && !self.session.is_waiting() && self.session.watching.is_none() && !waits_for_sync
    }

    /// Publishes to other threads how much the buffers hold.
    pub fn publish(&self) {
        self.session.client.input_bytes.store(self.input.len(), Ordering::Relaxed);
        self.session.client.output_bytes.store(self.outbox.waiting(), Ordering::Relaxed);
    }

    /// Whether commands wait for the end of CLIENT PAUSE: the connection must be served again to see whether they may
    /// run.
    pub fn is_held(&self) -> bool {
        self.held
    }

    /// Whether commands that waited for replies to leave can run now.
    pub fn can_go_on(&self) -> bool {
        self.stalled && !self.is_paused() && !self.session.closing
    }
}

/// Runs one request and returns whether it ran. A request that has to wait is parsed again once the pause is over or
/// the client is woken.
fn run_one(shared: &Arc<Shared>, session: &mut Session, outbox: &mut Outbox, held: &mut bool, args: Args<'_>) -> bool {
    if session.must_wait(shared, args) {
        *held = true;
        return false;
    }
    if args.is_empty() {
        return true;
    }
    let start = outbox.bytes.len();
    let rests_on = if shared.settings.started.null {
        super::null::answer(args, &mut outbox.bytes);
        0
    } else {
        session.execute(shared, args, &mut outbox.bytes)
    };
    if session.is_waiting() {
        return false;
    }
    outbox.appended(start, rests_on);
    true
}

fn limits_for(session: &Session) -> Limits {
    if !session.authenticated {
        return Limits::unauthenticated();
    }
    Limits { max_request_bytes: session.shared().settings.started.max_request_bytes, ..Limits::default() }
}

#[cfg(test)]
mod tests;
