//! From a pod's annotation and definitions to what is asked for.

use ipnet::IpNet;
use knit_model::Kind;
use knit_model::intent::{Defined, InterfaceIntent};
use knit_model::report::InterfaceReport;
use serde_json::{Value, json};

use super::*;

fn pod() -> ObjectRef {
    let word = str::to_owned;
    ObjectRef {
        kind: word("Pod"),
        namespace: word("shop"),
        name: word("web"),
        uid: word("u1"),
        generation: 0,
    }
}

fn plugins() -> Plugins {
    let types = ["mine", "tuning", "host-local"].map(str::to_owned).to_vec();
    Plugins { types, dirs: vec!["/opt/cni/bin".to_owned()], timeout_seconds: 60 }
}

fn asked(annotation: &str, definitions: &[(&str, Value)]) -> Networks {
    let find = |namespace: &str, name: &str| {
        let title = format!("{namespace}/{name}");
        definitions.iter().find(|(of, _)| *of == title).map(|(_, config)| config.to_string())
    };
    translate(&pod(), annotation, find, &plugins())
}

/// The one interface that is asked for.
#[track_caller]
fn interface(networks: &Networks) -> (InterfaceIntent, Defined) {
    let [Intent { spec: IntentSpec::Interface(want), .. }] = &networks.intents[..] else {
        panic!("{:#?}", networks.intents)
    };
    assert_eq!(want.pods, Selector::pod("u1"), "this pod and no other");
    ((**want).clone(), (**want.defined.as_ref().unwrap()).clone())
}

/// Why the one entry cannot be.
#[track_caller]
fn refusal(networks: &Networks) -> (Reason, String) {
    let [Intent { spec: IntentSpec::Rejected(want), origin }] = &networks.intents[..] else {
        panic!("{:#?}", networks.intents)
    };
    assert_eq!(origin.dialect, Dialect::Annotation);
    (want.problem.reason, want.problem.message.clone())
}

fn blue(config: Value) -> Networks {
    asked("blue", &[("shop/blue", config)])
}

fn range(text: &str) -> IpNet {
    text.parse().unwrap()
}

