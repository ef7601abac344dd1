//! One measured case: a store filled to a given share by its live entries, and overwritten for a while.
//!
//! The store is made so large that the loaded pairs fill the share asked for; it never grows. Overwrites before the
//! clock starts turn the store over, so that the steady state is measured. Afterwards every key is read and checked.
//!
//! Thread safety: one case at a time; its threads are those of the harness.

use std::path::Path;
use std::time::Duration;

use hither::{Builder, Db, Durability, MediumChoice, PoolStats};

use super::techniques::Step;
use crate::harness::closed::Closed;
use crate::harness::latency::Quantiles;
use crate::harness::open::Open;
use crate::harness::pin;
use crate::harness::sampling::Sampling;
use crate::harness::scratch::{self, Scratch};
use crate::harness::spec::Collector;
use crate::harness::steady::{Course, Slice, Steady};
use crate::harness::team::Team;
use crate::harness::verify::Present;
use crate::target::store::{Index, StoreTarget};
use crate::target::{Error, Result};
use crate::workload::data::DataSet;
use crate::workload::{Distribution, Kind, Workload};

/// Keys of the sample store that shows the mean length of an entry.
const SAMPLE_KEYS: u64 = 20_000;
/// Length of a slice of the course.
const SLICE: Duration = Duration::from_millis(250);

/// What is measured, and how.
#[derive(Clone, Debug)]
pub struct Case {
    /// The index.
    pub index: Index,
    /// The way of collecting garbage.
    pub way: Way,
    /// Whether entries of ordered indexes carry shortcuts, if they are large enough and the way of collecting has
    /// shortcuts.
    pub shortcuts: bool,
    /// Number of background collectors.
    pub cleaners: usize,
    /// Number of writers.
    pub threads: usize,
    /// Number of pairs.
    pub keys: u64,
    /// Length of values in bytes; `None`: as ETC has them.
    pub value_bytes: Option<usize>,
    /// Live bytes, in per cent of the bytes that the store may have.
    pub utilization: u32,
    /// The writers' operations, of a kind that overwrites.
    pub workload: Workload,
    /// Whether other keys become hot when the clock starts.
    pub shift: bool,
    /// Bytes overwritten before the clock starts, as a multiple of the store's size.
    pub turnovers: f64,
    /// Number of measured operations.
    pub ops: u64,
    /// Open loop: the operations per second that are due, of all writers together; latency counts from when an
    /// operation was due. `None`: closed loop.
    pub due: Option<f64>,
    /// Ends the measurement even if operations are left.
    pub at_most: Duration,
}

/// The way of collecting garbage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// With this collector and all its techniques.
    Collector(Collector),
    /// With the techniques up to a step.
    Step(Step),
}

impl Way {
    /// The collector's name in tables.
    pub fn collector(self) -> &'static str {
        match self {
            Way::Collector(Collector::Chain) | Way::Step(Step::Chain) => "chain",
            Way::Collector(Collector::Batched) | Way::Step(_) => "batched",
        }
    }

    /// The name of the techniques in tables.
    pub fn techniques(self) -> &'static str {
        match self {
            Way::Collector(_) => "default",
            Way::Step(step) => step.name(),
        }
    }

    /// Whether the way uses shortcuts, as far as entries carry any.
    pub fn has_shortcuts(self) -> bool {
        matches!(self, Way::Collector(Collector::Batched) | Way::Step(Step::Shortcuts))
    }

    fn settings(self, builder: Builder) -> Builder {
        match self {
            Way::Collector(collector) => builder.collector(collector.kind()),
            Way::Step(step) => step.settings(builder),
        }
    }
}

