//! Damage gives an error that names the place, never a panic, and is never taken for the effect of a crash.

use super::{active, image_of, sample_image, small};
use crate::layout::{
    CATALOGUE_OFF, DESCRIPTOR_BYTES, MAGIC_OFF, SETTLED_OFF, SUPER_COMMIT_OFF, SUPER_SLOT_A_OFF, SUPER_SLOT_B_OFF, TABLE_OFF,
};
use crate::superblock::{SUPERBLOCK, USED_BYTES};
use crate::{CreateOptions, Descriptor, Error, MediumChoice, OpenOptions, Pool, Salvaged, SuperblockInfo};

fn open(image: &[u8]) -> Result<Pool, Error> {
    Pool::from_image(image, &OpenOptions::new())
}

fn flipped(image: &[u8], byte: u64, bit: u32) -> Vec<u8> {
    let mut image = image.to_vec();
    image[byte as usize] ^= 1 << bit;
    image
}

#[test]
fn every_bit_of_the_current_superblock_slot_matters() {
    // Creation wrote slot A; clearing the clean flag wrote slot B, which is current.
    let (_, image) = sample_image();
    for byte in 0..1024 {
        let damaged = open(&flipped(&image, SUPER_SLOT_B_OFF + byte, (byte % 8) as u32));
        let Err(Error::DamagedSuperblock { offset, .. }) = damaged else { panic!("byte {byte}: {damaged:?}") };
        assert_eq!(offset, SUPER_SLOT_B_OFF);
    }
    for byte in 0..USED_BYTES as u64 {
        open(&flipped(&image, SUPER_SLOT_A_OFF + byte, 0)).expect("the other slot is never looked at");
    }
}

/// Regression: the next opening would have begun to count from zero, behind every other pool.
#[test]
fn a_count_of_openings_beyond_all_is_refused() {
    for (count, is_fine) in [(1 << 40, true), (u64::MAX - 1, false), (u64::MAX, false)] {
        let pool = Pool::create_in_memory(&small()).unwrap();
        pool.finish_creation().unwrap();
        pool.mark_open(count).unwrap();
        match open(&image_of(&pool)) {
            Ok(again) => assert!(is_fine && again.superblock().open_count == count, "{count}"),
            Err(Error::DamagedSuperblock { detail, .. }) => assert!(!is_fine && detail.contains("openings"), "{count}: {detail}"),
            other => panic!("{count}: {other:?}"),
        }
    }
}

#[test]
fn flipped_commit_words_never_open_as_something_else() {
    let (pool, image) = sample_image();
    for bit in 0..64 {
        let found = open(&flipped(&image, SUPER_COMMIT_OFF + bit / 8, (bit % 8) as u32));
        match (bit, found) {
            // The checksum does not cover the sequence, which only has to differ from the one before.
            (32..63, Ok(found)) => assert_eq!(found.superblock(), pool.superblock()),
            (_, Err(Error::DamagedSuperblock { .. })) => {}
            (_, other) => panic!("bit {bit}: {other:?}"),
        }
    }
    let mut zeroed = image;
    zeroed[SUPER_COMMIT_OFF as usize..][..8].fill(0);
    assert!(matches!(open(&zeroed), Err(Error::DamagedSuperblock { offset: SUPER_COMMIT_OFF, .. })));
}

#[test]
fn every_bit_of_the_current_descriptor_matters() {
    let (_, image) = sample_image();
    let at = TABLE_OFF + 3 * DESCRIPTOR_BYTES;
    let descriptor = |image: &[u8]| open(image).expect("descriptors are read on demand").descriptor(3);
    // Two commits: slot B is current.
    for byte in 64..120 {
        for bit in 0..8 {
            let damaged = descriptor(&flipped(&image, at + byte, bit));
            let Err(Error::DamagedDescriptor { segment: 3, offset, .. }) = damaged else { panic!("{byte}.{bit}: {damaged:?}") };
            assert_eq!(offset, at + 64);
        }
    }
    for bit in 0..64 {
        match (bit, descriptor(&flipped(&image, at + bit / 8, (bit % 8) as u32))) {
            (32..63, Ok(found)) => assert_eq!(found, active(2)),
            (_, Err(Error::DamagedDescriptor { segment: 3, .. })) => {}
            (_, other) => panic!("bit {bit}: {other:?}"),
        }
    }
    assert_eq!(descriptor(&flipped(&image, at + 8, 0)).unwrap(), active(2), "the other slot is never looked at");
}

