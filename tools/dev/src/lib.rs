//! What the developer tools share: the checkout and the cache, Debian packages, child processes, progress.
//!
//! `xtask` links this crate and builds before anything else, so it has few dependencies and none of Knit's crates.

pub mod packages;
pub mod places;
pub mod process;
pub mod progress;
