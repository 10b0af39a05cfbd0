//! Translation of a pod's annotation and definitions into intents.

use ipnet::IpNet;
use knit_model::Kind;
use knit_model::intent::{InterfaceIntent, NetworkDefinition};
use knit_model::report::InterfaceReport;
use serde_json::{Value, json};

use super::*;

fn pod() -> ObjectRef {
    let text = str::to_owned;
    ObjectRef {
        kind: text("Pod"),
        namespace: text("shop"),
        name: text("web"),
        uid: text("u1"),
        generation: 0,
    }
}

fn plugins() -> AllowedPlugins {
    let types = ["mine", "tuning", "host-local"].map(str::to_owned).to_vec();
    AllowedPlugins { types, dirs: vec!["/opt/cni/bin".to_owned()], timeout_seconds: 60 }
}

fn translated(annotation: &str, definitions: &[(&str, Value)]) -> PodAttachments {
    let find = |namespace: &str, name: &str| {
        let title = format!("{namespace}/{name}");
        definitions.iter().find(|(of, _)| *of == title).map(|(_, config)| match config {
            Value::Null => Definition::NotShared,
            config => Definition::Config(config.to_string()),
        })
    };
    translate(&pod(), annotation, find, &plugins())
}

/// The only interface.
#[track_caller]
fn interface(networks: &PodAttachments) -> (InterfaceIntent, NetworkDefinition) {
    let [Intent { spec: IntentSpec::Interface(intent), .. }] = &networks.intents[..] else {
        panic!("{:#?}", networks.intents)
    };
    assert_eq!(intent.pods, Selector::pod("u1"), "this pod only");
    ((**intent).clone(), (**intent.definition.as_ref().unwrap()).clone())
}

/// Why the only entry is rejected.
#[track_caller]
fn rejection(networks: &PodAttachments) -> (Reason, String) {
    let [Intent { spec: IntentSpec::Rejected(intent), origin }] = &networks.intents[..] else {
        panic!("{:#?}", networks.intents)
    };
    assert_eq!(origin.dialect, Dialect::Annotation);
    (intent.problem.reason, intent.problem.message.clone())
}

fn blue(config: Value) -> PodAttachments {
    translated("blue", &[("shop/blue", config)])
}

fn range(text: &str) -> IpNet {
    text.parse().unwrap()
}

#[test]
fn a_bridge_plugin_becomes_a_veth_on_a_bridge_of_the_definitions_namespace() {
    let config = json!({"cniVersion": "1.0.0", "name": "n", "type": "bridge", "bridge": "br-blue", "isGateway": true,
        "mtu": 1400, "vlan": 7, "hairpinMode": true, "ipam": {"type": "host-local", "subnet": "10.10.0.0/24",
        "routes": [{"dst": "10.99.0.0/16"}]}});
    let networks = translated(
        r#"[{"name": "green", "namespace": "lab", "interface": "g0", "mac": "02:00:00:00:00:07", "ips": ["10.10.0.9"],
            "bandwidth": {"egressRate": 8000000, "egressBurst": 800000}}]"#,
        &[("lab/green", config)],
    );
    let (want, defined) = interface(&networks);
    assert_eq!(want.name, knit_model::intent::NameRule::Exact("g0".parse().unwrap()));
    assert!(matches!(want.kind, Kind::Veth(_)));
    assert_eq!((want.master.as_deref(), want.tenant("shop")), (Some("br-blue"), "lab"));
    assert_eq!((want.attrs.mtu, want.attrs.mac), (Some(1400), Some("02:00:00:00:00:07".parse().unwrap())));
    assert_eq!((want.ranges, want.fixed), (vec![range("10.10.0.0/24")], vec![range("10.10.0.9/24")]));
    assert_eq!(want.port.unwrap().native, Some(7));
    assert_eq!(want.limits.egress.unwrap().burst, Some(100_000));
    assert_eq!(want.routes[0].via[0].gateway, Some("10.10.0.1".parse().unwrap()));
    assert!(defined.gateway && defined.hairpin && !defined.shared);
    assert_eq!(networks.intents[0].origin.field, "annotations[k8s.v1.cni.cncf.io/networks][0]");
    assert_eq!(networks.warnings, [""; 0]);
    assert_eq!(networks.attachments[0].name, "lab/green");
}

#[test]
fn interfaces_are_named_by_their_position() {
    let config = json!({"type": "bridge", "bridge": "br0"});
    let all = [("shop/a", config.clone()), ("shop/b", config.clone()), ("shop/c", config)];
    let networks = translated("a, b@eth7, c", &all);
    let names: Vec<&str> = networks.attachments.iter().map(|one| one.interface.as_str()).collect();
    assert_eq!(names, ["net1", "eth7", "net3"]);
    let (_, why) = rejection(&translated("a@eth0", &all));
    assert_eq!(why, "interface must not be eth0, which is reserved");
    let networks = translated("a@net2, b", &all);
    let IntentSpec::Rejected(why) = &networks.intents[1].spec else { panic!("{networks:#?}") };
    assert_eq!(why.problem.message, "interface net2 must be unique in the annotation");
}

