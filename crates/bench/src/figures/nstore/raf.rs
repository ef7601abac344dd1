//! Rows on the RAF cache: how near its choice comes to the best static one, how fast it gets there, and what it costs
//! where it cannot help.
//!
//! All rows but the last run the store's own cache structure by itself (`hither_cache::sim`): 100 K slots, 16 M items,
//! textbook Zipf 0.99, sampling as in the store. The optimum caches the 100 K items whose misses would cost most,
//! chosen from all items, not bucket by bucket. Costs and misses are compared with the exact value of the optimum. LFU
//! is the same structure with the published replacement, sampling every get, which favours it.
//!
//! The last row compares stores with and without cache in alternating runs of uniform gets, after the cache has
//! switched itself off.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hither::{Db, Durability, Keyspace, KeyspaceOptions, Topology};
use hither_cache::sim::{Cost, Simulation, optimum};
use hither_cache::{Policy, Weights};

use super::Request;
use crate::figures::row::{Demand, Point, Row, Unit, demand};
use crate::nstore::drive::{failed, processor_ns};
use crate::nstore::skew::Skew;
use crate::target::{Error, Result};
use crate::workload::permutation::mix64;
use crate::workload::random::Random;

/// The rows.
pub const DEMANDS: [Demand; 15] = [
    demand("raf-cost-2", "RAF, weighted miss cost: 2 nodes, symmetric", Unit::Optimum, 1.07, 1.05),
    demand("raf-cost-2-affinity", "RAF, weighted miss cost: 2 nodes, 90 % affinity", Unit::Optimum, 1.07, 1.05),
    demand("raf-cost-4", "RAF, weighted miss cost: 4 nodes, symmetric", Unit::Optimum, 1.07, 1.05),
    demand("raf-cost-4-affinity", "RAF, weighted miss cost: 4 nodes, 90 % affinity", Unit::Optimum, 1.07, 1.05),
    demand("raf-remote-2", "RAF, remote misses: 2 nodes, 90 % affinity", Unit::Lfu, 0.95, 0.93),
    demand("raf-remote-4", "RAF, remote misses: 4 nodes, 90 % affinity", Unit::Lfu, 0.95, 0.93),
    demand("raf-shift-2", "RAF, cost 80 updates per slot after a shift: 2 nodes, symmetric", Unit::Optimum, 1.10, 1.08),
    demand("raf-shift-2-affinity", "RAF, cost 80 updates per slot after a shift: 2 nodes, affinity", Unit::Optimum, 1.10, 1.08),
    demand("raf-shift-4", "RAF, cost 80 updates per slot after a shift: 4 nodes, symmetric", Unit::Optimum, 1.10, 1.08),
    demand("raf-shift-4-affinity", "RAF, cost 80 updates per slot after a shift: 4 nodes, affinity", Unit::Optimum, 1.10, 1.08),
    demand("raf-warm-2", "RAF, gets until within 2 % of the final cost: 2 nodes, symmetric", Unit::Gets, 20e6, 10e6),
    demand("raf-warm-2-affinity", "RAF, gets until within 2 % of the final cost: 2 nodes, affinity", Unit::Gets, 20e6, 10e6),
    demand("raf-warm-4", "RAF, gets until within 2 % of the final cost: 4 nodes, symmetric", Unit::Gets, 20e6, 10e6),
    demand("raf-warm-4-affinity", "RAF, gets until within 2 % of the final cost: 4 nodes, affinity", Unit::Gets, 20e6, 10e6),
    demand("raf-off-cost", "RAF, cost where it cannot help: uniform gets", Unit::Overhead, 0.02, 0.01),
];

const AFFINITY: f64 = 0.9;
const THETA: f64 = 0.99;
/// Number of gets between two looks at the cost.
const STRETCH: u64 = 1_000_000;
const UPDATES_PER_SLOT: u64 = 80;

/// A simulated cache, with the optimum for comparison.
struct Subject {
    skew: Skew,
    random: Random,
    simulation: Simulation,
    optimum: f64,
    stretch: u64,
    slots: u64,
}

/// The results of one configuration.
struct Outcome {
    /// Cost once the cache is warm, as a multiple of the optimum.
    cost: f64,
    /// Remote misses per get.
    remote: f64,
    warm_after: u64,
    /// Cost after the shift, as a multiple of the optimum.
    shifted: f64,
}

