//! What a runtime asks for one container: capabilities, arguments and resolver settings.

use std::collections::BTreeMap;

use knit_kni::v1;
use serde_json::Value;

use crate::failure::Failure;

/// Annotations of the pod with this prefix are the agent's business, and no others.
const ANNOTATIONS: &str = "knit.opdev.io/";

/// What is asked for one container.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Capabilities {
    /// Ports of the node that lead to the container.
    pub ports: Vec<v1::PortMapping>,
    /// Limits.
    pub bandwidth: Option<v1::Bandwidth>,
    /// Addresses by value.
    pub addresses: Vec<String>,
    /// Where addresses are looked for: one of each set.
    pub sets: Vec<v1::RangeSet>,
    /// The device that becomes the interface.
    pub device: String,
    /// The hardware address.
    pub mac: String,
    /// What the container's resolver should use, and its own domain.
    pub dns: v1::DnsConfig,
    /// The domain that the resolver's names end with.
    pub domain: String,
    /// Labels of the container.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pod that mean something to the agent.
    pub annotations: BTreeMap<String, String>,
    /// Other names of the container on the network.
    pub aliases: Vec<String>,
    /// What is not acted on.
    pub words: Vec<String>,
}

impl Capabilities {
    /// Reads `runtimeConfig`. A capability that is not known is not acted on, and that is said.
    pub fn read_runtime(&mut self, value: &Value) -> Result<(), Failure> {
        let Some(fields) = value.as_object() else {
            return Err(Failure::config("runtimeConfig", format!("{value} is no JSON object")));
        };
        for (key, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            let field = format!("runtimeConfig.{key}");
            match key.as_str() {
                "portMappings" => self.ports = ports(&field, value)?,
                "bandwidth" => self.bandwidth = Some(bandwidth(&field, value)?),
                "ips" => self.addresses = texts(&field, value)?,
                "mac" => self.mac = text(&field, value)?,
                "dns" => self.read_dns(&field, value)?,
                "aliases" => self.aliases = texts(&field, value)?,
                "ipRanges" => self.sets = sets(&field, value)?,
                "io.kubernetes.cri.pod-annotations" => self.annotations = annotations(&field, value)?,
                "deviceID" => self.device = text(&field, value)?,
                "infinibandGUID" | "cgroupPath" => {
                    self.words.push(format!("{field}: not acted on: ignored"));
                }
                _ => self.words.push(format!("{}: not known: ignored", field.escape_debug())),
            }
        }
        Ok(())
    }

