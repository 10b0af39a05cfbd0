//! Validates and translates requests for the engine. Errors name the field.

mod addresses;
pub(crate) mod bandwidth;
mod device;
mod isolation;
mod link;
mod ranges;

use std::collections::BTreeSet;
use std::net::IpAddr;

use knit_engine::CallId;
use knit_engine::call::{
    AttachRequest, AttachmentMetadata, DetachRequest, DetachScope, DnsConfig, InterfaceRequest, PortMapping,
    SandboxRequest,
};
use knit_kni::v1::collect_garbage_request::Garbage;
use knit_kni::{Reason, RpcError, kni, v1};
use knit_model::intent::InterfaceIntent;
use knit_model::link::{Attrs, OwnerId};
use knit_model::provenance::Dialect;
use knit_model::{IfName, Mac, SandboxId};

/// Upper bound of each list or map in a call.
const MAX_ENTRIES: usize = 256;
/// The longest id, name or namespace, in bytes.
const MAX_NAME: usize = 253;
/// A pod's first interface.
pub(super) const FIRST_INTERFACE: &str = "eth0";

pub(super) type Checked<T> = Result<T, RpcError>;

/// Sandboxes with an interface each, or with all of them.
pub(super) type LivingAttachments = BTreeSet<(SandboxId, Option<IfName>)>;

pub(super) fn invalid(field: &str, message: impl Into<String>) -> RpcError {
    RpcError::new(Reason::InvalidValue, format!("{field}: {}", message.into())).field(field)
}

/// Validates a sandbox's id: letters, digits, `.`, `_` and `-`, as runtimes generate them.
pub(super) fn id(field: &str, id: &str) -> Checked<String> {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-');
    if id.is_empty() {
        return Err(invalid(field, "required"));
    }
    if id.len() > MAX_NAME {
        return Err(invalid(field, format!("an id has at most {MAX_NAME} bytes, this one has {}", id.len())));
    }
    if let Some(letter) = id.chars().find(|letter| !fits(*letter)) {
        let message = format!("`{}` must not contain {letter:?}", id.escape_debug());
        return Err(invalid(field, message));
    }
    if !id.starts_with(|letter: char| letter.is_ascii_alphanumeric()) {
        return Err(invalid(field, format!("`{id}` must begin with a letter or digit")));
    }
    Ok(id.to_owned())
}

/// Validates a pod's name or namespace; it may be empty.
pub(super) fn pod_name(field: &str, text: &str) -> Checked<String> {
    let fits = |letter: char| !letter.is_control() && !letter.is_whitespace() && letter != '/';
    match text.chars().find(|letter| !fits(*letter)) {
        Some(letter) => Err(invalid(field, format!("`{}` must not contain {letter:?}", text.escape_debug()))),
        None if text.len() > MAX_NAME => Err(invalid(field, format!("longer than {MAX_NAME} bytes"))),
        None => Ok(text.to_owned()),
    }
}

/// Validates an interface's name.
pub(super) fn interface(field: &str, name: &str) -> Checked<IfName> {
    IfName::new(name).map_err(|why| invalid(field, why.to_string()))
}

/// Validates the path of a namespace. The file is opened later.
pub(super) fn path(field: &str, path: &str) -> Checked<String> {
    let bad = path.contains('\0') || path.split('/').any(|part| part == "..");
    if bad || (!path.is_empty() && !path.starts_with('/')) {
        let message = format!("`{}` is not an absolute path without `..`", path.escape_debug());
        return Err(invalid(field, message));
    }
    Ok(path.to_owned())
}

pub(super) fn check_count(field: &str, count: usize) -> Checked<()> {
    if count > MAX_ENTRIES {
        return Err(invalid(field, format!("has {count} entries, at most {MAX_ENTRIES} are allowed")));
    }
    Ok(())
}

/// The path of a created namespace: derived from the pod's identity, so that a repeated request finds it.
pub(super) fn netns_path_for(folder: &str, default: &str, of: [&str; 3]) -> Checked<String> {
    let folder = path("netns_path_prefix", folder)?;
    let folder = if folder.is_empty() { default.to_owned() } else { folder };
    let OwnerId(id) = OwnerId::derived(&of.join("/"));
    Ok(format!("{}/knit-{id}", folder.trim_end_matches('/')))
}

