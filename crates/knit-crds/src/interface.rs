//! Fields that all interfaces have: addresses, link attributes, routes and rules.

use std::collections::BTreeMap;

use knit_model::intent::{BandwidthLimits, InterfaceIntent, NameRule, Selector};
use knit_model::link::{Attrs, Kind, Veth};
use knit_model::{IfName, Problems};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fields::{
    AddressText, AliasText, CidrList, HardwareAddr, InterfaceName, IpText, LinkGroup, Mtu, NamePrefix,
    ObjectName, QueueLength, Rule, rule_list,
};
use crate::routing::{PodRule, RouteEntry};
use crate::sysctls;

/// NameFields are the name of the interface of a kind that describes one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NameFields {
    /// interfaceName is the name of the interface in the pod, 1 to 15 bytes. Exactly one of interfaceName and
    /// namePrefix must be set. Changing it replaces the interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface_name: Option<InterfaceName>,
    /// namePrefix is the prefix of the interface name, 1 to 7 bytes. The pod's sandbox number is appended. Exactly one
    /// of interfaceName and namePrefix must be set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_prefix: Option<NamePrefix>,
}

/// InterfaceFields are the fields of a pod interface of any type. All of them are updated in place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InterfaceFields {
    /// cidr is the subnet of the network, such as `192.168.100.0/24`, or up to 4 subnets separated by commas, such as
    /// `192.168.100.0/24,fd00:100::/64`. Each pod gets a free address of each. Mutually exclusive with network.
    /// Defaults to no address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cidr: Option<CidrList>,
    /// network is the name of a VirtualNetwork in this namespace whose subnets are used. Mutually exclusive with cidr.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<ObjectName>,
    /// addresses lists static addresses with prefix length, in addition to those of cidr. Every selected pod gets the
    /// same addresses, so use it with one pod.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 16, "x-kubernetes-list-type" = "set"))]
    pub addresses: Vec<AddressText>,
    /// mtu is the MTU in bytes, 68 to 65535. Defaults to the MTU of network, or to the kernel's default for the link
    /// type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<Mtu>,
    /// hardwareAddr is the hardware address, such as `02:00:00:00:00:01`. Every selected pod gets the same address, so
    /// use it with one pod. Defaults to a stable address for each pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hardware_addr: Option<HardwareAddr>,
    /// txQLen is the transmit queue length in packets. Defaults to the kernel's (usually 1000).
    #[serde(rename = "txQLen", skip_serializing_if = "Option::is_none")]
    pub tx_q_len: Option<QueueLength>,
    /// alias is the interface alias, at most 255 bytes, as shown by `ip link show`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alias: Option<AliasText>,
    /// group is the link group. Defaults to 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<LinkGroup>,
    /// promisc enables promiscuous mode. Defaults to false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promisc: Option<bool>,
    /// allMulticast receives all multicast packets. Defaults to false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all_multicast: Option<bool>,
    /// multicast enables multicast. Defaults to true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multicast: Option<bool>,
    /// arp enables ARP. Defaults to true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arp: Option<bool>,
    /// vrf is the name or name prefix of a VRF in the pod that the interface is a port of. Its routes are in the table
    /// of the VRF. Changing it keeps the interface but interrupts its connections. Defaults to none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vrf: Option<InterfaceName>,
    /// gateways lists the next hops of default routes through this interface, at most one of each address family.
    /// Defaults to no default route, so that the primary interface of the pod keeps it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = 2,
        "x-kubernetes-list-type" = "set",
        "x-kubernetes-validations" = rule_list(&crate::rules::GATEWAYS),
    ))]
    pub gateways: Vec<IpText>,
    /// routes lists routes in the pod, at most 64.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 64, "x-kubernetes-list-type" = "atomic"))]
    pub routes: Vec<RouteEntry>,
    /// rules lists policy routing rules in the pod, at most 32.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 32, "x-kubernetes-list-type" = "atomic"))]
    pub rules: Vec<PodRule>,
    /// proxyArp answers ARP requests for addresses that are reached through other interfaces. Defaults to false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_arp: Option<bool>,
    /// proxyNdp answers IPv6 neighbour solicitations for proxied addresses. Defaults to false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_ndp: Option<bool>,
    /// sysctls sets sysctls of the interface by family and name, such as `ipv4/rp_filter: "2"`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "sysctl_schema")]
    pub sysctls: BTreeMap<String, String>,
}

