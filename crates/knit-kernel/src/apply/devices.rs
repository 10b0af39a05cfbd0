//! Lending NICs of the host to sandboxes, and giving them back.
//!
//! A NIC is marked before it moves, so that it is never anywhere without what it needs to get home. The same way back
//! serves for one that is still in its sandbox, and for one that the kernel took out of a namespace that ended: that one
//! is on the host already, down, and perhaps under another name.

use std::os::fd::{AsFd, AsRawFd};

use knit_model::link::{Attrs, Lent, Link};
use knit_model::{IfName, Mac, Scope};
use nix::errno::Errno;

use super::links::{flags, set};
use super::transaction::{Failure, Op, Tolerate, Transaction};
use crate::error::{Error, Result};
use crate::kernel::By;
use crate::lent;
use crate::netlink::constants::*;
use crate::netlink::header::LinkHeader;
use crate::netlink::{Header, Message};

/// What is needed of a lent NIC.
struct Known<'a> {
    device: &'a IfName,
    was: &'a Attrs,
    mark: String,
}

/// What is lent, if the link is a NIC; an error if it is not known whose it is or what it was.
fn known<'a>(link: &'a Link, step: usize) -> Option<Result<Known<'a>, Failure>> {
    let nic = link.kind.lent()?;
    let known = (|| {
        let Lent { device: Some(device), was: Some(was) } = nic else { return None };
        Some(Known { device, was, mark: lent::mark(link.owner.as_ref()?, nic)? })
    })();
    Some(known.ok_or_else(|| {
        let context = format!("lend a NIC as link {}", link.name).into();
        let why = "it is not known which one, or what it was".to_owned();
        Failure { step, error: Error::Unsayable { context, why } }
    }))
}

/// Moves a NIC of the host into a sandbox. `None`: the link is no NIC.
pub(super) fn lend(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    link: &Link,
) -> Option<Result<(), Failure>> {
    Some(match known(link, step)? {
        Ok(lent) => move_in(transaction, step, scope, link, &lent),
        Err(failure) => Err(failure),
    })
}

fn move_in(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    link: &Link,
    lent: &Known<'_>,
) -> Result<(), Failure> {
    let fail = |error| Failure { step, error };
    let (host, device) = (&Scope::Host, lent.device);
    transaction.flush()?;
    let there = transaction.room.link_body(scope, By::AlternativeName(&lent.mark)).map_err(fail)?;
    if there.is_none() {
        let index = mark(transaction, step, lent)?;
        let netns = transaction.room.netns(scope).map_err(fail)?.as_fd().as_raw_fd() as u32;
        let context = format!("move NIC {device} to {scope} as {}", link.name);
        let mut home = Message::new(RTM_SETLINK, 0, context);
        home.header(&LinkHeader { index, ..Default::default() });
        home.put_u32(IFLA_NET_NS_FD, netns).put_str(IFLA_IFNAME, link.name.as_str());
        transaction.push(host, Op { divisible: true, ..Op::new(step, home, Tolerate::Nothing) })?;
        transaction.flush()?;
        transaction.forget(host, device);
    }
    let attrs = Attrs { vlans: None, hairpin: None, limit: None, ..link.attrs.clone() };
    set(transaction, step, scope, &link.name, &attrs, None)
}

/// Marks a NIC on the host, and says its number. One that has the mark already is it, whatever its name: another link may
/// have taken the name meanwhile.
fn mark(transaction: &mut Transaction<'_, '_>, step: usize, lent: &Known<'_>) -> Result<i32, Failure> {
    let (host, device) = (&Scope::Host, lent.device);
    let marked = transaction.room.link_body(host, By::AlternativeName(&lent.mark));
    let marked = marked.map_err(|error| Failure { step, error })?;
    if let Some(header) = marked.and_then(|body| LinkHeader::decode(&body)) {
        return Ok(header.index);
    }
    let index = transaction.need(step, host, device)? as i32;
    let mut mark = Message::new(RTM_NEWLINKPROP, 0, format!("mark NIC {device} on {host}"));
    mark.header(&LinkHeader { index, ..Default::default() });
    mark.nest(IFLA_PROP_LIST, |list| {
        list.put_str(IFLA_ALT_IFNAME, &lent.mark);
    });
    transaction.push(host, Op::new(step, mark, Tolerate::Nothing))?;
    // Alone: a NIC that could not be marked must not move.
    transaction.flush()?;
    Ok(index)
}

