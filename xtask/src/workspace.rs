//! The paths of the workspace, and cargo's information about its packages.

use crate::Failure;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The root folder of the workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace's root folder")
}

/// The build directory that cargo uses, whichever setting determines it. The variants (loom, sanitizers) get folders of
/// their own inside it, because each of them builds everything with other flags.
pub fn target_dir() -> PathBuf {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    // If cargo does not answer, it builds nothing either.
    DIR.get_or_init(|| ask(&mut metadata()).ok().as_ref().and_then(target_of).unwrap_or_else(|| root().join("target"))).clone()
}

fn target_of(metadata: &Value) -> Option<PathBuf> {
    metadata["target_directory"].as_str().map(PathBuf::from)
}

/// The command that describes the workspace.
fn metadata() -> Command {
    let mut command = Command::new(cargo());
    command.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(root());
    command
}

fn ask(command: &mut Command) -> Result<Value, Failure> {
    let output = command.output().map_err(|error| format!("cannot run cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

/// The cargo that runs this program.
pub fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

/// The output of `cargo metadata` about the workspace's own packages.
pub struct Metadata {
    packages: Vec<Value>,
}

impl Metadata {
    /// Runs `cargo metadata`.
    pub fn load() -> Result<Self, Failure> {
        let mut value = ask(&mut metadata())?;
        let Value::Array(packages) = value["packages"].take() else { return Err("cargo metadata lists no packages".to_owned()) };
        Ok(Metadata { packages })
    }

    /// Names of the integration tests (programs under `tests/`) of all packages, sorted, each once.
    pub fn integration_tests(&self) -> Vec<String> {
        self.integration_tests_where(|_| true)
    }

    /// As [`Metadata::integration_tests`], for these packages only.
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

    /// Names of the packages that have a dependency under this condition only, such as `cfg(loom)`.
    pub fn packages_with(&self, condition: &str) -> Vec<String> {
        let depends = |package: &&Value| array(&package["dependencies"]).any(|dependency| dependency["target"] == condition);
        self.packages.iter().filter(depends).filter_map(|package| package["name"].as_str()).map(str::to_owned).collect()
    }
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: only `CARGO_TARGET_DIR` was considered, not the other settings of cargo.
    #[test]
    fn the_build_directory_is_where_cargo_has_it() {
        let asked = target_of(&ask(metadata().env_remove("CARGO_TARGET_DIR").env("CARGO_BUILD_TARGET_DIR", "/some/where")).unwrap());
        assert_eq!(asked, Some(PathBuf::from("/some/where")));
        assert!(target_dir().is_absolute());
    }
}
