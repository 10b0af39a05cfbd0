//! What leaves the cluster by a gateway, in the table `inet knit`: packets of this node's pods are marked and go to the gateway's
//! node; on that node pods of all nodes get the gateway's address. Sets and maps for pods, never a rule per pod.
//!
//! Packets are marked after Services became pods. Answers are never marked: they go back the way that the question came.
//! Whoever leaves by a gateway leaves by it or not at all, also in the moments when a node is not what it should be yet.

use std::net::IpAddr;

use ipnet::IpNet;
use knit_engine::forward::Leaving;
use knit_kernel::Kernel;
use knit_kernel::nft::{Chain, ChainKind, Contents, Entry, Field, Hook, Ip, Key, Rule, Set, Table};
use knit_model::{IfName, marks};

use super::table::{groups, named, put_inside};

/// After Services became pods, and before a way is chosen.
const AFTER_SERVICES: i32 = -90;
/// After sources became others.
const AFTER_SOURCES: i32 = 110;

/// Adds what is needed to a table. The rules that come back are for what gives packets another source, before all others there.
pub(super) fn add(table: &mut Table, leaving: &Leaving, bridge: Option<&IfName>) -> Vec<Rule> {
    let (mut sources, mut entering, mut leaving_by) = (Vec::new(), Vec::new(), Vec::new());
    for version in Ip::ALL {
        let is_its = |address: &IpAddr| Ip::of(*address) == version;
        let barred: Vec<IpAddr> = leaving.barred.iter().copied().filter(is_its).collect();
        let translated: Vec<(IpAddr, IpAddr)> =
            leaving.translated.iter().map(|(pod, to)| (*pod, *to)).filter(|(pod, _)| is_its(pod)).collect();
        let sent: Vec<_> = leaving.sent.iter().filter(|sent| sent.pods.iter().any(is_its)).collect();
        if barred.is_empty() && translated.is_empty() && sent.is_empty() {
            continue;
        }
        put_inside(table, version, &leaving.inside);
        let inside = named("inside", version);
        // What is said to neighbours on a link, or to groups of them, never leaves by another node.
        let to_outside = |rule: Rule| {
            rule.not_found(&[Field::Destination(version)], &inside)
                .not_within(Field::Destination(version), groups(version))
                .not_within(Field::Destination(version), neighbours(version))
        };
        let of =
            |set: &str| to_outside(Rule::new().of(version).found(&[Field::Source(version)], set).asking());
        if !barred.is_empty() {
            let name = named("barred", version);
            entering.push(of(&name).untranslated().to_others().drop());
            table.sets.push(keys(name, version, barred));
        }
        for one in sent {
            let name = format!("{}_{}", named("sent", version), one.mark >> marks::EGRESS_SHIFT);
            entering.push(of(&name).untranslated().to_others().mark(one.mark, marks::EGRESS_MASK));
            let marked = of(&name).marked(one.mark, marks::EGRESS_MASK);
            sources.push(marked.clone().accept());
            leaving_by.push(marked.is_not(Field::NextHop(version), one.via).drop());
            table.sets.push(keys(name, version, one.pods.clone()));
        }
        if !translated.is_empty() {
            let (to, from) = (named("translated", version), named("leaving", version));
            let back = bridge.map_or_else(Rule::new, |bridge| Rule::new().is_not(Field::OutName, bridge));
            let fields = [Field::Source(version)];
            sources.push(to_outside(back.of(version)).translate(version, &fields, &to));
            // A connection that began before the address was here has no part in it.
            leaving_by.push(of(&from).drop());
            table.sets.push(keys(from, version, translated.iter().map(|(pod, _)| *pod).collect()));
            let elements = translated.into_iter().map(|(pod, to)| (vec![pod.into()], vec![to.into()]));
            let contents = Contents::Map { to: vec![version.kind()], elements: elements.collect() };
            table.sets.push(Set { name: to, key: vec![version.kind()], contents });
        }
    }
    let chain = |name, hook, priority, rules| Chain {
        name,
        entry: Some(Entry { kind: ChainKind::Filter, hook, priority }),
        rules,
    };
    for (name, hook, priority, rules) in [
        ("egress", Hook::Prerouting, AFTER_SERVICES, entering),
        ("astray", Hook::Postrouting, AFTER_SOURCES, leaving_by),
    ] {
        if !rules.is_empty() {
            table.chains.push(chain(name, hook, priority, rules));
        }
    }
    sources
}

