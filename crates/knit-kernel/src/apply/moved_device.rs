//! Moves NICs of the host into sandboxes, and back.
//!
//! A NIC is marked before it moves, so that the settings to restore are always on the device. The same way back
//! serves a NIC that is still in its sandbox, and one that the kernel moved out of a namespace that ended: that one
//! is on the host already, down, and perhaps under another name.

use std::os::fd::{AsFd, AsRawFd};

use knit_model::link::{Attrs, Link, MovedDevice};
use knit_model::{IfName, Mac, Scope};
use nix::errno::Errno;

use super::links::{flags, set};
use super::transaction::{Failure, Op, Tolerate, Transaction};
use crate::error::{Error, Result};
use crate::kernel::LinkSelector;
use crate::moved_device_mark;
use crate::netlink::constants::*;
use crate::netlink::header::LinkHeader;
use crate::netlink::{Header, Message};

/// What is recorded of a moved device.
struct DeviceRecord<'a> {
    device: &'a IfName,
    was: &'a Attrs,
    mark: String,
}

/// The record of a moved device; `None` if the link is of another kind, an error if the record is incomplete.
fn device_record<'a>(link: &'a Link, step: usize) -> Option<Result<DeviceRecord<'a>, Failure>> {
    let nic = link.kind.moved_device()?;
    let record = (|| {
        let MovedDevice { device: Some(device), original: Some(was) } = nic else { return None };
        Some(DeviceRecord { device, was, mark: moved_device_mark::mark(link.owner.as_ref()?, nic)? })
    })();
    Some(record.ok_or_else(|| {
        let context = format!("move a NIC into the sandbox as {}", link.name).into();
        let reason = "its device or its original settings are not known".to_owned();
        Failure { step, error: Error::InvalidValue { context, reason } }
    }))
}

/// Moves a NIC of the host into a sandbox. `None`: the link is of another kind.
pub(super) fn move_into_sandbox(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    link: &Link,
) -> Option<Result<(), Failure>> {
    Some(match device_record(link, step)? {
        Ok(record) => move_in(transaction, step, scope, link, &record),
        Err(failure) => Err(failure),
    })
}

fn move_in(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    link: &Link,
    record: &DeviceRecord<'_>,
) -> Result<(), Failure> {
    let fail = |error| Failure { step, error };
    let (host, device) = (&Scope::Host, record.device);
    transaction.flush()?;
    let moved = transaction.session.link_body(scope, LinkSelector::AltName(&record.mark)).map_err(fail)?;
    if moved.is_none() {
        let index = mark(transaction, step, record)?;
        let netns = transaction.session.netns(scope).map_err(fail)?.as_fd().as_raw_fd() as u32;
        let context = format!("move NIC {device} to {scope} as {}", link.name);
        let mut update = Message::new(RTM_SETLINK, 0, context);
        update.header(&LinkHeader { index, ..Default::default() });
        update.put_u32(IFLA_NET_NS_FD, netns).put_str(IFLA_IFNAME, link.name.as_str());
        transaction.push(host, Op { divisible: true, ..Op::new(step, update, Tolerate::Nothing) })?;
        transaction.flush()?;
        transaction.forget_index(host, device);
    }
    let attrs = Attrs { vlans: None, hairpin: None, limit: None, ..link.attrs.clone() };
    set(transaction, step, scope, &link.name, &attrs, None)
}

/// Marks a NIC on the host and returns its index. A link that has the mark already is the NIC, whatever its name:
/// another link may have taken the name meanwhile.
fn mark(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    record: &DeviceRecord<'_>,
) -> Result<i32, Failure> {
    let (host, device) = (&Scope::Host, record.device);
    let marked = transaction.session.link_body(host, LinkSelector::AltName(&record.mark));
    let marked = marked.map_err(|error| Failure { step, error })?;
    if let Some(header) = marked.and_then(|body| LinkHeader::decode(&body)) {
        return Ok(header.index);
    }
    let index = transaction.require_index(step, host, device)? as i32;
    let mut mark = Message::new(RTM_NEWLINKPROP, 0, format!("mark NIC {device} on {host}"));
    mark.header(&LinkHeader { index, ..Default::default() });
    mark.nest(IFLA_PROP_LIST, |list| {
        list.put_str(IFLA_ALT_IFNAME, &record.mark);
    });
    transaction.push(host, Op::new(step, mark, Tolerate::Nothing))?;
    // Flushed separately: a NIC that could not be marked must not move.
    transaction.flush()?;
    Ok(index)
}

