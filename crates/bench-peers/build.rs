//! Links Debian's librocksdb (package `librocksdb-dev`).

fn main() {
    println!("cargo:rustc-link-lib=rocksdb");
    println!("cargo:rerun-if-changed=build.rs");
}
