//! NICs of the host that are lent to sandboxes: moved in, used, changed, broken at every step, and given back as they were,
//! also from where the kernel leaves them when a sandbox ends. A pair stands for the NIC and its cable.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #![allow(dead_code, reason = "each test file uses a part of it")]
    pub mod edits;
    pub mod faults;
    pub mod seen;
    pub mod states;
    pub mod world;
}

use knit_kernel::Deletes;
use knit_kernel::fault::Unobserved;
use knit_model::link::{HostDevice, Kind, Lent};
use knit_model::plan::{Desired, diff, settle_devices};
use knit_model::{Address, NetState, Scope};
use support::edits::{Edit, change_each, forget_neighbours};
use support::faults::survive_every_fault_leanly;
use support::states::{link, name, net};
use support::world::{World, sandbox};

/// A host with a NIC `nic0` that is up, whose cable ends in the last sandbox.
fn world(test: &str) -> World {
    let world = World::new(test, &["a", "far"]);
    let far = &world.sandboxes[1];
    let place = far.path().file_name().unwrap().to_str().unwrap();
    world.host.ip(&["link", "add", "nic0", "type", "veth", "peer", "name", "far0", "netns", place]);
    world.host.ip(&["link", "set", "nic0", "mtu", "1400", "txqueuelen", "77", "group", "9"]);
    world.host.ip(&["link", "set", "nic0", "address", "02:00:00:00:00:77", "alias", "of the admin"]);
    world.host.ip(&["link", "set", "nic0", "up", "allmulticast", "on"]);
    far.ip(&["address", "add", "10.80.0.9/24", "dev", "far0"]);
    far.ip(&["link", "set", "far0", "up"]);
    world
}

/// The NIC in sandbox `a` under this name, with an address.
fn lent(text: &str) -> NetState {
    let mut state = NetState::default();
    let kind = Kind::HostDevice(HostDevice(Lent { device: Some(name("nic0")), was: None }));
    let mut nic = link(&sandbox("a"), text, kind);
    nic.born_from = Some(Scope::Host);
    let pod = state.scope(&sandbox("a"));
    pod.add_link(nic);
    pod.add_address(Address::new(name(text), net("10.80.0.2/24")));
    state
}

/// What is wanted, once what the NIC has is known.
fn settled(world: &World, mut state: NetState) -> NetState {
    settle_devices(&mut state, &world.observe());
    state
}

#[test]
fn a_nic_is_lent_and_given_back() {
    let world = world("lend");
    // Its own IPv6 address comes a moment after it goes up.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let before = world.dumps();
    let state = settled(&world, lent("net1"));
    survive_every_fault_leanly(&world, &world.plan(&state));
    world.make(&state);
    let shown = world.sandboxes[0].ip(&["-d", "link", "show", "dev", "net1"]);
    for part in [
        "mtu 1400",
        "qlen 77",
        "link/ether 02:00:00:00:00:77",
        "group 9",
        "alias of the admin",
        "altname knit-",
    ] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    assert!(world.host.output("ip", &["link", "show", "dev", "nic0"]).is_err());
    world.sandboxes[0].ping("10.80.0.9").unwrap();

    // Another name in the pod takes it home and back again.
    let other = settled(&world, lent("net2"));
    survive_every_fault_leanly(&world, &world.plan(&other));
    world.make(&other);
    world.make(&settled(&world, lent("net1")));
    survive_every_fault_leanly(&world, &world.plan(&NetState::default()));

    // Field by field while it is lent; what is no longer asked for is as it was.
    let mut changed = state.clone();
    let edits: &[Edit] = &[
        ("mtu", |link| link.attrs.mtu = Some(1280)),
        ("mac", |link| link.attrs.mac = Some(knit_model::Mac::derived("another"))),
        ("txqueuelen", |link| link.attrs.txqueuelen = Some(5)),
        ("group", |link| link.attrs.group = Some(4)),
        ("promisc", |link| link.attrs.promisc = Some(true)),
        ("allmulticast", |link| link.attrs.allmulticast = Some(false)),
    ];
    change_each(&world, &mut changed, &sandbox("a"), "net1", edits);
    forget_neighbours(&world);
    world.sandboxes[0].ping("10.80.0.9").unwrap();
    world.make(&NetState::default());
    world.assert_as_before(&before, "after it was given back");
}

#[test]
fn a_nic_that_came_home_by_itself_is_put_in_order() {
    let world = world("lenthome");
    std::thread::sleep(std::time::Duration::from_secs(2));
    let before = world.dumps();
    let mut state = settled(&world, lent("net1"));
    state.scope(&sandbox("a")).links.get_mut(&name("net1")).unwrap().attrs.mtu = Some(1280);
    let host = world.host.path().file_name().unwrap().to_str().unwrap().to_owned();
    for (text, mtu) in [("dev77", "1280"), ("nic0", "1500"), ("net1", "900")] {
        world.make(&state);
        // As the kernel does with a real NIC when a namespace ends: down, under the name it had or another.
        let pod = &world.sandboxes[0];
        pod.ip(&["link", "set", "net1", "mtu", mtu]);
        pod.ip(&["link", "set", "net1", "netns", &host, "name", text]);
        let plan = diff(&Desired::default(), &world.observe());
        survive_every_fault_leanly(&world, &plan);
        world.apply_with(&plan, Deletes::Deferred, &mut Unobserved).unwrap();
        world.assert_as_before(&before, &format!("after it was {text}"));
    }
}

#[test]
fn a_name_that_was_taken_meanwhile_is_said_and_the_nic_stays_marked() {
    let world = world("lenttaken");
    let state = settled(&world, lent("net1"));
    world.make(&state);
    world.host.ip(&["link", "add", "nic0", "type", "bridge"]);
    let plan = diff(&Desired::default(), &world.observe());
    let error = world.apply_with(&plan, Deletes::Now, &mut Unobserved).unwrap_err();
    let words = "give NIC nic0 back from sandbox a: the host has another link of that name now";
    assert!(error.to_string().contains(words), "{error}");
    assert_eq!(error.error.reason(), "AlreadyExists", "{error}");
    world.sandboxes[0].ping("10.80.0.9").unwrap();
    world.host.ip(&["link", "del", "nic0"]);
    world.make(&NetState::default());
    assert!(world.host.ip(&["link", "show", "dev", "nic0"]).contains("mtu 1400"));
}
