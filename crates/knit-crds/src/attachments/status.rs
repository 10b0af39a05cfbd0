//! The network-status annotation.

use knit_model::report::InterfaceReport;
use serde_json::{Value, json};

use super::Attachment;

/// The primary interface of a pod, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrimaryInterfaceInfo {
    /// The network's name.
    pub network: String,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// Its hardware address.
    pub mac: Option<String>,
}

/// The annotation value: the primary interface, then every ready network, in the order of the pod's annotation.
pub fn network_status(
    primary: Option<&PrimaryInterfaceInfo>,
    attachments: &[Attachment],
    interfaces: &[InterfaceReport],
) -> String {
    let primary = primary.map(|primary| {
        let mut entry = json!({
            "name": primary.network, "interface": "eth0", "ips": primary.addresses, "default": true, "dns": {},
        });
        if let Some(mac) = &primary.mac {
            entry["mac"] = json!(mac);
        }
        entry
    });
    let others = attachments.iter().filter_map(|attachment| {
        let is_ready = |one: &&InterfaceReport| one.name.as_str() == attachment.interface && one.ready;
        let interface = interfaces.iter().find(is_ready)?;
        let addresses: Vec<String> =
            interface.addresses.iter().map(|address| address.addr().to_string()).collect();
        let mut entry = json!({
            "name": attachment.name, "interface": attachment.interface, "ips": addresses, "dns": {},
        });
        if let Some(mac) = interface.mac {
            entry["mac"] = json!(mac.to_string());
        }
        if let Some(mtu) = interface.mtu {
            entry["mtu"] = json!(mtu);
        }
        Some(entry)
    });
    let all: Vec<Value> = primary.into_iter().chain(others).collect();
    json!(all).to_string()
}
