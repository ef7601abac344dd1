//! Scan delegation (NStore, section III-E "Scan", Fig. 9): threads of each node read their node's entries for scans
//! that run on other nodes.
//!
//! A scan takes references from the index in groups. References to another node go in batches to that node's read
//! threads, which copy keys and values into DRAM. Meanwhile the scanning thread reads its own node's entries; it passes
//! everything on in order. So media are read by local threads only, and by several at once.
//!
//! For small entries the hand-over costs more than it saves. So a group is delegated only if its remote entries have a
//! certain mean size, which their references show without a look at the media. The first entries of a scan are never
//! delegated: a scan that ends after them should not wait for another thread to wake up.
//!
//! # Correctness
//!
//! * D1. *Pins.* A read thread holds no epoch pin. It reads under the pin of the scanning thread, which took the
//!   references from the index under it. [`Asked`] borrows that pin, and ends only when every batch is answered,
//!   refused or was never begun ([`Pending`] waits when dropped, also while a panic unwinds). By L3 of the log no
//!   segment that a batch names is reused meanwhile.
//! * D2. *Same result.* A copy holds key, value, expiry and, where the scan judges it, the version. Entries never
//!   change (L1). The scanning thread judges expiry, durability and the snapshot as if it had read the entry itself. An
//!   entry that a read thread could not read (damage) is read by the scanning thread itself, which meets the error in
//!   the right place.
//! * D3. *Progress.* A read thread waits for nothing but work, so a thread that waits for it waits for reads only.
//!   Without read threads (one node, closed, spawn failed, a node without processors) nothing is accepted, and scans
//!   read by themselves. A queue that is closed refuses what no read thread has begun.
//!
//! # Thread safety, crashes
//!
//! Everything here is volatile. A panic while reading (a broken invariant) is caught in the read thread. The scanning
//! thread then reads by itself, and meets the panic there.

mod batch;
mod queue;

use crate::cache;
use batch::Batch;
pub(crate) use batch::Copied;
use hither_index::Ref;
use hither_log::{Log, address};
use hither_sync::epoch::Guard;
use queue::{Pending, Queue};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of entries of a scan that are read before anything is delegated.
const HEAD: usize = 16;
/// Most entries of a batch, and the bytes after which it ends.
const BATCH: usize = 32;
const BATCH_BYTES: u64 = 64 << 10;
/// Bytes of a group that are asked for at once, including those of the own node.
const GROUP_BYTES: u64 = 1 << 20;
/// Size that is assumed, in bytes, of an entry that is too large for its reference's size tag.
const LARGE_BYTES: u64 = 512 << 10;

/// Which scans hand remote entries to threads of the entries' node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelegationSetting {
    /// Read threads of each node; 0: none, scans read by themselves. A store that cannot gain from them has none in any
    /// case: a store of one node, over links of equal latency, or over nodes of the machine whose media are DRAM
    /// themselves.
    pub threads: usize,
    /// Mean bytes of a group's remote entries (key, value and 16 to 40 bytes more) from which on they are delegated; 0,
    /// the default: never.
    ///
    /// According to counts it may pay from 512 on. There the hand-over, some 60 ns of the scanning thread for each
    /// remote entry (up to 200 for small ones), takes less than the paper's remote link takes for the entry. It has not
    /// been measured on media that are remote (`docs/experiments.md`).
    pub from_bytes: u64,
}

impl Default for DelegationSetting {
    fn default() -> Self {
        DelegationSetting { threads: 2, from_bytes: 0 }
    }
}

/// Reads by threads of the entries' nodes, for scans of other nodes, since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct DelegationStats {
    /// Read threads that are at work or waiting for it, all nodes together.
    pub threads: u64,
    /// Batches that they have read.
    pub batches: u64,
    /// Entries in these batches.
    pub entries: u64,
    /// Bytes of keys and values in these batches.
    pub bytes: u64,
}

/// The read threads' queues, one for each node.
pub(crate) struct Delegation {
    queues: Vec<Queue>,
    from_bytes: u64,
    batches: AtomicU64,
    entries: AtomicU64,
    bytes: AtomicU64,
}

