//! Encodes links: creation, ownership marks and changes.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use knit_model::link::{Attrs, Kind, Link, Master};
use knit_model::plan::FieldChange;
use knit_model::{IfName, Scope, kernel_ids};
use nix::errno::Errno;

use super::transaction::{Failure, Op, PendingGroup, Tolerate, Transaction};
use super::{alternative_name, limits, moved_device, rules, vlans};
use crate::error::{Error, Result};
use crate::kernel::{LinkSelector, context};
use crate::kinds::{self, FieldSelection, LinkContext, RelatedLinks};
use crate::netlink::constants::*;
use crate::netlink::header::LinkHeader;
use crate::netlink::{Attributes, Header, Message};
use crate::observe::kernel_has_vrf_rule;

/// The common fields; all others belong to the kind.
const COMMON: &[&str] = &[
    "mtu",
    "mac",
    "txqueuelen",
    "alias",
    "group",
    "up",
    "promisc",
    "allmulticast",
    "multicast",
    "arp",
    "master",
    "vlans",
    "hairpin",
    "limit",
];

/// Creates a link in its final namespace, and the far end of a veth with it.
///
/// The creation is sent alone: the kernel processes a datagram to its end whatever fails, and the messages that
/// follow would mark a foreign link of the same name. Both ends are created in Knit's initial group. The mark and the
/// final group follow immediately.
pub(super) fn create(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    link: &Link,
    peer: Option<&(Scope, Link)>,
) -> Result<(), Failure> {
    if let Some(outcome) = moved_device::move_into_sandbox(transaction, step, scope, link) {
        return outcome;
    }
    // The message goes to the host if an end is there: the kernel sets the master of that end in the same message.
    let (near, far) = match peer {
        Some((far_scope, other)) if *far_scope == Scope::Host => ((far_scope, other), Some((scope, link))),
        Some((far_scope, other)) => ((scope, link), Some((far_scope, other))),
        None => ((scope, link), None),
    };
    let context = format!("create {} {} on {scope}", link.kind.name(), link.name);
    let fail = |error| Failure { step, error };
    if matches!(link.kind, Kind::Veth(_)) && far.is_none() {
        let reason = "the far end of the pair is not known".to_owned();
        return Err(fail(Error::InvalidValue { context: context.into(), reason }));
    }
    transaction.flush()?;
    let device = kinds::create_device(
        &link.kind,
        &mut LinkContext { session: &mut *transaction.session, scope, name: &link.name },
    );
    match device {
        Ok(Some(device)) => return finish_device(transaction, step, scope, link, device),
        Err(error) if transaction.rolling_back && error.errno() == Some(Errno::EEXIST) => {
            return mark(transaction, step, scope, link, End::Near);
        }
        device => device.map_err(fail)?,
    };
    let from = near.1.parent_scope.as_ref().unwrap_or(near.0);
    let parent = match near.1.kind.parent() {
        Some(parent) => Some(transaction.require_index(step, from, parent)?),
        None => None,
    };
    let master = match near.1.attrs.master.as_ref().and_then(Master::name) {
        Some(master) => Some(transaction.require_index(step, near.0, master)?),
        None => None,
    };
    let netns = |scope: &Scope| -> Result<u32, Failure> {
        Ok(transaction.session.netns(scope).map_err(fail)?.as_fd().as_raw_fd() as u32)
    };
    let target_netns = if from == near.0 { None } else { Some(netns(near.0)?) };
    let far_netns = match far {
        Some((far_scope, _)) if far_scope != near.0 => Some(netns(far_scope)?),
        _ => None,
    };

    let mut message = Message::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, context);
    initial_attributes(&mut message, near.1, target_netns);
    if let Some(parent) = parent {
        message.put_u32(IFLA_LINK, parent);
    }
    if let Some(master) = master {
        message.put_u32(IFLA_MASTER, master);
    }
    let write_peer =
        far.map(|(_, far)| move |message: &mut Message| initial_attributes(message, far, far_netns));
    let peer = write_peer.as_ref().map(|write| write as &dyn Fn(&mut Message));
    kind_data(&mut message, &near.1.kind, FieldSelection::All, &RelatedLinks { parent, peer });

    transaction.flush()?;
    let kernel_adds_rules = kinds::kernel_adds_rules(near.1.kind.name())
        && !kernel_has_vrf_rule(transaction.session, near.0).map_err(fail)?;
    let tolerate = transaction.adding(true);
    transaction.push(from, Op::new(step, message, tolerate))?;
    transaction.flush()?;
    if kernel_adds_rules {
        for message in rules::remove_kernel_vrf_rules(near.0) {
            transaction.push(near.0, Op::new(step, message, Tolerate::Absence))?;
        }
    }
    let near_end = if far_netns.is_some() { End::NearAcrossNetns } else { End::Near };
    mark(transaction, step, near.0, near.1, near_end)?;
    match far {
        Some((far_scope, far)) if far_scope == near.0 => {
            mark(transaction, step, far_scope, far, End::FarSameNetns)?
        }
        Some((far_scope, far)) => mark(transaction, step, far_scope, far, End::Far)?,
        None => {}
    }
    for (scope, end) in far.into_iter().chain([near]) {
        if let Some(vlans) = &end.attrs.vlans {
            vlans::set(transaction, step, scope, &end.name, vlans)?;
        }
        limits::set_initial(transaction, step, scope, end)?;
    }
    let configured = kinds::configured_fields(link.kind.name());
    if !configured.is_empty() && link.kind.fields().keys().any(|field| configured.contains(&field.as_str())) {
        transaction.configure(step, scope, &link.name, &link.kind, FieldSelection::All)?;
    }
    Ok(())
}

