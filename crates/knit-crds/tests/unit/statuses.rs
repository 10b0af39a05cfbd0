//! Status lines of the pod-network-operator, the same facts as fields, and standard conditions.

use jiff::Timestamp;
use knit_crds::kinds::AddressCounts;
use knit_crds::states::AppliedObject;
use knit_crds::{Object, ResourceKind};
use knit_model::SandboxId;
use knit_model::problem::{Problem, Reason};
use knit_model::provenance::ObjectRef;
use knit_model::report::{
    AppliedReport, AttachTiming, BridgeReport, InterfaceReport, ItemKind, ItemReport, NodeReport, Phase,
    PodReport, Report,
};

use crate::SAMPLES;

fn link(index: usize, number: u32, address: &str) -> InterfaceReport {
    InterfaceReport {
        field: format!("spec.networkAttachments[{index}]"),
        name: format!("pc{index}{number}").parse().unwrap(),
        kind: "veth".to_owned(),
        addresses: vec![address.parse().unwrap()],
        mac: None,
        mtu: Some(1500),
        peer: Some(format!("hpc{index}{number}").parse().unwrap()),
        master: Some(format!("pcbr{index}").parse().unwrap()),
        details: Vec::new(),
        vlans: None,
        vrf: None,
        limited: false,
        networks: Vec::new(),
        ready: true,
    }
}

fn pod(name: &str, number: u32, host: u8) -> PodReport {
    let interfaces = vec![
        link(0, number, &format!("192.168.100.{host}/24")),
        link(1, number, &format!("192.168.99.{host}/24")),
    ];
    let (pod, sandbox, items) = (name.to_owned(), SandboxId(name.to_owned()), Vec::new());
    PodReport { pod, sandbox, attached: None, interfaces, items }
}