impl Delegation {
    /// Creates the queues for a store with this log; none where delegation cannot help.
    pub fn new(setting: DelegationSetting, log: &Log) -> Delegation {
        let wanted = setting.threads > 0 && setting.from_bytes > 0 && cache::remote_reads_cost_more(log);
        let nodes = if wanted { log.nodes() } else { 0 };
        Delegation {
            queues: (0..nodes).map(|_| Queue::default()).collect(),
            from_bytes: setting.from_bytes,
            batches: AtomicU64::new(0),
            entries: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// Number of nodes that are to have read threads.
    pub fn nodes(&self) -> usize {
        self.queues.len()
    }

    /// Work of a read thread of `node` until [`Delegation::close`]. Returns at once where the thread would not be
    /// local: on a node without processors.
    pub fn serve(&self, log: &Log, node: usize) {
        if log.topology().pin_current_thread_to_node(node as u32).is_err() {
            return;
        }
        self.queues[node].serve(|batch: &mut Batch| {
            batch.read(log);
            self.batches.fetch_add(1, Relaxed);
            self.entries.fetch_add(batch.len() as u64, Relaxed);
            self.bytes.fetch_add(batch.bytes(), Relaxed);
        });
    }

    /// Ends the read threads and refuses batches that none has begun. Scans continue by themselves.
    pub fn close(&self) {
        self.queues.iter().for_each(Queue::close);
    }

    /// Whether any scan may delegate.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        !self.queues.is_empty()
    }

    /// What a scan on node `here` does with a group of references. `first`: this is the scan's first group.
    pub fn plan(&self, refs: &[Ref], here: usize, first: bool) -> Plan {
        let (mut group, mut remote_bytes, mut remote, mut taken) = (0, 0, 0, 0);
        for reference in refs {
            let size = size_of(*reference);
            if taken > 0 && group + size > GROUP_BYTES {
                break;
            }
            (group, taken) = (group + size, taken + 1);
            if self.may_delegate(*reference, here) {
                (remote_bytes, remote) = (remote_bytes + size, remote + 1);
            }
        }
        match (remote > 0 && remote_bytes >= self.from_bytes.saturating_mul(remote), first) {
            (false, _) => Plan::default(),
            (true, true) => Plan { taken: Some(taken.min(HEAD)), from: None },
            (true, false) => Plan { taken: Some(taken), from: Some(here) },
        }
    }

    /// Whether a thread of another node would copy this entry. If its node has no read threads (one of memory only, or
    /// one where none could be started), the scanning thread reads it like an entry of its own node.
    #[inline(always)]
    fn may_delegate(&self, reference: Ref, here: usize) -> bool {
        let node = node_of(reference);
        node != here && may_be_copied(reference) && self.queues.get(node).is_some_and(Queue::is_served)
    }

    /// Hands the remote ones among `refs` to their nodes. `refs` were read from an index under the pin. `versions`: the
    /// scan will ask for versions.
    pub fn ask<'p>(&self, _pin: &'p Guard, refs: &[Ref], here: usize, versions: bool, spare: &mut Spare) -> Asked<'p> {
        let mut asked = Asked { places: vec![None; refs.len()], batches: Vec::new(), _pin: PhantomData };
        for (node, queue) in self.queues.iter().enumerate().filter(|(node, queue)| *node != here && queue.is_served()) {
            let mut batches: Vec<Batch> = Vec::new();
            let first = asked.batches.len();
            for (i, reference) in
                refs.iter().enumerate().filter(|(_, reference)| node_of(**reference) == node && may_be_copied(**reference))
            {
                if batches.last().is_none_or(|last| last.len() >= BATCH || last.asked_bytes() >= BATCH_BYTES) {
                    batches.push(spare.0.pop().unwrap_or_default().start(versions));
                }
                let batch = batches.len() - 1;
                let last = &mut batches[batch];
                asked.places[i] = Some((first + batch, last.len()));
                last.push(*reference, size_of(*reference));
            }
            queue.submit(batches, &mut asked.batches);
        }
        asked
    }

    pub fn stats(&self) -> DelegationStats {
        DelegationStats {
            threads: self.queues.iter().map(|queue| queue.servers() as u64).sum(),
            batches: self.batches.load(Relaxed),
            entries: self.entries.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
        }
    }
}

#[inline(always)]
fn node_of(reference: Ref) -> usize {
    address::unpack(reference.0).node as usize
}

/// Whether the reference shows the entry's size. If not, the entry may have half a gigabyte, which a scan must not
/// copy: it reads such entries in place.
#[inline(always)]
fn may_be_copied(reference: Ref) -> bool {
    address::tagged_size(reference.0).is_some()
}

#[inline(always)]
fn size_of(reference: Ref) -> u64 {
    address::tagged_size(reference.0).unwrap_or(LARGE_BYTES)
}

/// What a scan does with a group of references.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Visits only this many references now; `None`: all.
    pub taken: Option<usize>,
    /// Asks other nodes, from this node; `None`: reads by itself.
    pub from: Option<usize>,
}

/// What was asked for one group of references. Ends before the pin under which they were read (D1).
pub(crate) struct Asked<'p> {
    /// For each reference, the batch and the place in it; `None`: the scanning thread reads it itself.
    places: Vec<Option<(usize, usize)>>,
    batches: Vec<Pending>,
    _pin: PhantomData<&'p Guard>,
}

