//! List entries: every link type by name, and VLAN interfaces.

use knit_crds::Object;
use knit_model::Kind;
use knit_model::intent::{BridgePortIntent, IntentSpec, InterfaceIntent, NameRule};
use knit_model::link::LinkKind;
use knit_model::provenance::Dialect;

/// The interfaces of a PodConfig with this spec.
fn interfaces(spec: &str) -> Vec<InterfaceIntent> {
    let yaml = format!(
        "apiVersion: podconfig.opdev.io/v1alpha1\nkind: PodConfig\nmetadata: {{name: x}}\nspec: {spec}\n"
    );
    let object = Object::parse(&yaml).unwrap_or_else(|errors| panic!("{spec}: {errors}"));
    let translation = object.intents(Dialect::File).unwrap_or_else(|problems| panic!("{spec}: {problems}"));
    let interfaces = translation.intents.into_iter().map(|intent| match intent.spec {
        IntentSpec::Interface(intent) => *intent,
        other => panic!("{other:?}"),
    });
    interfaces.collect()
}

/// The only interface of an entry.
fn entry(fields: &str) -> InterfaceIntent {
    let mut all = interfaces(&format!("{{networkAttachments: [{{name: pc0, {fields}}}]}}"));
    assert_eq!(all.len(), 1);
    all.remove(0)
}

#[test]
fn every_link_type_is_accepted_by_name() {
    for (name, rest) in [
        ("veth", "master: br0"),
        ("macvlan", "parent: eth0, mode: vepa"),
        ("ipvlan", "parent: eth0, mode: l3s"),
        ("vlan", "parent: eth0, vlanID: 100"),
        ("host-device", "parent: fabric"),
        ("dummy", "master: br0"),
        ("tap", "master: br0"),
        ("vrf", "table: 1010"),
        ("vxlan", "vni: 7, remote: 10.0.0.1"),
        ("geneve", "vni: 7, remote: far"),
        ("gre", "remote: 10.0.0.1"),
        ("gretap", "remote: 10.0.0.1, local: 10.0.0.2"),
        ("ipip", "remote: 10.0.0.1"),
        ("sit", "remote: 10.0.0.1"),
        ("ip6tnl", "remote: 'fd00::1', local: 'fd00::2'"),
        ("wireguard", "cidr: 10.9.0.0/24"),
    ] {
        let interface = entry(&format!("linkType: {name}, {rest}"));
        let kernel_name = if name == "tap" { "tun" } else { name };
        assert_eq!(interface.kind.name(), kernel_name);
    }
    assert_eq!(entry("linkType: geneve, vni: 7, remote: far").remote_pod.as_deref(), Some("far"));
    assert_eq!(entry("linkType: gre, remote: 'fd00::1', local: 'fd00::2'").kind.name(), "ip6gre");
    assert_eq!(entry("linkType: vlan, parent: pc1, vlanID: 7").parent.as_deref(), Some("pc1"));
}

#[test]
fn a_port_is_an_access_port_or_a_trunk() {
    let port = |fields: &str| entry(&format!("master: br0, vlan: {fields}")).port.unwrap();
    assert_eq!(port("{access: 100}"), BridgePortIntent { native: Some(100), tagged: "".parse().unwrap() });
    let trunk = BridgePortIntent { native: Some(1), tagged: "100,200-300".parse().unwrap() };
    assert_eq!(port("{trunk: ['100', 200-300], native: 1}"), trunk);
    assert_eq!(port("{trunk: ['100', 200-300]}"), BridgePortIntent { native: Some(0), ..trunk });
    assert_eq!(entry("master: br0").port, None);
}

#[test]
fn a_vlan_interface_uses_an_attachment_whose_port_allows_the_vlan() {
    let all = interfaces(
        "{networkAttachments: [{name: pc0, master: br0, cidr: 10.1.0.0/24, vlan: {access: 7}}, {name: pc1, master: br0}], \
         vlans: [{parentInterfaceName: pc0, vlanID: 100, bridgeName: br0, cidr: 10.2.0.0/24}, \
                 {parentInterfaceName: pc0, vlanID: 101, bridgeName: br0, name: blue}]}",
    );
    let [pc0, pc1, v100, blue] = all.as_slice() else { panic!("{all:?}") };
    let port = BridgePortIntent { native: Some(7), tagged: "100-101".parse().unwrap() };
    assert_eq!((&pc0.port, &pc1.port), (&Some(port), &None));
    assert_eq!(v100.name, NameRule::Prefix("v100".to_owned()));
    assert_eq!(blue.name, NameRule::Prefix("blue".to_owned()));
    for (vlan_interface, id) in [(v100, 100), (blue, 101)] {
        assert!(matches!(&vlan_interface.kind, Kind::Vlan(vlan) if vlan.id == id));
        assert_eq!((vlan_interface.parent.as_deref(), &vlan_interface.master), (Some("pc0"), &None));
    }
    assert_eq!(v100.ranges, ["10.2.0.0/24".parse().unwrap()]);
}

#[test]
fn a_vlan_interface_creates_its_lower_link_if_there_is_none() {
    let all = interfaces(
        "{vlans: [{parentInterfaceName: pc0, vlanID: 100, bridgeName: br0}, {parentInterfaceName: pc0, vlanID: 200, bridgeName: br0}]}",
    );
    let [lower_link, v100, v200] = all.as_slice() else { panic!("{all:?}") };
    assert_eq!(lower_link.kind.name(), <knit_model::link::Veth as LinkKind>::NAME);
    assert_eq!((lower_link.master.as_deref(), lower_link.ranges.len()), (Some("br0"), 0));
    // It does not enable VLAN filtering: a bridge without it forwards all tags.
    assert_eq!(lower_link.port, Some(BridgePortIntent { native: None, tagged: "100,200".parse().unwrap() }));
    assert!(!lower_link.port.as_ref().unwrap().needs_filter());
    assert_eq!((v100.parent.as_deref(), v200.parent.as_deref()), (Some("pc0"), Some("pc0")));
}

#[test]
fn the_33rd_interface_of_an_object_is_rejected() {
    let problems = |attachments: usize, vlans: usize| {
        let attachments = (0..attachments).map(|number| format!("{{name: a{number}x, master: br0}}"));
        let vlans = (0..vlans)
            .map(|number| format!("{{parentInterfaceName: a0x, vlanID: {}, bridgeName: br0}}", number + 1));
        let (attachments, vlans): (Vec<String>, Vec<String>) = (attachments.collect(), vlans.collect());
        let yaml = format!(
            "apiVersion: podconfig.opdev.io/v1alpha1\nkind: PodConfig\nmetadata: {{name: x}}\n\
             spec: {{networkAttachments: [{}], vlans: [{}]}}\n",
            attachments.join(", "),
            vlans.join(", ")
        );
        match Object::parse(&yaml) {
            Ok(object) => object.intents(Dialect::File).map(|_| ()).map_err(|problems| problems.to_string()),
            Err(problems) => Err(problems.to_string()),
        }
    };
    for (attachments, vlans) in [(32, 0), (1, 31)] {
        assert_eq!(problems(attachments, vlans), Ok(()));
    }
    for (attachments, vlans) in [(33, 0), (1, 32), (20, 13)] {
        let message = problems(attachments, vlans).unwrap_err();
        assert!(message.contains("at most 32 interfaces, got 33"), "{message}");
    }
}