fn report(object: ObjectRef, phase: Phase, pods: Vec<PodReport>) -> Report {
    Report { object, phase, bridges: vec![], pods, nodes: vec![], problems: vec![], warnings: vec![] }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

/// The object of the walkthrough with its two pods.
fn walkthrough() -> (Object, Report) {
    let mut object = Object::parse(SAMPLES[0].1).unwrap();
    object.metadata_mut().generation = Some(1);
    let pods = vec![
        pod("cnf-example-a-846566d4fb-7rxft", 2_841_804, 2),
        pod("cnf-example-a-846566d4fb-lmxmg", 2_841_798, 3),
    ];
    let report = report(object.object_ref(), Phase::Configured, pods);
    (object, report)
}

#[test]
fn the_status_lines_of_the_walkthrough_are_unchanged() {
    let (mut object, report) = walkthrough();
    assert!(object.update_status(&report, at(0)));
    let status = object.to_value()["status"].clone();
    assert_eq!(status["phase"], "configured");
    let lines = |pod: usize| status["podConfigurations"][pod]["configList"].clone();
    let expected = serde_json::json!([
        "{podVethName:pc02841804 podIPAddr:192.168.100.2/24 peerVethName:hpc02841804 bridge:pcbr0}",
        "{podVethName:pc12841804 podIPAddr:192.168.99.2/24 peerVethName:hpc12841804 bridge:pcbr1}",
    ]);
    assert_eq!(status["podConfigurations"][0]["podName"], "cnf-example-a-846566d4fb-7rxft");
    assert_eq!(lines(0), expected);
    let expected = serde_json::json!([
        "{podVethName:pc02841798 podIPAddr:192.168.100.3/24 peerVethName:hpc02841798 bridge:pcbr0}",
        "{podVethName:pc12841798 podIPAddr:192.168.99.3/24 peerVethName:hpc12841798 bridge:pcbr1}",
    ]);
    assert_eq!(status["podConfigurations"][1]["podName"], "cnf-example-a-846566d4fb-lmxmg");
    assert_eq!(lines(1), expected);
    insta::assert_snapshot!(object.to_yaml());
}

#[test]
fn the_facts_of_the_status_lines_are_also_fields() {
    let (mut object, mut report) = walkthrough();
    report.pods.truncate(1);
    report.pods[0].interfaces.truncate(1);
    report.pods[0].interfaces[0].details = vec![("vlan".to_owned(), "100".to_owned())];
    let item = |kind, what: &str, ready| ItemReport {
        field: String::new(),
        kind,
        description: what.to_owned(),
        links: vec![],
        ready,
    };
    report.pods[0].items = vec![
        item(ItemKind::Route, "10.9.0.0/16 via 10.1.0.1 dev net1", true),
        item(ItemKind::Sysctl, "net.ipv4.ip_forward=1", false),
    ];
    object.update_status(&report, at(0));
    let pod = object.to_value()["status"]["podConfigurations"][0].clone();
    assert_eq!(
        pod["configList"],
        serde_json::json!([
            "{podVethName:pc02841804 podIPAddr:192.168.100.2/24 peerVethName:hpc02841804 bridge:pcbr0 vlan:100}",
            "{route:10.9.0.0/16 via 10.1.0.1 dev net1}",
        ])
    );
    assert_eq!(
        pod["interfaces"],
        serde_json::json!([{
            "name": "pc02841804", "linkType": "veth", "addresses": ["192.168.100.2/24"], "mtu": 1500,
            "peer": "hpc02841804", "master": "pcbr0", "details": [{"name": "vlan", "value": "100"}],
        }])
    );
    let items = serde_json::json!([{"type": "route", "value": "10.9.0.0/16 via 10.1.0.1 dev net1"}]);
    assert_eq!(pod["items"], items, "only applied items");
}

#[test]
fn an_equal_status_is_not_a_change() {
    let (mut object, report) = walkthrough();
    assert!(object.update_status(&report, at(0)));
    assert!(!object.update_status(&report, at(60)), "only the time changed");
    // It is also equal after a YAML round trip.
    let mut again = Object::parse(&object.to_yaml()).unwrap();
    assert!(!again.update_status(&report, at(120)));
}

#[test]
fn the_transition_time_changes_only_with_the_condition_status() {
    let (mut object, good) = walkthrough();
    let since = |object: &Object| {
        let ready = object.common_status().unwrap().condition("Ready").unwrap().clone();
        (ready.status, ready.reason, ready.last_transition_time.0)
    };
    object.update_status(&good, at(0));
    assert_eq!(since(&object), ("True".to_owned(), "Configured".to_owned(), at(0)));
    let problem =
        |reason, message: &str| Problem::new("spec.networkAttachments[1].cidr", reason, message.to_owned());
    let mut bad = good.clone();
    bad.phase = Phase::Configuring;
    bad.problems = vec![problem(Reason::AddressesExhausted, "no free address is left in 192.168.99.0/24")];
    object.update_status(&bad, at(10));
    assert_eq!(since(&object), ("False".to_owned(), "AddressesExhausted".to_owned(), at(10)));
    bad.problems.insert(0, problem(Reason::KernelError, "device or resource busy"));
    object.update_status(&bad, at(20));
    assert_eq!(since(&object), ("False".to_owned(), "KernelError".to_owned(), at(10)));
    let message = object.common_status().unwrap().condition("Ready").unwrap().message.clone();
    assert_eq!(
        message,
        "spec.networkAttachments[1].cidr: device or resource busy; \
         spec.networkAttachments[1].cidr: no free address is left in 192.168.99.0/24"
    );
    object.update_status(&good, at(30));
    assert_eq!(since(&object), ("True".to_owned(), "Configured".to_owned(), at(30)));
}

#[test]
fn the_observed_generation_is_that_of_the_report() {
    let (mut object, report) = walkthrough();
    object.metadata_mut().generation = Some(2);
    object.update_status(&report, at(0));
    let common = object.common_status().unwrap();
    assert_eq!(common.observed_generation, Some(1));
    assert_eq!(common.conditions[0].observed_generation, Some(1));
}

#[test]
fn an_object_without_pods_reports_the_label_they_need() {
    let (mut object, mut report) = walkthrough();
    report.pods.clear();
    report.phase = Phase::Unset;
    object.update_status(&report, at(0));
    let common = object.common_status().unwrap();
    assert_eq!(common.phase, "unset");
    assert_eq!(common.conditions[0].reason, "NoPods");
    assert_eq!(
        common.conditions[0].message,
        "no pod matches: label pods with podconfig=podconfig-sample-a, or set spec.selector"
    );
}

#[test]
fn only_applied_interfaces_are_listed() {
    let (mut object, mut report) = walkthrough();
    report.pods[0].interfaces[1].ready = false;
    report.phase = Phase::Configuring;
    object.update_status(&report, at(0));
    let status = object.to_value()["status"].clone();
    assert_eq!(status["podConfigurations"][0]["configList"].as_array().unwrap().len(), 1);
    assert_eq!((&status["pods"], &status["readyPods"]), (&2.into(), &1.into()));
    assert_eq!(object.common_status().unwrap().conditions[0].message, "1 of 2 pods configured");
}

#[test]
fn a_status_lists_at_most_100_pods() {
    let (mut object, mut report) = walkthrough();
    report.pods = (0..500).map(|n| pod(&format!("pod-{n:03}"), n, 2)).collect();
    object.update_status(&report, at(0));
    let status = object.to_value()["status"].clone();
    assert_eq!(status["pods"], 500);
    assert_eq!(status["podConfigurations"].as_array().unwrap().len(), 100);
}

#[test]
fn other_kinds_have_their_own_status_lines() {
    let objects = Object::parse_all(SAMPLES[1].1).unwrap();
    let mut config = objects[0].clone();
    let eth0 = InterfaceReport {
        field: "spec.eth0".to_owned(),
        name: "eth0".parse().unwrap(),
        kind: String::new(),
        addresses: vec![],
        mac: None,
        mtu: Some(8192),
        peer: None,
        master: None,
        details: Vec::new(),
        vlans: None,
        vrf: None,
        limited: false,
        networks: Vec::new(),
        ready: true,
    };
    let macvlan = InterfaceReport {
        field: "spec.links[0]".to_owned(),
        name: "mv7".parse().unwrap(),
        kind: "macvlan".to_owned(),
        addresses: vec!["10.7.0.2/16".parse().unwrap(), "fd00:7::2/64".parse().unwrap()],
        mtu: Some(1400),
        ..eth0.clone()
    };
    let pods = vec![PodReport {
        pod: "p".to_owned(),
        sandbox: SandboxId("p".to_owned()),
        attached: None,
        interfaces: vec![eth0, macvlan],
        items: Vec::new(),
    }];
    config.update_status(&report(config.object_ref(), Phase::Configured, pods), at(0));
    let list = config.to_value()["status"]["PodNetworkConfigs"][0]["configList"].clone();
    assert_eq!(
        list,
        serde_json::json!([
            "{podLinkName:eth0 mtu:8192}",
            "{podLinkName:mv7 linkType:macvlan podIPAddr:10.7.0.2/16,fd00:7::2/64 mtu:1400}",
        ])
    );

    let mut bridge = objects[1].clone();
    let mut applied = report(bridge.object_ref(), Phase::Configured, vec![]);
    applied.bridges = vec![BridgeReport {
        requested: "pnobr0".to_owned(),
        name: "pnobr0".parse().unwrap(),
        addresses: vec!["192.168.100.1/24".parse().unwrap()],
        default_vlan: None,
    }];
    applied.warnings = vec!["a warning".to_owned()];
    bridge.update_status(&applied, at(0));
    let status = bridge.to_value()["status"].clone();
    assert_eq!(
        status["bridges"],
        serde_json::json!([{ "name": "pnobr0", "addresses": ["192.168.100.1/24"] }])
    );
    assert_eq!(status["warnings"], serde_json::json!(["a warning"]));
}

#[test]
fn conditions_of_other_controllers_are_kept() {
    let (object, report) = walkthrough();
    let Object::PodConfig(object) = object else { panic!("a PodConfig") };
    let mut status = object.status_for(&report, None, at(0));
    let mut other = status.common.conditions[0].clone();
    other.type_ = "Audited".to_owned();
    status.common.conditions.push(other.clone());
    let next = object.status_for(&report, Some(&status), at(1));
    assert_eq!(next.common.condition("Audited"), Some(&other));
    assert_eq!(next.common.conditions.len(), 2);
}

#[test]
fn the_status_of_a_gateway_has_the_node_that_holds_its_addresses() {
    let yaml = "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: EgressGateway\nmetadata: {name: shop}\n\
                spec: {namespaces: [shop], addresses: [192.0.2.10], nodes: [node1, node2]}\n";
    let mut object = Object::parse(yaml).unwrap();
    let mut report = report(object.object_ref(), Phase::Configured, vec![]);
    let status = |object: &Object| object.to_value()["status"].clone();
    object.update_status(&report, at(0));
    assert_eq!(status(&object)["activeNode"], serde_json::Value::Null);
    let what = "192.0.2.10 on eth0".to_owned();
    let item = ItemReport {
        field: "spec.addresses[0]".to_owned(),
        kind: ItemKind::NodeAddress,
        description: what,
        links: vec![],
        ready: true,
    };
    report.nodes.push(NodeReport { node: "node2".to_owned(), items: vec![item] });
    object.update_status(&report, at(1));
    assert_eq!(status(&object)["activeNode"], "node2");
    assert_eq!(status(&object)["held"], serde_json::json!(["192.0.2.10 on eth0"]));
}

#[test]
fn the_status_of_a_service_address_pool_has_its_announcements_and_keeps_the_counts() {
    let yaml = "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: ServiceAddressPool\nmetadata: {name: lan}\n\
                spec: {cidrs: [192.0.2.128/26]}\n";
    let mut object = Object::parse(yaml).unwrap();
    let mut report = report(object.object_ref(), Phase::Configured, vec![]);
    let status = |object: &Object| object.to_value()["status"].clone();
    object.update_status(&report, at(0));
    assert_eq!(status(&object)["announced"], serde_json::Value::Null);
    let Object::ServiceAddressPool(pool) = &mut object else { panic!("a ServiceAddressPool") };
    let counts = AddressCounts { total: 62, used: 150, free: 0 };
    pool.status.as_mut().unwrap().addresses = Some(counts);
    let item = |number: u32| ItemReport {
        field: format!("address {number}"),
        kind: ItemKind::NodeAddress,
        description: format!("192.0.2.{number} on eth0"),
        links: vec![],
        ready: true,
    };
    report.nodes.push(NodeReport { node: "node2".to_owned(), items: (0..150).map(item).collect() });
    object.update_status(&report, at(1));
    let announced = status(&object)["announced"].as_array().unwrap().clone();
    assert_eq!((announced.len(), announced[7].as_str()), (100, Some("192.0.2.7 on eth0 of node2")));
    assert_eq!(status(&object)["addresses"], serde_json::json!({"total": 62, "used": 150, "free": 0}));
}

#[test]
fn the_type_of_an_item_survives_the_api_server() {
    let item = |kind, description: &str| ItemReport {
        field: "spec.routes[0]".to_owned(),
        kind,
        description: description.to_owned(),
        links: vec![],
        ready: true,
    };
    let (object, report) = walkthrough();
    let object_ref = object.object_ref();
    let applied = AppliedReport {
        object: object_ref,
        ready: true,
        attached: None,
        interfaces: vec![],
        items: vec![item(ItemKind::Route, "10.9.0.0/16 dev net1"), item(ItemKind::Socket, "p443 tcp :443")],
        bridges: vec![],
        problems: report.problems,
        warnings: vec![],
    };
    let state = AppliedObject::of(&applied);
    assert_eq!(state.items[0].what, "route 10.9.0.0/16 dev net1");
    assert_eq!(state.report().items, applied.items);
    // An older agent writes only the text.
    let mut older = state;
    (older.items[0].type_, older.items[0].value) = (String::new(), String::new());
    assert_eq!(older.report().items[0], item(ItemKind::Other, "route 10.9.0.0/16 dev net1"));
}

#[test]
fn the_status_of_each_pod_has_the_time_of_its_attachment() {
    let (mut object, mut report) = walkthrough();
    report.pods[0].attached = Some(AttachTiming::BeforeContainers);
    object.update_status(&report, at(0));
    let status = object.to_value()["status"]["podConfigurations"].clone();
    assert_eq!(status[0]["attached"], "BeforeContainers");
    assert_eq!(status[1].get("attached"), None, "not known for this pod");
    // The report of an agent survives a round trip through the API server.
    for attached in [None, Some(AttachTiming::WhileRunning), Some(AttachTiming::ByCall)] {
        let PodReport { interfaces, items, .. } = report.pods[0].clone();
        let (bridges, problems, warnings) = (Vec::new(), Vec::new(), Vec::new());
        let object = report.object.clone();
        let applied =
            AppliedReport { object, ready: true, attached, interfaces, items, bridges, problems, warnings };
        assert_eq!(AppliedObject::of(&applied).report().attached, attached);
    }
}

#[test]
fn the_status_of_a_network_has_the_transport_of_each_node() {
    let yaml = "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: VirtualNetwork\nmetadata: {name: blue}\n\
                spec: {subnets: [10.60.0.0/24], transport: vxlan, vni: 42}\n";
    let mut object = Object::parse(yaml).unwrap();
    let mut report = report(object.object_ref(), Phase::Configured, vec![]);
    for node in ["node1", "node2"] {
        let what = "vxlan, VNI 42, by knvx1 to the other".to_owned();
        let item = ItemReport {
            field: "spec.transport".to_owned(),
            kind: ItemKind::NodeTunnel,
            description: what,
            links: vec![],
            ready: true,
        };
        report.nodes.push(NodeReport { node: node.to_owned(), items: vec![item] });
    }
    object.update_status(&report, at(0));
    let status = object.to_value()["status"].clone();
    let expected =
        |node: &str| serde_json::json!({"node": node, "transport": "vxlan, VNI 42, by knvx1 to the other"});
    assert_eq!(status["nodes"], serde_json::json!([expected("node1"), expected("node2")]));
}
