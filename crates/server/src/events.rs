//! Standard error: one line for each event, for people and programs. No line holds keys, values or passwords.
//!
//! `time=SECONDS level=LEVEL event=NAME key=value …`, or the same as a JSON object.

use std::fmt::{Display, Write as _};
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// How much an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// For those who look for an error.
    Debug,
    /// The usual course.
    Info,
    /// Somebody should look.
    Warn,
    /// Something does not work.
    Error,
}

impl Level {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
        }
    }

    /// The level of a word.
    pub fn named(name: &str) -> Option<Level> {
        [Level::Debug, Level::Info, Level::Warn, Level::Error].into_iter().find(|level| level.name().eq_ignore_ascii_case(name))
    }
}

static LEAST: AtomicU8 = AtomicU8::new(Level::Info as u8);
static JSON: AtomicBool = AtomicBool::new(false);

/// Events below this level are left out.
pub fn set_level(level: Level) {
    LEAST.store(level as u8, Ordering::Relaxed);
}

/// The level in force.
pub fn level() -> Level {
    let least = LEAST.load(Ordering::Relaxed);
    [Level::Debug, Level::Info, Level::Warn].into_iter().find(|level| *level as u8 == least).unwrap_or(Level::Error)
}

/// Lines are JSON objects.
pub fn set_json(on: bool) {
    JSON.store(on, Ordering::Relaxed);
}

/// Writes one event, if its level is high enough.
pub fn log(level: Level, event: &str, pairs: &[(&str, &dyn Display)]) {
    if (level as u8) < LEAST.load(Ordering::Relaxed) {
        return;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let line = line(&format!("{}.{:03}", now.as_secs(), now.subsec_millis()), level, event, pairs, JSON.load(Ordering::Relaxed));
    // Whole lines, and nobody can be told if that fails.
    let _ = std::io::stderr().write_all(line.as_bytes());
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

/// As a string of JSON.
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
