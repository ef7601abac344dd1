//! Workloads: YCSB A–F and single operations over several distributions, with data that proves itself.
//!
//! A [`Workload`] is written `name[=n][:distribution]`: `load`, `load-batch=1000`, `get:uniform`, `update:zipf=0.99`,
//! `insert`, `delete`, `rmw:zipf`, `scan=100:uniform`, `multi-get=16:uniform`, `put-batch=16:uniform`, `ycsb-a` …
//! `ycsb-f`. Everything is deterministic per seed and thread. Streams with a distribution are drawn before the clock
//! starts ([`stream`]), so that the measured loop only reads eight bytes per operation.
//!
//! Thread safety: plain values.

pub mod data;
pub mod etc;
pub mod permutation;
pub mod random;
pub mod stream;
pub mod zipf;

use std::fmt;
use std::str::FromStr;

/// The operations of the threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Writes every key once, in the order of ids (random keys).
    Load,
    /// As `Load`, in atomic batches of `n`.
    LoadBatch(u32),
    /// Reads one key.
    Get,
    /// Overwrites one key.
    Update,
    /// Writes keys that do not exist yet.
    Insert,
    /// Deletes every key once, in a permuted order.
    Delete,
    /// Reads, changes and writes one key.
    Rmw,
    /// Reads `n` pairs from a key on.
    Scan(u32),
    /// Reads `n` keys in one call.
    MultiGet(u32),
    /// Overwrites `n` keys in one atomic batch.
    PutBatch(u32),
    /// A mix of YCSB, `'a'` to `'f'`.
    Ycsb(char),
}

/// How keys are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Every key equally often.
    Uniform,
    /// YCSB's scrambled Zipf with this exponent; see [`zipf`].
    Zipf(f64),
    /// Zipf 0.99 over age: the newest keys most often.
    Latest,
    /// As `Zipf`, but other keys are hot: the hot spot has moved.
    MovedZipf(f64),
    /// Facebook's ETC pool: large values uniformly, the others by Zipf 0.99; see [`etc`].
    Etc,
}

/// An operation mix and a distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    /// The operations.
    pub kind: Kind,
    /// The choice of keys.
    pub distribution: Distribution,
}

/// Shares of the operations of a mix, in per cent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mix {
    pub read: u64,
    pub update: u64,
    pub insert: u64,
    pub scan: u64,
    pub rmw: u64,
}

const MAX_YCSB_SCAN: u64 = 100;

impl Kind {
    fn mix(self) -> Option<Mix> {
        let mix = |read, update, insert, scan, rmw| Some(Mix { read, update, insert, scan, rmw });
        match self {
            Kind::Ycsb('a') => mix(50, 50, 0, 0, 0),
            Kind::Ycsb('b') => mix(95, 5, 0, 0, 0),
            Kind::Ycsb('c') => mix(100, 0, 0, 0, 0),
            Kind::Ycsb('d') => mix(95, 0, 5, 0, 0),
            Kind::Ycsb('e') => mix(0, 0, 5, 95, 0),
            Kind::Ycsb(_) => mix(50, 0, 0, 0, 50),
            _ => None,
        }
    }

    /// Number of keys that one call handles: 1 unless it is a batch. Rates of batches are given in keys, those of scans
    /// in scans.
    pub fn group(self) -> u64 {
        match self {
            Kind::LoadBatch(n) | Kind::MultiGet(n) | Kind::PutBatch(n) => u64::from(n.max(1)),
            _ => 1,
        }
    }

    /// True for the two kinds that fill an empty store.
    pub fn loads(self) -> bool {
        matches!(self, Kind::Load | Kind::LoadBatch(_))
    }

    /// True if the kind writes keys that were not loaded.
    pub fn inserts(self) -> bool {
        self == Kind::Insert || self.mix().is_some_and(|mix| mix.insert > 0)
    }

    /// An upper bound of the share of operations that write a pair.
    pub fn write_share(self) -> f64 {
        match self.mix() {
            Some(mix) => (mix.update + mix.insert + mix.rmw) as f64 / 100.0,
            None if matches!(self, Kind::Get | Kind::Scan(_) | Kind::MultiGet(_)) => 0.0,
            None => 1.0,
        }
    }

    /// True if the operations need an order of keys.
    pub fn needs_order(self) -> bool {
        matches!(self, Kind::Scan(_) | Kind::Ycsb('e'))
    }

    fn natural_distribution(self) -> Distribution {
        match self {
            Kind::Ycsb('d') => Distribution::Latest,
            Kind::Ycsb(_) => Distribution::Zipf(0.99),
            _ => Distribution::Uniform,
        }
    }
}