/// The result of a case.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Operations per second.
    pub ops_per_s: f64,
    /// Latencies of puts.
    pub puts: Quantiles,
    /// The course, in slices of time; empty in the open loop.
    pub slices: Vec<Slice>,
    /// Wall time of the measured part, in seconds.
    pub seconds: f64,
    /// Live bytes as a share of the bytes that the store may have, at the end.
    pub utilization: f64,
    /// Bytes of segments that collectors emptied.
    pub collected_bytes: u64,
    /// Processor time of collecting, in seconds.
    pub collector_cpu_s: f64,
    /// Bytes that writers appended or collectors copied, over the bytes that writers appended.
    pub write_amplification: f64,
    /// Current entries whose shortcuts collectors followed, by outcome: found at once, found in the leaf beside, not
    /// found.
    pub shortcuts: [u64; 3],
    /// How often writers waited for space.
    pub stalls: u64,
    /// How long writers waited for space in milliseconds, all together.
    pub stall_ms: u64,
    /// How long writers were slowed down, in milliseconds, all together.
    pub paced_ms: f64,
    /// Entries of emptied segments that were known to be garbage.
    pub known_garbage: u64,
    /// DRAM that records what is garbage, as a share of the bytes of the log.
    pub garbage_info: f64,
    /// Bytes that the store may have, over the bytes of keys and values.
    pub space_amplification: f64,
}

impl Measured {
    /// The outcomes of shortcuts, each as a share of all that were followed; `None` if none were.
    pub fn shortcut_shares(&self) -> Option<[f64; 3]> {
        let followed: u64 = self.shortcuts.iter().sum();
        (followed > 0).then(|| self.shortcuts.map(|count| count as f64 / followed as f64))
    }

    /// Bytes of segments emptied per second of collectors' processor time.
    pub fn per_cpu_second(&self) -> Option<f64> {
        (self.collector_cpu_s > 0.0).then(|| self.collected_bytes as f64 / self.collector_cpu_s)
    }
}

impl Case {
    /// Measures the case in a new store on forced dax, durable at return.
    pub fn run(&self) -> Result<Measured> {
        self.check()?;
        pin::prepare();
        let data = self.value_bytes.map_or_else(|| DataSet::etc(1), |bytes| DataSet::new(8, bytes, 1));
        let directory = Scratch::new(scratch::Kind::Compaction, Path::new("/dev/shm"))?;
        let (entry, pair) = self.mean_bytes(&data)?;
        let capacity = (self.keys as f64 * entry * 100.0 / f64::from(self.utilization)) as u64;
        let builder = Db::builder().path(directory.path()).medium(MediumChoice::ForcedDax).durability(Durability::Sync);
        let target = StoreTarget::create_with(self.settings(builder.capacity(capacity).max_capacity(capacity)), self.index)?;
        load(&target, &data, self.keys, self.threads)?;
        let turnover = (capacity as f64 / entry * self.turnovers / self.workload.kind.write_share()) as u64;
        self.overwrite(&target, &data, &self.workload, turnover, 1)?;
        let before = Moment::of(&target);
        let course = self.measured(&target, &data)?;
        let after = Moment::of(&target);
        let load = Workload { kind: Kind::Load, distribution: Distribution::Uniform };
        self.team(&target, &data, &load, 3).verify(Present::All, &[self.workload])?;
        let outcome = &course.outcome;
        Ok(Measured {
            ops_per_s: outcome.ops_per_s(),
            puts: outcome.latencies.quantiles(),
            seconds: outcome.elapsed().as_secs_f64(),
            space_amplification: after.max_bytes as f64 / (pair * self.keys as f64),
            ..after.since(&before, course.slices)
        })
    }

    fn check(&self) -> Result<()> {
        let overwrites = matches!(self.workload.kind, Kind::Update | Kind::Ycsb('a') | Kind::Rmw);
        match () {
            () if !overwrites => Err(Error::Config(format!("{} is not made of overwrites: update, rmw or ycsb-a", self.workload))),
            () if self.due.is_some() && self.workload.kind != Kind::Update => {
                Err(Error::Config("in the open loop all operations are puts: update".into()))
            }
            () if self.shift && !matches!(self.workload.distribution, Distribution::Zipf(_)) => {
                Err(Error::Config("only the hot spot of a Zipf distribution can move".into()))
            }
            () => Ok(()),
        }
    }

    fn settings(&self, builder: Builder) -> Builder {
        let builder = self.way.settings(builder).gc_threads(self.cleaners);
        if self.shortcuts && self.way.has_shortcuts() { builder } else { builder.shortcut_from_bytes(None) }
    }

