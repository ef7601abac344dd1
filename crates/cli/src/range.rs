//! Ranges of keys on the command line: `--from` is included, `--to` is not, and `--prefix` narrows both.

use std::ops::Bound;

use hither::after_prefix;

use crate::args::RangeArgs;
use crate::failure::Failure;
use crate::units;

/// Keys from `from` (included) to `to` (not included).
#[derive(Debug, PartialEq, Eq)]
pub struct Range {
    from: Option<Vec<u8>>,
    to: Option<Vec<u8>>,
}

impl Range {
    /// The range that a command line gives. With `escape`, escapes in it are decoded.
    pub fn of(args: RangeArgs, escape: bool) -> Result<Self, Failure> {
        let decode = |text: Option<_>| text.map(|text| units::bytes(text, escape)).transpose();
        Ok(Self::new(decode(args.prefix)?, decode(args.from)?, decode(args.to)?))
    }

    fn new(prefix: Option<Vec<u8>>, from: Option<Vec<u8>>, to: Option<Vec<u8>>) -> Self {
        let behind = prefix.as_deref().and_then(after_prefix);
        let to = match (to, behind) {
            (Some(to), Some(behind)) => Some(to.min(behind)),
            (to, behind) => to.or(behind),
        };
        // `None` is less than any key, and the larger start is the narrower one.
        Self { from: from.max(prefix), to }
    }

    /// Whether no key can be in the range.
    pub fn is_empty(&self) -> bool {
        matches!(&self.to, Some(to) if self.from.as_ref().map_or(to.is_empty(), |from| from >= to))
    }

    /// Start of the range.
    pub fn from(&self) -> Bound<&[u8]> {
        self.from.as_deref().map_or(Bound::Unbounded, Bound::Included)
    }

    /// End of the range.
    pub fn to(&self) -> Bound<&[u8]> {
        self.to.as_deref().map_or(Bound::Unbounded, Bound::Excluded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_end_of_a_prefix() {
        assert_eq!(after_prefix(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(after_prefix(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(after_prefix(b"\xff"), None);
        assert_eq!(after_prefix(b""), None);
    }

    fn key() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(0xfe), Just(0xff)], 0..4)
    }

    proptest! {
        #[test]
        fn a_range_holds_exactly_what_was_asked(
            prefix in proptest::option::of(key()), from in proptest::option::of(key()), to in proptest::option::of(key()), k in key()
        ) {
            let asked = prefix.as_ref().is_none_or(|p| k.starts_with(p))
                && from.as_ref().is_none_or(|f| k >= *f)
                && to.as_ref().is_none_or(|t| k < *t);
            let range = Range::new(prefix, from, to);
            let inside = range.from.as_ref().is_none_or(|f| k >= *f) && range.to.as_ref().is_none_or(|t| k < *t);
            prop_assert_eq!(asked, inside && !range.is_empty());
        }
    }
}