#[test]
fn links_on_nics_reference_the_nic_unless_link_in_container_is_set() {
    let ipam = json!({"type": "whereabouts", "range": "10.10.0.0/24"});
    let networks = blue(json!({"type": "macvlan", "master": "eth0", "mode": "private", "ipam": ipam}));
    let (want, defined) = interface(&networks);
    assert!(matches!(want.kind, Kind::Macvlan(_)));
    assert_eq!((want.parent, defined.nic), (None, Some("eth0".parse().unwrap())));
    assert!(defined.shared);
    let (want, defined) =
        interface(&blue(json!({"type": "ipvlan", "master": "net9", "linkInContainer": true})));
    assert!(matches!(want.kind, Kind::Ipvlan(_)));
    assert_eq!((want.parent.as_deref(), defined.nic), (Some("net9"), None));
    let (want, _) = interface(&blue(json!({"type": "vlan", "master": "eth1", "vlanId": 7})));
    assert!(matches!(want.kind, Kind::Vlan(vlan) if vlan.id == 7));
    let (want, defined) = interface(&blue(json!({"type": "host-device", "device": "eno2"})));
    assert!(matches!(want.kind, Kind::HostDevice(_)));
    assert_eq!(defined.nic, Some("eno2".parse().unwrap()));
}

#[test]
fn a_ptp_plugin_becomes_a_veth_on_its_own_bridge() {
    let ipam = json!({"type": "host-local", "subnet": "10.10.0.0/24"});
    let (want, defined) = interface(&blue(json!({"type": "ptp", "ipam": ipam})));
    assert_eq!(want.master.as_deref(), Some("ptp-blue"));
    assert!(defined.gateway);
    let long = translated(
        "a-very-long-name-of-a-network",
        &[("shop/a-very-long-name-of-a-network", json!({"type": "ptp"}))],
    );
    let (want, _) = interface(&long);
    assert!(want.master.as_ref().unwrap().starts_with("p"), "{want:?}");
    let bridge = translated(
        "a-very-long-name-of-a-network",
        &[("shop/a-very-long-name-of-a-network", json!({"type": "bridge"}))],
    );
    assert!(interface(&bridge).0.master.unwrap().len() <= 15);
}

#[test]
fn other_plugins_run_as_a_chain_if_they_are_allowed() {
    let config = json!({"cniVersion": "1.0.0", "name": "n", "type": "mine", "capabilities": {"ips": true},
        "runtimeConfig": {"ips": ["10.9.9.9/8"]}, "ipam": {"type": "host-local"}});
    let networks = translated(
        r#"[{"name": "blue", "ips": ["10.0.0.9/24"], "mac": "02:00:00:00:00:01", "cni-args": {"a": 1}, "default-route": ["10.0.0.1"]}]"#,
        &[("shop/blue", config)],
    );
    let IntentSpec::PluginChain(chain) = &networks.intents[0].spec else { panic!("{networks:#?}") };
    let list: Value = serde_json::from_str(&chain.conflist).unwrap();
    assert_eq!(list["plugins"][0]["runtimeConfig"], json!({"ips": ["10.0.0.9/24"]}), "only its capabilities");
    assert_eq!(list["plugins"][0]["args"]["cni"]["a"], 1);
    assert_eq!(list["name"], "shop.blue", "each definition has its own addresses");
    assert_eq!((chain.name.as_str(), chain.network.as_str()), ("net1", "shop/blue"));
    assert!(networks.warnings[0].contains("default-route"), "{:?}", networks.warnings);
    // A list of several plugins runs as a chain, even if the first has an equivalent kind.
    let list = json!({"plugins": [{"type": "bridge"}, {"type": "tuning"}]});
    let (reason, why) = rejection(&blue(list));
    assert_eq!(reason, Reason::NotAllowed);
    assert!(why.contains("plugin bridge is not allowed"), "{why}");
    let (_, why) = rejection(&blue(json!({"type": "mine", "ipam": {"type": "secret"}})));
    assert!(why.contains("plugin secret is not allowed"), "{why}");
}

