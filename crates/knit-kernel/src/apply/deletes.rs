//! Deletes links: immediately in groups, or detached now and deleted later.
//!
//! Each deletion waits for an RCU grace period, 16 ms for one link or for sixty of them in one message. So links to
//! be deleted are moved into a link group, and the group is deleted with one message ([`delete_group`]).
//!
//! A pair is deleted at its host end if it has one, so that the pairs of many sandboxes share a group. When it is
//! only detached, both ends are set down, the host's first. That alone stops all traffic, even if the pod sets its
//! end up again; the pod's end goes down so that its addresses and routes disappear from the pod immediately.

use knit_model::link::{Link, OwnerId};
use knit_model::{Scope, kernel_ids};

use super::transaction::{Failure, Op, Transaction};
use super::{DeleteMode, moved_device};
use crate::error::Result;
use crate::kernel::LinkSelector;
use crate::kinds;
use crate::netlink::constants::*;
use crate::netlink::header::LinkHeader;
use crate::netlink::{Header, Message};

/// The ownership mark of a link. Alternative names are unique in a namespace, and both ends of a pair have one owner:
/// if both are in one namespace, the second one's mark has a suffix.
pub(crate) fn alternative_name(owner: &OwnerId, is_second: bool) -> String {
    let suffix = if is_second { ".far" } else { "" };
    format!("{}{}{suffix}", kernel_ids::ALTNAME_PREFIX, owner.0)
}

/// Deletes or detaches a link, including the far end of a pair.
pub(super) fn delete(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    link: &Link,
    peer: Option<&(Scope, Link)>,
) -> Result<(), Failure> {
    if let Some(outcome) = moved_device::move_back(transaction, step, scope, link) {
        return outcome;
    }
    let mut ends = vec![(scope, link)];
    ends.extend(peer.map(|(scope, link)| (scope, link)));
    ends.sort_by_key(|(scope, _)| **scope != Scope::Host);
    for (scope, link) in &ends {
        transaction.forget_index(scope, &link.name);
    }
    let is_deferred =
        transaction.delete_mode == DeleteMode::Deferred && kinds::allows_deferred_delete(link.kind.name());
    if let (true, Some(owner)) = (is_deferred, &link.owner) {
        let is_same_netns = peer.is_some_and(|(far_scope, _)| far_scope == scope);
        for (number, (scope, _)) in ends.iter().enumerate() {
            detach(transaction, step, scope, &alternative_name(owner, is_same_netns && number == 1))?;
        }
        return Ok(());
    }
    let (end_scope, end) = ends[0];
    queue_delete(transaction, step, end_scope, end)
}

/// Moves a link into the group that is deleted before any other operation.
pub(super) fn queue_delete(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    link: &Link,
) -> Result<(), Failure> {
    let marked = link.owner.as_ref().map(|owner| alternative_name(owner, false));
    let selector = match &marked {
        Some(mark) => LinkSelector::AltName(mark),
        // A link that a crash left without its mark has only its name.
        None => LinkSelector::Name(link.name.as_str()),
    };
    let context = format!("delete {} {} on {scope}", link.kind.name(), link.name);
    let message = set_group(selector, kernel_ids::DEFERRED_DELETE_GROUP, context);
    let op = Op::new(step, message, transaction.removing());
    transaction.push_delete(scope, op)
}

/// Sets a link down and removes its name and mark, so that both can be reused immediately. The group identifies it
/// from then on.
fn detach(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    mark: &str,
) -> Result<(), Failure> {
    let body = transaction.session.link_body(scope, LinkSelector::AltName(mark));
    let body = body.map_err(|error| Failure { step, error })?;
    let Some(index) = body.and_then(|body| LinkHeader::decode(&body)).map(|header| header.index) else {
        return Ok(());
    };
    let tolerate = transaction.removing();
    let context = || format!("detach link {mark} on {scope}");
    let mut down = Message::new(RTM_SETLINK, 0, context());
    down.header(&LinkHeader { index, flags: 0, change: IFF_UP, ..Default::default() });
    // Older kernels rename a link only while it is down.
    let mut rename = Message::new(RTM_SETLINK, 0, context());
    rename.header(&LinkHeader { index, ..Default::default() });
    rename
        .put_str(IFLA_IFNAME, &format!("knitx{index}"))
        .put_u32(IFLA_GROUP, kernel_ids::DEFERRED_DELETE_GROUP);
    let mut unmark = Message::new(RTM_DELLINKPROP, 0, context());
    unmark.header(&LinkHeader { index, ..Default::default() });
    unmark.nest(IFLA_PROP_LIST, |list| {
        list.put_str(IFLA_ALT_IFNAME, mark);
    });
    for message in [down, rename, unmark] {
        transaction.push(scope, Op::new(step, message, tolerate))?;
    }
    transaction.deferred_deletes.insert(scope.clone());
    Ok(())
}

/// Moves a link into another group.
fn set_group(selector: LinkSelector<'_>, group: u32, context: String) -> Message {
    let mut message = Message::new(RTM_SETLINK, 0, context);
    message.header(&LinkHeader::default());
    match selector {
        LinkSelector::Name(name) => message.put_str(IFLA_IFNAME, name),
        LinkSelector::AltName(name) => message.put_str(IFLA_ALT_IFNAME, name),
    };
    message.put_u32(IFLA_GROUP, group);
    message
}

/// Deletes all links of the delete group in one scope.
pub(crate) fn delete_group(scope: &Scope) -> Message {
    let mut message = Message::new(RTM_DELLINK, 0, format!("delete links on {scope}"));
    message.header(&LinkHeader::default()).put_u32(IFLA_GROUP, kernel_ids::DEFERRED_DELETE_GROUP);
    message
}
