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