impl Asked<'_> {
    /// Whether the scanning thread reads reference number `i` itself.
    #[inline(always)]
    pub fn is_direct(&self, i: usize) -> bool {
        self.places.get(i).is_none_or(Option::is_none)
    }

    /// Waits for the copy of the entry behind reference number `i`. Returns `None` if the scanning thread must read the
    /// entry itself.
    #[inline(always)]
    pub fn copy(&mut self, i: usize) -> Option<Copied<'_>> {
        let (batch, place) = (*self.places.get(i)?)?;
        self.batches[batch].wait()?.get(place)
    }

    /// Waits until everything is there.
    pub fn waited(&mut self) -> &Self {
        self.batches.iter_mut().for_each(|batch| {
            batch.wait();
        });
        self
    }

    /// As [`Asked::copy`], after [`Asked::waited`].
    #[inline(always)]
    pub fn waited_copy(&self, i: usize) -> Option<Copied<'_>> {
        let (batch, place) = (*self.places.get(i)?)?;
        self.batches[batch].waited()?.get(place)
    }

    /// Ends the request and keeps its buffers for the next group.
    pub fn recycle(self, spare: &mut Spare) {
        spare.0.extend(self.batches.into_iter().filter_map(Pending::into_batch));
    }
}

/// Buffers that a scan uses again.
#[derive(Default)]
pub(crate) struct Spare(Vec<Batch>);

#[cfg(test)]
mod tests {
    use super::*;
    use hither_sync::epoch;

    /// A delegation over three nodes, the last of which has no read thread.
    fn delegation(from_bytes: u64) -> Delegation {
        let counter = || AtomicU64::new(0);
        let queues = vec![Queue::default(), Queue::default(), Queue::default()];
        queues[..2].iter().for_each(|queue| std::mem::forget(queue.enter()));
        Delegation { queues, from_bytes, batches: counter(), entries: counter(), bytes: counter() }
    }

    fn refs(sizes: &[(u32, u64)]) -> Vec<Ref> {
        sizes.iter().map(|&(node, size)| Ref(address::pack(node, 4096, size))).collect()
    }

    #[test]
    fn only_remote_entries_count_for_the_size() {
        let (delegation, never) = (delegation(256), delegation(1 << 63));
        let small_remote = refs(&[(0, 4096), (1, 64), (1, 128)]);
        assert_eq!(delegation.plan(&small_remote, 0, false), Plan::default());
        assert_eq!(delegation.plan(&small_remote, 1, false), Plan { taken: Some(3), from: Some(1) });
        assert_eq!(delegation.plan(&refs(&[(0, 4096)]), 0, false), Plan::default(), "nothing is remote");
        assert_eq!(delegation.plan(&refs(&[(1, 192), (1, 320)]), 0, false).from, Some(0), "the mean counts");
        assert_eq!(delegation.plan(&[], 0, false), Plan::default());
        assert_eq!(never.plan(&refs(&[(1, 64), (1, 64)]), 0, false), Plan::default());
    }

    /// Regression: two values of half a gigabyte each were copied at a time.
    #[test]
    fn what_does_not_tell_its_size_is_not_copied() {
        let (delegation, group) = (delegation(256), refs(&[(1, 1 << 20), (1, 4096), (1, 1 << 29)]));
        assert_eq!(delegation.plan(&group, 0, false).from, Some(0));
        let pin = epoch::pin();
        let asked = delegation.ask(&pin, &group, 0, false, &mut Spare::default());
        assert_eq!([0, 1, 2].map(|i| asked.is_direct(i)), [true, false, true]);
    }

    /// Regression: entries of a node without read threads were asked for, refused, and then read without having been
    /// loaded ahead.
    #[test]
    fn nodes_without_read_threads_are_not_asked() {
        let delegation = delegation(256);
        assert_eq!(delegation.plan(&refs(&[(2, 4096), (0, 4096)]), 0, false), Plan::default());
        assert_eq!(delegation.plan(&refs(&[(2, 4096), (1, 64)]), 0, false), Plan::default(), "they do not count for the size either");
        let (pin, group) = (epoch::pin(), refs(&[(0, 512), (1, 512), (2, 512)]));
        let asked = delegation.ask(&pin, &group, 0, false, &mut Spare::default());
        assert_eq!([0, 1, 2].map(|i| asked.is_direct(i)), [true, false, true]);
        assert_eq!(asked.batches.len(), 1);
    }

    #[test]
    fn the_first_entries_of_a_scan_are_read_directly() {
        let plan = delegation(256).plan(&refs(&[(1, 512); 128]), 0, true);
        assert_eq!(plan, Plan { taken: Some(HEAD), from: None });
    }

    #[test]
    fn a_group_of_large_entries_is_short_but_never_empty() {
        let delegation = delegation(256);
        assert_eq!(delegation.plan(&refs(&[(1, 100_000); 128]), 0, false).taken, Some(10));
        // Beyond what the size tag can hold.
        assert_eq!(delegation.plan(&refs(&[(1, 4 << 20); 128]), 0, false), Plan::default());
    }
}