impl InterfaceFields {
    /// The fields as an intent; the fields of the link type are left at their defaults.
    pub(crate) fn read(&self, path: &str, problems: &mut Problems) -> InterfaceIntent {
        let at = |field: &str| format!("{path}.{field}");
        if self.cidr.is_some() && self.network.is_some() {
            problems.invalid(at("network"), "cidr and network must not both be set");
        }
        let mut sysctls = read_sysctls(&self.sysctls, &at("sysctls"), problems);
        for (value, field, name) in
            [(self.proxy_arp, "proxyArp", "ipv4/proxy_arp"), (self.proxy_ndp, "proxyNdp", "ipv6/proxy_ndp")]
        {
            let Some(value) = value else { continue };
            if sysctls.insert(name.to_owned(), u8::from(value).to_string()).is_some() {
                problems.invalid(at(field), format!("must be unset if sysctls contains {name}"));
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
            ports: Vec::new(),
            remote_pod: None,
            ranges: self.cidr.as_ref().map(|cidr| cidr.read(at("cidr"), problems)).unwrap_or_default(),
            network: self.network.as_ref().and_then(|network| network.read(at("network"), problems)),
            fixed: each(&self.addresses, &at("addresses"), |address, at| address.read(at, problems)),
            routes: each(&self.routes, &at("routes"), |route, at| route.read(at, problems)),
            rules: each(&self.rules, &at("rules"), |rule, at| rule.read(at, problems)),
            gateways: self.gateways(&at("gateways"), problems),
            sysctls,
            limits: BandwidthLimits::default(),
            definition: None,
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
                    format!("must contain at most one {family} address: use routes with metrics or nextHops"),
                );
            }
        }
        gateways
    }
}

/// Reads every entry of a list with its path.
pub(crate) fn each<T, U>(list: &[T], field: &str, mut read: impl FnMut(&T, &str) -> Option<U>) -> Vec<U> {
    list.iter().enumerate().filter_map(|(index, entry)| read(entry, &format!("{field}[{index}]"))).collect()
}

impl NameFields {
    /// The interface name and its field: exactly one of the two fields must be set.
    pub(crate) fn read(&self, problems: &mut Problems) -> Option<(NameRule, String)> {
        const EXACT: &str = "spec.interfaceName";
        const PREFIX: &str = "spec.namePrefix";
        match (&self.interface_name, &self.name_prefix) {
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
}

const ONE_NAME: &str = "exactly one of interfaceName and namePrefix must be set";

/// CEL rules of the kinds that describe one interface.
const RULES: [Rule<'_>; 3] = [
    ("has(self.interfaceName) != has(self.namePrefix)", ONE_NAME),
    (
        "!has(self.interfaceName) || !(self.interfaceName in ['eth0', 'lo'])",
        "interfaceName must not be `lo` or `eth0`: use a PrimaryNetwork to change the primary interface",
    ),
    ("!has(self.cidr) || !has(self.network)", "cidr and network must not both be set"),
];

/// [`RULES`] and additional ones, as `x-kubernetes-validations`.
pub(crate) fn rules_with(more: &[Rule<'_>]) -> serde_json::Value {
    rule_list(&[&RULES[..], more].concat())
}

fn reserved(name: &IfName, field: &str, problems: &mut Problems) {
    match name.as_str() {
        "lo" => problems.invalid(field, "must not be `lo`, the loopback interface"),
        "eth0" => {
            problems.invalid(
                field,
                "must not be `eth0`, the primary interface: use a PrimaryNetwork to change it",
            );
        }
        _ => {}
    }
}

/// Sysctls by family and name.
pub(crate) fn read_sysctls(
    values: &BTreeMap<String, String>,
    field: &str,
    problems: &mut Problems,
) -> BTreeMap<String, String> {
    for (name, value) in values {
        problems.check(format!("{field}[{}]", name.escape_debug()), sysctls::check_of_interface(name, value));
    }
    values.clone()
}

/// Names are checked in the schema, so that mistakes are rejected by the API server.
pub(crate) fn sysctl_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let allowed: Vec<String> = sysctls::of_interfaces().map(|name| format!("'{name}'")).collect();
    let rule = format!("self.all(name, name in [{}])", allowed.join(", "));
    schemars::json_schema!({
        "type": "object",
        "maxProperties": 32,
        "additionalProperties": { "type": "string", "maxLength": 64 },
        "x-kubernetes-validations": rule_list(&[(
            rule.as_str(),
            "must be allowed sysctls of an interface, such as `ipv4/rp_filter`: see docs/kinds/podroute.md",
        )]),
    })
}
