//! Links on the wire: births, marks and changes.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use knit_model::link::{Attrs, Kind, Link, Master};
use knit_model::plan::Change;
use knit_model::{IfName, Scope, marks};
use nix::errno::Errno;

use super::transaction::{Failure, Op, Tolerate, Transaction, Ungrouped};
use super::{alternative_name, devices, limits, rules, vlans};
use crate::error::{Error, Result};
use crate::kernel::By;
use crate::kinds::{self, Around, At, Wanted};
use crate::netlink::constants::*;
use crate::netlink::header::LinkHeader;
use crate::netlink::{Attributes, Header, Message};
use crate::observe::kernel_has_vrf_rule;

/// The common fields, by name; all others are the kind's own.
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

/// Makes a link where it will live, and the far end of a veth with it.
///
/// The birth goes out alone: the kernel works through a datagram to its end whatever fails, and what follows would
/// mark a stranger's link of the same name. Both ends are born in Knit's group. The mark by name and the stated group
/// follow at once.
pub(super) fn create(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    link: &Link,
    peer: Option<&(Scope, Link)>,
) -> Result<(), Failure> {
    if let Some(lent) = devices::lend(transaction, step, scope, link) {
        return lent;
    }
    // The message goes to the host where it has an end: the kernel takes the master of that end in the same message.
    let (near, far) = match peer {
        Some((there, other)) if *there == Scope::Host => ((there, other), Some((scope, link))),
        Some((there, other)) => ((scope, link), Some((there, other))),
        None => ((scope, link), None),
    };
    let context = format!("make {} {} on {scope}", link.kind.name(), link.name);
    let fail = |error| Failure { step, error };
    if matches!(link.kind, Kind::Veth(_)) && far.is_none() {
        let why = "its far end is not known".to_owned();
        return Err(fail(Error::Unsayable { context: context.into(), why }));
    }
    transaction.flush()?;
    let made = kinds::make(&link.kind, &mut At { room: &mut *transaction.room, scope, link: &link.name });
    match made {
        Ok(Some(made)) => return keep(transaction, step, scope, link, made),
        Err(error) if transaction.backward && error.errno() == Some(Errno::EEXIST) => {
            return mark(transaction, step, scope, link, End::Near);
        }
        made => made.map_err(fail)?,
    };
    let from = near.1.born_from.as_ref().unwrap_or(near.0);
    let parent = match near.1.kind.parent() {
        Some(parent) => Some(transaction.need(step, from, parent)?),
        None => None,
    };
    let master = match near.1.attrs.master.as_ref().and_then(Master::name) {
        Some(master) => Some(transaction.need(step, near.0, master)?),
        None => None,
    };
    let netns = |scope: &Scope| -> Result<u32, Failure> {
        Ok(transaction.room.netns(scope).map_err(fail)?.as_fd().as_raw_fd() as u32)
    };
    let elsewhere = if from == near.0 { None } else { Some(netns(near.0)?) };
    let far_netns = match far {
        Some((there, _)) if there != near.0 => Some(netns(there)?),
        _ => None,
    };

    let mut message = Message::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, context);
    newborn(&mut message, near.1, elsewhere);
    if let Some(parent) = parent {
        message.put_u32(IFLA_LINK, parent);
    }
    if let Some(master) = master {
        message.put_u32(IFLA_MASTER, master);
    }
    let write_far = far.map(|(_, far)| move |message: &mut Message| newborn(message, far, far_netns));
    let far_end = write_far.as_ref().map(|write| write as &dyn Fn(&mut Message));
    kind_data(&mut message, &near.1.kind, Wanted::All, &Around { parent, far_end });

    transaction.flush()?;
    let brings_rules = kinds::makes_rules(near.1.kind.name())
        && !kernel_has_vrf_rule(transaction.room, near.0).map_err(fail)?;
    let tolerate = transaction.adding(true);
    transaction.push(from, Op::new(step, message, tolerate))?;
    transaction.flush()?;
    if brings_rules {
        for message in rules::remove_kernels_for_vrfs(near.0) {
            transaction.push(near.0, Op::new(step, message, Tolerate::Absence))?;
        }
    }
    let near_end = if far_netns.is_some() { End::NearOfTwo } else { End::Near };
    mark(transaction, step, near.0, near.1, near_end)?;
    match far {
        Some((there, far)) if there == near.0 => mark(transaction, step, there, far, End::FarBeside)?,
        Some((there, far)) => mark(transaction, step, there, far, End::Far)?,
        None => {}
    }
    for (scope, end) in far.into_iter().chain([near]) {
        if let Some(vlans) = &end.attrs.vlans {
            vlans::set(transaction, step, scope, &end.name, vlans)?;
        }
        limits::set_newborn(transaction, step, scope, end)?;
    }
    let told = kinds::told(link.kind.name());
    if !told.is_empty() && link.kind.fields().keys().any(|field| told.contains(&field.as_str())) {
        transaction.tell(step, scope, &link.name, &link.kind, Wanted::All)?;
    }
    Ok(())
}

