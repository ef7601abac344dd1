//! Checks linearizability of one key's history, after Wing and Gong, with memoised configurations.
//!
//! A history is a list of operations with the moments of their call and return. It is linearizable if each operation
//! can be given one moment between its call and its return such that a register that executes them at these moments
//! gives the recorded results.
//!
//! An operation cut short by a crash has no result. It may have happened or not, but not after the crash: its `end` is
//! the moment of the crash. With that rule the check is one of *durable* linearizability.
//!
//! Values are numbers; `None` is absence. The cost is linear in the length of the history as long as few operations
//! overlap. Not concurrent; nothing persistent.

use std::collections::HashSet;

/// A moment, in nanoseconds of some clock common to all threads.
pub type Moment = u64;

/// A register's content.
pub type Content = Option<u64>;

/// What an operation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read this content.
    Read(Content),
    /// Wrote this content.
    Write(Content),
    /// Deleted the key, and reported whether it was there.
    Delete {
        /// The key was there.
        existed: bool,
    },
    /// Added one to the content; absence counts as 0.
    Add {
        /// The reported sum.
        sum: u64,
    },
    /// Compared and swapped.
    Cas {
        /// The expected content.
        expected: Content,
        /// The content to write.
        new: Content,
        /// Whether the write was applied.
        applied: bool,
    },
}

impl Action {
    /// The content after the action on `content`; `None` if the action cannot have had this result.
    fn apply(self, content: Content) -> Option<Content> {
        match self {
            Action::Read(seen) => (seen == content).then_some(content),
            Action::Write(new) => Some(new),
            Action::Delete { existed } => (existed == content.is_some()).then_some(None),
            Action::Add { sum } => (content.unwrap_or(0) + 1 == sum).then_some(Some(sum)),
            Action::Cas { expected, new, applied: true } => (content == expected).then_some(new),
            Action::Cas { expected, applied: false, .. } => (content != expected).then_some(content),
        }
    }

    /// The content after the action if its result is unknown.
    fn apply_unseen(self, content: Content) -> Content {
        match self {
            Action::Read(_) => content,
            Action::Write(new) => new,
            Action::Delete { .. } => None,
            Action::Add { .. } => Some(content.unwrap_or(0) + 1),
            Action::Cas { expected, new, .. } => {
                if content == expected {
                    new
                } else {
                    content
                }
            }
        }
    }
}

/// One operation on the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// When it was called.
    pub start: Moment,
    /// When it returned, or the moment of the crash that cut it short.
    pub end: Moment,
    /// Whether it returned; if not, a crash cut it short.
    pub complete: bool,
    /// What it did; the results of an incomplete one are ignored.
    pub action: Action,
}

/// Describes a history that no register can have had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The largest number of operations that could be ordered.
    pub ordered: usize,
    /// The operations around the place where the attempt that came furthest got stuck.
    pub around: Vec<Operation>,
}

/// The state of an attempt: all operations below `low` are ordered, and those in `beyond`.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Attempt {
    low: usize,
    beyond: Vec<usize>,
    content: Content,
}

impl Attempt {
    fn has(&self, at: usize) -> bool {
        at < self.low || self.beyond.binary_search(&at).is_ok()
    }

    /// This attempt with one more operation ordered.
    fn with(&self, at: usize, content: Content) -> Attempt {
        let mut next = Attempt { content, ..self.clone() };
        if let Err(place) = next.beyond.binary_search(&at) {
            next.beyond.insert(place, at);
        }
        let adjacent = next.beyond.iter().enumerate().take_while(|(i, at)| **at == next.low + i).count();
        next.beyond.drain(..adjacent);
        next.low += adjacent;
        next
    }

    fn ordered(&self) -> usize {
        self.low + self.beyond.len()
    }
}

/// Checks the history of one key that held `initial` at first.
///
/// # Errors
/// The violation, if no attempt orders all operations.
pub fn check(initial: Content, operations: &[Operation]) -> Result<(), Violation> {
    let mut sorted = operations.to_vec();
    sorted.sort_by_key(|operation| (operation.start, operation.end));
    let mut attempts = vec![Attempt { low: 0, beyond: Vec::new(), content: initial }];
    let mut seen = HashSet::new();
    let mut furthest = (0, 0);
    while let Some(attempt) = attempts.pop() {
        if attempt.low == sorted.len() {
            return Ok(());
        }
        furthest = furthest.max((attempt.ordered(), attempt.low));
        // The last one pushed is tried first, so the later operations are pushed first.
        for next in successors(&attempt, &sorted).into_iter().rev() {
            if seen.insert(next.clone()) {
                attempts.push(next);
            }
        }
    }
    let around = sorted[furthest.1.saturating_sub(4)..].iter().take(16).copied().collect();
    Err(Violation { ordered: furthest.0, around })
}

