//! What every kind that makes an interface has: addresses, the common fields of a link, routes and rules.

use std::collections::BTreeMap;

use knit_model::intent::{InterfaceIntent, Limits, NameRule, Selector};
use knit_model::link::{Attrs, Kind, Veth};
use knit_model::{IfName, Problems};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fields::{
    AddressText, AliasText, CidrList, HardwareAddr, InterfaceName, IpText, LinkGroup, Mtu, NamePrefix,
    ObjectName, QueueLength, Rule, rule_list,
};
use crate::routing::{PodRule, RouteEntry};

/// Fields of an interface in the pod, whatever its kind. All of them change on the living interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InterfaceFields {
    /// The address range of the network, such as `192.168.100.0/24`, or several separated by commas, such as
    /// `192.168.100.0/24,fd00:100::/64`. Each pod gets one free address of each. Default: no address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cidr: Option<CidrList>,
    /// A VirtualNetwork of the same namespace whose subnets are meant, in place of `cidr`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<ObjectName>,
    /// Addresses by value with their prefix length, beside those of `cidr`. Every pod that matches gets the same ones,
    /// so they make sense with one pod.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 16, "x-kubernetes-list-type" = "set"))]
    pub addresses: Vec<AddressText>,
    /// The largest packet, in bytes, 68 to 65535. Default: the network's, or what the kernel gives to the kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<Mtu>,
    /// The hardware address, such as `02:00:00:00:00:01`. Default: a stable one for each pod. Every pod that matches
    /// gets the same one, so it makes sense with one pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hardware_addr: Option<HardwareAddr>,
    /// How many packets may wait. Default: the kernel's (usually 1000).
    #[serde(rename = "txQLen", skip_serializing_if = "Option::is_none")]
    pub tx_q_len: Option<QueueLength>,
    /// A text for people, at most 255 bytes, as `ip link show` prints it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alias: Option<AliasText>,
    /// The link group. Default: 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<LinkGroup>,
    /// Whether it takes packets that are for others. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promisc: Option<bool>,
    /// Whether it takes all multicast packets. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all_multicast: Option<bool>,
    /// Whether it does multicast at all. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multicast: Option<bool>,
    /// Whether it answers and asks by ARP. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arp: Option<bool>,
    /// A VRF of the pod, by the name of the interface (or prefix) of a Vrf: this interface is a port of it, and its
    /// routes are in the VRF's table. A port that changes its VRF loses its connections, the interface stays.
    /// Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vrf: Option<InterfaceName>,
    /// Routers of default routes through this interface, at most one of each family. Default: no default route, so
    /// that the pod's first interface keeps it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = 2,
        "x-kubernetes-list-type" = "set",
        "x-kubernetes-validations" = rule_list(&crate::rules::GATEWAYS),
    ))]
    pub gateways: Vec<IpText>,
    /// Routes in the pod.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 64, "x-kubernetes-list-type" = "atomic"))]
    pub routes: Vec<RouteEntry>,
    /// Policy rules in the pod.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 32, "x-kubernetes-list-type" = "atomic"))]
    pub rules: Vec<PodRule>,
    /// Whether it answers ARP for addresses that are reached through other interfaces. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_arp: Option<bool>,
    /// Whether it answers neighbour discovery (IPv6) for addresses that are reached elsewhere. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_ndp: Option<bool>,
    /// Sysctls of the interface by family and name, such as `ipv4/rp_filter: "2"`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "sysctl_schema")]
    pub sysctls: BTreeMap<String, String>,
}

impl InterfaceFields {
    /// The fields as the model has them; what only the kind knows is left empty.
    pub(crate) fn read(&self, path: &str, problems: &mut Problems) -> InterfaceIntent {
        let at = |field: &str| format!("{path}.{field}");
        if self.cidr.is_some() && self.network.is_some() {
            problems.invalid(at("network"), "`network` stands in place of `cidr`: state one of them");
        }
        let mut sysctls = read_sysctls(&self.sysctls, &at("sysctls"), problems);
        for (stated, field, name) in
            [(self.proxy_arp, "proxyArp", "ipv4/proxy_arp"), (self.proxy_ndp, "proxyNdp", "ipv6/proxy_ndp")]
        {
            let Some(stated) = stated else { continue };
            if sysctls.insert(name.to_owned(), u8::from(stated).to_string()).is_some() {
                problems
                    .invalid(at(field), format!("the same is said in sysctls as {name}: state one of them"));
            }
        }
        InterfaceIntent {
            pods: Selector::default(),
            name: NameRule::Prefix(String::new()),
            kind: Kind::Veth(Veth::default()),
            attrs: self.attrs(path, problems),
            parent: None,
            master: None,
            port: None,
            vrf: self.vrf.as_ref().and_then(|vrf| vrf.read(at("vrf"), problems)).map(String::from),
            remote_pod: None,
            ranges: self.cidr.as_ref().map(|cidr| cidr.read(at("cidr"), problems)).unwrap_or_default(),
            network: self.network.as_ref().and_then(|network| network.read(at("network"), problems)),
            fixed: each(&self.addresses, &at("addresses"), |address, at| address.read(at, problems)),
            routes: each(&self.routes, &at("routes"), |route, at| route.read(at, problems)),
            rules: each(&self.rules, &at("rules"), |rule, at| rule.read(at, problems)),
            gateways: self.gateways(&at("gateways"), problems),
            sysctls,
            limits: Limits::default(),
            defined: None,
        }
    }

