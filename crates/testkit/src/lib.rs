//! Crash explorer, oracle and history checks.
//!
//! * [`images`]: recordings of all pools of a store, and the images that a crash may leave.
//! * [`explorer_script`]: seeded histories; [`explorer`]: crashes everywhere, recovers and judges; [`oracle`]: what may be found;
//!   [`coverage`]: what was reached.
//! * [`checkpoints`]: which checkpoint a crash leaves.
//! * [`planted`]: bugs that the explorer must find; [`mod@reference`]: a second, simple recovery, sound or with a bug planted.
//! * [`model`] and [`history`]: operation sequences against `BTreeMap`, and linearizability.
//!
//! For tests only: functions panic where a test would.

#![forbid(unsafe_code)]

pub mod checkpoints;
pub mod coverage;
pub mod explorer;
pub mod explorer_histories;
mod explorer_random;
pub mod explorer_script;
pub mod history;
pub mod images;
pub mod model;
pub mod oracle;
pub mod planted;
pub mod protocol;
pub mod reference;
