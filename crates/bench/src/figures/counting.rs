//! Decides whether a run counts. Each objection to it is a reason in words.
//!
//! A table states which yardsticks it requires. A required yardstick that was not measured is as bad as one out of
//! range, because then the speed of the machine is unknown.
//!
//! Each value that points are divided by is judged by itself. A median over groups and rounds would hide a single
//! disturbed group, whose ratios are splendid because of the disturbance.

use super::engine::SCALE_KEYS;
use super::row::Row;
use crate::harness::median;
use crate::report::count;
use crate::yardstick::measure::Yardsticks;
use crate::yardstick::{APPEND, MAP_UNIFORM, MAP_ZIPF, Scale};

/// The fewest rounds that give a meaningful median.
pub(super) const ROUNDS: u32 = 3;

/// The yardsticks that the rows of a table need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Required {
    pub append: bool,
    pub map: bool,
}

/// The yardsticks around one group of measurements, by which the points of the group are divided.
#[derive(Clone, Debug)]
pub(super) struct Around {
    /// The group and its round, as reasons name them.
    pub group: String,
    pub yardsticks: Yardsticks,
}

/// A run to be judged at its end.
pub(super) struct Run<'a> {
    pub keys: u64,
    pub quick: bool,
    pub rounds: u32,
    pub commit: &'a str,
    pub required: Required,
    pub yardsticks: &'a [Around],
    pub rows: &'a [Row],
}

impl Run<'_> {
    /// The reasons why the run does not count; none if it counts.
    pub fn disturbances(&self) -> Vec<String> {
        let mut reasons: Vec<String> = [of_counts(self.keys, self.quick), of_commit(self.commit)].into_iter().flatten().collect();
        reasons.extend(of_rounds(self.rounds, self.rows));
        // For other counts there are no scale figures.
        if of_counts(self.keys, self.quick).is_none() {
            reasons.extend(of_yardsticks(self.yardsticks, self.required));
        }
        reasons
    }
}

/// Reports a run whose size is not the one that the demands are for.
pub(super) fn of_counts(keys: u64, quick: bool) -> Option<String> {
    (quick || keys != SCALE_KEYS).then(|| "it has smaller or other counts than the demands are for".into())
}

/// Reports too few rounds, or else the rows without a value from each of them.
pub(super) fn of_rounds<'a>(rounds: u32, rows: impl IntoIterator<Item = &'a Row>) -> Vec<String> {
    if rounds < ROUNDS {
        return vec![format!("rounds: {rounds}, and a median needs {ROUNDS}")];
    }
    rows.into_iter().filter_map(|row| of_row(row, rounds)).collect()
}

/// Reports a commit from which others could not build the measured program.
pub(super) fn of_commit(commit: &str) -> Option<String> {
    match commit {
        "unknown" => Some("it is not known of which commit it is: it was not run in the source tree".into()),
        dirty if dirty.ends_with('+') => Some(format!("the work tree differs from its commit ({dirty})")),
        _ => None,
    }
}

/// Reports a row that has values, but not from every round. The rounds without one may have been those in which it was
/// slow, or wrong.
fn of_row(row: &Row, rounds: u32) -> Option<String> {
    let few = row.value.is_some() && !row.worst && row.rounds.len() < rounds as usize;
    few.then(|| format!("{} was measured only {} times", row.demand.id, row.rounds.len()))
}

/// Reports yardsticks which show that the machine is not the one that the demands are for, or was disturbed around a
/// group.
pub(super) fn of_yardsticks(around: &[Around], required: Required) -> Vec<String> {
    let y = medians(around);
    let missing = |scale: &Scale, value: Option<f64>, required: bool| {
        (required && value.is_none()).then(|| format!("{} was not measured", scale.name))
    };
    let pages = |name: &str, value: Option<f64>, huge: Option<bool>| {
        (value.is_some() && huge != Some(true)).then(|| format!("the {name} ran on small pages: the kernel refused huge ones"))
    };
    let of_all = [
        missing(&APPEND, y.append, required.append),
        pages("append limit", y.append, y.append_on_huge_pages),
        missing(&MAP_UNIFORM, y.map_uniform, required.map),
        missing(&MAP_ZIPF, y.map_zipf, required.map),
        pages("map", y.map_uniform.or(y.map_zipf), y.map_on_huge_pages),
    ];
    of_all.into_iter().flatten().chain(around.iter().flat_map(of_group)).collect()
}

/// Reports the yardsticks around one group that are out of range.
fn of_group(around: &Around) -> Vec<String> {
    let y = &around.yardsticks;
    let measured = [(APPEND, y.append), (MAP_UNIFORM, y.map_uniform), (MAP_ZIPF, y.map_zipf)];
    measured.into_iter().filter_map(|(scale, value)| of_scale(&scale, value?, &around.group)).collect()
}

fn of_scale(scale: &Scale, value: f64, group: &str) -> Option<String> {
    let range = format!("{} to {}", count(scale.range.0), count(scale.range.1));
    let (name, shown) = (scale.name, count(value));
    let outside = || format!("{group}: {name} is {shown}/s, not within 25 % of {range}/s: the machine is disturbed or another one");
    (!scale.admits(value)).then(outside)
}

