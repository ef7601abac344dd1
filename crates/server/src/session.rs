//! What belongs to one client: its database, its version of the protocol, its transaction. No networking: tests drive a session with arguments and
//! a buffer. How a command's transaction is run until it is committed: [`crate::attempts`].

use crate::acl::User;
use crate::acl::log::Reason;
use crate::acl::selector::Denied;
use crate::attempts::{Ran, run_command};
use crate::commands::failure::Failure;
use crate::commands::table::{Numbered, TABLE, flag};
use crate::commands::transactions;
use crate::config::DebugCommand;
use crate::cursors::Given;
use crate::data::{Database, Txn};
use crate::events::{self, Level};
use crate::monitor::Watching;
use crate::shared::{Client, CoreStats, Shared, now_ms};
use crate::transaction::{Multi, Queued, Watches};
use crate::waiting::{Request, Wait};
use hither::{Error, WriteOptions};
use hither_resp::{Args, Protocol, Writer};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// What a command does outside the store and its session, see [`crate::commands::Context::once_applied`].
pub(crate) type Effect = Box<dyn FnOnce(&Arc<Shared>, &mut Session) + Send>;

/// A client's state.
pub struct Session {
    /// What others see of it.
    pub client: Arc<Client>,
    /// Database number.
    pub index: u16,
    /// Version of the protocol.
    pub protocol: Protocol,
    /// Whether it has said who it is, or need not.
    pub authenticated: bool,
    /// Who it is.
    pub user: Arc<User>,
    /// When the user was looked up: [`crate::acl::Acl::generation`].
    pub(crate) generation: u64,
    /// Commands since MULTI.
    pub multi: Option<Multi>,
    /// Keys that EXEC depends on.
    pub watches: Watches,
    /// How its writes are made; the store's level unless it asked for another.
    pub options: WriteOptions,
    /// Whether it wants replies.
    pub replies: Replies,
    /// Its command waits.
    pub wait: Option<Box<Wait>>,
    /// Its command runs again: it has waited.
    again: bool,
    /// It is shown the commands of others.
    pub watching: Option<Watching>,
    /// No more commands; close once everything is sent.
    pub closing: bool,
    /// The buffer for replies gets no more bytes than this while its command runs.
    pub output_limit: usize,
    /// When its last command ended, if the next one follows at once: then that one's time begins there, and the clock is read once for each.
    pub ended: Option<Instant>,
    /// When the first command of its turn began.
    pub began: Option<Instant>,
    pub(crate) database: Option<(u64, Arc<Database>)>,
    /// A transaction that nothing is left of.
    pub(crate) spare: Option<Box<Txn>>,
    /// What is to be done once this attempt is applied.
    pub(crate) effects: Vec<Effect>,
    /// Cursors that this attempt's commands have answered. Nobody knows one of a command that fails.
    pub(crate) cursors: Given,
    /// As the effects, also if it fails.
    pub(crate) refusals: Vec<Effect>,
    /// Keys that the commands of this attempt have looked up to read: found, and not found.
    pub(crate) looked_up: [u64; 2],
    shared: Arc<Shared>,
}

/// `CLIENT REPLY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replies {
    /// All.
    On,
    /// None.
    Off,
    /// Not for the next command.
    SkipNext,
    /// Not for this command.
    SkipThis,
}

impl Session {
    /// The session of a new client.
    pub fn new(shared: Arc<Shared>, client: Arc<Client>) -> Session {
        // Before the user: a change between the two is seen at the next command.
        let generation = shared.acl().generation();
        let user = shared.acl().default();
        let authenticated = user.enabled && user.nopass;
        Session {
            client,
            index: 0,
            protocol: Protocol::Resp2,
            authenticated,
            user,
            generation,
            multi: None,
            watches: Watches::default(),
            options: WriteOptions::new(),
            replies: Replies::On,
            wait: None,
            again: false,
            watching: None,
            closing: false,
            output_limit: usize::MAX,
            ended: None,
            began: None,
            database: None,
            spare: None,
            effects: Vec::new(),
            cursors: Given::default(),
            refusals: Vec::new(),
            looked_up: [0; 2],
            shared,
        }
    }

