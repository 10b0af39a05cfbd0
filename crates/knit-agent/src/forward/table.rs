//! The table `inet knit`: maps and sets for each version of the internet protocol, never a rule per pod.

use std::collections::BTreeSet;

use ipnet::IpNet;
use knit_engine::forward::{Forward, Forwarding, Outside};
use knit_kernel::nft::{
    Chain, ChainKind, Contents, Entry, Family, Field, Hook, Ip, Key, Kind, Rule, Set, Table, Value,
};
use knit_model::IfName;

use super::egress;

/// The table as it should be.
pub(super) fn of(all: &Forwarding) -> Table {
    let mut table = Table::none(Family::Inet, "knit");
    let bridge = all.bridge.as_ref();
    let mut rules = all.egress.as_ref().map_or_else(Vec::new, |one| egress::add(&mut table, one, bridge));
    rules.extend(all.outside.iter().flat_map(|outside| leave(&mut table, outside, bridge)));
    if !rules.is_empty() {
        table.chains.push(nat("outside", Hook::Postrouting, rules));
    }
    if !all.forwards.is_empty() {
        arrive(&mut table, &all.forwards, all.bridge.as_ref());
    }
    table
}

/// What pods say to the outside has the node's address; the rest keeps theirs.
fn leave(table: &mut Table, outside: &Outside, bridge: Option<&IfName>) -> Vec<Rule> {
    let mut rules = Vec::new();
    for version in Ip::ALL {
        let its = |range: &&IpNet| Ip::of(range.addr()) == version;
        let pods: Vec<IpNet> = outside.pods.iter().filter(its).copied().collect();
        if pods.is_empty() {
            continue;
        }
        let (mine, inside) = (named("mine", version), named("inside", version));
        let contents = Contents::Ranges(pods);
        table.sets.push(Set { name: mine.clone(), key: vec![version.kind()], contents });
        put_inside(table, version, &outside.inside);
        let kept: Vec<Key> = outside
            .kept
            .iter()
            .filter(|address| Ip::of(**address) == version)
            .map(|address| vec![(*address).into()])
            .collect();
        let not_kept = |rule: Rule, table: &mut Table| {
            if kept.is_empty() {
                return rule;
            }
            let (name, key) = (named("kept", version), vec![version.kind()]);
            let rule = rule.not_found(&[Field::Source(version)], &name);
            table.sets.push(Set { name, key, contents: Contents::Keys(kept) });
            rule
        };
        let not_back = |bridge| Rule::new().is_not(Field::OutName, bridge);
        let of_mine =
            bridge.map_or_else(Rule::new, not_back).of(version).found(&[Field::Source(version)], &mine);
        rules.push(
            not_kept(of_mine, table)
                .not_found(&[Field::Destination(version)], &inside)
                // Groups that were joined are neighbours'.
                .not_within(Field::Destination(version), groups(version))
                .masquerade(true),
        );
    }
    rules
}

/// Has the set of what is inside, unless it is there.
pub(super) fn put_inside(table: &mut Table, version: Ip, inside: &[IpNet]) {
    let name = named("inside", version);
    if table.sets.iter().all(|set| set.name != name) {
        let its = inside.iter().filter(|range| Ip::of(range.addr()) == version).copied();
        let contents = Contents::Ranges(its.collect());
        table.sets.push(Set { name, key: vec![version.kind()], contents });
    }
}

/// Ports of the node lead to pods.
fn arrive(table: &mut Table, forwards: &[Forward], bridge: Option<&IfName>) {
    let (mut ports, mut returns) = (Vec::new(), Vec::new());
    for version in Ip::ALL {
        let of_version = forwards.iter().filter(|forward| Ip::of(forward.to) == version);
        let (fixed, any): (Vec<&Forward>, Vec<&Forward>) =
            of_version.partition(|forward| forward.host_ip.is_some());
        if let Some(bridge) = bridge
            && !(fixed.is_empty() && any.is_empty())
        {
            let name = named("pods", version);
            let pods: BTreeSet<_> =
                fixed.iter().chain(&any).map(|forward| (number(forward), forward.to, forward.port)).collect();
            let pods =
                pods.into_iter().map(|(protocol, to, port)| vec![protocol.into(), to.into(), port.into()]);
            let key = vec![Kind::Protocol, version.kind(), Kind::Port];
            let to_pods = |rule: Rule| {
                let fields = [Field::Protocol, Field::Destination(version), Field::DestinationPort];
                rule.redirected().is(Field::OutName, bridge).found(&fields, &name).masquerade(false)
            };
            if version == Ip::V4 {
                returns.push(to_pods(Rule::new().of(version).within(Field::Source(version), loopback())));
            }
            // The pod would answer its neighbour on the bridge, past the node.
            returns.push(to_pods(Rule::new().is(Field::InName, bridge).of(version)));
            let contents = Contents::Keys(pods.collect());
            table.sets.push(Set { name: name.clone(), key, contents });
        }
        let parts = [
            ("at", fixed, vec![version.kind()], vec![Field::Destination(version)]),
            ("any", any, Vec::new(), Vec::new()),
        ];
        for (name, forwards, mut key, mut fields) in parts {
            if forwards.is_empty() {
                continue;
            }
            let name = named(name, version);
            key.extend([Kind::Protocol, Kind::Port]);
            fields.extend([Field::Protocol, Field::DestinationPort]);
            ports.push(Rule::new().of(version).redirect(version, &fields, &name));
            let to = vec![version.kind(), Kind::Port];
            let contents = Contents::Map { to, elements: elements(&forwards) };
            table.sets.push(Set { name, key, contents });
        }
    }
    table.chains.push(Chain { name: "ports", entry: None, rules: ports });
    for (name, hook) in [("arriving", Hook::Prerouting), ("leaving", Hook::Output)] {
        table.chains.push(nat(name, hook, vec![Rule::new().to_this_node().jump("ports")]));
    }
    let Some(bridge) = bridge else { return };
    let others = Rule::new().is(Field::InName, bridge).of(Ip::V4);
    table.chains.push(Chain {
        name: "guard",
        entry: Some(Entry { kind: ChainKind::Filter, hook: Hook::Prerouting, priority: -300 }),
        rules: vec![others.within(Field::Destination(Ip::V4), loopback()).drop()],
    });
    table.chains.push(nat("returning", Hook::Postrouting, returns));
}

