//! Runs the workloads of a request on a fresh store, several times, and makes records of medians.
//!
//! If the first workload is not a load, the keys are loaded before it, without a record. DRAM and media per key are
//! taken right after the load. Each run has a new directory, which is removed afterwards.

use std::path::Path;
use std::time::Duration;

use super::closed::Closed;
use super::latency::{Latencies, Quantiles};
use super::machine::Machine;
use super::open::Open;
use super::record::Record;
use super::sampling::Sampling;
use super::scratch::{self, Scratch};
use super::spec::RunSpec;
use super::team::{Outcome, Team};
use super::verify::Present;
use super::{median, memory, pin};
use crate::target::{Result, Target};
use crate::workload::{Distribution, Kind, Workload};

/// The result of one workload in one run.
struct Sample {
    workload: Workload,
    outcome: Outcome,
    quantiles: Quantiles,
    disk: Option<u64>,
}

struct Run {
    samples: Vec<Sample>,
    dram: Option<f64>,
    media: Option<f64>,
    name: String,
    settings: Vec<(String, String)>,
    /// Medium and durability.
    medium: (String, String),
}

impl Run {
    /// A run without results.
    fn of(spec: &RunSpec, target: &impl Target) -> Run {
        let own = target.own_medium().map(|(medium, durability)| (medium.to_owned(), durability.to_owned()));
        let medium = own.unwrap_or_else(|| (spec.medium.to_string(), spec.durability.to_string()));
        Run { samples: Vec::new(), dram: None, media: None, name: target.name().into(), settings: target.settings(), medium }
    }
}

/// Measures everything in `spec`; `make` opens a new store in an empty directory. If the script does not begin with a
/// load, `preload` loads the keys.
pub fn run_script<T: Target>(spec: &RunSpec, preload: Kind, make: impl Fn(&Path) -> Result<T>) -> Result<Vec<Record>> {
    spec.validate()?;
    pin::prepare();
    let runs = (0..spec.runs).map(|_| one_run(spec, preload, &make)).collect::<Result<Vec<_>>>()?;
    let machine = Machine::here();
    let phases = runs.first().map_or(0, |run| run.samples.len());
    Ok((0..phases).map(|phase| join(spec, &runs, phase, &machine)).collect())
}

fn one_run<T: Target>(spec: &RunSpec, preload: Kind, make: &impl Fn(&Path) -> Result<T>) -> Result<Run> {
    let directory = Scratch::new(scratch::Kind::Bench, &spec.directory())?;
    // The first histogram makes the allocator touch its pages, so that they are not counted as memory of the store.
    drop(Latencies::default());
    let before = memory::anonymous_bytes();
    let target = make(directory.path())?;
    let data = spec.data();
    let mut script = spec.workloads.clone();
    let implicit = script.first().is_none_or(|w| !w.kind.loads());
    if implicit {
        script.insert(0, Workload { kind: preload, distribution: Distribution::Uniform });
    }
    let mut run = Run::of(spec, &target);
    // As many bytes as the index of any store may need for its keys.
    memory::warm(spec.keys as usize * 40);
    let mut present = Present::None;
    let (threads, keys, seed) = (spec.threads, spec.keys, spec.seed);
    let mut inserted = 0;
    for (phase, workload) in script.iter().enumerate() {
        let team = Team { target: &target, data: &data, workload, threads, keys, inserted, seed, epoch: phase as u32 };
        let outcome = measure(spec, &team, implicit && phase == 0)?;
        present = present.after(workload.kind, outcome.ops, keys);
        inserted += if workload.kind.inserts() { spec.most_inserts() } else { 0 };
        if phase == 0 {
            let per_key = |bytes: u64| bytes as f64 / outcome.ops.max(1) as f64;
            run.dram = before.zip(memory::anonymous_bytes()).map(|(before, after)| per_key(after.saturating_sub(before)));
            run.media = target.media_bytes().map(per_key);
        }
        if !(implicit && phase == 0) {
            let quantiles = outcome.latencies.quantiles();
            run.samples.push(Sample { workload: *workload, outcome, quantiles, disk: disk_bytes(directory.path()) });
        }
    }
    if spec.verify {
        let last = script.last().expect("a script has a load");
        let team = Team { target: &target, data: &data, workload: last, threads, keys, inserted, seed, epoch: 200 };
        team.verify(present, &script)?;
    }
    Ok(run)
}

/// Bytes that the file system has allocated to the files below a directory, if it reports them; 0 for a store without
/// files.
fn disk_bytes(directory: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut sum = 0;
    for entry in std::fs::read_dir(directory).ok()? {
        let entry = entry.ok()?;
        let info = entry.metadata().ok()?;
        sum += if info.is_dir() { disk_bytes(&entry.path())? } else { info.blocks() * 512 };
    }
    Some(sum)
}

