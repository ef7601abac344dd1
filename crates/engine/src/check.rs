//! A full check of a store: every checksum, every reference, every count.
//!
//! Thread safety: runs without writers; collectors, checkpoints and the sweeper of expired keys wait for it. Crash: a
//! check changes nothing.

use crate::error::Result;
use crate::keyspace::{Keyspace, with_index};
use crate::store::{Core, Store};
use hither_index::{Index, Ref};
use hither_log::Op;
use hither_log::address::LINK_MASK;
use hither_sync::epoch;
use std::collections::{HashMap, HashSet};

/// The most problems that are listed; more are only counted.
const MAX_LISTED: usize = 100;

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Segments read.
    pub segments: u64,
    /// Entries whose checksum is right.
    pub entries: u64,
    /// Bytes of entries.
    pub bytes: u64,
    /// Torn places in segments where a crash may leave them.
    pub torn: u64,
    /// Keys in the indexes.
    pub keys: u64,
    /// Problems that were found; empty if the store is sound.
    pub problems: Vec<String>,
    /// Number of problems, including those not listed.
    pub problem_count: u64,
}

impl CheckReport {
    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.problem_count == 0
    }

    fn problem(&mut self, what: String) {
        self.problem_count += 1;
        if self.problems.len() < MAX_LISTED {
            self.problems.push(what);
        }
    }
}

impl Store {
    /// Reads the whole store. Run it without writers: counts that change meanwhile would be reported. Collectors,
    /// checkpoints and the sweeper of expired keys wait meanwhile. O(store).
    pub fn check(&self) -> Result<CheckReport> {
        crate::store::ensure_may_wait("check")?;
        // A checkpoint locks parts of an index while it copies them.
        let _no_checkpoint = self.core.checkpoints.pause();
        let _no_sweep = self.core.sweeping.lock();
        self.core.without_passes(|| self.check_all())
    }

    fn check_all(&self) -> Result<CheckReport> {
        let mut report = CheckReport::default();
        self.core.check_segments(&mut report)?;
        // Damage that was set right in memory only is still damage.
        let is_copy = self.core.log.pool(0).salvages();
        for damage in self.recovery().salvaged.iter().filter(|_| is_copy) {
            if !report.problems.contains(damage) {
                report.problem(damage.clone());
            }
        }
        let keyspaces: Vec<_> = self.core.keyspaces.read().values().cloned().collect();
        let placement = self.core.log.placement();
        let mut live_bytes = vec![0; placement.segments()];
        for keyspace in &keyspaces {
            self.core.check_keyspace(keyspace, &mut report, |reference, bytes| {
                if let Some(segment) = placement.of(reference.0) {
                    live_bytes[segment] += bytes;
                }
            });
        }
        if self.core.log.outlives_the_process() {
            if self.core.collector.has_chains() {
                self.core.check_chains(&mut report);
            } else {
                self.core.check_cover(&mut report);
            }
        }
        // What snapshots keep counts as live, too.
        if self.core.snapshots.alive().0 == 0 {
            let accounted = self.core.log.live_bytes(&placement);
            for (number, (live, accounted)) in live_bytes.into_iter().zip(accounted).enumerate().filter(|(_, (a, b))| a != b) {
                let (node, segment) = placement.segment(number);
                report.problem(format!(
                    "segment {segment} of node {node}: entries in the indexes take {live} bytes, but {accounted} are accounted as live"
                ));
            }
        }
        Ok(report)
    }
}

impl Core {
    /// Checks that every entry that is neither dead nor current is reached from a newer one; otherwise it could come
    /// back some day (`docs/adr/0011`).
    fn check_chains(&self, report: &mut CheckReport) {
        let keyspaces = self.keyspaces_by_id();
        let (mut superseded, mut reached) = (Vec::new(), HashSet::new());
        let _pin = epoch::pin();
        self.log.visit_all(|reference, version, keyspace, entry| {
            let Some(index) = keyspaces.get(&keyspace).filter(|_| !entry.is_dead()) else { return };
            if entry.op() != Op::Delete {
                let current = with_index!(index, index => index.get(self.hasher.key(entry.key), &self.resolver()));
                if current.0 != reference {
                    superseded.push(reference & LINK_MASK);
                }
            }
            self.log.walk(reference, entry, keyspace, version, |link| reached.insert(link));
        });
        for link in superseded.into_iter().filter(|link| !reached.contains(link)) {
            let at = hither_log::address::unpack(link);
            report.problem(format!("the superseded entry at {} of node {} is on no chain: it could come back", at.offset, at.node));
        }
    }