impl Subject {
    fn new(request: &Request, nodes: u32, affinity: bool, policy: Policy) -> Subject {
        let scale = if request.quick { 64 } else { 1 };
        let (items, slots) = (16_000_000 / scale, 100_000 / scale);
        let weights = Weights::of(&Topology::emulated(nodes as usize));
        let skew = Skew::new(items, nodes, THETA, affinity.then_some(AFFINITY));
        // Sampling adapts only in the default policy; the published ones do not define that.
        let sampling = (policy != Policy::Adaptive).then_some(1);
        let simulation = Simulation::new(policy, weights.clone(), slots, sampling);
        let slots = simulation.slots();
        let (optimum, _) = optimum(&skew.shares(&weights), slots as usize, |share| share.weighted);
        Subject { skew, random: Random::new(42), simulation, optimum, stretch: STRETCH / scale, slots }
    }

    /// Runs `stretches` stretches; returns their cost.
    fn run(&mut self, stretches: u64) -> Cost {
        let before = self.simulation.cost();
        for _ in 0..stretches * self.stretch {
            let (item, reader) = self.skew.draw(&mut self.random);
            self.simulation.get(item, self.skew.home(item), reader);
        }
        self.simulation.cost().since(&before)
    }

    fn outcome(&mut self) -> Outcome {
        let warming: Vec<f64> = (0..24).map(|_| self.run(1).per_get()).collect();
        let last = self.run(8);
        let near = |cost: &f64| *cost <= last.per_get() * 1.02;
        // The first of the stretches after which all are near.
        let cold = warming.iter().rposition(|cost| !near(cost)).map_or(0, |stretch| stretch as u64 + 1);
        self.skew.shift();
        let start = self.simulation.cost();
        let limit = UPDATES_PER_SLOT * self.slots;
        let shifted = last_within(limit, 24, || {
            let cost = self.run(1).per_get();
            (self.simulation.cost().since(&start).samples, cost)
        });
        Outcome {
            cost: last.per_get() / self.optimum,
            remote: last.remote_misses as f64 / last.gets as f64,
            warm_after: cold * self.stretch,
            shifted: shifted / self.optimum,
        }
    }
}

/// The cost of the last of at most `most` stretches that ends with at most `limit` updates. A stretch returns the
/// updates so far and its cost. The stretch in which the updates pass the limit does not count, because by its end the
/// cache has learned more.
fn last_within(limit: u64, most: u32, mut stretch: impl FnMut() -> (u64, f64)) -> f64 {
    let all = (0..most).map(|_| stretch());
    all.take_while(|(updates, _)| *updates <= limit).last().map_or(f64::INFINITY, |(_, cost)| cost)
}

/// Measures the requested rows.
pub fn measure(request: &mut Request, demands: &[Demand]) -> Result<Vec<Row>> {
    let mut values: Vec<(String, f64)> = Vec::new();
    for (nodes, affinity) in [(2, false), (2, true), (4, false), (4, true)] {
        let suffix = format!("{nodes}{}", if affinity { "-affinity" } else { "" });
        let names = ["cost", "shift", "warm"].map(|name| format!("raf-{name}-{suffix}"));
        let remote = format!("raf-remote-{nodes}");
        let of_lfu = affinity && demands.iter().any(|demand| demand.id == remote);
        if !of_lfu && !demands.iter().any(|demand| names.iter().any(|name| name == demand.id)) {
            continue;
        }
        eprintln!("RAF: {nodes} nodes, {}", if affinity { "affinity" } else { "symmetric" });
        let outcome = Subject::new(request, nodes, affinity, Policy::Adaptive).outcome();
        values.extend(names.into_iter().zip([outcome.cost, outcome.shifted, outcome.warm_after as f64]));
        if of_lfu {
            let mut lfu = Subject::new(request, nodes, affinity, Policy::Lfu);
            lfu.run(24);
            let cost = lfu.run(8);
            values.push((remote, outcome.remote / (cost.remote_misses as f64 / cost.gets as f64)));
        }
    }
    let row = |demand: &Demand| {
        if demand.id == "raf-off-cost" {
            return off_cost(request, *demand).unwrap_or_else(|error| Row::new(*demand, &[], false, error.to_string()));
        }
        let points: Vec<Point> =
            values.iter().filter(|(id, _)| id == demand.id).map(|(_, value)| Point { value: *value, rate: None }).collect();
        Row::new(*demand, &points, false, String::new())
    };
    Ok(demands.iter().map(row).collect())
}

/// A loaded store over two emulated nodes.
struct Loaded {
    topology: Topology,
    db: Db,
    keyspace: Keyspace,
    keys: u64,
}

