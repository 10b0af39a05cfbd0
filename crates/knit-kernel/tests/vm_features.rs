//! What the guest's kernel offers, beyond the machine's own: Knit must see it there.

use knit_kernel::features::detect;

#[test]
fn the_kinds_that_only_the_guest_has_are_seen_in_it() {
    let features = detect();
    for wanted in ["vlan", "ipvlan", "vrf", "wireguard", "geneve", "gre", "ipip", "dummy"] {
        let feature = features.iter().find(|feature| feature.name == wanted);
        let names: Vec<&str> = features.iter().map(|feature| feature.name).collect();
        let feature = feature.unwrap_or_else(|| panic!("no feature {wanted} among {names:?}"));
        assert!(feature.state.is_present(), "{wanted}: {:?}", feature.state);
    }
}