fn measure<T: Target>(spec: &RunSpec, team: &Team<'_, T>, preload: bool) -> Result<Outcome> {
    let at_most = if preload { Duration::from_secs(3600) } else { Duration::from_secs_f64(spec.seconds) };
    match spec.rate {
        Some(rate) if !team.workload.kind.loads() => Open { rate, ops: spec.ops(), warmup_ops: spec.warmup(), at_most }.run(team),
        _ => Closed { ops: spec.ops(), warmup_ops: spec.warmup(), at_most, sampling: Sampling::one_in(spec.sample_every) }.run(team),
    }
}

fn join(spec: &RunSpec, runs: &[Run], phase: usize, machine: &Machine) -> Record {
    let samples: Vec<&Sample> = runs.iter().map(|run| &run.samples[phase]).collect();
    let first = samples[0];
    let middle = |f: fn(&Quantiles) -> f64| median(&samples.iter().map(|s| f(&s.quantiles)).collect::<Vec<_>>()).unwrap_or(0.0);
    let per_key = |f: fn(&Run) -> Option<f64>| median(&runs.iter().filter_map(f).collect::<Vec<_>>());
    let rates: Vec<f64> = samples.iter().map(|s| s.outcome.ops_per_s()).collect();
    let open = spec.rate.filter(|_| !first.workload.kind.loads());
    let mut record = Record {
        store: runs[0].name.clone(),
        workload: first.workload.name(),
        distribution: first.workload.distribution.to_string(),
        threads: spec.threads,
        keys: spec.keys,
        key_bytes: spec.key_bytes,
        value_bytes: spec.mean_value_bytes().round() as usize,
        medium: runs[0].medium.0.clone(),
        durability: runs[0].medium.1.clone(),
        mode: if open.is_some() { "open" } else { "closed" }.into(),
        target_ops_per_s: open,
        ops: first.outcome.ops,
        warmup_ops: spec.warmup(),
        seed: spec.seed,
        ops_per_s: median(&rates).unwrap_or(0.0),
        runs: rates,
        dram_bytes_per_key: per_key(|run| run.dram),
        media_bytes_per_key: per_key(|run| run.media),
        disk_bytes_per_key: median(&samples.iter().filter_map(|s| Some(s.disk? as f64 / spec.keys as f64)).collect::<Vec<_>>()),
        checked: first.outcome.checked,
        settings: runs[0].settings.iter().cloned().collect(),
        machine: machine.clone(),
        ..Record::default()
    };
    record.set_quantiles(&Quantiles {
        p50_us: middle(|q| q.p50_us),
        p99_us: middle(|q| q.p99_us),
        p999_us: middle(|q| q.p999_us),
        p9999_us: middle(|q| q.p9999_us),
        max_us: middle(|q| q.max_us),
    });
    record
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::map::MapTarget;
    use crate::target::store::{Index, StoreSession, StoreTarget};
    use clap::Parser;
    use std::sync::Mutex;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        spec: RunSpec,
    }

    fn spec(args: &str) -> RunSpec {
        Program::try_parse_from(["x"].into_iter().chain(args.split_whitespace())).expect("valid arguments").spec
    }

    fn records(args: &str) -> Result<Vec<Record>> {
        let spec = spec(args);
        run_script(&spec, Kind::Load, |_| Ok(MapTarget::new(spec.keys)))
    }

    #[test]
    fn a_script_gives_a_record_per_workload() {
        let records = records("--keys 5000 --runs 3 -w load -w get:zipf -w ycsb-b --medium volatile --verify --dir /tmp").expect("records");
        let names: Vec<String> = records.iter().map(Record::label).collect();
        assert_eq!(names, ["load uniform", "get zipf=0.99", "ycsb-b zipf=0.99"]);
        assert!(records.iter().all(|r| r.runs.len() == 3 && r.ops_per_s > 0.0 && r.p50_us > 0.0));
        assert_eq!(records[1].checked, 5000);
        assert_eq!(records[0].mode, "closed");
    }

    #[test]
    fn a_record_names_what_its_run_can_be_repeated_with() {
        let request = "--keys 1000 --ops 400 --seed 7 --collector chain --cleaners 0 --capacity 33554432 -w load -w get --medium volatile";
        let spec = spec(request);
        let make = |directory: &Path| StoreTarget::create(&spec, Index::Hash, directory);
        let records = run_script(&spec, Kind::Load, make).expect("records");
        for record in &records {
            assert_eq!((record.seed, record.warmup_ops), (7, 40));
            let wanted = [("collector", "chain"), ("cleaners", "0"), ("capacity", "33554432"), ("max capacity", "67108864")];
            for (name, value) in wanted {
                assert_eq!(record.settings.get(name).map(String::as_str), Some(value), "{name}");
            }
        }
    }

    /// Regression: the map's records named the medium and the durability of the request.
    #[test]
    fn a_yardstick_names_its_own_medium_and_durability() {
        for request in ["", " --medium volatile --durability process", " --medium dax --dir /dev/shm"] {
            let records = records(&format!("--keys 1000 -w load -w get{request}")).expect("records");
            assert!(records.iter().all(|r| (r.medium.as_str(), r.durability.as_str()) == ("volatile", "none")), "{request}");
        }
        let (_, _, records) = counted("--keys 1000 -w load --durability process").expect("records");
        assert_eq!((records[0].medium.as_str(), records[0].durability.as_str()), ("volatile", "process"));
    }

    /// A store that reports at its end how many pairs it holds, and the bytes of their entries.
    struct Counted<'a>(StoreTarget, &'a Mutex<(u64, u64)>);

    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            *self.1.lock().expect("not poisoned") = (self.0.pairs(), self.0.entry_bytes());
        }
    }

    impl Target for Counted<'_> {
        type Session<'s>
            = StoreSession<'s>
        where
            Self: 's;
        fn name(&self) -> &str {
            self.0.name()
        }
        fn settings(&self) -> Vec<(String, String)> {
            self.0.settings()
        }
        fn session(&self) -> Result<StoreSession<'_>> {
            self.0.session()
        }
        fn is_ordered(&self) -> bool {
            self.0.is_ordered()
        }
    }

    /// Number of pairs at the end, bytes of entries, and records.
    fn counted(args: &str) -> Result<(u64, u64, Vec<Record>)> {
        let (spec, found) = (spec(&format!("{args} --medium volatile --verify --dir /tmp")), Mutex::default());
        let make = |directory: &Path| StoreTarget::create(&spec, Index::Ordered, directory).map(|target| Counted(target, &found));
        let records = run_script(&spec, Kind::Load, make)?;
        let (pairs, bytes) = found.into_inner().expect("not poisoned");
        Ok((pairs, bytes, records))
    }

    /// Regression: the insertions of a second workload overwrote those of the first.
    #[test]
    fn each_workload_inserts_keys_of_its_own() {
        let pairs = |script: &str| counted(&format!("--keys 2000 --ops 1000 -w load {script}")).expect("records").0;
        assert_eq!(pairs("-w insert -w insert"), 4_000);
        // As many as either inserts alone, because the seeds are the same.
        let (first, both) = (pairs("-w ycsb-d"), pairs("-w ycsb-d -w ycsb-e -w update -w insert"));
        assert!(both >= first + 1_000 + 20, "{first}, {both}");
    }

    /// Regression: except in `compaction`, overwrites of ETC had values of one length.
    #[test]
    fn values_of_etc_have_its_lengths() {
        let (pairs, bytes, records) = counted("--keys 2000 -w load -w get:etc").expect("records");
        assert_eq!((pairs, records[0].value_bytes), (2_000, 121));
        assert!((2_000 * 140..2_000 * 160).contains(&bytes), "{bytes}");
        let updated = counted("--keys 2000 -w load -w update:etc -w ycsb-a").expect("records");
        assert_eq!((updated.0, updated.2.len()), (2_000, 3));
        assert!(self::records("--keys 2000 -w get:etc --medium volatile --dir /tmp").is_err(), "the map's values are words");
    }

    /// Regression: the verification missed keys that a load had not reached when its time was up.
    #[test]
    fn a_load_that_is_cut_short_is_verified_as_far_as_it_came() {
        let cut = records("--keys 500000 -w load --seconds 0.000001 --medium volatile --verify --dir /tmp").expect("records");
        assert!(cut[0].ops < 500_000);
        let gone = records("--keys 5000 -w load -w delete -w load -w get --medium volatile --verify --dir /tmp").expect("records");
        assert_eq!(gone.len(), 4);
    }

    #[test]
    fn bytes_of_a_directory_are_those_of_all_files_below() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(disk_bytes(directory.path()), Some(0));
        std::fs::create_dir(directory.path().join("below")).expect("a directory");
        std::fs::write(directory.path().join("below/file"), vec![1; 100_000]).expect("a file");
        let bytes = disk_bytes(directory.path()).expect("a number");
        assert!((100_000..200_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn keys_are_loaded_even_if_nobody_says_so() {
        let records = records("--keys 3000 -w get --rate 100000 --ops 500 --medium volatile --dir /tmp").expect("records");
        assert_eq!(records.len(), 1);
        assert_eq!((records[0].mode.as_str(), records[0].ops), ("open", 500));
    }

    #[test]
    fn an_operation_that_is_missing_is_an_error() {
        assert!(records("--keys 100 -w scan --medium volatile --dir /tmp").is_err());
    }
}
