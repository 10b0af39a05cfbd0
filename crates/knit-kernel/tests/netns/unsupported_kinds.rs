//! Unsupported link kinds are rejected with an error that names the build option; nothing is left behind.

use knit_kernel::fault::NoFaults;
use knit_kernel::features::detect;
use knit_kernel::{DeleteMode, Error};
use knit_model::link::{Bridge, Kind, WireGuard};
use knit_model::{NetState, Scope};

use crate::support::node::{TestNode, sandbox};
use crate::support::states::link;

#[test]
fn wireguard_works_or_is_named_as_unsupported() {
    let is_supported =
        detect().iter().any(|feature| feature.name == "wireguard" && feature.state.is_present());
    let node = TestNode::new("lacking", &["a"]);
    let before = node.dumps();
    let mut state = NetState::default();
    state.scope(&sandbox("a")).add_link(link(&sandbox("a"), "wg0", Kind::WireGuard(WireGuard::default())));
    let outcome = node.apply_with(&node.plan(&state), DeleteMode::Immediate, &mut NoFaults);
    if is_supported {
        outcome.unwrap();
        return;
    }
    let error = outcome.unwrap_err();
    assert!(matches!(error.error, Error::Unsupported { .. }), "{error}");
    let text = "create wireguard wg0 on sandbox a: this kernel has no wireguard: CONFIG_WIREGUARD";
    assert!(error.to_string().contains(text), "{error}");
    node.assert_unchanged(&before, "after a rejection");
}

#[test]
fn vlan_filtering_works_or_is_named_as_unsupported() {
    let is_filtering = |name: &str| name == "bridge-vlan-filtering";
    let is_supported =
        detect().iter().any(|feature| is_filtering(feature.name) && feature.state.is_present());
    let node = TestNode::new("lackvlan", &[]);
    let before = node.dumps();
    let bridge = |vlan_filtering| {
        let mut state = NetState::default();
        let kind = Kind::Bridge(Bridge { vlan_filtering: Some(vlan_filtering), ..Bridge::default() });
        state.scope(&Scope::Host).add_link(link(&Scope::Host, "br0", kind));
        state
    };
    // At creation, and on an existing bridge; a bridge without filtering works everywhere.
    for (first, what) in [(NetState::default(), "create bridge br0"), (bridge(false), "set link br0")] {
        node.converge(&first);
        let outcome = node.apply_with(&node.plan(&bridge(true)), DeleteMode::Immediate, &mut NoFaults);
        if is_supported {
            outcome.unwrap();
        } else {
            let error = outcome.unwrap_err();
            let unsupported = "this kernel has no VLAN filtering on bridges: CONFIG_BRIDGE_VLAN_FILTERING";
            assert!(error.to_string().contains(&format!("{what} on host: {unsupported}")), "{error}");
        }
        node.converge(&NetState::default());
    }
    node.assert_unchanged(&before, "after rejections");
}
