//! Where things are, and what cargo says about the workspace's packages.

use crate::Failure;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The root folder of the workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace's root folder")
}

/// The build directory that cargo would use; the variants (loom, sanitizers) get folders of their own inside it, because
/// each of them builds everything with other flags.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// The cargo that runs this program.
pub fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

/// What `cargo metadata` says about the workspace's own packages.
pub struct Metadata {
    packages: Vec<Value>,
}

impl Metadata {
    /// Asks cargo.
    pub fn load() -> Result<Self, Failure> {
        let output = Command::new(cargo())
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .current_dir(root())
            .output()
            .map_err(|error| format!("cannot run cargo metadata: {error}"))?;
        if !output.status.success() {
            return Err(format!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr)));
        }
        let mut value: Value = serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
        let Value::Array(packages) = value["packages"].take() else { return Err("cargo metadata lists no packages".to_owned()) };
        Ok(Metadata { packages })
    }

    /// Names of the integration tests (files under `tests/`) of all packages, sorted, each once.
    pub fn integration_tests(&self) -> Vec<String> {
        self.integration_tests_where(|_| true)
    }

    /// The same for these packages only.
    pub fn integration_tests_of(&self, packages: &[String]) -> Vec<String> {
        self.integration_tests_where(|package| packages.iter().any(|name| package["name"] == name.as_str()))
    }

    fn integration_tests_where(&self, wanted: impl Fn(&Value) -> bool) -> Vec<String> {
        let packages = self.packages.iter().filter(|package| wanted(package));
        let targets = packages.flat_map(|package| array(&package["targets"]));
        let tests = targets.filter(|target| array(&target["kind"]).any(|kind| kind == "test"));
        let mut names: Vec<String> = tests.filter_map(|target| target["name"].as_str()).map(str::to_owned).collect();
        names.sort();
        names.dedup();
        names
    }

    /// Packages that depend on something under this condition only, such as `cfg(loom)`.
    pub fn packages_with(&self, condition: &str) -> Vec<String> {
        let depends = |package: &&Value| array(&package["dependencies"]).any(|dependency| dependency["target"] == condition);
        self.packages.iter().filter(depends).filter_map(|package| package["name"].as_str()).map(str::to_owned).collect()
    }
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
