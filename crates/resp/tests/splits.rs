//! However the bytes are cut, the parser returns the same requests. Garbage never causes a panic, and limits hold.

use hither_resp::{Limits, Parser, Protocol, ProtocolError, Value, Writer, decode};
use proptest::prelude::*;

type Request = Vec<Vec<u8>>;

/// Feeds `stream` in pieces that end at `cuts`, as a connection would.
fn run(stream: &[u8], cuts: &[usize], limits: Limits) -> (Vec<Request>, Option<ProtocolError>) {
    let mut parser = Parser::new(limits);
    let (mut requests, mut buffer) = (Vec::new(), Vec::new());
    let mut from = 0;
    for to in cuts.iter().copied().chain([stream.len()]) {
        let to = to.clamp(from, stream.len());
        buffer.extend_from_slice(&stream[from..to]);
        from = to;
        loop {
            match parser.parse(&buffer) {
                Ok(Some(end)) => {
                    requests.push(parser.args(&buffer).iter().map(<[u8]>::to_vec).collect());
                    buffer.drain(..end);
                }
                Ok(None) => break,
                Err(error) => return (requests, Some(error)),
            }
        }
    }
    (requests, None)
}

fn encode(request: &Request) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = Writer::new(&mut out, Protocol::Resp2);
    writer.array(request.len());
    request.iter().for_each(|argument| writer.bulk(argument));
    out
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..6), 1..8)
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(0usize..600, 0..20).prop_map(|mut cuts| {
        cuts.sort_unstable();
        cuts
    })
}

/// Garbage that resembles the protocol more often than random bytes.
fn garbage() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"*".to_vec()),
        Just(b"$".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"\n".to_vec()),
        Just(b"-1".to_vec()),
        Just(b"3".to_vec()),
        Just(b"\"".to_vec()),
        Just(b"'".to_vec()),
        Just(b"\\x4".to_vec()),
        Just(b"99999999999999999999".to_vec()),
        Just(b"%".to_vec()),
        Just(b"|".to_vec()),
        Just(b"=4".to_vec()),
        prop::collection::vec(any::<u8>(), 0..6),
    ];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_cut_gives_the_same_requests(requests in requests(), cuts in cuts()) {
        let stream: Vec<u8> = requests.iter().flat_map(encode).collect();
        prop_assert_eq!(run(&stream, &cuts, Limits::default()), (requests, None));
    }

    #[test]
    fn any_cut_of_garbage_gives_the_same_outcome(stream in garbage(), cuts in cuts()) {
        let limits = Limits { max_line_bytes: 50, max_bulk_bytes: 30, max_args: 5, max_request_bytes: 90, ..Limits::default() };
        let each: Vec<usize> = (0..stream.len()).collect();
        prop_assert_eq!(run(&stream, &cuts, limits), run(&stream, &each, limits));
        for request in run(&stream, &cuts, limits).0 {
            prop_assert!(request.len() <= 50 && request.iter().map(Vec::len).sum::<usize>() <= 90);
        }
    }

    #[test]
    fn values_of_garbage_end_and_stay_inside(stream in garbage()) {
        if let Ok(Some((_, length))) = decode(&stream, &Limits::default()) {
            prop_assert!(length <= stream.len());
        }
    }

    #[test]
    fn a_request_is_an_array_of_bulk_strings(requests in requests()) {
        for request in requests {
            let bytes = encode(&request);
            let expected = Value::Array(request.into_iter().map(Value::Bulk).collect());
            prop_assert_eq!(decode(&bytes, &Limits::default()), Ok(Some((expected, bytes.len()))));
        }
    }
}