#[test]
fn descriptors_do_not_verify_in_another_place_or_pool() {
    let (_, image) = sample_image();
    let (_, other) = sample_image();
    let at = |i: usize| TABLE_OFF as usize + i * DESCRIPTOR_BYTES as usize;
    let mut moved = image.clone();
    moved.copy_within(at(3)..at(4), at(4));
    assert!(matches!(open(&moved).unwrap().descriptor(4), Err(Error::DamagedDescriptor { segment: 4, .. })));
    let mut foreign = image;
    foreign[at(3)..at(4)].copy_from_slice(&other[at(3)..at(4)]);
    assert!(matches!(open(&foreign).unwrap().descriptor(3), Err(Error::DamagedDescriptor { segment: 3, .. })));
}

#[test]
fn damaged_catalogue_and_words_are_named() {
    let (_, image) = sample_image();
    // Slot B of the catalogue is current: length and bytes.
    let slot_b = CATALOGUE_OFF + 4096 + (64 << 10);
    for byte in 0..4 + 9 {
        let damaged = open(&flipped(&image, slot_b + byte, 3)).unwrap().catalogue();
        assert!(
            matches!(&damaged, Err(Error::DamagedSuperblock { what: "the catalogue", offset, .. }) if *offset == slot_b),
            "{damaged:?}"
        );
    }
    let damaged = open(&flipped(&image, SETTLED_OFF + 7, 1));
    assert!(matches!(damaged, Err(Error::DamagedSuperblock { what: "the settled version", offset: SETTLED_OFF, .. })));
}

#[test]
fn foreign_newer_and_unfinished_pools_are_told_apart() {
    let (_, image) = sample_image();
    let with_magic = |magic: &[u8; 8]| {
        let mut image = image.clone();
        image[MAGIC_OFF as usize..8].copy_from_slice(magic);
        assert!(matches!(open(&image), Err(Error::DamagedSuperblock { what: "the magic", offset: 0, .. })), "the superblock is a pool's");
        image[SUPER_COMMIT_OFF as usize] ^= 1;
        open(&image)
    };
    assert!(matches!(with_magic(b"\x89PNG\r\n\x1a\n"), Err(Error::Foreign { found, .. }) if found == *b"\x89PNG\r\n\x1a\n"));
    assert!(matches!(with_magic(b"hitherP7"), Err(Error::NewerFormat { found: 7, supported: 1, .. })));
    let half = Pool::create_in_memory(&small()).unwrap();
    assert!(matches!(open(&super::image_of(&half)), Err(Error::HalfCreated { .. })));
    assert!(matches!(open(&[]), Err(Error::HalfCreated { .. })));
    assert!(matches!(open(&image[..image.len() - 1]), Err(Error::ShortFile { .. })));
    assert!(matches!(open(&image[..100]), Err(Error::ShortFile { .. })));
}

/// Opens an image whose superblock a writer has changed with a correct checksum.
fn with_superblock(change: impl Fn(&mut SuperblockInfo), o: &OpenOptions) -> Result<Pool, Error> {
    let (pool, _) = sample_image();
    let mut info = pool.superblock();
    change(&mut info);
    SUPERBLOCK.commit(&pool.access, &info.pool_uuid, &info.encode()).unwrap();
    Pool::from_image(&super::image_of(&pool), o)
}

#[test]
fn versions_and_features_decide_who_may_open() {
    let writer = OpenOptions::new();
    let reader = OpenOptions { medium: MediumChoice::PrivateCopy, ..OpenOptions::new() };
    assert!(matches!(with_superblock(|s| s.version = 2, &writer), Err(Error::NewerFormat { found: 2, .. })));
    assert!(matches!(
        with_superblock(|s| s.incompat = 4, &reader),
        Err(Error::IncompatibleFeatures { bits: 4, read_only_possible: false, .. })
    ));
    assert!(matches!(
        with_superblock(|s| s.ro_compat = 2, &writer),
        Err(Error::IncompatibleFeatures { bits: 2, read_only_possible: true, .. })
    ));
    assert!(with_superblock(|s| s.ro_compat = 2, &reader).is_ok());
    assert!(with_superblock(|s| s.compat = u64::MAX, &writer).is_ok());
}