#[test]
fn a_rejected_entry_does_not_affect_the_others() {
    let definitions = [
        ("shop/blue", json!({"type": "bridge", "bridge": "br0"})),
        ("shop/dhcp", json!({"type": "bridge", "ipam": {"type": "dhcp"}})),
        ("lab/red", Value::Null),
    ];
    let networks = translated("missing, blue, dhcp, lab/blue, lab/red", &definitions);
    let show = |intent: &Intent| match &intent.spec {
        IntentSpec::Rejected(rejected) => rejected.problem.message.clone(),
        IntentSpec::Interface(interface) => format!("{:?}", interface.name),
        other => format!("{other:?}"),
    };
    let shown: Vec<String> = networks.intents.iter().map(show).collect();
    assert_eq!(shown[0], "NetworkAttachmentDefinition shop/missing not found");
    assert!(shown[1].contains("net2"), "{shown:?}");
    assert!(shown[2].starts_with("NetworkAttachmentDefinition shop/dhcp: ipam.type must be"), "{shown:?}");
    assert_eq!(shown[3], "NetworkAttachmentDefinition lab/blue not found");
    let expected = "NetworkAttachmentDefinition lab/red is not shared with namespace shop";
    assert!(shown[4].starts_with(expected), "{shown:?}");
    assert_eq!(networks.attachments[4].config, None, "it is not remembered");
    let (_, why) = rejection(&translated("[{", &[]));
    assert!(why.contains("must be a JSON list"), "{why}");
}

#[test]
fn the_33rd_network_of_an_annotation_is_rejected_and_the_others_are_used() {
    let networks =
        translated(&vec!["blue"; 33].join(","), &[("shop/blue", json!({"type": "bridge", "bridge": "br0"}))]);
    let (last, others) = networks.intents.split_last().unwrap();
    assert_eq!(others.len(), 32);
    assert!(others.iter().all(|intent| matches!(intent.spec, IntentSpec::Interface(_))));
    let IntentSpec::Rejected(rejected) = &last.spec else { panic!("{last:?}") };
    assert!(rejected.problem.message.contains("at most 32 networks"), "{}", rejected.problem.message);
}

#[test]
fn validation_errors_of_the_equivalent_kind_are_reported() {
    for (config, why) in [
        (json!({"type": "macvlan"}), "spec.config.master must be set"),
        (json!({"type": "macvlan", "master": "eth1", "mode": "odd"}), "got `odd`"),
        (json!({"type": "bridge", "bridge": "a-name-that-is-too-long"}), "master: "),
        (json!({"type": "bridge", "bridge": "br0", "mtu": 20}), "mtu: "),
        (json!({"type": "bridge", "bridge": "br0", "vlan": 4095}), "vlan"),
        (
            json!({"type": "bridge", "bridge": "br0", "macspoofchk": true}),
            "spec.config.macspoofchk: not supported",
        ),
        (json!({"type": "vlan", "master": "eth1"}), "id"),
        (
            json!({"type": "bridge", "isGateway": true, "ipam": {"type": "host-local", "subnet": "10.0.0.0/24",
                "gateway": "10.0.0.254"}}),
            "got 10.0.0.254",
        ),
    ] {
        let (_, message) = rejection(&blue(config.clone()));
        assert!(message.contains(why), "{config}: {message}");
    }
    let networks = blue(json!({"type": "bridge", "bridge": "br0", "ipMasq": true, "colour": "red"}));
    assert_eq!(
        networks.warnings,
        [
            "annotations[k8s.v1.cni.cncf.io/networks][0]: spec.config.ipMasq: ignored: traffic through this bridge is not masqueraded",
            "annotations[k8s.v1.cni.cncf.io/networks][0]: spec.config.colour: unknown field, ignored",
        ]
    );
}

#[test]
fn the_network_status_lists_ready_networks_in_the_annotations_order() {
    let networks = translated("blue, missing", &[("shop/blue", json!({"type": "bridge", "bridge": "br0"}))]);
    let report = InterfaceReport {
        field: String::new(),
        name: "net1".parse().unwrap(),
        kind: "veth".to_owned(),
        addresses: vec![range("10.10.0.9/24")],
        mac: Some("02:00:00:00:00:07".parse().unwrap()),
        mtu: Some(1500),
        peer: None,
        master: None,
        vlans: None,
        vrf: None,
        details: Vec::new(),
        limited: false,
        networks: Vec::new(),
        ready: true,
    };
    let primary = PrimaryInterfaceInfo {
        network: "cluster-network".to_owned(),
        addresses: vec!["10.75.0.2".to_owned()],
        mac: None,
    };
    let text = network_status(Some(&primary), &networks.attachments, &[report]);
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        value,
        json!([
            {"name": "cluster-network", "interface": "eth0", "ips": ["10.75.0.2"], "default": true, "dns": {}},
            {"name": "shop/blue", "interface": "net1", "ips": ["10.10.0.9"], "mac": "02:00:00:00:00:07", "mtu": 1500,
                "dns": {}},
        ])
    );
}
