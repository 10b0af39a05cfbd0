//! The table `inet knit`: maps and sets for each address family, never a rule per pod.

use std::collections::BTreeSet;

use ipnet::IpNet;
use knit_engine::packet_filter::{HostPortMapping, Masquerade, PacketFilter};
use knit_kernel::nft::{
    BaseChain, Chain, ChainType, DataType, Family, Field, Hook, IpFamily, Key, Rule, Set, SetContents, Table,
    Value,
};
use knit_model::IfName;

use super::egress;

/// The desired table.
pub(super) fn build(all: &PacketFilter) -> Table {
    let mut table = Table::empty(Family::Inet, "knit");
    let bridge = all.bridge.as_ref();
    let mut rules = all.egress.as_ref().map_or_else(Vec::new, |one| egress::add(&mut table, one, bridge));
    rules.extend(all.masquerade.iter().flat_map(|settings| masquerade(&mut table, settings, bridge)));
    if !rules.is_empty() {
        table.chains.push(nat("snat", Hook::Postrouting, rules));
    }
    if !all.host_ports.is_empty() {
        map_host_ports(&mut table, &all.host_ports, all.bridge.as_ref());
    }
    table
}

/// Masquerades packets from pods to destinations outside the cluster.
fn masquerade(table: &mut Table, settings: &Masquerade, bridge: Option<&IfName>) -> Vec<Rule> {
    let mut rules = Vec::new();
    for version in IpFamily::ALL {
        let its = |range: &&IpNet| IpFamily::of(range.addr()) == version;
        let pods: Vec<IpNet> = settings.pods.iter().filter(its).copied().collect();
        if pods.is_empty() {
            continue;
        }
        let (pod_ranges, no_masquerade) =
            (set_name("pod_ranges", version), set_name("no_masquerade", version));
        let contents = SetContents::Intervals(pods);
        table.sets.push(Set { name: pod_ranges.clone(), key: vec![version.kind()], contents });
        add_no_masquerade_set(table, version, &settings.no_masquerade_ranges);
        let keep_source: Vec<Key> = settings
            .excluded
            .iter()
            .filter(|address| IpFamily::of(**address) == version)
            .map(|address| vec![(*address).into()])
            .collect();
        let except_kept = |rule: Rule, table: &mut Table| {
            if keep_source.is_empty() {
                return rule;
            }
            let (name, key) = (set_name("keep_source", version), vec![version.kind()]);
            let rule = rule.not_in_set(&[Field::Source(version)], &name);
            table.sets.push(Set { name, key, contents: SetContents::Keys(keep_source) });
            rule
        };
        let not_to_bridge = |bridge| Rule::new().is_not(Field::OifName, bridge);
        let from_pods = bridge
            .map_or_else(Rule::new, not_to_bridge)
            .family(version)
            .in_set(&[Field::Source(version)], &pod_ranges);
        rules.push(
            except_kept(from_pods, table)
                .not_in_set(&[Field::Destination(version)], &no_masquerade)
                // Multicast stays on the link.
                .not_within(Field::Destination(version), multicast(version))
                .masquerade(true),
        );
    }
    rules
}

/// Adds the set of destinations without masquerading, unless it exists.
pub(super) fn add_no_masquerade_set(table: &mut Table, version: IpFamily, ranges: &[IpNet]) {
    let name = set_name("no_masquerade", version);
    if table.sets.iter().all(|set| set.name != name) {
        let its = ranges.iter().filter(|range| IpFamily::of(range.addr()) == version).copied();
        let contents = SetContents::Intervals(its.collect());
        table.sets.push(Set { name, key: vec![version.kind()], contents });
    }
}

