//! Passwords: only their SHA-256 is kept, and the time of a comparison reveals nothing.

use sha2::{Digest as _, Sha256};

/// The SHA-256 of a password.
#[derive(Clone, Copy)]
pub struct Hash([u8; 32]);

impl Hash {
    /// Hashes a password.
    pub fn of(password: &[u8]) -> Hash {
        Hash(Sha256::digest(password).into())
    }

    /// Parses 64 lower-case hexadecimal digits.
    pub fn from_hex(text: &[u8]) -> Option<Hash> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let mut hash = [0; 32];
        if text.len() != 64 {
            return None;
        }
        for (byte, pair) in hash.iter_mut().zip(text.chunks(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Hash(hash))
    }

    /// Formats it as 64 hexadecimal digits.
    pub fn to_hex(self) -> String {
        hex(&self.0)
    }

    /// Whether both are equal; takes the same time wherever they differ.
    pub fn is(&self, other: &Hash) -> bool {
        let different = self.0.iter().zip(&other.0).fold(0, |different, (a, b)| different | (a ^ b));
        std::hint::black_box(different) == 0
    }
}

/// Formats bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_sha_256() {
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Hash::of(b"abc").to_hex(), text);
        assert!(Hash::from_hex(text.as_bytes()).unwrap().is(&Hash::of(b"abc")));
        assert!(!Hash::of(b"abd").is(&Hash::of(b"abc")));
        assert!(Hash::from_hex(text.to_uppercase().as_bytes()).is_none());
        assert!(Hash::from_hex(&text.as_bytes()[1..]).is_none());
    }
}
