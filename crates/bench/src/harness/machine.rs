//! Where, when and with which program a figure was made: commit, sources, date, processor, kernel.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A hash of the harness sources that this program was built from.
pub const BUILT_FROM: &str = env!("HITHER_BENCH_BUILT_FROM");

/// The circumstances of a run, part of every record.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// `git rev-parse`, or `unknown`; ends with `+` if the work tree differs.
    pub commit: String,
    /// A hash of the harness sources that the program was built from. The commit, in contrast, is that of the directory
    /// it runs in.
    #[serde(default)]
    pub built_from: String,
    /// UTC, `YYYY-MM-DDThh:mm:ssZ`.
    pub date: String,
    /// The processor's model name.
    pub cpu: String,
    /// Number of processors that the process may use.
    pub processors: usize,
    /// Kernel release.
    pub kernel: String,
}

impl Machine {
    /// Reads the circumstances from the system.
    pub fn here() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        Self {
            commit: commit(),
            built_from: BUILT_FROM.to_owned(),
            date: date_utc(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())),
            cpu: cpu_model(&read("/proc/cpuinfo")),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_string(),
        }
    }
}

fn commit() -> String {
    let git = |args: &[&str]| Command::new("git").args(args).output().ok().filter(|o| o.status.success());
    let Some(output) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown".into() };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|o| !o.stdout.is_empty());
    let mut commit = String::from_utf8_lossy(&output.stdout).trim().to_string();
    if changed {
        commit.push('+');
    }
    commit
}

fn cpu_model(cpuinfo: &str) -> String {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split_once(':')).map_or("unknown".into(), |(_, name)| name.trim().to_string())
}

/// The civil date of `seconds` since 1970 (proleptic Gregorian, counted in eras of 400 years from 1 March).
fn date_utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(date_utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(date_utc(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(date_utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date_utc(1_709_251_200), "2024-03-01T00:00:00Z");
        assert_eq!(date_utc(1_767_225_599), "2025-12-31T23:59:59Z");
    }

    #[test]
    fn model_name() {
        assert_eq!(cpu_model("processor: 0\nmodel name\t: A Processor\n"), "A Processor");
        assert_eq!(cpu_model(""), "unknown");
    }
}
