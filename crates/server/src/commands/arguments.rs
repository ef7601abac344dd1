//! Reading arguments.

use super::failure::Failure;
use hither_resp::{Args, parse_integer};

/// An integer.
#[inline]
pub fn integer(argument: &[u8]) -> Result<i64, Failure> {
    parse_integer(argument).ok_or(Failure::NOT_INTEGER)
}

/// A floating-point number; not a NaN.
pub fn float(argument: &[u8]) -> Result<f64, Failure> {
    parse_finite(argument).ok_or(Failure::NOT_FLOAT)
}

/// A floating-point number as Redis reads it.
pub fn parse_float(argument: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(argument).ok()?;
    // Rust reads some words that C does not, and the other way round; these are common.
    let bare = text.strip_prefix(['+', '-']).unwrap_or(text);
    if !bare.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && !bare.eq_ignore_ascii_case("inf")
        && !bare.eq_ignore_ascii_case("infinity")
    {
        return None;
    }
    text.parse().ok().filter(|value: &f64| !value.is_nan())
}

/// A floating-point number as Redis reads scores, increments and weights: one that is too large or too small is refused, and not taken for infinity or nothing.
pub fn parse_finite(argument: &[u8]) -> Option<f64> {
    let is_digit = |byte: &u8| (b'1'..=b'9').contains(byte);
    let mantissa = argument.split(|byte| matches!(byte, b'e' | b'E')).next().unwrap_or_default();
    parse_float(argument).filter(|value| match *value {
        0.0 => !mantissa.iter().any(is_digit),
        value => value.is_finite() || !mantissa.iter().any(u8::is_ascii_digit),
    })
}

/// Whether an argument is this word.
#[inline]
pub fn is(argument: &[u8], word: &str) -> bool {
    argument.eq_ignore_ascii_case(word.as_bytes())
}

/// Goes through the arguments from a place on.
pub struct Options<'a> {
    args: Args<'a>,
    at: usize,
}

impl<'a> Options<'a> {
    /// From the argument `at` on.
    pub fn new(args: Args<'a>, at: usize) -> Options<'a> {
        Options { args, at }
    }

    /// The argument that follows one that needs it.
    pub fn value(&mut self) -> Result<&'a [u8], Failure> {
        self.next().ok_or(Failure::SYNTAX)
    }

    /// The integer that follows.
    pub fn integer(&mut self) -> Result<i64, Failure> {
        integer(self.value()?)
    }

    /// How many are left.
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

/// An expiry as an argument: `amount` of `unit_ms` milliseconds, from `now_ms` on or, if that is `None`, since 1970. `positive`: for SET and its like, where
/// an expiry that is not above zero is an error.
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
