//! NICs of the host that are lent to sandboxes: what they had, and which of them can be had.

use super::removal::Place;
use super::verdicts::Verdicts;
use crate::link::{Attrs, Kind, Lent, Link, Master};
use crate::name::IfName;
use crate::problem::Reason;
use crate::sandbox::Scope;
use crate::state::NetState;

/// Fills in what each NIC had before it was lent, or has now if it is yet to be lent; it keeps that where nothing else is
/// asked for.
pub fn settle_devices(desired: &mut NetState, seen: &NetState) {
    for (scope, state) in &mut desired.scopes {
        for link in state.links.values_mut() {
            let Some(device) = link.device() else { continue };
            let here = seen.link(scope, &link.name).filter(|here| here.owner == link.owner);
            let was = here.and_then(|here| had(here, device)).or_else(|| {
                let elsewhere = seen.scopes.values().flat_map(|state| state.links.values());
                let mut elsewhere = elsewhere.filter_map(|other| had(other, device));
                let at_home = seen.link(&Scope::Host, device).filter(|nic| nic.owner.is_none());
                elsewhere.next().or_else(|| at_home.map(|nic| Lent::returned(&nic.attrs)))
            });
            if let (Some(was), Some(lent)) = (was, link.kind.lent_mut()) {
                link.attrs = std::mem::take(&mut link.attrs).or(&was);
                lent.was = Some(Box::new(was));
            }
        }
    }
}

/// What this NIC had, if this link is it.
fn had(link: &Link, device: &IfName) -> Option<Attrs> {
    let lent = link.kind.lent().filter(|lent| lent.device.as_ref() == Some(device))?;
    lent.was.as_deref().cloned()
}

/// The NIC as it is on the host once it is back.
pub(super) fn returned(link: &Link) -> Option<Link> {
    let Lent { device: Some(device), was: Some(was) } = link.kind.lent()? else { return None };
    Some(Link { attrs: (**was).clone(), ..Link::new(device.clone(), Kind::Other { name: String::new() }) })
}

impl Verdicts {
    /// A NIC can be lent when it is on the host, is nobody else's and has nothing that it would lose.
    pub(super) fn block_devices(&mut self, desired: &NetState, observed: &NetState) {
        for (scope, state) in &desired.scopes {
            for link in state.links.values().filter(|link| link.owner.is_some()) {
                let Some(device) = link.device() else { continue };
                let place: Place = (scope.clone(), link.name.clone());
                if self.blocked.contains(&place) || self.is_at_hand(observed, device, &place) {
                    continue;
                }
                if let Some((reason, message)) = obstacle(observed, device) {
                    self.block(scope, &link.name, reason, format!("link {}: {message}", link.name));
                }
            }
        }
    }

    /// Whether the NIC is there already, or comes back before it is needed.
    fn is_at_hand(&self, observed: &NetState, device: &IfName, place: &Place) -> bool {
        let links = observed
            .scopes
            .iter()
            .flat_map(|(scope, state)| state.links.values().map(move |link| (scope, link)));
        let mut lent = links.filter(|(_, link)| had(link, device).is_some());
        lent.any(|(scope, link)| {
            let there = (scope.clone(), link.name.clone());
            there == *place || self.going.contains(&there)
        })
    }
}

/// Why a NIC cannot be lent.
fn obstacle(observed: &NetState, device: &IfName) -> Option<(Reason, String)> {
    let Some(nic) = observed.link(&Scope::Host, device) else {
        return Some((Reason::NotFound, format!("there is no NIC {device} on the host")));
    };
    if nic.owner.is_some() {
        return Some((Reason::NotAllowed, format!("{device} is a link of Knit's own, not a NIC")));
    }
    if let Some(master) = nic.attrs.master.as_ref().and_then(Master::name) {
        return Some((Reason::NotAllowed, format!("NIC {device} is a port of {master}")));
    }
    let addresses = observed.scopes.get(&Scope::Host).into_iter().flat_map(|host| host.addresses.values());
    let is_of_host = |address: &&crate::state::Address| {
        let is_link_local = match address.address {
            ipnet::IpNet::V4(_) => false,
            ipnet::IpNet::V6(net) => net.addr().is_unicast_link_local(),
        };
        address.link == *device && !is_link_local
    };
    let address = addresses.into_iter().find(is_of_host)?;
    let message = format!("NIC {device} has the host's address {}, which would be lost", address.address);
    Some((Reason::NotAllowed, message))
}
