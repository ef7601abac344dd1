//! DRAM of this process: `RssAnon` of `/proc/self/status`, which excludes the mapped pools (files and tmpfs).
//!
//! On a virtual machine that returns free memory to its host, the first touch of a page costs milliseconds per 2 MiB,
//! for any store. [`warm`] makes the host back some memory before the clock starts, so that allocations of the measured
//! phase come from there.

use crate::yardstick::huge::HugeMapping;

/// Anonymous resident bytes now, if the kernel reports them.
pub fn anonymous_bytes() -> Option<u64> {
    parse(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// Touches `bytes` of fresh anonymous memory, in huge pages where possible, and returns them to the kernel.
pub fn warm(bytes: usize) {
    // If this fails, nothing is warmed, which does no harm.
    if let Ok(mut memory) = HugeMapping::anonymous(bytes) {
        memory.touch();
    }
}

fn parse(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warming_leaves_nothing_behind() {
        warm(0);
        // Other tests allocate meanwhile.
        let leaves_nothing = |_| {
            let before = anonymous_bytes().expect("a number");
            warm(64 << 20);
            anonymous_bytes().expect("a number") < before + (32 << 20)
        };
        assert!((0..10).any(leaves_nothing));
    }

    #[test]
    fn reads_the_line() {
        assert_eq!(parse("VmRSS:\t 10 kB\nRssAnon:\t    1234 kB\nRssFile: 1 kB\n"), Some(1234 * 1024));
        assert_eq!(parse("VmRSS: 1 kB\n"), None);
        assert!(anonymous_bytes().is_some_and(|bytes| bytes > 0));
    }
}
