//! Addresses that a pod's annotations ask for: by value, or by a name under which they are kept.

use std::net::IpAddr;

use knit_engine::call::{Asked, Notes};
use knit_engine::cluster;

use super::{Checked, few, invalid, word};

/// Addresses of the cluster's network by value, with commas between them.
const FIXED: &str = "knit.opdev.io/addresses";
/// The name under which addresses are kept; `true` is the pod's own.
const STICKY: &str = "knit.opdev.io/sticky-addresses";

/// Takes what annotations say, where the interface is on the cluster's network and the call itself names no address.
pub(super) fn or_annotated(network: &str, asked: Asked, notes: &Notes) -> Checked<Asked> {
    let is_cluster = network.is_empty() || network == cluster::NAME;
    if !is_cluster || asked.link.is_some() || asked.device.is_some() {
        return Ok(asked);
    }
    let text = |key: &str| notes.annotations.get(key).map(|text| text.trim()).unwrap_or_default();
    let addresses = match asked.addresses.is_empty() {
        true => read(text(FIXED))?,
        false => asked.addresses,
    };
    let sticky = match text(STICKY) {
        "false" => String::new(),
        name => word(&format!("annotations[{STICKY}]"), name)?,
    };
    Ok(Asked { addresses, sticky, ..asked })
}

fn read(text: &str) -> Checked<Vec<IpAddr>> {
    let field = format!("annotations[{FIXED}]");
    let mut addresses: Vec<IpAddr> = Vec::new();
    for part in text.split(',').map(str::trim).filter(|_| !text.is_empty()) {
        let wrong = |_| invalid(&field, format!("`{}` is no address", part.escape_debug()));
        let address: IpAddr = part.parse().map_err(wrong)?;
        if addresses.contains(&address) {
            return Err(invalid(&field, format!("{address} is there twice")));
        }
        addresses.push(address);
    }
    few(&field, addresses.len())?;
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(network: &str, annotations: &[(&str, &str)]) -> Result<Asked, String> {
        let pairs = annotations.iter().map(|(key, value)| (key.to_string(), value.to_string()));
        let notes = Notes { annotations: pairs.collect(), ..Notes::default() };
        or_annotated(network, Asked::default(), &notes).map_err(|why| why.message().to_owned())
    }

    #[test]
    fn annotations_name_addresses_of_the_clusters_network() {
        let asked = said("", &[(FIXED, "10.1.2.3, fd00::3"), (STICKY, "true")]).unwrap();
        assert_eq!(asked.addresses, ["10.1.2.3".parse::<IpAddr>().unwrap(), "fd00::3".parse().unwrap()]);
        assert_eq!(asked.sticky, "true");
        assert_eq!(said("", &[(FIXED, ""), (STICKY, "false")]), Ok(Asked::default()));
        assert_eq!(said("blue", &[(FIXED, "10.1.2.3")]), Ok(Asked::default()), "of another network");
        let own = Asked { addresses: vec!["10.1.2.9".parse().unwrap()], ..Asked::default() };
        let notes =
            Notes { annotations: [(FIXED.to_owned(), "10.1.2.3".to_owned())].into(), ..Notes::default() };
        assert_eq!(or_annotated("", own.clone(), &notes), Ok(own), "the call's own word counts");
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_annotation() {
        for (annotation, text, why) in [
            (FIXED, "10.1.2.3/24", "`10.1.2.3/24` is no address"),
            (FIXED, "10.1.2.3,", "`` is no address"),
            (FIXED, "10.1.2.3,10.1.2.3", "10.1.2.3 is there twice"),
            (STICKY, "a/b", "must not contain"),
        ] {
            let refused = said("", &[(annotation, text)]).unwrap_err();
            assert!(refused.contains(why) && refused.contains(annotation), "{refused}");
        }
    }
}
