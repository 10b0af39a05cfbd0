//! Deleting links: at once in groups, or cut off now and deleted later.
//!
//! The kernel waits for all readers whenever it deletes, 16 ms for one link or for sixty of them in one message. So
//! links to be deleted are moved into a group of Knit's, and the group is deleted by one message ([`delete_group`]).
//!
//! A pair is deleted at its host end where it has one: so the pairs of many sandboxes go in one group. When it is only
//! cut off, both ends are taken down, the host's first. That alone ends all traffic, also if the pod takes its own end
//! up again; the pod's end goes down so that its addresses and routes go from the pod at once.

use knit_model::link::{Link, OwnerId};
use knit_model::{Scope, marks};

use super::transaction::{Failure, Op, Transaction};
use super::{Deletes, devices};
use crate::error::Result;
use crate::kernel::By;
use crate::kinds;
use crate::netlink::constants::*;
use crate::netlink::header::LinkHeader;
use crate::netlink::{Header, Message};

/// The mark of a link. Alternative names are unique in a namespace, and both ends of a pair have one owner: where they
/// live together, the second one's mark has an ending.
pub(crate) fn alternative_name(owner: &OwnerId, is_second: bool) -> String {
    let ending = if is_second { ".far" } else { "" };
    format!("{}{}{ending}", marks::ALTNAME_PREFIX, owner.0)
}

/// Deletes a link, and with it the far end of a pair; or cuts it off.
pub(super) fn delete(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    link: &Link,
    peer: Option<&(Scope, Link)>,
) -> Result<(), Failure> {
    if let Some(given) = devices::give_back(transaction, step, scope, link) {
        return given;
    }
    let mut ends = vec![(scope, link)];
    ends.extend(peer.map(|(scope, link)| (scope, link)));
    ends.sort_by_key(|(scope, _)| **scope != Scope::Host);
    for (scope, link) in &ends {
        transaction.forget(scope, &link.name);
    }
    let may_linger = transaction.deletes == Deletes::Deferred && kinds::lingers(link.kind.name());
    if let (true, Some(owner)) = (may_linger, &link.owner) {
        let is_together = peer.is_some_and(|(there, _)| there == scope);
        for (number, (scope, _)) in ends.iter().enumerate() {
            cut_off(transaction, step, scope, &alternative_name(owner, is_together && number == 1))?;
        }
        return Ok(());
    }
    let (place, end) = ends[0];
    doom(transaction, step, place, end)
}

/// Moves a link into the group that is deleted before anything else happens.
pub(super) fn doom(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    link: &Link,
) -> Result<(), Failure> {
    let marked = link.owner.as_ref().map(|owner| alternative_name(owner, false));
    let by = match &marked {
        Some(mark) => By::AlternativeName(mark),
        // What a crash left between birth and mark has only its name.
        None => By::Name(link.name.as_str()),
    };
    let context = format!("delete {} {} on {scope}", link.kind.name(), link.name);
    let message = set_group(by, marks::REAP_GROUP, context);
    let op = Op::new(step, message, transaction.removing());
    transaction.push_doomed(scope, op)
}

/// Takes a link down, and its name and mark away, so that both can be used again at once. The group remains as mark.
fn cut_off(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    mark: &str,
) -> Result<(), Failure> {
    let body = transaction.room.link_body(scope, By::AlternativeName(mark));
    let body = body.map_err(|error| Failure { step, error })?;
    let Some(index) = body.and_then(|body| LinkHeader::decode(&body)).map(|header| header.index) else {
        return Ok(());
    };
    let tolerate = transaction.removing();
    let context = || format!("cut off link {mark} on {scope}");
    let mut down = Message::new(RTM_SETLINK, 0, context());
    down.header(&LinkHeader { index, flags: 0, change: IFF_UP, ..Default::default() });
    // Older kernels rename a link only while it is down.
    let mut rename = Message::new(RTM_SETLINK, 0, context());
    rename.header(&LinkHeader { index, ..Default::default() });
    rename.put_str(IFLA_IFNAME, &format!("knitx{index}")).put_u32(IFLA_GROUP, marks::REAP_GROUP);
    let mut unmark = Message::new(RTM_DELLINKPROP, 0, context());
    unmark.header(&LinkHeader { index, ..Default::default() });
    unmark.nest(IFLA_PROP_LIST, |list| {
        list.put_str(IFLA_ALT_IFNAME, mark);
    });
    for message in [down, rename, unmark] {
        transaction.push(scope, Op::new(step, message, tolerate))?;
    }
    transaction.to_reap.insert(scope.clone());
    Ok(())
}

/// Moves a link into another group.
fn set_group(by: By<'_>, group: u32, context: String) -> Message {
    let mut message = Message::new(RTM_SETLINK, 0, context);
    message.header(&LinkHeader::default());
    match by {
        By::Name(name) => message.put_str(IFLA_IFNAME, name),
        By::AlternativeName(name) => message.put_str(IFLA_ALT_IFNAME, name),
    };
    message.put_u32(IFLA_GROUP, group);
    message
}

/// Deletes all links of the group, of one scope, at once.
pub(crate) fn delete_group(scope: &Scope) -> Message {
    let mut message = Message::new(RTM_DELLINK, 0, format!("delete links on {scope}"));
    message.header(&LinkHeader::default()).put_u32(IFLA_GROUP, marks::REAP_GROUP);
    message
}
