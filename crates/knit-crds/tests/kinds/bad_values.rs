//! Bad values are refused in words, with the path of the field, all at once.

use std::fmt::Write;

use knit_crds::Object;
use knit_model::problem::Reason;
use knit_model::provenance::Dialect;

/// A kind and a spec in one line each.
const BAD: &[(&str, &str)] = &[
    // Ranges.
    ("Bridge", "{name: br0, cidr: 192.168.100.7/24}"),
    ("Bridge", "{name: br0, cidr: 10.0.0.0/31}"),
    ("Bridge", "{name: br0, cidr: 10.0.0.1/32}"),
    ("Bridge", "{name: br0, cidr: 'fd00::/127'}"),
    ("Bridge", "{name: br0, cidr: 'fd00::1/128'}"),
    ("Bridge", "{name: br0, cidr: '::/0'}"),
    ("Bridge", "{name: br0, cidr: 0.0.0.0/0}"),
    ("Bridge", "{name: br0, cidr: '::ffff:10.0.0.0/120'}"),
    ("Bridge", "{name: br0, cidr: 10.0.0.0}"),
    ("Bridge", "{name: br0, cidr: ten}"),
    ("Bridge", "{name: br0, cidr: 224.0.0.0/24}"),
    ("Bridge", "{name: br0, cidr: 127.0.0.0/8}"),
    ("Bridge", "{name: br0, cidr: 169.254.0.0/16}"),
    ("Bridge", "{name: br0, cidr: 'fe80::/64'}"),
    ("Bridge", "{name: br0, cidr: '10.0.0.0/8,10.1.0.0/16'}"),
    ("Bridge", "{name: br0, cidr: '10.1.0.0/16, 10.2.0.0/16'}"),
    ("Bridge", "{name: br0, cidr: '10.0.0.0/24,'}"),
    ("VirtualNetwork", "{subnets: []}"),
    ("VirtualNetwork", "{subnets: [10.0.0.0/8, 10.1.0.0/16]}"),
    // Numbers.
    ("Bridge", "{name: br0, mtu: 67}"),
    ("Bridge", "{name: br0, mtu: 70000}"),
    ("Bridge", "{name: br0, mtu: -1, txqueuelen: -1, group: 4294967296}"),
    ("Bridge", "{name: br0, stp: true, forwardDelay: 1}"),
    ("Uplink", "{link: eno1, vlans: ['0']}"),
    ("Uplink", "{link: eno1, vlans: ['4000-4095', '9-3', ten]}"),
    ("Uplink", "{link: lo, maxMtu: 10}"),
    ("Extension", "{required: []}"),
    ("Extension", "{required: [Mesh, '-m', mesh, mesh]}"),
    ("Vxlan", "{interfaceName: vx0, vni: 16777216}"),
    ("Vxlan", "{interfaceName: vx0, vni: 1, port: 0, ttl: 256, ageing: -1}"),
    ("Vxlan", "{interfaceName: vx0, vni: 1, remote: 10.0.0.1, local: 'fd00::1'}"),
    ("Vxlan", "{interfaceName: vx0, vni: 1, remote: 239.0.0.1}"),
    ("WireGuard", "{interfaceName: wg0, listenPort: 0, fwmark: -1, hardwareAddr: '02:00:00:00:00:01'}"),
    ("WireGuard", "{interfaceName: wg0, privateKeySecret: {name: Keys, key: ../x}}"),
    (
        "WireGuard",
        "{interfaceName: wg0, peers: [{publicKey: short, endpoint: far, allowedIPs: [10.0.0.1/8]}]}",
    ),
    (
        "WireGuard",
        "{interfaceName: wg0, peers: [{publicKey: AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=, persistentKeepalive: 65536, \
         endpoint: '0.0.0.0:1'}, {publicKey: AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=}]}",
    ),
    (
        "WireGuard",
        "{interfaceName: wg0, peers: [{publicKey: AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=, allowedIPs: [10.0.0.0/8]}, \
         {publicKey: AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=, allowedIPs: [10.0.0.0/8]}]}",
    ),
    ("Tap", "{interfaceName: tap0, owner: 4294967295, ownerGroup: -1}"),
    ("Vlan", "{interfaceName: v0, parent: eth0, id: 0}"),
    ("Vlan", "{interfaceName: v0, parent: eth0, id: 4095}"),
    ("Vlan", "{interfaceName: v0, parent: a/b, id: 1}"),
    (
        "Vlan",
        "{interfaceName: v0, parent: eth0, id: 1, ingressQos: [{from: 8, to: 1}], egressQos: [{from: 1, to: 8}]}",
    ),
    ("Vlan", "{interfaceName: v0, parent: eth0, id: 1, egressQos: [{from: 1, to: 2}, {from: 1, to: 3}]}"),
    ("Vlan", "{interfaceName: v0, parent: eth0, id: 1, vrf: red, master: br0}"),
    ("Ipvlan", "{interfaceName: iv0, parent: eth0, hardwareAddr: '02:00:00:00:00:01'}"),
    ("Vrf", "{interfaceName: red, table: 0}"),
    ("Vrf", "{interfaceName: red, table: 254}"),
    ("Vrf", "{interfaceName: red, table: 10, vrf: blue}"),
    ("Vxlan", "{interfaceName: vx0, vni: 1, remote: Far}"),
    // Tunnels.
    ("Geneve", "{interfaceName: g0, vni: 16777216, remote: 10.0.0.300, port: 0, tos: 256}"),
    ("Geneve", "{interfaceName: g0, vni: 1, remote: 239.0.0.1, ttl: 9, ttlInherit: true}"),
    ("Geneve", "{interfaceName: g0, vni: 1, remote: 10.0.0.1, flowLabel: 7}"),
    ("Gre", "{interfaceName: g0, remote: 10.0.0.1, local: 'fd00::1'}"),
    ("Gre", "{interfaceName: g0, remote: 10.0.0.1, encapLimit: 4, flowLabel: 1048576}"),
    ("Gre", "{interfaceName: g0, remote: 'fd00::1'}"),
    ("Gre", "{interfaceName: g0, remote: 'fd00::1', pmtuDisc: true, ignoreDf: true}"),
    ("Gre", "{interfaceName: g0, remote: 10.0.0.1, key: 1, okey: 2, hardwareAddr: '02:00:00:00:00:01'}"),
    ("IpTunnel", "{interfaceName: t0, mode: ip6tnl, remote: 10.0.0.1, pmtuDisc: true}"),
    ("IpTunnel", "{interfaceName: t0, mode: sit, remote: 10.0.0.1, ttl: 9, pmtuDisc: false}"),
    ("IpTunnel", "{interfaceName: t0, remote: 'fd00::1', inner: ipv6, encapLimit: 3}"),
    // Hardware addresses.
    ("Bridge", "{name: br0, address: '02:00:00:00:00'}"),
    ("Bridge", "{name: br0, address: '01:00:5e:00:00:01'}"),
    ("Bridge", "{name: br0, address: '00:00:00:00:00:00'}"),
    // Names.
    ("Bridge", "{name: a/b}"),
    ("Bridge", "{name: '..'}"),
    ("Bridge", "{name: ''}"),
    ("Bridge", "{name: 'a b'}"),
    ("Bridge", "{name: sixteen-bytes-xx}"),
    ("Veth", "{namePrefix: eightbyt, master: br0}"),
    ("Veth", "{namePrefix: a/b, master: br0}"),
    ("Veth", "{interfaceName: eth0, master: br0}"),
    ("Veth", "{interfaceName: lo, master: br0}"),
    ("Veth", "{interfaceName: net1, namePrefix: net, master: br0}"),
    ("Veth", "{master: br0}"),
    ("Veth", "{interfaceName: net1}"),
    ("Veth", "{interfaceName: net1, master: br0, cidr: 10.0.0.0/24, network: blue}"),
    ("Veth", "{interfaceName: net1, network: Blue}"),
    ("Macvlan", "{interfaceName: net1, parent: a/b}"),
    ("PrimaryNetwork", "{interfaceName: lo, mtu: 1400}"),
    ("PrimaryNetwork", "{}"),
    // Addresses, routes, rules, sysctls.
    (
        "Veth",
        "{interfaceName: n1, master: br0, addresses: [10.0.0.0/24, 10.0.0.255/24, '::1/128', 10.0.0.7]}",
    ),
    ("Veth", "{interfaceName: n1, master: br0, gateways: [10.0.0.1, 10.0.0.2]}"),
    (
        "Veth",
        "{interfaceName: n1, master: br0, routes: [{to: 10.1.2.3/8, metric: -1, via: x, mtu: 1}, {to: 10.0.0.0/8, via: 'fd00::1'}]}",
    ),
    ("Veth", "{interfaceName: n1, master: br0, routes: [{to: 10.0.0.0/8, type: blackhole, via: 10.0.0.1}]}"),
    (
        "Veth",
        "{interfaceName: n1, master: br0, routes: [{to: 10.0.0.0/8, via: 10.0.0.1, nextHops: [{via: 10.0.0.2, weight: 300}]}]}",
    ),
    ("Veth", "{interfaceName: n1, master: br0, routes: [{to: 10.0.0.0/8, onlink: true}]}"),
    (
        "Veth",
        "{interfaceName: n1, master: br0, rules: [{priority: 0, table: 0}, {priority: 1, from: 10.0.0.0/8, family: ipv6, table: 1}]}",
    ),
    ("Veth", "{interfaceName: n1, master: br0, rules: [{priority: 1, fwmask: 1, table: 1}]}"),
    (
        "Veth",
        "{interfaceName: n1, master: br0, sysctls: {net.ipv4.ip_forward: '1', ipv4/../x: '1', ipv4/proxy_arp: '0'}, proxyArp: true}",
    ),
    // Routing by itself.
    ("PodRoute", "{}"),
    (
        "PodRoute",
        "{routes: [{to: 10.0.0.0/8}, {to: 'fd00::/8', via: 'fe80::1'}, {to: 10.0.0.0/8, via: 10.1.0.1, onlink: true}]}",
    ),
    ("PodRoute", "{routes: [{to: 10.0.0.0/8, nextHops: [{via: 10.1.0.1}, {via: 10.1.0.1, weight: 2}]}]}"),
    (
        "PodRoute",
        "{routes: [{to: 10.0.0.0/8, dev: net1, table: 255}, {to: 10.0.0.0/8, via: 'fd00::1', src: x}]}",
    ),
    ("PodRoute", "{vrf: a/b, rules: [{priority: 0, table: 7}]}"),
    (
        "PodRoute",
        "{neighbours: [{address: x, dev: net1, proxy: true}, {address: 10.1.0.1, dev: net1}, \
         {address: 10.1.0.1, dev: net1, hardwareAddr: '01:00:5e:00:00:01'}, \
         {address: 10.1.0.1, dev: net1, hardwareAddr: '02:00:00:00:00:01', proxy: true}]}",
    ),
    (
        "PodRoute",
        "{sysctls: {kernel.core_pattern: '|x', net.ipv4.conf.net1.route_localnet: '1', net.ipv4.conf.default.rp_filter: '1', \
         net.ipv4.conf.all.forwarding: '1', net.ipv4.ip_forward: 'on', net.ipv4.conf.much-too-long-a-name.rp_filter: '1'}}",
    ),
    // Selectors.
    ("Veth", "{interfaceName: n1, master: br0, selector: {}}"),
    (
        "Veth",
        "{interfaceName: n1, master: br0, selector: {matchExpressions: [{key: a, operator: In}, {key: a, operator: Exists, values: [b]}]}}",
    ),
    // Lists of links.
    ("PodConfig", "{networkAttachments: [{name: eightbyt, master: br0}]}"),
    ("PodConfig", "{networkAttachments: [{name: pc0}]}"),
    ("PodConfig", "{networkAttachments: [{name: pc0, master: br0}, {name: pc0, master: br1}]}"),
    ("PodConfig", "{networkAttachments: [{name: pc0, linkType: macvlan}]}"),
    ("PodConfig", "{networkAttachments: [{name: pc0, linkType: ipvlan}]}"),
    ("PodConfig", "{networkAttachments: [{name: pc0, linkType: vlan, parent: eth0}]}"),
    ("PodConfig", "{networkAttachments: [{name: pc0, linkType: vlan, parent: eth0, vlanID: 4095, vni: 1}]}"),
    (
        "PodConfig",
        "{networkAttachments: [{name: pc0, linkType: geneve}, {name: pc1, linkType: vrf, parent: x}]}",
    ),
    ("PodConfig", "{networkAttachments: [{name: pc0, linkType: ipvlan, parent: eth0, mode: vepa}]}"),
    ("PodConfig", "{networkAttachments: [{name: pc0, linkType: gre, remote: 10.0.0.1, local: 'fd00::1'}]}"),
    ("PodConfig", "{networkAttachments: [{name: pc0, linkType: ip6tnl, remote: 10.0.0.1}]}"),
    ("PodConfig", "{networkAttachments: [{name: pc0, linkType: vxlan, vni: 1, remote: 239.0.0.1}]}"),
    ("PodConfig", "{networkAttachments: [{name: pc0, master: br0, vlanID: 7, mode: l2}]}"),
    ("HostDevice", "{interfaceName: n1, parent: a/b, alias: mine}"),
    ("PodConfig", "{networkAttachments: [{name: pc0, linkType: host-device}]}"),
    // VLANs of ports, and interfaces with tags.
    ("Veth", "{interfaceName: n1, master: br0, vlan: {}}"),
    ("Veth", "{interfaceName: n1, master: br0, vlan: {access: 0}}"),
    ("Veth", "{interfaceName: n1, master: br0, vlan: {access: 1, trunk: ['2']}}"),
    ("Veth", "{interfaceName: n1, master: br0, vlan: {access: 1, native: 2}}"),
    ("Veth", "{interfaceName: n1, master: br0, vlan: {trunk: ['9-3', ten, '4095'], native: 4095}}"),
    ("Bridge", "{name: br0, defaultPvid: 4095, vlanFiltering: false, vlan: {access: 7}}"),
    ("PodConfig", "{vlans: [{parentInterfaceName: pc0, vlanID: 0, bridgeName: a/b}]}"),
    ("PodConfig", "{vlans: [{parentInterfaceName: eightbyt, vlanID: 7, bridgeName: br0, name: eightbyt}]}"),
    (
        "PodConfig",
        "{vlans: [{parentInterfaceName: pc0, vlanID: 7, bridgeName: br0}, {parentInterfaceName: pc0, vlanID: 8, bridgeName: br1}]}",
    ),
    (
        "PodConfig",
        "{vlans: [{parentInterfaceName: pc0, vlanID: 7, bridgeName: br0}, {parentInterfaceName: pc1, vlanID: 7, bridgeName: br0}]}",
    ),
    (
        "PodConfig",
        "{networkAttachments: [{name: pc0, master: br0}, {name: pc1, linkType: dummy}], \
         vlans: [{parentInterfaceName: pc0, vlanID: 7, bridgeName: br1}, {parentInterfaceName: pc1, vlanID: 8, bridgeName: br1}]}",
    ),
    ("PodConfig", "{sampleDeployment: {create: true}}"),
    ("PodNetworkConfig", "{additionalNetworks: [{networkName: pno, linkType: macvlan}]}"),
    (
        "PodNetworkConfig",
        "{links: [{namePrefix: a, master: br0}], additionalNetworks: [{networkName: a, master: br0}]}",
    ),
    ("PodNetworkConfig", "{eth0: {}}"),
];

