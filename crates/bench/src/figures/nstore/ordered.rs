//! Rows on the ordered keyspace: gets against the map, durable writes against the append limit, scans against LMDB,
//! memory per key.
//!
//! As in the table of the engine, each measurement is a process of its own, and the yardsticks run before and after
//! each group.

use super::{Request, THREADS};
use crate::figures::counting::{Around, Required};
use crate::figures::dram::dram_of_sizes;
use crate::figures::notes::Notes;
use crate::figures::row::{Demand, Point, Row, Unit, demand};
use crate::target::{Error, Result};
use crate::yardstick::measure::{Request as Yard, Yardsticks, between};

/// The rows.
pub const DEMANDS: [Demand; 6] = [
    demand("ordered-get-uniform", "ordered, get uniform", Unit::Map, 0.45, 0.7),
    demand("ordered-get-zipf", "ordered, get Zipf 0.99", Unit::Map, 0.5, 0.8),
    demand("ordered-load", "ordered, load, durable at return", Unit::Append, 0.45, 0.65),
    demand("ordered-update-zipf", "ordered, update Zipf 0.99, durable at return", Unit::Append, 0.75, 0.9),
    demand("ordered-scan", "ordered, scan of 100", Unit::Lmdb, 1.0, 1.0),
    demand("ordered-dram", "ordered, DRAM per 8-byte key after a load, worst of 3 to 6 M", Unit::BytesPerKey, 24.0, 24.0),
];

/// The groups of rows that are measured together, and the function that measures each group.
const GROUPS: [(&[&str], Measure); 4] = [
    (&["ordered-get-uniform", "ordered-get-zipf", "ordered-load"], gets),
    (&["ordered-update-zipf"], updates),
    (&["ordered-scan"], scans),
    (&["ordered-dram"], dram),
];