/// Has connections of pods that leave otherwise than before go the new way, with their next packet.
pub(super) fn move_connections(kernel: &mut Kernel, leaving: &Leaving) {
    if leaving.moved.is_empty() {
        return;
    }
    let is_inside = |to: IpAddr| leaving.inside.iter().any(|range| range.contains(&to));
    match kernel.forget_connections(&leaving.moved, is_inside) {
        Ok(count) => tracing::debug!(count, "connections leave by another node now"),
        Err(why) => tracing::warn!(%why, "connections that leave by another node now may have to begin anew"),
    }
}

fn keys(name: String, version: Ip, addresses: Vec<IpAddr>) -> Set {
    let keys = addresses.into_iter().map(|address| -> Key { vec![address.into()] });
    Set { name, key: vec![version.kind()], contents: Contents::Keys(keys.collect()) }
}

/// Addresses that mean somebody on the same link.
fn neighbours(version: Ip) -> IpNet {
    match version {
        Ip::V4 => IpNet::new_assert([169, 254, 0, 0].into(), 16),
        Ip::V6 => IpNet::new_assert([0xfe80, 0, 0, 0, 0, 0, 0, 0].into(), 10),
    }
}

#[cfg(test)]
mod tests {
    use knit_engine::forward::{Forwarding, Outside, Sent};

    use super::*;
    use crate::forward::table;

    fn leaving(pods: u8) -> Leaving {
        let address = |begin: &str, number: u8| format!("{begin}{number}").parse().unwrap();
        let sent = |begin: &str, via: &str| Sent {
            mark: 7 << marks::EGRESS_SHIFT,
            via: via.parse().unwrap(),
            pods: (2..2 + pods).map(|number| address(begin, number)).collect(),
        };
        let here = (2..2 + pods).map(|number| (address("10.1.2.", number), "192.0.2.77".parse().unwrap()));
        Leaving {
            inside: vec!["10.0.0.0/8".parse().unwrap()],
            sent: vec![sent("10.1.1.", "192.0.2.2"), sent("fd01::", "fd01:2::1")],
            translated: here.collect(),
            barred: (2..2 + pods).map(|number| address("10.1.3.", number)).collect(),
            moved: Default::default(),
        }
    }

    fn of(pods: u8) -> Table {
        let outside = Outside { pods: vec!["10.1.1.0/24".parse().unwrap()], ..Outside::default() };
        let (outside, egress) = (Some(outside), Some(leaving(pods)));
        let bridge = Some("knit0".parse().unwrap());
        table::of(&Forwarding { bridge, outside, egress, ..Forwarding::default() })
    }

    #[test]
    fn more_pods_are_more_elements_and_no_more_rules() {
        let (few, many) = (of(1), of(9));
        assert_eq!(few.chains, many.chains);
        let names: Vec<&str> = few.chains.iter().map(|chain| chain.name).collect();
        assert_eq!(names, ["egress", "astray", "outside"]);
        let sets: Vec<&str> = few.sets.iter().map(|set| set.name.as_str()).collect();
        let four = ["inside4", "barred4", "sent4_7", "leaving4", "translated4"];
        assert_eq!(sets, [&four[..], &["inside6", "sent6_7", "mine4"]].concat());
    }

    #[test]
    fn who_leaves_by_a_gateway_comes_before_who_has_the_nodes_address() {
        let table = of(1);
        let outside = &table.chains.iter().find(|chain| chain.name == "outside").unwrap().rules;
        let masquerades = Rule::new().masquerade(true);
        let last = format!("{:?}", outside.last().unwrap());
        assert!(last.contains("Masquerade"), "{last} {masquerades:?}");
        assert_eq!(outside.len(), 4, "two that go on, one that is translated, one for all others");
    }

    #[test]
    fn what_is_said_to_neighbours_stays_on_the_node() {
        let range = |version| neighbours(version).to_string();
        assert_eq!((range(Ip::V4), range(Ip::V6)), ("169.254.0.0/16".to_owned(), "fe80::/10".to_owned()));
    }
}
