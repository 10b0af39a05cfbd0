//! A minute of the soak, the same program: everything happens at once, and nothing is left.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod beside;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
}

use support::beside::{cluster, installed, xtask};

#[test]
fn a_minute_of_everything_at_once_leaves_nothing() {
    let _turn = installed();
    let said = xtask(&["soak", "--cluster", &cluster(), "--minutes", "0.75", "--seed", "8"]);
    assert!(said.contains("nothing is left"), "{said}");
}