/// Has a link stay that was made otherwise than by a message, once it has its mark.
fn keep(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    link: &Link,
    made: OwnedFd,
) -> Result<(), Failure> {
    let born = Attrs {
        mtu: link.attrs.mtu,
        mac: link.attrs.mac,
        txqueuelen: link.attrs.txqueuelen,
        master: link.attrs.master.clone().filter(|master| *master != Master::Nothing),
        hairpin: link.attrs.hairpin,
        ..Attrs::default()
    };
    set(transaction, step, scope, &link.name, &born, None)?;
    mark(transaction, step, scope, link, End::Near)?;
    if let Some(vlans) = &link.attrs.vlans {
        vlans::set(transaction, step, scope, &link.name, vlans)?;
    }
    limits::set_newborn(transaction, step, scope, link)?;
    transaction.flush()?;
    kinds::keep(&link.kind, made).map_err(|error| {
        let context = format!("make {} {} on {scope}", link.kind.name(), link.name);
        Failure { step, error: Error::system(context, "have it stay", error) }
    })
}

/// Which end of a pair a link is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The one that the message is about; also a link that is no pair.
    Near,
    /// The same, with the other in another namespace.
    NearOfTwo,
    /// The other, in another namespace.
    Far,
    /// The other, in the same namespace.
    FarBeside,
}

/// What each end has at birth.
fn newborn(message: &mut Message, link: &Link, netns: Option<u32>) {
    message.header(&LinkHeader::default()).put_str(IFLA_IFNAME, link.name.as_str());
    message.put_u32(IFLA_GROUP, marks::BIRTH_GROUP);
    if let Some(netns) = netns {
        message.put_u32(IFLA_NET_NS_FD, netns);
    }
    if let Some(mtu) = link.attrs.mtu {
        message.put_u32(IFLA_MTU, kinds::birth_mtu(link.kind.name(), mtu));
    }
    if let Some(mac) = link.attrs.mac {
        message.put_bytes(IFLA_ADDRESS, &mac.bytes());
    }
    if let Some(length) = link.attrs.txqueuelen {
        message.put_u32(IFLA_TXQLEN, length);
    }
    if matches!(link.kind, Kind::Veth(_)) {
        // Unasked, a veth is born with a queue per CPU and then all but one are taken from it: the same link in the end
        // (veth_init_queues in the kernel's drivers/net/veth.c), but each end waits for every CPU, for long on a busy
        // machine.
        message.put_u32(IFLA_NUM_TX_QUEUES, 1).put_u32(IFLA_NUM_RX_QUEUES, 1);
    }
}

/// Marks a newborn link by name, then gives it what it could not be born with. The order matters: it is never without
/// a mark.
fn mark(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    link: &Link,
    end: End,
) -> Result<(), Failure> {
    let name = &link.name;
    if let Some(owner) = &link.owner {
        let mut message = Message::new(RTM_NEWLINKPROP, 0, format!("mark link {name} on {scope}"));
        message.header(&LinkHeader::default()).put_str(IFLA_IFNAME, name.as_str());
        message.nest(IFLA_PROP_LIST, |list| {
            list.put_str(IFLA_ALT_IFNAME, &alternative_name(owner, end == End::FarBeside));
        });
        let op = Op::new(step, message, transaction.adding(true));
        if matches!(end, End::NearOfTwo | End::Far) {
            transaction.leave_mark(scope, op);
        } else {
            transaction.push(scope, op)?;
        }
    }
    let mut rest = Attrs { mac: None, txqueuelen: None, vlans: None, limit: None, ..link.attrs.clone() };
    rest.group = Some(rest.group.unwrap_or(0));
    rest.alias = rest.alias.filter(|alias| !alias.is_empty());
    rest.mtu = rest.mtu.filter(|mtu| kinds::birth_mtu(link.kind.name(), *mtu) != *mtu);
    if !transaction.backward {
        rest = without_what_it_has(rest, link, end);
    }
    let is_only_group = rest == Attrs { group: rest.group, ..Attrs::default() };
    if is_only_group && link.owner.is_some() && !transaction.backward {
        let group = rest.group.unwrap_or(0);
        transaction.leave_group(Ungrouped { step, scope: scope.clone(), name: name.clone(), group });
        return Ok(());
    }
    set(transaction, step, scope, name, &rest, None)
}