/// Translates a sandbox of knit.v1.
pub(super) fn sandbox(spec: Option<v1::SandboxSpec>) -> Checked<SandboxRequest> {
    let Some(spec) = spec else { return Err(invalid("sandbox", "required")) };
    check_count("sandbox.labels", spec.labels.len())?;
    check_count("sandbox.annotations", spec.annotations.len())?;
    let (netns, machine) = isolation::of_sandbox(spec.isolation)?;
    Ok(SandboxRequest {
        id: id("sandbox.id", &spec.id)?,
        netns,
        machine,
        pod: pod_name("sandbox.name", &spec.name)?,
        namespace: pod_name("sandbox.namespace", &spec.namespace)?,
        uid: pod_name("sandbox.uid", &spec.uid)?,
        labels: spec.labels,
    })
}

/// Translates an attach of knit.v1.
pub(super) fn attach(call: &CallId, request: v1::AttachRequest) -> Checked<AttachRequest> {
    let annotations = request.sandbox.as_ref().map(|sandbox| sandbox.annotations.clone()).unwrap_or_default();
    let sandbox_request = sandbox(request.sandbox)?;
    check_count("interfaces", request.interfaces.len())?;
    let dialect = match request.dialect.as_str() {
        "" | "kni" => Dialect::Kni,
        "cni" => Dialect::Cni,
        other => return Err(invalid("dialect", format!("`{other}` is neither kni nor cni"))),
    };
    let specs =
        if request.interfaces.is_empty() { vec![v1::InterfaceSpec::default()] } else { request.interfaces };
    let v1::DnsConfig { servers, searches, options } = request.dns.unwrap_or_default();
    let mut notes = AttachmentMetadata {
        dns: DnsConfig { servers, searches, options },
        annotations,
        ..AttachmentMetadata::default()
    };
    notes.group = pod_name("group", &request.group)?;
    let mut interfaces = Vec::new();
    for (index, spec) in specs.into_iter().enumerate() {
        let field = format!("interfaces[{index}]");
        let mut interface = requested(&field, index, spec)?;
        if index == 0 {
            // A pod's annotations apply to its first interface, unless the request overrides them.
            let (name, network, mut requested) = interface;
            requested.limits = bandwidth::or_annotated(requested.limits, &notes)?;
            let requested = addresses::or_annotated(&network, requested, &notes)?;
            interface = (name, network, requested);
        }
        interfaces.push(interface);
    }
    let mut names: Vec<&IfName> = interfaces.iter().map(|(name, ..)| name).collect();
    names.sort();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(invalid("interfaces", format!("{} is requested twice", twice[0])));
    }
    Ok(AttachRequest {
        call: call.clone(),
        dialect,
        sandbox: sandbox_request,
        interfaces,
        metadata: notes,
        fail_if_present: request.fail_if_present,
        ticket: 0,
        started_at: request.began,
    })
}

fn requested(
    field: &str,
    index: usize,
    spec: v1::InterfaceSpec,
) -> Checked<(IfName, String, InterfaceRequest)> {
    let named = match (spec.name.is_empty(), index) {
        (false, _) => spec.name.clone(),
        (true, 0) => FIRST_INTERFACE.to_owned(),
        (true, index) => format!("net{index}"),
    };
    let name = interface(&format!("{field}.name"), &named)?;
    let network = match &spec.to {
        None => String::new(),
        Some(v1::interface_spec::To::Network(network)) => pod_name(&format!("{field}.network"), network)?,
        Some(v1::interface_spec::To::Link(_)) => String::new(),
    };
    let own_link = matches!(spec.to, Some(v1::interface_spec::To::Link(_)));
    let sets = ranges::sets(field, &spec)?;
    check_count(&format!("{field}.addresses"), spec.addresses.len())?;
    check_count(&format!("{field}.routes"), spec.routes.len())?;
    check_count(&format!("{field}.sysctls"), spec.sysctls.len())?;
    let describes = own_link || !spec.routes.is_empty() || !spec.sysctls.is_empty();
    let described = describes.then(|| link::described(field, &spec)).transpose()?;
    if own_link {
        return described_link(field, spec, name, described);
    }
    let (routes, sysctls) = described.map(|intent| (intent.routes, intent.sysctls)).unwrap_or_default();
    let mac = (!spec.mac.is_empty()).then(|| spec.mac.parse::<Mac>()).transpose();
    let attrs = Attrs {
        mtu: (spec.mtu > 0).then_some(spec.mtu),
        mac: mac.map_err(|why| invalid(&format!("{field}.mac"), why.to_string()))?,
        ..Attrs::default()
    };
    let ports = mappings(field, &spec)?;
    let mut problems = knit_model::Problems::default();
    attrs.check(field, &mut problems);
    if let Some(problem) = problems.0.first() {
        return Err(invalid(&problem.field, problem.message.clone()));
    }
    let addresses = addresses(field, &spec)?;
    let limits = bandwidth::stated(field, spec.bandwidth.unwrap_or_default())?;
    let requested = InterfaceRequest {
        attrs,
        addresses,
        sticky: String::new(),
        sets,
        routes,
        sysctls,
        link: None,
        device: None,
        default_route: spec.default_route.unwrap_or(named == FIRST_INTERFACE),
        ports,
        limits,
    };
    if !spec.device_id.is_empty() {
        let requested = InterfaceRequest { default_route: named == FIRST_INTERFACE, ..requested };
        return Ok((name, network, device::moved(field, &spec, requested)?));
    }
    Ok((name, network, requested))
}

