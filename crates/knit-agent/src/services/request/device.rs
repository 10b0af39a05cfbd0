//! A device of the node that a request moves into the pod.

use std::net::IpAddr;

use ipnet::IpNet;
use knit_engine::call::{InterfaceRequest, RequestedDevice};
use knit_kni::v1;
use knit_model::Kind;
use knit_model::intent::{InterfaceIntent, NameRule, Selector};
use knit_model::link::HostDevice;

use super::{Checked, FIRST_INTERFACE, invalid};

/// The longest id of a device, in bytes.
const MAX_DEVICE_ID: usize = 64;

/// Adds the device's NIC as the link of the interface. The node finds the NIC; the engine decides whether the pod may have it.
pub(super) fn moved(
    field: &str,
    spec: &v1::InterfaceSpec,
    requested: InterfaceRequest,
) -> Checked<InterfaceRequest> {
    let id = id(&format!("{field}.device_id"), &spec.device_id)?;
    if spec.default_route == Some(true) {
        let message = "a NIC of the node is not a port of the network's bridge: its gateway is unknown";
        return Err(invalid(&format!("{field}.default_route"), message));
    }
    let network = match &spec.to {
        Some(v1::interface_spec::To::Network(network)) => Some(network.clone()),
        _ => None,
    };
    let fixed = if network.is_none() { addresses(field, spec)? } else { Vec::new() };
    let link = InterfaceIntent {
        pods: Selector::default(),
        // Overridden by the attachment's own name.
        name: NameRule::Prefix(FIRST_INTERFACE.to_owned()),
        kind: Kind::HostDevice(HostDevice::default()),
        attrs: requested.attrs.clone(),
        parent: None,
        master: None,
        port: None,
        vrf: None,
        ports: Vec::new(),
        remote_pod: None,
        ranges: Vec::new(),
        network,
        fixed,
        routes: requested.routes.clone(),
        rules: Vec::new(),
        gateways: Vec::new(),
        sysctls: requested.sysctls.clone(),
        limits: requested.limits,
        definition: None,
    };
    Ok(InterfaceRequest {
        link: Some(Box::new(link)),
        device: Some(RequestedDevice { id, nic: None }),
        // They are part of the link.
        routes: Vec::new(),
        sysctls: Default::default(),
        ..requested
    })
}

/// Validates a device's id. PCI addresses are lower-cased, as in sysfs.
fn id(field: &str, id: &str) -> Checked<String> {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | ':' | '_' | '-');
    let shown = id.escape_debug();
    if id.len() > MAX_DEVICE_ID || id.starts_with('.') || !id.chars().all(fits) {
        let message = format!("`{shown}` is neither a PCI address nor the name of an auxiliary device");
        return Err(invalid(field, message));
    }
    Ok(if id.contains(':') { id.to_ascii_lowercase() } else { id.to_owned() })
}

/// The addresses of the request, with or without prefix length: no network defines one.
fn addresses(field: &str, spec: &v1::InterfaceSpec) -> Checked<Vec<IpNet>> {
    let addresses = spec.addresses.iter().enumerate().map(|(at, text)| {
        let read = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        read.map_err(|_| invalid(&format!("{field}.addresses[{at}]"), format!("`{text}` is not an address")))
    });
    addresses.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(id: &str) -> v1::InterfaceSpec {
        v1::InterfaceSpec { device_id: id.to_owned(), ..Default::default() }
    }

    #[test]
    fn a_device_id_is_never_a_path() {
        for invalid_value in ["../x", "a/b", ".", "a b", "a\0", &"a".repeat(65)] {
            let refusal = moved("i", &spec(invalid_value), InterfaceRequest::default()).unwrap_err();
            assert!(
                refusal.message().starts_with("i.device_id: "),
                "{invalid_value:?}: {}",
                refusal.message()
            );
        }
        let requested = moved("i", &spec("0000:FF:1F.6"), InterfaceRequest::default()).unwrap();
        let device = requested.device.unwrap();
        assert_eq!((device.id.as_str(), device.nic), ("0000:ff:1f.6", None));
    }

    #[test]
    fn without_a_network_addresses_keep_their_prefix_length() {
        let mut without_network = spec("0000:00:1f.6");
        without_network.addresses = vec!["10.9.0.2/24".to_owned(), "10.9.0.3".to_owned()];
        let link = moved("i", &without_network, InterfaceRequest::default()).unwrap().link.unwrap();
        let fixed: Vec<String> = link.fixed.iter().map(ToString::to_string).collect();
        assert_eq!(fixed, ["10.9.0.2/24", "10.9.0.3/32"]);
        without_network.to = Some(v1::interface_spec::To::Network("blue".to_owned()));
        let link = moved("i", &without_network, InterfaceRequest::default()).unwrap().link.unwrap();
        assert_eq!((link.fixed.len(), link.network.as_deref()), (0, Some("blue")));
        without_network.default_route = Some(true);
        let refusal = moved("i", &without_network, InterfaceRequest::default()).unwrap_err();
        assert!(refusal.message().contains("gateway is unknown"), "{}", refusal.message());
    }
}