/// Maps host ports to pods (DNAT).
fn map_host_ports(table: &mut Table, forwards: &[HostPortMapping], bridge: Option<&IfName>) {
    let (mut ports, mut returns) = (Vec::new(), Vec::new());
    for version in IpFamily::ALL {
        let of_version = forwards.iter().filter(|forward| IpFamily::of(forward.to) == version);
        let (fixed, any): (Vec<&HostPortMapping>, Vec<&HostPortMapping>) =
            of_version.partition(|forward| forward.host_ip.is_some());
        if let Some(bridge) = bridge
            && !(fixed.is_empty() && any.is_empty())
        {
            let name = set_name("host_port_pods", version);
            let pods: BTreeSet<_> = fixed
                .iter()
                .chain(&any)
                .map(|forward| (protocol_number(forward), forward.to, forward.port))
                .collect();
            let pods =
                pods.into_iter().map(|(protocol, to, port)| vec![protocol.into(), to.into(), port.into()]);
            let key = vec![DataType::Protocol, version.kind(), DataType::Port];
            let to_pods = |rule: Rule| {
                let fields = [Field::L4Protocol, Field::Destination(version), Field::DestinationPort];
                rule.with_dnat().is(Field::OifName, bridge).in_set(&fields, &name).masquerade(false)
            };
            if version == IpFamily::V4 {
                returns.push(to_pods(Rule::new().family(version).within(Field::Source(version), loopback())));
            }
            // Hairpin: the pod would reply to its neighbour on the bridge directly, past the node.
            returns.push(to_pods(Rule::new().is(Field::IifName, bridge).family(version)));
            let contents = SetContents::Keys(pods.collect());
            table.sets.push(Set { name: name.clone(), key, contents });
        }
        let parts = [
            ("host_ports_at", fixed, vec![version.kind()], vec![Field::Destination(version)]),
            ("host_ports", any, Vec::new(), Vec::new()),
        ];
        for (name, forwards, mut key, mut fields) in parts {
            if forwards.is_empty() {
                continue;
            }
            let name = set_name(name, version);
            key.extend([DataType::Protocol, DataType::Port]);
            fields.extend([Field::L4Protocol, Field::DestinationPort]);
            ports.push(Rule::new().family(version).dnat(version, &fields, &name));
            let to = vec![version.kind(), DataType::Port];
            let contents = SetContents::Map { data: to, elements: dnat_elements(&forwards) };
            table.sets.push(Set { name, key, contents });
        }
    }
    table.chains.push(Chain { name: "host_ports", base: None, rules: ports });
    for (name, hook) in [("prerouting_dnat", Hook::Prerouting), ("output_dnat", Hook::Output)] {
        table.chains.push(nat(name, hook, vec![Rule::new().to_local().jump("host_ports")]));
    }
    let Some(bridge) = bridge else { return };
    let from_bridge = Rule::new().is(Field::IifName, bridge).family(IpFamily::V4);
    table.chains.push(Chain {
        name: "loopback_guard",
        base: Some(BaseChain { chain_type: ChainType::Filter, hook: Hook::Prerouting, priority: -300 }),
        rules: vec![from_bridge.within(Field::Destination(IpFamily::V4), loopback()).drop()],
    });
    table.chains.push(nat("hairpin_snat", Hook::Postrouting, returns));
}

/// The targets of host ports. Of several addresses of a pod the first counts.
fn dnat_elements(forwards: &[&HostPortMapping]) -> Vec<(Key, Key)> {
    let mut taken = BTreeSet::new();
    let first = forwards
        .iter()
        .filter(|forward| taken.insert((forward.host_ip, protocol_number(forward), forward.host_port)));
    first
        .map(|forward| {
            let at = forward.host_ip.map(Value::from).into_iter();
            let key = at.chain([protocol_number(forward).into(), forward.host_port.into()]);
            (key.collect(), vec![forward.to.into(), forward.port.into()])
        })
        .collect()
}

fn nat(name: &'static str, hook: Hook, rules: Vec<Rule>) -> Chain {
    let priority = if hook == Hook::Postrouting { 100 } else { -100 };
    Chain { name, base: Some(BaseChain { chain_type: ChainType::Nat, hook, priority }), rules }
}

pub(super) fn set_name(name: &str, version: IpFamily) -> String {
    format!("{name}{}", if version == IpFamily::V4 { 4 } else { 6 })
}

/// The IP protocol number. The engine accepts only these three protocols.
fn protocol_number(forward: &HostPortMapping) -> u8 {
    match forward.protocol.as_str() {
        "udp" => 17,
        "sctp" => 132,
        _ => 6,
    }
}

fn loopback() -> IpNet {
    IpNet::new_assert([127, 0, 0, 0].into(), 8)
}