/// Every way to order one more operation. Only an operation that was called before any unordered one returned can come
/// next.
fn successors(attempt: &Attempt, sorted: &[Operation]) -> Vec<Attempt> {
    let mut earliest_end = Moment::MAX;
    let mut next = Vec::new();
    for (at, operation) in sorted.iter().enumerate().skip(attempt.low) {
        if operation.start > earliest_end {
            break;
        }
        if !attempt.has(at) {
            earliest_end = earliest_end.min(operation.end);
        }
    }
    for (at, operation) in sorted.iter().enumerate().skip(attempt.low) {
        if operation.start > earliest_end {
            break;
        }
        if attempt.has(at) {
            continue;
        }
        if operation.complete {
            next.extend(operation.action.apply(attempt.content).map(|content| attempt.with(at, content)));
            continue;
        }
        let happened = operation.action.apply_unseen(attempt.content);
        if happened != attempt.content {
            next.push(attempt.with(at, happened));
        }
        // It may not have happened at all.
        next.push(attempt.with(at, attempt.content));
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(start: Moment, end: Moment, action: Action) -> Operation {
        Operation { start, end, complete: true, action }
    }

    fn cut(start: Moment, end: Moment, action: Action) -> Operation {
        Operation { start, end, complete: false, action }
    }

    #[test]
    fn overlapping_operations_may_be_ordered_either_way() {
        let writes = [op(0, 10, Action::Write(Some(1))), op(0, 10, Action::Write(Some(2)))];
        for seen in [1, 2] {
            let history = [&writes[..], &[op(11, 12, Action::Read(Some(seen)))]].concat();
            assert_eq!(check(None, &history), Ok(()));
        }
        let history = [&writes[..], &[op(11, 12, Action::Read(None))]].concat();
        assert!(check(None, &history).is_err());
        let history = [&writes[..], &[op(11, 12, Action::Read(Some(1))), op(13, 14, Action::Read(Some(2)))]].concat();
        assert!(check(None, &history).is_err(), "reads agree on the order");
    }

    #[test]
    fn stale_reads_and_lost_writes_are_found() {
        let stale = [op(0, 1, Action::Write(Some(1))), op(2, 3, Action::Write(Some(2))), op(4, 5, Action::Read(Some(1)))];
        assert_eq!(check(None, &stale).unwrap_err().ordered, 2);
        let lost = [op(0, 1, Action::Write(Some(1))), op(10, 11, Action::Read(None))];
        assert!(check(None, &lost).is_err());
    }

    #[test]
    fn cut_short_means_happened_or_not_but_not_later() {
        let cut_write = cut(0, 5, Action::Write(Some(1)));
        for seen in [None, Some(1)] {
            assert_eq!(check(None, &[cut_write, op(6, 7, Action::Read(seen)), op(8, 9, Action::Read(seen))]), Ok(()));
        }
        let comes_late = [cut_write, op(6, 7, Action::Read(None)), op(8, 9, Action::Read(Some(1)))];
        assert!(check(None, &comes_late).is_err());
        let seen_then_lost = [cut_write, op(1, 2, Action::Read(Some(1))), op(6, 7, Action::Read(None))];
        assert!(check(None, &seen_then_lost).is_err(), "what a read returned is durable");
    }

    #[test]
    fn swaps_and_deletes_say_what_they_found() {
        let cas = |expected, new, applied| Action::Cas { expected, new, applied };
        assert_eq!(check(None, &[op(0, 1, cas(None, Some(1), true)), op(2, 3, cas(None, Some(2), false))]), Ok(()));
        assert!(check(None, &[op(0, 1, cas(None, Some(1), true)), op(2, 3, cas(None, Some(2), true))]).is_err());
        assert!(check(None, &[op(0, 1, Action::Delete { existed: true })]).is_err());
        let add = |sum| Action::Add { sum };
        assert_eq!(check(None, &[op(0, 1, add(1)), op(2, 9, add(3)), op(2, 9, add(2)), op(10, 11, Action::Read(Some(3)))]), Ok(()));
        assert!(check(None, &[op(0, 1, add(1)), op(2, 3, add(1))]).is_err(), "the first one is lost");
        assert_eq!(check(None, &[cut(0, 1, add(0)), op(2, 3, add(2))]), Ok(()));
        let racing = [op(0, 9, cas(Some(5), Some(6), true)), op(0, 9, Action::Write(Some(5))), op(0, 9, Action::Delete { existed: true })];
        assert_eq!(check(None, &racing), Ok(()));
    }

    #[test]
    fn long_histories_are_checked() {
        let mut history = Vec::new();
        for i in 0..20_000u64 {
            history.push(op(i * 10, i * 10 + 25, Action::Write(Some(i))));
            history.push(op(i * 10 + 26, i * 10 + 27, Action::Read(Some(i))));
        }
        // Writes overlap the next two, and each read comes right after the end of its write: it must see a write that
        // overlaps.
        assert_eq!(check(None, &history), Ok(()));
        history.push(op(1 << 40, 1 << 41, Action::Read(None)));
        assert_eq!(check(None, &history).unwrap_err().ordered, 40_000);
    }
}