    /// Checks that every entry that is neither dead nor current is older than what the index has, or than a tombstone
    /// of its key (`docs/adr/0014`).
    fn check_cover(&self, report: &mut CheckReport) {
        let keyspaces = self.keyspaces_by_id();
        let mut tombstones: HashMap<(u32, u64), u64> = HashMap::new();
        self.log.visit_all(|reference, version, keyspace, entry| {
            // A tombstone that passes for garbage is dropped with its segment, so another one must keep the entry out.
            if entry.op() == Op::Delete && !entry.is_dead() && !self.log.is_known_garbage(reference) {
                let newest = tombstones.entry((keyspace, self.hasher.key(entry.key).hash)).or_default();
                *newest = version.max(*newest);
            }
        });
        let _pin = epoch::pin();
        self.log.visit_all(|reference, version, keyspace, entry| {
            let Some(index) = keyspaces.get(&keyspace).filter(|_| !entry.is_dead() && entry.op() != Op::Delete) else { return };
            let key = self.hasher.key(entry.key);
            let current = with_index!(index, index => index.get(key, &self.resolver()));
            let newest = match current {
                Ref::NONE => tombstones.get(&(keyspace, key.hash)).copied().unwrap_or(0),
                // Damage was reported before.
                current => self.log.verified_entry(current.0).map_or(u64::MAX, |entry| self.log.version_of(current.0, &entry)),
            };
            if version > newest || (version == newest && current.is_none()) {
                let at = hither_log::address::unpack(reference);
                report.problem(format!("the entry at {} of node {} is not current, and nothing newer keeps it out", at.offset, at.node));
            }
        });
    }

    fn check_segments(&self, report: &mut CheckReport) -> Result<()> {
        for checked in self.log.check_segments()? {
            report.segments += 1;
            report.entries += checked.entries;
            report.bytes += checked.bytes;
            report.torn += checked.torn;
            if let Some(problem) = checked.problem {
                report.problem(problem);
            }
        }
        Ok(())
    }

    /// Checks every reference of a keyspace; calls `count` with each that leads to an entry, and with the bytes of that
    /// entry.
    fn check_keyspace(&self, keyspace: &Keyspace, report: &mut CheckReport, mut count: impl FnMut(Ref, u64)) {
        let _pin = epoch::pin();
        let resolver = self.resolver();
        let name = &keyspace.info.name;
        let mut keys = 0u64;
        with_index!(keyspace, index => {
            let mut visit = |reference: Ref| {
                keys += 1;
                let Some(entry) = self.log.verified_entry(reference.0) else {
                    report.problem(format!("keyspace \"{name}\": {reference:?} leads to no valid entry"));
                    return true;
                };
                count(reference, entry.size);
                let key = self.hasher.key(entry.key);
                if self.log.keyspace_of(reference.0, &entry) != keyspace.info.id {
                    report.problem(format!("keyspace \"{name}\": {reference:?} leads to an entry of another keyspace"));
                } else if index.get(key, &resolver) != reference {
                    report.problem(format!("keyspace \"{name}\": the key behind {reference:?} is not found by a lookup"));
                } else if entry.is_dead() {
                    report.problem(format!("keyspace \"{name}\": {reference:?} is current, but marked dead: it would be lost when the log is scanned"));
                } else if self.log.is_known_garbage(reference.0) {
                    report.problem(format!("keyspace \"{name}\": {reference:?} is current, but passes for garbage: it would be lost when its segment is collected"));
                }
                true
            };
            index.for_each(&resolver, &mut visit);
            if let Err(what) = index.check(&resolver) {
                report.problem(format!("keyspace \"{name}\": {what}"));
            }
            if index.len() as u64 != keys {
                report.problem(format!("keyspace \"{name}\" holds {keys} keys but counts {}", index.len()));
            }
        });
        report.keys += keys;
    }
}

#[cfg(test)]
mod tests {
    use crate::{CheckReport, KeyspaceHandle, Kind, Options, Store};
    use hither_index::Ref;
    use hither_topology::Topology;
    use std::sync::Arc;

    /// Returns where the index leads for a key.
    fn reference_of(store: &Store, keyspace: &KeyspaceHandle, key: &[u8]) -> Ref {
        let _pin = hither_sync::epoch::pin();
        super::with_index!(keyspace.0, index => super::Index::get(index, store.core.hasher.key(key), &store.core.resolver()))
    }

