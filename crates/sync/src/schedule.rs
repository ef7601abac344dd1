//! How the kernel schedules a thread.

/// Has the calling thread wait for its turn when it wakes up, instead of preempting what runs on its processor (SCHED_BATCH, see sched(7)). For threads whose work comes in
/// small pieces from others on the same processors: they find more of it at once, and the others are not interrupted for each piece. Where the processor is idle
/// nothing changes. A thread that runs by another rule than the usual one already (chrt(1)) stays as it is. Whether it has worked.
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
