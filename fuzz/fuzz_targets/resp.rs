//! The protocol's parser and decoder on arbitrary bytes: they end, stay within their limits, and find the same requests however the bytes are cut.
//!
//! `cargo fuzz run -s none resp`. The first byte says where the rest is cut.

#![no_main]

use hither_resp::{Limits, Parser, decode};
use libfuzzer_sys::fuzz_target;

fn requests(parts: &[&[u8]], limits: Limits) -> (Vec<Vec<Vec<u8>>>, bool) {
    let (mut parser, mut found, mut buffer) = (Parser::new(limits), Vec::new(), Vec::new());
    for part in parts {
        buffer.extend_from_slice(part);
        loop {
            match parser.parse(&buffer) {
                Ok(Some(length)) => {
                    found.push(parser.args(&buffer).iter().map(<[u8]>::to_vec).collect());
                    buffer.drain(..length);
                }
                Ok(None) => break,
                Err(_) => return (found, false),
            }
        }
    }
    (found, true)
}

fuzz_target!(|data: &[u8]| {
    let Some((cut, bytes)) = data.split_first() else { return };
    let limits = Limits { max_args: 64, max_bulk_bytes: 256, max_request_bytes: 2048, max_line_bytes: 128, max_depth: 8 };
    let (first, second) = bytes.split_at(usize::from(*cut).min(bytes.len()));
    let whole = requests(&[bytes], limits);
    assert_eq!(requests(&[first, second], limits), whole, "a cut changes the requests");
    for request in &whole.0 {
        assert!(request.iter().map(Vec::len).sum::<usize>() <= 2048);
    }
    if let Ok(Some((_, length))) = decode(bytes, &limits) {
        assert!(length <= bytes.len());
    }
});
