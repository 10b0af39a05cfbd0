//! In-memory nodes, clusters and extensions that the tests drive.

pub mod blocks_cluster;
pub mod executor;
pub mod extension_node;
#[path = "../../../knit-model/tests/unit/fake_kernel.rs"]
#[allow(dead_code, reason = "shared with the tests of knit-model")]
pub mod kernel;
pub mod node;
pub mod pools_cluster;
pub mod quota_cluster;

use knit_engine::{Settings, State, tenant_ranges};
use proptest::test_runner::Config;

/// The settings of a node on which all ranges are open to tenants: tests of other rules use any.
pub fn settings() -> Settings {
    Settings { tenant_ranges: tenant_ranges::all_addresses().to_vec(), ..Settings::default() }
}

/// A state with [`settings`]. The journal does not have them: an agent sets them at every start.
pub fn with_settings(mut state: State) -> State {
    state.settings = settings();
    state
}

/// A property test with this many cases, or as many as `PROPTEST_CASES` requests. Cases differ in each run, so that few of
/// them per run still cover many over time.
pub fn cases(default: u32) -> Config {
    let requested = std::env::var("PROPTEST_CASES").ok().and_then(|count| count.parse().ok());
    Config { cases: requested.unwrap_or(default), ..Config::default() }
}
