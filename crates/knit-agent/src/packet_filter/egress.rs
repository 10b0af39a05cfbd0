//! Egress gateways in the table `inet knit`: packets of local pods are marked and routed to the gateway's node, which translates them to
//! the gateway's address (SNAT). Pods are elements of sets and maps, never rules.
//!
//! Packets are marked after Service DNAT. Replies are never marked: they return the way that the request came. A pod with a gateway leaves
//! the cluster through it or not at all, also while a node is not configured yet.

use std::net::IpAddr;

use ipnet::IpNet;
use knit_engine::packet_filter::EgressRules;
use knit_kernel::Kernel;
use knit_kernel::nft::{
    BaseChain, Chain, ChainType, Field, Hook, IpFamily, Key, Rule, Set, SetContents, Table,
};
use knit_model::{IfName, kernel_ids};

use super::inet_table::{add_no_masquerade_set, multicast, set_name};

/// After DNAT of Services, before the routing decision.
const AFTER_DNAT: i32 = -90;
/// After SNAT.
const AFTER_SNAT: i32 = 110;

/// Adds the egress sets and chains to a table. Returns the SNAT rules, which have to precede all other SNAT rules.
pub(super) fn add(table: &mut Table, rules: &EgressRules, bridge: Option<&IfName>) -> Vec<Rule> {
    let (mut snat, mut marking, mut enforcing) = (Vec::new(), Vec::new(), Vec::new());
    for version in IpFamily::ALL {
        let is_version = |address: &IpAddr| IpFamily::of(*address) == version;
        let barred: Vec<IpAddr> = rules.blocked.iter().copied().filter(is_version).collect();
        let translated: Vec<(IpAddr, IpAddr)> =
            rules.snat.iter().map(|(pod, to)| (*pod, *to)).filter(|(pod, _)| is_version(pod)).collect();
        let sent: Vec<_> = rules.marks.iter().filter(|sent| sent.pods.iter().any(is_version)).collect();
        if barred.is_empty() && translated.is_empty() && sent.is_empty() {
            continue;
        }
        add_no_masquerade_set(table, version, &rules.no_masquerade_ranges);
        let no_masquerade = set_name("no_masquerade", version);
        // Link-local and multicast destinations never leave through another node.
        let to_external = |rule: Rule| {
            rule.not_in_set(&[Field::Destination(version)], &no_masquerade)
                .not_within(Field::Destination(version), multicast(version))
                .not_within(Field::Destination(version), link_local(version))
        };
        let of = |set: &str| {
            to_external(
                Rule::new().family(version).in_set(&[Field::Source(version)], set).original_direction(),
            )
        };
        if !barred.is_empty() {
            let name = set_name("egress_blocked", version);
            marking.push(of(&name).without_snat().not_to_local().drop());
            table.sets.push(keys(name, version, barred));
        }
        for one in sent {
            let name =
                format!("{}_{}", set_name("egress_pods", version), one.mark >> kernel_ids::EGRESS_MARK_SHIFT);
            marking.push(
                of(&name).without_snat().not_to_local().set_mark(one.mark, kernel_ids::EGRESS_MARK_MASK),
            );
            let marked = of(&name).has_mark(one.mark, kernel_ids::EGRESS_MARK_MASK);
            snat.push(marked.clone().accept());
            enforcing.push(marked.is_not(Field::NextHop(version), one.via).drop());
            table.sets.push(keys(name, version, one.pods.clone()));
        }
        if !translated.is_empty() {
            let (to, from) = (set_name("egress_snat", version), set_name("egress_snat_pods", version));
            let back = bridge.map_or_else(Rule::new, |bridge| Rule::new().is_not(Field::OifName, bridge));
            let fields = [Field::Source(version)];
            snat.push(to_external(back.family(version)).snat(version, &fields, &to));
            // A connection from before the gateway moved here must not leave with another address.
            enforcing.push(of(&from).drop());
            table.sets.push(keys(from, version, translated.iter().map(|(pod, _)| *pod).collect()));
            let elements = translated.into_iter().map(|(pod, to)| (vec![pod.into()], vec![to.into()]));
            let contents = SetContents::Map { data: vec![version.kind()], elements: elements.collect() };
            table.sets.push(Set { name: to, key: vec![version.kind()], contents });
        }
    }
    let chain = |name, hook, priority, rules| Chain {
        name,
        base: Some(BaseChain { chain_type: ChainType::Filter, hook, priority }),
        rules,
    };
    for (name, hook, priority, chain_rules) in [
        ("egress_mark", Hook::Prerouting, AFTER_DNAT, marking),
        ("egress_enforce", Hook::Postrouting, AFTER_SNAT, enforcing),
    ] {
        if !chain_rules.is_empty() {
            table.chains.push(chain(name, hook, priority, chain_rules));
        }
    }
    snat
}