    fn attrs(&self, path: &str, problems: &mut Problems) -> Attrs {
        let at = |field: &str| format!("{path}.{field}");
        let attrs = Attrs {
            mtu: self.mtu.as_ref().and_then(|mtu| mtu.read(at("mtu"), problems)),
            mac: self.hardware_addr.as_ref().and_then(|mac| mac.read(at("hardwareAddr"), problems)),
            txqueuelen: self.tx_q_len.as_ref().and_then(|length| length.read(at("txQLen"), problems)),
            alias: self.alias.as_ref().map(|alias| alias.0.clone()),
            group: self.group.as_ref().and_then(|group| group.read(at("group"), problems)),
            up: None,
            promisc: self.promisc,
            allmulticast: self.all_multicast,
            multicast: self.multicast,
            arp: self.arp,
            master: None,
            vlans: None,
            hairpin: None,
            limit: None,
        };
        attrs.check(path, problems);
        attrs
    }

    fn gateways(&self, field: &str, problems: &mut Problems) -> Vec<std::net::IpAddr> {
        let gateways = each(&self.gateways, field, |gateway, at| gateway.read(at, problems));
        for ipv4 in [true, false] {
            if gateways.iter().filter(|gateway| gateway.is_ipv4() == ipv4).count() > 1 {
                let family = if ipv4 { "IPv4" } else { "IPv6" };
                problems.invalid(
                    field,
                    format!("more than one {family} router: use `routes` with metrics or next hops"),
                );
            }
        }
        gateways
    }
}

/// Reads every entry of a list, with the entry's path.
pub(crate) fn each<T, U>(list: &[T], field: &str, mut read: impl FnMut(&T, &str) -> Option<U>) -> Vec<U> {
    list.iter().enumerate().filter_map(|(index, entry)| read(entry, &format!("{field}[{index}]"))).collect()
}

/// The name of an interface whose kind has one object of its own: exactly one of the two fields says it.
pub(crate) fn read_name(
    exact: Option<&InterfaceName>,
    prefix: Option<&NamePrefix>,
    problems: &mut Problems,
) -> Option<(NameRule, String)> {
    const EXACT: &str = "spec.interfaceName";
    const PREFIX: &str = "spec.namePrefix";
    match (exact, prefix) {
        (Some(name), None) => {
            let name = name.read(EXACT, problems)?;
            reserved(&name, EXACT, problems);
            Some((NameRule::Exact(name), EXACT.to_owned()))
        }
        (None, Some(prefix)) => {
            prefix.read(PREFIX, problems).map(|text| (NameRule::Prefix(text), PREFIX.to_owned()))
        }
        _ => {
            problems.invalid("spec", ONE_NAME);
            None
        }
    }
}

/// The sentence of the first of [`RULES`].
const ONE_NAME: &str = "state exactly one of `interfaceName` and `namePrefix`";

/// The API server's rules for a kind that makes one interface.
const RULES: [Rule<'_>; 3] = [
    ("has(self.interfaceName) != has(self.namePrefix)", ONE_NAME),
    (
        "!has(self.interfaceName) || !(self.interfaceName in ['eth0', 'lo'])",
        "`lo` is the pod's loopback and `eth0` its first interface, which a PrimaryNetwork changes: take another name",
    ),
    ("!has(self.cidr) || !has(self.network)", "`network` stands in place of `cidr`: state one of them"),
];

/// The same with more, as the schema has them.
pub(crate) fn rules_with(more: &[Rule<'_>]) -> serde_json::Value {
    rule_list(&[&RULES[..], more].concat())
}

fn reserved(name: &IfName, field: &str, problems: &mut Problems) {
    match name.as_str() {
        "lo" => problems.invalid(field, "`lo` is the pod's loopback"),
        "eth0" => {
            problems.invalid(field, "`eth0` is the pod's first interface: a PrimaryNetwork changes it");
        }
        _ => {}
    }
}

/// Sysctls by family and name.
pub(crate) fn read_sysctls(
    sysctls: &BTreeMap<String, String>,
    field: &str,
    problems: &mut Problems,
) -> BTreeMap<String, String> {
    for (name, value) in sysctls {
        let word = |word: &str| {
            !word.is_empty()
                && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        };
        let known = name
            .split_once('/')
            .is_some_and(|(family, name)| matches!(family, "ipv4" | "ipv6" | "mpls") && word(name));
        if !known {
            problems.invalid(
                format!("{field}[{}]", name.escape_debug()),
                "a sysctl of an interface is named by family and name, such as `ipv4/rp_filter` or `ipv6/accept_ra`",
            );
        }
        if value.is_empty() || value.len() > 64 || value.contains(char::is_control) {
            problems.invalid(
                format!("{field}[{}]", name.escape_debug()),
                "a value is one line of 1 to 64 characters",
            );
        }
    }
    sysctls.clone()
}

/// The schema of sysctls: names are checked where they can be, so that a typing mistake is seen at once.
pub(crate) fn sysctl_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "maxProperties": 32,
        "additionalProperties": { "type": "string", "maxLength": 64 },
        "x-kubernetes-validations": rule_list(&[(
            "self.all(name, name.matches('^(ipv4|ipv6|mpls)/[a-z0-9_]+$'))",
            "a sysctl of an interface is named by family and name, such as `ipv4/rp_filter` or `ipv6/accept_ra`",
        )]),
    })
}
