//! What no attack may change: the routes and neighbours of both nodes, and that pods and nodes reach each other.

use std::collections::BTreeMap;

use serde_json::Value;

use super::stage::{HTTP, NODES, Stage};
use crate::support::operator::{eventually, on_node};
use crate::support::programs::script;

/// An address outside of the cluster.
const OUTSIDE: [&str; 2] = ["203.0.113.9", "2001:db8:9::9"];
const SERVICES: [&str; 4] = ["10.96.0.1", "10.96.0.10", "fd00:96::1", "fd00:96::a"];

/// Routes and neighbours of both nodes for addresses of others.
pub struct HostState {
    /// By node and address.
    routes: BTreeMap<(String, String), String>,
    /// MAC addresses by node, link and address.
    neighbours: BTreeMap<(String, String, String), String>,
}

/// A route without the remaining time of what the kernel learned about it.
fn without_expiry(route: &str) -> String {
    let mut words = route.split_whitespace();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        if word == "expires" {
            words.next();
        } else {
            kept.push(word);
        }
    }
    kept.join(" ")
}

impl Stage {
    /// The addresses of nodes, Services and pods, an outside address, and these.
    fn protected(&self, more: &[&str]) -> Vec<String> {
        let pods = [&self.near, &self.far, &self.plain, &self.admin];
        let pods = pods.iter().flat_map(|host| [host.ipv4.to_string(), host.ipv6.to_string()]);
        let fixed = [&OUTSIDE[..], &SERVICES, more].concat().into_iter().map(str::to_owned);
        pods.chain(self.machines.iter().cloned()).chain(fixed).collect()
    }

    /// The state of both nodes for the protected addresses and these.
    pub fn host_state(&self, more: &[&str]) -> HostState {
        let addresses = self.protected(more).join(" ");
        let mut state = HostState { routes: BTreeMap::new(), neighbours: BTreeMap::new() };
        for node in NODES {
            let all =
                format!("for to in {addresses}; do echo \"$to $(ip route get $to 2>&1 | head -n 1)\"; done");
            for line in on_node(node, &["sh", "-c", &all]).lines() {
                let (address, route) = line.split_once(' ').unwrap();
                state.routes.insert((node.to_owned(), address.to_owned()), without_expiry(route));
            }
            let neighbours: Value = serde_json::from_str(&on_node(node, &["ip", "-j", "neigh"])).unwrap();
            for entry in neighbours.as_array().unwrap() {
                let text = |field: &str| entry[field].as_str().map(str::to_owned);
                let (Some(link), Some(address), Some(mac)) = (text("dev"), text("dst"), text("lladdr"))
                else {
                    continue;
                };
                state.neighbours.insert((node.to_owned(), link, address), mac);
            }
        }
        state
    }

    /// Asserts that both nodes reach the protected addresses as before, and that pods and nodes still reach each other.
    #[track_caller]
    pub fn assert_unaffected(&self, before: &HostState, more: &[&str]) {
        let after = self.host_state(more);
        assert_eq!(after.routes, before.routes, "routes of the nodes");
        for (key, mac) in &before.neighbours {
            assert!(
                after.neighbours.get(key).is_none_or(|now| now == mac),
                "the neighbour {key:?} was {mac}"
            );
        }
        self.assert_connected();
    }

    /// Pods of the other tenant reach each other, and nodes reach the other node's pods.
    #[track_caller]
    pub fn assert_connected(&self) {
        for (from, to) in [(&self.near, &self.far), (&self.far, &self.near)] {
            for address in [to.ipv4.to_string(), format!("[{}]", to.ipv6)] {
                let request = format!("curl -sS -g --max-time 2 http://{address}:{HTTP}/hostname");
                let answer = || script(&self.victim, from.pod, &request);
                eventually("pods reach each other", answer, |answer| answer.trim() == to.pod);
            }
        }
        let ping =
            |node: &str, to: &str| on_node(node, &["sh", "-c", &format!("ping -n -c 1 -W 2 {to} || true")]);
        for (node, to) in [("node1", &self.far), ("node2", &self.near)] {
            let answer = || ping(node, &to.ipv4.to_string());
            eventually("nodes reach pods", answer, |answer| answer.contains(" 0% packet loss"));
        }
    }
}
