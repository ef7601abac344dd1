//! Both yardsticks as the figures use them: the append limit, and the map's gets in the same loop as the store's.
//!
//! Thread safety: each function runs its own threads and returns when they have ended.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::append::{AppendFigure, AppendLimit};
use crate::harness::closed::Closed;
use crate::harness::sampling::Sampling;
use crate::harness::team::Team;
use crate::harness::{pin, scratch};
use crate::target::Result;
use crate::target::map::MapTarget;
use crate::workload::data::DataSet;
use crate::workload::{Distribution, Kind, Workload};

const TMPFS: &str = "/dev/shm";
/// Length of each writer's mapping in bytes.
pub const APPEND_BYTES: usize = 512 << 20;

/// The yardsticks to measure, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Number of threads.
    pub threads: usize,
    /// Number of keys in the map.
    pub keys: u64,
    /// Seconds of the append limit; 0 leaves it out.
    pub append_seconds: f64,
    /// Number of gets of each distribution; 0 leaves the map out.
    pub gets: u64,
}

/// Operations per second of each yardstick; `None` if it was left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Yardsticks {
    /// Appends of 32-byte records, flushed and fenced.
    pub append: Option<f64>,
    /// True if its mappings were on huge pages.
    #[serde(default)]
    pub append_on_huge_pages: Option<bool>,
    /// Uniform gets.
    pub map_uniform: Option<f64>,
    /// Scrambled Zipf 0.99 gets.
    pub map_zipf: Option<f64>,
    /// True if the map was on huge pages.
    #[serde(default)]
    pub map_on_huge_pages: Option<bool>,
}

impl Request {
    /// Measures the requested yardsticks.
    pub fn run(&self) -> Result<Yardsticks> {
        pin::prepare();
        // The append limit needs room there.
        scratch::sweep(Path::new(TMPFS));
        let mut all = Yardsticks::default();
        if self.append_seconds > 0.0 {
            let figure = self.append()?;
            (all.append, all.append_on_huge_pages) = (Some(figure.ops_per_s), Some(figure.huge_pages));
        }
        if self.gets > 0 {
            let map = MapTarget::new(self.keys);
            self.phase(&map, Kind::Load, Distribution::Uniform, 0)?;
            all.map_uniform = Some(self.phase(&map, Kind::Get, Distribution::Uniform, 1)?);
            all.map_zipf = Some(self.phase(&map, Kind::Get, Distribution::Zipf(0.99), 2)?);
            all.map_on_huge_pages = Some(map.huge_pages());
        }
        Ok(all)
    }

    fn append(&self) -> Result<AppendFigure> {
        let duration = Duration::from_secs_f64(self.append_seconds);
        let limit = AppendLimit { threads: self.threads, duration, bytes_per_thread: APPEND_BYTES, directory: Path::new(TMPFS) };
        limit.run()
    }

    fn phase(&self, map: &MapTarget, kind: Kind, distribution: Distribution, epoch: u32) -> Result<f64> {
        let (data, workload) = (DataSet::new(8, 8, 1), Workload { kind, distribution });
        let team =
            Team { target: map, data: &data, workload: &workload, threads: self.threads, keys: self.keys, inserted: 0, seed: 1, epoch };
        let closed =
            Closed { ops: self.gets, warmup_ops: self.gets / 10, at_most: Duration::from_secs(600), sampling: Sampling::default() };
        Ok(closed.run(&team)?.ops_per_s())
    }
}

/// The mean of the yardsticks before and after a group.
pub fn between(before: &Yardsticks, after: &Yardsticks) -> Yardsticks {
    let mean = |a: Option<f64>, b: Option<f64>| match (a, b) {
        (Some(a), Some(b)) => Some((a + b) / 2.0),
        (a, b) => a.or(b),
    };
    let both = |a: Option<bool>, b: Option<bool>| a.into_iter().chain(b).reduce(|a, b| a && b);
    Yardsticks {
        append: mean(before.append, after.append),
        append_on_huge_pages: both(before.append_on_huge_pages, after.append_on_huge_pages),
        map_uniform: mean(before.map_uniform, after.map_uniform),
        map_zipf: mean(before.map_zipf, after.map_zipf),
        map_on_huge_pages: both(before.map_on_huge_pages, after.map_on_huge_pages),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_is_measured_in_the_same_loop() {
        let request = Request { threads: 2, keys: 2_000, append_seconds: 0.0, gets: 4_000 };
        let figures = request.run().expect("figures");
        assert!(figures.append.is_none() && figures.map_uniform.is_some() && figures.map_zipf.is_some());
        assert!(figures.append_on_huge_pages.is_none() && figures.map_on_huge_pages.is_some());
    }

    #[test]
    fn means_take_what_there_is() {
        let with = |append| Yardsticks { append, ..Yardsticks::default() };
        assert_eq!(between(&with(Some(2.0)), &with(Some(4.0))).append, Some(3.0));
        assert_eq!(between(&with(None), &with(Some(4.0))).append, Some(4.0));
        let pages = |huge| Yardsticks { append_on_huge_pages: huge, map_on_huge_pages: huge, ..Yardsticks::default() };
        for (before, after, expected) in [(true, true, true), (true, false, false), (false, true, false)] {
            let found = between(&pages(Some(before)), &pages(Some(after)));
            assert_eq!((found.append_on_huge_pages, found.map_on_huge_pages), (Some(expected), Some(expected)));
        }
        assert_eq!(between(&pages(None), &pages(Some(true))).map_on_huge_pages, Some(true));
    }
}
