//! Host NICs that are moved into sandboxes: their original attributes, and whether they are available.

use super::link_decisions::LinkDecisions;
use super::removal::LinkKey;
use crate::link::{Attrs, Kind, Link, Master, MovedDevice};
use crate::name::IfName;
use crate::problem::Reason;
use crate::sandbox::Scope;
use crate::state::NetState;

/// Fills in the original attributes of each moved NIC, from its ownership mark or from the NIC on the host. They are also
/// the default of its attributes in the sandbox.
pub fn fill_original_attrs(desired: &mut NetState, observed: &NetState) {
    for (scope, state) in &mut desired.scopes {
        for link in state.links.values_mut() {
            let Some(device) = link.device() else { continue };
            let here = observed.link(scope, &link.name).filter(|here| here.owner == link.owner);
            let original = here.and_then(|here| original_attrs(here, device)).or_else(|| {
                let all = observed.scopes.values().flat_map(|state| state.links.values());
                let mut moved = all.filter_map(|other| original_attrs(other, device));
                let on_host = observed.link(&Scope::Host, device).filter(|nic| nic.owner.is_none());
                moved.next().or_else(|| on_host.map(|nic| MovedDevice::saved_attrs(&nic.attrs)))
            });
            if let (Some(original), Some(moved)) = (original, link.kind.moved_device_mut()) {
                link.attrs = std::mem::take(&mut link.attrs).or(&original);
                moved.original = Some(Box::new(original));
            }
        }
    }
}

/// The original attributes of the NIC `device`, if `link` is that NIC.
fn original_attrs(link: &Link, device: &IfName) -> Option<Attrs> {
    let moved = link.kind.moved_device().filter(|moved| moved.device.as_ref() == Some(device))?;
    moved.original.as_deref().cloned()
}

/// The NIC on the host after it was moved back.
pub(super) fn returned_nic(link: &Link) -> Option<Link> {
    let MovedDevice { device: Some(device), original: Some(original) } = link.kind.moved_device()? else {
        return None;
    };
    Some(Link {
        attrs: (**original).clone(),
        ..Link::new(device.clone(), Kind::Other { name: String::new() })
    })
}

impl LinkDecisions {
    /// Blocks links whose NIC is not available: it must be on the host, not be used otherwise and have no addresses to lose.
    pub(super) fn block_unavailable_devices(&mut self, desired: &NetState, observed: &NetState) {
        for (scope, state) in &desired.scopes {
            for link in state.links.values().filter(|link| link.owner.is_some()) {
                let Some(device) = link.device() else { continue };
                let place: LinkKey = (scope.clone(), link.name.clone());
                if self.blocked.contains(&place) || self.is_available(observed, device, &place) {
                    continue;
                }
                if let Some((reason, message)) = obstacle(observed, device) {
                    self.block(scope, &link.name, reason, format!("link {}: {message}", link.name));
                }
            }
        }
    }

    /// Whether the NIC is already in place, or is moved back before it is needed.
    fn is_available(&self, observed: &NetState, device: &IfName, place: &LinkKey) -> bool {
        let links = observed
            .scopes
            .iter()
            .flat_map(|(scope, state)| state.links.values().map(move |link| (scope, link)));
        let mut moved = links.filter(|(_, link)| original_attrs(link, device).is_some());
        moved.any(|(scope, link)| {
            let there = (scope.clone(), link.name.clone());
            there == *place || self.removed.contains(&there)
        })
    }
}

/// Why a NIC cannot be moved.
fn obstacle(observed: &NetState, device: &IfName) -> Option<(Reason, String)> {
    let Some(nic) = observed.link(&Scope::Host, device) else {
        return Some((Reason::NotFound, format!("NIC {device} does not exist on the host")));
    };
    if nic.owner.is_some() {
        return Some((Reason::NotAllowed, format!("{device} is a link created by Knit, not a NIC")));
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
