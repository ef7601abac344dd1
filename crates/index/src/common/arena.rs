//! Node memory: chunks from the operating system, one size class each, recycled after a grace period.
//!
//! * **Thread safety.** A short lock around allocation and retirement (a structure change, one in some thirty inserts).
//!   Finding a leaf's memory by its number is lock-free.
//! * **Type-stable.** A chunk serves one class for ever and goes back to the operating system only with the arena. So a
//!   number that was once a node's always leads to a node's header, whose version word tells whether the node lives.
//! * **Recycling.** Retired nodes pass through `hither_sync::epoch` in batches, since each deferral costs a barrier.
//! * **Footprint.** The first chunk of a class has 64 KiB of small pages. Later ones grow fourfold, the last step
//!   twofold, up to chunks of one 2 MiB huge page. Untouched memory costs nothing, so an empty index touches one page.
//!
//! # Numbers
//!
//! A node's number is its chunk's position in the table times 2^14 plus its offset in units of 128 bytes: 32 bits reach
//! 512 GiB.

use super::node::{self, CLASSES, Node, node_bytes};
use super::version::held;
use hither_sync::epoch;
use parking_lot::Mutex;
use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Weak};

/// The unit of numbers: the size of the smallest node.
const UNIT: usize = 128;
const UNITS_PER_CHUNK: usize = CHUNK_BYTES[3] / UNIT;
/// The sizes of a class's first chunks; all later ones have the last size.
const CHUNK_BYTES: [usize; 4] = [64 << 10, 256 << 10, 1 << 20, 2 << 20];
const HUGE: usize = 2 << 20;
const PAGE: usize = 4096;
const FANOUT: usize = 512;
/// Retired nodes per deferral.
const BATCH: usize = 32;

/// A second-level table of chunk words. A word holds the chunk's page-aligned address, the class in bits 0..3 and the
/// position in [`CHUNK_BYTES`] in bits 4..7.
type Table = [AtomicU64; FANOUT];

/// The nodes of one index.
pub(crate) struct Arena {
    state: Mutex<State>,
    tables: [AtomicPtr<Table>; FANOUT],
    mapped: AtomicUsize,
}

#[derive(Default)]
struct State {
    chunks: usize,
    per_class: [ClassState; CLASSES],
    /// Unlinked nodes (address, class) that wait until their batch is full.
    retired: Vec<(usize, u8)>,
}

#[derive(Default)]
struct ClassState {
    free: Vec<usize>,
    /// The unused rest of the newest chunk, and the number of its first unit.
    bump: usize,
    end: usize,
    next_id: u32,
    chunks: usize,
}

impl ClassState {
    /// The size of the pages in which the system provides the newest chunk.
    fn page(&self) -> usize {
        if self.chunks >= CHUNK_BYTES.len() { HUGE } else { PAGE }
    }
}

