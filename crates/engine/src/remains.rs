//! Finds what other stores left where a new one is about to be created.
//!
//! A store whose directories were given in another order, or whose first pool was lost, must not be hidden by an empty
//! one beside it. (What an interrupted creation of the same store left lies where the new pools are to be, and is used:
//! `pools`.)
//!
//! Thread safety: files are only looked at. Crash: nothing is changed.

use crate::checkpoint::store::of_a_store_in;
use crate::error::{Error, Result};
use crate::options::Options;
use crate::pools::{node_of_pool_file, pool_path};
use std::path::{Path, PathBuf};

/// Refuses to make a store, whose first pool would be `first`, beside what is left of another one.
pub(crate) fn refuse(options: &Options, first: &Path) -> Result<()> {
    for (_, dir) in &options.paths {
        refuse_misplaced(options, dir)?;
    }
    match first.parent().and_then(of_a_store_in) {
        None => Ok(()),
        Some(checkpoint) => Err(Error::WrongPool(format!(
            "{} belongs to a store whose pool {} is missing, or holds nothing any more; restore the pool from a backup or mount its device, or \
             remove the checkpoint to begin a new store",
            checkpoint.display(),
            first.display()
        ))),
    }
}

/// Refuses pools in `dir` of nodes for which another directory was given, or none.
fn refuse_misplaced(options: &Options, dir: &Path) -> Result<()> {
    let is_here = |expected: &Path| {
        let (here, there) = (dir.canonicalize(), expected.parent().map(Path::canonicalize));
        matches!((here, there), (Ok(here), Some(Ok(there))) if here == there)
    };
    for (node, found) in pools_in(dir) {
        let given = match pool_path(options, node) {
            Some(expected) if is_here(&expected) => continue,
            Some(expected) => format!("the directory {} was given", expected.parent().unwrap_or(&expected).display()),
            None => "no directory was given".into(),
        };
        return Err(Error::WrongPool(format!(
            "{} is the pool of node {node}, for which {given}; give each node the directory that its pool lies in, or name directories without \
             pools to make a new store (what an interrupted creation left may be removed)",
            found.display()
        )));
    }
    Ok(())
}

/// Returns the pools that lie in a directory, by their names, in the order of their nodes. A directory that cannot be
/// listed yields none.
pub(crate) fn pools_in(dir: &Path) -> Vec<(u32, PathBuf)> {
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut pools: Vec<_> = files.filter_map(|file| Some((node_of_pool_file(file.file_name().to_str()?)?, file.path()))).collect();
    pools.sort_unstable();
    pools
}
