//! Pools behind symbolic links: a directory may hold links to files on the devices of the nodes.

use std::os::unix::fs::symlink;
use std::path::Path;

use super::small;
use crate::pool::storage::folders_of_name;
use crate::{CreateOptions, MediumChoice, OpenOptions, Pool};

/// A folder with a link to a file in another folder; the file does not exist yet.
fn linked() -> (tempfile::TempDir, std::path::PathBuf, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let device = dir.path().join("device");
    std::fs::create_dir(&device).unwrap();
    let (link, target) = (dir.path().join("node0.pool"), device.join("pool"));
    symlink(Path::new("device/pool"), &link).unwrap();
    (dir, link, target)
}

/// Regression: the link was removed and the file stayed, so the device stayed full and the next creation used another
/// file.
#[test]
fn an_unborn_pool_is_removed_and_the_link_to_it_stays() {
    let (_dir, link, target) = linked();
    let options = CreateOptions { medium: MediumChoice::File, ..small() };
    drop(Pool::create(&link, &options).unwrap());
    assert!(target.exists());
    Pool::discard_unborn(&link).unwrap();
    assert!(!target.exists(), "the file behind the link takes room");
    Pool::create(&link, &options).unwrap().finish_creation().unwrap();
    assert!(target.exists() && link.is_symlink());
    drop(Pool::open(&link, &OpenOptions::new()).unwrap());
}

/// Regression: the name of the file behind a link was not made durable, only that of the link.
#[test]
fn both_names_of_a_linked_pool_are_made_durable() {
    let (dir, link, target) = linked();
    std::fs::write(&target, b"").unwrap();
    let folders = folders_of_name(&link).unwrap();
    let same = |a: &Path, b: &Path| a.canonicalize().unwrap() == b.canonicalize().unwrap();
    assert!(folders.iter().any(|folder| same(folder, dir.path())), "{folders:?}");
    assert!(folders.iter().any(|folder| same(folder, target.parent().unwrap())), "{folders:?}");
    assert_eq!(folders_of_name(&target).unwrap().len(), 1, "once is enough");
}
