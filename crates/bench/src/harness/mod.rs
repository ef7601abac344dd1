//! The harness: threads, loops, latencies, memory and records.
//!
//! *Closed loop* ([`closed`]): each thread starts its next operation when the last one ended; this measures throughput.
//! Few calls are timed ([`sampling`]), so that the clock does not slow the loop.
//!
//! *Open loop* ([`open`]): operations are due at a fixed rate, and latency counts from the moment an operation was
//! *due*. So a stall delays every operation behind it (coordinated omission is accounted for).
//!
//! Thread safety: one worker per thread. The workers start together at a barrier, and are pinned if there are no more
//! threads than processors.

pub mod closed;
pub mod latency;
pub mod machine;
pub mod memory;
pub mod open;
pub mod pin;
pub mod record;
pub mod sampling;
pub mod scratch;
pub mod script;
pub mod spec;
pub mod steady;
pub mod team;
pub mod verify;
mod worker;

/// The median; for an even number of values the mean of the middle two. `None` if there are no values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    match n {
        0 => None,
        _ if n % 2 == 1 => Some(sorted[n / 2]),
        _ => Some((sorted[n / 2 - 1] + sorted[n / 2]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}
