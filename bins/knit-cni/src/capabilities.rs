//! Settings for one container: `runtimeConfig`, `args.cni` and DNS.

use std::collections::BTreeMap;

use knit_kni::v1;
use serde_json::Value;

use crate::error::CniError;

/// The prefix of pod annotations that are sent to the agent.
const ANNOTATION_PREFIX: &str = "knit.opdev.io/";

/// The settings for one container.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Capabilities {
    /// Host port mappings.
    pub port_mappings: Vec<v1::PortMapping>,
    /// Bandwidth limits.
    pub bandwidth: Option<v1::Bandwidth>,
    /// Static addresses.
    pub addresses: Vec<String>,
    /// Address ranges: one address is allocated from each set.
    pub range_sets: Vec<v1::RangeSet>,
    /// The PCI id of the device that becomes the interface.
    pub device_id: String,
    /// The MAC address.
    pub mac: String,
    /// DNS servers, search domains and options.
    pub dns: v1::DnsConfig,
    /// The DNS domain.
    pub domain: String,
    /// Labels of the container.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pod with [`ANNOTATION_PREFIX`].
    pub annotations: BTreeMap<String, String>,
    /// Aliases of the container.
    pub aliases: Vec<String>,
    /// Settings that are ignored.
    pub warnings: Vec<String>,
}

impl Capabilities {
    /// Reads `runtimeConfig`. Unknown capabilities are ignored with a warning.
    pub fn read_runtime(&mut self, value: &Value) -> Result<(), CniError> {
        let Some(fields) = value.as_object() else {
            return Err(CniError::invalid_config(
                "runtimeConfig",
                format!("expected an object, not {value}"),
            ));
        };
        for (key, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            let field = format!("runtimeConfig.{key}");
            match key.as_str() {
                "portMappings" => self.port_mappings = port_mappings(&field, value)?,
                "bandwidth" => self.bandwidth = Some(bandwidth(&field, value)?),
                "ips" => self.addresses = texts(&field, value)?,
                "mac" => self.mac = text(&field, value)?,
                "dns" => self.read_dns(&field, value)?,
                "aliases" => self.aliases = texts(&field, value)?,
                "ipRanges" => self.range_sets = range_sets(&field, value)?,
                "io.kubernetes.cri.pod-annotations" => self.annotations = annotations(&field, value)?,
                "deviceID" => self.device_id = text(&field, value)?,
                "infinibandGUID" | "cgroupPath" => {
                    self.warnings.push(format!("{field}: not supported: ignored"));
                }
                _ => self.warnings.push(format!("{}: unknown: ignored", field.escape_debug())),
            }
        }
        Ok(())
    }

