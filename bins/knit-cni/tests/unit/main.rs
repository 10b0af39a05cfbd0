//! The plugin as a library with arbitrary input, and as a process.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod check;
mod fuzz_calls;
mod process;
mod status;
