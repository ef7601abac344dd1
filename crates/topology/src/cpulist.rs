//! The kernel's list format for processors and nodes: `0-3,8,10-11`.

/// Parses a kernel list such as `0-3,8` into ascending numbers. Empty text is the empty list; malformed text returns
/// `None`.
pub fn parse_cpulist(text: &str) -> Option<Vec<u32>> {
    let text = text.trim();
    let mut numbers = Vec::new();
    if text.is_empty() {
        return Some(numbers);
    }
    for part in text.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (parse(first)?, parse(last)?),
            None => (parse(part)?, parse(part)?),
        };
        // No machine has numbers as large as this: the file was misread. Refuse it, or the range would fill the memory.
        if last < first || last >= 1 << 16 {
            return None;
        }
        numbers.extend(first..=last);
    }
    numbers.sort_unstable();
    numbers.dedup();
    Some(numbers)
}

fn parse(text: &str) -> Option<u32> {
    // `u32::from_str` accepts a leading plus sign, the kernel never writes one.
    let text = text.trim();
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::parse_cpulist;
    use proptest::prelude::*;

    #[test]
    fn accepts_the_kernels_forms() {
        assert_eq!(parse_cpulist(""), Some(vec![]));
        assert_eq!(parse_cpulist("\n"), Some(vec![]));
        assert_eq!(parse_cpulist("0\n"), Some(vec![0]));
        assert_eq!(parse_cpulist("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
    }

    #[test]
    fn refuses_everything_else() {
        for text in ["a", "1-", "-1", "3-1", "1,,2", "+1", "0-4294967295", "99999999999", "4294967295", "0,65536"] {
            assert_eq!(parse_cpulist(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn never_panics_and_is_sorted(text in "[0-9,\\- a]{0,20}") {
            if let Some(numbers) = parse_cpulist(&text) {
                prop_assert!(numbers.windows(2).all(|w| w[0] < w[1]));
            }
        }
    }
}
