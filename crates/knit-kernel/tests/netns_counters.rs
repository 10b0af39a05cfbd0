//! Counters, NICs and ways on the real kernel. Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #![allow(dead_code, reason = "each test file uses a part of it")]
    pub mod seen;
    pub mod states;
    pub mod world;
}

use std::collections::BTreeSet;

use knit_kernel::Netns;
use knit_kernel::counters::counters;
use knit_kernel::nics::nics;
use knit_kernel::ways::{Links, link_with};
use knit_model::NetState;
use support::states::{add_bridge, add_veth, name};
use support::world::World;

fn world(test: &str) -> World {
    let world = World::new(test, &["a", "b"]);
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "a", "br0", &["10.50.0.2/24"]);
    add_veth(&mut state, "b", "br0", &["10.50.0.3/24"]);
    world.make(&state);
    world
}

#[test]
fn what_goes_through_a_link_is_counted_in_its_own_namespace() {
    let world = world("counters");
    let netns = Netns::open(world.sandboxes[0].path()).unwrap();
    let cookie = netns.cookie().unwrap();
    let count = || counters(&netns, cookie).unwrap().unwrap()[&name("net1")];
    let before = count();
    world.sandboxes[0].output("ping", &["-c", "3", "-i", "0.01", "-s", "1000", "10.50.0.3"]).unwrap();
    let after = count();
    for (before, after) in [(before.rx, after.rx), (before.tx, after.tx)] {
        assert!(after.packets >= before.packets + 3, "{before:?} {after:?}");
        assert!(after.bytes >= before.bytes + 3_000, "{before:?} {after:?}");
        assert_eq!(after.errors, 0);
    }
    assert_eq!(counters(&netns, cookie + 1).unwrap(), None, "another namespace by now");
}

#[test]
fn what_software_made_is_no_nic_unless_it_is_named() {
    let world = world("nics");
    let host = Netns::open(world.host.path()).unwrap();
    assert_eq!(nics(&host, &BTreeSet::new()).unwrap(), []);
    let all = nics(&host, &BTreeSet::from([name("br0"), name("none")])).unwrap();
    let [bridge] = &all[..] else { panic!("{all:?}") };
    assert_eq!((bridge.name.as_str(), bridge.mtu, bridge.up), ("br0", 1500, true));
    assert!(bridge.mac.is_some());
}

#[test]
fn what_is_on_a_link_and_which_link_has_an_address() {
    let world = world("ways");
    let netns = Netns::open(world.sandboxes[0].path()).unwrap();
    world.sandboxes[0].output("ip", &["route", "add", "10.60.0.0/16", "via", "10.50.0.1"]).unwrap();
    let links = Links::read(&netns).unwrap();
    let with = |address: &str| links.with(address.parse().unwrap()).cloned();
    assert_eq!(with("10.50.0.3"), Some(name("net1")));
    assert_eq!([with("10.60.7.7"), with("10.70.0.1"), with("2001:db8::1")], [None, None, None]);
    assert_eq!(link_with(&netns, "10.50.0.2".parse().unwrap()).unwrap(), Some(name("net1")));
    assert_eq!(link_with(&netns, "10.50.0.3".parse().unwrap()).unwrap(), None, "it is another's");
}