/// Configures and marks a device that was not created by netlink, and makes it persistent.
fn finish_device(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    link: &Link,
    device: OwnedFd,
) -> Result<(), Failure> {
    let initial = Attrs {
        mtu: link.attrs.mtu,
        mac: link.attrs.mac,
        txqueuelen: link.attrs.txqueuelen,
        master: link.attrs.master.clone().filter(|master| *master != Master::None),
        hairpin: link.attrs.hairpin,
        ..Attrs::default()
    };
    set(transaction, step, scope, &link.name, &initial, None)?;
    mark(transaction, step, scope, link, End::Near)?;
    if let Some(vlans) = &link.attrs.vlans {
        vlans::set(transaction, step, scope, &link.name, vlans)?;
    }
    limits::set_initial(transaction, step, scope, link)?;
    transaction.flush()?;
    kinds::persist(&link.kind, device).map_err(|error| {
        let context = format!("create {} {} on {scope}", link.kind.name(), link.name);
        Failure { step, error: Error::system(context, "make it persistent", error) }
    })
}

/// Which end of a pair a link is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The end that the message describes; also a link that is no pair.
    Near,
    /// The same, with the far end in another namespace.
    NearAcrossNetns,
    /// The far end, in another namespace.
    Far,
    /// The far end, in the same namespace.
    FarSameNetns,
}

/// The attributes that an end is created with.
fn initial_attributes(message: &mut Message, link: &Link, netns: Option<u32>) {
    message.header(&LinkHeader::default()).put_str(IFLA_IFNAME, link.name.as_str());
    message.put_u32(IFLA_GROUP, kernel_ids::NEW_LINK_GROUP);
    if let Some(netns) = netns {
        message.put_u32(IFLA_NET_NS_FD, netns);
    }
    if let Some(mtu) = link.attrs.mtu {
        message.put_u32(IFLA_MTU, kinds::initial_mtu(link.kind.name(), mtu));
    }
    if let Some(mac) = link.attrs.mac {
        message.put_bytes(IFLA_ADDRESS, &mac.bytes());
    }
    if let Some(length) = link.attrs.txqueuelen {
        message.put_u32(IFLA_TXQLEN, length);
    }
    if matches!(link.kind, Kind::Veth(_)) {
        // By default a veth is created with a queue per CPU, of which all but one are removed: the result is the same
        // (veth_init_queues in drivers/net/veth.c), but each end waits for every CPU, which is slow on a busy
        // machine.
        message.put_u32(IFLA_NUM_TX_QUEUES, 1).put_u32(IFLA_NUM_RX_QUEUES, 1);
    }
}