    /// Reads `args.cni`.
    pub fn read_args(&mut self, value: &Value) -> Result<(), CniError> {
        let Some(fields) = value.get("cni").and_then(Value::as_object) else { return Ok(()) };
        for (key, value) in fields {
            let field = format!("args.cni.{key}");
            match key.as_str() {
                "ips" => self.addresses = texts(&field, value)?,
                "mac" => self.mac = text(&field, value)?,
                "labels" => {
                    let all = value.as_array().map(Vec::as_slice).unwrap_or_default();
                    for label in all {
                        let text = |name| {
                            field_ignoring_case(label, name).and_then(Value::as_str).unwrap_or_default()
                        };
                        self.labels.insert(text("key").to_owned(), text("value").to_owned());
                    }
                }
                // Arguments for other plugins.
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads DNS settings of the configuration or of the runtime; they use different field names.
    pub fn read_dns(&mut self, field: &str, value: &Value) -> Result<(), CniError> {
        let Some(fields) = value.as_object() else {
            return Err(CniError::invalid_config(field, format!("expected an object, not {value}")));
        };
        let mut dns = v1::DnsConfig::default();
        for (key, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            let field = format!("{field}.{key}");
            match key.to_ascii_lowercase().as_str() {
                "servers" | "nameservers" => dns.servers = texts(&field, value)?,
                "searches" | "search" => dns.searches = texts(&field, value)?,
                "options" => dns.options = texts(&field, value)?,
                "domain" => self.domain = text(&field, value)?,
                _ => self.warnings.push(format!("{}: unknown: ignored", field.escape_debug())),
            }
        }
        self.dns = dns;
        Ok(())
    }
}

/// A field of an object. Some runtimes capitalize field names.
pub(crate) fn field_ignoring_case<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    let fields = value.as_object()?;
    let other_case =
        || fields.iter().find(|(name, _)| name.eq_ignore_ascii_case(key)).map(|(_, value)| value);
    fields.get(key).or_else(other_case)
}

fn text(field: &str, value: &Value) -> Result<String, CniError> {
    let text = value.as_str().map(str::to_owned);
    text.ok_or_else(|| CniError::invalid_config(field, format!("expected a string, not {value}")))
}

fn texts(field: &str, value: &Value) -> Result<Vec<String>, CniError> {
    let all = value
        .as_array()
        .ok_or_else(|| CniError::invalid_config(field, format!("expected a list, not {value}")))?;
    all.iter().map(|value| text(field, value)).collect()
}

fn annotations(field: &str, value: &Value) -> Result<BTreeMap<String, String>, CniError> {
    let all = value
        .as_object()
        .ok_or_else(|| CniError::invalid_config(field, format!("expected an object, not {value}")))?;
    let relevant = all.iter().filter(|(key, _)| key.starts_with(ANNOTATION_PREFIX));
    relevant.map(|(key, value)| Ok((key.clone(), text(&format!("{field}.{key}"), value)?))).collect()
}

fn number(field: &str, value: &Value, key: &str) -> Result<u64, CniError> {
    match field_ignoring_case(value, key) {
        None | Some(Value::Null) => Ok(0),
        Some(number) => {
            let integer = number.as_u64();
            integer.ok_or_else(|| {
                CniError::invalid_config(
                    &format!("{field}.{key}"),
                    format!("expected a number, not {number}"),
                )
            })
        }
    }
}

fn range_sets(field: &str, value: &Value) -> Result<Vec<v1::RangeSet>, CniError> {
    let list = |field: &str, value: &Value| {
        let list = value.as_array().cloned();
        list.ok_or_else(|| CniError::invalid_config(field, format!("expected a list, not {value}")))
    };
    let mut sets = Vec::new();
    for (index, set) in list(field, value)?.iter().enumerate() {
        let field = format!("{field}[{index}]");
        let all = list(&field, set)?;
        let ranges = all.iter().enumerate().map(|(index, value)| range(&format!("{field}[{index}]"), value));
        sets.push(v1::RangeSet { ranges: ranges.collect::<Result<_, _>>()? });
    }
    Ok(sets)
}

fn range(field: &str, value: &Value) -> Result<v1::AddressRange, CniError> {
    if !value.is_object() {
        return Err(CniError::invalid_config(field, format!("expected an object, not {value}")));
    }
    let string = |key: &str| match field_ignoring_case(value, key) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(value) => text(&format!("{field}.{key}"), value),
    };
    Ok(v1::AddressRange {
        subnet: string("subnet")?,
        first: string("rangeStart")?,
        last: string("rangeEnd")?,
        gateway: string("gateway")?,
    })
}

/// Entries without a host port are skipped: the kubelet lists every port of a pod.
fn port_mappings(field: &str, value: &Value) -> Result<Vec<v1::PortMapping>, CniError> {
    let all = value
        .as_array()
        .ok_or_else(|| CniError::invalid_config(field, format!("expected a list, not {value}")))?;
    let mut ports = Vec::new();
    for (index, value) in all.iter().enumerate() {
        let field = format!("{field}[{index}]");
        let port = |key: &str| {
            let number = number(&field, value, key)?;
            let fits = u16::try_from(number).ok().map(u32::from);
            fits.ok_or_else(|| {
                CniError::invalid_config(&format!("{field}.{key}"), format!("invalid port {number}"))
            })
        };
        let protocol = field_ignoring_case(value, "protocol").and_then(Value::as_str).unwrap_or("tcp");
        let protocol = match protocol.to_ascii_lowercase().as_str() {
            "tcp" | "" => v1::Protocol::Tcp,
            "udp" => v1::Protocol::Udp,
            "sctp" => v1::Protocol::Sctp,
            other => {
                let reason = format!("expected tcp, udp or sctp, not `{}`", other.escape_debug());
                return Err(CniError::invalid_config(&format!("{field}.protocol"), reason));
            }
        };
        let host_ip = field_ignoring_case(value, "hostIP").and_then(Value::as_str).unwrap_or_default();
        let mapping = v1::PortMapping {
            protocol: protocol.into(),
            container_port: port("containerPort")?,
            host_port: port("hostPort")?,
            host_ip: host_ip.to_owned(),
        };
        if mapping.host_port != 0 {
            ports.push(mapping);
        }
    }
    Ok(ports)
}

/// Converts bursts from bits to bytes. containerd sets the burst to [`u32::MAX`] if none is configured.
fn bandwidth(field: &str, value: &Value) -> Result<v1::Bandwidth, CniError> {
    const UNSET: u64 = u32::MAX as u64;
    let burst = |key: &str| {
        let bits = number(field, value, key)?;
        Ok(if bits == UNSET { 0 } else { bits / 8 })
    };
    Ok(v1::Bandwidth {
        ingress_bits: number(field, value, "ingressRate")?,
        egress_bits: number(field, value, "egressRate")?,
        ingress_burst_bytes: burst("ingressBurst")?,
        egress_burst_bytes: burst("egressBurst")?,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn capabilities_are_parsed_or_ignored_with_a_warning() {
        let mut capabilities = Capabilities::default();
        let value = json!({
            "portMappings": [
                {"hostPort": 8080, "containerPort": 80, "protocol": "TCP"},
                {"hostPort": 0, "containerPort": 81},
                {"hostPort": 53, "containerPort": 53, "protocol": "udp", "hostIP": "10.0.0.1"},
            ],
            "bandwidth": {"ingressRate": 1000, "ingressBurst": 800, "egressRate": 2000, "egressBurst": 1600},
            "ips": ["10.75.3.4/16"], "mac": "02:00:00:00:00:01",
            "dns": {"servers": ["1.1.1.1"], "searches": ["a.b"], "options": ["ndots:5"]},
            "aliases": ["db"], "deviceID": "0000:00:1f.6",
            "ipRanges": [[{"subnet": "10.1.0.0/16", "rangeStart": "10.1.0.5", "gateway": null}], [{"subnet": "fd00::/64"}]],
            "io.kubernetes.cri.pod-annotations": {"knit.opdev.io/addresses": "10.1.0.9", "someone.else/x": "1"},
            "infinibandGUID": "c2:11", "cgroupPath": "/a", "new": 1, "none": null,
        });
        capabilities.read_runtime(&value).unwrap();
        assert_eq!(capabilities.port_mappings.len(), 2);
        assert_eq!(capabilities.port_mappings[1].protocol, i32::from(v1::Protocol::Udp));
        let limits = capabilities.bandwidth.unwrap();
        assert_eq!((limits.ingress_bits, limits.egress_burst_bytes), (1000, 200));
        assert_eq!(
            (capabilities.addresses.len(), capabilities.mac.len(), capabilities.dns.options.len()),
            (1, 17, 1)
        );
        assert_eq!((capabilities.device_id.as_str(), capabilities.range_sets.len()), ("0000:00:1f.6", 2));
        let range = &capabilities.range_sets[0].ranges[0];
        assert_eq!((range.subnet.as_str(), range.first.as_str()), ("10.1.0.0/16", "10.1.0.5"));
        assert_eq!((range.last.as_str(), range.gateway.as_str()), ("", ""));
        let annotations: Vec<(&str, &str)> =
            capabilities.annotations.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(annotations, [("knit.opdev.io/addresses", "10.1.0.9")]);
        assert_eq!(capabilities.warnings.len(), 3, "{:?}", capabilities.warnings);
        for name in ["infinibandGUID", "cgroupPath", "new"] {
            assert!(capabilities.warnings.iter().any(|warning| warning.contains(name)), "{name}");
        }
    }

    #[test]
    fn the_runtime_config_of_containerd_is_parsed() {
        let mut capabilities = Capabilities::default();
        let value = json!({
            "bandwidth": {
                "IngressRate": 20_000_000, "IngressBurst": 4_294_967_295_u32,
                "EgressRate": 10_000_000, "EgressBurst": 4_294_967_295_u32,
            },
            "dns": {"Servers": ["10.96.0.10"], "Searches": null, "Options": ["ndots:5"]},
            "portMappings": [{"HostPort": 31080, "ContainerPort": 8080, "Protocol": "tcp", "HostIP": ""}],
        });
        capabilities.read_runtime(&value).unwrap();
        assert_eq!(
            (capabilities.port_mappings[0].host_port, capabilities.port_mappings[0].container_port),
            (31080, 8080)
        );
        let limits = capabilities.bandwidth.unwrap();
        assert_eq!((limits.ingress_bits, limits.egress_bits), (20_000_000, 10_000_000));
        assert_eq!((limits.ingress_burst_bytes, limits.egress_burst_bytes), (0, 0));
        assert_eq!(capabilities.dns.servers, ["10.96.0.10"]);
    }

    #[test]
    fn values_of_another_type_are_rejected_with_their_field() {
        for (value, field) in [
            (json!([]), "runtimeConfig"),
            (json!({"portMappings": {}}), "runtimeConfig.portMappings"),
            (json!({"portMappings": [{"hostPort": 70000}]}), "runtimeConfig.portMappings[0].hostPort"),
            (json!({"portMappings": [{"protocol": "x"}]}), "runtimeConfig.portMappings[0].protocol"),
            (json!({"bandwidth": {"ingressRate": -1}}), "runtimeConfig.bandwidth.ingressRate"),
            (json!({"ips": [1]}), "runtimeConfig.ips"),
            (json!({"deviceID": 7}), "runtimeConfig.deviceID"),
            (json!({"ipRanges": {}}), "runtimeConfig.ipRanges"),
            (json!({"ipRanges": [{"subnet": "10.1.0.0/16"}]}), "runtimeConfig.ipRanges[0]"),
            (json!({"ipRanges": [["10.1.0.0/16"]]}), "runtimeConfig.ipRanges[0][0]"),
            (json!({"ipRanges": [[{"rangeEnd": 7}]]}), "runtimeConfig.ipRanges[0][0].rangeEnd"),
            (
                json!({"io.kubernetes.cri.pod-annotations": []}),
                "runtimeConfig.io.kubernetes.cri.pod-annotations",
            ),
            (json!({"mac": 1}), "runtimeConfig.mac"),
            (json!({"dns": []}), "runtimeConfig.dns"),
        ] {
            let error = Capabilities::default().read_runtime(&value).unwrap_err();
            assert!(error.message.contains(field), "{}", error.message);
        }
    }
}
