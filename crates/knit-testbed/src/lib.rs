//! Topologies of network namespaces for tests, on the real kernel.
//!
//! A [`Testbed`] holds the topology of one test: a host namespace that represents the node, and as many further
//! namespaces and pods as the test needs. Tests run in parallel, in one process or in many, because every name is
//! unique and the machine's own namespace is never touched. Dropping the testbed deletes everything: processes,
//! mounts, namespaces, also when the test panics.
//!
//! # Example
//!
//! Put it into `tests/netns/` of your crate: test programs whose name starts with `netns` run on the real kernel,
//! with `cargo xtask test netns`.
//!
//! ```no_run
//! use knit_testbed::{Dump, Testbed, assert_same};
//!
//! // #[test]
//! fn two_pods_on_a_bridge_reach_each_other() {
//!     let mut testbed = Testbed::new("bridge");
//!     let host = testbed.host();
//!     let (a, b) = (testbed.pod("a"), testbed.pod("b"));
//!     let before = Dump::take(&host);
//!
//!     testbed.bridge(&host, "br0");
//!     for (pod, port, number) in [(&a, "port-a", 1), (&b, "port-b", 2)] {
//!         testbed.connect(pod, "eth0", &host, port);
//!         host.enslave(port, "br0");
//!         pod.address("eth0", &format!("10.0.0.{number}/24"));
//!         pod.address("eth0", &format!("fd00::{number}/64"));
//!     }
//!     a.ping("10.0.0.2").unwrap();
//!     a.ping("fd00::2").unwrap();
//!     let server = b.tcp_echo("10.0.0.2:8080");
//!     a.tcp_reaches(server.address()).unwrap();
//!
//!     // Deleting the pods' links and the bridge restores the host.
//!     a.ip(&["link", "del", "eth0"]);
//!     b.ip(&["link", "del", "eth0"]);
//!     host.ip(&["link", "del", "br0"]);
//!     assert_same!(before, Dump::take(&host));
//!
//!     testbed.close();
//!     testbed.assert_nothing_left();
//! }
//! # two_pods_on_a_bridge_reach_each_other();
//! ```
//!
//! # When a test fails
//!
//! A panic prints every namespace's links, addresses, routes and background processes, and the command to enter
//! it. So let a test fail by a panic (`unwrap`, `assert!`), not by returning an `Err`. Everything is deleted
//! afterwards, unless the test runs with `KNIT_TESTBED_KEEP=1`, which keeps it and prints how to delete it.
//!
//! # Without root
//!
//! Creating namespaces needs `CAP_SYS_ADMIN`. Without it a test fails; it is never skipped. A user namespace
//! provides it to any user:
//!
//! ```text
//! unshare --user --map-root-user --net --mount --pid --fork --kill-child --mount-proc <test binary>
//! ```
//!
//! There `/run/netns` belongs to another user, so the testbed mounts its own tmpfs over it, or over `/run` if
//! `/run/netns` does not exist. The machine does not see that mount.

mod confinement;
mod deployment;
mod dump;
mod echo;
mod error;
mod failure_report;
mod holders;
mod leftovers;
mod links;
mod names;
mod namespace;
mod netns;
mod netns_dir;
mod pod;
mod process;
mod reachability;
mod testbed;

use std::time::{Duration, Instant};

pub use confinement::Confinement;
pub use deployment::Deployed;
pub use dump::{Dump, without_table_owners};
pub use echo::EchoServer;
pub use error::Error;
pub use namespace::Namespace;
pub use pod::Pod;
pub use process::Process;
pub use reachability::{ECHO_REQUEST, Rtt};
pub use testbed::Testbed;

/// Waits until `condition` holds; panics with `what` if it does not within `limit`.
#[track_caller]
pub fn eventually(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eventually_waits_for_the_condition() {
        let mut left = 3;
        eventually("three calls", Duration::from_secs(5), || {
            left -= 1;
            left == 0
        });
    }

    #[test]
    #[should_panic(expected = "never true: not within 5ms")]
    fn eventually_times_out() {
        eventually("never true", Duration::from_millis(5), || false);
    }
}
