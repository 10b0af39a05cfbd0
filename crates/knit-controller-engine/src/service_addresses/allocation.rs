//! Which Service gets which address. It follows from Services and pools alone: a Service keeps its address while a pool
//! that it may use contains it, and an address is free once no status has it any more.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use knit_model::mac::fnv1a;

use super::TrackedService;
use super::pools::{Pool, Pools};
use super::service::{Assignment, ServiceInfo};
use crate::state::Name;

/// Why a Service gets no address of a family: a stable CamelCase identifier and a message.
type Rejection = (&'static str, String);

/// A Service whose addresses Knit assigns, with its result in each family.
struct Draft<'a> {
    name: &'a Name,
    info: &'a ServiceInfo,
    requested: BTreeMap<bool, IpAddr>,
    families: BTreeMap<bool, Result<Family<'a>, Rejection>>,
}

/// The result in one family.
enum Family<'a> {
    Assigned(IpAddr),
    /// None yet, of these pools.
    Missing(Vec<&'a Pool>),
}

/// The Services that have each address.
type Holders<'a> = BTreeMap<IpAddr, BTreeSet<&'a Name>>;

/// What the status of each Service should be.
pub(super) fn allocate(
    services: &BTreeMap<Name, TrackedService>,
    pools: &Pools,
) -> BTreeMap<Name, Assignment> {
    let mut decisions: BTreeMap<Name, Assignment> = BTreeMap::new();
    let mut holders = Holders::new();
    let mut candidates: Vec<(&Name, &TrackedService)> = Vec::new();
    for (name, service) in services {
        let observed = service.info.observed().addresses;
        for address in observed.into_iter().chain(service.current().addresses) {
            holders.entry(address).or_default().insert(name);
        }
        match pools.are_for(&service.info) {
            true => candidates.push((name, service)),
            false => drop(decisions.insert(name.clone(), Assignment::default())),
        }
    }
    candidates.sort_by_key(|(name, service)| (service.info.created, *name));
    let mut drafts = Vec::new();
    let mut kept = BTreeSet::new();
    for (name, service) in candidates {
        match Draft::of(name, service, pools, &mut kept) {
            Ok(draft) => drafts.push(draft),
            Err((reason, why)) => drop(decisions.insert(name.clone(), Assignment::rejected(reason, why))),
        }
    }
    // Requested addresses first: others may have any.
    drafts.sort_by_key(|draft| draft.requested.is_empty());
    for draft in &mut drafts {
        draft.assign_missing(pools, &mut holders);
    }
    decisions.extend(drafts.iter().map(|draft| (draft.name.clone(), draft.decision(pools))));
    decisions
}

impl<'a> Draft<'a> {
    /// The Service with the addresses that it keeps.
    fn of(
        name: &'a Name,
        service: &'a TrackedService,
        pools: &'a Pools,
        kept: &mut BTreeSet<IpAddr>,
    ) -> Result<Self, Rejection> {
        let info = &service.info;
        let (requested, current) = (requested(info)?, service.current().addresses);
        let mut families = BTreeMap::new();
        for ipv6 in info.families.iter().copied() {
            let family = pools.permitted(name, info, ipv6).map(|permitted| {
                let may_keep = |address: &IpAddr| {
                    address.is_ipv6() == ipv6
                        && permitted.iter().any(|pool| pool.spec.contains(*address))
                        && requested.get(&ipv6).is_none_or(|requested| requested == address)
                        && !pools.is_reserved(*address)
                        && !kept.contains(address)
                };
                let address = current.iter().copied().find(may_keep);
                address.map_or(Family::Missing(permitted), Family::Assigned)
            });
            if let Ok(Family::Assigned(address)) = family {
                kept.insert(address);
            }
            families.insert(ipv6, family);
        }
        Ok(Self { name, info, requested, families })
    }

    /// Assigns an address in each family without one.
    fn assign_missing(&mut self, pools: &Pools, holders: &mut Holders<'a>) {
        for (ipv6, family) in &mut self.families {
            let Ok(Family::Missing(permitted)) = family else { continue };
            let is_free = |address: IpAddr| {
                let is_held =
                    holders.get(&address).is_some_and(|all| all.iter().any(|one| *one != self.name));
                !is_held && !pools.is_reserved(address)
            };
            let found = match self.requested.get(ipv6) {
                Some(address) => check_requested(*address, permitted, is_free),
                None => find_free(self.name, permitted, *ipv6, is_free),
            };
            if let Ok(address) = found {
                holders.entry(address).or_default().insert(self.name);
            }
            *family = found.map(Family::Assigned);
        }
    }

