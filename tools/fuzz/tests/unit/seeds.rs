//! The part of the corpus that is written by code: messages of protocols, and what Knit itself writes. The other files are
//! written by hand. `KNIT_FUZZ_WRITE=1 cargo test -p knit-fuzz` writes it.

use std::fs;
use std::path::{Path, PathBuf};

use knit_crds::Object;
use knit_dev::places;
use knit_engine::recording::Entry;
use knit_engine::{Event, ObjectKey, Record};
use knit_fuzz::targets::engine::{NAMESPACE, Node};
use knit_kernel::Message;
use knit_kernel::decode;
use knit_kernel::netlink::constants::*;
use knit_kernel::netlink::header::{
    AddressHeader, GenericHeader, LinkHeader, NeighbourHeader, RouteHeader, RuleHeader,
};
use knit_kni::{frame, kni, v1};
use knit_model::filter::{Filter, FilterStep, FilterTable, TABLE, TableFamily, TableKey};
use knit_model::plan::{Desired, Step, diff};
use knit_model::provenance::Dialect;
use knit_model::{NetState, Scope, ScopeState};
use knit_policy::{LocalPod, PodKey, PolicyId, PolicyIndex, PolicyPod, dispatch, network_policy};
use serde_json::json;

/// The variable with which the test writes the files.
const WRITE: &str = "KNIT_FUZZ_WRITE";

/// A seed: the target, the file's name, and its bytes.
type Seed = (&'static str, &'static str, Vec<u8>);

fn path(target: &str, name: &str) -> PathBuf {
    places::workspace().join("tools/fuzz/corpus").join(target).join(name)
}

#[test]
fn written_seeds_are_what_the_code_writes() {
    let messages = [requests(), nri(), netlink(), nftables()].concat();
    if std::env::var_os(WRITE).is_some() {
        for (target, name, bytes) in [messages.clone(), written_by_the_engine()].concat() {
            let path = path(target, name);
            fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
            fs::write(path, bytes).unwrap();
        }
    }
    for (target, name, bytes) in messages {
        assert_eq!(fs::read(path(target, name)).unwrap_or_default(), bytes, "{target}/{name}: set {WRITE}=1");
    }
}

#[test]
fn records_and_entries_of_the_corpus_can_be_read() {
    for (target, name, _) in written_by_the_engine() {
        let text = fs::read_to_string(path(target, name)).unwrap();
        for line in text.lines() {
            let read = match target {
                "records" => serde_json::from_str::<Record>(line).map(drop),
                _ => serde_json::from_str::<Entry>(line).map(drop),
            };
            read.unwrap_or_else(|why| panic!("{target}/{name}: {why}: set {WRITE}=1\n{line}"));
        }
    }
}

/// The selector of a method, and a message.
fn request(selector: u8, message: &impl prost::Message) -> Vec<u8> {
    [&[selector][..], &message.encode_to_vec()].concat()
}