    /// As after connecting.
    pub fn reset(&mut self) {
        let (closing, began) = (self.closing, self.began);
        self.client.name.lock().clear();
        *self.client.user.lock() = crate::acl::DEFAULT.to_owned();
        *self = Session::new(self.shared.clone(), self.client.clone());
        (self.closing, self.began) = (closing, began);
        self.client.database.store(0, Ordering::Relaxed);
        self.client.protocol.store(2, Ordering::Relaxed);
        self.publish();
    }

    /// Tells others what it keeps for its transaction.
    pub fn publish(&self) {
        let multi = self.multi.as_ref();
        self.client.queued.store(multi.map_or(-1, |multi| multi.queue().len() as i64), Ordering::Relaxed);
        self.client.queued_bytes.store(multi.map_or(0, Multi::held_bytes), Ordering::Relaxed);
        self.client.watched.store(self.watches.len(), Ordering::Relaxed);
        self.client.watched_bytes.store(self.watches.held_bytes(), Ordering::Relaxed);
    }

    /// What all sessions share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The counters of its thread.
    #[inline]
    pub fn stats(&self) -> &CoreStats {
        &self.shared.cores[self.client.core]
    }

    /// The database that it is in. [`Failure::Wait`] as for [`Session::open_database`].
    #[inline]
    pub fn database(&mut self) -> Result<Arc<Database>, Failure> {
        if let Some(database) = self.known_database() {
            return Ok(database.clone());
        }
        let generation = self.shared.databases.generation();
        let database = self.open_database(self.index)?.private();
        self.database = Some((generation, database.clone()));
        Ok(database)
    }

    /// The same, if it has been opened before and is still the one.
    #[inline]
    fn known_database(&self) -> Option<&Arc<Database>> {
        let (known, database) = self.database.as_ref()?;
        (*known == self.shared.databases.generation() && database.index == self.index).then_some(database)
    }

    /// A transaction on it: that of the command before, most often. The write of that one is still being flushed: until it is through no store leaves the processor, and whoever makes
    /// many (a new transaction), changes a counter of owners or reads back what was stored in other pieces waits for it.
    #[inline]
    pub(crate) fn take_txn(&mut self, isolated: bool) -> Result<Box<Txn>, Failure> {
        let spare = self.spare.take();
        if let Some(txn) = self.known_database().zip(spare).and_then(|(database, spare)| spare.renew(database, isolated, self.options)) {
            return Ok(txn);
        }
        Ok(Box::new(Txn::new(self.database()?, isolated, self.options)))
    }

    /// Has the store begin to load what commands with these keys will touch, if it is known where they will look.
    pub fn prefetch(&self, keys: &[&[u8]]) {
        if let Some(database) = self.known_database() {
            database.keys.prefetch(keys);
        }
    }

    /// Runs one command and appends its reply to `out`. Returns the version that must be durable before the reply may leave; 0: none. `shared` is what
    /// the session was made with. If the command waits ([`Session::is_waiting`]) there is no reply: call again with the same arguments once the client was woken.
    pub fn execute(&mut self, shared: &Arc<Shared>, args: Args<'_>, out: &mut Vec<u8>) -> u64 {
        let mark = out.len();
        let most = shared.settings.max_output_bytes.load(Ordering::Relaxed);
        self.output_limit = if most == 0 { usize::MAX } else { mark.saturating_add(most) };
        if self.replies == Replies::SkipNext {
            self.replies = Replies::SkipThis;
        }
        let mut rests_on = 0;
        self.again = self.wait.is_some();
        let mut outcome = self.attempt(shared, args, out, &mut rests_on);
        while let Some(request) = wish_of(&mut outcome) {
            let request = std::mem::take(request);
            if let Some(wait) = &mut self.wait {
                wait.change = wait.change.take().or(request.change);
                break;
            }
            self.wait = Some(Box::new(shared.waiting.enter(&self.client, self.index, request)));
            self.again = true;
            out.truncate(mark);
            outcome = self.attempt(shared, args, out, &mut rests_on);
        }
        if wish_of(&mut outcome).is_some() {
            out.truncate(mark);
            return 0;
        }
        self.wait = None;
        if let Err(failure) = outcome {
            if let Failure::Store(Error::ReadOnly(why)) = &*failure {
                shared.note_failed_sync(why);
            }
            let message = failure.message();
            self.stats().note_error(&message);
            out.truncate(mark);
            Writer::new(out, self.protocol).error(&message);
            if matches!(*failure, Failure::ReplyTooLarge) {
                self.hang_up_on_the_deaf();
            }
        }
        match self.replies {
            Replies::On | Replies::SkipNext => {}
            Replies::Off => out.truncate(mark),
            Replies::SkipThis => {
                out.truncate(mark);
                self.replies = Replies::On;
            }
        }
        rests_on
    }

