//! Backups that SAVE and BGSAVE make if a directory for them is set. Each is a store of its own: a copy of all
//! databases as they are at one moment ([`hither::Db::copy_to_with`]).
//!
//! Their names tell when they were begun, `hither-20261126T173401Z`, and so sort by age. No backup is ever replaced or
//! removed: the administrator of the directory decides how many to keep. Clients go on meanwhile; what they overwrite
//! and delete stays in the store until the backup is done.
//!
//! Thread safety: any thread; one backup at a time ([`crate::saving`]). Crash: a backup appears under its name once it
//! is whole; an unfinished one leaves a directory `hither-….PID.N.part`.

use crate::config::Config;
use crate::events::{self, Level};
use crate::net::StartError;
use crate::shared::{Shared, now_ms};
use hither::{CopyError, CopyReport, Db, Error};
use std::fmt::Display;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often a backup is attempted when FLUSHALL, FLUSHDB or SWAPDB has taken away what was being copied.
const ATTEMPTS: u32 = 5;
/// Pause before the next attempt.
const PAUSE: Duration = Duration::from_millis(100);

/// Makes a backup in this directory. The log gets the error, and the client this text.
pub fn make(shared: &Shared, directory: &Path) -> Result<(), String> {
    let path = free_path(directory);
    let failed = |why: &dyn Display| {
        events::log(Level::Error, "backup-failed", &[("path", &path.display()), ("why", why)]);
        "ERR no backup was made; the server's log says why".to_owned()
    };
    // Otherwise the directory would be created, on whatever disk its name then lies.
    ensure_directory(&shared.settings.started).map_err(|error| failed(&error))?;
    let copied = copy(shared, &path).map_err(|error| failed(&error))?;
    let CopyReport { keys, bytes, .. } = copied;
    events::log(Level::Info, "backup", &[("path", &path.display()), ("keys", &keys), ("bytes", &bytes)]);
    Ok(())
}

/// Returns a name that no backup has, finished or not: two backups, perhaps of two servers, may begin within one
/// second.
fn free_path(directory: &Path) -> PathBuf {
    loop {
        let name = name(now_ms() / 1000);
        let mut files = std::fs::read_dir(directory).into_iter().flatten().flatten();
        if !files.any(|file| file.file_name().as_encoded_bytes().starts_with(name.as_bytes())) {
            return directory.join(name);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Checks that the directory exists which these settings name.
///
/// # Errors
/// [`StartError::Backup`].
pub fn ensure_directory(config: &Config) -> Result<(), StartError> {
    match &config.backup_dir {
        Some(directory) if !directory.is_dir() => Err(StartError::Backup(directory.clone())),
        _ => Ok(()),
    }
}

fn copy(shared: &Shared, path: &Path) -> Result<CopyReport, CopyError> {
    let on = |_| if shared.stopping.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let mut attempts = 1..ATTEMPTS;
    loop {
        match shared.databases.db.copy_to_with(Db::builder().path(path), on) {
            Err(CopyError::Source(Error::KeyspaceDropped(_))) if attempts.next().is_some() => std::thread::sleep(PAUSE),
            outcome => return outcome,
        }
    }
}

/// The name of a backup that begins at this time, in seconds since 1970.
fn name(seconds: u64) -> String {
    let (mut day, of_day) = (seconds / 86_400, seconds % 86_400);
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < days {
            break;
        }
        day -= days;
        month += 1;
    }
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("hither-{year}{month:02}{:02}T{hour:02}{minute:02}{second:02}Z", day + 1)
}

#[cfg(test)]
mod tests {
    use super::name;

    /// As `date -u -d @SECONDS +%Y%m%dT%H%M%SZ` prints them.
    #[test]
    fn names_are_dates() {
        for (seconds, date) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (951_868_800, "20000301T000000Z"),
            (1_798_761_599, "20261231T235959Z"),
            (1_795_714_441, "20261126T173401Z"),
            (4_107_542_400, "21000301T000000Z"),
        ] {
            assert_eq!(name(seconds), format!("hither-{date}"));
        }
    }
}
