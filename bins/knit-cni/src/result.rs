//! The result of an ADD in each CNI version.

use knit_kni::v1;
use serde_json::{Map, Value, json};

use crate::prev_result::PrevResult;
use crate::version::Version;

/// The result of the previous plugins with the new interface appended.
pub(crate) fn add_result(
    interface: &v1::Interface,
    netns: &str,
    dns: Option<Value>,
    version: Version,
    prev_result: Option<PrevResult>,
) -> String {
    let mut fields = prev_result.unwrap_or_default().into_fields();
    fields.insert("cniVersion".to_owned(), json!(version.as_str()));
    let interfaces = list(&mut fields, "interfaces");
    if !interface.host_link.is_empty() {
        interfaces.push(json!({ "name": interface.host_link }));
    }
    let mut container_side = json!({ "name": interface.name, "mac": interface.mac, "sandbox": netns });
    if version >= Version::V1_1_0 && interface.mtu > 0 {
        container_side["mtu"] = json!(interface.mtu);
    }
    if version >= Version::V1_1_0 && !interface.device_id.is_empty() {
        container_side["pciID"] = json!(interface.device_id);
    }
    let index = interfaces.len();
    interfaces.push(container_side);
    list(&mut fields, "ips").extend(interface.addresses.iter().map(|item| address(item, index, version)));
    list(&mut fields, "routes").extend(interface.routes.iter().map(|item| route(item, version)));
    if let Some(dns) = dns {
        fields.insert("dns".to_owned(), dns);
    }
    Value::Object(fields).to_string()
}

/// The DNS settings, if any.
pub(crate) fn dns(dns: &v1::DnsConfig, domain: &str) -> Option<Value> {
    let mut fields = Map::new();
    for (key, list) in [("nameservers", &dns.servers), ("search", &dns.searches), ("options", &dns.options)] {
        if !list.is_empty() {
            fields.insert(key.to_owned(), json!(list));
        }
    }
    if !domain.is_empty() {
        fields.insert("domain".to_owned(), json!(domain));
    }
    (!fields.is_empty()).then_some(Value::Object(fields))
}

/// A list of the result, created if missing.
fn list<'a>(fields: &'a mut Map<String, Value>, name: &str) -> &'a mut Vec<Value> {
    let value = fields.entry(name).or_insert_with(|| json!([]));
    if value.is_null() {
        *value = json!([]);
    }
    value.as_array_mut().expect("PrevResult::read accepts only lists")
}

fn address(address: &v1::Address, index: usize, version: Version) -> Value {
    let mut value = json!({
        "address": format!("{}/{}", address.address, address.prefix_length),
        "interface": index,
    });
    if !address.gateway.is_empty() {
        value["gateway"] = json!(address.gateway);
    }
    if version < Version::V1_0_0 {
        value["version"] = json!(if address.address.contains(':') { "6" } else { "4" });
    }
    value
}

fn route(route: &v1::Route, version: Version) -> Value {
    let mut value = json!({ "dst": route.destination });
    if !route.gateway.is_empty() {
        value["gw"] = json!(route.gateway);
    }
    if version >= Version::V1_1_0 {
        for (key, number) in [("priority", route.metric), ("table", route.table), ("mtu", route.mtu)] {
            if number > 0 {
                value[key] = json!(number);
            }
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface() -> v1::Interface {
        v1::Interface {
            name: "eth0".to_owned(),
            mac: "02:00:00:00:00:01".to_owned(),
            mtu: 1500,
            host_link: "knit1".to_owned(),
            device_id: "0000:00:1f.6".to_owned(),
            addresses: vec![
                v1::Address {
                    address: "10.75.0.2".to_owned(),
                    prefix_length: 16,
                    gateway: "10.75.0.1".to_owned(),
                    ..Default::default()
                },
                v1::Address { address: "fd75::2".to_owned(), prefix_length: 64, ..Default::default() },
            ],
            routes: vec![v1::Route {
                destination: "0.0.0.0/0".to_owned(),
                gateway: "10.75.0.1".to_owned(),
                metric: 7,
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    fn result(version: Version, prev_result: Option<Value>) -> Value {
        let prev_result = prev_result.map(|prev_result| PrevResult::read(&prev_result).unwrap());
        let text = add_result(&interface(), "/run/netns/a", None, version, prev_result);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn fields_depend_on_the_version() {
        for version in Version::ALL {
            let result = result(version, None);
            assert_eq!(result["cniVersion"], version.as_str());
            let old = version < Version::V1_0_0;
            assert_eq!(result["ips"][0].get("version").is_some(), old, "{version:?}");
            assert_eq!(result["ips"][0]["interface"], 1);
            let new = version >= Version::V1_1_0;
            assert_eq!(result["interfaces"][1].get("mtu").is_some(), new, "{version:?}");
            assert_eq!(result["interfaces"][1].get("pciID").is_some(), new, "{version:?}");
            assert_eq!(result["routes"][0].get("priority").is_some(), new, "{version:?}");
        }
        assert_eq!(result(Version::V0_3_1, None)["ips"][1]["version"], "6");
    }

    #[test]
    fn the_previous_result_comes_first_and_is_unchanged() {
        let prev_result = json!({
            "cniVersion": "1.1.0",
            "interfaces": [{"name": "eth9", "sandbox": "/run/netns/a", "pciID": "x"}],
            "ips": [{"address": "192.0.2.2/24", "interface": 0}],
            "routes": null,
            "dns": {"nameservers": ["192.0.2.1"]},
        });
        let merged = result(Version::V1_1_0, Some(prev_result.clone()));
        assert_eq!(merged["interfaces"][0], prev_result["interfaces"][0]);
        assert_eq!(merged["ips"][0], prev_result["ips"][0]);
        assert_eq!(merged["ips"][1]["interface"], 2, "after the previous interface and the host side");
        assert_eq!(merged["interfaces"][2]["name"], "eth0");
        assert_eq!(merged["dns"], prev_result["dns"]);
    }
}