/// Requested addresses. A prefix length is ignored: the network defines it.
fn addresses(field: &str, spec: &v1::InterfaceSpec) -> Checked<Vec<IpAddr>> {
    let addresses = spec.addresses.iter().enumerate().map(|(at, text)| {
        let bare = text.split('/').next().unwrap_or_default();
        let invalid_value =
            |_| invalid(&format!("{field}.addresses[{at}]"), format!("`{text}` is not an address"));
        bare.parse::<IpAddr>().map_err(invalid_value)
    });
    addresses.collect()
}

/// An interface with a link described in the request.
fn described_link(
    field: &str,
    spec: v1::InterfaceSpec,
    name: IfName,
    described: Option<InterfaceIntent>,
) -> Checked<(IfName, String, InterfaceRequest)> {
    if !spec.device_id.is_empty() {
        let message = "cannot be combined with a link";
        return Err(invalid(&format!("{field}.device_id"), message));
    }
    let no_router = described.as_ref().is_none_or(|intent| intent.gateways.is_empty());
    if spec.default_route == Some(true) && no_router {
        let message = "the gateway of a link is unknown: set `gateways` in link.options";
        return Err(invalid(&format!("{field}.default_route"), message));
    }
    let requested = InterfaceRequest {
        default_route: spec.default_route.unwrap_or(name.as_str() == FIRST_INTERFACE),
        ports: mappings(field, &spec)?,
        limits: bandwidth::stated(field, spec.bandwidth.unwrap_or_default())?,
        link: described.map(Box::new),
        ..InterfaceRequest::default()
    };
    Ok((name, String::new(), requested))
}

fn mappings(field: &str, spec: &v1::InterfaceSpec) -> Checked<Vec<PortMapping>> {
    let ports = spec.port_mappings.iter().enumerate().map(|(at, port)| {
        let field = format!("{field}.port_mappings[{at}]");
        let numbers = (i64::from(port.container_port), i64::from(port.host_port));
        mapping(&field, port.protocol, numbers, &port.host_ip)
    });
    ports.collect()
}

/// Translates an attach of package kni: one interface, `eth0` on the cluster network unless the extra data overrides it.
pub(super) fn kni_attach(call: &CallId, request: kni::AttachInterfaceRequest) -> Checked<AttachRequest> {
    check_count("labels", request.labels.len())?;
    check_count("annotations", request.annotations.len())?;
    check_count("port_mappings", request.port_mappings.len())?;
    let extra = |key: &str| request.extradata.get(key).map(String::as_str).unwrap_or_default();
    let (netns, machine) = isolation::of_kni(&request.isolation.clone().unwrap_or_default(), extra("netns"))?;
    let name = match extra("ifname") {
        "" => FIRST_INTERFACE,
        name => name,
    };
    let dns = request.dns_config.clone().unwrap_or_default();
    let dns = DnsConfig { servers: dns.servers, searches: dns.searches, options: dns.options };
    let notes =
        AttachmentMetadata { dns, annotations: request.annotations.clone(), ..AttachmentMetadata::default() };
    // The kubelet lists every port of a pod; those without a host port are not mapped.
    let mapped = request.port_mappings.iter().enumerate().filter(|(_, port)| port.host_port != 0);
    let ports = mapped.map(|(at, port)| {
        let numbers = (i64::from(port.container_port), i64::from(port.host_port));
        mapping(&format!("port_mappings[{at}]"), port.protocol, numbers, &port.host_ip)
    });
    let requested = InterfaceRequest {
        default_route: name == FIRST_INTERFACE,
        ports: ports.collect::<Checked<_>>()?,
        limits: bandwidth::or_annotated(Default::default(), &notes)?,
        ..InterfaceRequest::default()
    };
    let requested = addresses::or_annotated(extra("network"), requested, &notes)?;
    Ok(AttachRequest {
        call: call.clone(),
        dialect: Dialect::Kni,
        sandbox: SandboxRequest {
            id: id("id", &request.id)?,
            netns,
            machine,
            pod: pod_name("name", &request.name)?,
            namespace: pod_name("namespace", &request.namespace)?,
            uid: pod_name("extradata.uid", extra("uid"))?,
            labels: request.labels.clone(),
        },
        interfaces: vec![(
            interface("extradata.ifname", name)?,
            pod_name("extradata.network", extra("network"))?,
            requested,
        )],
        metadata: notes,
        fail_if_present: false,
        ticket: 0,
        started_at: 0,
    })
}