    fn decision(&self, pools: &Pools) -> Assignment {
        let (mut addresses, mut failures) = (BTreeSet::new(), Vec::new());
        for (ipv6, family) in &self.families {
            match family {
                Ok(Family::Assigned(address)) => drop(addresses.insert(*address)),
                Ok(Family::Missing(_)) => {}
                Err(failure) => failures.push((*ipv6, failure)),
            }
        }
        let is_needed = |ipv6: &bool| self.info.needs_all_families || self.requested.contains_key(ipv6);
        let needed = failures.iter().find(|(ipv6, _)| addresses.is_empty() || is_needed(ipv6));
        if let Some((_, (reason, why))) = needed {
            return Assignment::rejected(reason, why.clone());
        }
        let of_pool = |address: &IpAddr| {
            format!("{address} of pool {}", pools.name_of(*address).unwrap_or("that was deleted"))
        };
        let mut message: Vec<String> = addresses.iter().map(of_pool).collect();
        message.extend(failures.into_iter().map(|(_, (_, why))| why.clone()));
        Assignment::of(addresses, message.join(", "))
    }
}

/// The requested address of each family.
fn requested(service: &ServiceInfo) -> Result<BTreeMap<bool, IpAddr>, Rejection> {
    let mut requested = BTreeMap::new();
    let texts = service.requested.iter().flat_map(|text| text.split(',')).map(str::trim);
    for text in texts.filter(|text| !text.is_empty()) {
        let invalid =
            |why: &str| ("InvalidAddress", format!("the requested address `{}` {why}", text.escape_debug()));
        let address: IpAddr = text.parse().map_err(|_| invalid("is no IP address"))?;
        if !service.families.contains(&address.is_ipv6()) {
            return Err(invalid("is not of a family in spec.ipFamilies"));
        }
        if requested.insert(address.is_ipv6(), address).is_some() {
            return Err(invalid("is the second one of its family"));
        }
    }
    Ok(requested)
}

fn check_requested(
    address: IpAddr,
    permitted: &[&Pool],
    is_free: impl Fn(IpAddr) -> bool,
) -> Result<IpAddr, Rejection> {
    let Some(pool) = permitted.iter().find(|pool| pool.spec.contains(address)) else {
        return Err((
            "AddressNotInPool",
            format!("the requested address {address} is in no pool that it may use"),
        ));
    };
    check_pool(pool)?;
    match is_free(address) {
        true => Ok(address),
        false => Err(("AddressInUse", format!("the requested address {address} is in use"))),
    }
}

/// The first free address of the first pool that has one. The search starts at an index that follows from the name of the
/// Service, so that a Service that is created again has the same address as before, if that is free.
fn find_free(
    name: &Name,
    permitted: &[&Pool],
    ipv6: bool,
    is_free: impl Fn(IpAddr) -> bool,
) -> Result<IpAddr, Rejection> {
    let seed = fnv1a(format!("{}/{}", name.0, name.1).as_bytes());
    let mut failure = None;
    for pool in permitted {
        if let Err(why) = check_pool(pool) {
            failure.get_or_insert(why);
            continue;
        }
        let capacity = pool.spec.capacity(ipv6).max(1);
        let first = seed % capacity;
        let mut addresses = (first..capacity).chain(0..first).filter_map(|index| pool.spec.nth(ipv6, index));
        if let Some(address) = addresses.find(|address| is_free(*address)) {
            return Ok(address);
        }
        let why = || ("AddressesExhausted", format!("pool {} has no free address", pool.spec.name));
        failure.get_or_insert_with(why);
    }
    Err(failure.unwrap_or_else(|| ("NoAddressPool", "there is no ServiceAddressPool for it".to_owned())))
}

/// New addresses are not assigned from a pool that overlaps something else.
fn check_pool(pool: &Pool) -> Result<(), Rejection> {
    let conflict = pool.conflicts.first();
    conflict.map_or(Ok(()), |why| Err(("PoolNotReady", format!("pool {} {why}", pool.spec.name))))
}
