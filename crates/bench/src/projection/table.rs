//! The paper's statements beside the results of the model. The curves are in the experiment `nstore projection`.

use super::model::{Machine, OpCounts, Placement, project};
use super::paper::{self, STATEMENTS};
use std::fmt::Write;

/// The numbers of threads in tables.
pub const THREADS: [u32; 7] = [1, 2, 4, 8, 16, 24, 32];

fn rate(counts: &OpCounts, machine: &Machine, threads: u32) -> f64 {
    project(counts, machine, &[threads])[0].mops
}

/// The model's result for each of [`STATEMENTS`].
pub fn projected() -> [f64; STATEMENTS.len()] {
    let (spread, fill) = (Machine::paper(2, Placement::Spread), Machine::paper(2, Placement::Fill));
    let growth = |counts: OpCounts, machine: &Machine, to: u32, from: u32| rate(&counts, machine, to) / rate(&counts, machine, from);
    let (put, get) = (paper::nstore_put(), paper::nstore_get());
    [
        growth(put, &spread, 32, 2),
        growth(paper::unaware_put(), &spread, 32, 8),
        rate(&get, &spread, 32) / rate(&paper::viper_get(), &spread, 32),
        growth(put, &fill, 32, 16),
        growth(paper::unaware_put(), &fill, 32, 16),
        growth(get, &fill, 32, 16),
    ]
}

/// The statements of the paper's text beside the projection, as Markdown.
pub fn beside_the_paper() -> String {
    let mut out = String::from("| figure | what | paper | projected |\n|---|---|---|---:|\n");
    for (statement, value) in STATEMENTS.iter().zip(projected()) {
        let _ = writeln!(out, "| {} | {} | {} | {value:.2} |", statement.figure, statement.what, statement.paper);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_is_the_papers() {
        let [put_growth, unaware_growth, .., fill_put, fill_unaware, fill_get] = projected();
        assert!(put_growth > 10.0, "NStore's put goes on growing: {put_growth}");
        assert!(unaware_growth < 2.0, "without locality more threads do not help: {unaware_growth}");
        assert!(fill_put > 1.9 && fill_unaware < 1.2, "a second node helps only who stays local: {fill_put}, {fill_unaware}");
        assert!((1.0..2.0).contains(&fill_get), "remote reads cost, but do not stop the growth: {fill_get}");
    }

    #[test]
    fn ratios_in_the_text_are_met_within_a_factor_of_two() {
        for (statement, value) in STATEMENTS.iter().zip(projected()) {
            if let Some(paper) = statement.value {
                assert!(value > 1.0 && value / paper < 2.0 && paper / value < 2.0, "{}: {value} for {paper}", statement.what);
            }
        }
    }

    #[test]
    fn every_statement_has_a_line() {
        let text = beside_the_paper();
        assert!(STATEMENTS.iter().all(|statement| text.contains(statement.what)));
        assert_eq!(text.lines().count(), 2 + STATEMENTS.len());
    }
}
