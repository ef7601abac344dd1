//! The restart: from pools to the indexes, by way of a checkpoint if one can be used.
//!
//! If a checkpoint cannot be used, the report says why, and the whole log is scanned. The checkpoint is removed before
//! the pools change in a way that might make it seem usable. A checkpoint that shows that the log is not whole makes
//! the opening fail.
//!
//! Thread safety: runs while a store is opened, before any other thread has it. Crash: a restart may be repeated at any
//! point (see `recovery`).

use crate::catalogue::Catalogue;
use crate::checkpoint::load::{self, Loaded, Saved};
use crate::checkpoint::{self, Checkpoints};
use crate::error::{Error, Result};
use crate::keyspace::{Keyspace, OrderedKind};
use crate::options::{CheckpointMode, Options};
use crate::recovery::{self, Basis, RecoveryReport};
use crate::salvage::{self, Names};
use hither_index::Hasher;
use hither_log::Log;
use std::sync::Arc;

/// Why a checkpoint is not used.
enum Refusal {
    /// It is of no use; the log is scanned.
    Ignore(String),
    /// It shows that the log is not whole.
    Damage(String),
}

impl From<String> for Refusal {
    fn from(what: String) -> Refusal {
        Refusal::Ignore(what)
    }
}

/// The indexes after a restart, and how they came about.
pub(crate) struct Restart {
    pub hasher: Hasher,
    pub keyspaces: Vec<Arc<Keyspace>>,
    pub recovery: RecoveryReport,
    pub checkpoints: Checkpoints,
}

impl Restart {
    /// Loads the checkpoint, if there is a usable one, and scans the rest. `salvaged` is the damage that was passed over
    /// so far; it is in the report, too.
    pub fn run(log: &Log, names: &mut Names, options: &Options, mut salvaged: Vec<String>) -> Result<Restart> {
        let started = std::time::Instant::now();
        let in_use = log.load_tables(options.salvage.then_some(&mut salvaged))?;
        salvage::name_lost(names, log, &in_use, &mut salvaged);
        let catalogue = &names.catalogue;
        let _looking = log.begin_looking();
        let (mut refused, mut found) = (String::new(), None);
        let place = checkpoint::store_of(options);
        if options.salvage {
            // The checkpoint is not trusted, but a segment that it shows to be lost is worth reporting.
            let saved = place.as_deref().and_then(|place| place.open().ok().flatten()).and_then(|image| Saved::read(image).ok());
            salvaged.extend(saved.and_then(|saved| load::lost_segment(&saved, log)));
        }
        if options.checkpoints != CheckpointMode::Off && !options.salvage {
            match Self::load(log, catalogue, options, &in_use, place.as_deref()) {
                Ok(loaded) => found = loaded,
                Err(Refusal::Ignore(what)) => refused = what,
                Err(Refusal::Damage(what)) => return Err(Error::Damaged(what)),
            }
        }
        let checkpoint_ms = if found.is_some() { started.elapsed().as_millis() as u64 } else { 0 };
        let loaded = found.as_ref().map(|(_, loaded, _)| loaded);
        let (hasher, keyspaces) = match &found {
            Some((saved, _, keyspaces)) => (Hasher::new(saved.header.hash_seed), keyspaces.clone()),
            None => {
                let hasher =
                    Hasher::new(options.random.next_u64().map_err(|error| Error::Io(format!("no random seed for hashing: {error}")))?);
                (hasher, Self::keyspaces(catalogue, hasher, options.ordered_index))
            }
        };
        let to_remove = place.filter(|_| loaded.is_none() && !checkpoint::is_copy(options));
        let drop_unusable = || match &to_remove {
            Some(place) => {
                place.remove().map_err(|error| Error::Io(format!("cannot remove a checkpoint of the indexes that does not hold: {error}")))
            }
            None => Ok(()),
        };
        let basis = Basis { in_use: &in_use, loaded, passed_over: !salvaged.is_empty(), drop_unusable: &drop_unusable };
        let mut recovery = recovery::run(log, hasher, &keyspaces, catalogue.next_id, options, &basis)?;
        recovery.elapsed_ms = started.elapsed().as_millis() as u64;
        (recovery.checkpoint_ms, recovery.checkpoint_refused) = (checkpoint_ms, refused);
        recovery.salvaged.splice(0..0, salvaged);
        let kept = found.as_ref().map(|(saved, loaded, _)| (saved, loaded));
        let checkpoints = Checkpoints::new(options, kept, &recovery);
        if let Some((_, loaded)) = kept {
            log.keep_tombstones_after(loaded.version);
            // The noted version may be behind: a crash may have left it so, or a program that does not know it.
            // Tombstones may go now that older checkpoints need.
            log.pool(0).set_oldest_checkpoint(loaded.version)?;
        } else if to_remove.is_some() && recovery.last_version > 0 {
            // The checkpoint is gone. Tombstones may go now that earlier checkpoints need.
            log.pool(0).set_oldest_checkpoint(recovery.last_version + 1)?;
        }
        Ok(Restart { hasher, keyspaces, recovery, checkpoints })
    }

    fn keyspaces(catalogue: &Catalogue, hasher: Hasher, ordered: OrderedKind) -> Vec<Arc<Keyspace>> {
        catalogue.keyspaces.iter().map(|info| Arc::new(Keyspace::new(info.clone(), hasher, ordered))).collect()
    }

    /// Returns the checkpoint and the keyspaces that hold it; `Ok(None)` if there is none.
    #[allow(clippy::type_complexity)]
    fn load(
        log: &Log,
        catalogue: &Catalogue,
        options: &Options,
        in_use: &[hither_log::replay::SegmentToScan],
        place: Option<&dyn checkpoint::store::CheckpointStore>,
    ) -> std::result::Result<Option<(Saved, Loaded, Vec<Arc<Keyspace>>)>, Refusal> {
        let Some(place) = place else { return Ok(None) };
        let Some(image) = place.open().map_err(|error| error.to_string())? else { return Ok(None) };
        let saved = Saved::read(image)?;
        if saved.header.store_uuid != log.pool(0).superblock().store_uuid {
            return Err(String::from("it belongs to another store").into());
        }
        if let Some(what) = load::lost_segment(&saved, log) {
            return Err(Refusal::Damage(what));
        }
        let keyspaces = Self::keyspaces(catalogue, Hasher::new(saved.header.hash_seed), options.ordered_index);
        let clean = (0..log.nodes()).all(|node| log.pool(node).was_clean());
        let threads = recovery::thread_count(options, usize::MAX);
        let loaded = load::load(&saved, log, &keyspaces, in_use, threads, clean)?;
        Ok(Some((saved, loaded, keyspaces)))
    }
}
