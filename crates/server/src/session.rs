//! What belongs to one client: its database, its version of the protocol, its transaction. No networking: tests drive a session with arguments and
//! a buffer.

use crate::commands::failure::Failure;
use crate::commands::table::{Command, Numbered, TABLE, flag};
use crate::commands::{Context, transactions};
use crate::data::{Database, Txn};
use crate::shared::{Client, CoreStats, Shared, now_ms};
use hither::{Error, WriteOptions};
use hither_resp::{Args, Protocol, Writer};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

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
    /// Commands since MULTI.
    pub multi: Option<Multi>,
    /// Keys that EXEC depends on.
    pub watches: Vec<Watch>,
    /// How its writes are made; the store's level unless it asked for another.
    pub options: WriteOptions,
    /// Whether it wants replies.
    pub replies: Replies,
    /// No more commands; close once everything is sent.
    pub closing: bool,
    database: Option<(u64, Arc<Database>)>,
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

/// A transaction that is being put together.
#[derive(Default)]
pub struct Multi {
    /// The commands.
    pub queue: Vec<Queued>,
    /// One of them was refused: EXEC must fail.
    pub refused: bool,
}

/// A command that waits for EXEC.
pub struct Queued {
    /// What to run.
    pub command: &'static Command,
    bytes: Vec<u8>,
    ranges: Vec<Range<usize>>,
}

impl Queued {
    fn new(command: &'static Command, args: Args<'_>) -> Queued {
        let mut queued = Queued { command, bytes: Vec::new(), ranges: Vec::with_capacity(args.len()) };
        for argument in args.iter() {
            let start = queued.bytes.len();
            queued.bytes.extend_from_slice(argument);
            queued.ranges.push(start..queued.bytes.len());
        }
        queued
    }

    /// Its arguments.
    pub fn args(&self) -> Args<'_> {
        Args::new(&self.bytes, &self.ranges)
    }
}

/// A key that must stay as it is until EXEC.
pub struct Watch {
    /// Its database.
    pub database: Arc<Database>,
    /// The key.
    pub key: Vec<u8>,
    /// What it was; `None`: absent.
    pub version: Option<u64>,
}

impl Session {
    /// The session of a new client.
    pub fn new(shared: Arc<Shared>, client: Arc<Client>) -> Session {
        let authenticated = shared.settings.requirepass.read().is_none();
        Session {
            client,
            index: 0,
            protocol: Protocol::Resp2,
            authenticated,
            multi: None,
            watches: Vec::new(),
            options: WriteOptions::new(),
            replies: Replies::On,
            closing: false,
            database: None,
            shared,
        }
    }

