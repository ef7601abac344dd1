//! Sums of floats as text, for INCRBYFLOAT and HINCRBYFLOAT: the same as Redis' `long double` gives, for plain decimals
//! of usual length.

use super::arguments::parse_float;
use super::failure::Failure;
use std::borrow::Cow;

/// The sum of two floats as text; `bad` if the value is not a float. Decimal fractions of usual length are added
/// exactly, as Redis' longer type adds them; otherwise 0.1 + 0.2 would not be 0.3.
pub fn add_floats(value: Option<&[u8]>, amount: &[u8], bad: Failure) -> Result<String, Failure> {
    let texts = [value.unwrap_or(b"0"), amount];
    let number = |text| parse_float(text).filter(|_| !is_too_small(text));
    let Some(value) = number(texts[0]) else { return Err(bad) };
    let amount = number(amount).ok_or(Failure::NOT_FLOAT)?;
    let sum = value + amount;
    if !sum.is_finite() {
        return Err(Failure::text("ERR increment would produce NaN or Infinity"));
    }
    if let [Some(a), Some(b)] = texts.map(without_exponent) {
        // As many decimal places as fit beside the larger number.
        let places = if whole_digits(&a).max(whole_digits(&b)) <= 20 { PLACES } else { 0 };
        if let (Some(a), Some(b)) = (decimal(&a, places), decimal(&b, places)) {
            return Ok(show_decimal(as_long_double(a + b, places), places));
        }
    }
    Ok(format!("{sum:.0}"))
}

/// Decimal places that are added exactly, and the most that Redis shows.
const PLACES: usize = 17;

/// The decimal exponent at which the smallest numbers of Redis' type begin.
const LEAST_EXPONENT: i64 = -4951;

/// Whether a number is not 0, but nearer to 0 than any other in Redis' type.
fn is_too_small(text: &[u8]) -> bool {
    let (mantissa, exponent) = parts(text);
    let digits = &mantissa[usize::from(matches!(text[0], b'-' | b'+'))..];
    let point = digits.iter().position(|byte| *byte == b'.').unwrap_or(digits.len()) as i64;
    let Some(first) = digits.iter().position(|byte| (b'1'..=b'9').contains(byte)) else { return false };
    let place = if (first as i64) < point { point - first as i64 - 1 } else { point - first as i64 };
    exponent.unwrap_or(0).saturating_add(place) < LEAST_EXPONENT
}

/// Splits a float into what stands before the E and the exponent behind it.
fn parts(text: &[u8]) -> (&[u8], Option<i64>) {
    let Some(at) = text.iter().position(|byte| matches!(byte, b'e' | b'E')) else { return (text, None) };
    let exponent = &text[at + 1..];
    let extreme = if exponent.starts_with(b"-") { i64::MIN } else { i64::MAX };
    (&text[..at], Some(std::str::from_utf8(exponent).ok().and_then(|exponent| exponent.parse().ok()).unwrap_or(extreme)))
}

/// A float as a plain decimal, if that is not much longer.
fn without_exponent(text: &[u8]) -> Option<Cow<'_, [u8]>> {
    let (mantissa, Some(exponent)) = parts(text) else { return Some(Cow::Borrowed(text)) };
    let (sign, digits) = mantissa.split_at(usize::from(matches!(text[0], b'-' | b'+')));
    let point = digits.iter().position(|byte| *byte == b'.').unwrap_or(digits.len());
    let mut digits: Vec<u8> = digits.iter().copied().filter(|byte| *byte != b'.').collect();
    // The place of the point, counted from the first digit.
    let place = exponent.saturating_add(point as i64);
    if place < -64 || digits.iter().all(|digit| *digit == b'0') {
        return Some(Cow::Borrowed(b"0"));
    }
    if place > 64 {
        return None;
    }
    if place < 0 {
        digits.splice(0..0, std::iter::repeat_n(b'0', place.unsigned_abs() as usize));
    }
    let place = place.max(0) as usize;
    digits.resize(digits.len().max(place), b'0');
    digits.insert(place, b'.');
    Some(Cow::Owned([sign, &digits].concat()))
}

/// Number of digits before the point, without leading zeros.
fn whole_digits(text: &[u8]) -> usize {
    text.iter().skip_while(|byte| matches!(byte, b'-' | b'+' | b'0')).take_while(|byte| byte.is_ascii_digit()).count()
}

