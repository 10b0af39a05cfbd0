//! What interfaces need of each other and of uplinks: one sits on another of the same pod, or is a port of its VRF.

use knit_model::intent::{IntentSpec, UplinkIntent};
use knit_model::link::{Kind, Link};
use knit_model::problem::Reason;
use knit_model::{IfName, Scope};

use super::interface::{Builder, Wanted};

/// Why an interface cannot be had.
type Refusal = (Reason, String);

/// The interfaces in an order in which each comes after those that it names; otherwise as they came. Those that name each
/// other in a circle come last, and find that what they need is not there.
pub(super) fn in_order(mut left: Vec<Wanted>) -> Vec<Wanted> {
    let mut ordered: Vec<Wanted> = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let waits = |wanted: &Wanted| left.iter().any(|other| wanted.names(&other.rule_text()));
        let next = left.iter().position(|wanted| !waits(wanted)).unwrap_or(0);
        ordered.push(left.remove(next));
    }
    ordered
}

impl Wanted {
    fn names(&self, other: &str) -> bool {
        let want = &self.want;
        let inside = want.master.as_deref().filter(|_| !matches!(want.kind, Kind::Veth(_)));
        [want.parent.as_deref(), want.vrf.as_deref(), inside].contains(&Some(other))
    }
}

impl Builder<'_> {
    /// Another interface of Knit's in this pod; `None` if the name means something else.
    pub(super) fn inside(&self, name: &str, what_for: &str) -> Result<Option<IfName>, Refusal> {
        let Some(inside) = self.names.get(name) else { return Ok(None) };
        if self.resolved.desired.state.link(&self.scope(), inside).is_some() {
            return Ok(Some(inside.clone()));
        }
        let pod = self.sandbox.title();
        Err((Reason::NotFound, format!("interface {inside} of pod {pod}, which {what_for}, cannot be made")))
    }

    /// The VRF that the interface is a port of.
    pub(super) fn vrf(&self, wanted: &Wanted) -> Result<Option<IfName>, Refusal> {
        let Some(vrf) = wanted.want.vrf.as_deref() else { return Ok(None) };
        let inside = self.inside(vrf, "it is to be a port of")?;
        let link = inside.as_ref().and_then(|name| self.resolved.desired.state.link(&self.scope(), name));
        if link.is_some_and(|link| matches!(link.kind, Kind::Vrf(_))) {
            return Ok(inside);
        }
        let pod = self.sandbox.title();
        Err((Reason::NotFound, format!("there is no VRF {vrf} in pod {pod}: a Vrf object makes one")))
    }

    /// The table of a link's routes, when it is not the main one: its VRF's, or its own.
    pub(super) fn table(&self, link: &Link, master: Option<&IfName>) -> Option<u32> {
        let master = master.and_then(|name| self.resolved.desired.state.link(&self.scope(), name));
        link.kind.table().or_else(|| master.and_then(|master| master.kind.table()))
    }

    /// Holds a link to what an uplink is open for: kinds, VLANs, MTU. Also a VLAN that leaves by an uplink through
    /// another interface of the pod, which adds no tag of its own.
    pub(super) fn check_uplink(&mut self, wanted: &Wanted, link: &Link) -> Result<(), Refusal> {
        let parent = wanted.want.parent.as_deref().unwrap_or_default();
        let is_direct = link.born_from == Some(Scope::Host);
        let through = link.kind.parent().and_then(|below| self.uplinks.get(below)).cloned();
        let name = if is_direct { Some(parent.to_owned()) } else { through };
        let uplink = name.as_deref().and_then(|name| self.state.uplink(&self.sandbox.namespace, name));
        let Some(uplink) = uplink.and_then(Result::ok).cloned() else { return self.share(wanted, link) };
        let refuse = |message: String| Err((Reason::NotAllowed, format!("uplink {} {message}", uplink.name)));
        let kind = link.kind.name();
        if is_direct && !uplink.kinds.is_empty() && !uplink.kinds.iter().any(|open| open == kind) {
            return refuse(format!("is not open to {kind} links"));
        }
        if let Kind::Vlan(vlan) = &link.kind
            && !uplink.vlans.iter().any(|(first, last)| (*first..=*last).contains(&vlan.id))
        {
            return refuse(format!("is not open to VLAN {}, {}", vlan.id, open_vlans(&uplink)));
        }
        if let Some(most) = uplink.max_mtu.filter(|_| is_direct) {
            match link.attrs.mtu {
                Some(mtu) if mtu > most => {
                    return refuse(format!("allows an MTU of at most {most}"));
                }
                Some(_) => {}
                None => {
                    self.resolved.largest.insert(link.name.clone(), most);
                }
            }
        }
        if matches!(link.kind, Kind::Macvlan(_) | Kind::Ipvlan(_)) {
            self.uplinks.insert(link.name.clone(), uplink.name.clone());
        }
        self.share(wanted, link)
    }

    /// All ipvlans on one link share mode and flag: the first that is asked for decides.
    fn share(&self, wanted: &Wanted, link: &Link) -> Result<(), Refusal> {
        let Kind::Ipvlan(mine) = &link.kind else { return Ok(()) };
        let is_direct = link.born_from == Some(Scope::Host);
        for (object, stored) in self.state.in_order() {
            for intent in &stored.intents {
                if (object, &intent.origin.field) == (&wanted.object, &wanted.why.field) {
                    return Ok(());
                }
                let IntentSpec::Interface(other) = &intent.spec else { continue };
                let Kind::Ipvlan(theirs) = &other.kind else { continue };
                let meets = is_direct || other.pods.matches(&object.namespace, self.sandbox);
                let same_place = meets && other.parent == wanted.want.parent;
                if same_place && (theirs.mode, theirs.flag) != (mine.mode, mine.flag) {
                    let message = format!(
                        "all ipvlans on {} share mode and flag, and {object}, which was first, asks for others",
                        wanted.want.parent.as_deref().unwrap_or_default()
                    );
                    return Err((Reason::Conflict, message));
                }
            }
        }
        Ok(())
    }
}

fn open_vlans(uplink: &UplinkIntent) -> String {
    if uplink.vlans.is_empty() {
        return "no VLAN is".to_owned();
    }
    let range = |(first, last): &(u16, u16)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    let ranges: Vec<String> = uplink.vlans.iter().map(range).collect();
    format!("open are {}", ranges.join(", "))
}
