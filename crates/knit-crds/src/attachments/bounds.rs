//! What plugins of a list may do on the node. They run as root there with the configuration of a tenant: of well-known
//! plugins only fields are accepted with which a tenant affects its own pods and networks. What another plugin accepts is
//! the decision of the admin who allows its type.

use knit_model::problem::Reason;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::EntryError;
use super::config::Plugin;
use super::kinds;
use crate::sysctls;

/// Fields that every plugin has.
const COMMON: [&str; 6] = ["cniVersion", "name", "type", "capabilities", "dns", "args"];
const BRIDGE: [&str; 10] = [
    "bridge",
    "ipam",
    "mac",
    "mtu",
    "hairpinMode",
    "macspoofchk",
    "vlan",
    "vlanTrunk",
    "preserveDefaultVlan",
    "enabledad",
];
const TUNING: [&str; 6] = ["mtu", "mac", "promisc", "allmulti", "txQLen", "sysctl"];
/// Not `dataDir` and `resolvConf`, which are paths on the node.
const HOST_LOCAL: [&str; 6] = ["subnet", "rangeStart", "rangeEnd", "gateway", "routes", "ranges"];
const STATIC: [&str; 2] = ["addresses", "routes"];
const DHCP: [&str; 2] = ["request", "provide"];
const WHEREABOUTS: [&str; 8] =
    ["range", "range_start", "range_end", "exclude", "gateway", "ipRanges", "network_name", "routes"];

/// Letters of names that are derived from a digest: five bits each.
const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// The configuration of a plugin of a list, restricted to the networks of `namespace`.
pub(super) fn bounded(plugin: &Plugin, namespace: &str) -> Result<Map<String, Value>, EntryError> {
    let mut fields = plugin.0.clone();
    match plugin.kind() {
        "bridge" => {
            only(&fields, "bridge", &[&COMMON[..], &BRIDGE].concat())?;
            let name = fields.get("bridge").and_then(Value::as_str).unwrap_or("cni0");
            let name = bridge_name(namespace, name);
            fields.insert("bridge".to_owned(), json!(name));
        }
        "tuning" => {
            only(&fields, "tuning", &[&COMMON[..], &TUNING].concat())?;
            check_sysctls(&fields)?;
        }
        kind if kinds::is_known(kind) => {
            return Err(not_allowed(format!(
                "plugin {kind} must be the only one of its definition: in a list, its use of the node's network is not checked"
            )));
        }
        _ => {}
    }
    let known = match plugin.ipam() {
        "host-local" => &HOST_LOCAL[..],
        "static" => &STATIC,
        "dhcp" => &DHCP,
        "whereabouts" => &WHEREABOUTS,
        _ => return Ok(fields),
    };
    if let Some(Value::Object(ipam)) = fields.get("ipam") {
        only(ipam, "ipam", &[&["type"][..], known].concat())?;
    }
    Ok(fields)
}

/// The name of a plugin's bridge on the node: of each namespace its own, and none of the host's. It has 65 bits of a
/// digest, so that nobody finds a name of his own with the same result.
fn bridge_name(namespace: &str, name: &str) -> String {
    let digest = Sha256::digest(format!("{namespace}/{name}"));
    let bits = digest.iter().take(9).fold(0u128, |bits, byte| bits << 8 | u128::from(*byte));
    let letters = (0..13).map(|at| char::from(LETTERS[(bits >> (5 * at)) as usize & 31]));
    letters.fold("kn".to_owned(), |name, letter| name + letter.encode_utf8(&mut [0; 4]))
}

fn only(fields: &Map<String, Value>, what: &str, known: &[&str]) -> Result<(), EntryError> {
    match fields.keys().find(|key| !known.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => Err(not_allowed(format!("field {} of {what} is not allowed", key.escape_debug()))),
    }
}

