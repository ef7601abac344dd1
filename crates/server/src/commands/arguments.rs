//! Parsing of arguments.

use super::failure::Failure;
use hither_resp::{Args, parse_integer};

/// Parses an integer.
#[inline]
pub fn integer(argument: &[u8]) -> Result<i64, Failure> {
    parse_integer(argument).ok_or(Failure::NOT_INTEGER)
}

/// Parses a floating-point number as [`parse_finite`] does; NaN is an error.
pub fn float(argument: &[u8]) -> Result<f64, Failure> {
    parse_finite(argument).ok_or(Failure::NOT_FLOAT)
}

/// Parses a floating-point number as Redis does.
pub fn parse_float(argument: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(argument).ok()?;
    // Rust parses some words that C does not, and the other way round; these are the common ones.
    let bare = text.strip_prefix(['+', '-']).unwrap_or(text);
    if !bare.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && !bare.eq_ignore_ascii_case("inf")
        && !bare.eq_ignore_ascii_case("infinity")
    {
        return None;
    }
    text.parse().ok().filter(|value: &f64| !value.is_nan())
}

/// Parses a floating-point number as Redis does scores, increments and weights: one that is too large or too small is
/// refused instead of becoming infinity or zero.
pub fn parse_finite(argument: &[u8]) -> Option<f64> {
    let is_digit = |byte: &u8| (b'1'..=b'9').contains(byte);
    let mantissa = argument.split(|byte| matches!(byte, b'e' | b'E')).next().unwrap_or_default();
    parse_float(argument).filter(|value| match *value {
        0.0 => !mantissa.iter().any(is_digit),
        value => value.is_finite() || !mantissa.iter().any(u8::is_ascii_digit),
    })
}

/// Whether an argument is this word, in any case.
#[inline]
pub fn is(argument: &[u8], word: &str) -> bool {
    argument.eq_ignore_ascii_case(word.as_bytes())
}

/// Iterates over the arguments from some place on.
pub struct Options<'a> {
    args: Args<'a>,
    at: usize,
}

impl<'a> Options<'a> {
    /// Begins at argument `at`.
    pub fn new(args: Args<'a>, at: usize) -> Options<'a> {
        Options { args, at }
    }

    /// Returns the next argument, which must exist.
    pub fn value(&mut self) -> Result<&'a [u8], Failure> {
        self.next().ok_or(Failure::SYNTAX)
    }

    /// Parses the next argument as an integer.
    pub fn integer(&mut self) -> Result<i64, Failure> {
        integer(self.value()?)
    }

    /// Number of arguments left.
    pub fn left(&self) -> usize {
        self.args.len().saturating_sub(self.at)
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let argument = self.args.get(self.at)?;
        self.at += 1;
        Some(argument)
    }
}

/// Computes an expiry from an argument, in milliseconds: `amount` units of `unit_ms` after `from_ms`, or since 1970 if
/// that is `None`. `positive`: an `amount` that is not above zero is an error, as for SET and similar commands.
pub fn expiry(amount: i64, unit_ms: i64, from_ms: Option<u64>, positive: bool, command: &str) -> Result<i64, Failure> {
    let invalid = || Failure::made(format!("ERR invalid expire time in '{command}' command"));
    if positive && amount <= 0 {
        return Err(invalid());
    }
    let ms = amount.checked_mul(unit_ms).ok_or_else(invalid)?;
    let at = ms.checked_add(from_ms.map_or(0, |now| now as i64)).ok_or_else(invalid)?;
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_those_of_redis() {
        for (text, value) in
            [("1.5", 1.5), ("-.5", -0.5), ("1e3", 1000.0), ("inf", f64::INFINITY), ("-INF", f64::NEG_INFINITY), ("+2", 2.0)]
        {
            assert_eq!(parse_float(text.as_bytes()), Some(value), "{text}");
        }
        for text in ["", "nan", "abc", "1x", " 1", "1 ", "--1", "+", "NaN"] {
            assert_eq!(parse_float(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn expiries() {
        assert_eq!(expiry(5, 1000, Some(100), true, "set").unwrap(), 5100);
        assert_eq!(expiry(5, 1, None, true, "set").unwrap(), 5);
        assert_eq!(expiry(-5, 1, Some(100), false, "expire").unwrap(), 95);
        assert!(expiry(0, 1, Some(100), true, "set").is_err());
        assert!(expiry(i64::MAX, 1000, Some(100), true, "set").is_err());
        assert!(expiry(i64::MAX, 1, Some(100), false, "set").is_err());
    }
}
