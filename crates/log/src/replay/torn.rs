//! Decides whether bytes behind torn ones can be an entry with a right checksum, without reading them once more from
//! each place on.
//!
//! The bytes of a torn value may look like heads of long entries, one every eight bytes. To verify each of them would
//! take time quadratic in the segment's size: ten seconds for one MiB, and users choose the values. But a checksum
//! without inversion is linear: the register after a range follows from the registers after the bytes up to either end
//! of the range, whatever it started with. So one reading of the segment serves all of them.
//!
//! Thread safety: as for the reader of the segment. Only bytes of the entry in question decide, and the bytes of a
//! valid entry do not change.

use crate::crc;
use crate::entry::EntryView;

/// Shorter entries are verified as usual.
const LONG: u64 = 4096;
/// Bytes between two registers that are kept.
const STEP: usize = 64;
/// CRC-32C's polynomial, reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Checksum registers along a segment.
pub(super) struct Registers {
    /// The register after each multiple of [`STEP`], started with zero.
    at: Vec<u32>,
    /// The polynomial by which `1 << k` zero bytes multiply a register.
    zeros: [u32; 40],
}

impl Registers {
    pub fn along(bytes: &[u8]) -> Registers {
        let mut at = vec![0];
        at.extend(bytes.chunks_exact(STEP).scan(0, |state, chunk| {
            *state = crc::bytes(*state, chunk);
            Some(*state)
        }));
        // The highest bit stands for the power 0.
        let mut zeros = [1 << 23; 40];
        for k in 1..zeros.len() {
            zeros[k] = multiply(zeros[k - 1], zeros[k - 1]);
        }
        Registers { at, zeros }
    }

    /// As [`crc::bytes`] over a part of `bytes`, which must be those of [`Registers::along`].
    fn over(&self, state: u32, bytes: &[u8], from: usize, to: usize) -> u32 {
        let (first, last) = (from.div_ceil(STEP), to / STEP);
        if first >= last {
            return crc::bytes(state, &bytes[from..to]);
        }
        let state = crc::bytes(state, &bytes[from..first * STEP]);
        let state = self.behind_zeros(state ^ self.at[first], (last - first) * STEP) ^ self.at[last];
        crc::bytes(state, &bytes[last * STEP..to])
    }

    /// The register after `count` zero bytes.
    fn behind_zeros(&self, state: u32, count: usize) -> u32 {
        let powers = self.zeros.iter().enumerate().filter(|(k, _)| count >> k & 1 != 0);
        powers.fold(state, |state, (_, power)| multiply(*power, state))
    }
}

/// Product of two polynomials modulo CRC-32C's.
fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    for bit in (0..32).rev() {
        product ^= b & (a >> bit & 1).wrapping_neg();
        b = b >> 1 ^ POLYNOMIAL & (b & 1).wrapping_neg();
    }
    product
}

/// Whether the bytes at `at` are a long entry by their head, but not by their checksum. The first such query reads all
/// the bytes.
#[cold]
pub(super) fn is_no_long_entry(registers: &mut Option<Registers>, bytes: &[u8], at: usize, generation: u64, offset: u64) -> bool {
    let Some(entry) = EntryView::parse(&bytes[at..]).ok().filter(|entry| entry.size >= LONG) else { return false };
    let registers = registers.get_or_insert_with(|| Registers::along(bytes));
    !entry.has_checksum(generation, offset, |state, from, to| registers.over(state, bytes, at + from, at + to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_tell_the_checksum_of_any_part() {
        let bytes: Vec<u8> = (0..5000u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
        let registers = Registers::along(&bytes);
        for from in [0, 1, 63, 64, 65, 1000] {
            for to in [from, from + 1, from + 200, 4096, 4999, 5000] {
                let expected = crc::bytes(0x1234_5678, &bytes[from..to]);
                assert_eq!(registers.over(0x1234_5678, &bytes, from, to), expected, "{from}..{to}");
            }
        }
    }
}
