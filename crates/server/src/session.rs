//! The state of one client, without networking: tests drive it with arguments and a buffer. Transactions run in [`crate::attempts`].

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
use crate::shared::{Client, CoreStats, Shared};
use crate::transaction::{Multi, Queued, Watches};
use crate::waiting::{Request, Wait};
use hither::{Error, WriteOptions};
use hither_resp::{Args, Protocol, Writer};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// What a command does outside the store and its session; see [`crate::commands::Context::once_applied`].
pub(crate) type Effect = Box<dyn FnOnce(&Arc<Shared>, &mut Session) + Send>;

/// The state of one client.
pub struct Session {
    /// What other threads see of the client.
    pub client: Arc<Client>,
    /// Number of its database; SELECT and RESET set it.
    pub index: u16,
    /// Version of the protocol; HELLO and RESET set it.
    pub protocol: Protocol,
    /// Whether it has logged in, or the default user needs no password.
    pub authenticated: bool,
    /// The user whose rights apply.
    pub user: Arc<User>,
    /// [`crate::acl::Acl::generation`] when `user` was looked up.
    pub(crate) generation: u64,
    /// The commands since MULTI; `None` outside a transaction.
    pub multi: Option<Multi>,
    /// The keys that EXEC depends on.
    pub watches: Watches,
    /// Options of its writes: the store's durability level, unless HITHER.DURABILITY chose another.
    pub options: WriteOptions,
    /// Which replies it gets; CLIENT REPLY sets it.
    pub replies: Replies,
    /// The wait of its last command. `execute` sets it, and clears it once the command has answered.
    pub wait: Option<Box<Wait>>,
    /// Whether the command is a repetition after a wait, which counts no call; `execute` sets it.
    again: bool,
    /// Set from MONITOR until RESET: the client is shown the commands of others.
    pub watching: Option<Watching>,
    /// No further command runs; the connection closes once all replies are sent. Set by QUIT, by errors that end the connection, and by
    /// whoever closes the client in order. Only an EXEC that fails or runs again resets it to its earlier value.
    pub closing: bool,
    /// The reply buffer may grow to this length while a command runs; `execute` sets it from max-output.
    pub output_limit: usize,
    /// When its last command ended, if the next one follows at once and its time begins then: one reading of the clock per command.
    pub ended: Option<Instant>,
    /// When the first command of its turn began; cleared as each turn begins.
    pub began: Option<Instant>,
    pub(crate) database: Option<(u64, Arc<Database>)>,
    /// An empty transaction kept for the next command.
    pub(crate) spare: Option<Box<Txn>>,
    /// What is done once this attempt is applied; dropped if it fails.
    pub(crate) effects: Vec<Effect>,
    /// Cursors that this attempt has answered, kept once it is applied: no client knows the cursor of a command that fails.
    pub(crate) cursors: Given,
    /// As `effects`, but done even if the command fails.
    pub(crate) refusals: Vec<Effect>,
    /// Numbers of keys that this attempt's commands found, and did not find, when reading.
    pub(crate) looked_up: [u64; 2],
    shared: Arc<Shared>,
}

/// Which replies a client gets (`CLIENT REPLY`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replies {
    /// All replies.
    On,
    /// No replies.
    Off,
    /// No reply to the next command.
    SkipNext,
    /// No reply to the command that runs.
    SkipThis,
}

