//! CRC-32C (iSCSI, Castagnoli) over words and byte strings, resumable, by the CPU's instruction where it has one.
//!
//! The state is the bare register: no inversion at either end, because entries seed it themselves (see
//! [`crate::entry`]).

/// Continues `state` over little-endian words.
#[inline(always)]
pub fn words(state: u32, words: &[u64]) -> u32 {
    #[cfg(test)]
    READ.set(READ.get() + 8 * words.len() as u64);
    #[cfg(target_arch = "x86_64")]
    if has_sse42() {
        // SAFETY: the CPU has SSE4.2.
        return unsafe { x86::words(state, words) };
    }
    words.iter().fold(state, |state, word| soft(state, &word.to_le_bytes()))
}

/// Continues `state` over bytes. Equal to [`words`] over the same memory.
#[inline]
pub fn bytes(state: u32, bytes: &[u8]) -> u32 {
    #[cfg(test)]
    READ.set(READ.get() + bytes.len() as u64);
    #[cfg(target_arch = "x86_64")]
    if has_sse42() {
        // SAFETY: the CPU has SSE4.2.
        return unsafe { x86::bytes(state, bytes) };
    }
    soft(state, bytes)
}

#[cfg(test)]
thread_local! {
    /// Bytes whose checksum this thread has computed.
    pub(crate) static READ: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn has_sse42() -> bool {
    HAS_SSE42.load(std::sync::atomic::Ordering::Relaxed)
}

/// Whether the CPU has the instruction; false before [`detect`]. The standard library remembers that, too, but asking
/// it takes six instructions instead of two.
#[cfg(target_arch = "x86_64")]
static HAS_SSE42: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Finds out whether the CPU has an instruction for this checksum. Until then, checksums are the same, but slow.
pub fn detect() {
    #[cfg(target_arch = "x86_64")]
    HAS_SSE42.store(std::arch::is_x86_feature_detected!("sse4.2"), std::sync::atomic::Ordering::Relaxed);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::_mm_crc32_u8;

    /// Continues `state` over one word.
    ///
    /// # Safety
    /// The CPU has SSE4.2.
    #[inline(always)]
    unsafe fn word(mut state: u64, word: u64) -> u64 {
        // Not the intrinsic: a function with a target feature is not inlined into one without it. An entry's words
        // would then go through memory, and the wide loads of a copy wait for the narrow stores before them
        // (`docs/adr/0010`).
        // SAFETY: the instruction exists, by the caller's promise; it touches registers only, and no flags.
        unsafe {
            asm!("crc32 {state}, {word}", state = inout(reg) state, word = in(reg) word, options(pure, nomem, nostack, preserves_flags));
        }
        state
    }

    /// # Safety
    /// The CPU has SSE4.2.
    #[inline(always)]
    pub unsafe fn words(state: u32, words: &[u64]) -> u32 {
        // SAFETY: the caller's promise.
        words.iter().fold(u64::from(state), |state, next| unsafe { word(state, *next) }) as u32
    }

    #[target_feature(enable = "sse4.2")]
    pub fn bytes(state: u32, bytes: &[u8]) -> u32 {
        let (chunks, tail) = bytes.as_chunks::<8>();
        // SAFETY: the CPU has SSE4.2, as this function needs it.
        let state = chunks.iter().fold(u64::from(state), |state, chunk| unsafe { word(state, u64::from_le_bytes(*chunk)) });
        tail.iter().fold(state as u32, |state, byte| _mm_crc32_u8(state, *byte))
    }
}

/// The reference: one table, a byte at a time.
fn soft(state: u32, bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = table();
    bytes.iter().fold(state, |state, byte| state >> 8 ^ TABLE[usize::from(state as u8 ^ byte)])
}

const fn table() -> [u32; 256] {
    let mut table = [0u32; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The instruction is what is tested, where there is one.
    fn detected() {
        detect();
        #[cfg(target_arch = "x86_64")]
        assert_eq!(has_sse42(), std::arch::is_x86_feature_detected!("sse4.2"));
    }

    #[test]
    fn matches_the_published_check_value() {
        detected();
        assert_eq!(!bytes(!0, b"123456789"), 0xe306_9283);
        assert_eq!(!soft(!0, b"123456789"), 0xe306_9283);
    }

    #[test]
    fn hardware_and_table_agree_at_every_length() {
        detected();
        let data: Vec<u8> = (0..200u32).map(|i| (i * 37 + 11) as u8).collect();
        for from in 0..9 {
            for to in from..data.len() {
                assert_eq!(bytes(0x1234_5678, &data[from..to]), soft(0x1234_5678, &data[from..to]));
            }
        }
        let as_words: Vec<u64> = data.as_chunks::<8>().0.iter().map(|c| u64::from_le_bytes(*c)).collect();
        assert_eq!(words(7, &as_words), soft(7, &data[..as_words.len() * 8]));
    }
}
