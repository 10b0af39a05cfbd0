//! A thread that visits namespaces itself is back home after each visit.

use std::thread;

use knit_kernel::netlink::Protocol;
use knit_kernel::netns::may_visit;
use knit_kernel::{Netns, Socket};

#[test]
fn a_thread_that_visits_namespaces_itself_comes_back() {
    let (home, away) = (Netns::unnamed().unwrap(), Netns::unnamed().unwrap());
    let there = away.cookie().unwrap();
    let visits = || {
        may_visit().unwrap();
        for _ in 0..3 {
            let socket = Socket::open_in(&away, Protocol::Route).unwrap();
            assert_eq!(socket.netns_cookie().unwrap(), there);
            assert!(Netns::current().unwrap().is_same(&home).unwrap());
            assert_eq!(socket.link_index("lo").unwrap(), Some(1));
        }
    };
    home.enter(visits).unwrap();
    // Others are not concerned: they hand their visits over.
    thread::spawn(move || assert_eq!(away.cookie().unwrap(), there)).join().unwrap();
}
