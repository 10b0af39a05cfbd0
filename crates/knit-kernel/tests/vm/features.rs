//! Feature probes on a full kernel.

use knit_kernel::features::detect;

#[test]
fn kinds_of_the_full_kernel_are_present() {
    let features = detect();
    // Moving a NIC is no feature of its own.
    for expected in knit_model::Kind::names().filter(|name| *name != "host-device") {
        let feature = features.iter().find(|feature| feature.name == expected);
        let names: Vec<&str> = features.iter().map(|feature| feature.name).collect();
        let feature = feature.unwrap_or_else(|| panic!("no feature {expected} among {names:?}"));
        assert!(feature.state.is_present(), "{expected}: {:?}", feature.state);
    }
}
