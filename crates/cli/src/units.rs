//! Sizes, times, durability levels and store directories as they are written on a command line.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use crate::failure::Failure;
use hither::{CheckpointMode, Durability};
use hither_topology::MAX_NODES;

/// Reads a size: `65536`, `64K`, `64M`, `1G`, `1T` and the long forms `64KiB`… are powers of 1024, `64KB`… powers of 1000.
pub fn size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| format!("\"{text}\" is not a size such as 64M, 1G or 1GiB"))?;
    let factor = size_unit(unit).ok_or_else(|| format!("\"{unit}\" is not a unit of size (K, M, G, T, KiB, KB, …)"))?;
    number.checked_mul(factor).ok_or_else(|| format!("{text} does not fit 64 bits"))
}

/// The smallest store: one segment of the smallest derived size.
const MIN_STORE_BYTES: u64 = 64 << 10;

/// Reads the size of a store, which has a minimum.
pub fn store_size(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes if bytes < MIN_STORE_BYTES => Err(format!("the smallest store has 64K ({MIN_STORE_BYTES} bytes)")),
        bytes => Ok(bytes),
    }
}

fn size_unit(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_lowercase();
    if unit.is_empty() || unit == "b" {
        return Some(1);
    }
    let power = u32::try_from("kmgt".find(unit.chars().next()?)?).ok()? + 1;
    match &unit[1..] {
        "" | "ib" => Some(1024u64.pow(power)),
        "b" => Some(1000u64.pow(power)),
        _ => None,
    }
}

/// Reads a time: `500ms`, `30s`, `5m`, `2h`, `7d`; a bare number counts seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| format!("\"{text}\" is not a time such as 500ms, 30s, 5m, 2h or 7d"))?;
    let factor_ms = match unit {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(format!("\"{unit}\" is not a unit of time (ms, s, m, h, d)")),
    };
    number.checked_mul(factor_ms).map(Duration::from_millis).ok_or_else(|| format!("{text} is too long a time"))
}

/// Reads a time to live, which must not be zero.
pub fn time_to_live(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("the time to live must be more than 0; to remove a key, use `hither del`".into()),
        ttl => Ok(ttl),
    }
}

/// Reads a durability level: `sync`, `process` or `interval:MS`.
pub fn durability(text: &str) -> Result<Durability, String> {
    match text {
        "sync" => Ok(Durability::Sync),
        "process" => Ok(Durability::Process),
        _ => text
            .strip_prefix("interval:")
            .and_then(|ms| ms.parse().ok())
            .filter(|ms| *ms > 0)
            .map(|ms| Durability::Interval(Duration::from_millis(ms)))
            .ok_or_else(|| format!("\"{text}\" is not a durability level; give sync, process, or interval:MS with MS at least 1")),
    }
}

/// Reads when to take checkpoints: `auto`, `off` or a size.
pub fn checkpoints(text: &str) -> Result<CheckpointMode, String> {
    match text {
        "auto" => Ok(CheckpointMode::Auto),
        "off" => Ok(CheckpointMode::Off),
        _ => match size(text) {
            Ok(bytes) if bytes > 0 => Ok(CheckpointMode::Every(bytes)),
            _ => Err(format!("\"{text}\" is neither auto nor off nor a size such as 256M")),
        },
    }
}

/// Directory of a store, or of its pool of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// One directory for the whole store.
    Store(PathBuf),
    /// The directory of one node's pool.
    Node(u32, PathBuf),
}

/// Reads `DIR` or `nodeN=DIR`. A directory whose name looks like the latter is written `./nodeN=…`.
pub fn place(text: &OsStr) -> Result<Place, Failure> {
    let whole = || Ok(Place::Store(PathBuf::from(text)));
    let Some(rest) = text.as_bytes().strip_prefix(b"node") else { return whole() };
    let Some(equals) = rest.iter().position(|byte| *byte == b'=') else { return whole() };
    let (number, dir) = (&rest[..equals], PathBuf::from(OsStr::from_bytes(&rest[equals + 1..])));
    if number.iter().any(u8::is_ascii_alphabetic) || !number.is_ascii() {
        return whole();
    }
    let digits = std::str::from_utf8(number).ok().filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
    match digits.and_then(|digits| digits.parse().ok()).filter(|node| (*node as usize) < MAX_NODES) {
        Some(node) => Ok(Place::Node(node, dir)),
        None => Err(Failure::Usage(format!(
            "\"{}\" is not a node number in {}; nodes have the numbers 0 to {} (for a directory of that name, write ./{1})",
            String::from_utf8_lossy(number),
            text.display(),
            MAX_NODES - 1
        ))),
    }
}