    /// As after connecting.
    pub fn reset(&mut self) {
        let closing = self.closing;
        self.client.name.lock().clear();
        *self = Session::new(self.shared.clone(), self.client.clone());
        self.closing = closing;
        self.client.database.store(0, Ordering::Relaxed);
        self.client.protocol.store(2, Ordering::Relaxed);
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

    /// The database that it is in.
    #[inline]
    pub fn database(&mut self) -> Result<Arc<Database>, Error> {
        let generation = self.shared.databases.generation();
        if let Some((known, database)) = &self.database
            && *known == generation
            && database.index == self.index
        {
            return Ok(database.clone());
        }
        let database = self.shared.databases.get(self.index)?.private();
        self.database = Some((generation, database.clone()));
        Ok(database)
    }

    /// Runs one command and appends its reply to `out`. Returns the version that must be durable before the reply may leave; 0: none. `shared` is what
    /// the session was made with.
    pub fn execute(&mut self, shared: &Arc<Shared>, args: Args<'_>, out: &mut Vec<u8>) -> u64 {
        let mark = out.len();
        if self.replies == Replies::SkipNext {
            self.replies = Replies::SkipThis;
        }
        let mut rests_on = 0;
        let outcome = self.admit(args).and_then(|found| self.dispatch(shared, found, args, out, &mut rests_on));
        if let Err(failure) = outcome {
            CoreStats::add(&self.stats().errors, 1);
            out.truncate(mark);
            Writer::new(out, self.protocol).error(&failure.message());
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

    /// Finds the command and says whether it may run at all.
    fn admit(&mut self, args: Args<'_>) -> Result<Numbered, Failure> {
        let outcome = self.admissible(args);
        let Err(failure) = &outcome else { return outcome };
        if let Some(multi) = &mut self.multi {
            multi.refused = true;
        }
        if !args.get(0).is_some_and(|name| name.eq_ignore_ascii_case(b"exec")) {
            return outcome;
        }
        // EXEC itself is wrong: the transaction is over, if there is one; Redis says so in any case.
        let message = failure.message();
        self.multi = None;
        self.watches.clear();
        let why = message.strip_prefix("ERR ").unwrap_or(&message);
        Err(Failure::made(format!("EXECABORT Transaction discarded because of: {why}")))
    }

    fn admissible(&self, args: Args<'_>) -> Result<Numbered, Failure> {
        let found = TABLE.find(args)?;
        let command = found.command;
        if !command.takes(args.len()) {
            return Err(Failure::arity(command));
        }
        if !self.authenticated && !command.has(flag::NO_AUTH) {
            return Err(Failure::text("NOAUTH Authentication required."));
        }
        if self.multi.is_some() && command.has(flag::NO_MULTI) {
            return Err(Failure::text("ERR Command not allowed inside a transaction"));
        }
        Ok(found)
    }

    fn dispatch(
        &mut self,
        shared: &Arc<Shared>,
        found: Numbered,
        args: Args<'_>,
        out: &mut Vec<u8>,
        rests_on: &mut u64,
    ) -> Result<(), Failure> {
        let Numbered { command, number } = found;
        CoreStats::add(&self.stats().calls[number], 1);
        self.client.last_command.store(number, Ordering::Relaxed);
        if let Some(multi) = &mut self.multi
            && !command.has(flag::IMMEDIATE)
        {
            multi.queue.push(Queued::new(command, args));
            Writer::new(out, self.protocol).simple("QUEUED");
            return Ok(());
        }
        let slow_us = shared.settings.slowlog_slower_than_us.load(Ordering::Relaxed);
        let started = Instant::now();
        self.client.active_ms.store(started.duration_since(self.client.connected).as_millis() as u64, Ordering::Relaxed);
        let outcome = if command.has(flag::EXEC) {
            transactions::exec(self, shared, out, rests_on)
        } else {
            self.run(shared, out, rests_on, None, |session, txn, out| run_command(shared, session, txn, command, args, out))
        };
        if slow_us >= 0 && started.elapsed() >= Duration::from_micros(slow_us as u64) {
            let keep = shared.settings.slowlog_max_len.load(Ordering::Relaxed);
            shared.slowlog.add(args, command.has(flag::SECRET), started.elapsed(), &self.client, keep);
        }
        outcome
    }

    /// Runs `work` in a transaction until nobody was faster. Replies and the session's database are as before at each attempt. With `watches` the
    /// transaction is one of several commands; [`Failure::Watched`] says that a watched key has changed.
    pub fn run(
        &mut self,
        shared: &Arc<Shared>,
        out: &mut Vec<u8>,
        rests_on: &mut u64,
        watches: Option<&[Watch]>,
        mut work: impl FnMut(&mut Session, &mut Txn, &mut Vec<u8>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (mark, index, protocol) = (out.len(), self.index, self.protocol);
        for attempt in 0u64.. {
            let mut txn = Txn::new(self.database()?, watches.is_some(), self.options);
            let outcome = match txn.require_unchanged(watches.unwrap_or_default()) {
                Ok(true) => work(self, &mut txn, out),
                Ok(false) => Err(Failure::Watched),
                Err(error) => Err(error.into()),
            };
            // An error tells of what was read, too.
            *rests_on = txn.rests_on().max(*rests_on);
            match outcome.and_then(|()| Ok(txn.commit(&shared.databases.db)?)) {
                Ok(done) if done.applied => {
                    *rests_on = done.rests_on.max(*rests_on);
                    done.orphans.into_iter().for_each(|(database, number)| shared.databases.reaper.announce(database, number));
                    return Ok(());
                }
                // Somebody was faster.
                Ok(_) | Err(Failure::Again) => {}
                // The database was flushed under it: once more with the new one.
                Err(Failure::Store(Error::KeyspaceDropped(_))) => self.database = None,
                Err(failure) => return Err(failure),
            }
            CoreStats::add(&self.stats().retries, 1);
            if attempt > 4 {
                std::thread::yield_now();
            }
            out.truncate(mark);
            (self.index, self.protocol) = (index, protocol);
        }
        Ok(())
    }
}

/// Runs a command in a transaction.
pub fn run_command(
    shared: &Arc<Shared>,
    session: &mut Session,
    txn: &mut Txn,
    command: &Command,
    args: Args<'_>,
    out: &mut Vec<u8>,
) -> Result<(), Failure> {
    let reply = Writer::new(out, session.protocol);
    (command.run)(&mut Context { shared, session, args, txn, reply, now_ms: now_ms() })
}