impl Session {
    /// Returns the session of a new client.
    pub fn new(shared: Arc<Shared>, client: Arc<Client>) -> Session {
        // Read before the user: the next command notices a change between the two.
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

    /// Resets everything to the state after connecting, except what ends the connection or times the turn.
    pub fn reset(&mut self) {
        let (closing, began) = (self.closing, self.began);
        // As in Redis: no answer even if this ends SKIP.
        let replies = if self.replies == Replies::SkipThis { Replies::SkipThis } else { Replies::On };
        self.client.name.lock().clear();
        *self.client.user.lock() = crate::acl::DEFAULT.to_owned();
        *self = Session::new(self.shared.clone(), self.client.clone());
        (self.closing, self.began, self.replies) = (closing, began, replies);
        self.client.database.store(0, Ordering::Relaxed);
        self.client.protocol.store(2, Ordering::Relaxed);
        self.publish();
    }

    /// Publishes to other threads what the session keeps for its transaction.
    pub fn publish(&self) {
        let multi = self.multi.as_ref();
        self.client.queued.store(multi.map_or(-1, |multi| multi.queue().len() as i64), Ordering::Relaxed);
        self.client.queued_bytes.store(multi.map_or(0, Multi::held_bytes), Ordering::Relaxed);
        self.client.watched.store(self.watches.len(), Ordering::Relaxed);
        self.client.watched_bytes.store(self.watches.held_bytes(), Ordering::Relaxed);
    }

    /// The state that all sessions share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The counters of the session's thread.
    #[inline]
    pub fn stats(&self) -> &CoreStats {
        &self.shared.cores[self.client.core]
    }

    /// The database that the session is in. [`Failure::Wait`] as for [`Session::open_database`].
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

    /// The same, if it has been opened before and has not been replaced.
    #[inline]
    fn known_database(&self) -> Option<&Arc<Database>> {
        let (known, database) = self.database.as_ref()?;
        (*known == self.shared.databases.generation() && database.index == self.index).then_some(database)
    }

    /// Returns a transaction, most often that of the command before, whose write is still being flushed. No store leaves the processor
    /// until then: many stores (a new transaction), a changed reference count or a read of what was stored in other pieces would wait.
    #[inline]
    pub(crate) fn take_txn(&mut self, isolated: bool) -> Result<Box<Txn>, Failure> {
        let spare = self.spare.take();
        if let Some(txn) = self.known_database().zip(spare).and_then(|(database, spare)| spare.renew(database, isolated, self.options)) {
            return Ok(txn);
        }
        Ok(Box::new(Txn::new(self.database()?, isolated, self.options)))
    }

    /// Has the store begin to load what commands with these keys will touch, if the database is known.
    pub fn prefetch(&self, keys: &[&[u8]]) {
        if let Some(database) = self.known_database() {
            database.keys.prefetch(keys);
        }
    }

    /// Runs a command, appends its reply to `out` and returns the version that must be durable before it leaves; 0: none. `shared` is the
    /// session's own. If the command waits ([`Session::is_waiting`]) there is no reply: repeat the call once the client is woken.
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
            if let Failure::Store(Error::SyncFailed(why)) = &*failure {
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

    /// A reply was too large, so its command was not done. A client that takes no replies would go on as if it were, so it is closed.
    #[cold]
    fn hang_up_on_the_deaf(&mut self) {
        if matches!(self.replies, Replies::Off | Replies::SkipThis) {
            self.closing = true;
            self.client.log_closed(Level::Warn, &"a reply is larger than max-output, and it takes none that would say so (CLIENT REPLY)");
        }
    }

    /// How long its turn had taken when its last command ended; 0 if unknown.
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

    /// Finds the command and checks whether it may run at all.
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
        // EXEC itself is refused: it ends the transaction, if there is one. Redis answers this in any case.
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

    /// Whether the client may use DEBUG.
    #[cold]
    fn may_debug(&self) -> bool {
        match self.shared.settings.started.enable_debug_command {
            DebugCommand::No => false,
            DebugCommand::Local => self.client.address.parse::<SocketAddr>().is_ok_and(|peer| peer.ip().to_canonical().is_loopback()),
            DebugCommand::Yes => true,
        }
    }

    /// A web page may have had a local browser send a request here, whose lines pass for commands: a client that speaks HTTP is closed.
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

    /// Some user has changed, perhaps this one: looks it up again. A client whose user was deleted is closed.
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

    /// Logs the client in as this user.
    pub fn log_in(&mut self, user: Arc<User>) {
        self.authenticated = true;
        self.client.user.lock().clone_from(&user.name);
        self.user = user;
    }

    /// Records a refusal and returns its error.
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

    /// Adds a refusal to ACL LOG.
    #[cold]
    pub fn note_refusal(&self, reason: Reason, in_exec: bool, object: &[u8], user: &[u8]) {
        let keep = self.shared.settings.acllog_max_len.load(Ordering::Relaxed);
        self.shared.acl().log.add(reason, in_exec, object, user, &self.client, keep);
    }

    /// As [`Session::note_refusal`], once for all attempts of the command, even if it fails; not if its whole transaction fails.
    #[cold]
    pub fn note_refusal_once(&mut self, reason: Reason, in_exec: bool, object: &[u8], user: &[u8]) {
        let (object, user) = (object.to_vec(), user.to_vec());
        self.refusals.push(Box::new(move |_, session| session.note_refusal(reason, in_exec, &object, &user)));
    }

    /// Checks whether a queued command is still allowed when EXEC runs it.
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
                // A call that waits counts with the attempt that ends it.
                return outcome;
            }
            CoreStats::add(&self.stats().failed[number], 1);
        }
        self.note_time(shared, found, args, ended.duration_since(started));
        outcome
    }

    /// Records the time of a command. The slow log gets the commands of an EXEC, not EXEC itself.
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

/// The request of a command whose outcome is that it has to wait.
#[inline]
fn wish_of(outcome: &mut Ran) -> Option<&mut Request> {
    match outcome.as_mut().err()?.as_mut() {
        Failure::Wait(request) => Some(request),
        _ => None,
    }
}
