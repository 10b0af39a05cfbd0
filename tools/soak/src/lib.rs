//! Random changes and failures on a real cluster ([`soak`]), and the harness of Knit on a test cluster ([`harness`]),
//! which benchmarks use too.

pub mod harness;
pub mod soak;
