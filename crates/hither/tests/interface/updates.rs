//! Updates that keep what is there, set an expiry, or fail.

use crate::basic::{create, everywhere};
use hither::{Change, Error, Found};

const LATER_MS: u64 = 4_102_444_800_000;

#[derive(Debug, PartialEq)]
enum Refusal {
    Empty,
    Store,
}

impl From<Error> for Refusal {
    fn from(_: Error) -> Refusal {
        Refusal::Store
    }
}

/// Takes one piece of a stock; `or` says what to do if nothing is left.
fn take_one<E>(or: impl Fn() -> Result<Change, E>) -> impl Fn(Option<(&[u8], Found)>) -> Result<Change, E> {
    move |current| match current {
        Some((&[left], _)) if left > 0 => Ok(Change::Put(vec![left - 1])),
        _ => or(),
    }
}

#[test]
fn an_update_changes_what_its_closure_says() {
    everywhere(|db, kind| {
        let ks = create(db, kind);
        let update = |change: Change| ks.update_with(b"k", |_| Ok::<_, Error>(change.clone())).unwrap();
        let shown = || ks.peek_with(b"k", |value, found| (value.to_vec(), found)).unwrap().0;
        assert_eq!((update(Change::Keep), shown()), (Change::Keep, None));
        assert_eq!(update(Change::PutUntil(b"1".to_vec(), LATER_MS)), Change::PutUntil(b"1".to_vec(), LATER_MS));
        update(Change::Put(b"2".to_vec()));
        let before = shown().unwrap();
        assert_eq!((before.0.as_slice(), before.1.expires_at_ms), (b"2".as_slice(), LATER_MS), "a put leaves the expiry");
        update(Change::Keep);
        assert_eq!(shown(), Some(before), "nothing was written, so the version is the same");
        update(Change::PutUntil(b"3".to_vec(), 0));
        assert_eq!(shown().unwrap().1.expires_at_ms, 0);
        assert_eq!((update(Change::Delete), shown()), (Change::Delete, None));
    });
}

#[test]
fn an_update_that_fails_writes_nothing() {
    everywhere(|db, kind| {
        let ks = create(db, kind);
        ks.put(b"k", &[1]).unwrap();
        let take_one = take_one(|| Err(Refusal::Empty));
        assert_eq!(ks.update_with(b"k", &take_one), Ok(Change::Put(vec![0])));
        let before = ks.get_versioned(b"k").unwrap();
        assert_eq!(ks.update_with(b"k", &take_one), Err(Refusal::Empty));
        assert_eq!(ks.get_versioned(b"k").unwrap(), before);
        assert_eq!(ks.update_with(&vec![0; 1 << 20], &take_one), Err(Refusal::Store), "no such key is possible");
    });
}

/// Threads take from a stock until it is empty: each piece is taken once, and none that is not there.
#[test]
fn concurrent_updates_take_each_piece_once() {
    everywhere(|db, kind| {
        let ks = create(db, kind);
        ks.put(b"k", &[100]).unwrap();
        let take_one = take_one(|| Ok::<_, Error>(Change::Keep));
        let take_all = || (0..).take_while(|_| ks.update_with(b"k", &take_one).unwrap() != Change::Keep).count();
        let taken: usize = std::thread::scope(|scope| {
            let takers: Vec<_> = (0..4).map(|_| scope.spawn(take_all)).collect();
            takers.into_iter().map(|taker| taker.join().unwrap()).sum()
        });
        assert_eq!((taken, ks.get(b"k").unwrap()), (100, Some(vec![0])));
    });
}

/// A transaction over what a snapshot shows: a batch is applied only if nothing of it has changed since.
#[test]
fn a_batch_may_rest_on_a_snapshot() {
    everywhere(|db, kind| {
        let ks = create(db, kind);
        for key in [b"a", b"b"] {
            ks.put(key, b"1").unwrap();
        }
        let snapshot = db.snapshot();
        let version = |key: &[u8]| snapshot.get_versioned(&ks, key).unwrap().map(|(_, version)| version);
        assert_eq!(version(b"a"), ks.get_versioned(b"a").unwrap().map(|(_, version)| version));
        assert_eq!(version(b"absent"), None);
        let commit = |keys: &[&[u8]]| {
            let mut batch = db.batch();
            for key in keys {
                batch.require_version(&ks, key, version(key));
            }
            batch.put(&ks, b"sum", b"2");
            batch.commit()
        };
        commit(&[b"a", b"b", b"absent"]).unwrap();
        ks.put(b"b", b"2").unwrap();
        assert_eq!(snapshot.get_versioned(&ks, b"b").unwrap().unwrap().0, b"1");
        assert!(matches!(commit(&[b"a", b"b"]), Err(Error::PreconditionFailed { .. })), "b has changed");
        commit(&[b"a"]).unwrap();
        ks.delete(b"a").unwrap();
        assert!(matches!(commit(&[b"a"]), Err(Error::PreconditionFailed { .. })), "a is gone");
    });
}