    /// Reads `args.cni`: what people ask for by hand.
    pub fn read_args(&mut self, value: &Value) -> Result<(), Failure> {
        let Some(fields) = value.get("cni").and_then(Value::as_object) else { return Ok(()) };
        for (key, value) in fields {
            let field = format!("args.cni.{key}");
            match key.as_str() {
                "ips" => self.addresses = texts(&field, value)?,
                "mac" => self.mac = text(&field, value)?,
                "labels" => {
                    let all = value.as_array().map(Vec::as_slice).unwrap_or_default();
                    for label in all {
                        let word = |name| part(label, name).and_then(Value::as_str).unwrap_or_default();
                        self.labels.insert(word("key").to_owned(), word("value").to_owned());
                    }
                }
                // Arguments are for whoever understands them.
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads resolver settings, of the configuration or of the runtime: they spell them differently.
    pub fn read_dns(&mut self, field: &str, value: &Value) -> Result<(), Failure> {
        let Some(fields) = value.as_object() else {
            return Err(Failure::config(field, format!("{value} is no JSON object")));
        };
        let mut dns = v1::DnsConfig::default();
        for (key, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            let field = format!("{field}.{key}");
            match key.to_ascii_lowercase().as_str() {
                "servers" | "nameservers" => dns.servers = texts(&field, value)?,
                "searches" | "search" => dns.searches = texts(&field, value)?,
                "options" => dns.options = texts(&field, value)?,
                "domain" => self.domain = text(&field, value)?,
                _ => self.words.push(format!("{}: not known: ignored", field.escape_debug())),
            }
        }
        self.dns = dns;
        Ok(())
    }
}

/// A field of an object. Runtimes spell the same field with a small or a capital first letter.
pub(crate) fn part<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    let fields = value.as_object()?;
    let other_case =
        || fields.iter().find(|(known, _)| known.eq_ignore_ascii_case(key)).map(|(_, part)| part);
    fields.get(key).or_else(other_case)
}

fn text(field: &str, value: &Value) -> Result<String, Failure> {
    let text = value.as_str().map(str::to_owned);
    text.ok_or_else(|| Failure::config(field, format!("{value} is no text")))
}

fn texts(field: &str, value: &Value) -> Result<Vec<String>, Failure> {
    let all = value.as_array().ok_or_else(|| Failure::config(field, format!("{value} is no list")))?;
    all.iter().map(|value| text(field, value)).collect()
}

fn annotations(field: &str, value: &Value) -> Result<BTreeMap<String, String>, Failure> {
    let all =
        value.as_object().ok_or_else(|| Failure::config(field, format!("{value} is no JSON object")))?;
    let meant = all.iter().filter(|(key, _)| key.starts_with(ANNOTATIONS));
    meant.map(|(key, value)| Ok((key.clone(), text(&format!("{field}.{key}"), value)?))).collect()
}

fn number(field: &str, value: &Value, key: &str) -> Result<u64, Failure> {
    match part(value, key) {
        None | Some(Value::Null) => Ok(0),
        Some(number) => {
            let whole = number.as_u64();
            whole.ok_or_else(|| Failure::config(&format!("{field}.{key}"), format!("{number} is no number")))
        }
    }
}

/// Sets of ranges: an address of each.
fn sets(field: &str, value: &Value) -> Result<Vec<v1::RangeSet>, Failure> {
    let list = |field: &str, value: &Value| {
        let list = value.as_array().cloned();
        list.ok_or_else(|| Failure::config(field, format!("{value} is no list")))
    };
    let mut sets = Vec::new();
    for (at, set) in list(field, value)?.iter().enumerate() {
        let field = format!("{field}[{at}]");
        let all = list(&field, set)?;
        let ranges = all.iter().enumerate().map(|(of, one)| range(&format!("{field}[{of}]"), one));
        sets.push(v1::RangeSet { ranges: ranges.collect::<Result<_, _>>()? });
    }
    Ok(sets)
}

fn range(field: &str, value: &Value) -> Result<v1::AddressRange, Failure> {
    if !value.is_object() {
        return Err(Failure::config(field, format!("{value} is no JSON object")));
    }
    let word = |key: &str| match part(value, key) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(word) => text(&format!("{field}.{key}"), word),
    };
    Ok(v1::AddressRange {
        subnet: word("subnet")?,
        first: word("rangeStart")?,
        last: word("rangeEnd")?,
        gateway: word("gateway")?,
    })
}

/// Ports without one on the node are no mappings: a kubelet lists every port of a pod.
fn ports(field: &str, value: &Value) -> Result<Vec<v1::PortMapping>, Failure> {
    let all = value.as_array().ok_or_else(|| Failure::config(field, format!("{value} is no list")))?;
    let mut ports = Vec::new();
    for (at, value) in all.iter().enumerate() {
        let field = format!("{field}[{at}]");
        let port = |key: &str| {
            let number = number(&field, value, key)?;
            let fits = u16::try_from(number).ok().map(u32::from);
            fits.ok_or_else(|| Failure::config(&format!("{field}.{key}"), format!("{number} is no port")))
        };
        let protocol = part(value, "protocol").and_then(Value::as_str).unwrap_or("tcp");
        let protocol = match protocol.to_ascii_lowercase().as_str() {
            "tcp" | "" => v1::Protocol::Tcp,
            "udp" => v1::Protocol::Udp,
            "sctp" => v1::Protocol::Sctp,
            other => {
                let why = format!("`{}` is none of tcp, udp and sctp", other.escape_debug());
                return Err(Failure::config(&format!("{field}.protocol"), why));
            }
        };
        let host_ip = part(value, "hostIP").and_then(Value::as_str).unwrap_or_default();
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

/// Rates and bursts are bits here, and bursts are bytes to the agent. What containerd says of every pod means that nobody
/// said anything: a burst like that would be no limit.
fn bandwidth(field: &str, value: &Value) -> Result<v1::Bandwidth, Failure> {
    const UNSAID: u64 = u32::MAX as u64;
    let burst = |key: &str| {
        let bits = number(field, value, key)?;
        Ok(if bits == UNSAID { 0 } else { bits / 8 })
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
    fn everything_that_runtimes_ask_for_is_understood_or_said_to_be_ignored() {
        let mut asked = Capabilities::default();
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
        asked.read_runtime(&value).unwrap();
        assert_eq!(asked.ports.len(), 2);
        assert_eq!(asked.ports[1].protocol, i32::from(v1::Protocol::Udp));
        let limits = asked.bandwidth.unwrap();
        assert_eq!((limits.ingress_bits, limits.egress_burst_bytes), (1000, 200));
        assert_eq!((asked.addresses.len(), asked.mac.len(), asked.dns.options.len()), (1, 17, 1));
        assert_eq!((asked.device.as_str(), asked.sets.len()), ("0000:00:1f.6", 2));
        let range = &asked.sets[0].ranges[0];
        assert_eq!((range.subnet.as_str(), range.first.as_str()), ("10.1.0.0/16", "10.1.0.5"));
        assert_eq!((range.last.as_str(), range.gateway.as_str()), ("", ""));
        let annotations: Vec<(&str, &str)> =
            asked.annotations.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(annotations, [("knit.opdev.io/addresses", "10.1.0.9")]);
        assert_eq!(asked.words.len(), 3, "{:?}", asked.words);
        for word in ["infinibandGUID", "cgroupPath", "new"] {
            assert!(asked.words.iter().any(|words| words.contains(word)), "{word}");
        }
    }

    #[test]
    fn what_containerd_writes_is_understood() {
        let mut asked = Capabilities::default();
        let value = json!({
            "bandwidth": {
                "IngressRate": 20_000_000, "IngressBurst": 4_294_967_295_u32,
                "EgressRate": 10_000_000, "EgressBurst": 4_294_967_295_u32,
            },
            "dns": {"Servers": ["10.96.0.10"], "Searches": null, "Options": ["ndots:5"]},
            "portMappings": [{"HostPort": 31080, "ContainerPort": 8080, "Protocol": "tcp", "HostIP": ""}],
        });
        asked.read_runtime(&value).unwrap();
        assert_eq!((asked.ports[0].host_port, asked.ports[0].container_port), (31080, 8080));
        let limits = asked.bandwidth.unwrap();
        assert_eq!((limits.ingress_bits, limits.egress_bits), (20_000_000, 10_000_000));
        assert_eq!((limits.ingress_burst_bytes, limits.egress_burst_bytes), (0, 0));
        assert_eq!(asked.dns.servers, ["10.96.0.10"]);
    }

    #[test]
    fn a_value_of_another_type_is_refused_with_its_field() {
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
            let failure = Capabilities::default().read_runtime(&value).unwrap_err();
            assert!(failure.message.contains(field), "{}", failure.message);
        }
    }
}
