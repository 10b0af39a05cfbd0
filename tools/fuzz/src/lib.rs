//! Coverage-guided fuzzing of everything that reads bytes from outside.
//!
//! A target is a function of bytes that panics if a parser does, or if what it parsed violates an invariant. [`TARGETS`] lists
//! them; the module `targets` has the functions. libFuzzer runs them in a program that only the feature `libfuzzer` builds;
//! [`fuzzer`] builds and starts it. An ordinary test runs every target over its corpus.
//!
//! No target opens a socket, and only the journal's touches files, in a temporary folder.

pub mod corpus;
pub mod fuzzer;
mod list;
#[cfg(feature = "targets")]
pub mod targets;

pub use list::{TARGETS, Target};
