//! Interfaces of a virtual machine: each is a tap on the host, a port of its network's bridge. Addresses and routes
//! are configured by the guest from the call's result.

use std::collections::BTreeMap;

use knit_ipam::Time;
use knit_model::intent::{IntentSpec, RateIntent};
use knit_model::link::{Attrs, Kind, Link, OwnerId, Tap};
use knit_model::plan::ItemKey;
use knit_model::problem::Reason;
use knit_model::report::InterfaceReport;
use knit_model::{Sandbox, Scope};

use super::interface::{Builder, RequestedInterface};
use super::{DEFAULT_MTU, Resolved, attachment, default_mac, with_defaults};
use crate::state::State;

/// The kind in reports of such an interface.
const TAP_KIND: &str = "tap";

/// The desired host state of a virtual machine.
pub(super) fn all(state: &mut State, sandbox: &Sandbox, tap: &Tap, resolved: &mut Resolved, now: Time) {
    let (names, masters, mut uplinks) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for requested in attachment::requested_interfaces(state, sandbox) {
        resolved.requesters.insert(requested.object.clone());
        let mut builder = Builder {
            state,
            sandbox,
            names: &names,
            masters: &masters,
            uplinks: &mut uplinks,
            resolved: &mut *resolved,
            now,
        };
        if let Err((reason, message)) = builder.tap(&requested, tap) {
            resolved.problem(&requested.object, requested.origin.field.clone(), reason, message);
        }
    }
    refuse_objects(state, sandbox, resolved);
}

/// Objects configure a pod's network namespace, which a virtual machine does not have.
fn refuse_objects(state: &State, sandbox: &Sandbox, resolved: &mut Resolved) {
    for (object, stored) in state.objects.of_namespace(&sandbox.namespace) {
        for intent in &stored.intents {
            // A rejected request is reported anyway.
            if matches!(intent.spec, IntentSpec::Rejected(_)) {
                continue;
            }
            if intent.spec.pods().is_some_and(|pods| pods.matches(&object.namespace, sandbox)) {
                resolved.requesters.insert(object.clone());
                let message = format!(
                    "pod {} is a virtual machine: objects cannot add interfaces to it",
                    sandbox.title()
                );
                resolved.problem(object, intent.origin.field.clone(), Reason::NotAllowed, message);
            }
        }
    }
}

impl Builder<'_> {
    fn tap(&mut self, requested: &RequestedInterface, tap: &Tap) -> Result<(), (Reason, String)> {
        let spec = &requested.spec;
        let name = self.free_name(requested)?;
        let network = self.network(requested)?;
        let rejected = |what: &str| {
            let title = self.sandbox.title();
            Err((Reason::NotAllowed, format!("interface {name} of virtual machine {title}: {what}")))
        };
        if !matches!(spec.kind, Kind::Veth(_)) {
            return rejected("only taps on a bridge are supported");
        }
        if !spec.sysctls.is_empty() {
            return rejected("sysctls are not supported");
        }
        if spec.limits.egress.is_some() {
            return rejected("egress limits are not supported");
        }
        let owner = OwnerId::derived(&format!("{}/{name}", self.sandbox.id));
        let kind = Kind::Tap(tap.clone());
        self.check_kernel(&kind, &name)?;
        let Some(host) = self.host_name(&spec.name, &name, &owner) else {
            return Err((Reason::InvalidValue, format!("there is no name for the tap of {name}")));
        };
        let mut link = Link::new(host.clone(), kind);
        link.owner = Some(owner);
        let master = self.resolve_parent(requested, &mut link)?;
        let vlans = self.port_vlans(requested)?;
        self.resolved.observe.vlans |= vlans.is_some();
        let mtu = spec.attrs.mtu.or(network.as_ref().and_then(|network| network.mtu));
        let mtu = mtu.or_else(|| self.state.overlay_mtu(&requested.bridge()?)).unwrap_or(DEFAULT_MTU);
        let attrs = Attrs {
            mtu: Some(mtu),
            txqueuelen: spec.attrs.txqueuelen,
            vlans: vlans.clone(),
            limit: Some(RateIntent::to_rate_limit(spec.limits.ingress, Some(mtu))),
            ..Attrs::default()
        };
        // The requested MAC address is the guest's; the tap has another one.
        let seed = format!("host/{}/{name}", self.sandbox.id);
        link.attrs = with_defaults(&link.kind, &attrs, Some(mtu), master.clone(), &seed);
        let ranges = network.map_or_else(|| spec.ranges.clone(), |network| network.ranges);
        let addresses = self.addresses(requested, &name, &ranges, usize::MAX)?;
        self.resolved.add_origin(&Scope::Host, ItemKey::Link(host.clone()), &requested.origin);
        let mac = spec.attrs.mac.or_else(|| Some(default_mac(self.sandbox, &name)));
        let report = InterfaceReport {
            field: requested.origin.field.clone(),
            name,
            kind: TAP_KIND.to_owned(),
            addresses,
            mac,
            mtu: Some(mtu),
            peer: Some(host.clone()),
            master,
            details: Vec::new(),
            vlans: vlans.filter(|_| spec.port.is_some()),
            vrf: None,
            limited: !spec.limits.is_empty(),
            networks: requested.networks(self.state),
            ready: true,
        };
        self.resolved.unit_state.interfaces.push((requested.object.clone(), report));
        self.resolved.unit_state.used_bridges.extend(requested.bridge());
        self.resolved.unit_state.host_links.insert(host.clone());
        self.resolved.observe.host_links.insert(host);
        self.resolved.desired.state.scope(&Scope::Host).add_link(link);
        Ok(())
    }
}