/// Gives a NIC back: from its sandbox, or where it came to lie on the host. `None`: the link is no NIC.
pub(super) fn give_back(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    link: &Link,
) -> Option<Result<(), Failure>> {
    Some(match known(link, step)? {
        Ok(lent) => move_home(transaction, step, scope, link, &lent),
        Err(failure) => Err(failure),
    })
}

fn move_home(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    link: &Link,
    lent: &Known<'_>,
) -> Result<(), Failure> {
    let fail = |error| Failure { step, error };
    let (host, device) = (&Scope::Host, lent.device);
    transaction.flush()?;
    let body = transaction.room.link_body(scope, By::AlternativeName(&lent.mark)).map_err(fail)?;
    // It has gone home with its sandbox, or was a virtual link and has gone for good.
    let Some(body) = body else { return Ok(()) };
    let Some((header, attributes)) = LinkHeader::split(&body) else { return Ok(()) };
    let context = || format!("give NIC {device} back from {scope}");
    let namesake = transaction.room.link_body(host, By::Name(device.as_str())).map_err(fail)?;
    let namesake = namesake.as_deref().and_then(LinkHeader::decode).map(|namesake| namesake.index);
    if namesake.is_some_and(|index| scope != host || index != header.index) {
        let message = Some("the host has another link of that name now".to_owned());
        let (context, errno) = (context().into(), Errno::EEXIST);
        return Err(fail(Error::Refused { context, errno, message, offset: None }));
    }
    let mut down = Message::new(RTM_SETLINK, 0, context());
    down.header(&LinkHeader { index: header.index, flags: 0, change: IFF_UP, ..Default::default() });
    let (on, stated) = flags(lent.was);
    let mut home = Message::new(RTM_SETLINK, 0, context());
    home.header(&LinkHeader { index: header.index, flags: on, change: stated, ..Default::default() });
    if scope != host {
        home.put_u32(IFLA_NET_NS_FD, transaction.room.netns(host).map_err(fail)?.as_fd().as_raw_fd() as u32);
    }
    home.put_str(IFLA_IFNAME, device.as_str());
    // Only what differs: not every driver takes even the address that it has.
    let number = |kind| attributes.first(kind).and_then(|value| value.u32());
    let differing = |kind, was: Option<u32>| was.filter(|was| number(kind) != Some(*was));
    for (kind, was) in
        [(IFLA_MTU, lent.was.mtu), (IFLA_TXQLEN, lent.was.txqueuelen), (IFLA_GROUP, lent.was.group)]
    {
        if let Some(was) = differing(kind, was) {
            home.put_u32(kind, was);
        }
    }
    let mac = attributes.first(IFLA_ADDRESS).and_then(|mac| mac.mac()).map(Mac::from_bytes);
    if let Some(was) = lent.was.mac.filter(|was| mac != Some(*was)) {
        home.put_bytes(IFLA_ADDRESS, &was.bytes());
    }
    let mut unmark = Message::new(RTM_DELLINKPROP, 0, context());
    unmark.header(&LinkHeader::default()).put_str(IFLA_IFNAME, device.as_str());
    unmark.nest(IFLA_PROP_LIST, |list| {
        list.put_str(IFLA_ALT_IFNAME, &lent.mark);
    });
    for message in [down, home] {
        let op = Op { divisible: true, ..Op::new(step, message, Tolerate::Nothing) };
        transaction.push(scope, op)?;
        transaction.flush()?;
    }
    transaction.forget(scope, &link.name);
    transaction.push(host, Op::new(step, unmark, Tolerate::Absence))?;
    transaction.flush()
}

/// Whether a link that is on the host is this NIC on its way: marked and not yet moved, or come home by itself.
pub(super) fn is_this(seen: &Link, made: &Link) -> bool {
    seen.owner.is_some() && seen.owner == made.owner && seen.kind.lent().is_some()
}
