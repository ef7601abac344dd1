//! The node of the calling thread, cached per thread and topology.
//!
//! A thread keeps the node of the topology that it asked last in one cell: the common case is a comparison. Programs with
//! several topologies (tests) fall back to a short list, so that an assignment to one survives a question to another.
//!
//! While the thread's thread-local values are destroyed, in which a store may be used still, there is only the cell: the list may be gone.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Weak};

#[derive(Clone, Copy)]
pub(crate) struct Cached {
    /// Identity of the topology; 0 is none.
    pub(crate) topology: u64,
    pub(crate) node: u32,
    /// Calls until the processor is asked again; `u32::MAX` means bound: never.
    pub(crate) remaining: u32,
}

/// The assignment is fixed until the thread is bound anew.
pub(crate) const BOUND: u32 = u32::MAX;

thread_local! {
    static LAST: Cell<Cached> = const { Cell::new(Cached { topology: 0, node: 0, remaining: 0 }) };
    static BINDINGS: RefCell<Vec<Binding>> = const { RefCell::new(Vec::new()) };
}

/// The node that this thread has in a topology.
struct Binding {
    topology: u64,
    node: u32,
    /// Gone with the topology.
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

/// The node this thread is bound to in `topology`, if it is.
pub(crate) fn binding(topology: u64) -> Option<u32> {
    BINDINGS.try_with(|all| all.borrow().iter().rev().find(|b| b.topology == topology).map(|b| b.node)).ok().flatten()
}

/// Binds this thread to `node` of `topology`, which is there as long as `alive`.
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
