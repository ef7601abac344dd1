//! Tables: a curve for given counts, and the paper's statements beside what the model makes of them.

use super::model::{Machine, OpCounts, Placement, Point, project};
use super::paper::{self, STATEMENTS};
use std::fmt::Write;

/// Numbers of threads that are shown unless others are asked for.
pub const THREADS: [u32; 7] = [1, 2, 4, 8, 16, 24, 32];

fn rate(counts: &OpCounts, machine: &Machine, threads: u32) -> f64 {
    project(counts, machine, &[threads])[0].mops
}

/// What the model says for each of [`STATEMENTS`].
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

/// Curves as Markdown: a row for each name, a column for each number of threads, million operations per second.
pub fn curves(rows: &[(String, OpCounts)], machine: &Machine, threads: &[u32]) -> String {
    let mut out = String::from("| threads |");
    threads.iter().for_each(|threads| out += &format!(" {threads} |"));
    out += "\n|---|";
    threads.iter().for_each(|_| out += "---:|");
    out += "\n";
    for (name, counts) in rows {
        let cells: Vec<String> = project(counts, machine, threads).iter().map(|point: &Point| format!("{:.1}", point.mops)).collect();
        let _ = writeln!(out, "| {name} | {} |", cells.join(" | "));
    }
    out
}

/// Everything that the model says of the paper's machine, as Markdown: the part `projection` of the benchmarks of NStore prints this, with `measured` (names and
/// counts from the meter) below the profiles.
pub fn report(measured: &[(String, OpCounts)], threads: &[u32]) -> String {
    let mut rows = vec![
        ("NStore put".to_owned(), paper::nstore_put()),
        ("NStore get".to_owned(), paper::nstore_get()),
        ("node-unaware put".to_owned(), paper::unaware_put()),
        ("Viper get".to_owned(), paper::viper_get()),
    ];
    rows.extend_from_slice(measured);
    let mut out = String::new();
    for (title, placement) in [("Threads spread over", Placement::Spread), ("Threads filling one after the other of", Placement::Fill)] {
        let _ = writeln!(out, "{title} two nodes, projected million operations per second:\n");
        let _ = writeln!(out, "{}", curves(&rows, &Machine::paper(2, placement), threads));
    }
    out + &beside_the_paper()
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
    fn tables_have_a_row_for_each_name_and_statement() {
        let text = report(&[("mine".to_owned(), paper::nstore_get())], &THREADS);
        assert_eq!(text.matches("| mine |").count(), 2);
        assert!(STATEMENTS.iter().all(|statement| text.contains(statement.what)));
        assert!(text.contains("| threads | 1 | 2 | 4 | 8 | 16 | 24 | 32 |"));
    }
}
