//! Thread placement: worker `i` runs on the `i`-th processor that the process may use.
//!
//! With more threads than processors nothing is pinned, because the scheduler must be free to run any thread that is
//! not waiting.

use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

fn processors() -> &'static [usize] {
    static PROCESSORS: OnceLock<Vec<usize>> = OnceLock::new();
    PROCESSORS.get_or_init(|| {
        let allowed = sched_getaffinity(None).ok();
        (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.as_ref().is_some_and(|set| set.is_set(cpu))).collect()
    })
}

/// Reads the allowed processors once; must be called before any thread is pinned.
pub fn prepare() {
    processors();
}

/// Pins the calling thread, the `index`-th of `threads`; does nothing if there are fewer processors than threads.
pub fn pin_thread(index: usize, threads: usize) {
    let processors = processors();
    if threads > processors.len() {
        return;
    }
    let mut set = CpuSet::new();
    set.set(processors[index % processors.len()]);
    // If the system refuses (a container's policy), figures are less steady, but correct.
    let _ = sched_setaffinity(None, &set);
}