#[test]
fn a_bridge_is_a_pair_on_a_bridge_of_the_definitions_namespace() {
    let config = json!({"cniVersion": "1.0.0", "name": "n", "type": "bridge", "bridge": "br-blue", "isGateway": true,
        "mtu": 1400, "vlan": 7, "hairpinMode": true, "ipam": {"type": "host-local", "subnet": "10.10.0.0/24",
        "routes": [{"dst": "10.99.0.0/16"}]}});
    let networks = asked(
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
fn interfaces_are_named_by_their_place() {
    let config = json!({"type": "bridge", "bridge": "br0"});
    let all = [("shop/a", config.clone()), ("shop/b", config.clone()), ("shop/c", config)];
    let networks = asked("a, b@eth7, c", &all);
    let names: Vec<&str> = networks.attachments.iter().map(|one| one.interface.as_str()).collect();
    assert_eq!(names, ["net1", "eth7", "net3"]);
    let (_, why) = refusal(&asked("a@eth0", &all));
    assert_eq!(why, "interface eth0 is the pod's own, and no network's of its annotation");
    let networks = asked("a@net2, b", &all);
    let IntentSpec::Rejected(why) = &networks.intents[1].spec else { panic!("{networks:#?}") };
    assert_eq!(why.problem.message, "interface net2 is asked for twice in this annotation");
}

#[test]
fn links_on_nics_name_the_nic_and_never_an_interface_of_the_pod() {
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
fn a_point_to_point_link_is_a_pair_on_a_bridge_of_its_own() {
    let ipam = json!({"type": "host-local", "subnet": "10.10.0.0/24"});
    let (want, defined) = interface(&blue(json!({"type": "ptp", "ipam": ipam})));
    assert_eq!(want.master.as_deref(), Some("ptp-blue"));
    assert!(defined.gateway);
    let long = asked(
        "a-very-long-name-of-a-network",
        &[("shop/a-very-long-name-of-a-network", json!({"type": "ptp"}))],
    );
    let (want, _) = interface(&long);
    assert!(want.master.as_ref().unwrap().starts_with("p"), "{want:?}");
    let bridge = asked(
        "a-very-long-name-of-a-network",
        &[("shop/a-very-long-name-of-a-network", json!({"type": "bridge"}))],
    );
    assert!(interface(&bridge).0.master.unwrap().len() <= 15);
}

#[test]
fn other_types_run_as_plugins_where_the_admin_lets_them() {
    let config = json!({"cniVersion": "1.0.0", "name": "n", "type": "mine", "capabilities": {"ips": true},
        "ipam": {"type": "host-local"}});
    let networks = asked(
        r#"[{"name": "blue", "ips": ["10.0.0.9/24"], "mac": "02:00:00:00:00:01", "cni-args": {"a": 1}, "default-route": ["10.0.0.1"]}]"#,
        &[("shop/blue", config)],
    );
    let IntentSpec::PluginChain(want) = &networks.intents[0].spec else { panic!("{networks:#?}") };
    let list: Value = serde_json::from_str(&want.conflist).unwrap();
    assert_eq!(
        list["plugins"][0]["runtimeConfig"],
        json!({"ips": ["10.0.0.9/24"]}),
        "what it says it can do"
    );
    assert_eq!(list["plugins"][0]["args"]["cni"]["a"], 1);
    assert_eq!((want.name.as_str(), want.network.as_str()), ("net1", "shop/blue"));
    assert!(networks.warnings[0].contains("default-route"), "{:?}", networks.warnings);
    // A list of several is the plugins' business as a whole, also where the first is a kind of Knit's.
    let list = json!({"plugins": [{"type": "bridge"}, {"type": "tuning"}]});
    let (reason, why) = refusal(&blue(list));
    assert_eq!(reason, Reason::NotAllowed);
    assert!(why.contains("its plugin bridge is none of Knit's kinds, and the agent's"), "{why}");
    let (_, why) = refusal(&blue(json!({"type": "mine", "ipam": {"type": "secret"}})));
    assert!(why.contains("its plugin secret"), "{why}");
}

#[test]
fn what_cannot_be_is_told_for_its_entry_and_the_others_stand() {
    let definitions = [
        ("shop/blue", json!({"type": "bridge", "bridge": "br0"})),
        ("shop/dhcp", json!({"type": "bridge", "ipam": {"type": "dhcp"}})),
    ];
    let networks = asked("missing, blue, dhcp, lab/blue", &definitions);
    let word = |intent: &Intent| match &intent.spec {
        IntentSpec::Rejected(want) => want.problem.message.clone(),
        IntentSpec::Interface(want) => format!("{:?}", want.name),
        other => format!("{other:?}"),
    };
    let words: Vec<String> = networks.intents.iter().map(word).collect();
    assert_eq!(words[0], "there is no NetworkAttachmentDefinition shop/missing");
    assert!(words[1].contains("net2"), "{words:?}");
    assert!(
        words[2].starts_with("NetworkAttachmentDefinition shop/dhcp: ipam dhcp: Knit asks no"),
        "{words:?}"
    );
    assert_eq!(words[3], "there is no NetworkAttachmentDefinition lab/blue");
    let (_, why) = refusal(&asked("[{", &[]));
    assert!(why.contains("neither a list in JSON"), "{why}");
}

#[test]
fn what_a_kind_of_knits_refuses_is_refused_in_its_words() {
    for (config, why) in [
        (json!({"type": "macvlan"}), "spec.config.master: it is missing"),
        (json!({"type": "macvlan", "master": "eth1", "mode": "odd"}), "mode: `odd`"),
        (json!({"type": "bridge", "bridge": "a-name-that-is-too-long"}), "master: "),
        (json!({"type": "bridge", "bridge": "br0", "mtu": 20}), "mtu: "),
        (json!({"type": "bridge", "bridge": "br0", "vlan": 4095}), "vlan"),
        (
            json!({"type": "bridge", "bridge": "br0", "macspoofchk": true}),
            "spec.config.macspoofchk: Knit has nothing",
        ),
        (json!({"type": "vlan", "master": "eth1"}), "id"),
        (
            json!({"type": "bridge", "isGateway": true, "ipam": {"type": "host-local", "subnet": "10.0.0.0/24",
                "gateway": "10.0.0.254"}}),
            "cannot have 10.0.0.254",
        ),
    ] {
        let (_, said) = refusal(&blue(config.clone()));
        assert!(said.contains(why), "{config}: {said}");
    }
    let networks = blue(json!({"type": "bridge", "bridge": "br0", "ipMasq": true, "colour": "red"}));
    assert_eq!(
        networks.warnings,
        [
            "annotations[k8s.v1.cni.cncf.io/networks][0]: spec.config.ipMasq: what leaves by this bridge keeps the pod's address",
            "annotations[k8s.v1.cni.cncf.io/networks][0]: spec.config.colour: not known, and does nothing",
        ]
    );
}

#[test]
fn the_status_says_what_stands_in_the_annotations_order() {
    let networks = asked("blue, missing", &[("shop/blue", json!({"type": "bridge", "bridge": "br0"}))]);
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
        shown: Vec::new(),
        limited: false,
        ready: true,
    };
    let first =
        First { network: "cluster-network".to_owned(), addresses: vec!["10.75.0.2".to_owned()], mac: None };
    let text = status(Some(&first), &networks.attachments, &[report]);
    let said: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        said,
        json!([
            {"name": "cluster-network", "interface": "eth0", "ips": ["10.75.0.2"], "default": true, "dns": {}},
            {"name": "shop/blue", "interface": "net1", "ips": ["10.10.0.9"], "mac": "02:00:00:00:00:07", "mtu": 1500,
                "dns": {}},
        ])
    );
}
