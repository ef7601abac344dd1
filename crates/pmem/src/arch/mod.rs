//! Instructions that move cache lines towards the medium, per architecture.
//!
//! One range loop ([`for_each_line`]) serves every back end, so only one place has to get line boundaries right; it is
//! tested with a recording back end. Only the back ends of the target architecture exist; opening with any other is
//! refused.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as native;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
use portable as native;
#[cfg(target_arch = "x86_64")]
use x86_64 as native;

pub(crate) use native::{STREAMS, fence, stream_copy, stream_zero};

use crate::LINE_BYTES;

/// How cache lines are written back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FlushKind {
    /// No flush: the medium needs none.
    None = 0,
    /// x86-64 `clwb`: writes back and keeps the line.
    Clwb = 1,
    /// x86-64 `clflushopt`: writes back and evicts.
    ClflushOpt = 2,
    /// x86-64 `clflush`: writes back and evicts, in order. Every processor has it, and valgrind supports it.
    Clflush = 3,
    /// aarch64 `dc cvap`: cleans to the point of persistence. Untested on hardware.
    DcCvap = 4,
    /// aarch64 `dc cvac`: cleans to the point of coherency. Untested on hardware.
    DcCvac = 5,
}

impl FlushKind {
    /// The best back end of this processor.
    pub fn detect() -> FlushKind {
        native::detect()
    }

    /// Whether this processor has the back end.
    pub fn is_supported(self) -> bool {
        self == FlushKind::None || native::supports(self)
    }

    /// The name of the instruction.
    pub fn name(self) -> &'static str {
        match self {
            FlushKind::None => "none",
            FlushKind::Clwb => "clwb",
            FlushKind::ClflushOpt => "clflushopt",
            FlushKind::Clflush => "clflush",
            FlushKind::DcCvap => "dc cvap",
            FlushKind::DcCvac => "dc cvac",
        }
    }
}

/// Calls `line` with the aligned start of every cache line that intersects `[start, start + len)`, ascending, each
/// once.
#[inline(always)]
pub(crate) fn for_each_line(start: usize, len: usize, mut line: impl FnMut(usize)) {
    if len == 0 {
        return;
    }
    let mut at = start & !(LINE_BYTES - 1);
    // The last line is compared by its start, so that a range that ends at the top of the address space does not wrap.
    let last = (start + (len - 1)) & !(LINE_BYTES - 1);
    loop {
        line(at);
        if at == last {
            return;
        }
        at += LINE_BYTES;
    }
}

/// Starts the write-back of all lines of the range.
///
/// # Safety
/// `kind` is supported by this processor, and the lines of the range are mapped.
#[inline(always)]
pub(crate) unsafe fn flush_range(kind: FlushKind, start: usize, len: usize) {
    // SAFETY: forwarded to the caller.
    unsafe { native::flush_range(kind, start, len) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn recorded(start: usize, len: usize) -> Vec<usize> {
        let mut lines = Vec::new();
        for_each_line(start, len, |line| lines.push(line));
        lines
    }

    proptest! {
        #[test]
        fn flushes_exactly_the_lines_that_intersect(start in 0usize..10_000, len in 0usize..5_000) {
            let expected: Vec<usize> = (0..16_000)
                .step_by(LINE_BYTES)
                .filter(|&line| len > 0 && line < start + len && line + LINE_BYTES > start)
                .collect();
            prop_assert_eq!(recorded(start, len), expected);
        }

        #[test]
        fn streaming_copies_and_zeroes_exactly_the_range(start in 0usize..130, len in 0usize..700) {
            let source: Vec<u8> = (0..len).map(|i| i as u8 | 1).collect();
            let mut memory = vec![0xEEu64; 128];
            let base = memory.as_mut_ptr().cast::<u8>();
            // SAFETY: start + len < 1024, the size of `memory`; nobody else uses it.
            unsafe { stream_copy(base.add(start), source.as_ptr(), len) };
            fence();
            // SAFETY: `memory` is 1024 bytes long and alive.
            let bytes = unsafe { std::slice::from_raw_parts(base, 1024) }.to_vec();
            let pattern: Vec<u8> = std::iter::repeat_n(0xEEu64.to_le_bytes(), 128).flatten().collect();
            prop_assert_eq!(&bytes[start..start + len], &source[..]);
            prop_assert_eq!(&bytes[..start], &pattern[..start]);
            prop_assert_eq!(&bytes[start + len..], &pattern[start + len..]);
            // SAFETY: as above.
            unsafe { stream_zero(base.add(start), len) };
            fence();
            // SAFETY: as above.
            let bytes = unsafe { std::slice::from_raw_parts(base, 1024) };
            prop_assert!(bytes[start..start + len].iter().all(|&b| b == 0));
            prop_assert_eq!(&bytes[start + len..], &pattern[start + len..]);
        }
    }

    #[test]
    fn range_at_the_top_of_the_address_space() {
        assert_eq!(recorded(usize::MAX - 70, 71), [usize::MAX - 127, usize::MAX - 63]);
    }

    #[test]
    fn every_supported_back_end_runs() {
        let memory = vec![7u8; 4096];
        let kinds = [FlushKind::None, FlushKind::Clwb, FlushKind::ClflushOpt, FlushKind::Clflush, FlushKind::DcCvap, FlushKind::DcCvac];
        let supported = kinds.into_iter().filter(|k| k.is_supported());
        let ran = supported.map(|kind| {
            // SAFETY: supported, and the range lies in `memory`.
            unsafe { flush_range(kind, memory.as_ptr() as usize + 3, 4000) };
            fence();
        });
        assert!(ran.count() >= 1);
        assert!(FlushKind::detect().is_supported());
        assert!(memory.iter().all(|&b| b == 7));
    }
}