/// Marks a new link, then sets the attributes that it could not be created with. The order matters: the link is never
/// unidentified.
fn mark(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    link: &Link,
    end: End,
) -> Result<(), Failure> {
    let name = &link.name;
    if let Some(owner) = &link.owner {
        let mut message = Message::new(RTM_NEWLINKPROP, 0, context("mark link ", name.as_str(), scope));
        message.header(&LinkHeader::default()).put_str(IFLA_IFNAME, name.as_str());
        message.nest(IFLA_PROP_LIST, |list| {
            list.put_str(IFLA_ALT_IFNAME, &alternative_name(owner, end == End::FarSameNetns));
        });
        let op = Op::new(step, message, transaction.adding(true));
        if matches!(end, End::NearAcrossNetns | End::Far) {
            transaction.defer_mark(scope, op);
        } else {
            transaction.push(scope, op)?;
        }
    }
    let mut rest = Attrs { mac: None, txqueuelen: None, vlans: None, limit: None, ..link.attrs.clone() };
    rest.group = Some(rest.group.unwrap_or(0));
    rest.alias = rest.alias.filter(|alias| !alias.is_empty());
    rest.mtu = rest.mtu.filter(|mtu| kinds::initial_mtu(link.kind.name(), *mtu) != *mtu);
    if !transaction.rolling_back {
        rest = without_defaults(rest, link, end);
    }
    let is_only_group = rest == Attrs { group: rest.group, ..Attrs::default() };
    if is_only_group && link.owner.is_some() && !transaction.rolling_back {
        let group = rest.group.unwrap_or(0);
        transaction.defer_group(PendingGroup { step, scope: scope.clone(), name: name.clone(), group });
        return Ok(());
    }
    set(transaction, step, scope, name, &rest, None)
}

/// Removes the attributes that a new link has by default, and the master that it was created with.
fn without_defaults(attrs: Attrs, link: &Link, end: End) -> Attrs {
    let (habits, usual) = (link.kind.default_attrs(), link.kind.is_ethernet());
    // A VLAN inherits the flags of its parent, which may lack both (net/8021q/vlan_dev.c, vlan_dev_init).
    let unknown = matches!(link.kind, Kind::Vlan(_));
    let is_near = matches!(end, End::Near | End::NearAcrossNetns);
    let is_set_at_creation = |master: &Master| is_near || *master == Master::None;
    Attrs {
        promisc: attrs.promisc.filter(|on| *on),
        allmulticast: attrs.allmulticast.filter(|on| *on),
        multicast: attrs.multicast.filter(|on| unknown || *on != habits.multicast.unwrap_or(usual)),
        arp: attrs.arp.filter(|on| unknown || *on != habits.arp.unwrap_or(usual)),
        hairpin: attrs.hairpin.filter(|on| *on),
        master: attrs.master.filter(|master| !is_set_at_creation(master)),
        ..attrs
    }
}

