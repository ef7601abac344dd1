//! What an opening with `salvage` does differently, apart from passing over damage where it meets it.
//!
//! The pools salvage page 0, and the log salvages the segment tables. This module does what takes knowledge of their
//! content: it replaces a damaged catalogue by an earlier one that can be read, and names that are lost with it by
//! numbers.
//!
//! Only pools whose changes do not reach the medium are salvaged like that ([`Pool::salvages`]).
//!
//! Thread safety: runs while a store is opened, before any other thread has it. Crash: nothing here changes the media.

use crate::catalogue::Catalogue;
use crate::error::Result;
use hither_log::Log;
use hither_log::replay::SegmentToScan;
use hither_pmem::Pool;

/// The catalogue, and what is left of it if it is damaged.
pub(crate) struct Names {
    pub catalogue: Catalogue,
    /// Keyspaces may be missing from it.
    pub incomplete: bool,
}

/// Reads the catalogue. If that is damaged, or seems never to have been written, takes an earlier one, or an empty one:
/// only if the pool is salvaged.
pub(crate) fn names(pool: &Pool, notes: &mut Vec<String>) -> Result<Names> {
    let read = pool.catalogue();
    let blank = read.as_ref().is_ok_and(Vec::is_empty);
    if !pool.salvages() || (read.is_ok() && !blank) {
        return Ok(Names { catalogue: Catalogue::decode(&read?)?, incomplete: false });
    }
    let decode = |found: hither_pmem::Salvaged<Vec<u8>>| Some((Catalogue::decode(&found.value).ok()?, found.is_current, found.how));
    // Of several catalogues that are doubtful, the one that has given out the most ids is the latest.
    let found =
        pool.salvaged_catalogues().into_iter().filter_map(decode).max_by_key(|(catalogue, current, _)| (*current, catalogue.next_id));
    if blank && found.is_none() {
        return Ok(Names { catalogue: Catalogue::empty(), incomplete: false });
    }
    let (catalogue, is_current, how) = found.unwrap_or((Catalogue::empty(), false, "it is passed over"));
    let what = read.map_or_else(|damage| damage.finding(), |_| "the commit word of the catalogue of keyspaces is blank".to_owned());
    notes.push(format!("{what}; {how}"));
    Ok(Names { catalogue, incomplete: !is_current })
}

/// Gives names to keyspaces that have entries but are missing from an incomplete catalogue: their numbers.
pub(crate) fn name_lost(names: &mut Names, log: &Log, in_use: &[SegmentToScan], notes: &mut Vec<String>) {
    if !names.incomplete {
        return;
    }
    let next_id = names.catalogue.next_id;
    for id in log.keyspaces_in(in_use).into_iter().filter(|id| *id >= next_id) {
        let name = names.catalogue.add_numbered(id);
        notes.push(format!("the name of keyspace number {id} is lost: it is \"{name}\" now, and ordered"));
    }
}

/// Whether incomplete batches count: some of their members may be among what could not be read. Batches that a crash
/// cut short can be told apart only in a store that was not closed in order, by the settled version.
///
/// The settled version of one pool is enough: nothing rests on a settled version before all pools have noted it.
pub(crate) fn keeps_parts_of_batches(log: &Log) -> bool {
    let pools = || (0..log.nodes()).map(|node| log.pool(node));
    pools().all(Pool::was_clean) || pools().all(Pool::has_lost_settled)
}
