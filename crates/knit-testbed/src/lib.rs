//! Topologies of network namespaces for tests, on the real kernel.
//!
//! A [`Testbed`] is the whole world of one test: a host namespace that stands for the node, and as many
//! further namespaces and pods as the test asks for. Tests run in parallel, in one process or in many, because
//! every name is unique and the machine's own namespace is never touched. When the testbed goes, everything
//! goes: processes, mounts, namespaces, also when the test panics.
//!
//! # A test to copy
//!
//! Put it into a file `tests/netns_<what>.rs` of your crate: files whose name starts with `netns` run on the
//! real kernel, with `cargo xtask test netns`.
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
//!     // What comes must go: deleting the pods' links and the bridge gives the host back as it was.
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
//! A panic prints every namespace's links, addresses, routes and background processes, and the command to look
//! inside. So let a test fail by a panic (`unwrap`, `assert!`), not by returning an `Err`. All of it is gone
//! by then, unless you run the test with `KNIT_TESTBED_KEEP=1`, which keeps it and prints how to remove it.
//!
//! # Without root
//!
//! Making namespaces needs `CAP_SYS_ADMIN`. Where it is missing a test fails, it is never skipped. A user
//! namespace gives it to everybody:
//!
//! ```text
//! unshare --user --map-root-user --net --mount --pid --fork --kill-child --mount-proc <test binary>
//! ```
//!
//! There `/run/netns` belongs to somebody else, so that the testbed mounts a tmpfs of its own over it, or over
//! `/run` when `/run/netns` does not exist. The machine never sees that mount.

mod birth;
mod dump;
mod echo;
mod error;
mod failure;
mod holders;
mod leftovers;
mod links;
mod names;
mod namespace;
mod place;
mod pod;
mod process;
mod reach;
mod testbed;

use std::time::{Duration, Instant};

pub use dump::Dump;
pub use echo::Echo;
pub use error::Error;
pub use namespace::Namespace;
pub use pod::Pod;
pub use process::Process;
pub use reach::Rtt;
pub use testbed::Testbed;

/// Waits until `condition` holds; panics with `what` when it does not within `limit`.
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
        eventually("three looks", Duration::from_secs(5), || {
            left -= 1;
            left == 0
        });
    }

    #[test]
    #[should_panic(expected = "the moon falls: not within 5ms")]
    fn eventually_gives_up() {
        eventually("the moon falls", Duration::from_millis(5), || false);
    }
}
