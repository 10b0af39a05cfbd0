//! A thread that switches namespaces by itself is back in its own after each request.

use std::thread;

use knit_kernel::netlink::Protocol;
use knit_kernel::netns::allow_netns_switch;
use knit_kernel::{Netns, Socket};

#[test]
fn a_thread_that_switches_namespaces_returns() {
    let (home, away) = (Netns::unnamed().unwrap(), Netns::unnamed().unwrap());
    let there = away.cookie().unwrap();
    let requests = || {
        allow_netns_switch().unwrap();
        for _ in 0..3 {
            let socket = Socket::open_in(&away, Protocol::Route).unwrap();
            assert_eq!(socket.netns_cookie().unwrap(), there);
            assert!(Netns::current().unwrap().is_same(&home).unwrap());
            assert_eq!(socket.link_index("lo").unwrap(), Some(1));
        }
    };
    home.enter(requests).unwrap();
    // Other threads still hand their requests over.
    thread::spawn(move || assert_eq!(away.cookie().unwrap(), there)).join().unwrap();
}
