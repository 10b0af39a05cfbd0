//! Random histories: every address belongs to one Service, stays with it, and is released.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use knit_controller_engine::{CLASS, Effect};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use super::api::{ApiServer, Service, service};

const NAMESPACES: [&str; 2] = ["lab", "shop"];
const SERVICES: [&str; 4] = ["a", "b", "c", "d"];
const POOLS: [&str; 2] = ["one", "two"];
const CIDRS: [&str; 6] = [
    "192.0.2.0/30",
    "192.0.2.0/29",
    "198.51.100.0/31",
    "198.51.100.1/32",
    "2001:db8:1::/126",
    "2001:db8:1::1/128",
];
const REQUESTS: [&str; 5] =
    ["192.0.2.1", "192.0.2.6", "198.51.100.1", "2001:db8:1::1", "198.51.100.1,2001:db8:1::2"];

#[derive(Clone, Debug)]
enum Change {
    Put(&'static str, &'static str, Box<Service>),
    Delete(&'static str, &'static str),
    Pool(&'static str, Value),
    DeletePool(&'static str),
    Restart,
    /// The leader reconciles; some writes fail, of which some have an effect all the same.
    Failures(u8),
    /// The leader loses its lease while its writes are on the wire; they arrive after those of the next one.
    LateWrites,
}

fn services() -> impl Strategy<Value = Service> {
    let class = select(vec![Some(CLASS.to_owned()), Some(CLASS.to_owned()), None, Some("x/y".to_owned())]);
    let families = select(vec![vec![false], vec![true], vec![false, true]]);
    let requested =
        prop_oneof![3 => Just(None), 1 => select(REQUESTS.to_vec()).prop_map(|text| Some(text.to_owned()))];
    let pool =
        prop_oneof![4 => Just(None), 1 => select(POOLS.to_vec()).prop_map(|name| Some(name.to_owned()))];
    (prop::bool::weighted(0.8), class, families, any::<bool>(), requested, pool, 0..3_i64).prop_map(
        |(is_load_balancer, class, families, needs_all_families, requested, pool, created)| Service {
            is_load_balancer,
            class,
            families,
            needs_all_families,
            requested,
            pool,
            created,
            ..service()
        },
    )
}

fn pools() -> impl Strategy<Value = Value> {
    let cidrs = prop::collection::btree_set(select(CIDRS.to_vec()), 1..3);
    let namespaces = select(vec![json!([]), json!([]), json!(["lab"]), json!(["shop"])]);
    (cidrs, namespaces, any::<bool>()).prop_map(|(cidrs, namespaces, without_class)| {
        json!({"cidrs": cidrs, "namespaces": namespaces, "servicesWithoutClass": without_class})
    })
}

fn changes() -> impl Strategy<Value = Change> {
    let name = || (select(NAMESPACES.to_vec()), select(SERVICES.to_vec()));
    prop_oneof![
        6 => (name(), services()).prop_map(|((namespace, name), one)| Change::Put(namespace, name, Box::new(one))),
        2 => name().prop_map(|(namespace, name)| Change::Delete(namespace, name)),
        3 => (select(POOLS.to_vec()), pools()).prop_map(|(name, spec)| Change::Pool(name, spec)),
        1 => select(POOLS.to_vec()).prop_map(Change::DeletePool),
        1 => Just(Change::Restart),
        2 => any::<u8>().prop_map(Change::Failures),
        1 => Just(Change::LateWrites),
    ]
}

fn apply(api: &mut ApiServer, change: &Change) {
    match change {
        Change::Put(namespace, name, spec) => {
            // The status belongs to the controller.
            let before = api.services.get(&((*namespace).to_owned(), (*name).to_owned())).cloned();
            let mut new = (**spec).clone();
            if let Some(before) = before {
                (new.ingress, new.condition, new.created) =
                    (before.ingress, before.condition, before.created);
            }
            api.put(namespace, name, new);
        }
        Change::Delete(namespace, name) => api.delete(namespace, name),
        Change::Pool(name, spec) => api.apply_pool(name, spec.clone()),
        Change::DeletePool(name) => api.delete_pool(name),
        Change::Restart => api.restart(),
        Change::Failures(bits) => {
            for (number, effect) in api.reconcile_without_writes().into_iter().enumerate() {
                let Effect::WriteServiceStatus { service, manifest } = effect else { continue };
                let bit = |shift: usize| bits >> ((number + shift) % 8) & 1 == 1;
                let has_effect = bit(0);
                // The answer gets lost before or after the watch returns the result.
                if bit(3) {
                    api.write_failed(&service.0, &service.1);
                }
                if has_effect {
                    api.write(&manifest);
                } else if !bit(3) {
                    api.write_failed(&service.0, &service.1);
                }
            }
            api.now += 10_000;
        }
        Change::LateWrites => {
            let late = api.reconcile_without_writes();
            api.restart();
            api.settle();
            for effect in late {
                if let Effect::WriteServiceStatus { manifest, .. } = effect {
                    api.write(&manifest);
                }
            }
        }
    }
}

fn owned(api: &ApiServer) -> BTreeMap<&(String, String), BTreeSet<IpAddr>> {
    let is_owned =
        |service: &Service| service.condition.as_ref().is_some_and(|condition| condition.is_assigned);
    let owned = api.services.iter().filter(|(_, service)| is_owned(service));
    owned.map(|(name, service)| (name, service.ingress.clone())).collect()
}

/// The Services that have an address that another one has.
fn duplicates(api: &ApiServer) -> Vec<IpAddr> {
    let mut seen = BTreeSet::new();
    owned(api).into_values().flatten().filter(|address| !seen.insert(*address)).collect()
}

/// A naive reading of the pools: whether a Service may have an address.
fn may_have(api: &ApiServer, name: &(String, String), service: &Service, address: IpAddr) -> bool {
    let is_for_class = |pool: &&Value| match &service.class {
        Some(class) => class == CLASS,
        None => pool["spec"]["servicesWithoutClass"] == true,
    };
    let ranges = |pool: &Value| -> Vec<IpNet> {
        let cidrs = pool["spec"]["cidrs"].as_array().unwrap();
        cidrs.iter().map(|cidr| cidr.as_str().unwrap().parse().unwrap()).collect()
    };
    let is_valid = |pool: &&Value| {
        let ranges = ranges(pool);
        let overlaps = |at: usize| {
            ranges.iter().enumerate().any(|(other, range)| other != at && range.contains(&ranges[at]))
        };
        !(0..ranges.len()).any(overlaps)
    };
    let lists = |pool: &Value| pool["spec"]["namespaces"].as_array().unwrap().contains(&json!(name.0));
    let of_family =
        |pool: &&Value| ranges(pool).iter().any(|range| range.addr().is_ipv4() == address.is_ipv4());
    let pools: Vec<&Value> =
        api.pools.values().filter(is_valid).filter(is_for_class).filter(of_family).collect();
    let is_listed = pools.iter().any(|pool| lists(pool));
    let permitted = pools.into_iter().filter(|pool| match is_listed {
        true => lists(pool),
        false => pool["spec"]["namespaces"] == json!([]),
    });
    let mut permitted =
        permitted.filter(|pool| service.pool.as_deref().is_none_or(|name| pool["metadata"]["name"] == *name));
    let contains = |range: &IpNet| {
        let is_subnet = range.prefix_len() + 1 < range.max_prefix_len();
        let is_edge = address == range.network() || range.addr().is_ipv4() && address == range.broadcast();
        range.contains(&address) && !(is_subnet && is_edge)
    };
    service.is_load_balancer && permitted.any(|pool| ranges(pool).iter().any(contains))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_address_belongs_to_one_service_stays_with_it_and_is_released(
        history in prop::collection::vec(changes(), 1..25)
    ) {
        let mut api = ApiServer::new();
        let mut has_late_writes = false;
        for change in &history {
            let before = owned(&api).into_iter().map(|(name, all)| (name.clone(), all)).collect::<BTreeMap<_, _>>();
            let specs = api.services.clone();
            has_late_writes |= matches!(change, Change::LateWrites);
            apply(&mut api, change);
            if !matches!(change, Change::LateWrites) && !has_late_writes {
                prop_assert_eq!(duplicates(&api), Vec::<IpAddr>::new(), "while it is written");
            }
            api.now += 10_000;
            api.settle();
            prop_assert_eq!(duplicates(&api), Vec::<IpAddr>::new());
            for (name, service) in &api.services {
                let status = owned(&api).remove(name).unwrap_or_default();
                for address in &status {
                    prop_assert!(may_have(&api, name, service, *address), "{:?} may not have {}", name, address);
                }
                let is_assigned = service.condition.as_ref().is_some_and(|condition| condition.is_assigned);
                prop_assert_eq!(is_assigned, !service.ingress.is_empty());
                // What had an address that it may have keeps it.
                let (Some(had), Some(spec)) = (before.get(name), specs.get(name)) else { continue };
                let is_same = spec.uid == service.uid
                    && Service { version: String::new(), ingress: BTreeSet::new(), condition: None, ..spec.clone() }
                        == Service { version: String::new(), ingress: BTreeSet::new(), condition: None, ..service.clone() };
                let may_keep = had.iter().all(|address| may_have(&api, name, service, *address));
                if is_same && may_keep && !matches!(change, Change::LateWrites) {
                    let is_partial = service.needs_all_families && status.is_empty();
                    prop_assert!(had.is_subset(&status) || is_partial, "{:?} had {:?}, has {:?}", name, had, status);
                }
            }
            let used: BTreeSet<IpAddr> = owned(&api).into_values().flatten().collect();
            for pool in api.pools.keys() {
                if let Some((total, in_use, free)) = api.counts(pool) {
                    prop_assert!(in_use <= used.len() as i64 && free == total - in_use);
                }
            }
        }
        // An address of a pool is free again once no Service has it.
        for (namespace, name) in api.services.clone().into_keys() {
            api.delete(&namespace, &name);
        }
        api.settle();
        for pool in api.pools.keys() {
            if let Some((total, used, free)) = api.counts(pool) {
                prop_assert_eq!((used, free), (0, total));
            }
        }
    }
}
