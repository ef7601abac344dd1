//! Memory of the segments: large chunks from the operating system, cut into blocks that are recycled by size.
//!
//! * **Thread safety.** A short lock around allocation and release; neither happens on the path of a lookup, and a
//!   writer meets it only when a segment is replaced.
//! * **Type-stable.** Chunks go back to the operating system only when the arena is dropped, so a stale address inside
//!   a block always leads to bucket lines.
//! * **Footprint.** The first chunk is 64 KiB of small pages. From 2 MiB on, chunks are aligned to 2 MiB and ask for
//!   huge pages; they grow to 1/32 of the whole, so that spare space stays below about 3 %.

use parking_lot::Mutex;
use std::ptr::NonNull;

/// The size of the smallest block and the alignment of all.
pub(super) const BLOCK: usize = 4096;
const HUGE: usize = 2 << 20;
const FIRST_CHUNK: usize = 64 << 10;
/// Block sizes are `BLOCK << class`.
const CLASSES: usize = 32;

/// Zeroed anonymous memory, unmapped when dropped. Holds an exposed address, since words elsewhere pack it with flags.
#[derive(Debug)]
pub(super) struct Mapping {
    address: usize,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes, rounded up to whole pages. From 2 MiB on, the mapping is aligned to 2 MiB and asks for huge
    /// pages.
    pub(super) fn new(len: usize) -> Self {
        let huge = len >= HUGE;
        let len = len.next_multiple_of(if huge { HUGE } else { BLOCK });
        let spare = if huge { HUGE } else { 0 };
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh anonymous private mapping at an address of the system's choice aliases nothing.
        let raw = unsafe { libc::mmap(std::ptr::null_mut(), len + spare, protection, flags, -1, 0) };
        if raw == libc::MAP_FAILED {
            let layout = std::alloc::Layout::from_size_align(len, BLOCK).expect("a mapping is smaller than the address space");
            std::alloc::handle_alloc_error(layout);
        }
        let start = raw.expose_provenance();
        let address = start.next_multiple_of(if huge { HUGE } else { BLOCK });
        if huge {
            Self::trim(start, address);
            Self::trim(address + len, start + len + spare);
            // SAFETY: advice on our own mapping; a refusal only costs speed.
            let _ = unsafe { libc::madvise(std::ptr::with_exposed_provenance_mut(address), len, libc::MADV_HUGEPAGE) };
        }
        Mapping { address, len }
    }

    /// Unmaps the pages from `from` to `to`.
    fn trim(from: usize, to: usize) {
        if from < to {
            // SAFETY: the range is the unused end of a mapping made by the caller.
            let done = unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(from), to - from) };
            debug_assert_eq!(done, 0);
        }
    }

    pub(super) fn address(&self) -> usize {
        self.address
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The mapping as a pointer.
    pub(super) fn start<T>(&self) -> NonNull<T> {
        NonNull::new(std::ptr::with_exposed_provenance_mut(self.address)).expect("a mapping is never at address 0")
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        Self::trim(self.address, self.address + self.len);
    }
}

struct State {
    chunks: Vec<Mapping>,
    /// Bytes in all chunks.
    total: usize,
    /// The unused rest of the newest chunk.
    bump: usize,
    end: usize,
    free: [Vec<usize>; CLASSES],
}

/// The blocks of one index.
pub(super) struct Arena {
    state: Mutex<State>,
}

impl Arena {
    pub(super) fn new() -> Self {
        Arena { state: Mutex::new(State { chunks: Vec::new(), total: 0, bump: 0, end: 0, free: [const { Vec::new() }; CLASSES] }) }
    }

    /// Returns the address of a block of `BLOCK << class` bytes with arbitrary content. O(1) except for new chunks.
    pub(super) fn allocate(&self, class: usize) -> usize {
        let mut state = self.state.lock();
        if let Some(block) = state.free[class].pop() {
            return block;
        }
        let size = BLOCK << class;
        if state.end - state.bump < size {
            state.refill(size);
        }
        let block = state.bump;
        state.bump += size;
        block
    }

    /// Takes a block back. The caller guarantees that nobody uses it any more.
    pub(super) fn release(&self, block: usize, class: usize) {
        self.state.lock().free[class].push(block);
    }

    /// Bytes that the arena may hold in memory: chunks up to the last block handed out, in whole pages of their kind.
    pub(super) fn memory_bytes(&self) -> usize {
        let state = self.state.lock();
        let last = state.chunks.last().map_or(0, Mapping::len);
        let page = if last >= HUGE { HUGE } else { BLOCK };
        let unused = (state.end - state.bump) / page * page;
        let lists: usize = state.free.iter().map(|list| list.capacity() * size_of::<usize>()).sum();
        state.total - unused + lists + state.chunks.capacity() * size_of::<Mapping>() + size_of::<Self>()
    }
}

impl State {
    /// Starts a new chunk for a block of `size`; the rest of the old one goes to the free lists.
    fn refill(&mut self, size: usize) {
        while self.bump < self.end {
            let class = ((self.end - self.bump) / BLOCK).ilog2() as usize;
            self.free[class].push(self.bump);
            self.bump += BLOCK << class;
        }
        let wanted = if self.total < HUGE { self.total.max(FIRST_CHUNK) } else { (self.total / 32).next_multiple_of(HUGE) };
        let chunk = Mapping::new(wanted.max(size));
        self.total += chunk.len();
        self.bump = chunk.address();
        self.end = chunk.address() + chunk.len();
        self.chunks.push(chunk);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_disjoint_and_recycled() {
        let arena = Arena::new();
        let mut blocks: Vec<_> = (0..3000).map(|i| (arena.allocate(i % 3), BLOCK << (i % 3))).collect();
        blocks.sort_unstable();
        assert!(blocks.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0));
        assert!(blocks.iter().all(|(block, _)| block % BLOCK == 0));
        let bytes = arena.memory_bytes();
        for (block, size) in &blocks {
            arena.release(*block, (size / BLOCK).ilog2() as usize);
        }
        for i in 0..3000 {
            arena.allocate(i % 3);
        }
        assert!(arena.memory_bytes() < bytes + (64 << 10), "recycled blocks need no new chunk");
    }

    #[test]
    fn small_arenas_stay_small_and_spare_space_is_bounded() {
        let arena = Arena::new();
        arena.allocate(0);
        assert!(arena.memory_bytes() < 8 << 10);
        let blocks = 20_000;
        for _ in 1..blocks {
            arena.allocate(0);
        }
        let used = blocks * BLOCK;
        assert!(arena.memory_bytes() < used + used / 20);
    }
}