    /// Mean bytes of an entry without shortcut, and of key and value together, from a sample. Stores with and without
    /// shortcuts get the same size, so shortcuts take their room from it.
    fn mean_bytes(&self, data: &DataSet) -> Result<(f64, f64)> {
        let keys = self.keys.min(SAMPLE_KEYS);
        let builder =
            Db::builder().in_memory().durability(Durability::Process).capacity(64 << 20).max_capacity(64 << 20).shortcut_from_bytes(None);
        let sample = StoreTarget::create_with(builder, self.index)?;
        load(&sample, data, keys, 1)?;
        let (mut pairs, mut key) = (0, data.key_buffer());
        for id in 0..keys {
            data.key(id, &mut key);
            pairs += key.len() + data.value_bytes_of(&key);
        }
        Ok((sample.entry_bytes() as f64 / keys as f64, pairs as f64 / keys as f64))
    }

    fn team<'a>(&self, target: &'a StoreTarget, data: &'a DataSet, workload: &'a Workload, epoch: u32) -> Team<'a, StoreTarget> {
        Team { target, data, workload, threads: self.threads, keys: self.keys, inserted: 0, seed: 1, epoch }
    }

    fn overwrite(&self, target: &StoreTarget, data: &DataSet, workload: &Workload, ops: u64, epoch: u32) -> Result<Course> {
        let steady = Steady { ops, at_most: self.at_most, sampling: Sampling::default(), slice: SLICE };
        steady.run(&self.team(target, data, workload, epoch))
    }

    /// The measured part. In the open loop there are no slices, because a stall shows in the latency of everything that
    /// was due meanwhile.
    fn measured(&self, target: &StoreTarget, data: &DataSet) -> Result<Course> {
        let distribution = match self.workload.distribution {
            Distribution::Zipf(theta) if self.shift => Distribution::MovedZipf(theta),
            same => same,
        };
        let measured = Workload { distribution, ..self.workload };
        let Some(rate) = self.due else { return self.overwrite(target, data, &measured, self.ops, 2) };
        let outcome = Open { rate, ops: self.ops, warmup_ops: 0, at_most: self.at_most }.run(&self.team(target, data, &measured, 2))?;
        Ok(Course { outcome, slices: Vec::new() })
    }
}

fn load(target: &StoreTarget, data: &DataSet, keys: u64, threads: usize) -> Result<()> {
    let workload = Workload { kind: Kind::Load, distribution: Distribution::Uniform };
    let team = Team { target, data, workload: &workload, threads, keys, inserted: 0, seed: 1, epoch: 0 };
    Closed { ops: 0, warmup_ops: 0, at_most: Duration::MAX, sampling: Sampling::default() }.run(&team).map(drop)
}

/// The store's counters at one moment.
#[derive(Clone, Copy, Debug)]
struct Moment {
    collected: u64,
    cpu_ms: u64,
    appended: u64,
    copied: u64,
    shortcuts: [u64; 3],
    stalls: u64,
    stall_ms: u64,
    paced_ns: u64,
    known_garbage: u64,
    garbage_info: u64,
    live: u64,
    max_bytes: u64,
}

impl Moment {
    fn of(target: &StoreTarget) -> Moment {
        let stats = target.stats();
        let sum = |of: fn(&PoolStats) -> u64| stats.pools.iter().map(of).sum();
        Moment {
            collected: sum(|pool| pool.collected_bytes),
            cpu_ms: sum(|pool| pool.collector_cpu_ms),
            appended: sum(|pool| pool.appended_bytes),
            copied: sum(|pool| pool.copied_bytes),
            shortcuts: [stats.collections.shortcut_hits, stats.collections.shortcut_sibling_hits, stats.collections.shortcut_fallbacks],
            stalls: stats.collections.stalls,
            stall_ms: stats.collections.stall_ms,
            paced_ns: stats.collections.paced_ns,
            known_garbage: stats.collections.known_garbage,
            garbage_info: stats.garbage_info_bytes,
            live: sum(|pool| pool.live_bytes),
            max_bytes: sum(|pool| pool.max_bytes),
        }
    }

