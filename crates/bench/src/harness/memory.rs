//! DRAM of this process: `RssAnon` of `/proc/self/status`, which leaves out the mapped pools (files and tmpfs).

/// Anonymous resident bytes now, if the kernel says.
pub fn anonymous_bytes() -> Option<u64> {
    parse(&std::fs::read_to_string("/proc/self/status").ok()?)
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
    fn reads_the_line() {
        assert_eq!(parse("VmRSS:\t 10 kB\nRssAnon:\t    1234 kB\nRssFile: 1 kB\n"), Some(1234 * 1024));
        assert_eq!(parse("VmRSS: 1 kB\n"), None);
        assert!(anonymous_bytes().is_some_and(|bytes| bytes > 0));
    }
}
