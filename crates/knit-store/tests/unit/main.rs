//! Opening, damage, history and format versions of the journal.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod fuzz_state;
mod history;
mod numbers;
mod reopen;
mod versions;