/// Moves a NIC back from its sandbox, or restores it on the host. `None`: the link is of another kind.
pub(super) fn move_back(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    link: &Link,
) -> Option<Result<(), Failure>> {
    Some(match device_record(link, step)? {
        Ok(record) => return_to_host(transaction, step, scope, link, &record),
        Err(failure) => Err(failure),
    })
}

fn return_to_host(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    link: &Link,
    record: &DeviceRecord<'_>,
) -> Result<(), Failure> {
    let fail = |error| Failure { step, error };
    let (host, device) = (&Scope::Host, record.device);
    transaction.flush()?;
    let body = transaction.session.link_body(scope, LinkSelector::AltName(&record.mark)).map_err(fail)?;
    // It returned to the host when its sandbox ended, or it was a virtual link and is gone.
    let Some(body) = body else { return Ok(()) };
    let Some((header, attributes)) = LinkHeader::split(&body) else { return Ok(()) };
    let context = || format!("move NIC {device} back from {scope}");
    let same_name = transaction.session.link_body(host, LinkSelector::Name(device.as_str())).map_err(fail)?;
    let same_name = same_name.as_deref().and_then(LinkHeader::decode).map(|same_name| same_name.index);
    if same_name.is_some_and(|index| scope != host || index != header.index) {
        let message = Some("the host now has another link of that name".to_owned());
        let (context, errno) = (context().into(), Errno::EEXIST);
        return Err(fail(Error::Rejected { context, errno, message, offset: None }));
    }
    let mut down = Message::new(RTM_SETLINK, 0, context());
    down.header(&LinkHeader { index: header.index, flags: 0, change: IFF_UP, ..Default::default() });
    let (on, stated) = flags(record.was);
    let mut update = Message::new(RTM_SETLINK, 0, context());
    update.header(&LinkHeader { index: header.index, flags: on, change: stated, ..Default::default() });
    if scope != host {
        update.put_u32(
            IFLA_NET_NS_FD,
            transaction.session.netns(host).map_err(fail)?.as_fd().as_raw_fd() as u32,
        );
    }
    update.put_str(IFLA_IFNAME, device.as_str());
    // Only changed values: some drivers reject even the address that they have.
    let number = |kind| attributes.first(kind).and_then(|value| value.u32());
    let differing = |kind, was: Option<u32>| was.filter(|was| number(kind) != Some(*was));
    for (kind, was) in
        [(IFLA_MTU, record.was.mtu), (IFLA_TXQLEN, record.was.txqueuelen), (IFLA_GROUP, record.was.group)]
    {
        if let Some(was) = differing(kind, was) {
            update.put_u32(kind, was);
        }
    }
    let mac = attributes.first(IFLA_ADDRESS).and_then(|mac| mac.mac()).map(Mac::from_bytes);
    if let Some(was) = record.was.mac.filter(|was| mac != Some(*was)) {
        update.put_bytes(IFLA_ADDRESS, &was.bytes());
    }
    let mut unmark = Message::new(RTM_DELLINKPROP, 0, context());
    unmark.header(&LinkHeader::default()).put_str(IFLA_IFNAME, device.as_str());
    unmark.nest(IFLA_PROP_LIST, |list| {
        list.put_str(IFLA_ALT_IFNAME, &record.mark);
    });
    for message in [down, update] {
        let op = Op { divisible: true, ..Op::new(step, message, Tolerate::Nothing) };
        transaction.push(scope, op)?;
        transaction.flush()?;
    }
    transaction.forget_index(scope, &link.name);
    transaction.push(host, Op::new(step, unmark, Tolerate::Absence))?;
    transaction.flush()
}

/// Whether an observed link is this device: marked and not yet moved, or returned to the host.
pub(super) fn is_same_device(observed: &Link, created: &Link) -> bool {
    observed.owner.is_some() && observed.owner == created.owner && observed.kind.moved_device().is_some()
}
