//! Addresses requested by a pod's annotations: explicit ones, or a name under which leases are kept.

use std::net::IpAddr;

use knit_engine::call::{AttachmentMetadata, InterfaceRequest};
use knit_engine::cluster;

use super::{Checked, check_count, invalid, pod_name};

/// Explicit addresses of the cluster network, comma separated.
const FIXED: &str = "knit.opdev.io/addresses";
/// The name under which addresses are kept; `true` means the pod's name.
const STICKY: &str = "knit.opdev.io/sticky-addresses";

/// Applies the annotations, if the interface is on the cluster network and the call itself requests no address.
pub(super) fn or_annotated(
    network: &str,
    requested: InterfaceRequest,
    notes: &AttachmentMetadata,
) -> Checked<InterfaceRequest> {
    let is_cluster = network.is_empty() || network == cluster::NAME;
    if !is_cluster || requested.link.is_some() || requested.device.is_some() {
        return Ok(requested);
    }
    let text = |key: &str| notes.annotations.get(key).map(|text| text.trim()).unwrap_or_default();
    let addresses = match requested.addresses.is_empty() {
        true => read(text(FIXED))?,
        false => requested.addresses,
    };
    let sticky = match text(STICKY) {
        "false" => String::new(),
        name => pod_name(&format!("annotations[{STICKY}]"), name)?,
    };
    Ok(InterfaceRequest { addresses, sticky, ..requested })
}

fn read(text: &str) -> Checked<Vec<IpAddr>> {
    let field = format!("annotations[{FIXED}]");
    let mut addresses: Vec<IpAddr> = Vec::new();
    for part in text.split(',').map(str::trim).filter(|_| !text.is_empty()) {
        let invalid_value = |_| invalid(&field, format!("`{}` is not an address", part.escape_debug()));
        let address: IpAddr = part.parse().map_err(invalid_value)?;
        if addresses.contains(&address) {
            return Err(invalid(&field, format!("{address} is listed twice")));
        }
        addresses.push(address);
    }
    check_count(&field, addresses.len())?;
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_annotation(network: &str, annotations: &[(&str, &str)]) -> Result<InterfaceRequest, String> {
        let pairs = annotations.iter().map(|(key, value)| (key.to_string(), value.to_string()));
        let notes = AttachmentMetadata { annotations: pairs.collect(), ..AttachmentMetadata::default() };
        or_annotated(network, InterfaceRequest::default(), &notes).map_err(|why| why.message().to_owned())
    }

    #[test]
    fn annotations_name_addresses_of_the_clusters_network() {
        let requested = from_annotation("", &[(FIXED, "10.1.2.3, fd00::3"), (STICKY, "true")]).unwrap();
        assert_eq!(requested.addresses, ["10.1.2.3".parse::<IpAddr>().unwrap(), "fd00::3".parse().unwrap()]);
        assert_eq!(requested.sticky, "true");
        assert_eq!(from_annotation("", &[(FIXED, ""), (STICKY, "false")]), Ok(InterfaceRequest::default()));
        assert_eq!(
            from_annotation("blue", &[(FIXED, "10.1.2.3")]),
            Ok(InterfaceRequest::default()),
            "it is on another network"
        );
        let own =
            InterfaceRequest { addresses: vec!["10.1.2.9".parse().unwrap()], ..InterfaceRequest::default() };
        let notes = AttachmentMetadata {
            annotations: [(FIXED.to_owned(), "10.1.2.3".to_owned())].into(),
            ..AttachmentMetadata::default()
        };
        assert_eq!(or_annotated("", own.clone(), &notes), Ok(own), "the call takes precedence");
    }

    #[test]
    fn invalid_addresses_are_rejected_with_the_annotation() {
        for (annotation, text, why) in [
            (FIXED, "10.1.2.3/24", "`10.1.2.3/24` is not an address"),
            (FIXED, "10.1.2.3,", "`` is not an address"),
            (FIXED, "10.1.2.3,10.1.2.3", "10.1.2.3 is listed twice"),
            (STICKY, "a/b", "must not contain"),
        ] {
            let rejected = from_annotation("", &[(annotation, text)]).unwrap_err();
            assert!(rejected.contains(why) && rejected.contains(annotation), "{rejected}");
        }
    }
}
