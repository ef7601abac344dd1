//! SIGBUS: an access to a page of a mapped pool that does not exist any more (another program truncated the file), that
//! its device cannot read, or whose memory the hardware reports as poisoned. Bulk readers in the background check first
//! (`Pool::cover_unreadable`); the guard is for all other accesses.
//!
//! Stated behaviour (`docs/crash-model.md`): the process stops. No read of such a page may be answered and no write to
//! it acknowledged, and a store that lost a page must not go on. Without the guard the kernel's default action stops
//! the process silently; with it, a message names the pool and the offset before the process aborts.
//!
//! A full disk leads here only where the file system copies on write: elsewhere space is preallocated.
//!
//! The handler uses async-signal-safe calls and atomics only. On a fault outside pools it reinstalls the previous
//! action, which gets this fault and all later ones: most end the process.

use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::error::Place;

/// How many pools the handler can name. More pools work as well, but a fault in one of those is not named.
const SLOTS: usize = 64;

/// A mapping. Leaked and never changed, because the handler may read it at any time.
struct Mapping {
    base: usize,
    len: usize,
    name: Box<str>,
}

/// The mappings; null where there is none.
static POOLS: [AtomicPtr<Mapping>; SLOTS] = [const { AtomicPtr::new(ptr::null_mut()) }; SLOTS];

/// Keeps a mapping known to the guard for as long as this lives.
pub(crate) struct Registration(Option<&'static AtomicPtr<Mapping>>);

impl Registration {
    pub(crate) fn new(place: &Place, base: *const u8, len: u64) -> Registration {
        // Leaked on purpose, once per open: a signal handler may be reading it when the pool closes.
        let mapping: &'static mut Mapping =
            Box::leak(Box::new(Mapping { base: base as usize, len: len as usize, name: place.to_string().into() }));
        let take = |slot: &&'static AtomicPtr<Mapping>| {
            slot.compare_exchange(ptr::null_mut(), mapping, Ordering::Release, Ordering::Relaxed).is_ok()
        };
        Registration(POOLS.iter().find(take))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            slot.store(ptr::null_mut(), Ordering::Release);
        }
    }
}

/// Installs the handler for the whole process; later calls do nothing. Call it once at the start of a program that owns
/// its signals.
pub fn install_sigbus_guard() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the action is fully initialised and its handler has the signature that SA_SIGINFO asks for. PREVIOUS
        // is written before the handler can run, by a separate call, because a library may fill it in after the kernel
        // has installed the handler.
        unsafe {
            libc::sigaction(libc::SIGBUS, ptr::null(), PREVIOUS.as_ptr());
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_sigbus as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, &action, ptr::null_mut());
        }
    });
}

/// The action that was installed before the guard.
struct Previous(std::cell::UnsafeCell<std::mem::MaybeUninit<libc::sigaction>>);

// SAFETY: written once, by the call that installs the handler; only the handler reads it.
unsafe impl Sync for Previous {}

impl Previous {
    fn as_ptr(&self) -> *mut libc::sigaction {
        self.0.get().cast()
    }
}

static PREVIOUS: Previous = Previous(std::cell::UnsafeCell::new(std::mem::MaybeUninit::zeroed()));

extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo.
    let address = unsafe { (*info).si_addr() } as usize;
    for slot in &POOLS {
        // SAFETY: null, or leaked and never changed.
        if let Some(mapping) = unsafe { slot.load(Ordering::Acquire).as_ref() }
            && address.wrapping_sub(mapping.base) < mapping.len
        {
            report(mapping.name.as_bytes(), address - mapping.base);
            // SAFETY: `abort` is async-signal-safe.
            unsafe { libc::abort() };
        }
    }
    // SAFETY: the fault is not in a pool. PREVIOUS was written when this handler was installed; its action gets the
    // fault when the instruction runs again.
    unsafe { libc::sigaction(signal, PREVIOUS.as_ptr(), ptr::null_mut()) };
}

fn report(name: &[u8], offset: usize) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = offset;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let tail = b" is gone: its device reports an error, the memory is damaged, the file was truncated, or its file system has shut down, or copies on write and is full (SIGBUS). Stopping so that nothing wrong is acknowledged.\n";
    for part in [b"hither: ", name, b": the page at offset ", &digits[at..], tail] {
        // SAFETY: `write` is async-signal-safe and the buffer is valid; a failure cannot be handled here.
        let _ = unsafe { libc::write(2, part.as_ptr().cast(), part.len()) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use crate::{CreateOptions, MediumChoice, Pool};

    const CHILD: &str = "HITHER_TEST_SIGBUS_POOL";

    /// Runs in a child process: truncates its own pool's file and reads behind the end.
    #[test]
    fn child_reads_a_truncated_pool() {
        let Some(path) = std::env::var_os(CHILD) else { return };
        install_sigbus_guard();
        let mut o = CreateOptions::new(1 << 20);
        o.medium = MediumChoice::File;
        let pool = Pool::create(Path::new(&path), &o).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
        pool.load_u64(pool.segment_offset(1));
        unreachable!("the read faults");
    }

    #[test]
    fn truncation_under_a_mapping_stops_the_process_and_names_the_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "sigbus::tests::child_reads_a_truncated_pool", "--nocapture"])
            .env(CHILD, &path)
            .output()
            .unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(message.contains(path.to_str().unwrap()) && message.contains("the page at offset"), "{message}");
    }

    #[test]
    fn fault_outside_pools_keeps_its_default() {
        const FOREIGN: &str = "HITHER_TEST_SIGBUS_FOREIGN";
        if std::env::var_os(FOREIGN).is_some() {
            install_sigbus_guard();
            let file = tempfile::tempfile().unwrap();
            file.set_len(4096).unwrap();
            // SAFETY: a new mapping; the read faults, which is the point.
            unsafe {
                let flags = rustix::mm::MapFlags::SHARED;
                let at = rustix::mm::mmap(ptr::null_mut(), 8192, rustix::mm::ProtFlags::READ, flags, &file, 0).unwrap();
                at.cast::<u8>().add(4096).read_volatile();
            }
            unreachable!("the read faults");
        }
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "sigbus::tests::fault_outside_pools_keeps_its_default"])
            .env(FOREIGN, "1")
            .output()
            .unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
    }
}
