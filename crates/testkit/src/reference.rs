//! A second recovery, as simple as possible, and its broken variants.
//!
//! It reads an image into a map: no index, no threads, no chains, nothing written. The sound variant is a second
//! opinion on the production recovery. The explorer compares the two on a share of its images, unless a chain had to be
//! mended, and both must agree. Each [`Mistake`] breaks one decision, and the oracle must notice.

use crate::explorer_script::open_pools;
use crate::oracle::{Contents, Dump};
use hither_engine::Kind;
use hither_log::entry::BatchTag;
use hither_log::{EntryView, Op};
use hither_pmem::{Descriptor, Emulate, Pool, SegmentState};
use std::collections::BTreeMap;

/// What a recovery gets wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// Nothing.
    None,
    /// It takes the first hole of an open segment for the segment's end.
    StopsAtHole,
    /// It accepts entries without verifying their checksums.
    NoChecksum,
    /// It takes the checksum of an entry with the DEAD mark for wrong.
    DeadBreaksChecksum,
    /// Of two entries of a key the older one wins.
    OldestWins,
    /// A tombstone in a segment that is not active is ignored.
    TombstoneDroppedEarly,
    /// Members of a batch count although the batch is not whole.
    BatchNotCounted,
    /// It demands that settled batches are whole, too, although members may have been collected since.
    SettledIgnored,
    /// Members in keyspaces that were dropped since are not counted when it decides whether a batch is whole.
    DroppedKeyspaceNotCounted,
    /// DEAD marks are ignored.
    DeadIgnored,
}

/// All mistakes.
pub const MISTAKES: [Mistake; 9] = [
    Mistake::StopsAtHole,
    Mistake::NoChecksum,
    Mistake::DeadBreaksChecksum,
    Mistake::OldestWins,
    Mistake::TombstoneDroppedEarly,
    Mistake::BatchNotCounted,
    Mistake::SettledIgnored,
    Mistake::DroppedKeyspaceNotCounted,
    Mistake::DeadIgnored,
];

/// An entry, copied out of its segment.
struct Found {
    keyspace: u32,
    key: Vec<u8>,
    /// `None` for a delete.
    value: Option<Vec<u8>>,
    expired: bool,
    version: u64,
    dead: bool,
    batch: Option<BatchTag>,
}

/// Recovers `images`.
///
/// # Errors
/// The damage found, or the reason why a pool does not open.
pub fn recover(images: &[Vec<u8>], rules: Emulate, mistake: Mistake) -> Result<Dump, String> {
    let pools = open_pools(images, rules, None).map_err(|error| error.to_string())?;
    let keyspaces = catalogue(&pools[0])?;
    let settled = pools.iter().map(Pool::settled).max().unwrap_or(0);
    let mut found = Vec::new();
    for pool in &pools {
        read_pool(pool, mistake, &mut found)?;
    }
    let known = |entry: &Found| keyspaces.contains_key(&entry.keyspace);
    if mistake == Mistake::DroppedKeyspaceNotCounted {
        found.retain(known);
    }
    keep_valid(&mut found, if mistake == Mistake::SettledIgnored { 0 } else { settled }, mistake);
    found.retain(known);
    Ok(winners(&keyspaces, found, mistake))
}

/// Reads ids, names and kinds of the keyspaces (`docs/format.md`).
fn catalogue(pool: &Pool) -> Result<BTreeMap<u32, (String, Kind)>, String> {
    let bytes = pool.catalogue().map_err(|error| error.to_string())?;
    let mut keyspaces = BTreeMap::new();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let (mut at, count) = (8, if bytes.is_empty() { 0 } else { word(4) });
    for _ in 0..count {
        let (id, kind, len) = (word(at), bytes[at + 4], bytes[at + 5] as usize);
        let name = String::from_utf8_lossy(&bytes[at + 6..at + 6 + len]).into_owned();
        keyspaces.insert(id, (name, if kind == 1 { Kind::Ordered } else { Kind::Hash }));
        at += 6 + len;
    }
    Ok(keyspaces)
}