fn object(kind: &str, name: &str, spec: &str) -> Result<Object, String> {
    let version = Object::find_kind(kind).unwrap().api_version();
    let yaml = format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n");
    Object::parse(&yaml).map_err(|errors| errors.to_string())
}

#[test]
fn every_bad_value_has_its_sentence() {
    let mut page = String::new();
    for (kind, spec) in BAD {
        let object = object(kind, "x", spec).unwrap_or_else(|error| panic!("{kind} {spec}: {error}"));
        let problems = match object.intents(Dialect::File) {
            Ok(_) => panic!("{kind} {spec} was taken"),
            Err(problems) => problems,
        };
        writeln!(page, "{kind} {spec}").unwrap();
        for line in problems.to_string().lines() {
            writeln!(page, "    {line}").unwrap();
        }
    }
    insta::assert_snapshot!(page);
}

#[test]
fn one_object_makes_at_most_32_interfaces() {
    let spec = |count: usize| {
        let entries: Vec<String> = (0..count).map(|n| format!("{{name: n{n}, master: br0}}")).collect();
        format!("{{networkAttachments: [{}]}}", entries.join(", "))
    };
    let intents = |count| object("PodConfig", "x", &spec(count)).unwrap().intents(Dialect::File);
    assert_eq!(intents(32).unwrap().intents.len(), 32);
    assert_eq!(
        intents(33).unwrap_err().to_string(),
        "spec.networkAttachments: 33 interfaces in one object, at most 32 are allowed"
    );
}

