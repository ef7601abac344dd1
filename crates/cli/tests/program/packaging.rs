//! systemd accepts the unit file.

use crate::common;
use std::process::Command;

#[test]
fn the_unit_is_valid() {
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/systemd/hither.service");
    let text = std::fs::read_to_string(unit).unwrap();
    assert!(text.contains("Type=notify") && text.contains("ExecStart=/usr/bin/hither serve "));
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path().join("hither.service");
    // systemd checks that the program exists.
    std::fs::write(&here, text.replace("/usr/bin/hither", env!("CARGO_BIN_EXE_hither"))).unwrap();
    let Ok(output) = Command::new("systemd-analyze").arg("verify").arg(&here).output() else {
        return common::skipped("without_systemd");
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("hither.service"), "{said}");
}
