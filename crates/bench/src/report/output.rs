//! A file that a command writes after its measurements.
//!
//! It is opened before them, because a path that cannot be written must not cost hours of measuring. Until it is
//! written it keeps what it had.
//!
//! Thread safety: one owner.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::target::{Error, Result};

/// An open file without its new content.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    file: File,
}

impl Output {
    /// Opens the file, if one is wanted.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn open(path: Option<&Path>) -> Result<Option<Output>> {
        let open = |path: &Path| {
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
            let file = file.map_err(|e| Error::io(format!("opening {} for writing", path.display()), e))?;
            Ok(Output { path: path.to_owned(), file })
        };
        path.map(open).transpose()
    }

    /// Replaces the content.
    ///
    /// # Errors
    /// The system's, for example if there is no room.
    pub fn write(mut self, content: &[u8]) -> Result<()> {
        // Only a plain file has an old content; a pipe has no length to be set.
        let plain = self.file.metadata().is_ok_and(|info| info.is_file());
        let cut = if plain { self.file.set_len(0) } else { Ok(()) };
        cut.and_then(|()| self.file.write_all(content)).map_err(|e| Error::io(format!("writing {}", self.path.display()), e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_opened_before_it_is_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("records");
        assert!(Output::open(None).expect("none is wanted").is_none());
        let message = Output::open(Some(&path.join("below"))).expect_err("there is no such directory").to_string();
        assert!(message.contains("records/below"), "{message}");
        std::fs::write(&path, "long and old").expect("written");
        let output = Output::open(Some(&path)).expect("opened").expect("wanted");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "long and old");
        output.write(b"new").expect("written");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "new");
    }
}