    /// The differences between two moments; the caller fills in the rest.
    fn since(&self, before: &Moment, slices: Vec<Slice>) -> Measured {
        let (appended, copied) = (self.appended - before.appended, self.copied - before.copied);
        Measured {
            ops_per_s: 0.0,
            puts: Quantiles::default(),
            slices,
            seconds: 0.0,
            utilization: self.live as f64 / self.max_bytes.max(1) as f64,
            collected_bytes: self.collected - before.collected,
            collector_cpu_s: (self.cpu_ms - before.cpu_ms) as f64 / 1e3,
            write_amplification: (appended + copied) as f64 / appended.max(1) as f64,
            shortcuts: std::array::from_fn(|i| self.shortcuts[i] - before.shortcuts[i]),
            stalls: self.stalls - before.stalls,
            stall_ms: self.stall_ms - before.stall_ms,
            paced_ms: (self.paced_ns - before.paced_ns) as f64 / 1e6,
            known_garbage: self.known_garbage - before.known_garbage,
            garbage_info: self.garbage_info as f64 / self.max_bytes.max(1) as f64,
            space_amplification: 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(workload: &str) -> Case {
        Case {
            index: Index::Hash,
            way: Way::Collector(Collector::Batched),
            shortcuts: true,
            cleaners: 1,
            threads: 2,
            keys: 50_000,
            value_bytes: Some(8),
            utilization: 80,
            workload: workload.parse().expect("valid"),
            shift: false,
            turnovers: 1.0,
            ops: 80_000,
            due: None,
            at_most: Duration::from_secs(60),
        }
    }

    #[test]
    fn a_store_is_as_full_as_asked_for_and_collects() {
        for (collector, workload) in [(Collector::Batched, "update:uniform"), (Collector::Chain, "ycsb-a")] {
            let found = Case { way: Way::Collector(collector), ..case(workload) }.run().expect("measured");
            assert!((0.75..0.85).contains(&found.utilization), "{found:?}");
            assert!(found.ops_per_s > 0.0 && found.collected_bytes > 0 && found.write_amplification > 1.0, "{found:?}");
            assert!(found.puts.p50_us > 0.0 && found.puts.p9999_us >= found.puts.p999_us, "{found:?}");
            assert!(found.garbage_info > 0.0 && (2.4..2.7).contains(&found.space_amplification), "{found:?}");
            assert_eq!(found.slices.iter().map(|slice| slice.ops).sum::<u64>(), 80_000);
        }
    }

    /// Every put that was due is in the quantiles, and none is made before it is due.
    #[test]
    fn in_the_open_loop_puts_come_when_they_are_due() {
        let open = Case { due: Some(40_000.0), ops: 8_000, turnovers: 0.0, ..case("update:zipf") };
        let found = open.run().expect("measured");
        assert!(found.seconds > 0.19 && found.ops_per_s < 42_000.0 && found.slices.is_empty(), "{found:?}");
        assert!(found.puts.p50_us > 0.0, "{found:?}");
        assert!(Case { due: Some(40_000.0), ..case("ycsb-a") }.run().is_err());
    }

    #[test]
    fn shortcuts_are_followed_unless_they_are_off() {
        let ordered = Case { index: Index::Ordered, value_bytes: Some(256), keys: 12_000, ops: 24_000, ..case("update:uniform") };
        let found = ordered.run().expect("measured");
        let shares = found.shortcut_shares().expect("some were followed");
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9 && shares[0] > 0.3, "{found:?}");
        let off = Case { shortcuts: false, ..ordered }.run().expect("measured");
        assert_eq!(off.shortcut_shares(), None, "{off:?}");
        assert!((found.space_amplification / off.space_amplification - 1.0).abs() < 0.01, "{found:?} {off:?}");
    }

    #[test]
    fn values_of_many_lengths_and_a_hot_spot_that_moves() {
        let etc = Case { value_bytes: None, keys: 12_000, ops: 20_000, ..case("update:etc") }.run().expect("measured");
        assert!((0.7..0.85).contains(&etc.utilization), "{etc:?}");
        Case { shift: true, ..case("update:zipf") }.run().expect("measured");
        assert!(Case { shift: true, ..case("update:uniform") }.run().is_err());
        assert!(case("get").run().is_err());
    }
}
