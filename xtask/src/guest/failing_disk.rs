//! A store on a disk that no longer takes writes: ext4 on a loop device whose sparse file lies on a tmpfs without
//! space.
//!
//! The kernel reports such a failure once, to the sync that meets it. It keeps the pages that were not written as if
//! they had been written. A reader sees content that the device never got, until memory runs short and the pages are
//! read from the device. So a store that was opened again must not build upon them:
//!
//! 1. A load ends with an error when a sync fails. Everything that it reported durable at level sync must be there from
//!    then on.
//! 2. The store is opened again: first while the disk still fails, then when it takes writes again, until it can be
//!    opened and written to.
//! 3. The content of the store then must not change when the kernel drops all pages, and the store must be sound.

use super::{Bench, last_durable, tail};
use crate::Failure;
use crate::exec::Tally;

/// For each disk, the room on the tmpfs for file system, store and all in MiB (less than the input takes, and enough to
/// begin), and the level of the load.
const DISKS: [(u32, &str); 3] = [(42, "sync"), (42, "process"), (34, "interval:50")];

/// Runs the test on each disk.
pub fn run(bench: &Bench, tally: &mut Tally) -> Result<(), Failure> {
    for (room, level) in DISKS {
        let (durable, kept) = fail_once(bench, room, level)?;
        println!("disk of {room} MiB failed at level {level}: {durable} records were reported, {kept} kept");
        *tally.counts.entry("guest_failed_disks".to_owned()).or_default() += 1;
    }
    Ok(())
}

/// Lets one disk fail. Returns how many records were reported durable, and how many are there in the end.
fn fail_once(bench: &Bench, room: u32, level: &str) -> Result<(usize, usize), Failure> {
    let output = bench.expect_success(&script(room, level))?;
    let durable = last_durable(&output).ok_or_else(|| format!("no durable report in the output:\n{}", tail(&output)))?;
    let [opened, read_again] = [bench.read_records("opened.kv")?, bench.read_records("read-again.kv")?];
    if let Some(alien) = opened.difference(&bench.records).find(|line| ![PROBE, MAYBE].contains(&line.as_str())) {
        return Err(format!("the store holds a record that was never written: {alien}"));
    }
    if !opened.contains(PROBE) {
        return Err("what was written after the failure is not there".to_owned());
    }
    if opened != read_again {
        return Err(format!("{} records are there after opening, {} once the pages were dropped", opened.len(), read_again.len()));
    }
    // Weaker levels promise nothing against the failure of a device.
    let promised = if level == "sync" { durable } else { 0 };
    match (0..promised).map(super::record).find(|record| !opened.contains(record)) {
        Some(lost) => Err(format!("reported durable, but lost: {lost}")),
        None => Ok((durable, opened.intersection(&bench.records).count())),
    }
}

/// Record that is written after the failure.
const PROBE: &str = "after the failure\tyes";

/// Record that is written while the disk fails; it may be there or not.
const MAYBE: &str = "while it fails\tno";

/// The script of the guest. The store may refuse to open while the disk refuses data that is still to be written; each
/// time the kernel drops some of that data.
fn script(room: u32, level: &str) -> String {
    format!(
        "set -e\n\
         mkdir -p /tmp/room /tmp/disk\n\
         mount -t tmpfs -o size={room}m room /tmp/room\n\
         truncate -s 419430400 /tmp/room/image\n\
         losetup /dev/loop0 /tmp/room/image\n\
         /usr/local/bin/mke2fs -q -t ext4 -J size=4 -E lazy_itable_init=0,lazy_journal_init=0 /dev/loop0\n\
         mount -t ext4 /dev/loop0 /tmp/disk\n\
         S='--data /tmp/disk/store --keyspace guest'\n\
         /app/hither load $S --durability {level} --json /share/input.kv && {{ echo 'the disk did not fail'; exit 1; }}\n\
         /app/hither put $S 'while it fails' no || true\n\
         /app/hither dump $S >/dev/null || true\n\
         mount -o remount,size=300m /tmp/room\n\
         n=0\n\
         until /app/hither put $S 'after the failure' yes; do n=$((n + 1)); [ $n -lt 20 ] || exit 1; done\n\
         /app/hither dump $S >/share/opened.kv\n\
         sync || true\n\
         echo 3 >/proc/sys/vm/drop_caches\n\
         /app/hither dump $S >/share/read-again.kv\n\
         /app/hither check $S\n"
    )
}
