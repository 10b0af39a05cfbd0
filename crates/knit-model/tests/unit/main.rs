//! Properties of plans.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

#[allow(dead_code, reason = "shared with the tests of knit-engine")]
mod fake_kernel;
mod generate;
mod plans;
