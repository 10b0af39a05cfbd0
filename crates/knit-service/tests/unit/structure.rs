//! The structure of the tables.

use std::collections::BTreeSet;

use knit_model::filter::{ChainType, FilterTable};
use knit_service::{dispatch, is_service_name};

use crate::support::*;

#[test]
fn rules_do_not_grow_with_services_or_pods() {
    let tables = |count: u8| {
        let mut index = index(external("web"), vec![endpoint("10.75.0.1", "a")]);
        for number in 1..=count {
            let name = format!("other{number}");
            let pod = format!("10.75.0.{number}");
            index.apply_slice(slice(&name, &name, vec![endpoint(&pod, "a")]));
            index.apply_service(service(&name, &[&format!("10.96.1.{number}")]));
        }
        let mut table = FilterTable::default();
        dispatch(&mut table, &index.chains());
        table
    };
    assert_eq!(tables(1), tables(100));
}

#[test]
fn all_names_are_recognised() {
    let mut service = external("web");
    service.affinity = Some(60);
    let index = index(service, vec![endpoint("10.75.0.1", "a")]);
    let mut table = FilterTable::default();
    dispatch(&mut table, &index.chains());
    assert!(table.chains.keys().chain(table.sets.keys()).all(|name| is_service_name(name)));
    assert!(!is_service_name("policy"));
}

#[test]
fn rules_come_before_those_of_kube_proxy_and_masquerading_before_that_of_pods() {
    let mut table = FilterTable::default();
    dispatch(&mut table, &BTreeSet::new());
    let priorities = |chain_type: ChainType| -> BTreeSet<i32> {
        let bases = table.chains.values().filter_map(|chain| chain.base.as_ref());
        bases.filter(|base| base.chain_type == chain_type).map(|base| base.priority).collect()
    };
    assert_eq!(priorities(ChainType::Nat), [-101, 99].into());
    assert_eq!(priorities(ChainType::Filter), [-110, 0].into());
}

#[test]
fn the_rules_of_a_chain_read_like_nft() {
    let mut service = external("web");
    let plain = index(service.clone(), vec![endpoint("10.75.0.1", "a")]);
    service.affinity = Some(60);
    let with_affinity = index(service, vec![endpoint("10.75.0.1", "a")]);
    let rules = |index: &knit_service::ServiceIndex, chain: &str| -> Vec<String> {
        let mut table = FilterTable::default();
        dispatch(&mut table, &index.chains());
        table.chains[chain].rules.iter().map(ToString::to_string).collect()
    };
    let (family, frontend) = ("meta nfproto 2", "ip daddr . meta l4proto . th dport");
    let nat = |number: &str| {
        let zero = "meta priority set meta priority & 0x0";
        format!("{zero} dnat to {frontend} . {number} map @service_backends4")
    };
    let by_number = format!("{family} {}", nat("meta priority"));
    assert_eq!(
        rules(&plain, "service_translate4"),
        [format!("{family} meta priority vmap @service_slots"), by_number.clone()]
    );
    assert_eq!(rules(&plain, "service_choose_1"), ["meta priority set numgen random mod 1 offset 0"]);
    let client = format!("ip saddr . {frontend}");
    let learn = format!("update @service_affinity4 {{ {client} : meta priority }}");
    let slots = format!("meta priority set {frontend} . meta priority map @service_affinity_slots4");
    assert_eq!(
        rules(&with_affinity, "service_translate4")[2..],
        [format!("{family} {slots} jump service_learn4"), by_number]
    );
    assert_eq!(
        rules(&with_affinity, "service_learn4"),
        [format!("{family} meta priority & 0xfc000000 0x50000000 {learn} {}", nat("meta priority"))]
    );
    assert_eq!(
        rules(&with_affinity, "service_recall4"),
        [
            format!("{family} jump service_learn4"),
            format!("{family} delete @service_affinity4 {{ {client} }}"),
        ]
    );
}
