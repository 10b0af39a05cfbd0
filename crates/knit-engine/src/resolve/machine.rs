//! Interfaces of a virtual machine: each is a tap on the host, a port of its network's bridge. What a pod would have inside
//! its namespace, addresses and routes, the machine's own system sets up from the answer.

use std::collections::BTreeMap;

use knit_ipam::Time;
use knit_model::intent::{IntentSpec, RateIntent};
use knit_model::link::{Attrs, Kind, Link, OwnerId, Tap};
use knit_model::plan::Item;
use knit_model::problem::Reason;
use knit_model::report::InterfaceReport;
use knit_model::{Mac, Sandbox, Scope};

use super::interface::{Builder, Wanted};
use super::{DEFAULT_MTU, Resolved, attachment, with_defaults};
use crate::state::State;

/// How such an interface is called, where others are called by their kind.
const TAP: &str = "tap";

/// What a virtual machine should have on the host.
pub(super) fn all(state: &mut State, sandbox: &Sandbox, tap: &Tap, resolved: &mut Resolved, now: Time) {
    let (names, mut uplinks) = (BTreeMap::new(), BTreeMap::new());
    for wanted in attachment::wants_of(state, sandbox) {
        resolved.askers.insert(wanted.object.clone());
        let mut builder =
            Builder { state, sandbox, names: &names, uplinks: &mut uplinks, resolved: &mut *resolved, now };
        if let Err((reason, message)) = builder.tap(&wanted, tap) {
            resolved.problem(&wanted.object, wanted.why.field.clone(), reason, message);
        }
    }
    refuse_objects(state, sandbox, resolved);
}

/// Objects ask for things inside a pod's namespace, and a virtual machine has none.
fn refuse_objects(state: &State, sandbox: &Sandbox, resolved: &mut Resolved) {
    for (object, stored) in &state.objects {
        for intent in &stored.intents {
            let pods = match &intent.spec {
                IntentSpec::Interface(want) => &want.pods,
                IntentSpec::LinkChange(want) => &want.pods,
                IntentSpec::Routing(want) => &want.pods,
                IntentSpec::Socket(want) => &want.pods,
                IntentSpec::PluginChain(want) => &want.pods,
                IntentSpec::Bridge(_)
                | IntentSpec::Uplink(_)
                | IntentSpec::Network(_)
                | IntentSpec::RequiredExtensions(_)
                | IntentSpec::Quota(_)
                | IntentSpec::NodeRoutes(_)
                | IntentSpec::AddressPool(_)
                | IntentSpec::EgressGateway(_)
                // It is told anyway.
                | IntentSpec::Rejected(_) => continue,
            };
            if pods.matches(&object.namespace, sandbox) {
                resolved.askers.insert(object.clone());
                let message = format!(
                    "pod {} is a virtual machine: it has the interfaces that calls attach, and no others",
                    sandbox.title()
                );
                resolved.problem(object, intent.origin.field.clone(), Reason::NotAllowed, message);
            }
        }
    }
}

impl Builder<'_> {
    fn tap(&mut self, wanted: &Wanted, tap: &Tap) -> Result<(), (Reason, String)> {
        let want = &wanted.want;
        let name = self.free_name(wanted)?;
        let network = self.network(wanted)?;
        let refused = |what: &str| {
            let title = self.sandbox.title();
            Err((Reason::NotAllowed, format!("interface {name} of virtual machine {title}: {what}")))
        };
        if !matches!(want.kind, Kind::Veth(_)) {
            return refused("it is a tap on a bridge, and no other link");
        }
        if !want.sysctls.is_empty() {
            return refused("its sysctls are the machine's own");
        }
        if want.limits.egress.is_some() {
            return refused("there is no end inside it where what it sends could be limited");
        }
        let owner = OwnerId::derived(&format!("{}/{name}", self.sandbox.id));
        let kind = Kind::Tap(tap.clone());
        self.check_kernel(&kind, &name)?;
        let Some(host) = self.host_name(&want.name, &name, &owner) else {
            return Err((Reason::InvalidValue, format!("there is no name for the tap of {name}")));
        };
        let mut link = Link::new(host.clone(), kind);
        link.owner = Some(owner);
        let master = self.place(wanted, &mut link)?;
        let vlans = self.port_vlans(wanted)?;
        self.resolved.look.vlans |= vlans.is_some();
        let mtu = want.attrs.mtu.or(network.as_ref().and_then(|network| network.mtu));
        let mtu = mtu.or_else(|| self.state.spanning_mtu(&wanted.bridge()?)).unwrap_or(DEFAULT_MTU);
        let asked = Attrs {
            mtu: Some(mtu),
            txqueuelen: want.attrs.txqueuelen,
            vlans: vlans.clone(),
            limit: Some(RateIntent::on(want.limits.ingress, Some(mtu))),
            ..Attrs::default()
        };
        // The hardware address that is asked for is the machine's; the tap's own is another.
        let seed = format!("host/{}/{name}", self.sandbox.id);
        link.attrs = with_defaults(&link.kind, &asked, Some(mtu), master.clone(), &seed);
        let ranges = network.map_or_else(|| want.ranges.clone(), |network| network.ranges);
        let addresses = self.addresses(wanted, &name, &ranges, usize::MAX)?;
        let seed = format!("{}/{}/{name}", self.sandbox.namespace, self.sandbox.pod);
        self.resolved.because(&Scope::Host, Item::Link(host.clone()), &wanted.why);
        let report = InterfaceReport {
            field: wanted.why.field.clone(),
            name,
            kind: TAP.to_owned(),
            addresses,
            mac: want.attrs.mac.or_else(|| Some(Mac::derived(&seed))),
            mtu: Some(mtu),
            peer: Some(host.clone()),
            master,
            shown: Vec::new(),
            vlans: vlans.filter(|_| want.port.is_some()),
            vrf: None,
            limited: !want.limits.is_empty(),
            ready: true,
        };
        self.resolved.made.interfaces.push((wanted.object.clone(), report));
        self.resolved.made.uses.extend(wanted.bridge());
        self.resolved.made.host_links.insert(host.clone());
        self.resolved.look.host_links.insert(host);
        self.resolved.desired.state.scope(&Scope::Host).add_link(link);
        Ok(())
    }
}