/// Found by reading: a feature that old programs may ignore when they only read made every read-only opening fail.
#[test]
fn a_file_that_may_only_be_read_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let (path, pool) = on_file(dir.path());
    let info = SuperblockInfo { ro_compat: 2, ..pool.superblock() };
    SUPERBLOCK.commit(&pool.access, &info.pool_uuid, &info.encode()).unwrap();
    drop(pool);
    let open = |medium| Pool::open(&path, &OpenOptions { medium, ..OpenOptions::new() });
    let error = open(MediumChoice::File).unwrap_err();
    assert!(matches!(error, Error::IncompatibleFeatures { bits: 2, read_only_possible: true, .. }), "{error}");
    assert_eq!(open(MediumChoice::PrivateCopy).unwrap().superblock(), info);
}

#[test]
fn impossible_fields_are_damage_even_with_a_good_checksum() {
    let open = |change: fn(&mut SuperblockInfo)| with_superblock(change, &OpenOptions::new());
    let changes: [fn(&mut SuperblockInfo); 8] = [
        |s| s.version = 0,
        |s| s.node = 5,
        |s| s.members.clear(),
        |s| s.segment_bytes = 12_345,
        |s| s.data_offset += 4096,
        |s| s.table_offset = 0,
        |s| s.segment_count = s.max_segments + 1,
        |s| s.segment_count = 0,
    ];
    for (i, change) in changes.into_iter().enumerate() {
        assert!(matches!(open(change), Err(Error::DamagedSuperblock { .. })), "change {i}");
    }
}