#[test]
fn a_name_that_is_no_label_value_needs_a_selector() {
    let long = "a".repeat(64);
    let spec = "{interfaceName: n1, master: br0}";
    assert_eq!(
        object("Veth", &long, spec).unwrap().intents(Dialect::File).unwrap_err().to_string(),
        "metadata.name: the name has 64 characters, but the label podnetwork.opdev.io/veth takes at most 63: use spec.selector"
    );
    let selected = "{interfaceName: n1, master: br0, selector: {matchLabels: {a: b}}}";
    assert!(object("Veth", &long, selected).unwrap().intents(Dialect::File).is_ok());
}

#[test]
fn a_link_type_from_a_newer_version_is_refused_with_the_known_ones() {
    // From an API server with newer definitions, the object is read all the same.
    let mut value =
        object("PodConfig", "x", "{networkAttachments: [{name: pc0, master: br0}]}").unwrap().to_value();
    value["spec"]["networkAttachments"][0]["linkType"] = "nosuch".into();
    let object: knit_crds::kinds::PodConfig = serde_json::from_value(value).unwrap();
    let problems = knit_crds::Kind::intents(&object, Dialect::Kubernetes).unwrap_err();
    assert_eq!(
        problems.to_string(),
        "spec.networkAttachments[0].linkType: link type `nosuch` is not known here, it is one of veth, macvlan, ipvlan, vlan, \
         host-device, dummy, tap, vrf, vxlan, geneve, gre, gretap, ipip, sit, ip6tnl, wireguard"
    );
}

#[test]
fn the_same_name_twice_is_a_conflict() {
    let spec = "{networkAttachments: [{name: pc0, master: br0}, {name: pc0, master: br1}]}";
    let problems = object("PodConfig", "x", spec).unwrap().intents(Dialect::File).unwrap_err();
    assert_eq!(problems.0[0].reason, Reason::Conflict);
}

#[test]
fn a_bridge_keeps_its_name() {
    let bridge = |name: &str| object("Bridge", "x", &format!("{{name: {name}}}")).unwrap();
    assert!(bridge("br0").check_change(&bridge("br0")).is_empty());
    assert_eq!(
        bridge("br1").check_change(&bridge("br0")).to_string(),
        "spec.name: a bridge does not change its name: make another Bridge"
    );
}
