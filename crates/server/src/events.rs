//! The log on standard error: one line for each event, for people and programs. No line holds keys, values or
//! passwords.
//!
//! `time=SECONDS level=LEVEL event=NAME key=value …`, or the same as a JSON object.
//!
//! Thread safety: any thread. While a server runs, no thread that logs waits for the reader of the log: see [`writer`].

pub mod writer;

use crate::shared::now_ms;
use parking_lot::Mutex;
use std::fmt::{Display, Write as _};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// How important an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// For the search for an error.
    Debug,
    /// Normal operation.
    Info,
    /// An administrator should look.
    Warn,
    /// Something does not work.
    Error,
}

impl Level {
    /// The name of the level.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
        }
    }

    /// The level of this name, in any case; also by the names that Redis has for it.
    pub fn named(name: &str) -> Option<Level> {
        match name.to_ascii_lowercase().as_str() {
            "debug" | "verbose" => Some(Level::Debug),
            "info" | "notice" => Some(Level::Info),
            "warn" | "warning" => Some(Level::Warn),
            "error" => Some(Level::Error),
            _ => None,
        }
    }
}

static LEAST: AtomicU8 = AtomicU8::new(Level::Info as u8);
static JSON: AtomicBool = AtomicBool::new(false);

/// Sets the level; events below it are left out.
pub fn set_level(level: Level) {
    LEAST.store(level as u8, Ordering::Relaxed);
}

/// The level in force.
pub fn level() -> Level {
    let least = LEAST.load(Ordering::Relaxed);
    [Level::Debug, Level::Info, Level::Warn].into_iter().find(|level| *level as u8 == least).unwrap_or(Level::Error)
}

fn is_wanted(level: Level) -> bool {
    level as u8 >= LEAST.load(Ordering::Relaxed)
}

/// Chooses whether lines are JSON objects.
pub fn set_json(on: bool) {
    JSON.store(on, Ordering::Relaxed);
}

/// Writes one event, if its level is high enough.
pub fn log(level: Level, event: &str, pairs: &[(&str, &dyn Display)]) {
    if let Some(line) = line_now(level, event, pairs) {
        writer::put(&line);
    }
}

/// The line of an event that happens now; none if its level is too low.
fn line_now(level: Level, event: &str, pairs: &[(&str, &dyn Display)]) -> Option<String> {
    if !is_wanted(level) {
        return None;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = format!("{}.{:03}", now.as_secs(), now.subsec_millis());
    Some(line(&time, level, event, pairs, JSON.load(Ordering::Relaxed)))
}

/// As [`log`], for events that clients can cause as often as they like: more than [`FEW`] lines in a second are only
/// counted.
pub fn log_few(level: Level, event: &str, pairs: &[(&str, &dyn Display)]) {
    if !is_wanted(level) {
        return;
    }
    let (is_one, before) = BUDGET.lock().take(second());
    tell_count(before);
    if is_one {
        log(level, event, pairs);
    }
}

/// Reports how many lines were left out in a second that is over. The first thread calls it at each tick.
pub fn tell_left_out() {
    let before = BUDGET.lock().settle(second());
    tell_count(before);
}

fn tell_count(count: u64) {
    if let Some(line) = left_out(count, &format_args!("clients caused more than {FEW} in a second")) {
        writer::put(&line);
    }
}

/// The line that reports how many lines were left out, and why; none if there are none.
fn left_out(count: u64, why: &dyn Display) -> Option<String> {
    if count == 0 {
        return None;
    }
    line_now(Level::Warn, "lines-left-out", &[("count", &count), ("why", why)])
}

/// Maximum lines of [`log_few`] in a second.
const FEW: u32 = 100;

static BUDGET: Mutex<Budget> = Mutex::new(Budget { second: 0, lines: 0, left_out: 0 });

/// What was written and left out within a second.
struct Budget {
    second: u64,
    lines: u32,
    left_out: u64,
}

impl Budget {
    /// Begins a new second if it is one; returns how many lines were left out in the one before.
    fn settle(&mut self, second: u64) -> u64 {
        if self.second == second {
            return 0;
        }
        (self.second, self.lines) = (second, 0);
        std::mem::take(&mut self.left_out)
    }

    /// Returns whether a line may be written, and the number of [`Budget::settle`].
    fn take(&mut self, second: u64) -> (bool, u64) {
        let before = self.settle(second);
        let is_one = self.lines < FEW;
        if is_one {
            self.lines += 1;
        } else {
            self.left_out += 1;
        }
        (is_one, before)
    }
}

/// Whole seconds since 1970.
fn second() -> u64 {
    now_ms() / 1000
}

fn line(time: &str, level: Level, event: &str, pairs: &[(&str, &dyn Display)], json: bool) -> String {
    let mut line = String::new();
    // Writing to a string does not fail.
    let _ = if json {
        write!(line, "{{\"time\":{time},\"level\":\"{}\",\"event\":\"{event}\"", level.name())
    } else {
        write!(line, "time={time} level={} event={event}", level.name())
    };
    for (key, value) in pairs {
        let value = value.to_string();
        let plain = !value.is_empty() && value.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '='));
        let _ = match (json, plain) {
            (true, _) => write!(line, ",\"{key}\":{}", quoted(&value)),
            (false, true) => write!(line, " {key}={value}"),
            (false, false) => write!(line, " {key}={}", quoted(&value)),
        };
    }
    line.push_str(if json { "}\n" } else { "\n" });
    line
}

/// Formats text as a JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_cause_is_limited_and_counted() {
        let mut budget = Budget { second: 0, lines: 0, left_out: 0 };
        let written = (0..FEW + 7).filter(|_| budget.take(5).0).count();
        assert_eq!(written, FEW as usize);
        assert_eq!(budget.settle(5), 0, "the second is not over");
        assert_eq!(budget.take(6), (true, 7));
        assert_eq!((budget.take(6), budget.settle(7)), ((true, 0), 0));
    }

    #[test]
    fn lines_stay_lines() {
        let pairs: [(&str, &dyn Display); 3] = [("n", &5), ("path", &"/a b\n\"c\""), ("empty", &"")];
        assert_eq!(line("1.5", Level::Warn, "x", &pairs, false), "time=1.5 level=warn event=x n=5 path=\"/a b\\n\\\"c\\\"\" empty=\"\"\n");
        assert_eq!(
            line("1.5", Level::Info, "x", &pairs, true),
            "{\"time\":1.5,\"level\":\"info\",\"event\":\"x\",\"n\":\"5\",\"path\":\"/a b\\n\\\"c\\\"\",\"empty\":\"\"}\n"
        );
    }

    #[test]
    fn levels_have_names() {
        for level in [Level::Debug, Level::Info, Level::Warn, Level::Error] {
            assert_eq!(Level::named(&level.name().to_uppercase()), Some(level));
        }
        assert_eq!(Level::named("loud"), None);
    }
}
