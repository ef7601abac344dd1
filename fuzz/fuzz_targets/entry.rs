//! Runs `EntryView::verify` and `EntryView::parse` on arbitrary bytes. They must end, stay inside the bytes, and accept
//! only what the checksum covers.
//!
//! `cargo fuzz run -s none entry` (or, without `-s none`, with the address sanitizer and `RUSTC_BOOTSTRAP=1`).

#![no_main]

use hither_log::entry::{EntryView, MAX_KEY_BYTES, MIN_BYTES};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((place, bytes)) = data.split_first_chunk::<16>() else { return };
    let generation = u64::from_le_bytes(place[..8].try_into().expect("8 bytes"));
    let offset = u64::from_le_bytes(place[8..].try_into().expect("8 bytes")) & !7;
    let Ok(view) = EntryView::parse(bytes) else {
        assert!(EntryView::verify(bytes, generation, offset).is_err(), "verified what cannot be parsed");
        return;
    };
    assert!(view.size >= MIN_BYTES && view.size % 8 == 0);
    assert!(!view.key.is_empty() && view.key.len() <= MAX_KEY_BYTES);
    let inside = |part: &[u8]| bytes.as_ptr_range().start <= part.as_ptr() && part.as_ptr_range().end <= bytes.as_ptr_range().end;
    assert!(inside(view.key) && inside(view.value));
    let _ = (view.op(), view.batch(), view.expiry_ms(), view.version(0), view.keyspace(0), view.parent(), view.parent_generation());
    // One flipped bit in the bytes that the checksum covers is always detected.
    if EntryView::verify(bytes, generation, offset).is_ok() {
        let mut flipped = bytes.to_vec();
        let at = view.key.as_ptr() as usize - bytes.as_ptr() as usize;
        flipped[at] ^= 1;
        assert!(EntryView::verify(&flipped, generation, offset).is_err(), "a flipped bit of the key went unnoticed");
    }
});
