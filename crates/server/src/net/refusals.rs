//! Connections that a thread refuses, for the log. Many may come at once, so one line reports all within [`EVERY`].

use crate::events::{self, Level};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Minimum time between two lines.
const EVERY: Duration = Duration::from_secs(1);

/// The refusals that no line has reported yet.
#[derive(Default)]
pub struct Refusals {
    count: u64,
    /// The newest one, and why it was refused.
    newest: Option<(SocketAddr, String)>,
    /// Why accepting failed last.
    failure: Option<String>,
    logged: Option<Instant>,
}

impl Refusals {
    /// Notes a refused connection.
    pub fn note(&mut self, peer: SocketAddr, why: &str) {
        self.count += 1;
        self.newest = Some((peer, why.to_owned()));
    }

    /// Notes that accepting failed.
    pub fn note_failure(&mut self, error: &std::io::Error) {
        self.failure = Some(error.to_string());
    }

    /// Writes the line, if there is something to report and the last line is old enough.
    pub fn log_if_due(&mut self) {
        if (self.newest.is_some() || self.failure.is_some()) && self.logged.is_none_or(|logged| logged.elapsed() >= EVERY) {
            self.logged = Some(Instant::now());
            self.log();
        }
    }

    /// Writes the line, if there is something to report.
    pub fn log(&mut self) {
        if let Some((peer, why)) = self.newest.take() {
            events::log(Level::Warn, "connections-refused", &[("count", &self.count), ("newest", &peer), ("why", &why)]);
            self.count = 0;
        }
        if let Some(why) = self.failure.take() {
            events::log(Level::Warn, "accept-failed", &[("why", &why)]);
        }
    }
}
