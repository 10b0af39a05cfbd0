//! A kind that this kernel does not have is refused in words that name the option; nothing is left behind.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #![allow(dead_code, reason = "each test file uses a part of it")]
    pub mod seen;
    pub mod states;
    pub mod world;
}

use knit_kernel::fault::Unobserved;
use knit_kernel::features::detect;
use knit_kernel::{Deletes, Error};
use knit_model::link::{Bridge, Kind, WireGuard};
use knit_model::{NetState, Scope};
use support::states::link;
use support::world::{World, sandbox};

#[test]
fn wireguard_is_there_or_named_as_missing() {
    let is_there = detect().iter().any(|feature| feature.name == "wireguard" && feature.state.is_present());
    let world = World::new("lacking", &["a"]);
    let before = world.dumps();
    let mut state = NetState::default();
    state.scope(&sandbox("a")).add_link(link(&sandbox("a"), "wg0", Kind::WireGuard(WireGuard::default())));
    let outcome = world.apply_with(&world.plan(&state), Deletes::Now, &mut Unobserved);
    if is_there {
        outcome.unwrap();
        return;
    }
    let error = outcome.unwrap_err();
    assert!(matches!(error.error, Error::Lacks { .. }), "{error}");
    let words = "make wireguard wg0 on sandbox a: this kernel has no wireguard: CONFIG_WIREGUARD";
    assert!(error.to_string().contains(words), "{error}");
    world.assert_as_before(&before, "after a refusal");
}

#[test]
fn a_bridge_that_filters_is_there_or_named_as_missing() {
    let is_filtering = |name: &str| name == "bridge-vlan-filtering";
    let is_there = detect().iter().any(|feature| is_filtering(feature.name) && feature.state.is_present());
    let world = World::new("lackvlan", &[]);
    let before = world.dumps();
    let bridge = |vlan_filtering| {
        let mut state = NetState::default();
        let kind = Kind::Bridge(Bridge { vlan_filtering: Some(vlan_filtering), ..Bridge::default() });
        state.scope(&Scope::Host).add_link(link(&Scope::Host, "br0", kind));
        state
    };
    // At birth, and on a living bridge; one that is to filter nothing can be had everywhere.
    for (first, what) in [(NetState::default(), "make bridge br0"), (bridge(false), "set link br0")] {
        world.make(&first);
        let outcome = world.apply_with(&world.plan(&bridge(true)), Deletes::Now, &mut Unobserved);
        if is_there {
            outcome.unwrap();
        } else {
            let error = outcome.unwrap_err();
            let lacks = "this kernel has no VLAN filtering on bridges: CONFIG_BRIDGE_VLAN_FILTERING";
            assert!(error.to_string().contains(&format!("{what} on host: {lacks}")), "{error}");
        }
        world.make(&NetState::default());
    }
    world.assert_as_before(&before, "after refusals");
}
