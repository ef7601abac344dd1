//! The circumstances that a measurement must record: where and when it was made.

use crate::workspace;
use serde_json::{Value, json};
use std::fs;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Processor, cores, memory, kernel and compiler.
pub fn describe() -> Value {
    json!({
        "cpu": field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory": field("/proc/meminfo", "MemTotal"),
        "kernel": fs::read_to_string("/proc/sys/kernel/osrelease").ok().map(|text| text.trim().to_owned()),
        "rustc": output("rustc", &["--version"]),
    })
}

/// The commit of the working tree, with `+` if files differ from it.
pub fn commit() -> Option<String> {
    let head = output("git", &["rev-parse", "HEAD"])?;
    let clean = output("git", &["status", "--porcelain", "--untracked-files=no"]).is_some_and(|changes| changes.is_empty());
    Some(if clean { head } else { head + "+" })
}

/// Today's date in UTC, `YYYY-MM-DD`.
pub fn today() -> String {
    let (year, month, day) = civil(now_s() / 86_400);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Processor time of all child processes that have ended and were waited for, and of their children; zero if the system
/// is not Linux.
pub fn processor_time_of_children() -> Duration {
    fs::read_to_string("/proc/self/stat").ok().and_then(|stat| children_of(&stat)).unwrap_or_default()
}

/// Reads that time from a line of `/proc/PID/stat`. It is the sum of the 16th and the 17th field, which Linux gives in
/// hundredths of a second to every program. The second field is a name in parentheses that may contain anything.
fn children_of(stat: &str) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: Vec<u64> = fields.split_whitespace().skip(13).take(2).map_while(|ticks| ticks.parse().ok()).collect();
    if let [user, system] = ticks[..] { Some(Duration::from_millis((user + system) * 10)) } else { None }
}

/// Seconds since 1970.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_secs())
}

/// Year, month and day of the Gregorian calendar, for a number of days since 1970.
fn civil(days: u64) -> (u64, u64, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut rest) = (1970, days);
    while rest >= 365 + u64::from(leap(year)) {
        rest -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if rest < length {
            break;
        }
        rest -= length;
        month += 1;
    }
    (year, month, rest + 1)
}

fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).current_dir(workspace::root()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_times_of_children() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194304 10 20 0 0 31 32 433 34 20 0 1 0 5 6 7";
        assert_eq!(children_of(stat), Some(Duration::from_millis(4670)));
        assert_eq!(children_of("7 (short) S 1 7"), None);
    }

    #[test]
    fn knows_the_calendar() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(11_017), (2000, 3, 1));
        assert_eq!(civil(20_453), (2025, 12, 31));
        assert_eq!(civil(20_454), (2026, 1, 1));
    }
}