#[test]
fn pools_of_another_store_are_refused_by_name() {
    let (pool, image) = sample_image();
    let info = pool.superblock();
    let refused = |o: OpenOptions| match Pool::from_image(&image, &o) {
        Err(Error::WrongStore { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(OpenOptions { store_uuid: Some([1; 16]), ..OpenOptions::new() }), "store");
    assert_eq!(refused(OpenOptions { pool_uuid: Some([1; 16]), ..OpenOptions::new() }), "UUID");
    assert_eq!(refused(OpenOptions { node: Some(1), ..OpenOptions::new() }), "node");
    assert_eq!(refused(OpenOptions { members: Some(vec![[1; 16]]), ..OpenOptions::new() }), "member list");
    let right = OpenOptions {
        store_uuid: Some(info.store_uuid),
        pool_uuid: Some(info.pool_uuid),
        node: Some(0),
        members: Some(info.members),
        ..OpenOptions::new()
    };
    assert!(Pool::from_image(&image, &right).is_ok());
}

#[test]
fn random_first_pages_never_panic() {
    let (_, image) = sample_image();
    let mut rng = crate::shadow::ShadowRng::new(99);
    for _ in 0..2000 {
        let mut image = image.clone();
        for _ in 0..=rng.below(8) {
            let at = rng.below(TABLE_OFF as usize + 4096);
            image[at] = rng.next_u64() as u8;
        }
        if let Ok(pool) = open(&image) {
            let _ = pool.catalogue();
            (0..pool.segment_count()).for_each(|i| drop(pool.descriptor(i).map(|d: Descriptor| d.generation)));
        }
    }
}

/// The bytes of a pool with fixed identities: a change of any offset or encoding is a change of the format.
#[test]
fn format_one_is_where_the_specification_says() {
    let members = vec![[0x11; 16], [0x22; 16]];
    let o = crate::CreateOptions {
        segment_bytes: 4 << 10,
        max_bytes: 128 << 10,
        created_ms: 0x0102_0304,
        ..crate::CreateOptions::member([0x33; 16], members, 1, 64 << 10)
    };
    let pool = Pool::create_in_memory(&o).unwrap();
    pool.finish_creation().unwrap();
    pool.set_settled(5).unwrap();
    pool.set_catalogue(b"xyz").unwrap();
    pool.commit_descriptor(1, &active(7)).unwrap();
    let image = super::image_of(&pool);
    let word = |at: usize| u64::from_le_bytes(image[at..at + 8].try_into().unwrap());
    let crc = |bytes: &[u8], index: u64| u64::from(crate::record::crc32c(&[bytes, &[0x22; 16], &index.to_le_bytes()]));
    assert_eq!(&image[..8], b"hitherP1");
    assert_eq!(word(8), crc(&image[64..1088], u64::MAX) | 1 << 32);
    assert_eq!((word(64) as u32, &image[96..112], &image[112..128]), (1, &[0x33; 16][..], &[0x22; 16][..]));
    assert_eq!((word(128), &image[136..152], &image[152..168]), (1 | 2 << 32, &[0x11; 16][..], &[0x22; 16][..]));
    assert_eq!([392, 400, 408, 416, 424, 432, 440].map(word), [4096, 139_264, 4096, 143_360, 16, 32, 0x0102_0304]);
    assert_eq!(word(2176) & ((1 << 56) - 1), 5);
    assert_eq!(word(4096), crc(&image[8192..8199], u64::MAX - 1) | 1 << 32);
    assert_eq!(&image[8192..8199], b"\x03\0\0\0xyz");
    let at = 139_264 + 128;
    assert_eq!(word(at), crc(&image[at + 8..at + 64], 1) | 1 << 32);
    assert_eq!((word(at + 8), word(at + 16), image[at + 8 + 46]), (7, 70, 1));
    assert_eq!((pool.segment_offset(0), image.len()), (143_360, 143_360 + (64 << 10)));
}

fn salvage(image: &[u8]) -> Pool {
    Pool::from_image(image, &OpenOptions { salvage: true, ..OpenOptions::new() }).expect("something can be had")
}

/// A salvage notes everything that a normal opening refuses, and still gets the current records.
#[test]
fn any_flipped_bit_of_page_0_is_set_right_or_passed_over() {
    let (pool, image) = sample_image();
    let mut noted = 0;
    for bit in (0..USED_PAGE_0 * 8).step_by(3) {
        let image = flipped(&image, bit / 8, (bit % 8) as u32);
        let salvaged = salvage(&image);
        assert_eq!(salvaged.superblock(), pool.superblock(), "bit {bit}");
        assert_eq!((salvaged.catalogue().unwrap(), salvaged.descriptor(3).unwrap()), (b"keyspaces".to_vec(), active(2)));
        assert_eq!(open(&image).is_err(), !salvaged.salvage_notes().is_empty(), "bit {bit}: {:?}", salvaged.salvage_notes());
        noted += usize::from(!salvaged.salvage_notes().is_empty());
    }
    assert!(noted > 2_700, "{noted}");
    assert_eq!(salvage(&image).salvage_notes().len(), 0);
    assert!(!salvage(&image).has_lost_settled() && salvage(&flipped(&image, SETTLED_OFF + 7, 1)).has_lost_settled());
}

/// Regression: a feature that only writers must know hid the intact record from a salvage, which writes nothing.
#[test]
fn a_salvage_ignores_what_only_writers_must_know() {
    let (pool, _) = sample_image();
    let info = SuperblockInfo { ro_compat: 2, ..pool.superblock() };
    for _ in 0..2 {
        SUPERBLOCK.commit(&pool.access, &info.pool_uuid, &info.encode()).unwrap();
    }
    let image = image_of(&pool);
    let private = OpenOptions { medium: MediumChoice::PrivateCopy, salvage: true, ..OpenOptions::new() };
    for slot in [SUPER_SLOT_A_OFF, SUPER_SLOT_B_OFF] {
        let salvaged = Pool::from_image(&flipped(&image, slot + 40, 0), &private).unwrap();
        assert_eq!(salvaged.superblock().ro_compat, 2);
    }
}

/// End of the last small word.
const USED_PAGE_0: u64 = SETTLED_OFF + 24;

#[test]
fn any_flipped_bit_of_catalogue_and_descriptors_is_set_right() {
    let (_, image) = sample_image();
    let slot_b = CATALOGUE_OFF + 4096 + (64 << 10);
    for bit in (0..64).chain((slot_b - CATALOGUE_OFF) * 8..(slot_b - CATALOGUE_OFF + 13) * 8) {
        let salvaged = salvage(&flipped(&image, CATALOGUE_OFF + bit / 8, (bit % 8) as u32));
        if salvaged.catalogue().is_err() {
            let found = &salvaged.salvaged_catalogues()[0];
            assert!(found.is_current && found.value == b"keyspaces", "bit {bit}: {found:?}");
        }
    }
    for bit in 0..DESCRIPTOR_BYTES * 8 {
        let salvaged = salvage(&flipped(&image, TABLE_OFF + 3 * DESCRIPTOR_BYTES + bit / 8, (bit % 8) as u32));
        if salvaged.descriptor(3).is_err() {
            let found = &salvaged.salvaged_descriptors(3)[0];
            assert!(found.is_current && found.value == active(2), "bit {bit}: {found:?}");
        }
    }
}

/// Where more than one bit is damaged, the record before the current one is left.
#[test]
fn what_cannot_be_set_right_leaves_the_record_before() {
    let (pool, mut image) = sample_image();
    let wreck = |image: &mut [u8], at: u64| image[at as usize + 3..at as usize + 40].fill(0xee);
    wreck(&mut image, CATALOGUE_OFF + 4096 + (64 << 10));
    wreck(&mut image, TABLE_OFF + 3 * DESCRIPTOR_BYTES + 64);
    wreck(&mut image, SUPER_SLOT_B_OFF);
    assert!(open(&image).is_err());
    let salvaged = salvage(&image);
    assert_eq!(salvaged.superblock(), SuperblockInfo { open_count: 0, clean: false, ..pool.superblock() });
    assert!(salvaged.salvage_notes()[0].ends_with("the record before it is used instead"), "{:?}", salvaged.salvage_notes());
    let earlier = |found: &Salvaged<Vec<u8>>| !found.is_current && found.value == b"first";
    assert!(salvaged.salvaged_catalogues().iter().any(earlier));
    assert!(salvaged.salvaged_descriptors(3).iter().any(|found| !found.is_current && found.value == active(1)));
    // With neither slot of the superblock intact, nothing is known.
    wreck(&mut image, SUPER_SLOT_A_OFF);
    let nothing = Pool::from_image(&image, &OpenOptions { salvage: true, ..OpenOptions::new() });
    assert!(matches!(nothing, Err(Error::DamagedSuperblock { what: "the superblock", .. })), "{nothing:?}");
    let foreign = Pool::from_image(&[7; 8192], &OpenOptions { salvage: true, ..OpenOptions::new() });
    assert!(matches!(foreign, Err(Error::Foreign { .. })), "{foreign:?}");
}

/// A finished pool on a file, and the file.
fn on_file(dir: &std::path::Path) -> (std::path::PathBuf, Pool) {
    let path = dir.join("node0.pool");
    let pool = Pool::create(&path, &CreateOptions { medium: MediumChoice::File, ..small() }).unwrap();
    pool.finish_creation().unwrap();
    (path, pool)
}

/// Found by hand: growth gave a file that had been truncated meanwhile its old length back, with zeros where data had
/// been, and reported nothing.
#[test]
fn a_file_that_was_truncated_meanwhile_does_not_grow() {
    let dir = tempfile::tempdir().unwrap();
    let (path, pool) = on_file(dir.path());
    let full = pool.len_mapped();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(full - 1).unwrap();
    let refused = pool.grow(1);
    assert!(matches!(refused, Err(Error::ShortFile { found, needed, .. }) if (found, needed) == (full - 1, full)), "{refused:?}");
    assert_eq!((pool.segment_count(), std::fs::metadata(&path).unwrap().len()), (16, full - 1));
}

/// Regression: zeros for a reused segment were written through the file. This gave a file that had been cut short
/// before that segment its length back, with a hole where data had been.
#[test]
fn zeroing_makes_no_truncated_file_long_again() {
    let dir = tempfile::tempdir().unwrap();
    let (path, pool) = on_file(dir.path());
    let (cut, needed) = (pool.segment_offset(3), pool.segment_offset(6));
    pool.zero_segment(4, 2).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(cut).unwrap();
    let refused = pool.zero_segment(4, 2);
    assert!(matches!(refused, Err(Error::ShortFile { found, needed: end, .. }) if (found, end) == (cut, needed)), "{refused:?}");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), cut);
    pool.zero_segment(1, 1).unwrap();
}

/// A device keeps its old content. A pool on it that lost its first page is not created anew, as in a file; nor is one
/// that belongs to a store whose first pool is blank.
#[test]
fn a_device_with_data_is_not_zeroed() {
    let (pool, image) = sample_image();
    let check = |overwrite_unborn| crate::pool::create::check_device(&pool.access, &pool.geometry, overwrite_unborn);
    assert!(matches!(check(false), Err(Error::AlreadyExists { .. })));
    assert!(matches!(check(true), Err(Error::WasInUse { .. })));
    // SAFETY: page 0 is mapped and only this thread has the pool.
    unsafe { pool.write(0, &[0; 4096]) };
    for overwrite_unborn in [false, true] {
        let refused = check(overwrite_unborn);
        assert!(matches!(refused, Err(Error::DamagedSuperblock { what: "the magic", .. })), "{refused:?}");
    }
    assert!(image_of(&pool)[4096..] == image[4096..]);
    let blank = Pool::create_in_memory(&small()).unwrap();
    crate::pool::create::check_device(&blank.access, &blank.geometry, false).unwrap();
}