pub(super) fn multicast(version: IpFamily) -> IpNet {
    match version {
        IpFamily::V4 => IpNet::new_assert([224, 0, 0, 0].into(), 4),
        IpFamily::V6 => IpNet::new_assert([0xff00, 0, 0, 0, 0, 0, 0, 0].into(), 8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forward(host_ip: Option<&str>, host_port: u16, to: &str) -> HostPortMapping {
        HostPortMapping {
            protocol: "tcp".to_owned(),
            host_ip: host_ip.map(|text| text.parse().unwrap()),
            host_port,
            to: to.parse().unwrap(),
            port: 80,
        }
    }

    fn bridge() -> Option<IfName> {
        Some("knit0".parse().unwrap())
    }

    fn names(table: &Table) -> (Vec<&str>, Vec<&str>) {
        let sets = table.sets.iter().map(|set| set.name.as_str());
        (sets.collect(), table.chains.iter().map(|chain| chain.name).collect())
    }

    fn rules<'a>(table: &'a Table, name: &str) -> &'a [Rule] {
        &table.chains.iter().find(|chain| chain.name == name).unwrap().rules
    }

    #[test]
    fn the_table_has_a_map_for_each_family_and_no_rule_per_pod() {
        let forwards = vec![
            forward(None, 8080, "10.75.0.2"),
            forward(None, 8080, "fd75::2"),
            forward(None, 8082, "10.75.0.4"),
            forward(Some("192.0.2.1"), 8081, "10.75.0.3"),
        ];
        let table =
            build(&PacketFilter { host_ports: forwards, bridge: bridge(), ..PacketFilter::default() });
        let (sets, chains) = names(&table);
        assert_eq!(
            sets,
            ["host_port_pods4", "host_ports_at4", "host_ports4", "host_port_pods6", "host_ports6"]
        );
        assert_eq!(
            chains,
            ["host_ports", "prerouting_dnat", "output_dnat", "loopback_guard", "hairpin_snat"]
        );
        assert_eq!((rules(&table, "host_ports").len(), rules(&table, "hairpin_snat").len()), (3, 3));
        let SetContents::Map { elements, .. } = &table.sets[1].contents else {
            panic!("{:?}", table.sets[1])
        };
        let address = |text: &str| Value::Address(text.parse().unwrap());
        let at = (
            vec![address("192.0.2.1"), Value::Byte(6), Value::Port(8081)],
            vec![address("10.75.0.3"), Value::Port(80)],
        );
        assert_eq!(*elements, [at]);
        assert!(build(&PacketFilter::default()).is_empty());
    }

    #[test]
    fn a_host_port_maps_to_one_address_per_family() {
        let forwards = vec![forward(None, 8080, "10.75.0.2"), forward(None, 8080, "10.75.0.9")];
        let table =
            build(&PacketFilter { host_ports: forwards, bridge: bridge(), ..PacketFilter::default() });
        let SetContents::Map { elements, .. } = &table.sets[1].contents else {
            panic!("{:?}", table.sets[1])
        };
        assert_eq!(elements.len(), 1);
        assert_eq!(elements[0].1[0], Value::Address("10.75.0.2".parse().unwrap()));
    }

    #[test]
    fn only_traffic_to_outside_the_cluster_is_masqueraded() {
        let ranges =
            |texts: &[&str]| -> Vec<IpNet> { texts.iter().map(|text| text.parse().unwrap()).collect() };
        let mut settings = Masquerade {
            pods: ranges(&["10.1.0.0/24"]),
            excluded: vec![],
            no_masquerade_ranges: ranges(&["10.1.0.0/16", "192.0.2.7/32", "fd00::/8"]),
        };
        let build = |settings: &Masquerade| {
            super::build(&PacketFilter {
                bridge: bridge(),
                masquerade: Some(settings.clone()),
                ..PacketFilter::default()
            })
        };
        let table = build(&settings);
        assert_eq!(names(&table), (vec!["pod_ranges4", "no_masquerade4"], vec!["snat"]));
        assert_eq!(table.sets[1].contents, SetContents::Intervals(ranges(&["10.1.0.0/16", "192.0.2.7/32"])));
        let expected = Rule::new()
            .is_not(Field::OifName, &bridge().unwrap())
            .family(IpFamily::V4)
            .in_set(&[Field::Source(IpFamily::V4)], "pod_ranges4")
            .not_in_set(&[Field::Destination(IpFamily::V4)], "no_masquerade4")
            .not_within(Field::Destination(IpFamily::V4), "224.0.0.0/4".parse().unwrap())
            .masquerade(true);
        assert_eq!(*rules(&table, "snat"), [expected]);
        // Pods that keep their source address are set elements, not rules.
        settings.excluded = vec!["10.1.0.7".parse().unwrap(), "10.1.0.8".parse().unwrap()];
        let table = build(&settings);
        assert_eq!(names(&table), (vec!["pod_ranges4", "no_masquerade4", "keep_source4"], vec!["snat"]));
        assert_eq!(rules(&table, "snat").len(), 1);
        let keys =
            vec![vec![Value::Address(settings.excluded[0])], vec![Value::Address(settings.excluded[1])]];
        assert_eq!(table.sets[2].contents, SetContents::Keys(keys));
    }
}
