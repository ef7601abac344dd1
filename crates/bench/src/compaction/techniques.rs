//! The effect of each technique of collection: they are turned on one after the other (Pacman, Fig. 8), `hither bench
//! compaction --techniques`.
//!
//! The paper begins with the collectors of other stores. Here the chain collector is the one without any of the
//! techniques. The batched collector without its aids comes next, because the other techniques need it.

use hither::{Builder, CollectorKind};

use super::IndexName;

/// A set of techniques. Each step has those of the steps before it, except for the first, which stands alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// The chain collector.
    Chain,
    /// The batched collector without further techniques.
    Base,
    /// Bits in DRAM record what is garbage.
    Bits,
    /// Hot entries have segments of their own.
    HotCold,
    /// Writers are slowed down when space is scarce.
    Pacing,
    /// Copies are written in the order of their keys; for a hash keyspace that is only more work.
    KeyOrder,
    /// Large entries carry the place where the index names them; in a hash keyspace none do.
    Shortcuts,
}

/// All steps, in the order in which they are turned on.
const STEPS: [Step; 7] = [Step::Chain, Step::Base, Step::Bits, Step::HotCold, Step::Pacing, Step::KeyOrder, Step::Shortcuts];

impl Step {
    /// The steps that make a difference for an index.
    pub fn of(index: IndexName) -> impl Iterator<Item = Step> {
        STEPS.into_iter().filter(move |step| index != IndexName::Hash || *step < Step::KeyOrder)
    }

    /// The name of the step in tables.
    pub fn name(self) -> &'static str {
        match self {
            Step::Chain => "none (chain)",
            Step::Base => "batches",
            Step::Bits => "+ garbage bits",
            Step::HotCold => "+ hot and cold",
            Step::Pacing => "+ pacing",
            Step::KeyOrder => "+ key order",
            Step::Shortcuts => "+ shortcuts",
        }
    }

    /// Turns on the techniques of the step, and turns off the others.
    pub fn settings(self, builder: Builder) -> Builder {
        let has = |technique: Step| self >= technique;
        let kind = if has(Step::Base) { CollectorKind::Batched } else { CollectorKind::Chain };
        builder.collector(kind).with_options(|options| {
            options.techniques.garbage_bits = has(Step::Bits);
            options.separate_hot = has(Step::HotCold);
            options.techniques.pacing = has(Step::Pacing);
            options.techniques.key_order = has(Step::KeyOrder);
            options.shortcut_from_bytes = options.shortcut_from_bytes.filter(|_| has(Step::Shortcuts));
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_adds_one_technique() {
        let of = |step: Step| {
            let mut found = None;
            let _ = step.settings(hither::Db::builder()).with_options(|options| found = Some(options.clone()));
            let options = found.expect("called");
            let on = options.techniques;
            [
                options.collector == CollectorKind::Batched,
                on.garbage_bits,
                options.separate_hot,
                on.pacing,
                on.key_order,
                options.shortcut_from_bytes.is_some(),
            ]
        };
        for (number, step) in STEPS.into_iter().enumerate() {
            let expected: Vec<bool> = (0..6).map(|technique| technique < number).collect();
            assert_eq!(of(step)[..], expected, "{}", step.name());
        }
        assert_eq!((Step::of(IndexName::Hash).count(), Step::of(IndexName::Learned).count()), (5, 7));
    }
}
