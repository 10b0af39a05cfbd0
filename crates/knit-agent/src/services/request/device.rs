//! A device of the node that a caller wants as an interface.

use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use knit_engine::call::{Asked, Device};
use knit_kernel::devices;
use knit_kni::v1;
use knit_model::Kind;
use knit_model::intent::{InterfaceIntent, NameRule, Selector};
use knit_model::link::HostDevice;

use super::{Checked, FIRST, invalid};

/// The longest id of a device, in bytes.
const LONGEST: usize = 64;

/// What is asked for, with the NIC of the device as its link. Which NIC that is the node is asked here; whether the pod may
/// have it, and whether it has it already, is the engine's to say.
pub(super) fn lent(field: &str, spec: &v1::InterfaceSpec, asked: Asked) -> Checked<Asked> {
    let id = id(&format!("{field}.device_id"), &spec.device_id)?;
    if spec.default_route == Some(true) {
        let message = "a NIC of the node is no port of a network's bridge: no router is known behind it";
        return Err(invalid(&format!("{field}.default_route"), message));
    }
    let network = match &spec.to {
        Some(v1::interface_spec::To::Network(network)) => Some(network.clone()),
        _ => None,
    };
    let fixed = if network.is_none() { addresses(field, spec)? } else { Vec::new() };
    let link = InterfaceIntent {
        pods: Selector::default(),
        // The attachment's own name counts.
        name: NameRule::Prefix(FIRST.to_owned()),
        kind: Kind::HostDevice(HostDevice::default()),
        attrs: asked.attrs.clone(),
        parent: None,
        master: None,
        port: None,
        vrf: None,
        remote_pod: None,
        ranges: Vec::new(),
        network,
        fixed,
        routes: asked.routes.clone(),
        rules: Vec::new(),
        gateways: Vec::new(),
        sysctls: asked.sysctls.clone(),
        limits: asked.limits,
        defined: None,
    };
    let nic = devices::nic_of(Path::new(devices::SYSFS), &id).map_err(|why| why.to_string());
    Ok(Asked {
        link: Some(Box::new(link)),
        device: Some(Device { id, nic }),
        // The link has them.
        routes: Vec::new(),
        sysctls: Default::default(),
        ..asked
    })
}

/// A device's id; PCI addresses are written small, as the kernel has them.
fn id(field: &str, id: &str) -> Checked<String> {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | ':' | '_' | '-');
    let shown = id.escape_debug();
    if id.len() > LONGEST || id.starts_with('.') || !id.chars().all(fits) {
        let message = format!("`{shown}` is neither a PCI address nor the name of an auxiliary device");
        return Err(invalid(field, message));
    }
    Ok(if id.contains(':') { id.to_ascii_lowercase() } else { id.to_owned() })
}

/// Addresses as they are said, with or without prefix length: no network says one.
fn addresses(field: &str, spec: &v1::InterfaceSpec) -> Checked<Vec<IpNet>> {
    let addresses = spec.addresses.iter().enumerate().map(|(at, text)| {
        let read = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        read.map_err(|_| invalid(&format!("{field}.addresses[{at}]"), format!("`{text}` is no address")))
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
    fn an_id_is_one_name_and_never_a_path() {
        for wrong in ["../x", "a/b", ".", "a b", "a\0", &"a".repeat(65)] {
            let refusal = lent("i", &spec(wrong), Asked::default()).unwrap_err();
            assert!(refusal.message().starts_with("i.device_id: "), "{wrong:?}: {}", refusal.message());
        }
        let asked = lent("i", &spec("0000:FF:1F.6"), Asked::default()).unwrap();
        let device = asked.device.unwrap();
        assert_eq!(device.id, "0000:ff:1f.6");
        assert!(device.nic.unwrap_err().contains("there is no device 0000:ff:1f.6"));
    }

    #[test]
    fn without_a_network_addresses_are_as_they_are_said() {
        let mut alone = spec("0000:00:1f.6");
        alone.addresses = vec!["10.9.0.2/24".to_owned(), "10.9.0.3".to_owned()];
        let link = lent("i", &alone, Asked::default()).unwrap().link.unwrap();
        let fixed: Vec<String> = link.fixed.iter().map(ToString::to_string).collect();
        assert_eq!(fixed, ["10.9.0.2/24", "10.9.0.3/32"]);
        alone.to = Some(v1::interface_spec::To::Network("blue".to_owned()));
        let link = lent("i", &alone, Asked::default()).unwrap().link.unwrap();
        assert_eq!((link.fixed.len(), link.network.as_deref()), (0, Some("blue")));
        alone.default_route = Some(true);
        let refusal = lent("i", &alone, Asked::default()).unwrap_err();
        assert!(refusal.message().contains("no router is known"), "{}", refusal.message());
    }
}
