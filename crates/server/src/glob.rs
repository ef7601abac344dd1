//! Patterns as in `KEYS` and `CONFIG GET`: `*`, `?`, `[abc]`, `[^a]`, `[a-z]`, and `\` before a byte that is to be
//! taken literally.
//!
//! O(pattern × text), whatever the pattern: of several `*` only the last is ever retried.

/// Whether `pattern` matches all of `text`.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut seen) = (0, 0);
    // Where to go on after a mismatch: behind the last star, and one byte further in the text.
    let mut retry: Option<(usize, usize)> = None;
    while seen < text.len() {
        if pattern.get(at) == Some(&b'*') {
            at += 1;
            retry = Some((at, seen));
            continue;
        }
        match one(&pattern[at.min(pattern.len())..], text[seen]) {
            Some(length) => {
                at += length;
                seen += 1;
            }
            None => {
                let Some((after_star, from)) = retry else { return false };
                (at, seen) = (after_star, from + 1);
                retry = Some((at, seen));
            }
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// Matches one byte; returns the length of the part of the pattern that matched it.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', inside @ ..] => class(inside, byte).map(|length| length + 1),
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [plain, ..] => (*plain == byte).then_some(1),
    }
}

/// Matches one byte against what follows `[`; returns the length of that.
fn class(pattern: &[u8], byte: u8) -> Option<usize> {
    let negated = pattern.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut found = false;
    loop {
        match &pattern[at.min(pattern.len())..] {
            // A class that is never closed ends with the pattern.
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', escaped, ..] => {
                found |= *escaped == byte;
                at += 2;
            }
            [from, b'-', to, ..] => {
                let (low, high) = (from.min(to), from.max(to));
                found |= (low..=high).contains(&&byte);
                at += 3;
            }
            [plain, ..] => {
                found |= *plain == byte;
                at += 1;
            }
        }
    }
    (found != negated).then_some(at)
}

/// The literal prefix that every match begins with.
pub fn literal_prefix(pattern: &[u8]) -> Vec<u8> {
    let mut prefix = Vec::new();
    let mut rest = pattern;
    loop {
        match rest {
            [] | [b'*' | b'?' | b'[', ..] | [b'\\'] => return prefix,
            [b'\\', byte, after @ ..] | [byte, after @ ..] => {
                prefix.push(*byte);
                rest = after;
            }
        }
    }
}

/// Whether the pattern matches a single text only, which is then [`literal_prefix`].
pub fn is_literal(pattern: &[u8]) -> bool {
    !pattern.iter().any(|byte| b"*?[\\".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let yes = [
            ("*", ""),
            ("*", "abc"),
            ("a*c", "abbc"),
            ("a?c", "abc"),
            ("[a-c]x", "bx"),
            ("[^a]x", "bx"),
            ("a\\*", "a*"),
            ("*a*b", "xaab"),
            ("h**o", "hello"),
            ("[z-a]", "m"),
        ];
        for (pattern, text) in yes {
            assert!(matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
        let no = [
            ("", "a"),
            ("a", ""),
            ("a?c", "ac"),
            ("[^a]x", "ax"),
            ("a\\*", "ab"),
            ("a*b", "ac"),
            ("abc", "ab"),
            ("[a", "b"),
            ("[]x", ""),
            ("[]x", "x"),
        ];
        for (pattern, text) in no {
            assert!(!matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        assert!(!matches(
            &b"a*".repeat(100),
            &[b'a'; 5000].map(|byte| byte).iter().chain(b"b").copied().collect::<Vec<_>>().as_slice()[..50]
        ));
        let text = [&[b'a'; 20_000][..], b"b"].concat();
        assert!(!matches(b"*a*a*a*a*a*a*c", &text));
    }

    #[test]
    fn prefixes() {
        assert_eq!(literal_prefix(b"user:*"), b"user:");
        assert_eq!(literal_prefix(b"a\\*b[c]"), b"a*b");
        assert_eq!(literal_prefix(b"plain"), b"plain");
        assert!(is_literal(b"plain") && !is_literal(b"p*"));
    }
}
