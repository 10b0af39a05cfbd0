//! UDP connections through Services that have to end, because their backend is not chosen any more.
//!
//! Where a frontend leads follows from what is applied and never from what is desired: as long as an element leads to a backend,
//! a client whose connection ended would get it again. So connections end after each change of elements, as far as the change
//! contains them. The deletion may fail: then the frontends concerned are checked again, with what is applied by then.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use knit_ipam::Time;
use knit_model::filter::field::IpFamily;
use knit_service::{Backend, Frontend, Protocol, UdpFrontends};

use super::ServiceState;
use super::retry::Retry;
use crate::event::Effect;
use crate::state::State;
use crate::step::Effects;

/// UDP connections through Services whose backend is not chosen any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StaleConnections {
    /// Where connections to these frontends may lead. Those that lead elsewhere are stale.
    pub frontends: UdpFrontends,
    /// Other frontends with a port that is also a node port among these: connections to them are not about the node port.
    pub others: BTreeSet<SocketAddr>,
}

impl StaleConnections {
    /// Whether a connection with this original destination may not go to this end: it is no backend any more, or the connection
    /// was opened before there was one.
    pub fn contains(&self, to: SocketAddr, has_dnat: bool, backend: SocketAddr) -> bool {
        let (protocol, port) = (Protocol::Udp, to.port());
        let address = Frontend::Address { address: to.ip(), protocol, port };
        // Without translation a connection to the port of a node is none through a Service.
        let is_node_port = has_dnat && !self.others.contains(&to);
        let node_port = Frontend::NodePort { family: IpFamily::of(to.ip()), protocol, port };
        let of_node_port = || self.frontends.get(&node_port).filter(|_| is_node_port);
        let backends = self.frontends.get(&address).or_else(of_node_port);
        let backend = Backend { address: backend.ip(), port: backend.port() };
        backends.is_some_and(|all| !all.contains(&backend))
    }

    /// The connections of these frontends, as far as they lead elsewhere than what is applied.
    fn of(services: &ServiceState, changed: &BTreeSet<Frontend>) -> Self {
        let mut stale = Self::default();
        stale.frontends.extend(changed.iter().map(|frontend| (*frontend, BTreeSet::new())));
        let node_ports = changed.iter().filter_map(|frontend| match frontend {
            Frontend::NodePort { port, .. } => Some(*port),
            Frontend::Address { .. } => None,
        });
        let node_ports: BTreeSet<u16> = node_ports.collect();
        for (frontend, backends) in services.udp.values().flatten() {
            match (stale.frontends.get_mut(frontend), frontend) {
                (Some(all), _) => all.extend(backends),
                (None, Frontend::Address { address, port, .. }) if node_ports.contains(port) => {
                    stale.others.insert(SocketAddr::new(*address, *port));
                }
                (None, _) => {}
            }
        }
        stale
    }
}

/// Ends the connections of these frontends that lead elsewhere than what is applied, and those that could not be ended before.
pub(super) fn end(state: &mut State, mut changed: BTreeSet<Frontend>, effects: &mut Effects) {
    changed.append(&mut state.services.unchecked);
    state.services.connection_retry = None;
    if !changed.is_empty() {
        effects.list.push(Effect::EndConnections(StaleConnections::of(&state.services, &changed)));
    }
}

/// The connections of these frontends could not be ended: that is tried again.
pub(super) fn on_failure(state: &mut State, frontends: Vec<Frontend>, now: Time) {
    if frontends.is_empty() || !state.translates_services() {
        return;
    }
    let services = &mut state.services;
    services.unchecked.extend(frontends);
    services.connection_retry = Some(Retry::after(0, now));
}