impl Arena {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Arena {
            state: Mutex::new(State::default()),
            tables: [const { AtomicPtr::new(null_mut()) }; FANOUT],
            mapped: AtomicUsize::new(0),
        })
    }

    /// Returns a node of this class with empty slots, not yet alive. O(1) except for new chunks.
    pub(crate) fn allocate(&self, class: usize) -> Fresh<'_> {
        debug_assert_ne!(class, node::PAGE);
        let (address, first_life) = self.take(class);
        // SAFETY: the address lies in a chunk of this class, node-aligned, and nobody else was given it.
        let node = unsafe { Node::from_address(address as u64) };
        if let Some(id) = first_life {
            node.version().begin_life();
            node.first_life(class, id);
        } else {
            node.reset();
        }
        Fresh { arena: self, node }
    }

    /// Returns the address of a page with arbitrary content.
    pub(crate) fn allocate_page(&self) -> u64 {
        let page = self.take(node::PAGE).0 as u64;
        // Stores into the page from now on become visible only after the lock under which it was freed (see
        // `free_page`).
        fence(Ordering::Release);
        page
    }

    /// Takes a page back at once. The version of its node must have changed or be locked, so that a reader of the page
    /// notices. Nothing that was read from a page may be followed before the version has confirmed it.
    pub(crate) fn free_page(&self, address: u64) {
        self.state.lock().per_class[node::PAGE].free.push(address as usize);
    }

    /// Memory of this class, and its number if it was never used before.
    fn take(&self, class: usize) -> (usize, Option<u32>) {
        let mut state = self.state.lock();
        if let Some(address) = state.per_class[class].free.pop() {
            return (address, None);
        }
        if state.per_class[class].bump == state.per_class[class].end {
            self.refill(&mut state, class);
        }
        let pool = &mut state.per_class[class];
        let (address, id) = (pool.bump, pool.next_id);
        pool.bump += node_bytes(class);
        pool.next_id += (node_bytes(class) / UNIT) as u32;
        (address, Some(id))
    }

    /// Maps the next chunk of a class and enters it into the table.
    #[cold]
    fn refill(&self, state: &mut State, class: usize) {
        let step = state.per_class[class].chunks.min(CHUNK_BYTES.len() - 1);
        let bytes = CHUNK_BYTES[step];
        let address = map_chunk(bytes);
        let index = state.chunks;
        assert!(index < FANOUT * FANOUT, "an index holds at most 512 GiB of nodes");
        state.chunks += 1;
        let table = &self.tables[index / FANOUT];
        if table.load(Ordering::Relaxed).is_null() {
            let fresh: Box<Table> = Box::new([const { AtomicU64::new(0) }; FANOUT]);
            table.store(Box::into_raw(fresh), Ordering::Release);
            self.mapped.fetch_add(size_of::<Table>(), Ordering::Relaxed);
        }
        // SAFETY: tables are freed only when the arena is dropped.
        let table = unsafe { &*table.load(Ordering::Relaxed) };
        table[index % FANOUT].store(address as u64 | (step as u64) << 4 | class as u64, Ordering::Release);
        self.mapped.fetch_add(bytes, Ordering::Relaxed);
        let pool = &mut state.per_class[class];
        pool.chunks += 1;
        pool.bump = address;
        pool.end = address + bytes;
        pool.next_id = (index * UNITS_PER_CHUNK) as u32;
    }

    /// The node with this number, in whatever state; `None` if no node can have this number. Lock-free.
    #[inline]
    pub(crate) fn node(&self, id: u32) -> Option<Node<'_>> {
        let (index, unit) = (id as usize / UNITS_PER_CHUNK, id as usize % UNITS_PER_CHUNK);
        let table = self.tables.get(index / FANOUT)?.load(Ordering::Acquire);
        // SAFETY: a table is entered complete and lives as long as the arena.
        let word = unsafe { table.as_ref() }?[index % FANOUT].load(Ordering::Acquire);
        let (class, step) = (word as usize & 15, word as usize >> 4 & 15);
        let address = word & !(PAGE as u64 - 1);
        let units = node_bytes(class.min(CLASSES - 1)) / UNIT;
        if address == 0 || class == node::PAGE || unit & (units - 1) != 0 || unit * UNIT >= CHUNK_BYTES[step] {
            return None;
        }
        // SAFETY: the offset is a multiple of the chunk's node size and lies inside the chunk, which stays mapped.
        Some(unsafe { Node::from_address(address + (unit * UNIT) as u64) })
    }

    /// Takes over a node that was unlinked and unlocked as obsolete. Must be called without holding locks: it may run
    /// deferred work.
    pub(crate) fn retire(self: &Arc<Self>, node: Node<'_>) {
        self.retire_all(&[(node.address(), node.meta().class())]);
    }

    /// Takes over unlinked memory by address and class. As [`Arena::retire`], it must be called without holding locks.
    pub(crate) fn retire_all(self: &Arc<Self>, unlinked: &[(u64, usize)]) {
        debug_assert!(held::none(), "others would wait for what this may run");
        let batch = {
            let mut state = self.state.lock();
            state.retired.extend(unlinked.iter().map(|(address, class)| (*address as usize, *class as u8)));
            if state.retired.len() < BATCH {
                return;
            }
            std::mem::take(&mut state.retired)
        };
        let arena = Arc::downgrade(self);
        epoch::defer(move || Self::recycle(&arena, batch));
        epoch::collect();
    }

    fn recycle(arena: &Weak<Self>, batch: Vec<(usize, u8)>) {
        if let Some(arena) = arena.upgrade() {
            let mut state = arena.state.lock();
            for (address, class) in batch {
                state.per_class[class as usize].free.push(address);
            }
        }
    }

    /// Bytes of DRAM held: chunks up to the last page that was handed out (huge ones whole), tables and lists.
    pub(crate) fn memory_bytes(&self) -> usize {
        let state = self.state.lock();
        let lists: usize = state.per_class.iter().map(|pool| pool.free.capacity() * size_of::<usize>()).sum();
        let untouched: usize = state.per_class.iter().map(|pool| (pool.end - pool.bump) / pool.page() * pool.page()).sum();
        self.mapped.load(Ordering::Relaxed) - untouched + lists + state.retired.capacity() * size_of::<(usize, u8)>() + size_of::<Self>()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for table in &mut self.tables {
            let table = *table.get_mut();
            if table.is_null() {
                continue;
            }
            // SAFETY: made by Box::into_raw in `refill`; nobody else has the arena any more.
            let table = unsafe { Box::from_raw(table) };
            for word in table.iter().map(|word| word.load(Ordering::Relaxed)).filter(|word| *word != 0) {
                let address = with_exposed_provenance_mut(word as usize & !(PAGE - 1));
                // SAFETY: the chunk was mapped by `map_chunk` with this size, and no node in it is reachable without
                // the arena.
                unsafe { libc::munmap(address, CHUNK_BYTES[word as usize >> 4 & 15]) };
            }
        }
    }
}

