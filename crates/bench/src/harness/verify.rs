//! Reads everything back, outside any measurement: every key of `0..keys`, and, if the store has an order, also by one
//! scan of everything.
//!
//! Scans within a workload cannot detect a gap: keys are random, and the scanning thread does not know which one comes
//! next. A scan of everything can, by counting.
//!
//! Thread safety: each thread reads its share of the keys; one thread scans.

use std::time::Instant;

use super::latency::Latencies;
use super::team::{Outcome, Team};
use crate::target::{Error, Result, Target};
use crate::workload::{Kind, Workload};

/// Which of the keys `0..keys` must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Present {
    /// All of them.
    All,
    /// None of them.
    None,
    /// This many, but it is unknown which: a load or a deletion was ended before its last key.
    Count(u64),
    /// It is unknown how many.
    Some,
}

impl Present {
    /// The state after a workload of `ops` operations, if this is the state before.
    #[must_use]
    pub fn after(self, kind: Kind, ops: u64, keys: u64) -> Present {
        match (self, kind) {
            (_, kind) if kind.loads() && ops >= keys => Present::All,
            (Present::None, kind) if kind.loads() => Present::Count(ops),
            (_, Kind::Delete) if ops >= keys => Present::None,
            (Present::All, Kind::Delete) => Present::Count(keys - ops),
            (Present::All, _) => Present::All,
            // Any other write draws its keys at random: some that are there, and some that are not.
            (_, kind) if kind.write_share() > 0.0 => Present::Some,
            (before, _) => before,
        }
    }

    /// Whether each key must be there or must not; `None` if that is unknown.
    fn of_each(self) -> Option<bool> {
        match self {
            Present::All => Some(true),
            Present::None => Some(false),
            Present::Count(_) | Present::Some => None,
        }
    }
}