/// A plain decimal as a multiple of 10^-places, rounded there and as Redis' type rounds, if two of its size can be
/// added.
fn decimal(text: &[u8], places: usize) -> Option<i128> {
    let (negative, digits) = match text.split_first()? {
        (b'-', rest) => (true, rest),
        (b'+', rest) => (false, rest),
        _ => (false, text),
    };
    let point = digits.iter().position(|byte| *byte == b'.').unwrap_or(digits.len());
    let (whole, fraction) = (&digits[..point], digits.get(point + 1..).unwrap_or_default());
    if whole_digits(whole) + places > 37 || !whole.iter().chain(fraction).all(u8::is_ascii_digit) {
        return None;
    }
    let padded = fraction.iter().chain(std::iter::repeat(&b'0')).take(places);
    let value = whole.iter().chain(padded).fold(0i128, |value, digit| value * 10 + i128::from(digit - b'0'));
    let value = value + i128::from(fraction.get(places).is_some_and(|digit| *digit >= b'5'));
    Some(as_long_double(if negative { -value } else { value }, places))
}

/// What is left of a large number in the type that Redis adds in, which has a mantissa of 64 bits. (Of smaller numbers
/// it keeps all 17 digits, nearly.)
fn as_long_double(value: i128, places: usize) -> i128 {
    let one = 10u128.pow(places as u32);
    let whole = value.unsigned_abs() / one;
    // 10^places can be halved this many times.
    let Some(exponent) = whole.checked_ilog2().filter(|exponent| *exponent + places as u32 >= 63) else { return value };
    let unit = if exponent >= 63 { one << (exponent - 63) } else { one >> (63 - exponent) };
    let (units, rest) = (value.unsigned_abs() / unit, value.unsigned_abs() % unit);
    let up = rest * 2 > unit || rest * 2 == unit && units % 2 == 1;
    let rounded = ((units + u128::from(up)) * unit) as i128;
    if value < 0 { -rounded } else { rounded }
}

fn show_decimal(value: i128, places: usize) -> String {
    let digits = format!("{:0width$}", value.unsigned_abs(), width = places + 1);
    let (whole, fraction) = digits.split_at(digits.len() - places);
    let fraction = fraction.trim_end_matches('0');
    let sign = if value < 0 { "-" } else { "" };
    if fraction.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{fraction}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_add_exactly() {
        let sum = |a: &str, b: &str| add_floats(Some(a.as_bytes()), b.as_bytes(), Failure::NOT_FLOAT).unwrap();
        assert_eq!(sum("0.1", "0.2"), "0.3");
        assert_eq!(sum("10.50", "0.1"), "10.6");
        assert_eq!(sum("-1", "1"), "0");
        assert_eq!(sum("5.0e3", "2.0e2"), "5200");
        assert_eq!(sum("-0.5", "0.25"), "-0.25");
        assert_eq!(sum("1e20", "1"), "100000000000000000000");
        // As Redis has them.
        assert_eq!(sum("1.1", "1e17"), "100000000000000001.1015625");
        assert_eq!(sum("1.1e19", "1.1"), "11000000000000000001");
        assert_eq!(sum("0", "1e-18"), "0");
        assert_eq!(sum("-1.1", "-1.5E-10"), "-1.10000000015");
        assert_eq!(sum("0", "1e-17"), "0.00000000000000001");
        assert_eq!(sum("+5.", ".5e+0"), "5.5");
        assert_eq!(sum("3.00000000000000000001", "1e-60"), "3");
        assert_eq!(sum("99999999999999999999.5", "0e9"), "100000000000000000000");
        assert_eq!(sum("1e300", "-1e300"), "0");
        for nothing in ["1e-300", "1e-4951", "-0.001e-4948", "0e300", "-0e99999999999999999999", "0.0e-99999999999999999999"] {
            assert_eq!(sum("1.1", nothing), "1.1", "{nothing}");
        }
        for too_small in ["1e-4952", "-1000e-4955", "+0.01e-4950", "1e-99999999999999999999"] {
            assert!(add_floats(Some(b"1"), too_small.as_bytes(), Failure::NOT_FLOAT).is_err(), "{too_small}");
        }
        assert!(add_floats(Some(b"x"), b"1", Failure::NOT_FLOAT).is_err());
        assert!(add_floats(Some(b"1"), b"inf", Failure::NOT_FLOAT).is_err());
    }
}