/// A node that nobody can find yet. Dropping it returns its memory to the arena.
pub(crate) struct Fresh<'a> {
    arena: &'a Arena,
    node: Node<'a>,
}

impl<'a> Fresh<'a> {
    /// The node, to be filled.
    pub(crate) fn node(&self) -> Node<'a> {
        self.node
    }

    /// Brings the filled node to life; the caller links it.
    pub(crate) fn publish(self) -> Node<'a> {
        let node = self.node;
        node.version().come_alive();
        std::mem::forget(self);
        node
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        // Nobody has seen it: no grace period is needed.
        let class = self.node.meta().class();
        self.arena.state.lock().per_class[class].free.push(self.node.address() as usize);
    }
}

/// Maps zeroed memory, aligned to the page size of its chunk size. The address is exposed, because node words hold
/// addresses.
fn map_chunk(bytes: usize) -> usize {
    let spare = if bytes >= HUGE { HUGE } else { 0 };
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh anonymous private mapping at an address of the system's choice aliases nothing.
    let raw = unsafe { libc::mmap(null_mut(), bytes + spare, protection, flags, -1, 0) };
    let Some(raw) = NonNull::new(raw).filter(|_| raw != libc::MAP_FAILED) else {
        let layout = std::alloc::Layout::from_size_align(bytes, PAGE).expect("a chunk is smaller than the address space");
        std::alloc::handle_alloc_error(layout);
    };
    let start = raw.as_ptr().expose_provenance();
    // The bits above distinguish an address from a reference (`Ref::has_size`).
    assert!((start + bytes + spare) as u64 >> 48 == 0, "memory is mapped below 2^48 unless one asks for more");
    if spare == 0 {
        return start;
    }
    let aligned = start.next_multiple_of(HUGE);
    unmap(start, aligned - start);
    unmap(aligned + bytes, start + spare - aligned);
    // SAFETY: advice on our own mapping; a refusal only costs speed.
    unsafe { libc::madvise(with_exposed_provenance_mut(aligned), bytes, libc::MADV_HUGEPAGE) };
    aligned
}

fn unmap(address: usize, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the caller passes an unused end of a mapping of its own.
        unsafe { libc::munmap(with_exposed_provenance_mut(address), bytes) };
    }
}

/// Marks nodes as borrowing from an arena.
pub(crate) type Borrowed<'a> = PhantomData<&'a Arena>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_to_nodes() {
        let arena = Arena::new();
        let mut seen = std::collections::HashSet::new();
        for i in 0..20_000 {
            let class = i % node::PAGE;
            let node = arena.allocate(class).publish();
            assert!(seen.insert(node.address()));
            assert_eq!(node.meta().class(), class);
            assert_eq!(arena.node(node.meta().id()).map(Node::address), Some(node.address()));
            assert_eq!(node.address() as usize % node_bytes(class), 0);
            assert_eq!(arena.allocate_page() % 4096, 0);
            if class == node::LARGE {
                assert!(arena.node(node.meta().id() + 1).is_none(), "a number inside a node is none");
            }
        }
        assert!(arena.node(u32::MAX).is_none());
    }

    #[test]
    fn retired_nodes_come_back() {
        let arena = Arena::new();
        for _ in 0..100_000 {
            let node = arena.allocate(3).publish();
            let version = node.version().read().expect("alive");
            node.version().lock(version).expect("free").obsolete();
            arena.retire(node);
            if epoch::pending() > 100 {
                epoch::collect();
            }
            // The epochs are the process's: another test's thread may sleep inside a pin.
            while epoch::pending() > 10_000 {
                std::thread::yield_now();
                epoch::collect();
            }
        }
        assert!(arena.memory_bytes() < 40 << 20, "{} bytes", arena.memory_bytes());
    }

    #[test]
    fn an_empty_arena_is_small() {
        let arena = Arena::new();
        assert!(arena.memory_bytes() < 8 << 10);
        drop(arena.allocate(0));
        assert!(arena.memory_bytes() < 20 << 10);
    }
}
