//! The example of the README. A test compares the two.

use hither::{Db, Durability, KeyspaceOptions, WriteOptions};

fn main() -> Result<(), hither::Error> {
    let db = Db::open("/tmp/my-store")?;
    let files = db.keyspace("files")?; // ordered; created if it is missing

    files.put(b"/etc/hosts", b"174")?; // durable when it returns
    assert_eq!(files.get(b"/etc/hosts")?.as_deref(), Some(&b"174"[..]));

    for item in files.prefix(b"/etc/")? {
        let (path, size) = item?;
        println!("{} {}", String::from_utf8_lossy(&path), String::from_utf8_lossy(&size));
    }

    // All or nothing, over keyspaces and nodes.
    let seen = db.keyspace_with("seen", KeyspaceOptions::hash())?;
    let mut batch = db.batch();
    batch.put(&files, b"/etc/motd", b"0").put(&seen, b"/etc/motd", b"");
    batch.commit()?;

    // Do not wait now: a ticket tells when the write is durable.
    let ticket = files.put_with(b"/etc/issue", b"27", &WriteOptions::default().durability(Durability::Sync))?;
    let before = db.snapshot();
    files.delete(b"/etc/hosts")?;
    assert!(before.get(&files, b"/etc/hosts")?.is_some());
    ticket.wait()?;
    db.close()
}