/// Drops conntrack entries of pods whose gateway changed, so that their next packet takes the new path.
pub(super) fn move_connections(kernel: &mut Kernel, rules: &EgressRules) {
    if rules.rerouted.is_empty() {
        return;
    }
    let is_inside = |to: IpAddr| rules.no_masquerade_ranges.iter().any(|range| range.contains(&to));
    match kernel.delete_conntrack_entries(&rules.rerouted, is_inside) {
        Ok(count) => tracing::debug!(count, "moved connections to another egress gateway"),
        Err(why) => {
            tracing::warn!(error = %why, "cannot move connections to another egress gateway; they may break")
        }
    }
}

fn keys(name: String, version: IpFamily, addresses: Vec<IpAddr>) -> Set {
    let keys = addresses.into_iter().map(|address| -> Key { vec![address.into()] });
    Set { name, key: vec![version.kind()], contents: SetContents::Keys(keys.collect()) }
}

/// The link-local range.
fn link_local(version: IpFamily) -> IpNet {
    match version {
        IpFamily::V4 => IpNet::new_assert([169, 254, 0, 0].into(), 16),
        IpFamily::V6 => IpNet::new_assert([0xfe80, 0, 0, 0, 0, 0, 0, 0].into(), 10),
    }
}

#[cfg(test)]
mod tests {
    use knit_engine::packet_filter::{EgressMark, Masquerade, PacketFilter};

    use super::*;
    use crate::packet_filter::inet_table;

    fn egress(pods: u8) -> EgressRules {
        let address = |begin: &str, number: u8| format!("{begin}{number}").parse().unwrap();
        let sent = |begin: &str, via: &str| EgressMark {
            mark: 7 << kernel_ids::EGRESS_MARK_SHIFT,
            via: via.parse().unwrap(),
            pods: (2..2 + pods).map(|number| address(begin, number)).collect(),
        };
        let here = (2..2 + pods).map(|number| (address("10.1.2.", number), "192.0.2.77".parse().unwrap()));
        EgressRules {
            no_masquerade_ranges: vec!["10.0.0.0/8".parse().unwrap()],
            marks: vec![sent("10.1.1.", "192.0.2.2"), sent("fd01::", "fd01:2::1")],
            snat: here.collect(),
            blocked: (2..2 + pods).map(|number| address("10.1.3.", number)).collect(),
            rerouted: Default::default(),
        }
    }

    fn of(pods: u8) -> Table {
        let outside = Masquerade { pods: vec!["10.1.1.0/24".parse().unwrap()], ..Masquerade::default() };
        let (outside, egress) = (Some(outside), Some(egress(pods)));
        let bridge = Some("knit0".parse().unwrap());
        inet_table::build(&PacketFilter { bridge, masquerade: outside, egress, ..PacketFilter::default() })
    }

    #[test]
    fn pods_add_set_elements_but_no_rules() {
        let (few, many) = (of(1), of(9));
        assert_eq!(few.chains, many.chains);
        let names: Vec<&str> = few.chains.iter().map(|chain| chain.name).collect();
        assert_eq!(names, ["egress_mark", "egress_enforce", "snat"]);
        let sets: Vec<&str> = few.sets.iter().map(|set| set.name.as_str()).collect();
        let four =
            ["no_masquerade4", "egress_blocked4", "egress_pods4_7", "egress_snat_pods4", "egress_snat4"];
        assert_eq!(sets, [&four[..], &["no_masquerade6", "egress_pods6_7", "pod_ranges4"]].concat());
    }

    #[test]
    fn egress_snat_precedes_masquerade() {
        let table = of(1);
        let snat = &table.chains.iter().find(|chain| chain.name == "snat").unwrap().rules;
        let masquerades = Rule::new().masquerade(true);
        let last = format!("{:?}", snat.last().unwrap());
        assert!(last.contains("Masquerade"), "{last} {masquerades:?}");
        assert_eq!(snat.len(), 4, "two for marked packets, one for SNAT, one for masquerade");
    }

    #[test]
    fn link_local_destinations_stay_on_the_node() {
        let range = |version| link_local(version).to_string();
        assert_eq!(
            (range(IpFamily::V4), range(IpFamily::V6)),
            ("169.254.0.0/16".to_owned(), "fe80::/10".to_owned())
        );
    }
}
