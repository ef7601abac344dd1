//! What a transaction makes of changes by others, step by step.

use super::*;
use crate::data::Databases;
use hither::Db;

fn open() -> (Arc<Databases>, Arc<Database>) {
    let databases = Databases::open(Db::builder().in_memory().open().unwrap(), 1).unwrap();
    let database = databases.get(0).unwrap();
    (databases, database)
}

fn head(count: u64) -> Vec<u8> {
    Head { kind: Type::SortedSet, number: 7, count }.encode()
}

/// Regression: a transaction that saw a key absent, then present, was applied if the key was absent again at the end.
#[test]
fn a_key_that_comes_and_goes_between_two_looks_is_noticed() {
    let (databases, database) = open();
    let mut txn = Txn::new(database.clone(), true, WriteOptions::new());
    assert_eq!(txn.load(b"z").unwrap(), None);
    database.keys.put(b"z", &head(1)).unwrap();
    assert!(txn.load(b"z").unwrap().is_some());
    txn.put(b"z", head(2), 0);
    database.keys.delete(b"z").unwrap();
    assert!(!txn.is_as_read(&databases.db).unwrap());
    assert!(!txn.commit(&databases.db).unwrap().applied);
    assert!(!database.keys.contains(b"z").unwrap());
}

/// Regression: the same for a lone command that looks twice.
#[test]
fn a_lone_command_that_saw_two_states_is_not_applied() {
    let (databases, database) = open();
    let mut txn = Txn::new(database.clone(), false, WriteOptions::new());
    assert_eq!(txn.load(b"z").unwrap(), None);
    database.keys.put(b"z", &head(1)).unwrap();
    assert!(txn.load(b"z").unwrap().is_some());
    database.keys.delete(b"z").unwrap();
    assert!(!txn.commit(&databases.db).unwrap().applied);
}
