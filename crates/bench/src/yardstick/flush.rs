//! Flushes one cache line with the best instruction of the processor; and the fence that orders the flush.
//!
//! Thread safety: no state. Only x86-64 has a flush here. Elsewhere the append limit is a store and a full fence, and
//! the figure's flush is `none`.

/// The instruction that writes a line back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// `clwb`: writes back, may keep the line.
    Clwb,
    /// `clflushopt`: writes back and drops the line.
    ClflushOpt,
    /// `clflush`: as `clflushopt`, but serialised; every x86-64 has it.
    Clflush,
    /// No flush instruction is known for this processor family.
    #[cfg(not(target_arch = "x86_64"))]
    None,
}

impl Flush {
    /// The best instruction of this processor.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let leaf = std::arch::x86_64::__cpuid_count(7, 0);
            match (leaf.ebx >> 24 & 1, leaf.ebx >> 23 & 1) {
                (1, _) => Flush::Clwb,
                (_, 1) => Flush::ClflushOpt,
                _ => Flush::Clflush,
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Flush::None
    }

    /// The instruction's name.
    pub fn name(self) -> &'static str {
        match self {
            Flush::Clwb => "clwb",
            Flush::ClflushOpt => "clflushopt",
            Flush::Clflush => "clflush",
            #[cfg(not(target_arch = "x86_64"))]
            Flush::None => "none",
        }
    }

    /// Starts the write-back of the line that holds `at`.
    ///
    /// # Safety
    /// `at` lies in memory that is mapped for reading, and `self` came from [`Flush::detect`].
    #[inline(always)]
    pub unsafe fn line(self, at: *const u8) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the instructions read the line of a mapped address and change no register. The caller guarantees the
        // mapping, and `detect` the instruction.
        unsafe {
            match self {
                Flush::Clwb => std::arch::asm!("clwb [{}]", in(reg) at, options(nostack, preserves_flags)),
                Flush::ClflushOpt => std::arch::asm!("clflushopt [{}]", in(reg) at, options(nostack, preserves_flags)),
                Flush::Clflush => std::arch::asm!("clflush [{}]", in(reg) at, options(nostack, preserves_flags)),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }
}

/// Waits until the flushes before it are accepted.
#[inline(always)]
pub fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction; it touches no memory operand.
    unsafe {
        std::arch::asm!("sfence", options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}
