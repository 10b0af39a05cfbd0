//! A minute of `cargo xtask soak`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod operator;
}

use std::path::Path;
use std::process::Command;

use support::kubectl::text;
use support::operator::{cluster, installed};

#[test]
fn random_changes_and_failures_for_a_minute_leave_nothing_behind() {
    let _exclusive = installed();
    let soak = Path::new(env!("CARGO_BIN_EXE_knit-testcluster")).with_file_name("knit-soak");
    assert!(soak.exists(), "{} is missing: cargo build -p knit-soak", soak.display());
    let arguments = ["--cluster", &cluster(), "--minutes", "0.75", "--seed", "8"];
    let output = Command::new(soak).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("nothing is left"), "{printed}");
    let replayed = printed.lines().filter(|line| line.ends_with(" 0 inputs with different decisions"));
    assert_eq!(replayed.count(), 2, "both agents replay to the same decisions: {printed}");
}
