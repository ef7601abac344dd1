//! Visiting all keys of an ordered index, run by run.

use super::version::Restart;
use crate::{Ref, Resolver, Start};

/// Number of slots that are copied out at a time before the caller sees them.
pub(crate) const CHUNK: usize = 512;

/// Returns the key after which a scan continues that has to look for its place again: the last sound key among the
/// references that the scan appended to `out` from `from` on. References after it are dropped, to be read again.
#[cold]
pub(crate) fn go_on_behind<'r, R: Resolver>(out: &mut Vec<Ref>, from: usize, resolver: &'r R) -> Option<&'r [u8]> {
    while let Some(last) = out[from..].last() {
        if let Some(key) = resolver.sound_key(*last) {
            return Some(key);
        }
        out.pop();
    }
    None
}

/// Calls `visit` for every reference in order until it returns false. `seek` places a cursor. `run` moves it on by up
/// to [`CHUNK`] slots and appends them; fewer mean the end. If either fails, the visit goes on after the last sound key
/// that it has seen.
pub(crate) fn visit_runs<C, R: Resolver>(
    resolver: &R,
    visit: &mut dyn FnMut(Ref) -> bool,
    mut seek: impl FnMut(Start<'_>) -> Result<C, Restart>,
    mut run: impl FnMut(&mut C, &mut Vec<Ref>) -> Result<(), Restart>,
) {
    let (mut place, mut spins) = (Start::Edge, 0);
    let mut chunk = Vec::with_capacity(CHUNK);
    loop {
        let Ok(mut cursor) = seek(place) else {
            hither_sync::pause(&mut spins);
            continue;
        };
        loop {
            chunk.clear();
            let done = run(&mut cursor, &mut chunk);
            if !chunk.iter().all(|reference| visit(*reference)) || (done.is_ok() && chunk.len() < CHUNK) {
                return;
            }
            if let Some(key) = chunk.iter().rev().find_map(|reference| resolver.sound_key(*reference)) {
                place = Start::After(key);
            }
            if done.is_err() {
                break;
            }
        }
    }
}