type Points = Vec<(&'static str, Point)>;
type Measure = fn(&mut Request, u32) -> Result<Points>;

/// Measures the requested rows.
pub fn measure(request: &mut Request, demands: &[Demand]) -> Result<Vec<Row>> {
    let mut points: Points = Vec::new();
    let mut notes = Notes::default();
    for round in 0..request.rounds {
        for (ids, measure) in GROUPS {
            if !demands.iter().any(|demand| ids.contains(&demand.id)) {
                continue;
            }
            eprintln!("{}: round {} of {}", ids.join(", "), round + 1, request.rounds);
            match measure(request, round) {
                Ok(found) => points.extend(found),
                Err(error) => {
                    eprintln!("  {error}");
                    ids.iter().for_each(|id| notes.add(id, &error));
                }
            }
        }
    }
    let row = |demand: &Demand| {
        let of_row: Vec<Point> = points.iter().filter(|(id, _)| *id == demand.id).map(|(_, point)| *point).collect();
        notes.row(*demand, &of_row, demand.id == "ordered-dram", String::new())
    };
    Ok(demands.iter().map(row).collect())
}

/// The yardsticks by which these rows divide.
pub(super) fn required(rows: &[Row]) -> Required {
    let any = |unit: Unit| rows.iter().any(|row| row.demand.unit == unit);
    Required { append: any(Unit::Append), map: any(Unit::Map) }
}

fn against(rate: f64, yardstick: Option<f64>) -> Result<Point> {
    let yardstick = yardstick.filter(|yardstick| *yardstick > 0.0);
    let yardstick = yardstick.ok_or_else(|| Error::Config("the yardstick gave no figure".into()))?;
    Ok(Point { value: rate / yardstick, rate: Some(rate) })
}

fn dax(request: &Request, ops: u64) -> String {
    format!("--keys {} --threads {THREADS} --ops {ops} --medium dax --durability sync --verify", request.keys)
}

/// Runs `act` between two measurements of the yardsticks; `group` names the group and the round.
fn beside<T>(request: &mut Request, group: &str, map: bool, act: impl FnOnce(&mut Request) -> Result<T>) -> Result<(T, Yardsticks)> {
    let gets = if map { 2 * request.keys } else { 0 };
    let yard = Yard { threads: THREADS, keys: request.keys, append_seconds: if request.quick { 0.3 } else { 2.0 }, gets };
    let before = request.runner.yardsticks(&yard)?;
    let result = act(request)?;
    let after = request.runner.yardsticks(&yard)?;
    let yardsticks = between(&before, &after);
    request.yardsticks.push(Around { group: group.to_owned(), yardsticks });
    Ok((result, yardsticks))
}

fn gets(request: &mut Request, round: u32) -> Result<Points> {
    let args = dax(request, 2 * request.keys);
    let index = request.index;
    let (r, yard) = beside(request, &format!("ordered gets, round {}", round + 1), true, |r| {
        r.runner.store(index, &args, &["load", "get:uniform", "get:zipf=0.99"])
    })?;
    Ok(vec![
        ("ordered-load", against(r[0].ops_per_s, yard.append)?),
        ("ordered-get-uniform", against(r[1].ops_per_s, yard.map_uniform)?),
        ("ordered-get-zipf", against(r[2].ops_per_s, yard.map_zipf)?),
    ])
}

fn updates(request: &mut Request, round: u32) -> Result<Points> {
    let args = dax(request, 2 * request.keys);
    let index = request.index;
    let (r, yard) = beside(request, &format!("ordered updates, round {}", round + 1), false, |r| {
        r.runner.store(index, &args, &["load", "update:zipf=0.99"])
    })?;
    Ok(vec![("ordered-update-zipf", against(r[1].ops_per_s, yard.append)?)])
}

fn scans(request: &mut Request, _: u32) -> Result<Points> {
    const SCAN: [&str; 1] = ["scan=100:uniform"];
    let args = dax(request, request.keys / 5);
    let ours = request.runner.store(request.index, &args, &SCAN)?[0].ops_per_s;
    // LMDB's reads do not depend on the durability of its load, which takes long at sync level.
    let theirs = request.runner.peer("lmdb", &args.replace("--durability sync", "--durability process"), &SCAN)?[0].ops_per_s;
    Ok(vec![("ordered-scan", against(ours, Some(theirs))?)])
}

fn dram(request: &mut Request, round: u32) -> Result<Points> {
    // Memory does not vary from round to round.
    if round > 0 {
        return Ok(Vec::new());
    }
    let sizes = dram_of_sizes(&mut request.runner, request.index, request.keys, THREADS)?;
    Ok(sizes.map(|value| ("ordered-dram", Point { value, rate: None })).to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::process::Runner;
    use crate::figures::row::Verdict;
    use crate::harness::record::Record;
    use crate::target::store::Index;

    #[test]
    fn every_row_has_exactly_one_group() {
        for demand in DEMANDS {
            assert_eq!(GROUPS.iter().filter(|(ids, _)| ids.contains(&demand.id)).count(), 1, "{}", demand.id);
        }
    }

    /// Regression: the row had the worst of the sizes up to the one that failed.
    #[test]
    fn memory_is_that_of_all_sizes_or_not_measured() {
        let demand: Vec<Demand> = DEMANDS.into_iter().filter(|demand| demand.id == "ordered-dram").collect();
        let verdict = |first: &str, dram_bytes_per_key| {
            let script = Runner::script_of(first, &Record { dram_bytes_per_key, ..Record::default() });
            let mut request = Request::small(Runner::of_script(&script), 5_000_000, Index::Ordered);
            measure(&mut request, &demand).expect("a row")[0].verdict
        };
        assert_eq!(verdict("", Some(20.0)), Verdict::Aim);
        assert_eq!(verdict("", None), Verdict::NotMeasured);
        assert_eq!(verdict("case \"$*\" in *'--keys 6000000'*) exit 3;; esac", Some(20.0)), Verdict::NotMeasured);
    }

    #[test]
    fn a_ratio_needs_a_yardstick() {
        assert_eq!(against(3.0, Some(6.0)).unwrap(), Point { value: 0.5, rate: Some(3.0) });
        assert!(against(3.0, None).is_err() && against(3.0, Some(0.0)).is_err());
    }
}