/// Changes fields of an existing link.
pub(super) fn change(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    name: &IfName,
    kind: &str,
    changes: &[FieldChange],
) -> Result<(), Failure> {
    let fail = |error| Failure { step, error };
    let invalid = |reason: String| {
        fail(Error::InvalidValue { context: format!("change link {name} on {scope}").into(), reason })
    };
    let (common, own): (Vec<_>, Vec<_>) =
        changes.iter().partition(|change| COMMON.contains(&change.field.as_str()));
    let common: serde_json::Map<_, _> =
        common.into_iter().map(|change| (change.field.clone(), change.to.clone())).collect();
    let mut attrs: Attrs =
        serde_json::from_value(common.into()).map_err(|error| invalid(error.to_string()))?;
    let (vlans, limit, new_mtu) = (attrs.vlans.take(), attrs.limit.take(), attrs.mtu);
    // Sent separately: some kinds reject common fields together with their own, as a vxlan rejects its MTU.
    if attrs != Attrs::default() {
        set(transaction, step, scope, name, &attrs, None)?;
    }
    if let Some(vlans) = vlans {
        vlans::set(transaction, step, scope, name, &vlans)?;
    }
    if let Some(limit) = limit {
        limits::set(transaction, step, scope, name, limit)?;
    }
    if own.is_empty() {
        return Ok(());
    }
    let current = match kinds::resets_omitted_fields(kind) {
        false => CurrentConfig::default(),
        true => match read_current(transaction, step, scope, name, kind)? {
            Some(current) => current,
            None if transaction.rolling_back => return Ok(()),
            None => CurrentConfig::default(),
        },
    };
    let kind = kinds::changed(kind, Attributes::new(&current.data), changes).map_err(fail)?;
    let fields = kind.fields();
    if let Some(unknown) = own.iter().find(|change| !fields.contains_key(&change.field)) {
        return Err(invalid(format!("{} has no field `{}`", kind.name(), unknown.field)));
    }
    let configured = kinds::configured_fields(kind.name());
    let is_configured = |change: &&&FieldChange| configured.contains(&change.field.as_str());
    if own.iter().any(|change| is_configured(&change)) {
        transaction.configure(step, scope, name, &kind, FieldSelection::Changed(changes))?;
    }
    if own.iter().all(|change| is_configured(&change)) {
        return Ok(());
    }
    let mtu = new_mtu.or(current.mtu);
    let kept = Attrs { mtu: mtu.filter(|_| kinds::resets_omitted_fields(kind.name())), ..Attrs::default() };
    set(transaction, step, scope, name, &kept, Some((&kind, changes, current.parent)))
}

/// The current configuration of a link, resent with a change where the kernel resets what is omitted.
#[derive(Default)]
struct CurrentConfig {
    /// The attributes of its kind.
    data: Vec<u8>,
    /// The index of the parent link.
    parent: Option<u32>,
    mtu: Option<u32>,
}

/// Reads the current configuration. `None` if the link does not exist.
fn read_current(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    name: &IfName,
    kind: &str,
) -> Result<Option<CurrentConfig>, Failure> {
    transaction.flush()?;
    let body = transaction.session.link_body(scope, LinkSelector::Name(name.as_str()));
    let Some(body) = body.map_err(|error| Failure { step, error })? else { return Ok(None) };
    let current = LinkHeader::split(&body).and_then(|(_, attributes)| {
        let info = attributes.first(IFLA_LINKINFO)?.nested();
        let data = info.first(IFLA_INFO_DATA)?;
        let number = |kind| attributes.first(kind).and_then(|value| value.u32());
        let parent = kinds::parent_index(kind, data.nested(), number(IFLA_LINK));
        Some(CurrentConfig { data: data.value.to_vec(), parent, mtu: number(IFLA_MTU) })
    });
    Ok(current)
}