/// Only safe sysctls. `IFNAME` is the interface.
fn check_sysctls(fields: &Map<String, Value>) -> Result<(), EntryError> {
    let Some(sysctls) = fields.get("sysctl") else { return Ok(()) };
    let Value::Object(all) = sysctls else { return Err(not_allowed("sysctl must be an object".to_owned())) };
    for (name, value) in all {
        let checked = match value.as_str() {
            None => Err(format!("must be a string, got {value}")),
            Some(value) => sysctls::read(&name.replace('/', "."), value).map(drop),
        };
        checked.map_err(|why| not_allowed(format!("sysctl {}: {why}", name.escape_debug())))?;
    }
    Ok(())
}

fn not_allowed(message: String) -> EntryError {
    (Reason::NotAllowed, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(config: Value) -> Result<Value, String> {
        let Value::Object(fields) = config else { panic!("{config}") };
        bounded(&Plugin(fields), "shop").map(Value::Object).map_err(|(reason, message)| {
            assert_eq!(reason, Reason::NotAllowed);
            message
        })
    }

    #[test]
    fn a_bridge_of_a_list_has_a_name_of_its_namespace() {
        let name = |namespace: &str, bridge: &str| bridge_name(namespace, bridge);
        assert_eq!(name("shop", "br0"), name("shop", "br0"));
        assert_ne!(name("shop", "br0"), name("lab", "br0"));
        assert_eq!(name("shop", "br0").len(), 15);
        let bridge = bound(json!({"type": "bridge", "bridge": "docker0", "mtu": 1400})).unwrap();
        assert_eq!(bridge, json!({"type": "bridge", "bridge": name("shop", "docker0"), "mtu": 1400}));
        // The plugin's default is a bridge that others use too.
        assert_eq!(bound(json!({"type": "bridge"})).unwrap()["bridge"], json!(name("shop", "cni0")));
    }

    #[test]
    fn fields_that_reach_beyond_the_tenant_are_rejected() {
        for (config, why) in [
            (json!({"type": "bridge", "isGateway": true}), "field isGateway of bridge is not allowed"),
            (json!({"type": "bridge", "ipMasq": true}), "field ipMasq of bridge is not allowed"),
            (
                json!({"type": "mine", "ipam": {"type": "host-local", "dataDir": "/etc"}}),
                "field dataDir of ipam is not allowed",
            ),
            (
                json!({"type": "mine", "ipam": {"type": "host-local", "resolvConf": "/etc/shadow"}}),
                "field resolvConf of ipam is not allowed",
            ),
            (
                json!({"type": "mine", "ipam": {"type": "dhcp", "daemonSocketPath": "/run/x"}}),
                "field daemonSocketPath of ipam is not allowed",
            ),
            (json!({"type": "tuning", "dataDir": "/etc"}), "field dataDir of tuning is not allowed"),
            (
                json!({"type": "tuning", "sysctl": {"net.core.somaxconn": "1"}}),
                "sysctl net.core.somaxconn: not an allowed sysctl",
            ),
            (json!({"type": "tuning", "sysctl": {"net.ipv4.ip_forward": 1}}), "must be a string, got 1"),
            (json!({"type": "macvlan", "master": "eth0"}), "plugin macvlan must be the only one"),
            (json!({"type": "ptp"}), "plugin ptp must be the only one"),
        ] {
            let message = bound(config.clone()).unwrap_err();
            assert!(message.contains(why), "{config}: {message}");
        }
    }

    #[test]
    fn fields_of_the_tenants_own_network_are_accepted() {
        for config in [
            json!({"type": "tuning", "mtu": 1300, "sysctl": {"net/ipv4/conf/IFNAME/arp_filter": "1"}}),
            json!({"type": "mine", "anything": 1, "ipam": {"type": "static", "addresses": []}}),
            json!({"type": "mine", "ipam": {"type": "host-local", "subnet": "10.0.0.0/24", "routes": []}}),
        ] {
            assert_eq!(bound(config.clone()), Ok(config));
        }
    }
}
