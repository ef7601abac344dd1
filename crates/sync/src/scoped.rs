//! A thread-local value that applies while a closure runs.
//!
//! Thread safety: the value belongs to one thread.

use std::cell::Cell;
use std::thread::LocalKey;

/// Runs `f` while the cell holds `value`, and puts the cell's previous value back afterwards, also if `f` panics.
pub fn with_value<T: 'static, R>(cell: &'static LocalKey<Cell<T>>, value: T, f: impl FnOnce() -> R) -> R {
    struct Restore<T: 'static>(&'static LocalKey<Cell<T>>, Option<T>);
    impl<T: 'static> Drop for Restore<T> {
        fn drop(&mut self) {
            if let Some(before) = self.1.take() {
                self.0.set(before);
            }
        }
    }
    let _restore = Restore(cell, Some(cell.replace(value)));
    f()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_before_comes_back() {
        thread_local!(static DEPTH: Cell<u32> = const { Cell::new(0) });
        let inner = with_value(&DEPTH, 1, || (with_value(&DEPTH, 2, || DEPTH.get()), DEPTH.get()));
        assert_eq!((inner, DEPTH.get()), ((2, 1), 0));
        assert!(std::panic::catch_unwind(|| with_value(&DEPTH, 3, || panic!("planted"))).is_err());
        assert_eq!(DEPTH.get(), 0);
    }
}
