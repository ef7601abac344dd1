//! How the commands between MULTI and EXEC take back what they wrote before they failed.

use super::{Item, Place, Txn};

/// How to take back one step.
pub(super) enum Undo {
    /// Restores what was to be written before.
    Write(Place, Option<Option<Item>>),
    /// Removes an orphan.
    Added((u16, u64)),
    /// Puts back an orphan.
    Removed((u16, u64)),
}

impl Txn {
    /// Takes back everything written since [`Txn::begin_command`]. The command's reads still count: its error reports
    /// what they found.
    pub fn undo_command(&mut self) {
        while let Some(step) = self.undo.pop() {
            match step {
                Undo::Write(place, before) => self.undo_write(place, before),
                Undo::Added(orphan) => drop(self.orphans.remove(&orphan)),
                Undo::Removed(orphan) => drop(self.orphans.insert(orphan)),
            }
        }
        self.held.now = self.held.before.0;
        self.held.end_command(0, self.gone.bytes());
        if let Some(database) = self.began_in.take() {
            self.database = database;
        }
    }

    fn undo_write(&mut self, place: Place, before: Option<Option<Item>>) {
        if before != Some(None) {
            self.gone.forget(&place);
        }
        match before {
            Some(item) => drop(self.writes.insert(place, item)),
            None => drop(self.writes.remove(&place)),
        }
    }

    /// Notes how to take back a step, if there are other commands that stay.
    pub(super) fn remember(&mut self, step: impl FnOnce() -> Undo) {
        if self.isolated {
            self.undo.push(step());
        }
    }
}