/// Sets the given fields of an existing link in one message. Port attributes of a new master need a second one,
/// because the kernel applies them to the master that the link had before the message.
pub(super) fn set(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    name: &IfName,
    attrs: &Attrs,
    kind: Option<(&Kind, &[FieldChange], Option<u32>)>,
) -> Result<(), Failure> {
    if attrs.master.is_some() && attrs.hairpin.is_some() {
        let without_port = Attrs { hairpin: None, ..attrs.clone() };
        set(transaction, step, scope, name, &without_port, kind)?;
        let port = Attrs { hairpin: attrs.hairpin, ..Attrs::default() };
        return set(transaction, step, scope, name, &port, None);
    }
    if matches!(attrs.master, Some(Master::Link(_))) && attrs.up == Some(true) {
        // A bond accepts only links that are down, and in one message the kernel sets a link up before its master
        // (do_setlink in net/core/rtnetlink.c).
        let down = Attrs { up: None, ..attrs.clone() };
        set(transaction, step, scope, name, &down, kind)?;
        let up = Attrs { up: attrs.up, ..Attrs::default() };
        return set(transaction, step, scope, name, &up, None);
    }
    let master = match &attrs.master {
        Some(Master::Link(master)) => Some(transaction.require_index(step, scope, master)?),
        Some(Master::None) => Some(0),
        None => None,
    };
    let mut message = Message::new(RTM_NEWLINK, 0, context("set link ", name.as_str(), scope));
    let (flags, change) = flags(attrs);
    message.header(&LinkHeader { flags, change, ..Default::default() });
    message.put_str(IFLA_IFNAME, name.as_str());
    if let Some(mtu) = attrs.mtu {
        message.put_u32(IFLA_MTU, mtu);
    }
    if let Some(mac) = attrs.mac {
        message.put_bytes(IFLA_ADDRESS, &mac.bytes());
    }
    if let Some(length) = attrs.txqueuelen {
        message.put_u32(IFLA_TXQLEN, length);
    }
    if let Some(alias) = &attrs.alias {
        // Without the terminating NUL: an empty value removes the alias.
        message.put_bytes(IFLA_IFALIAS, alias.as_bytes());
    }
    let left = transaction.take_deferred_group(scope, name);
    if let Some(group) = attrs.group.or(left) {
        message.put_u32(IFLA_GROUP, group);
    }
    if let Some(master) = master {
        message.put_u32(IFLA_MASTER, master);
    }
    if let Some((kind, changes, parent)) = kind {
        kind_data(&mut message, kind, FieldSelection::Changed(changes), &RelatedLinks { parent, peer: None });
    }
    if let Some(hairpin) = attrs.hairpin {
        message.nest(IFLA_LINKINFO, |info| {
            info.nest(IFLA_INFO_SLAVE_DATA, |data| {
                data.put_u8(IFLA_BRPORT_MODE, hairpin.into());
            });
        });
    }
    let tolerate = if transaction.rolling_back { Tolerate::Absence } else { Tolerate::Nothing };
    transaction.push(scope, Op { divisible: true, ..Op::new(step, message, tolerate) })
}

fn kind_data(message: &mut Message, kind: &Kind, selection: FieldSelection<'_>, related: &RelatedLinks<'_>) {
    message.nest(IFLA_LINKINFO, |info| {
        info.put_str(IFLA_INFO_KIND, kind.name());
        info.nest(IFLA_INFO_DATA, |data| kinds::encode(kind, selection, related, data));
    });
}

/// The flag values, and the mask of the flags to change.
pub(super) fn flags(attrs: &Attrs) -> (u32, u32) {
    let stated = [
        (attrs.up, IFF_UP),
        (attrs.promisc, IFF_PROMISC),
        (attrs.allmulticast, IFF_ALLMULTI),
        (attrs.multicast, IFF_MULTICAST),
        (attrs.arp.map(|arp| !arp), IFF_NOARP),
    ];
    let stated = stated.into_iter().filter_map(|(on, flag)| on.map(|on| (on, flag)));
    stated.fold((0, 0), |(flags, change), (on, flag)| (if on { flags | flag } else { flags }, change | flag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_common_fields_is_complete() {
        let all = serde_json::to_value(Attrs::full_for_tests()).unwrap();
        let mut fields: Vec<&str> = all.as_object().unwrap().keys().map(String::as_str).collect();
        let mut common = COMMON.to_vec();
        fields.sort_unstable();
        common.sort_unstable();
        assert_eq!(fields, common);
    }

    #[test]
    fn unset_flags_are_not_changed() {
        let attrs = Attrs { up: Some(true), arp: Some(true), promisc: Some(false), ..Attrs::default() };
        assert_eq!(flags(&attrs), (IFF_UP, IFF_UP | IFF_NOARP | IFF_PROMISC));
        assert_eq!(flags(&Attrs::default()), (0, 0));
    }
}
