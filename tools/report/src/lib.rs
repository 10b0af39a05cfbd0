//! Samples, rows and tables of benchmarks and simulations.

mod measure;
mod report;

pub use measure::*;
pub use report::*;