/// Where a port of the node leads. A pod with several addresses is reached by its first.
fn elements(forwards: &[&Forward]) -> Vec<(Key, Key)> {
    let mut taken = BTreeSet::new();
    let first =
        forwards.iter().filter(|forward| taken.insert((forward.host_ip, number(forward), forward.host_port)));
    first
        .map(|forward| {
            let at = forward.host_ip.map(Value::from).into_iter();
            let key = at.chain([number(forward).into(), forward.host_port.into()]);
            (key.collect(), vec![forward.to.into(), forward.port.into()])
        })
        .collect()
}

fn nat(name: &'static str, hook: Hook, rules: Vec<Rule>) -> Chain {
    let priority = if hook == Hook::Postrouting { 100 } else { -100 };
    Chain { name, entry: Some(Entry { kind: ChainKind::Nat, hook, priority }), rules }
}

pub(super) fn named(name: &str, version: Ip) -> String {
    format!("{name}{}", if version == Ip::V4 { 4 } else { 6 })
}

/// The protocol's number. The engine lets only these three through.
fn number(forward: &Forward) -> u8 {
    match forward.protocol.as_str() {
        "udp" => 17,
        "sctp" => 132,
        _ => 6,
    }
}

fn loopback() -> IpNet {
    IpNet::new_assert([127, 0, 0, 0].into(), 8)
}

pub(super) fn groups(version: Ip) -> IpNet {
    match version {
        Ip::V4 => IpNet::new_assert([224, 0, 0, 0].into(), 4),
        Ip::V6 => IpNet::new_assert([0xff00, 0, 0, 0, 0, 0, 0, 0].into(), 8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forward(host_ip: Option<&str>, host_port: u16, to: &str) -> Forward {
        Forward {
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
        let table = of(&Forwarding { forwards, bridge: bridge(), ..Forwarding::default() });
        let (sets, chains) = names(&table);
        assert_eq!(sets, ["pods4", "at4", "any4", "pods6", "any6"]);
        assert_eq!(chains, ["ports", "arriving", "leaving", "guard", "returning"]);
        assert_eq!((rules(&table, "ports").len(), rules(&table, "returning").len()), (3, 3));
        let Contents::Map { elements, .. } = &table.sets[1].contents else { panic!("{:?}", table.sets[1]) };
        let address = |text: &str| Value::Address(text.parse().unwrap());
        let at = (
            vec![address("192.0.2.1"), Value::Byte(6), Value::Port(8081)],
            vec![address("10.75.0.3"), Value::Port(80)],
        );
        assert_eq!(*elements, [at]);
        assert!(of(&Forwarding::default()).is_none());
    }

    #[test]
    fn a_port_leads_to_one_address_of_a_family() {
        let forwards = vec![forward(None, 8080, "10.75.0.2"), forward(None, 8080, "10.75.0.9")];
        let table = of(&Forwarding { forwards, bridge: bridge(), ..Forwarding::default() });
        let Contents::Map { elements, .. } = &table.sets[1].contents else { panic!("{:?}", table.sets[1]) };
        assert_eq!(elements.len(), 1);
        assert_eq!(elements[0].1[0], Value::Address("10.75.0.2".parse().unwrap()));
    }

    #[test]
    fn only_what_leaves_the_cluster_gets_the_nodes_address() {
        let ranges =
            |texts: &[&str]| -> Vec<IpNet> { texts.iter().map(|text| text.parse().unwrap()).collect() };
        let mut outside = Outside {
            pods: ranges(&["10.1.0.0/24"]),
            kept: vec![],
            inside: ranges(&["10.1.0.0/16", "192.0.2.7/32", "fd00::/8"]),
        };
        let of = |outside: &Outside| {
            of(&Forwarding { bridge: bridge(), outside: Some(outside.clone()), ..Forwarding::default() })
        };
        let table = of(&outside);
        assert_eq!(names(&table), (vec!["mine4", "inside4"], vec!["outside"]));
        assert_eq!(table.sets[1].contents, Contents::Ranges(ranges(&["10.1.0.0/16", "192.0.2.7/32"])));
        let expected = Rule::new()
            .is_not(Field::OutName, &bridge().unwrap())
            .of(Ip::V4)
            .found(&[Field::Source(Ip::V4)], "mine4")
            .not_found(&[Field::Destination(Ip::V4)], "inside4")
            .not_within(Field::Destination(Ip::V4), "224.0.0.0/4".parse().unwrap())
            .masquerade(true);
        assert_eq!(*rules(&table, "outside"), [expected]);
        // Pods that keep theirs are elements of a set, and no rules.
        outside.kept = vec!["10.1.0.7".parse().unwrap(), "10.1.0.8".parse().unwrap()];
        let table = of(&outside);
        assert_eq!(names(&table), (vec!["mine4", "inside4", "kept4"], vec!["outside"]));
        assert_eq!(rules(&table, "outside").len(), 1);
        let keys = vec![vec![Value::Address(outside.kept[0])], vec![Value::Address(outside.kept[1])]];
        assert_eq!(table.sets[2].contents, Contents::Keys(keys));
    }
}
