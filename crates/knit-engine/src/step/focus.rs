//! What of the host is a unit's business.

use knit_model::link::{Attrs, Link, Master};
use knit_model::{IfName, NetState, Route, Scope, ScopeState, marks};

use crate::event::Look;
use crate::resolve::Resolved;
use crate::state::Made;

/// Of the host only what is this unit's business: everything else is another unit's, or not Knit's.
pub(super) fn focus(mut seen: NetState, look: &Look, had: &Made, resolved: &Resolved) -> NetState {
    let host = std::mem::take(seen.scope(&Scope::Host));
    let is_port = |master: Option<&Master>| {
        look.ports_of.is_some() && master.and_then(Master::name) == look.ports_of.as_ref()
    };
    let mut mine = ScopeState::default();
    for link in host.links.into_values() {
        let foreign_port = link.owner.is_none() && is_port(link.attrs.master.as_ref());
        let is_lent = link.owner.as_ref().is_some_and(|owner| look.lent.contains(owner));
        if look.host_links.contains(&link.name) || foreign_port || is_lent {
            mine.add_link(link);
        } else if look.host_parents.contains(&link.name) || look.ways.contains(&link.name) {
            // Whose it is does not matter here: it is not this unit's, so this unit never changes it.
            let attrs = Attrs { mtu: link.attrs.mtu, ..Attrs::default() };
            mine.add_link(Link { attrs, owner: None, ..link });
        }
    }
    let on_mine = |name: &IfName| look.host_links.contains(name);
    mine.addresses = host.addresses.into_iter().filter(|(_, address)| on_mine(&address.link)).collect();
    let is_way = |route: &Route| route.owned && route.table == marks::HOST_TABLE;
    let is_mine = |route: &Route| {
        route.via.iter().any(|hop| on_mine(&hop.link) || look.ways.contains(&hop.link) && is_way(route))
    };
    mine.routes = host.routes.into_iter().filter(|(_, route)| is_mine(route)).collect();
    mine.neighbours = host.neighbours.into_iter().filter(|(_, neighbour)| on_mine(&neighbour.link)).collect();
    mine.sysctls = host.sysctls;
    mine.rules = host
        .rules
        .into_iter()
        .filter(|rule| had.rules.contains(rule) || resolved.made.rules.contains(rule))
        .collect();
    seen.scopes.insert(Scope::Host, mine);
    seen
}