    /// A command was not done, which other clients are told. Who takes no replies would go on as if it were.
    #[cold]
    fn hang_up_on_the_deaf(&mut self) {
        if matches!(self.replies, Replies::Off | Replies::SkipThis) {
            self.closing = true;
            self.client.log_closed(Level::Warn, &"a reply is larger than max-output, and it takes none that would say so (CLIENT REPLY)");
        }
    }

    /// How long its turn had taken when its last command ended; 0 if that is not known.
    #[inline]
    pub fn turn_time(&self) -> Duration {
        self.ended.zip(self.began).map_or(Duration::ZERO, |(ended, began)| ended.saturating_duration_since(began))
    }

    /// Whether its last command waits.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.wait.is_some()
    }

    fn attempt(&mut self, shared: &Arc<Shared>, args: Args<'_>, out: &mut Vec<u8>, rests_on: &mut u64) -> Ran {
        if self.wait.as_ref().is_some_and(|wait| wait.change.is_some()) {
            self.settle_change().map_err(Box::new)?;
        }
        let found = self.admit(args).map_err(Box::new)?;
        self.dispatch(shared, found, args, out, rests_on)
    }

    /// Whether a command has to wait for the end of CLIENT PAUSE. What would be refused anyway need not, and CLIENT UNPAUSE must not; nor may that without which nobody could
    /// log in to say it. (In Redis all of these wait.)
    #[inline]
    pub fn must_wait(&self, shared: &Shared, args: Args<'_>) -> bool {
        let Some(pause) = shared.pause.at(now_ms) else { return false };
        let Ok(Numbered { command, .. }) = TABLE.find(args) else { return false };
        if !pause.writes_only {
            return !command.has(flag::NO_AUTH) && command.full_name() != "client|unpause";
        }
        let queued = || self.multi.iter().flat_map(Multi::queue).any(|queued| queued.found.command.has(flag::WRITE));
        command.has(flag::WRITE) || command.has(flag::EXEC) && queued()
    }

    /// Finds the command and says whether it may run at all.
    fn admit(&mut self, args: Args<'_>) -> Result<Numbered, Failure> {
        let outcome = self.admissible(args);
        let Err(failure) = &outcome else { return outcome };
        if let Ok(found) = TABLE.find(args) {
            CoreStats::add(&self.stats().refused[found.number], 1);
        }
        if let Some(multi) = &mut self.multi {
            multi.refuse();
            self.publish();
        }
        if !args.get(0).is_some_and(|name| name.eq_ignore_ascii_case(b"exec")) {
            return outcome;
        }
        // EXEC itself is wrong: the transaction is over, if there is one; Redis says so in any case.
        let message = failure.message();
        self.multi = None;
        self.watches.clear();
        self.publish();
        let why = message.strip_prefix("ERR ").unwrap_or(&message);
        Err(Failure::made(format!("EXECABORT Transaction discarded because of: {why}")))
    }

    fn admissible(&mut self, args: Args<'_>) -> Result<Numbered, Failure> {
        let found = TABLE.find(args).map_err(|failure| self.hang_up_on_http(args).unwrap_or(failure))?;
        let command = found.command;
        if !command.takes(args.len()) {
            return Err(Failure::arity(command));
        }
        if command.has(flag::DEBUG) && !self.may_debug() {
            return Err(Failure::text(
                "ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can run it from a local connection, otherwise you need to set this option in the configuration file, and then restart the server.",
            ));
        }
        if self.generation != self.shared.acl().generation() {
            self.look_up_again();
        }
        if !self.authenticated && !command.has(flag::NO_AUTH) {
            return Err(Failure::text("NOAUTH Authentication required."));
        }
        if self.multi.is_some() && command.has(flag::NO_MULTI) {
            return Err(Failure::text("ERR Command not allowed inside a transaction"));
        }
        if !self.user.unrestricted
            && let Err(denied) = self.user.check(found, args)
        {
            return Err(self.refuse(denied, found, args));
        }
        Ok(found)
    }

    /// Whether it may use what is for tests.
    #[cold]
    fn may_debug(&self) -> bool {
        match self.shared.settings.started.enable_debug_command {
            DebugCommand::No => false,
            DebugCommand::Local => self.client.address.parse::<SocketAddr>().is_ok_and(|peer| peer.ip().to_canonical().is_loopback()),
            DebugCommand::Yes => true,
        }
    }

    /// Some web page may have had a browser on this machine send a request here, whose lines would pass for commands: whoever speaks HTTP gets no further.
    #[cold]
    fn hang_up_on_http(&mut self, args: Args<'_>) -> Option<Failure> {
        let name = args.get(0)?;
        if !name.eq_ignore_ascii_case(b"post") && !name.eq_ignore_ascii_case(b"host:") {
            return None;
        }
        self.closing = true;
        events::log_few(Level::Warn, "http-refused", &[("client", &self.client.id), ("address", &self.client.address)]);
        Some(Failure::text("ERR this is no HTTP server"))
    }

    /// Some user has changed: this one, perhaps. Who was deleted may do nothing more.
    #[cold]
    fn look_up_again(&mut self) {
        let shared = self.shared.clone();
        self.generation = shared.acl().generation();
        match shared.acl().user(&self.user.name).filter(|user| user.id == self.user.id) {
            Some(user) => {
                self.authenticated |= user.name == crate::acl::DEFAULT && user.enabled && user.nopass;
                self.user = user;
            }
            None => {
                self.authenticated = false;
                self.closing = true;
                self.client.kill(Level::Info, &"its user was deleted");
            }
        }
    }

    /// Makes it this user.
    pub fn log_in(&mut self, user: Arc<User>) {
        self.authenticated = true;
        self.client.user.lock().clone_from(&user.name);
        self.user = user;
    }

    /// Notes that a command is not allowed.
    #[cold]
    fn refuse(&self, denied: Denied, found: Numbered, args: Args<'_>) -> Failure {
        let (reason, object, text) = match denied {
            Denied::Command => {
                let name = found.command.full_name();
                let text = format!("NOPERM this user has no permissions to run the '{name}' command");
                (Reason::Command, name.into_bytes(), text)
            }
            Denied::Key(place) => {
                let text = "NOPERM this user has no permissions to access one of the keys used as arguments".to_owned();
                (Reason::Key, args.get(place).unwrap_or_default().to_vec(), text)
            }
        };
        self.note_refusal(reason, self.multi.is_some(), &object, self.user.name.as_bytes());
        Failure::made(text)
    }

    /// Adds to ACL LOG.
    #[cold]
    pub fn note_refusal(&self, reason: Reason, in_exec: bool, object: &[u8], user: &[u8]) {
        let keep = self.shared.settings.acllog_max_len.load(Ordering::Relaxed);
        self.shared.acl().log.add(reason, in_exec, object, user, &self.client, keep);
    }

    /// The same once for all attempts of the command that is running, whether or not it fails; not if it is one of a transaction that fails as a whole.
    #[cold]
    pub fn note_refusal_once(&mut self, reason: Reason, in_exec: bool, object: &[u8], user: &[u8]) {
        let (object, user) = (object.to_vec(), user.to_vec());
        self.refusals.push(Box::new(move |_, session| session.note_refusal(reason, in_exec, &object, &user)));
    }

    /// Whether a command that was queued is still allowed when EXEC runs it.
    pub fn check_queued(&mut self, queued: &Queued) -> Result<(), Failure> {
        if self.generation != self.shared.acl().generation() {
            self.look_up_again();
        }
        let denied = match self.user.check(queued.found, queued.args()) {
            Ok(()) if self.authenticated || queued.found.command.has(flag::NO_AUTH) => return Ok(()),
            Ok(()) => Denied::Command,
            Err(denied) => denied,
        };
        let (reason, object, why) = match denied {
            Denied::Command => {
                (Reason::Command, queued.found.command.full_name().into_bytes(), "no permission to execute the command or subcommand")
            }
            Denied::Key(place) => {
                (Reason::Key, queued.args().get(place).unwrap_or_default().to_vec(), "no permission to touch the specified keys")
            }
        };
        let user = self.user.clone();
        self.note_refusal_once(reason, true, &object, user.name.as_bytes());
        Err(Failure::made(format!(
            "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command is no longer allowed for the following reason: {why}"
        )))
    }

    fn dispatch(&mut self, shared: &Arc<Shared>, found: Numbered, args: Args<'_>, out: &mut Vec<u8>, rests_on: &mut u64) -> Ran {
        let Numbered { command, number } = found;
        self.client.last_command.store(number, Ordering::Relaxed);
        if let Some(multi) = &mut self.multi
            && !command.has(flag::IMMEDIATE)
        {
            let taken = multi.push(found, args, shared.settings.started.max_request_bytes - self.watches.held_bytes());
            self.publish();
            if !taken {
                CoreStats::add(&self.stats().refused[number], 1);
                return Err(Box::new(Failure::text("ERR the commands of the transaction are larger than max-request")));
            }
            Writer::new(out, self.protocol).simple("QUEUED");
            return Ok(());
        }
        if !self.again {
            CoreStats::add(&self.stats().calls[number], 1);
        }
        if !shared.monitors.is_empty() && !self.again {
            shared.monitors.show(shared, &self.client, self.index, command, args);
        }
        let started = self.ended.take().unwrap_or_else(Instant::now);
        self.began.get_or_insert(started);
        self.client.note_active(started);
        let outcome = if command.has(flag::EXEC) {
            transactions::exec(self, shared, out, rests_on)
        } else {
            let writes = command.has(flag::WRITE);
            self.run(shared, out, rests_on, None, writes, |session, txn, out| run_command(shared, session, txn, command, args, out))
        };
        let ended = Instant::now();
        self.ended = Some(ended);
        if let Err(failure) = &outcome {
            if matches!(**failure, Failure::Wait(_)) {
                // It counts with the attempt that ends it.
                return outcome;
            }
            CoreStats::add(&self.stats().failed[number], 1);
        }
        self.note_time(shared, found, args, ended.duration_since(started));
        outcome
    }

    /// A command has run, for so long. Of EXEC the slow log has the commands.
    #[inline]
    pub(crate) fn note_time(&self, shared: &Shared, found: Numbered, args: Args<'_>, took: Duration) {
        let Numbered { command, number } = found;
        self.stats().add_time(number, took);
        shared.settings.latency.note(if command.has(flag::FAST) { "fast-command" } else { "command" }, took);
        let slow_us = shared.settings.slowlog_slower_than_us.load(Ordering::Relaxed);
        if slow_us >= 0 && took >= Duration::from_micros(slow_us as u64) && !command.has(flag::EXEC) {
            let keep = shared.settings.slowlog_max_len.load(Ordering::Relaxed);
            shared.slowlog.add(args, command.has(flag::SECRET), took, &self.client, keep);
        }
    }
}

/// What a command waits for, if that is what came of it.
#[inline]
fn wish_of(outcome: &mut Ran) -> Option<&mut Request> {
    match outcome.as_mut().err()?.as_mut() {
        Failure::Wait(request) => Some(request),
        _ => None,
    }
}
