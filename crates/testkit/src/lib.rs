//! Crash explorer, oracle and history checks
