//! The node of the calling thread, cached per thread and topology.
//!
//! A thread caches its node in the topology that it asked last, in one cell, so the common case is a comparison.
//! Programs with several topologies (tests) use a short list as well, so that a binding to one topology survives a
//! question to another.
//!
//! While the thread's thread-local values are destroyed, a store may still be used. The list may be gone by then; only
//! the cell remains.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Weak};

#[derive(Clone, Copy)]
pub(crate) struct Cached {
    /// Identity of the topology; 0 is none.
    pub(crate) topology: u64,
    pub(crate) node: u32,
    /// Calls until the processor is asked again; `u32::MAX` means bound: it is never asked.
    pub(crate) remaining: u32,
}

/// The assignment is fixed until the thread is bound again.
pub(crate) const BOUND: u32 = u32::MAX;

thread_local! {
    static LAST: Cell<Cached> = const { Cell::new(Cached { topology: 0, node: 0, remaining: 0 }) };
    static BINDINGS: RefCell<Vec<Binding>> = const { RefCell::new(Vec::new()) };
}

/// The node to which this thread is bound in a topology.
struct Binding {
    topology: u64,
    node: u32,
    /// Dead once the topology is gone.
    alive: Weak<()>,
}

#[inline(always)]
pub(crate) fn cached() -> Cached {
    LAST.with(Cell::get)
}

#[inline(always)]
pub(crate) fn cache(entry: Cached) {
    LAST.with(|last| last.set(entry));
}

/// Returns the node to which this thread is bound in `topology`, if any.
pub(crate) fn binding(topology: u64) -> Option<u32> {
    BINDINGS.try_with(|all| all.borrow().iter().rev().find(|b| b.topology == topology).map(|b| b.node)).ok().flatten()
}

/// Binds this thread to `node` of `topology`, which exists as long as `alive`.
pub(crate) fn bind(topology: u64, alive: &Arc<()>, node: u32) {
    let _ = BINDINGS.try_with(|all| {
        let mut all = all.borrow_mut();
        all.retain(|b| b.topology != topology && b.alive.strong_count() > 0);
        all.push(Binding { topology, node, alive: Arc::downgrade(alive) });
    });
    cache(Cached { topology, node, remaining: BOUND });
}

/// Forgets the binding of this thread in `topology`.
pub(crate) fn unbind(topology: u64) {
    let _ = BINDINGS.try_with(|all| all.borrow_mut().retain(|b| b.topology != topology));
    cache(Cached { topology: 0, node: 0, remaining: 0 });
}

#[cfg(test)]
pub(crate) fn remembered() -> usize {
    BINDINGS.with_borrow(Vec::len)
}
