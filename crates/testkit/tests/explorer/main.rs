//! The crash explorer: on the production code, and on planted bugs.

#![forbid(unsafe_code)]

mod explore;
mod planted;
mod sweep_marks;
