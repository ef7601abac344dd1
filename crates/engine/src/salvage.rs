//! What an opening with `salvage` does differently, apart from passing over damage where it meets it.
//!
//! Page 0 and the segment tables are the pools' and the log's to save. Here is what takes knowledge of their content: the catalogue, for which an earlier one counts if
//! it can be read, and numbers in place of the names that are lost with it.
//!
//! Only pools of which nothing reaches the medium are saved that way ([`Pool::salvages`]).

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

/// Reads the catalogue. Where it is damaged, or seems never to have been written, an earlier one does, or none: if the pool is salvaged.
pub(crate) fn names(pool: &Pool, notes: &mut Vec<String>) -> Result<Names> {
    let read = pool.catalogue();
    let blank = read.as_ref().is_ok_and(Vec::is_empty);
    if !pool.salvages() || (read.is_ok() && !blank) {
        return Ok(Names { catalogue: Catalogue::decode(&read?)?, incomplete: false });
    }
    let decode = |found: hither_pmem::Salvaged<Vec<u8>>| Some((Catalogue::decode(&found.value).ok()?, found.is_current, found.how));
    // Of several that are doubtful the one that has given out most numbers is the latest.
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

/// Gives names to the keyspaces of entries that an incomplete catalogue does not know: their numbers.
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

/// Whether batches are to count that are not whole: some of their members may be what could not be read. Those that a crash cut short show only in a store that was
/// not closed in order, by the settled version. One pool's is enough: nothing rests on a version that is settled before that is noted in all.
pub(crate) fn keeps_parts_of_batches(log: &Log) -> bool {
    let pools = || (0..log.nodes()).map(|node| log.pool(node));
    pools().all(Pool::was_clean) || pools().all(Pool::has_lost_settled)
}