/// Leaves out what a newborn link has by itself, and the master that it was born with.
fn without_what_it_has(attrs: Attrs, link: &Link, end: End) -> Attrs {
    let (habits, usual) = (link.kind.habits(), link.kind.is_ethernet());
    // A VLAN is born with the flags of its parent, which may do neither (net/8021q/vlan_dev.c, vlan_dev_init).
    let unknown = matches!(link.kind, Kind::Vlan(_));
    let is_near = matches!(end, End::Near | End::NearOfTwo);
    let is_born_with = |master: &Master| is_near || *master == Master::Nothing;
    Attrs {
        promisc: attrs.promisc.filter(|on| *on),
        allmulticast: attrs.allmulticast.filter(|on| *on),
        multicast: attrs.multicast.filter(|on| unknown || *on != habits.multicast.unwrap_or(usual)),
        arp: attrs.arp.filter(|on| unknown || *on != habits.arp.unwrap_or(usual)),
        hairpin: attrs.hairpin.filter(|on| *on),
        master: attrs.master.filter(|master| !is_born_with(master)),
        ..attrs
    }
}

/// Changes fields of a living link.
pub(super) fn change(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    name: &IfName,
    kind: &str,
    changes: &[Change],
) -> Result<(), Failure> {
    let fail = |error| Failure { step, error };
    let unsayable = |why: String| {
        fail(Error::Unsayable { context: format!("change link {name} on {scope}").into(), why })
    };
    let (common, own): (Vec<_>, Vec<_>) =
        changes.iter().partition(|change| COMMON.contains(&change.field.as_str()));
    let common: serde_json::Map<_, _> =
        common.into_iter().map(|change| (change.field.clone(), change.to.clone())).collect();
    let mut attrs: Attrs =
        serde_json::from_value(common.into()).map_err(|error| unsayable(error.to_string()))?;
    let (vlans, limit, said_mtu) = (attrs.vlans.take(), attrs.limit.take(), attrs.mtu);
    // Apart: a kind may refuse common fields beside its own, as a vxlan refuses its MTU.
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
    let as_it_is = match kinds::is_retold(kind) {
        false => AsItIs::default(),
        true => match retell(transaction, step, scope, name, kind)? {
            Some(as_it_is) => as_it_is,
            None if transaction.backward => return Ok(()),
            None => AsItIs::default(),
        },
    };
    let kind = kinds::changed(kind, Attributes::new(&as_it_is.data), changes).map_err(fail)?;
    let fields = kind.fields();
    if let Some(unknown) = own.iter().find(|change| !fields.contains_key(&change.field)) {
        return Err(unsayable(format!("a {} has no field `{}`", kind.name(), unknown.field)));
    }
    let told = kinds::told(kind.name());
    let is_told = |change: &&&Change| told.contains(&change.field.as_str());
    if own.iter().any(|change| is_told(&change)) {
        transaction.tell(step, scope, name, &kind, Wanted::Changed(changes))?;
    }
    if own.iter().all(|change| is_told(&change)) {
        return Ok(());
    }
    let mtu = said_mtu.or(as_it_is.mtu);
    let kept = Attrs { mtu: mtu.filter(|_| kinds::is_retold(kind.name())), ..Attrs::default() };
    set(transaction, step, scope, name, &kept, Some((&kind, changes, as_it_is.parent)))
}

