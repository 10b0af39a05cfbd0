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
use knit_model::NetState;
use knit_model::link::{Kind, WireGuard};
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
