//! Gives the crate a hash of the sources that decide how stores are measured.
//!
//! The peers' program links this crate and is built by itself, so it may be an older build. Records name the sources
//! that made them (`built_from`), and the figures refuse records of other sources. The hash covers the sources
//! themselves, because a build knows nothing of commits.

use std::path::{Path, PathBuf};

/// The folders of the harness, whose files are hashed.
const FOLDERS: [&str; 3] = ["src/harness", "src/target", "src/workload"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for folder in FOLDERS {
        println!("cargo:rerun-if-changed={folder}");
        let mut files = files_of(Path::new(folder));
        files.sort();
        for file in files {
            let bytes = std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            // The length separates the content from the next file's name.
            hash = fnv(hash, file.to_string_lossy().as_bytes());
            hash = fnv(hash, &(bytes.len() as u64).to_le_bytes());
            hash = fnv(hash, &bytes);
        }
    }
    println!("cargo:rustc-env=HITHER_BENCH_BUILT_FROM={hash:016x}");
}

/// All files below a folder.
fn files_of(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.unwrap_or_else(|error| panic!("{}: {error}", folder.display())).path());
    paths.flat_map(|path| if path.is_dir() { files_of(&path) } else { vec![path] }).collect()
}

/// FNV-1a of 64 bits.
fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
