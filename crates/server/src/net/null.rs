//! The answers of a null server, which shows what the network code costs without commands behind it. For measurements
//! only.

use hither_resp::{Args, Protocol, Writer};

/// The reply to GET.
const VALUE: [u8; 100] = [b'v'; 100];

/// Answers a request by its command name alone.
#[inline]
pub fn answer(args: Args<'_>, out: &mut Vec<u8>) {
    let mut reply = Writer::new(out, Protocol::Resp2);
    match args.get(0) {
        Some(name) if name.eq_ignore_ascii_case(b"get") => reply.bulk(&VALUE),
        Some(name) if name.eq_ignore_ascii_case(b"ping") => reply.simple("PONG"),
        _ => reply.ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_by_name() {
        let mut out = Vec::new();
        let request = b"GETsetPING";
        for range in [0..3, 3..6, 6..10] {
            answer(Args::new(request, &[range]), &mut out);
        }
        assert_eq!(out, [b"$100\r\n".as_slice(), &VALUE, b"\r\n+OK\r\n+PONG\r\n"].concat());
    }
}
