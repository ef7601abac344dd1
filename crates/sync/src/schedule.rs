//! The kernel's scheduling policy of a thread.

/// Makes the calling thread wait for its turn when it wakes up, instead of preempting the thread that runs on its
/// processor (SCHED_BATCH, see sched(7)). Returns whether the policy was set.
///
/// This suits threads that get work in small pieces from others on the same processors: they find more of it at once,
/// and the others are not interrupted for each piece. Nothing changes where the processor is idle. A thread that
/// already runs under another policy than the default one (chrt(1)) keeps it.
pub fn forgo_wakeup_preemption() -> bool {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the thread is the calling one, and the parameters live as long as the call.
    unsafe {
        libc::sched_getscheduler(0) == libc::SCHED_OTHER && libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_asked_for_once_and_concerns_the_calling_thread() {
        // SAFETY: it takes no pointers.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        std::thread::spawn(move || {
            assert_eq!(forgo_wakeup_preemption(), before == libc::SCHED_OTHER);
            assert!(!forgo_wakeup_preemption());
            assert!(before != libc::SCHED_OTHER || policy() == libc::SCHED_BATCH);
        })
        .join()
        .unwrap();
        assert_eq!(policy(), before);
    }
}