fn read_pool(pool: &Pool, mistake: Mistake, found: &mut Vec<Found>) -> Result<(), String> {
    let mut index = 0;
    while index < pool.segment_count() {
        let descriptor = pool.descriptor(index).map_err(|error| error.to_string())?;
        if descriptor.state == SegmentState::Free {
            index += 1;
            continue;
        }
        let before = found.len();
        let bytes = read_segment(pool, index, &descriptor, mistake, found);
        let whole = (found.len() - before) as u64 == u64::from(descriptor.entries) && bytes == descriptor.sealed_bytes;
        if descriptor.state != SegmentState::Active && !whole {
            return Err(format!("segment {index} does not hold what was sealed"));
        }
        index += descriptor.run_len.max(1);
    }
    Ok(())
}

fn read_segment(pool: &Pool, index: u32, descriptor: &Descriptor, mistake: Mistake, found: &mut Vec<Found>) -> u64 {
    let start = pool.segment_offset(index);
    let words = descriptor.run_len.max(1) as u64 * pool.segment_bytes() / 8;
    let bytes: Vec<u8> = (0..words).flat_map(|word| pool.load_u64(start + 8 * word).to_le_bytes()).collect();
    let (mut at, mut total) = (0, 0);
    while at + 32 <= bytes.len() {
        let entry = if mistake == Mistake::NoChecksum {
            EntryView::parse(&bytes[at..])
        } else {
            EntryView::verify(&bytes[at..], descriptor.generation, start + at as u64)
        };
        match entry {
            Ok(entry) if mistake != Mistake::DeadBreaksChecksum || !entry.is_dead() => {
                let sealed = descriptor.state != SegmentState::Active;
                if !(mistake == Mistake::TombstoneDroppedEarly && sealed && entry.op() == Op::Delete) {
                    found.push(copy(&entry, descriptor));
                } else {
                    // It counts among the segment's entries, but under keyspace 0, which no catalogue gives out.
                    found.push(Found { keyspace: 0, ..copy(&entry, descriptor) });
                }
                total += entry.size;
                at += entry.size as usize;
                if descriptor.run_len > 1 {
                    break;
                }
            }
            _ if mistake == Mistake::StopsAtHole && descriptor.state == SegmentState::Active => break,
            _ => at += 8,
        }
    }
    total
}

fn copy(entry: &EntryView<'_>, descriptor: &Descriptor) -> Found {
    Found {
        keyspace: entry.keyspace(descriptor.keyspace),
        key: entry.key.to_vec(),
        value: (entry.op() != Op::Delete).then(|| entry.value.to_vec()),
        expired: entry.expiry_ms() != 0,
        version: entry.version(descriptor.base_version),
        dead: entry.is_dead(),
        batch: entry.batch(),
    }
}

/// Keeps entries that are not dead and not members of an incomplete batch. A dead member counts for its batch: what
/// superseded it may have been collected since.
fn keep_valid(found: &mut Vec<Found>, settled: u64, mistake: Mistake) {
    let id = |entry: &Found| entry.batch.map(|tag| (entry.version.wrapping_sub(u64::from(tag.index)), tag.size));
    let mut members: BTreeMap<(u64, u32), u32> = BTreeMap::new();
    for identity in found.iter().filter_map(id) {
        *members.entry(identity).or_default() += 1;
    }
    let whole = |entry: &Found| id(entry).is_none_or(|identity| identity.0 <= settled || members[&identity] == identity.1);
    found.retain(|entry| mistake == Mistake::BatchNotCounted || whole(entry));
    found.retain(|entry| mistake == Mistake::DeadIgnored || !entry.dead);
}

fn winners(keyspaces: &BTreeMap<u32, (String, Kind)>, mut found: Vec<Found>, mistake: Mistake) -> Dump {
    found.sort_by_key(|entry| entry.version);
    if mistake == Mistake::OldestWins {
        found.reverse();
    }
    let mut newest: BTreeMap<(u32, Vec<u8>), Found> = BTreeMap::new();
    for entry in found {
        newest.insert((entry.keyspace, entry.key.clone()), entry);
    }
    let empty = |(name, kind): &(String, Kind)| (name.clone(), Contents { kind: *kind, pairs: BTreeMap::new(), len: 0 });
    let mut dump = Dump { keyspaces: keyspaces.values().map(empty).collect() };
    for ((keyspace, key), entry) in newest {
        let (Some((name, _)), Some(value)) = (keyspaces.get(&keyspace), entry.value) else { continue };
        let Some(contents) = dump.keyspaces.get_mut(name) else { continue };
        contents.len += 1;
        if !entry.expired {
            contents.pairs.insert(key, value);
        }
    }
    dump
}