/// What a change has to say again of a link, where the kernel forgets what is left out.
#[derive(Default)]
struct AsItIs {
    /// The attributes of its kind.
    data: Vec<u8>,
    /// The number of the link that it sits on.
    parent: Option<u32>,
    mtu: Option<u32>,
}

/// Reads what has to be said again of a link. `None` if there is no such link.
fn retell(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    name: &IfName,
    kind: &str,
) -> Result<Option<AsItIs>, Failure> {
    transaction.flush()?;
    let body = transaction.room.link_body(scope, By::Name(name.as_str()));
    let Some(body) = body.map_err(|error| Failure { step, error })? else { return Ok(None) };
    let as_it_is = LinkHeader::split(&body).and_then(|(_, attributes)| {
        let info = attributes.first(IFLA_LINKINFO)?.nested();
        let data = info.first(IFLA_INFO_DATA)?;
        let number = |kind| attributes.first(kind).and_then(|value| value.u32());
        let parent = kinds::parent_index(kind, data.nested(), number(IFLA_LINK));
        Some(AsItIs { data: data.value.to_vec(), parent, mtu: number(IFLA_MTU) })
    });
    Ok(as_it_is)
}

/// Sets stated fields of a living link, all in one message; what it is as a port of a new master in a second one, since the
/// kernel tells the master that the link has before the message.
pub(super) fn set(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    name: &IfName,
    attrs: &Attrs,
    kind: Option<(&Kind, &[Change], Option<u32>)>,
) -> Result<(), Failure> {
    if attrs.master.is_some() && attrs.hairpin.is_some() {
        let first = Attrs { hairpin: None, ..attrs.clone() };
        set(transaction, step, scope, name, &first, kind)?;
        let then = Attrs { hairpin: attrs.hairpin, ..Attrs::default() };
        return set(transaction, step, scope, name, &then, None);
    }
    let master = match &attrs.master {
        Some(Master::Of(master)) => Some(transaction.need(step, scope, master)?),
        Some(Master::Nothing) => Some(0),
        None => None,
    };
    let mut message = Message::new(RTM_NEWLINK, 0, format!("set link {name} on {scope}"));
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
        // Without the closing NUL: no bytes at all take the alias away.
        message.put_bytes(IFLA_IFALIAS, alias.as_bytes());
    }
    let left = transaction.left_group(scope, name);
    if let Some(group) = attrs.group.or(left) {
        message.put_u32(IFLA_GROUP, group);
    }
    if let Some(master) = master {
        message.put_u32(IFLA_MASTER, master);
    }
    if let Some((kind, changes, parent)) = kind {
        kind_data(&mut message, kind, Wanted::Changed(changes), &Around { parent, far_end: None });
    }
    if let Some(hairpin) = attrs.hairpin {
        message.nest(IFLA_LINKINFO, |info| {
            info.nest(IFLA_INFO_SLAVE_DATA, |data| {
                data.put_u8(IFLA_BRPORT_MODE, hairpin.into());
            });
        });
    }
    let tolerate = if transaction.backward { Tolerate::Absence } else { Tolerate::Nothing };
    transaction.push(scope, Op { divisible: true, ..Op::new(step, message, tolerate) })
}

fn kind_data(message: &mut Message, kind: &Kind, wanted: Wanted<'_>, around: &Around<'_>) {
    message.nest(IFLA_LINKINFO, |info| {
        info.put_str(IFLA_INFO_KIND, kind.name());
        info.nest(IFLA_INFO_DATA, |data| kinds::encode(kind, wanted, around, data));
    });
}

/// The flags to set, and which of them are stated.
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
    fn every_common_field_is_known_as_one() {
        let all = serde_json::to_value(Attrs::full_for_tests()).unwrap();
        let mut fields: Vec<&str> = all.as_object().unwrap().keys().map(String::as_str).collect();
        let mut known = COMMON.to_vec();
        fields.sort_unstable();
        known.sort_unstable();
        assert_eq!(fields, known);
    }

    #[test]
    fn flags_that_are_not_stated_are_left_alone() {
        let attrs = Attrs { up: Some(true), arp: Some(true), promisc: Some(false), ..Attrs::default() };
        assert_eq!(flags(&attrs), (IFF_UP, IFF_UP | IFF_NOARP | IFF_PROMISC));
        assert_eq!(flags(&Attrs::default()), (0, 0));
    }
}