impl<T: Target> Team<'_, T> {
    /// Reads everything back: each key must be there or absent as `present` demands, and its value must be sound. A
    /// target with an order is also scanned as a whole. The scan must show the same keys, and no others unless these
    /// `workloads` inserted some. Returns the number of keys read.
    ///
    /// # Errors
    /// Wrong data, and errors of the target.
    pub fn verify(&self, present: Present, workloads: &[Workload]) -> Result<u64> {
        let found = self.read_all(present)?;
        if let Present::Count(expected) = present
            && found != expected
        {
            return Err(Error::WrongData(format!("{found} keys are there, of {expected} that were written")));
        }
        if self.target.is_ordered() {
            let scanned = self.scan_all()?;
            let others = workloads.iter().any(|workload| workload.kind.inserts());
            if scanned < found || (scanned > found && !others) {
                return Err(Error::WrongData(format!("a scan of everything gave {scanned} keys, where gets find {found}")));
            }
        }
        Ok(self.keys)
    }

    /// Reads all keys; returns how many are there.
    fn read_all(&self, present: Present) -> Result<u64> {
        let outcome = self.run(0, |mut member| {
            member.barrier.wait();
            let started = Instant::now();
            let mut ops = 0;
            for id in (member.thread as u64..self.keys).step_by(self.threads) {
                ops += u64::from(member.worker.verify(id, present.of_each())?);
            }
            Ok(Outcome { ops, checked: ops, started, ended: Instant::now(), latencies: Latencies::default() })
        })?;
        Ok(outcome.ops)
    }

    /// Scans everything; returns how many keys the scan shows.
    fn scan_all(&self) -> Result<u64> {
        let outcome = self.run(0, |mut member| {
            member.barrier.wait();
            let started = Instant::now();
            let ops = if member.thread == 0 { member.worker.scan_all()? } else { 0 };
            Ok(Outcome { ops, checked: ops, started, ended: Instant::now(), latencies: Latencies::default() })
        })?;
        Ok(outcome.ops)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::closed::Closed;
    use crate::harness::sampling::Sampling;
    use crate::target::Session;
    use crate::workload::data::DataSet;
    use std::collections::BTreeMap;
    use std::sync::Mutex;
    use std::time::Duration;

    /// Pairs in order; scans skip the pair with the number `hidden`.
    struct Gappy {
        pairs: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
        hidden: Option<usize>,
    }

    impl Target for Gappy {
        type Session<'a> = &'a Gappy;
        fn name(&self) -> &str {
            "gappy"
        }
        fn settings(&self) -> Vec<(String, String)> {
            Vec::new()
        }
        fn session(&self) -> Result<&Gappy> {
            Ok(self)
        }
        fn is_ordered(&self) -> bool {
            true
        }
    }

    impl Session for &Gappy {
        fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
            self.pairs.lock().expect("not poisoned").insert(key.to_vec(), value.to_vec());
            Ok(())
        }
        fn get<R>(&mut self, key: &[u8], mut f: impl FnMut(&[u8]) -> R) -> Result<Option<R>> {
            Ok(self.pairs.lock().expect("not poisoned").get(key).map(|value| f(value)))
        }
        fn delete(&mut self, key: &[u8]) -> Result<bool> {
            Ok(self.pairs.lock().expect("not poisoned").remove(key).is_some())
        }
        fn read_modify_write(&mut self, _: &[u8], _: impl FnMut(Option<&[u8]>, &mut Vec<u8>)) -> Result<()> {
            Err(Error::Config("unused".into()))
        }
        fn scan(&mut self, from: &[u8], limit: usize, mut f: impl FnMut(&[u8], &[u8])) -> Result<usize> {
            let pairs = self.pairs.lock().expect("not poisoned");
            let hidden = self.hidden.and_then(|at| pairs.keys().nth(at));
            let shown = pairs.range(from.to_vec()..).filter(|(key, _)| Some(*key) != hidden).take(limit);
            Ok(shown.map(|(key, value)| f(key, value)).count())
        }
        fn put_batch(&mut self, _: &[Vec<u8>], _: &[Vec<u8>]) -> Result<()> {
            Err(Error::Config("unused".into()))
        }
    }

    fn verify(hidden: Option<usize>, script: &[&str], present: Present) -> Result<u64> {
        let (target, data) = (Gappy { pairs: Mutex::default(), hidden }, DataSet::new(8, 8, 3));
        let workloads: Vec<Workload> = script.iter().map(|name| name.parse().expect("valid")).collect();
        let team = |workload, epoch| Team { target: &target, data: &data, workload, threads: 2, keys: 3_000, inserted: 0, seed: 1, epoch };
        for (epoch, workload) in workloads.iter().enumerate() {
            let closed = Closed { ops: 500, warmup_ops: 0, at_most: Duration::from_secs(60), sampling: Sampling::OneIn(8) };
            closed.run(&team(workload, epoch as u32))?;
        }
        team(&workloads[0], 200).verify(present, &workloads)
    }

    fn refusal(hidden: usize, script: &[&str]) -> String {
        verify(Some(hidden), script, Present::All).expect_err("a key is hidden").to_string()
    }

    /// Regression: no scan detected that a key was missing in it.
    #[test]
    fn a_scan_that_passes_over_a_key_is_wrong_data() {
        assert_eq!(verify(None, &["load"], Present::All).expect("whole"), 3_000);
        for hidden in [0, 1_023, 1_024, 2_999] {
            assert!(refusal(hidden, &["load"]).contains("gave 2999 keys, where gets find 3000"));
        }
    }

    #[test]
    fn keys_that_were_inserted_may_be_there_besides() {
        for workload in ["insert", "ycsb-d", "ycsb-e"] {
            assert!(verify(None, &["load", workload], Present::All).is_ok(), "{workload}");
        }
        assert!(refusal(7, &["load", "update"]).contains("gave 2999"));
    }

    #[test]
    fn what_was_cut_short_is_counted() {
        assert!(verify(None, &["load"], Present::Count(3_000)).is_ok());
        assert!(verify(None, &["load"], Present::Count(2_999)).is_err());
        assert!(verify(None, &["load", "delete"], Present::None).is_ok());
        assert!(verify(None, &["load", "delete"], Present::All).is_err());
        assert!(verify(None, &["load"], Present::None).is_err());
    }

    #[test]
    fn what_is_there_follows_from_what_was_done() {
        let after = |script: &[(Kind, u64)]| script.iter().fold(Present::None, |present, (kind, ops)| present.after(*kind, *ops, 100));
        assert_eq!(after(&[(Kind::Load, 100), (Kind::Get, 70), (Kind::Update, 70)]), Present::All);
        assert_eq!(after(&[(Kind::LoadBatch(16), 60), (Kind::Get, 70)]), Present::Count(60));
        assert_eq!(after(&[(Kind::Load, 60), (Kind::Update, 70)]), Present::Some);
        assert_eq!(after(&[(Kind::Load, 100), (Kind::Delete, 30)]), Present::Count(70));
        assert_eq!(after(&[(Kind::Load, 100), (Kind::Delete, 100)]), Present::None);
        assert_eq!(after(&[(Kind::Load, 100), (Kind::Delete, 100), (Kind::Load, 100)]), Present::All);
    }
}
