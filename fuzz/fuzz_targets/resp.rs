//! Runs the protocol's parser and decoder on arbitrary bytes. They must end, stay within their limits, find the same
//! requests however the bytes are cut, and find the same requests as the crate `redis-protocol`.
//!
//! `cargo fuzz run -s none resp`. The first byte determines where the rest is cut.

#![no_main]

use hither_resp::{Limits, Parser, decode};
use libfuzzer_sys::fuzz_target;
use redis_protocol::resp2::decode::decode as decode_theirs;
use redis_protocol::resp2::types::OwnedFrame;

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

/// The first request as the oracle reads it; `None` if it is incomplete, is no request, or is not an array of bulk
/// strings.
fn oracle(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let (frame, length) = decode_theirs(bytes).ok()??;
    let OwnedFrame::Array(items) = frame else { return None };
    let bulk = |item| match item {
        OwnedFrame::BulkString(text) => Some(text),
        _ => None,
    };
    items.into_iter().map(bulk).collect::<Option<Vec<_>>>().map(|words| (words, length))
}

/// Checks that both find the same request at the beginning of `bytes` if both find one, and that the parser accepts,
/// within its limits, what the oracle accepts.
fn compare(bytes: &[u8], limits: Limits) {
    if bytes.first() != Some(&b'*') {
        // The oracle does not know inline commands.
        return;
    }
    let mut parser = Parser::new(limits);
    let ours = match parser.parse(bytes) {
        Ok(Some(length)) => Ok(Some((parser.args(bytes).iter().map(<[u8]>::to_vec).collect::<Vec<_>>(), length))),
        Ok(None) => Ok(None),
        Err(error) => Err(error),
    };
    let theirs = oracle(bytes);
    match (&ours, &theirs) {
        (Ok(Some(ours)), Some(theirs)) => assert_eq!(ours, theirs, "two parsers, two requests"),
        // An empty array is a blank request; with a negative length it is no frame for the oracle.
        (Ok(Some((words, _))), None) => assert!(words.is_empty(), "the oracle finds no request, the parser {words:?}"),
        (Ok(None), Some(theirs)) => panic!("the parser waits for more, the oracle has {theirs:?}"),
        (Err(error), Some((words, length))) => {
            let within = words.len() <= limits.max_args
                && words.iter().all(|word| word.len() <= limits.max_bulk_bytes)
                && *length <= limits.max_request_bytes;
            // Numbers in the form in which Redis writes them: no sign, no leading zeros.
            assert!(!within || !is_plain(bytes, *length), "refused, within the limits: {error}: {words:?}");
        }
        (_, None) => {}
    }
}

/// Whether every length is written in the shortest form, and every line ends with both bytes.
fn is_plain(bytes: &[u8], length: usize) -> bool {
    let Some((words, _)) = oracle(bytes) else { return false };
    let mut plain = format!("*{}\r\n", words.len()).into_bytes();
    for word in &words {
        plain.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        plain.extend_from_slice(word);
        plain.extend_from_slice(b"\r\n");
    }
    plain == bytes[..length]
}

fuzz_target!(|data: &[u8]| {
    let Some((cut, bytes)) = data.split_first() else { return };
    let limits = Limits { max_args: 64, max_bulk_bytes: 256, max_request_bytes: 2048, max_line_bytes: 128, max_depth: 8, ..Limits::default() };
    let (first, second) = bytes.split_at(usize::from(*cut).min(bytes.len()));
    let whole = requests(&[bytes], limits);
    assert_eq!(requests(&[first, second], limits), whole, "a cut changes the requests");
    for request in &whole.0 {
        assert!(request.iter().map(Vec::len).sum::<usize>() <= 2048);
    }
    compare(bytes, limits);
    if let Ok(Some((_, length))) = decode(bytes, &limits) {
        assert!(length <= bytes.len());
    }
});