impl Loaded {
    fn new(keys: u64, cached: bool) -> Result<Loaded> {
        let topology = Topology::emulated(2);
        let capacity = (keys * 48).max(32 << 20).next_multiple_of(2 << 20);
        let builder = Db::builder().in_memory().durability(Durability::Process).topology(Arc::new(topology.clone()));
        let builder = builder.capacity(capacity).max_capacity(2 * capacity);
        let db = if cached { builder } else { builder.cache_bytes(0) }.open().map_err(failed)?;
        let keyspace = db.create_keyspace("bench", KeyspaceOptions::ordered()).map_err(failed)?;
        for item in 0..keys {
            topology.bind_current_thread((item % 2) as u32).map_err(|error| Error::store("hither", error))?;
            keyspace.put(&mix64(item).to_be_bytes(), &item.to_le_bytes()).map_err(failed)?;
        }
        Ok(Loaded { topology, db, keyspace, keys })
    }

    /// Processor time per uniform get in nanoseconds. Wall-clock time would also count what others do on the machine.
    fn time(&self, random: &mut Random, time: Duration) -> Result<f64> {
        self.topology.bind_current_thread(0).map_err(|error| Error::store("hither", error))?;
        let (start, used, mut gets) = (Instant::now(), processor_ns(), 0u64);
        while start.elapsed() < time {
            for _ in 0..10_000 {
                let item = random.below(self.keys);
                let right = self.keyspace.get_with(&mix64(item).to_be_bytes(), |value| value == item.to_le_bytes()).map_err(failed)?;
                if right != Some(true) {
                    return Err(Error::WrongData(format!("item {item} is not what was written")));
                }
            }
            gets += 10_000;
        }
        Ok((processor_ns() - used) / gets as f64)
    }
}

/// Each round makes two new stores, in alternating order; their gets alternate in short runs.
fn off_cost(request: &Request, demand: Demand) -> Result<Row> {
    let (keys, runs, time) = if request.quick { (200_000, 3, 100) } else { (3_000_000, 9, 300) };
    let (mut points, mut note) = (Vec::new(), String::new());
    for round in 0..request.rounds {
        eprintln!("RAF: cost while off, round {} of {}", round + 1, request.rounds);
        let first_cached = round % 2 == 0;
        let (a, b) = (Loaded::new(keys, first_cached)?, Loaded::new(keys, !first_cached)?);
        let (cached, plain) = if first_cached { (&a, &b) } else { (&b, &a) };
        let (mut random, time) = (Random::new(round.into()), Duration::from_millis(time));
        // This is long enough for a probe, and, if the probe erred, for the cache to notice that it is of no use.
        cached.time(&mut random, 10 * time)?;
        let mut ratios = Vec::new();
        for run in 0..runs {
            let (with, without) = if run % 2 == 0 {
                let with = cached.time(&mut random, time)?;
                (with, plain.time(&mut random, time)?)
            } else {
                let without = plain.time(&mut random, time)?;
                (cached.time(&mut random, time)?, without)
            };
            ratios.push(with / without - 1.0);
        }
        points.extend(crate::harness::median(&ratios).map(|value| Point { value, rate: None }));
        if cached.db.stats().cache.state == "on" {
            note = "the cache did not switch itself off".into();
        }
    }
    let points = if note.is_empty() { points } else { Vec::new() };
    Ok(Row::new(demand, &points, false, note))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the stretch in which the updates passed the limit was the one that counted.
    #[test]
    fn what_counts_after_a_shift_ends_within_the_limit() {
        let cost = |limit, most| {
            let mut stretches = (1u32..).map(|number| (30 * u64::from(number), 1.0 / f64::from(number)));
            last_within(limit, most, || stretches.next().expect("it has no end"))
        };
        assert_eq!([cost(80, 24), cost(90, 24), cost(91, 24)], [1.0 / 2.0, 1.0 / 3.0, 1.0 / 3.0]);
        assert_eq!((cost(80, 1), cost(29, 24)), (1.0, f64::INFINITY));
    }

    /// The whole path at a small size. The results of the full size hold here roughly.
    #[test]
    fn the_default_policy_is_near_the_optimum_and_recovers_from_a_shift() {
        let runner = crate::figures::process::Runner::new(&[], None).unwrap();
        let request = Request::small(runner, 1_000, crate::target::store::Index::Ordered);
        let outcome = Subject::new(&request, 2, true, Policy::Adaptive).outcome();
        assert!(outcome.cost > 1.0 && outcome.cost < 1.15, "{}", outcome.cost);
        assert!(outcome.shifted < 1.25, "{}", outcome.shifted);
        let published = Subject::new(&request, 2, true, Policy::Raf).outcome();
        assert!(published.cost > outcome.cost && published.shifted > outcome.shifted);
    }
}
