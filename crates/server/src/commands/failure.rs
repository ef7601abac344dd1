//! Errors as clients see them: a code, a space, a message, in Redis' words where Redis has the same error.

use super::table::Command;
use crate::events::{self, Level};
use crate::shared::now_ms;
use crate::waiting::Request;
use hither::{Error, ErrorKind};
use hither_resp::Args;
use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a command gave no reply of its own.
#[derive(Debug)]
pub enum Failure {
    /// This error reply.
    Text(Cow<'static, str>),
    /// The store returned an error.
    Store(Error),
    /// What was read did not belong to one state: run the command again.
    Again,
    /// A watched key has changed: EXEC answers null.
    Watched,
    /// There is nothing to answer yet: see [`crate::waiting`].
    Wait(Box<Request>),
    /// The reply is larger than max-output, so it could never leave.
    ReplyTooLarge,
    /// The command would hold more than max-request bytes of the store's data.
    HeldTooLarge,
    /// The writes of a transaction's commands, with the keys that they read, exceed what it may hold until its end.
    TransactionTooLarge,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Store(error)
    }
}

impl Failure {
    /// An error with a fixed text.
    pub const fn text(text: &'static str) -> Failure {
        Failure::Text(Cow::Borrowed(text))
    }

    /// An error with a composed text.
    pub fn made(text: String) -> Failure {
        Failure::Text(Cow::Owned(text))
    }

    /// The error for a wrong number of arguments.
    #[cold]
    pub fn arity(command: &Command) -> Failure {
        Failure::made(format!("ERR wrong number of arguments for '{}' command", command.full_name()))
    }

    /// The same for a subcommand that may not exist: Redis does not tell which is wrong.
    #[cold]
    pub fn subcommand(args: Args<'_>) -> Failure {
        let (container, name) = (shown(&args[0]).to_ascii_uppercase(), shown(&args[1]));
        Failure::made(format!("ERR unknown subcommand or wrong number of arguments for '{name}'. Try {container} HELP."))
    }

    /// Arguments that are not valid together.
    pub const SYNTAX: Failure = Failure::text("ERR syntax error");
    /// The key holds a value of another type.
    pub const WRONG_TYPE: Failure = Failure::text("WRONGTYPE Operation against a key holding the wrong kind of value");
    /// An argument or value is not an integer.
    pub const NOT_INTEGER: Failure = Failure::text("ERR value is not an integer or out of range");
    /// An argument or value is not a floating-point number.
    pub const NOT_FLOAT: Failure = Failure::text("ERR value is not a valid float");
    /// A key that is needed does not exist.
    pub const NO_KEY: Failure = Failure::text("ERR no such key");
    /// The client was killed; nobody reads this, because the connection is closed.
    pub const KILLED: Failure = Failure::text("ERR the client was killed");
    /// A sum that does not fit.
    pub const OVERFLOW: Failure = Failure::text("ERR increment or decrement would overflow");

    /// Whether it concerns one command of a transaction alone, and the others go on.
    pub fn is_of_one_command(&self) -> bool {
        match self {
            // The store reports these before anything is written.
            Failure::Text(_) | Failure::HeldTooLarge => true,
            Failure::Store(error) => matches!(error, Error::KeyEmpty | Error::KeyTooLong { .. } | Error::ValueTooLong { .. }),
            Failure::Again | Failure::Watched | Failure::Wait(_) | Failure::ReplyTooLarge | Failure::TransactionTooLarge => false,
        }
    }

    /// The error reply that the client gets.
    pub fn message(&self) -> Cow<'static, str> {
        match self {
            Failure::Text(text) => text.clone(),
            Failure::Store(error) => of_store(error).into(),
            Failure::Again => "TRYAGAIN the database was flushed, or what the command reads has changed, in each of many attempts".into(),
            Failure::Watched => "EXECABORT a watched key has changed".into(),
            Failure::Wait(_) => "ERR the command has to wait".into(),
            Failure::ReplyTooLarge => "ERR the reply is larger than max-output, so nothing was done".into(),
            Failure::HeldTooLarge => "ERR the command would hold more than max-request of the store in memory, so nothing was done".into(),
            Failure::TransactionTooLarge => {
                "ERR what the commands of the transaction write, with the keys that they read, is more than max-request, so nothing was done: divide them among several".into()
            }
        }
    }
}

/// The store's error as a reply. Only the log names files and devices, which are not for clients.
pub fn of_store(error: &Error) -> String {
    match error {
        Error::DiskFull(why) => {
            tell(why);
            return "OOM command not allowed: the disk of the store is full; the log of the server says more".to_owned();
        }
        Error::Io(why) | Error::NotWritable(why) => {
            tell(why);
            return "MISCONF the system has failed the store; the log of the server says more".to_owned();
        }
        Error::Damaged(why) => {
            tell(why);
            return "MISCONF the store is damaged; the log of the server says more".to_owned();
        }
        Error::SyncFailed(_) => {
            return "MISCONF the store is read-only since a sync failed, and what was not acknowledged may be lost; the log of the server says more"
                .to_owned();
        }
        _ => {}
    }
    let code = match error.kind() {
        ErrorKind::Full | ErrorKind::TooLarge => "OOM command not allowed:",
        ErrorKind::SyncFailed | ErrorKind::Closed => "MISCONF",
        _ => "ERR",
    };
    format!("{code} {error}")
}

/// Logs why the store refuses, at most once in a second, because every command may get the error.
#[cold]
fn tell(why: &str) {
    static TOLD_S: AtomicU64 = AtomicU64::new(0);
    let second = now_ms() / 1000;
    if TOLD_S.swap(second, Ordering::Relaxed) != second {
        events::log(Level::Error, "store-failed", &[("why", &why)]);
    }
}

/// Text of a client for an error message, shortened and without control characters.
pub fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(128)]).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: replies named the files of the store.
    #[test]
    fn no_reply_names_a_file() {
        let text = || "pool /srv/data/node0.hither cannot grow".to_owned();
        for (error, code) in [(Error::DiskFull(text()), "OOM "), (Error::Io(text()), "MISCONF "), (Error::SyncFailed(text()), "MISCONF ")] {
            let reply = of_store(&error);
            assert!(reply.starts_with(code) && !reply.contains("/srv"), "{reply}");
        }
        assert!(of_store(&Error::Full { used: 1, limit: 2 }).starts_with("OOM command not allowed: the store is full"));
    }
}