    /// A check finds a current entry that a collector would lose because a bit is wrong.
    #[test]
    fn a_current_entry_that_passes_for_garbage_is_reported() {
        let store = Store::open(Options { in_memory: true, background: false, ..Options::default() }).unwrap();
        let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
        store.write_wait(&keyspace, b"one key!", Some(b"a value!")).unwrap();
        assert!(store.check().unwrap().is_sound());
        let reference = reference_of(&store, &keyspace, b"one key!");
        store.core.log.note_garbage(reference.0, 0, false);
        let report = store.check().unwrap();
        assert!(report.problems.iter().any(|problem| problem.contains("passes for garbage")), "{report:?}");
    }

    /// Deletes a key, passes the tombstone's reference and size to `alter`, and checks again.
    fn with_altered_tombstone(store: &Store, alter: impl Fn(u64, u64)) -> CheckReport {
        let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
        store.write_wait(&keyspace, b"one key!", Some(b"a value!")).unwrap();
        store.write_wait(&keyspace, b"one key!", None).unwrap();
        assert!(store.check().unwrap().is_sound());
        store.core.log.visit_all(|reference, _, _, entry| {
            if entry.op() == hither_log::Op::Delete {
                alter(reference, entry.size);
            }
        });
        store.check().unwrap()
    }

    /// A check finds an entry that would come back because the only tombstone that keeps it out passes for garbage.
    #[test]
    fn a_needed_tombstone_that_passes_for_garbage_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let paths = vec![(None, dir.path().to_owned())];
        let (capacity, max_capacity) = (1 << 20, 1 << 20);
        let medium = crate::MediumChoice::File;
        let options = Options { paths, medium, capacity, max_capacity, segment_bytes: 64 << 10, background: false, ..Options::default() };
        let store = Store::open(options).unwrap();
        let report = with_altered_tombstone(&store, |reference, _| store.core.log.know_garbage(reference));
        assert!(report.problems.iter().any(|problem| problem.contains("nothing newer keeps it out")), "{report:?}");
    }

    /// A check finds tombstones that are not counted. Collectors would drop them with their segment.
    #[test]
    fn a_tombstone_that_is_not_counted_is_reported() {
        let store = Store::open(Options { in_memory: true, background: false, ..Options::default() }).unwrap();
        let report = with_altered_tombstone(&store, |reference, size| store.core.log.count_dead(reference, size, true));
        assert!(report.problems.iter().any(|problem| problem.contains("holds 1 tombstones of 32 bytes, but 0 of 0 bytes")), "{report:?}");
    }

    /// A check finds a current entry that a restart by scan would lose because a mark is wrong.
    #[test]
    fn a_current_entry_that_is_marked_dead_is_reported() {
        let store = Store::open(Options { in_memory: true, background: false, ..Options::default() }).unwrap();
        for (name, kind) in [("hash", Kind::Hash), ("ordered", Kind::Ordered)] {
            let keyspace = store.create_keyspace(name, kind).unwrap();
            store.write_wait(&keyspace, b"one key!", Some(b"a value!")).unwrap();
            assert!(store.check().unwrap().is_sound());
            let reference = reference_of(&store, &keyspace, b"one key!");
            store.core.log.mark_dead_on_media(reference.0);
            let report = store.check().unwrap();
            assert!(report.problems.iter().any(|problem| problem.contains("marked dead")), "{report:?}");
            assert!(store.write_wait(&keyspace, b"one key!", Some(b"another!")).unwrap());
            assert!(store.check().unwrap().is_sound());
        }
    }

    /// Regression: where the first pool grew during a check, the figures of the second pool were taken for those of
    /// other segments.
    #[test]
    fn pools_that_grow_meanwhile_do_not_confuse_it() {
        let topology = Arc::new(Topology::emulated(2));
        let sizes = Options { capacity: 4 << 20, max_capacity: 64 << 20, segment_bytes: 64 << 10, ..Options::default() };
        let store = Store::open(Options { in_memory: true, background: false, topology: Some(topology.clone()), ..sizes }).unwrap();
        let keyspace = store.create_keyspace("k", Kind::Hash).unwrap();
        let put = |key: u32| assert!(!store.write_wait(&keyspace, &key.to_be_bytes(), Some(&[1; 1000])).unwrap());
        topology.bind_current_thread(1).unwrap();
        (0..1000).for_each(put);
        let (log, placement) = (&store.core.log, store.core.log.placement());
        let before = log.live_bytes(&placement);
        topology.bind_current_thread(0).unwrap();
        let mut key = 1000;
        while log.placement().segments() == placement.segments() {
            put(key);
            key += 1;
        }
        let of_node_1 = |live: &[u64]| live[placement.number(1, 0)..].to_vec();
        assert!(before.iter().sum::<u64>() > 1_000_000);
        assert_eq!(of_node_1(&log.live_bytes(&placement)), of_node_1(&before));
        assert!(store.check().unwrap().is_sound());
    }
}