fn requests() -> Vec<Seed> {
    let text = str::to_owned;
    let sandbox = || v1::SandboxSpec {
        id: text("s2"),
        name: text("db"),
        namespace: text("shop"),
        uid: text("u2"),
        labels: [(text("app"), text("db"))].into(),
        annotations: [
            (text("kubernetes.io/ingress-bandwidth"), text("10M")),
            (text("knit.opdev.io/addresses"), text("10.1.2.3, fd00::3")),
        ]
        .into(),
        isolation: Some(v1::Isolation {
            domain: Some(v1::isolation::Domain::NetnsPath(text("/run/netns/s2"))),
        }),
    };
    let interface = v1::InterfaceSpec {
        name: text("eth0"),
        to: Some(v1::interface_spec::To::Network(text("blue"))),
        addresses: vec![text("10.0.0.2/24"), text("fd00::2")],
        mac: text("02:00:00:00:00:01"),
        mtu: 1400,
        bandwidth: Some(v1::Bandwidth { ingress_bits: 1_000_000, ..Default::default() }),
        port_mappings: vec![v1::PortMapping {
            container_port: 80,
            host_port: 8080,
            host_ip: text("192.0.2.1"),
            ..Default::default()
        }],
        routes: vec![v1::Route {
            destination: text("10.9.0.0/16"),
            gateway: text("10.0.0.1"),
            ..Default::default()
        }],
        sysctls: [(text("net.ipv4.conf.IFNAME.arp_filter"), text("1"))].into(),
        ..Default::default()
    };
    let link = v1::InterfaceSpec {
        name: text("net1"),
        to: Some(v1::interface_spec::To::Link(v1::LinkSpec {
            kind: text("macvlan"),
            parent: text("eth1"),
            options: [(text("mode"), text("bridge")), (text("gateways"), text(r#"["10.7.0.1"]"#))].into(),
            ..Default::default()
        })),
        ..Default::default()
    };
    let attach = v1::AttachRequest {
        sandbox: Some(sandbox()),
        interfaces: vec![interface, link],
        dns: Some(v1::DnsConfig { servers: vec![text("10.0.0.10")], ..Default::default() }),
        dialect: text("cni"),
        group: text("cni:blue"),
        ..Default::default()
    };
    let detach = v1::DetachRequest {
        pod: Some(v1::PodRef { id: text("s1"), ..Default::default() }),
        interfaces: vec![text("eth0")],
        netns_path: text("/run/netns/s1"),
        ..Default::default()
    };
    let living = v1::Living {
        attachments: vec![v1::Attachment { sandbox_id: text("s1"), interface: text("eth0") }],
        none: false,
    };
    let collect = v1::CollectGarbageRequest {
        garbage: Some(v1::collect_garbage_request::Garbage::Living(living)),
        ..Default::default()
    };
    let create = v1::CreateSandboxRequest { sandbox: Some(sandbox()), ..Default::default() };
    let register = v1::RegisterRequest {
        extension: Some(v1::ExtensionSpec {
            name: text("mesh"),
            socket: text("/run/mesh.sock"),
            phases: vec![v1::ExtensionPhase::AfterAttach.into()],
            namespaces: vec![text("shop")],
            ..Default::default()
        }),
        ..Default::default()
    };
    let kni_attach = kni::AttachInterfaceRequest {
        id: text("s2"),
        name: text("db"),
        namespace: text("shop"),
        annotations: [(text("kubernetes.io/egress-bandwidth"), text("1Gi"))].into(),
        extradata: [("netns", "/run/netns/s2"), ("ifname", "eth0"), ("network", "blue")]
            .map(|(key, value)| (text(key), text(value)))
            .into(),
        port_mappings: vec![kni::PortMapping {
            container_port: 53,
            host_port: 53,
            protocol: 1,
            ..Default::default()
        }],
        ..Default::default()
    };
    let kni_detach = kni::DetachInterfaceRequest {
        id: text("s1"),
        extradata: [(text("ifname"), text("eth0"))].into(),
        ..Default::default()
    };
    let network = kni::CreateNetworkRequest {
        name: text("db"),
        namespace: text("shop"),
        uid: text("u2"),
        ..Default::default()
    };
    vec![
        ("requests", "attach", request(0, &attach)),
        ("requests", "detach", request(1, &detach)),
        ("requests", "collect-garbage", request(2, &collect)),
        ("requests", "create-sandbox", request(3, &create)),
        ("requests", "register", request(4, &register)),
        ("requests", "kni-attach", request(5, &kni_attach)),
        ("requests", "kni-detach", request(6, &kni_detach)),
        ("requests", "kni-create-network", request(7, &network)),
        ("requests", "framed", [&[0xff][..], &frame::encode(&frame::call("Detach", &detach, 0))].concat()),
    ]
}

/// A field of a protobuf message with a length.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let length = u8::try_from(value.len()).ok().filter(|length| *length < 0x80);
    let head = match length {
        Some(length) => vec![number << 3 | 2, length],
        None => vec![number << 3 | 2, value.len() as u8 | 0x80, (value.len() >> 7) as u8],
    };
    [head, value.to_vec()].concat()
}

/// A ttrpc message in one frame.
fn ttrpc(connection: u32, kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = |bytes: usize| (bytes as u32).to_be_bytes();
    let message = [&length(payload.len())[..], &1u32.to_be_bytes(), &[kind, 0], payload].concat();
    [&connection.to_be_bytes()[..], &length(message.len()), &message].concat()
}

fn nri() -> Vec<Seed> {
    let call = |method: &str, message: &[u8]| {
        let request =
            [field(1, b"nri.pkg.api.v1alpha1.Plugin"), field(2, method.as_bytes()), field(3, message)];
        ttrpc(1, 1, &request.concat())
    };
    let entry = |number: u8, key: &str, value: &str| {
        field(number, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat())
    };
    let pod = [
        field(1, b"s1"),
        field(2, b"web"),
        field(3, b"u1"),
        field(4, b"shop"),
        entry(5, "app", "web"),
        entry(6, "k8s.v1.cni.cncf.io/networks", "blue"),
    ]
    .concat();
    let configure = [field(2, b"containerd"), field(3, b"v2.0.0"), vec![5 << 3, 0x90, 0x4e]].concat();
    let synchronize = [field(1, &pod), vec![3 << 3, 1]].concat();
    let change = [vec![1 << 3, 1], field(2, &pod)].concat();
    let session = [
        ttrpc(2, 2, &[]),
        call("Configure", &configure),
        call("Synchronize", &synchronize),
        call("Synchronize", &field(1, &pod)),
        call("RunPodSandbox", &field(1, &pod)),
        call("Other", b"x"),
        call("RemovePodSandbox", &field(1, &pod)),
    ];
    let rejected = [vec![1 << 3, 3], field(2, b"no such plugin")].concat();
    vec![
        ("nri", "session", session.concat()),
        ("nri", "state-change", call("StateChange", &change)),
        ("nri", "rejected", ttrpc(2, 2, &field(1, &rejected))),
    ]
}

fn link(index: i32, name: &str, kind: &str, fill: impl FnOnce(&mut Message)) -> Vec<u8> {
    let mut message = Message::new(RTM_NEWLINK, 0, "seed");
    message.header(&LinkHeader { index, flags: 1, ..Default::default() }).put_str(IFLA_IFNAME, name);
    message.put_u32(IFLA_MTU, 1500).put_u32(IFLA_MASTER, 2).put_u32(IFLA_LINK, 2);
    message.put_bytes(IFLA_ADDRESS, &[2, 0, 0, 0, 0, 1]).put_u32(IFLA_GROUP, 7);
    message.nest(IFLA_PROP_LIST, |names| {
        names.put_str(IFLA_ALT_IFNAME, "knit-0123456789.nic.1500.020000000001.1000.0.1.eth9");
    });
    message.nest(IFLA_LINKINFO, |info| {
        info.put_str(IFLA_INFO_KIND, kind);
        info.nest(IFLA_INFO_DATA, fill);
        info.put_str(IFLA_INFO_SLAVE_KIND, "bridge");
    });
    message.as_bytes().to_vec()
}

fn netlink() -> Vec<Seed> {
    let address = |text: &str| text.parse::<std::net::IpAddr>().unwrap();
    let numbers = |data: &mut Message| {
        for kind in 1..24 {
            data.put_u32(kind, 1);
        }
    };
    let kinds = [
        "bridge", "veth", "vlan", "vxlan", "macvlan", "ipvlan", "bond", "geneve", "gre", "ipip", "tun", "vrf",
    ];
    let links = (2..).zip(kinds).map(|(index, kind)| link(index, &format!("l{index}"), kind, numbers));
    let bytes = |data: &mut Message| {
        for kind in 1..24 {
            data.put_u8(kind, 1);
        }
    };
    let small = (2..).zip(kinds).map(|(index, kind)| link(index, &format!("s{index}"), kind, bytes));

    let mut addresses = Message::new(RTM_NEWADDR, 0, "seed");
    addresses.header(&AddressHeader { family: AF_INET, prefix_length: 24, index: 2, ..Default::default() });
    addresses.put_address(IFA_LOCAL, address("10.0.0.1")).put_address(IFA_BROADCAST, address("10.0.0.255"));
    addresses.put_u32(IFA_FLAGS, 0x280).put_u8(IFA_PROTO, 76);
    let mut route = Message::new(RTM_NEWROUTE, 0, "seed");
    route.header(&RouteHeader {
        family: AF_INET,
        destination_length: 16,
        table: 254,
        kind: 1,
        ..Default::default()
    });
    route.put_address(RTA_DST, address("10.1.0.0")).put_address(RTA_GATEWAY, address("10.0.0.9"));
    route.put_u32(RTA_OIF, 2).put_u32(RTA_PRIORITY, 100);
    route.nest(RTA_METRICS, |metrics| {
        metrics.put_u32(RTAX_MTU, 1400);
    });
    let mut several = Message::new(RTM_NEWROUTE, 0, "seed");
    several.header(&RouteHeader { family: AF_INET6, table: 100, kind: 1, ..Default::default() });
    several.put_bytes(RTA_MULTIPATH, &[8, 0, 0, 1, 2, 0, 0, 0, 8, 0, 4, 0, 3, 0, 0, 0]);
    let mut rule = Message::new(RTM_NEWRULE, 0, "seed");
    rule.header(&RuleHeader { family: AF_INET, source_length: 32, action: 1, ..Default::default() });
    rule.put_u8(FRA_PROTOCOL, 76).put_address(FRA_SRC, address("10.0.0.1")).put_u32(FRA_TABLE, 1000);
    rule.put_u32(FRA_PRIORITY, 50).put_u32(FRA_FWMARK, 4).put_u32(FRA_FWMASK, 4).put_str(FRA_IIFNAME, "l2");
    let mut neighbour = Message::new(RTM_NEWNEIGH, 0, "seed");
    neighbour.header(&NeighbourHeader {
        family: AF_INET,
        index: 2,
        state: NUD_PERMANENT,
        ..Default::default()
    });
    neighbour.put_address(NDA_DST, address("10.0.0.7")).put_bytes(NDA_LLADDR, &[2, 0, 0, 0, 0, 7]);
    let parts = [&addresses, &route, &several, &rule, &neighbour].map(|message| message.as_bytes());
    let bridge = link(2, "l2", "bridge", numbers);
    let whole = [&bridge[..]].into_iter().chain(parts).collect::<Vec<_>>().concat();

    let mut rejection = Message::new(NLMSG_ERROR, NLM_F_CAPPED | NLM_F_ACK_TLVS, "seed");
    rejection.header(&GenericHeader { command: 0xef, version: 0xff, reserved: 0xffff });
    rejection.put_bytes(0, &[0; 12]).put_str(NLMSGERR_ATTR_MSG, "no such link");

    // linux/wireguard.h: WGDEVICE_A_*, WGPEER_A_*, WGALLOWEDIP_A_*.
    let mut device = Message::new(30, 0, "seed");
    device.header(&GenericHeader { command: 0, version: 1, reserved: 0 });
    device.put_bytes(3, &[7; 32]).put_bytes(4, &[9; 32]).put_u16(6, 51820).put_u32(7, 1);
    device.nest(8, |peers| {
        peers.nest(0, |peer| {
            peer.put_bytes(1, &[5; 32]).put_bytes(2, &[6; 32]).put_u16(5, 25);
            peer.put_bytes(4, &[2, 0, 0xca, 0x6c, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
            peer.nest(9, |ranges| {
                ranges.nest(0, |range| {
                    range.put_u16(1, 2).put_address(2, address("10.2.0.0")).put_u8(3, 16);
                });
            });
        });
    });
    vec![
        ("netlink", "links", links.collect::<Vec<_>>().concat()),
        ("netlink", "links-with-bytes", small.collect::<Vec<_>>().concat()),
        ("netlink", "scope", whole),
        ("netlink", "rejection", rejection.as_bytes().to_vec()),
        ("netlink", "wireguard", device.as_bytes().to_vec()),
    ]
}

fn nftables() -> Vec<Seed> {
    let mut index = PolicyIndex::default();
    let id = PolicyId::namespaced("shop", "web");
    let spec = json!({
        "podSelector": {}, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": {}}, {"ipBlock": {"cidr": "10.8.0.0/16", "except": ["10.8.1.0/24"]}}],
            "ports": [{"port": 80}, {"protocol": "UDP", "port": 5000, "endPort": 5010}]}],
    });
    index.apply_policy(network_policy::translate(id, &spec).0);
    let key = PodKey { namespace: "shop".to_owned(), name: "web".to_owned() };
    let addresses = vec!["10.0.0.2".parse().unwrap()];
    index.set_pods([(key, PolicyPod { uid: "u1".to_owned(), addresses, ..PolicyPod::default() })]);
    let compiled = index.compile([LocalPod { namespace: "shop", name: "web", uid: "u1" }]);
    let mut table = FilterTable::default();
    dispatch(&mut table, &compiled.tables);
    let key = TableKey { family: TableFamily::Inet, name: TABLE.into() };
    let mut filter = Filter { tables: [(key, table)].into(), ..Filter::default() };
    filter.elements.extend(compiled.elements.into_iter().chain(index.peer_elements()));
    let host = ScopeState { filter, ..ScopeState::default() };
    let state = NetState { scopes: [(Scope::Host, host)].into() };
    let plan = diff(&Desired { state, ..Desired::default() }, &NetState::default());
    let steps: Vec<FilterStep> = plan
        .steps
        .into_iter()
        .filter_map(|planned| match planned.step {
            Step::Filter(step) => Some(step),
            _ => None,
        })
        .collect();
    vec![("nftables", "policies", decode::packet_filter_messages(&steps))]
}

/// The journal and the recording of a node with these objects.
fn written_by_the_engine() -> Vec<Seed> {
    let mut seeds = Vec::new();
    for (name, file) in
        [("podconfig", "podconfig.yaml"), ("routes", "podroute.yaml"), ("wireguard", "wireguard.yaml")]
    {
        let text = fs::read_to_string(places::workspace().join("examples/standalone").join(file)).unwrap();
        let mut node = Node::default();
        for mut object in Object::parse_all(&text).unwrap() {
            object.metadata_mut().namespace = Some(NAMESPACE.to_owned());
            node.apply(&object, Dialect::File);
            node.handle(Event::ObjectDeleted(ObjectKey::of(&object.object_ref())));
        }
        seeds.push(("records", name, node.journal.into_bytes()));
        seeds.push(("recordings", name, node.recording.into_bytes()));
    }
    seeds
}
