//! The bytes of entries and rows, as the head of [`super`] defines them.

pub use hither::after_prefix;

/// The type of a key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// A byte string.
    String,
    /// Fields with values.
    Hash,
    /// Members with scores.
    SortedSet,
}

impl Type {
    /// The type byte on media.
    pub const fn tag(self) -> u8 {
        match self {
            Type::String => 0,
            Type::Hash => 1,
            Type::SortedSet => 2,
        }
    }

    /// The type of an entry; `None`: no known type.
    #[inline]
    pub fn of(entry: &[u8]) -> Option<Type> {
        match entry.first()? {
            0 => Some(Type::String),
            1 => Some(Type::Hash),
            2 => Some(Type::SortedSet),
            _ => None,
        }
    }

    /// The name in the reply to `TYPE`.
    pub const fn name(self) -> &'static str {
        match self {
            Type::String => "string",
            Type::Hash => "hash",
            Type::SortedSet => "zset",
        }
    }
}

/// Length of an entry that holds a head, in bytes.
pub const HEAD_BYTES: usize = 17;

/// The head of a collection: what its entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The type; never a string.
    pub kind: Type,
    /// The number of the collection.
    pub number: u64,
    /// Number of members.
    pub count: u64,
}

impl Head {
    /// Decodes the head in an entry; `None` for a string.
    pub fn decode(entry: &[u8]) -> Option<Head> {
        let kind = Type::of(entry).filter(|kind| *kind != Type::String)?;
        let number = entry.get(1..9)?.try_into().ok()?;
        let count = entry.get(9..HEAD_BYTES)?.try_into().ok()?;
        Some(Head { kind, number: u64::from_be_bytes(number), count: u64::from_be_bytes(count) })
    }

    /// Encodes the entry.
    pub fn encode(&self) -> Vec<u8> {
        let mut entry = Vec::with_capacity(HEAD_BYTES);
        entry.push(self.kind.tag());
        entry.extend_from_slice(&self.number.to_be_bytes());
        entry.extend_from_slice(&self.count.to_be_bytes());
        entry
    }
}

/// Encodes the entry of a string.
pub fn string_entry(bytes: &[u8]) -> Vec<u8> {
    let mut entry = Vec::with_capacity(bytes.len() + 1);
    entry.push(Type::String.tag());
    entry.extend_from_slice(bytes);
    entry
}

/// First byte of the registry rows, which say under which key a collection is.
pub const REGISTRY: u8 = 0;
/// First byte of the member rows.
pub const MEMBERS: u8 = 1;

/// The registry row of collection `number`, which says under which key it is.
pub fn registry_row(number: u64) -> [u8; 9] {
    with_number(REGISTRY, number)
}

/// The prefix of all member rows of collection `number`.
pub fn members_prefix(number: u64) -> [u8; 9] {
    with_number(MEMBERS, number)
}

fn with_number(first: u8, number: u64) -> [u8; 9] {
    let mut row = [first; 9];
    row[1..].copy_from_slice(&number.to_be_bytes());
    row
}

/// The collection number in a row.
pub fn number_of(row: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(row.get(1..9)?.try_into().ok()?))
}

/// The row that says that a database has, or had, collections. It sorts behind all others and belongs to no collection.
pub const MARKER: &[u8] = &[MEMBERS + 1];

/// Kinds of member rows.
pub mod part {
    /// Field of a hash.
    pub const FIELD: u8 = b'f';
    /// Member of a sorted set, by name.
    pub const MEMBER: u8 = b'm';
    /// Member of a sorted set, by score.
    pub const SCORE: u8 = b's';
}

/// Length of what stands before a field or member in its row, in bytes.
pub const ROW_PREFIX_BYTES: usize = 10;

/// The row of a field or member; with an empty `name`, the prefix of all rows of this part.
pub fn row(number: u64, part: u8, name: &[u8]) -> Vec<u8> {
    let mut row = Vec::with_capacity(ROW_PREFIX_BYTES + name.len());
    row.extend_from_slice(&members_prefix(number));
    row.push(part);
    row.extend_from_slice(name);
    row
}

/// The row of a member in the order of scores.
pub fn score_row(number: u64, score: f64, member: &[u8]) -> Vec<u8> {
    let mut row = row(number, part::SCORE, &score_bytes(score));
    row.extend_from_slice(member);
    row
}

/// Score and member of such a row.
pub fn split_score_row(row: &[u8]) -> Option<(f64, &[u8])> {
    let (score, member) = row.get(ROW_PREFIX_BYTES..)?.split_first_chunk::<8>()?;
    Some((score_of(*score), member))
}

/// Encodes a score as bytes that sort like it.
pub fn score_bytes(score: f64) -> [u8; 8] {
    let bits = (score + 0.0).to_bits();
    let flip = if bits >> 63 == 0 { 1 << 63 } else { u64::MAX };
    (bits ^ flip).to_be_bytes()
}

/// Decodes a score.
pub fn score_of(bytes: [u8; 8]) -> f64 {
    let bits = u64::from_be_bytes(bytes);
    let flip = if bits >> 63 == 1 { 1 << 63 } else { u64::MAX };
    f64::from_bits(bits ^ flip)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn heads_and_types() {
        let head = Head { kind: Type::SortedSet, number: 7, count: u64::MAX };
        assert_eq!(head.encode().len(), HEAD_BYTES);
        assert_eq!(Head::decode(&head.encode()), Some(head));
        assert_eq!(Head::decode(&string_entry(b"0123456789abcdefghi")), None);
        assert_eq!(Type::of(&string_entry(b"")), Some(Type::String));
        assert_eq!(number_of(&registry_row(99)), Some(99));
        assert_eq!(after_prefix(b"a\xff"), Some(b"b".to_vec()));
        assert_eq!(after_prefix(b"\xff"), None);
    }

    #[test]
    fn rows_are_what_the_head_of_the_module_says() {
        assert_eq!(row(1, part::FIELD, b"x"), b"\x01\0\0\0\0\0\0\0\x01fx");
        assert_eq!(score_row(1, 1.0, b"x"), b"\x01\0\0\0\0\0\0\0\x01s\xbf\xf0\0\0\0\0\0\0x");
        assert_eq!(score_bytes(-0.0), score_bytes(0.0));
    }

    proptest! {
        #[test]
        fn scores_sort_like_their_bytes(a: f64, b: f64) {
            prop_assume!(!a.is_nan() && !b.is_nan());
            prop_assert_eq!(score_of(score_bytes(a)), a);
            prop_assert_eq!(a.partial_cmp(&b).unwrap(), if a == b { std::cmp::Ordering::Equal } else { score_bytes(a).cmp(&score_bytes(b)) });
            let row = score_row(3, a, b"member");
            prop_assert_eq!(split_score_row(&row), Some((a, &b"member"[..])));
        }
    }
}
