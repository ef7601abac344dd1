//! Tests the system calls that make files durable: the syncs of a traced child, step by step.
//!
//! A recorded pool shows that a sync was requested, not that the kernel was called. And the effect of a sync shows only
//! when the power fails.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::small;
use crate::{CreateOptions, MediumChoice, OpenOptions, Pool};

const CHILD: &str = "HITHER_TEST_TRACED";

/// Runs in a traced child: part of the life of a pool in the folder.
#[test]
fn child_syncs_under_its_parents_eyes() {
    let Some(folder) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let (path, open) = (folder.join("pool"), OpenOptions { medium: MediumChoice::File, ..OpenOptions::new() });
    // A system call that nothing else here makes and that changes nothing: it ends a step.
    // SAFETY: the call only queries.
    let end_step = || unsafe { libc::personality(0xffff_ffff) };
    end_step();
    let pool = Pool::create(&path, &CreateOptions { medium: MediumChoice::File, ..small() }).unwrap();
    end_step();
    pool.finish_creation().unwrap();
    end_step();
    pool.sync().unwrap();
    end_step();
    pool.zero_segment(1, 1).unwrap();
    end_step();
    pool.set_settled(1).unwrap();
    drop(pool);
    end_step();
    let pool = Pool::open(&path, &open).unwrap();
    end_step();
    pool.harden_metadata().unwrap();
    end_step();
}

fn ptrace(request: libc::c_uint, pid: i32, address: usize, data: usize) -> i64 {
    // SAFETY: of the requests made here only one writes to this process, and it writes to a variable of the caller.
    unsafe { libc::ptrace(request, pid, address, data) }
}

/// The number of the system call that a stopped thread is about to make, and its first argument.
fn call_of(pid: i32) -> Option<(i64, u64)> {
    // SAFETY: plain numbers, for which zero bytes are valid.
    let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
    let known = ptrace(libc::PTRACE_GET_SYSCALL_INFO, pid, size_of_val(&info), &raw mut info as usize) > 0;
    if !known || info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return None;
    }
    // SAFETY: this is the field that the kernel fills in at the entry of a call.
    let entry = unsafe { info.u.entry };
    Some((entry.nr as i64, entry.args[0]))
}

/// Lets a stopped thread of the child run to its next system call, and waits for any thread to stop. `None` once the
/// child has ended successfully.
fn next_stop(child: i32, stopped: i32, signal: i32) -> Option<(i32, i32)> {
    ptrace(libc::PTRACE_SYSCALL, stopped, 0, signal as usize);
    loop {
        let mut status = 0;
        // SAFETY: the status is written to a variable of this frame. The child leads a group of its own, so only its
        // threads are waited for.
        let pid = unsafe { libc::waitpid(-child, &raw mut status, libc::__WALL) };
        assert!(pid > 0, "{}", std::io::Error::last_os_error());
        if libc::WIFSTOPPED(status) {
            return Some((pid, libc::WSTOPSIG(status)));
        }
        assert_eq!(status, 0, "the child did all its steps");
        if pid == child {
            return None;
        }
    }
}

/// The files that a child synced, by step; `None` where tracing is not permitted.
fn synced_by(command: &mut Command) -> Option<Vec<Vec<PathBuf>>> {
    // SAFETY: between fork and exec this makes a system call and nothing else.
    unsafe {
        command.process_group(0).pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let child = command.spawn().ok()?.id() as i32;
    let mut status = 0;
    // SAFETY: the status is written to a variable of this frame.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
    assert_eq!(ptrace(libc::PTRACE_SETOPTIONS, child, 0, options as usize), 0);
    let (mut steps, mut at) = (vec![Vec::new()], Some((child, 0)));
    while let Some((pid, signal)) = at {
        // Stops that are not signals of the child's own: calls, new threads, the first stop of those.
        let is_own = !matches!(signal & 0x7f, libc::SIGTRAP | libc::SIGSTOP);
        at = next_stop(child, pid, if is_own { signal } else { 0 });
        let Some((pid, _)) = at.filter(|(_, signal)| *signal == libc::SIGTRAP | 0x80) else { continue };
        match call_of(pid) {
            Some((libc::SYS_personality, _)) => steps.push(Vec::new()),
            Some((libc::SYS_fsync | libc::SYS_fdatasync, file)) => {
                let file = std::fs::read_link(format!("/proc/{pid}/fd/{file}")).unwrap();
                steps.last_mut().unwrap().push(file);
            }
            _ => {}
        }
    }
    Some(steps)
}

/// Found by hand: without the kernel call in a sync of a file, or of the folder that names a new file, all tests still
/// passed.
#[test]
fn what_is_to_be_durable_is_synced_by_the_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "pool::tests::syscalls::child_syncs_under_its_parents_eyes"]).env(CHILD, &folder).stdout(Stdio::null());
    // The leak check at the end of a process traces that process itself.
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    let Some(steps) = synced_by(&mut command) else { return super::skipped("without_tracing") };
    let pool: &Path = &folder.join("pool");
    let [_, creation, magic, sync, zeros, small_word, opening, hardening, _] = &steps[..] else { panic!("{steps:?}") };
    assert!(creation.contains(&folder), "the name of a new file: {creation:?}");
    assert!(creation.iter().filter(|file| *file == pool).count() >= 3, "its length, then a slot and a commit word: {creation:?}");
    for (step, name) in [(magic, "magic"), (sync, "sync"), (zeros, "zeros"), (small_word, "a small word")] {
        assert_eq!(step, &[pool], "{name}");
    }
    assert_eq!(opening, &[pool], "what an earlier process left");
    assert_eq!(hardening, &[pool]);
}
