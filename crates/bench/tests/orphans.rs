//! A process that waits to be killed ends with the one that would have killed it.

use std::process::Command;
use std::time::{Duration, Instant};

/// The shell makes a loader, waits for its report, and is gone.
const SCRIPT: &str = r#"mkfifo "$2/out" || exit 1
"$1" leave --store-dir "$2/store" --keys 1000 --threads 1 --medium volatile >"$2/out" 2>/dev/null &
read word count <"$2/out"
echo "$word $!""#;

/// True while a process runs. One that has ended and that nobody has waited for does not.
fn runs(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next()).is_some_and(|state| !"ZX".contains(state))
}

/// Regression: the loader slept for ever, and kept its store in memory.
#[test]
fn a_loader_ends_with_its_parent() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut shell = Command::new("sh");
    shell.args(["-c", SCRIPT, "sh", env!("CARGO_BIN_EXE_hither-bench")]).arg(directory.path());
    let output = shell.output().expect("a shell");
    let text = String::from_utf8_lossy(&output.stdout);
    let process = text.trim().strip_prefix("loaded ").unwrap_or_else(|| panic!("it did not load: {text}"));
    let end = Instant::now() + Duration::from_secs(10);
    while runs(process) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    if runs(process) {
        let _ = Command::new("kill").args(["-9", process]).status();
        panic!("the loader is left behind");
    }
}
