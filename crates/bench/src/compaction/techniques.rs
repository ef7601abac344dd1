//! What each technique of collection is worth: they are turned on one after the other (Pacman, Fig. 8), `hither bench compaction --techniques`.
//!
//! The paper begins with collectors of other stores; here the chain collector is the one without any of the techniques, and the batched one without its aids is the base of the others, which
//! need it.

use hither::{Builder, CollectorKind};

use super::IndexName;

/// A step has what those before it have, the first one excepted, which stands alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// The chain collector.
    Chain,
    /// The batched collector, and no more.
    Base,
    /// Garbage is known by bits in DRAM.
    Bits,
    /// Hot entries have segments of their own.
    HotCold,
    /// Writers are slowed down where space is scarce.
    Pacing,
    /// Copies lie in the order of their keys: nothing but work for a hash keyspace.
    KeyOrder,
    /// Large entries say where the index names them: none in a hash keyspace.
    Shortcuts,
}

/// In the order in which they are turned on.
const STEPS: [Step; 7] = [Step::Chain, Step::Base, Step::Bits, Step::HotCold, Step::Pacing, Step::KeyOrder, Step::Shortcuts];

impl Step {
    /// The steps that an index can tell apart.
    pub fn of(index: IndexName) -> impl Iterator<Item = Step> {
        STEPS.into_iter().filter(move |step| index != IndexName::Hash || *step < Step::KeyOrder)
    }

    /// Its name in tables.
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

    /// Turns on what it has, and the rest off.
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
