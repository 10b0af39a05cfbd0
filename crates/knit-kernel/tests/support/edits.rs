//! Changes of existing links, field by field.

use knit_model::{Link, Mac, NetState, Scope, Step};

use super::node::TestNode;
use super::states::name;

/// A change of one field of a link.
pub type Edit = (&'static str, fn(&mut Link));

/// Common fields that can be changed on any existing link.
pub const COMMON: &[Edit] = &[
    ("mtu", |link| link.attrs.mtu = Some(1280)),
    ("mac", |link| link.attrs.mac = Some(Mac::derived(&format!("another {}", link.name)))),
    ("txqueuelen", |link| link.attrs.txqueuelen = Some(77)),
    ("alias", |link| link.attrs.alias = Some("of a test".to_owned())),
    ("alias", |link| link.attrs.alias = Some(String::new())),
    ("group", |link| link.attrs.group = Some(9)),
    ("promisc", |link| link.attrs.promisc = Some(true)),
    ("allmulticast", |link| link.attrs.allmulticast = Some(true)),
    ("multicast", |link| link.attrs.multicast = Some(false)),
    ("arp", |link| link.attrs.arp = Some(false)),
    ("arp", |link| link.attrs.arp = Some(true)),
    ("multicast", |link| link.attrs.multicast = Some(true)),
];

/// Changes one field after the other, and checks each time that the plan changes this field alone, on the existing
/// link.
#[track_caller]
pub fn change_each(node: &TestNode, state: &mut NetState, scope: &Scope, link: &str, edits: &[Edit]) {
    for (field, edit) in edits {
        let desired = state.scope(scope).links.get_mut(&name(link)).unwrap();
        edit(desired);
        let plan = node.converge(state);
        let [planned] = plan.steps.as_slice() else { panic!("{field}:\n{plan}") };
        let Step::ChangeLink { changes, .. } = &planned.step else { panic!("{field}:\n{plan}") };
        assert_eq!(changes.iter().map(|change| change.field.as_str()).collect::<Vec<_>>(), [*field]);
    }
}

/// Flushes the neighbour caches of all sandboxes: after a MAC address changes, neighbours use the old one for half a
/// minute.
pub fn flush_neighbours(node: &TestNode) {
    for namespace in &node.sandboxes {
        namespace.ip(&["-4", "neigh", "flush", "all"]);
        namespace.ip(&["-6", "neigh", "flush", "all"]);
    }
}
