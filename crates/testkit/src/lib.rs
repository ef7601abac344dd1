//! Test tools: crash explorer with oracle and planted bugs, model test, history checker and protocol model.
//!
//! * [`images`]: recordings of all pools of a store, and the images that a crash may leave.
//! * [`explorer_script`] runs seeded histories on recorded pools ([`explorer_histories`] lists them). [`explorer`]
//!   crashes them at many points, recovers and has the result judged; [`oracle`] defines what a recovered store may
//!   hold; [`coverage`] counts what was reached.
//! * [`checkpoints`]: the checkpoint that a crash at a given point leaves.
//! * [`planted`]: bugs that the explorer must find. [`mod@reference`]: a second, simple recovery, sound or with a
//!   planted bug.
//! * [`model`]: operation sequences against `BTreeMap`. [`history`]: linearizability.
//! * [`protocol`]: a model of the protocol of collection and checkpoints, and a walk over all its states.
//!
//! For tests only: functions panic where a test would.

#![forbid(unsafe_code)]

pub mod checkpoints;
pub mod coverage;
pub mod explorer;
pub mod explorer_histories;
mod explorer_random;
pub mod explorer_script;
mod explorer_snapshots;
pub mod history;
pub mod images;
pub mod model;
pub mod oracle;
pub mod planted;
pub mod protocol;
pub mod reference;