/// Translates a detach of package kni.
pub(super) fn kni_detach(call: &CallId, request: &kni::DetachInterfaceRequest) -> Checked<DetachRequest> {
    let extra = |key: &str| request.extradata.get(key).map(String::as_str).unwrap_or_default();
    let id = id("id", &request.id)?;
    let scope = match extra("ifname") {
        "" => DetachScope::All,
        name => DetachScope::Interfaces([interface("extradata.ifname", name)?].into()),
    };
    let (netns, _) = isolation::of_kni(&request.isolation.clone().unwrap_or_default(), extra("netns"))?;
    let sandbox = SandboxId(id);
    Ok(DetachRequest { call: call.clone(), sandbox, netns, scope, forget_sandbox: false, started_at: 0 })
}

/// The interfaces of a detach of knit.v1.
pub(super) fn detach_scope(interfaces: &[String], all: bool) -> Checked<DetachScope> {
    if interfaces.is_empty() != all {
        return Err(invalid("interfaces", "list the interfaces to detach, or set `all`"));
    }
    let named = interfaces.iter().enumerate();
    let named = named.map(|(at, name)| interface(&format!("interfaces[{at}]"), name));
    Ok(if all { DetachScope::Attached } else { DetachScope::Interfaces(named.collect::<Checked<_>>()?) })
}

/// The living attachments of a garbage collection; `None`: those whose namespace exists.
pub(super) fn living(garbage: Option<Garbage>) -> Checked<Option<LivingAttachments>> {
    let wrong = |message: &str| RpcError::new(Reason::InvalidValue, message).field("garbage");
    let living = match garbage {
        None => return Err(wrong("garbage: set `living` or `gone`")),
        Some(Garbage::Gone(_)) => return Ok(None),
        Some(Garbage::Living(living)) => living,
    };
    if living.attachments.is_empty() && !living.none {
        return Err(wrong("living: confirm an empty list with `none`"));
    }
    let attachments = living.attachments.into_iter().enumerate().map(|(at, one)| {
        let field = format!("living.attachments[{at}].interface");
        let named = !one.interface.is_empty();
        let interface = named.then(|| interface(&field, &one.interface)).transpose()?;
        Ok((SandboxId(one.sandbox_id), interface))
    });
    attachments.collect::<Checked<_>>().map(Some)
}

fn mapping(field: &str, protocol: i32, (container, host): (i64, i64), host_ip: &str) -> Checked<PortMapping> {
    let port = |field: String, number: i64| {
        let port = u16::try_from(number).ok().filter(|port| *port > 0);
        port.ok_or_else(|| invalid(&field, format!("{number} is not a port (1 to 65535)")))
    };
    let protocol = match protocol {
        0 => "tcp",
        1 => "udp",
        2 => "sctp",
        other => return Err(invalid(&format!("{field}.protocol"), format!("unknown protocol {other}"))),
    };
    let host_ip = (!host_ip.is_empty()).then(|| host_ip.parse::<IpAddr>()).transpose();
    Ok(PortMapping {
        protocol: protocol.to_owned(),
        container_port: port(format!("{field}.container_port"), container)?,
        host_port: port(format!("{field}.host_port"), host)?,
        host_ip: host_ip.map_err(|_| invalid(&format!("{field}.host_ip"), "not an address"))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_ids_are_rejected_with_their_field() {
        for invalid_value in ["", "a/b", "..", "a b", "a\0b", "-a", &"a".repeat(300)] {
            let refusal = id("sandbox.id", invalid_value).unwrap_err();
            assert_eq!(refusal.reason(), Reason::InvalidValue, "{invalid_value:?}");
            assert!(refusal.message().contains("sandbox.id"), "{}", refusal.message());
        }
        assert!(id("id", &"a1".repeat(32)).is_ok());
    }

    #[test]
    fn the_path_of_a_created_namespace_is_deterministic() {
        let one = netns_path_for("", "/run/knit/netns", ["ns", "pod", "uid"]).unwrap();
        assert_eq!(one, netns_path_for("/run/knit/netns/", "/x", ["ns", "pod", "uid"]).unwrap());
        assert!(one.starts_with("/run/knit/netns/knit-"));
        assert!(netns_path_for("../x", "/x", ["", "", ""]).is_err());
        assert!(netns_path_for("/x/../y", "/x", ["", "", ""]).is_err());
    }
}
