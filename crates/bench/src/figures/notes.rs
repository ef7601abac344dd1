//! Remarks on rows, and what errors do to them.
//!
//! The first error of a row becomes its note, and the row keeps the values of other rounds. Wrong data is different: a
//! row whose measurement has found any, in whichever round, has no value at all. There are no fast wrong answers.
//!
//! Thread safety: plain values.

use std::collections::BTreeMap;

use super::row::{Demand, Point, Row};
use crate::target::Error;

/// The first error of each row, and its first finding of wrong data.
#[derive(Debug, Default)]
pub struct Notes {
    errors: BTreeMap<&'static str, String>,
    wrong: BTreeMap<&'static str, String>,
}

impl Notes {
    /// Notes an error with a row.
    pub fn add(&mut self, id: &'static str, error: &Error) {
        let notes = if matches!(error, Error::WrongData(_)) { &mut self.wrong } else { &mut self.errors };
        notes.entry(id).or_insert_with(|| error.to_string());
    }

    /// The note of a row. Wrong data comes before other errors.
    pub fn of(&self, id: &str) -> Option<&String> {
        self.wrong.get(id).or_else(|| self.errors.get(id))
    }

    /// True if nothing was noted.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.errors.is_empty() && self.wrong.is_empty()
    }

    /// A row of these points, without a value if any of its data was wrong. `remark` is its note if there was no error.
    pub fn row(&self, demand: Demand, points: &[Point], worst: bool, remark: String) -> Row {
        let points = if self.wrong.contains_key(demand.id) { &[] } else { points };
        Row::new(demand, points, worst, self.of(demand.id).cloned().unwrap_or(remark))
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::DEMANDS;
    use super::*;

    #[test]
    fn an_error_leaves_the_values_of_other_rounds_and_wrong_data_none() {
        let [first, second] = [DEMANDS[0], DEMANDS[1]];
        let mut notes = Notes::default();
        assert!(notes.is_empty());
        notes.add(first.id, &Error::Process("killed".into()));
        notes.add(first.id, &Error::Process("later".into()));
        let row = |notes: &Notes, demand| notes.row(demand, &[Point { value: 0.9, rate: Some(9.0) }], false, "a remark".into());
        let (noted, other) = (row(&notes, first), row(&notes, second));
        assert_eq!((noted.value, noted.note.as_str()), (Some(0.9), "killed"));
        assert_eq!((other.value, other.note.as_str()), (Some(0.9), "a remark"));
        notes.add(first.id, &Error::WrongData("key 7".into()));
        let wrong = row(&notes, first);
        assert!(wrong.value.is_none() && wrong.rate.is_none() && !wrong.verdict.is_good() && wrong.note.contains("key 7"), "{wrong:?}");
    }
}
