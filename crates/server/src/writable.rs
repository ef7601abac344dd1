//! Checks whether the server may write where its settings let it write one day. Otherwise a service on a mostly
//! read-only file system would find out only at the first ACL SAVE or backup.
//!
//! Thread safety: any thread. It writes nothing, and an answer holds only for its moment.

use crate::config::Config;
use crate::events::{self, Level};
use rustix::fs::{Access, access};
use std::path::Path;

/// Logs the directories that cannot be written to. They are no reason not to serve.
pub fn tell(config: &Config) {
    for (setting, directory, error) in unwritable(config) {
        let what = if setting == "aclfile" { "ACL SAVE cannot write its file" } else { "SAVE and BGSAVE cannot make backups" };
        events::log(
            Level::Warn,
            "not-writable",
            &[("setting", &setting), ("path", &directory.display()), ("what", &what), ("why", &error)],
        );
    }
}

/// These directories, with the settings that name them and why they cannot be written to.
fn unwritable(config: &Config) -> Vec<(&'static str, &Path, std::io::Error)> {
    // Files are written beside the one that they replace. A pipe, for one, is never replaced.
    let users = config.aclfile.as_deref().filter(|path| path.is_file()).and_then(Path::parent);
    let here = |directory| if directory == Path::new("") { Path::new(".") } else { directory };
    let directories = [("aclfile", users.map(here)), ("backup-dir", config.backup_dir.as_deref())];
    let refusal = |directory: &Path| access(directory, Access::WRITE_OK | Access::EXEC_OK).err();
    directories.into_iter().filter_map(|(setting, directory)| Some((setting, directory?, refusal(directory?)?.into()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_looked_at_that_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let users = dir.path().join("users.acl");
        std::fs::write(&users, "").unwrap();
        let config = |aclfile: &Path, backup_dir: &Path| Config {
            aclfile: Some(aclfile.to_owned()),
            backup_dir: Some(backup_dir.to_owned()),
            ..Config::default()
        };
        assert!(unwritable(&Config::default()).is_empty());
        assert!(unwritable(&config(&users, dir.path())).is_empty());
        // A name without a directory is in the current one, which is that of this package.
        assert!(unwritable(&config(Path::new("Cargo.toml"), dir.path())).is_empty());
        let gone = dir.path().join("gone");
        let found = config(&gone, &gone);
        let found = unwritable(&found);
        assert!(matches!(&found[..], [("backup-dir", path, error)] if *path == gone && error.kind() == std::io::ErrorKind::NotFound));
    }
}