/// Reads the places of the environment variable `HITHER_DATA`: one or more, separated by colons.
pub fn places_of_variable(value: &OsStr) -> Result<Vec<Place>, Failure> {
    value.as_bytes().split(|byte| *byte == b':').filter(|part| !part.is_empty()).map(|part| place(OsStr::from_bytes(part))).collect()
}

/// The bytes of an argument: as they are, or decoded from the escape of [`crate::escape`].
pub fn bytes(argument: OsString, escaped: bool) -> Result<Vec<u8>, Failure> {
    let bytes = argument.into_vec();
    if !escaped {
        return Ok(bytes);
    }
    crate::escape::unescape(&bytes).map_err(|bad| Failure::Usage(format!("{bad} at byte {} of an argument", bad.at + 1)))
}

/// A size for people: `1.5 GiB`.
pub fn show_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let power = (bytes.ilog2() / 10).min(5);
    let value = bytes as f64 / 1024f64.powi(power as i32);
    format!("{value:.1} {}", UNITS[power as usize - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in
            [("0", 0), ("512", 512), ("7B", 7), ("64M", 64 << 20), ("1G", 1 << 30), ("1GiB", 1 << 30), ("2kb", 2000), ("3T", 3 << 40)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "M", "1.5G", "-1", "1X", "1MiBs", "99999999999T", "1 G", "64Mi"] {
            assert!(size(text).is_err(), "{text}");
        }
        assert_eq!(store_size("64K"), Ok(64 << 10));
        assert!(store_size("0").unwrap_err().contains("64K") && store_size("65535").is_err() && store_size("M").is_err());
        assert_eq!(show_bytes(1023), "1023 B");
        assert_eq!(show_bytes(3 << 29), "1.5 GiB");
        assert_eq!(show_bytes(u64::MAX), "16384.0 PiB");
    }

    #[test]
    fn times() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("30"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        for text in ["", "s", "1w", "-5s", "99999999999999999d"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert_eq!(time_to_live("1ms"), Ok(Duration::from_millis(1)));
        assert!(time_to_live("0h").unwrap_err().contains("more than 0") && time_to_live("1w").is_err());
    }

    #[test]
    fn durability_levels() {
        assert!(matches!(durability("sync"), Ok(Durability::Sync)));
        assert!(matches!(durability("process"), Ok(Durability::Process)));
        assert!(matches!(durability("interval:10"), Ok(Durability::Interval(d)) if d.as_millis() == 10));
        for text in ["", "Sync", "interval", "interval:", "interval:0", "interval:x"] {
            assert!(durability(text).unwrap_err().contains("MS at least 1"), "{text}");
        }
    }

    #[test]
    fn checkpoint_modes() {
        assert_eq!(checkpoints("auto"), Ok(CheckpointMode::Auto));
        assert_eq!(checkpoints("off"), Ok(CheckpointMode::Off));
        assert_eq!(checkpoints("64K"), Ok(CheckpointMode::Every(64 << 10)));
        assert!(["", "0", "on", "-1"].iter().all(|text| checkpoints(text).is_err()));
    }

    #[test]
    fn places() {
        let place = |text: &str| super::place(OsStr::new(text));
        assert_eq!(place("/a/b").unwrap(), Place::Store("/a/b".into()));
        assert_eq!(place("node3=/a=b").unwrap(), Place::Node(3, "/a=b".into()));
        assert_eq!(place("./node3=x").unwrap(), Place::Store("./node3=x".into()));
        assert_eq!(place("nodes=x").unwrap(), Place::Store("nodes=x".into()));
        for wrong in ["node99999999999=x", "node-1=x", "node+1=x", "node16=x", "node=x", "node1.0=x", "node 1=x"] {
            let refused = place(wrong).unwrap_err();
            assert!(refused.status() == 2 && refused.to_string().contains("0 to 15"), "{refused}");
        }
        let both = places_of_variable(OsStr::new("node0=/a::node1=/b")).unwrap();
        assert_eq!(both, [Place::Node(0, "/a".into()), Place::Node(1, "/b".into())]);
    }

    #[test]
    fn arguments_are_literal_unless_escaped() {
        assert_eq!(bytes(OsString::from(r"a\tb"), false).unwrap(), br"a\tb");
        assert_eq!(bytes(OsString::from(r"a\tb"), true).unwrap(), b"a\tb");
        let refused = bytes(OsString::from(r"a\b"), true).unwrap_err();
        // Counted from one, as in a line of input.
        assert!(refused.status() == 2 && refused.to_string().contains("at byte 2 of"), "{refused}");
    }
}