impl Workload {
    /// The name without the distribution, as it stands in records.
    pub fn name(&self) -> String {
        match self.kind {
            Kind::Load => "load".into(),
            Kind::LoadBatch(n) => format!("load-batch={n}"),
            Kind::Get => "get".into(),
            Kind::Update => "update".into(),
            Kind::Insert => "insert".into(),
            Kind::Delete => "delete".into(),
            Kind::Rmw => "rmw".into(),
            Kind::Scan(n) => format!("scan={n}"),
            Kind::MultiGet(n) => format!("multi-get={n}"),
            Kind::PutBatch(n) => format!("put-batch={n}"),
            Kind::Ycsb(letter) => format!("ycsb-{letter}"),
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name(), self.distribution)
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distribution::Uniform => f.write_str("uniform"),
            Distribution::Zipf(theta) => write!(f, "zipf={theta}"),
            Distribution::Latest => f.write_str("latest"),
            Distribution::MovedZipf(theta) => write!(f, "moved-zipf={theta}"),
            Distribution::Etc => f.write_str("etc"),
        }
    }
}

impl FromStr for Distribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, theta) = text.split_once('=').map_or((text, None), |(name, theta)| (name, Some(theta)));
        match (name, theta) {
            ("uniform", None) => Ok(Distribution::Uniform),
            ("latest", None) => Ok(Distribution::Latest),
            ("etc", None) => Ok(Distribution::Etc),
            ("zipf" | "moved-zipf", theta) => match theta.unwrap_or("0.99").parse::<f64>() {
                Ok(theta) if (0.5..=0.99).contains(&theta) && name == "zipf" => Ok(Distribution::Zipf(theta)),
                Ok(theta) if (0.5..=0.99).contains(&theta) => Ok(Distribution::MovedZipf(theta)),
                _ => Err(format!("zipf takes an exponent from 0.5 to 0.99, not `{}`", theta.unwrap_or(""))),
            },
            _ => Err(format!("unknown distribution `{text}`: uniform, zipf[=THETA], moved-zipf[=THETA], latest or etc")),
        }
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (operation, distribution) = text.split_once(':').map_or((text, None), |(a, b)| (a, Some(b)));
        let kind = parse_kind(operation)?;
        let distribution = distribution.map_or(Ok(kind.natural_distribution()), str::parse)?;
        Ok(Self { kind, distribution })
    }
}

fn parse_kind(text: &str) -> Result<Kind, String> {
    let (name, count) = match text.split_once('=') {
        Some((name, count)) => (name, Some(count.parse::<u32>().map_err(|_| format!("`{count}` is not a count in `{text}`"))?)),
        None => (text, None),
    };
    if count.is_some_and(|n| n == 0 || n > 4000) {
        return Err(format!("the count in `{text}` must be 1 to 4000"));
    }
    let counted = |default: u32| count.unwrap_or(default);
    match name {
        "load-batch" => return Ok(Kind::LoadBatch(counted(1000))),
        "scan" => return Ok(Kind::Scan(counted(100))),
        "multi-get" => return Ok(Kind::MultiGet(counted(16))),
        "put-batch" => return Ok(Kind::PutBatch(counted(16))),
        _ if count.is_some() => return Err(format!("`{name}` takes no count")),
        _ => {}
    }
    match (name, name.strip_prefix("ycsb-").map(str::as_bytes)) {
        (_, Some([letter @ b'a'..=b'f'])) => Ok(Kind::Ycsb(char::from(*letter))),
        ("load", _) => Ok(Kind::Load),
        ("get", _) => Ok(Kind::Get),
        ("update", _) => Ok(Kind::Update),
        ("insert", _) => Ok(Kind::Insert),
        ("delete", _) => Ok(Kind::Delete),
        ("rmw", _) => Ok(Kind::Rmw),
        _ => Err(format!(
            "unknown workload `{name}`: load, load-batch, get, update, insert, delete, rmw, scan, multi-get, put-batch, ycsb-a to ycsb-f"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_forms_go_both_ways() {
        for text in [
            "load:uniform",
            "get:zipf=0.8",
            "scan=100:uniform",
            "ycsb-d:latest",
            "multi-get=16:uniform",
            "delete:uniform",
            "update:etc",
            "update:moved-zipf=0.99",
        ] {
            assert_eq!(text.parse::<Workload>().expect(text).to_string(), text);
        }
        assert_eq!("ycsb-a".parse::<Workload>().expect("valid").distribution, Distribution::Zipf(0.99));
        assert_eq!("multi-get".parse::<Workload>().expect("valid").kind, Kind::MultiGet(16));
    }

    #[test]
    fn wrong_texts_are_refused() {
        for text in ["", "ycsb-g", "get=5", "get:zipf=1.2", "get:normal", "scan=0", "ycsb-", "put-batch=x"] {
            assert!(text.parse::<Workload>().is_err(), "{text}");
        }
    }

    #[test]
    fn mixes_add_up() {
        for letter in 'a'..='f' {
            let mix = Kind::Ycsb(letter).mix().expect("a mix");
            assert_eq!(mix.read + mix.update + mix.insert + mix.scan + mix.rmw, 100);
        }
    }
}
