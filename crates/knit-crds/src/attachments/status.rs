//! What a pod has, as the annotation of the same standard says it.

use knit_model::report::InterfaceReport;
use serde_json::{Value, json};

use super::Attachment;

/// The interface that a pod has first, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct First {
    /// The network's name.
    pub network: String,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// Its hardware address.
    pub mac: Option<String>,
}

/// The text of the annotation: the first interface, then every network that stands, in the order of the pod's annotation.
pub fn status(first: Option<&First>, attachments: &[Attachment], interfaces: &[InterfaceReport]) -> String {
    let first = first.map(|first| {
        let mut entry = json!({
            "name": first.network, "interface": "eth0", "ips": first.addresses, "default": true, "dns": {},
        });
        if let Some(mac) = &first.mac {
            entry["mac"] = json!(mac);
        }
        entry
    });
    let others = attachments.iter().filter_map(|attachment| {
        let is_it = |one: &&InterfaceReport| one.name.as_str() == attachment.interface && one.ready;
        let interface = interfaces.iter().find(is_it)?;
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
    let all: Vec<Value> = first.into_iter().chain(others).collect();
    json!(all).to_string()
}