/// Medians over all groups of a run, for display.
pub(super) fn medians(around: &[Around]) -> Yardsticks {
    let each = || around.iter().map(|around| &around.yardsticks);
    let all = |f: fn(&Yardsticks) -> Option<f64>| median(&each().filter_map(f).collect::<Vec<_>>());
    let every = |f: fn(&Yardsticks) -> Option<bool>| each().filter_map(f).reduce(|a, b| a && b);
    Yardsticks {
        append: all(|y| y.append),
        append_on_huge_pages: every(|y| y.append_on_huge_pages),
        map_uniform: all(|y| y.map_uniform),
        map_zipf: all(|y| y.map_zipf),
        map_on_huge_pages: every(|y| y.map_on_huge_pages),
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::Point;
    use super::*;

    const GOOD: Yardsticks = Yardsticks {
        append: Some(8e6),
        append_on_huge_pages: Some(true),
        map_uniform: Some(20e6),
        map_zipf: Some(25e6),
        map_on_huge_pages: Some(true),
    };
    const BOTH: Required = Required { append: true, map: true };

    fn around(yardsticks: Yardsticks) -> [Around; 1] {
        [Around { group: "a group, round 1".into(), yardsticks }]
    }

    fn run(yardsticks: &[Around]) -> Run<'_> {
        Run { keys: SCALE_KEYS, quick: false, rounds: ROUNDS, commit: "0123456789ab", required: BOTH, yardsticks, rows: &[] }
    }

    fn reason(run: &Run<'_>) -> String {
        let mut reasons = run.disturbances();
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        reasons.remove(0)
    }

    #[test]
    fn a_run_counts_if_nothing_speaks_against_it() {
        assert_eq!(run(&around(GOOD)).disturbances(), [""; 0]);
    }

    #[test]
    fn other_counts_few_rounds_and_a_changed_tree_do_not_count() {
        assert!(reason(&Run { keys: 1_000, ..run(&around(GOOD)) }).contains("counts"));
        assert!(reason(&Run { quick: true, ..run(&around(GOOD)) }).contains("counts"));
        assert!(reason(&Run { rounds: 1, ..run(&around(GOOD)) }).contains("rounds: 1"));
        assert!(reason(&Run { rounds: 2, ..run(&around(GOOD)) }).contains("rounds: 2"));
        assert!(reason(&Run { commit: "0123456789ab+", ..run(&around(GOOD)) }).contains("0123456789ab+"));
        assert!(reason(&Run { commit: "unknown", ..run(&around(GOOD)) }).contains("commit"));
    }

    #[test]
    fn a_row_of_few_rounds_does_not_count() {
        let row = |values: &[f64]| {
            let points: Vec<Point> = values.iter().map(|value| Point { value: *value, rate: None }).collect();
            Row::new(super::super::plan::DEMANDS[0], &points, false, String::new())
        };
        assert!(reason(&Run { rows: &[row(&[0.9; 3]), row(&[0.9; 2]), row(&[])], ..run(&around(GOOD)) }).contains("2 times"));
    }

    /// Regression: three values were enough, however many rounds were asked for.
    #[test]
    fn a_row_has_a_value_from_every_round_asked_for() {
        let row = |rounds: usize, worst| {
            let points = vec![Point { value: 0.9, rate: None }; rounds];
            Row::new(super::super::plan::DEMANDS[0], &points, worst, String::new())
        };
        let rows = [row(5, false), row(4, false), row(0, false)];
        assert!(reason(&Run { rounds: 5, rows: &rows, ..run(&around(GOOD)) }).contains("4 times"));
        // The values of such a row are sizes, not rounds.
        assert_eq!(Run { rounds: 5, rows: &[row(4, true)], ..run(&around(GOOD)) }.disturbances(), [""; 0]);
    }

    #[test]
    fn yardsticks_that_are_required_are_measured_and_in_range() {
        let disturbed = Yardsticks { append: Some(4e6), map_uniform: Some(9e6), ..GOOD };
        assert_eq!(run(&around(disturbed)).disturbances().len(), 2);
        let no_map = around(Yardsticks { map_uniform: None, map_zipf: None, map_on_huge_pages: None, ..GOOD });
        let reasons = run(&no_map).disturbances();
        assert!(reasons.len() == 2 && reasons.iter().all(|reason| reason.contains("was not measured")), "{reasons:?}");
        assert!(Run { required: Required { append: true, map: false }, ..run(&no_map) }.disturbances().is_empty());
        assert_eq!(run(&[]).disturbances().len(), 3);
        assert!(Run { required: Required::default(), ..run(&[]) }.disturbances().is_empty());
    }

    /// Regression: the median over all groups was in range, so the ratios of the disturbed groups counted.
    #[test]
    fn a_group_whose_own_yardsticks_were_disturbed_does_not_count() {
        let group =
            |append: f64, number: u32| Around { group: format!("group {number}"), yardsticks: Yardsticks { append: Some(append), ..GOOD } };
        let groups: Vec<Around> = (0..30).map(|number| group(if number < 26 { 8e6 } else { 4e6 }, number)).collect();
        assert_eq!(medians(&groups).append, Some(8e6));
        let reasons = run(&groups).disturbances();
        let named = |number: u32| reasons.iter().any(|reason| reason.starts_with(&format!("group {number}: append limit is 4 M/s")));
        assert!(reasons.len() == 4 && (26..30).all(named), "{reasons:?}");
    }

    #[test]
    fn yardsticks_on_small_pages_do_not_count() {
        for huge in [Some(false), None] {
            assert!(reason(&run(&around(Yardsticks { append_on_huge_pages: huge, ..GOOD }))).contains("append limit ran on small pages"));
            assert!(reason(&run(&around(Yardsticks { map_on_huge_pages: huge, ..GOOD }))).contains("map ran on small pages"));
        }
        let once = Yardsticks { map_on_huge_pages: Some(false), ..GOOD };
        assert_eq!(medians(&[GOOD, once, GOOD].map(|y| around(y)[0].clone())).map_on_huge_pages, Some(false));
    }
}
