use super::*;
use crate::options::{Expiry, Options, WriteOptions};
use crate::{Condition, Kind};

/// A key of 1 to 40 bytes, different for each number.
fn key_of(number: u32) -> Vec<u8> {
    let mut key = format!("{number:x}").into_bytes();
    key.resize(key.len().max(number as usize % 41), b'.');
    key
}

/// In hash keyspaces `peek_string` finds most keys that are not eight bytes long. It finds none that expires, is
/// deleted or never existed.
#[test]
fn strings_are_found_where_most_are() {
    let store = Store::open(Options { in_memory: true, background: false, ..Options::default() }).unwrap();
    let [hash, ordered] = [Kind::Hash, Kind::Ordered].map(|kind| store.create_keyspace(&format!("{kind:?}"), kind).unwrap());
    let lasting = WriteOptions::new();
    let expiring = WriteOptions { expiry: Some(Expiry::After(Duration::from_secs(3600))), ..WriteOptions::new() };
    let numbers = || (0..4000u32).filter(|number| key_of(*number).len() != 8);
    for number in numbers() {
        let options = if number % 7 == 0 { &expiring } else { &lasting };
        for keyspace in [&hash, &ordered] {
            let written = store.write(keyspace, &key_of(number), Some(&number.to_le_bytes()), Condition::None, options);
            written.unwrap().2.wait().unwrap();
        }
        if number % 5 == 0 {
            store.write_wait(&hash, &key_of(number), None).unwrap();
        }
    }
    let _pin = epoch::pin();
    let (mut asked, mut found) = (0, 0);
    for number in numbers().chain(5000..6000) {
        let peek = |keyspace: &KeyspaceHandle| store.core.peek_string(&keyspace.0, &key_of(number)).map(<[u8]>::to_vec);
        assert_eq!(peek(&ordered), None);
        let lasts = number < 5000 && number % 7 != 0 && number % 5 != 0;
        let value = peek(&hash);
        assert!(value.is_none() || lasts && value == Some(number.to_le_bytes().to_vec()), "key {number}: {value:?}");
        asked += u32::from(lasts);
        found += u32::from(value.is_some());
    }
    assert!(asked > 2000 && found * 10 > asked * 9, "{found} of {asked}");
}
