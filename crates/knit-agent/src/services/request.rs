//! From requests to the engine's words. Every value is checked here, with the name of its field; nothing is decided.

mod addresses;
pub(crate) mod bandwidth;
mod device;
mod isolation;
mod link;
mod ranges;

use std::net::IpAddr;

use knit_engine::CallId;
use knit_engine::call::{Asked, Attach, Dns, Notes, PortMapping, Wished};
use knit_kni::{Reason, Refusal, kni, v1};
use knit_model::intent::InterfaceIntent;
use knit_model::link::{Attrs, OwnerId};
use knit_model::provenance::Dialect;
use knit_model::{IfName, Mac};

/// What a call may say at most of each list or map.
const MOST_ENTRIES: usize = 256;
/// The longest id, name or namespace, in bytes.
const LONGEST: usize = 253;
/// The interface that a pod has first.
pub(super) const FIRST: &str = "eth0";

pub(super) type Checked<T> = Result<T, Refusal>;

pub(super) fn invalid(field: &str, message: impl Into<String>) -> Refusal {
    Refusal::new(Reason::InvalidValue, format!("{field}: {}", message.into())).field(field)
}

/// A sandbox's id: letters, digits, `.`, `_` and `-`, as runtimes make them.
pub(super) fn id(field: &str, id: &str) -> Checked<String> {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-');
    if id.is_empty() {
        return Err(invalid(field, "a sandbox has an id, and this one is empty"));
    }
    if id.len() > LONGEST {
        return Err(invalid(field, format!("an id has at most {LONGEST} bytes, and this one {}", id.len())));
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

/// A pod's name or namespace; it may be empty.
fn word(field: &str, text: &str) -> Checked<String> {
    let fits = |letter: char| !letter.is_control() && !letter.is_whitespace() && letter != '/';
    match text.chars().find(|letter| !fits(*letter)) {
        Some(letter) => Err(invalid(field, format!("`{}` must not contain {letter:?}", text.escape_debug()))),
        None if text.len() > LONGEST => Err(invalid(field, format!("has more than {LONGEST} bytes"))),
        None => Ok(text.to_owned()),
    }
}

/// An interface's name.
pub(super) fn interface(field: &str, name: &str) -> Checked<IfName> {
    IfName::new(name).map_err(|why| invalid(field, why.to_string()))
}

/// A path to a namespace; what is there is looked at later.
pub(super) fn path(field: &str, path: &str) -> Checked<String> {
    let bad = path.contains('\0') || path.split('/').any(|part| part == "..");
    if bad || (!path.is_empty() && !path.starts_with('/')) {
        let message = format!("`{}` is no absolute path without `..`", path.escape_debug());
        return Err(invalid(field, message));
    }
    Ok(path.to_owned())
}

pub(super) fn few(field: &str, count: usize) -> Checked<()> {
    if count > MOST_ENTRIES {
        return Err(invalid(field, format!("has {count} entries, and may have {MOST_ENTRIES}")));
    }
    Ok(())
}

/// Where a namespace is made that nobody named: a name that follows from the pod's, so that asking again finds it.
pub(super) fn domain_path(folder: &str, default: &str, of: [&str; 3]) -> Checked<String> {
    let folder = path("netns_path_prefix", folder)?;
    let folder = if folder.is_empty() { default.to_owned() } else { folder };
    let OwnerId(id) = OwnerId::derived(&of.join("/"));
    Ok(format!("{}/knit-{id}", folder.trim_end_matches('/')))
}

/// A sandbox as knit.v1 describes it.
pub(super) fn sandbox(spec: Option<v1::SandboxSpec>) -> Checked<Wished> {
    let Some(spec) = spec else { return Err(invalid("sandbox", "it is missing")) };
    few("sandbox.labels", spec.labels.len())?;
    few("sandbox.annotations", spec.annotations.len())?;
    let (netns, machine) = isolation::of_sandbox(spec.isolation)?;
    Ok(Wished {
        id: id("sandbox.id", &spec.id)?,
        netns,
        machine,
        pod: word("sandbox.name", &spec.name)?,
        namespace: word("sandbox.namespace", &spec.namespace)?,
        uid: word("sandbox.uid", &spec.uid)?,
        labels: spec.labels,
    })
}

/// An attach of knit.v1.
pub(super) fn attach(call: &CallId, request: v1::AttachRequest) -> Checked<Attach> {
    let annotations = request.sandbox.as_ref().map(|sandbox| sandbox.annotations.clone()).unwrap_or_default();
    let wished = sandbox(request.sandbox)?;
    few("interfaces", request.interfaces.len())?;
    let dialect = match request.dialect.as_str() {
        "" | "kni" => Dialect::Kni,
        "cni" => Dialect::Cni,
        other => return Err(invalid("dialect", format!("`{other}` is neither kni nor cni"))),
    };
    let specs =
        if request.interfaces.is_empty() { vec![v1::InterfaceSpec::default()] } else { request.interfaces };
    let v1::DnsConfig { servers, searches, options } = request.dns.unwrap_or_default();
    let mut notes = Notes { dns: Dns { servers, searches, options }, annotations, ..Notes::default() };
    notes.group = word("group", &request.group)?;
    let mut interfaces = Vec::new();
    for (index, spec) in specs.into_iter().enumerate() {
        let field = format!("interfaces[{index}]");
        let mut interface = asked(&field, index, spec)?;
        if index == 0 {
            // A pod's annotations mean its first interface, unless that says otherwise.
            let (name, network, mut asked) = interface;
            asked.limits = bandwidth::or_annotated(asked.limits, &notes)?;
            let asked = addresses::or_annotated(&network, asked, &notes)?;
            interface = (name, network, asked);
        }
        interfaces.push(interface);
    }
    let mut names: Vec<&IfName> = interfaces.iter().map(|(name, ..)| name).collect();
    names.sort();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(invalid("interfaces", format!("{} is asked for twice", twice[0])));
    }
    Ok(Attach {
        call: call.clone(),
        dialect,
        sandbox: wished,
        interfaces,
        notes,
        fail_if_present: request.fail_if_present,
        ticket: 0,
        began: request.began,
    })
}

fn asked(field: &str, index: usize, spec: v1::InterfaceSpec) -> Checked<(IfName, String, Asked)> {
    let named = match (spec.name.is_empty(), index) {
        (false, _) => spec.name.clone(),
        (true, 0) => FIRST.to_owned(),
        (true, index) => format!("net{index}"),
    };
    let name = interface(&format!("{field}.name"), &named)?;
    let network = match &spec.to {
        None => String::new(),
        Some(v1::interface_spec::To::Network(network)) => word(&format!("{field}.network"), network)?,
        Some(v1::interface_spec::To::Link(_)) => String::new(),
    };
    let own_link = matches!(spec.to, Some(v1::interface_spec::To::Link(_)));
    let sets = ranges::sets(field, &spec)?;
    few(&format!("{field}.addresses"), spec.addresses.len())?;
    few(&format!("{field}.routes"), spec.routes.len())?;
    few(&format!("{field}.sysctls"), spec.sysctls.len())?;
    let describes = own_link || !spec.routes.is_empty() || !spec.sysctls.is_empty();
    let described = describes.then(|| link::described(field, &name, &spec)).transpose()?;
    if own_link {
        return own(field, spec, name, described);
    }
    let (routes, sysctls) = described.map(|want| (want.routes, want.sysctls)).unwrap_or_default();
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
    let asked = Asked {
        attrs,
        addresses,
        sticky: String::new(),
        sets,
        routes,
        sysctls,
        link: None,
        device: None,
        default_route: spec.default_route.unwrap_or(named == FIRST),
        ports,
        limits,
    };
    if !spec.device_id.is_empty() {
        let asked = Asked { default_route: named == FIRST, ..asked };
        return Ok((name, network, device::lent(field, &spec, asked)?));
    }
    Ok((name, network, asked))
}

/// Addresses that are asked for by value; what prefix length is said with them does not matter on a network.
fn addresses(field: &str, spec: &v1::InterfaceSpec) -> Checked<Vec<IpAddr>> {
    let addresses = spec.addresses.iter().enumerate().map(|(at, text)| {
        let bare = text.split('/').next().unwrap_or_default();
        let wrong = |_| invalid(&format!("{field}.addresses[{at}]"), format!("`{text}` is no address"));
        bare.parse::<IpAddr>().map_err(wrong)
    });
    addresses.collect()
}

/// An interface whose link the caller describes.
fn own(
    field: &str,
    spec: v1::InterfaceSpec,
    name: IfName,
    described: Option<InterfaceIntent>,
) -> Checked<(IfName, String, Asked)> {
    if !spec.device_id.is_empty() {
        let message = "the device is the link: no other is described beside it";
        return Err(invalid(&format!("{field}.device_id"), message));
    }
    let no_router = described.as_ref().is_none_or(|want| want.gateways.is_empty());
    if spec.default_route == Some(true) && no_router {
        let message = "a link is on no network whose router is known: name it in link.options, as `gateways`";
        return Err(invalid(&format!("{field}.default_route"), message));
    }
    let asked = Asked {
        default_route: spec.default_route.unwrap_or(name.as_str() == FIRST),
        ports: mappings(field, &spec)?,
        limits: bandwidth::stated(field, spec.bandwidth.unwrap_or_default())?,
        link: described.map(Box::new),
        ..Asked::default()
    };
    Ok((name, String::new(), asked))
}

fn mappings(field: &str, spec: &v1::InterfaceSpec) -> Checked<Vec<PortMapping>> {
    let ports = spec.port_mappings.iter().enumerate().map(|(at, port)| {
        let field = format!("{field}.port_mappings[{at}]");
        let numbers = (i64::from(port.container_port), i64::from(port.host_port));
        mapping(&field, port.protocol, numbers, &port.host_ip)
    });
    ports.collect()
}

/// An attach of package kni: one interface, `eth0` on the cluster's network unless the extra data says otherwise.
pub(super) fn kni_attach(call: &CallId, request: kni::AttachInterfaceRequest) -> Checked<Attach> {
    few("labels", request.labels.len())?;
    few("annotations", request.annotations.len())?;
    few("port_mappings", request.port_mappings.len())?;
    let extra = |key: &str| request.extradata.get(key).map(String::as_str).unwrap_or_default();
    let (netns, machine) = isolation::of_kni(&request.isolation.clone().unwrap_or_default(), extra("netns"))?;
    let name = match extra("ifname") {
        "" => FIRST,
        name => name,
    };
    let dns = request.dns_config.clone().unwrap_or_default();
    let dns = Dns { servers: dns.servers, searches: dns.searches, options: dns.options };
    let notes = Notes { dns, annotations: request.annotations.clone(), ..Notes::default() };
    // The kubelet lists every port of a pod; those without one on the node are no mappings.
    let mapped = request.port_mappings.iter().enumerate().filter(|(_, port)| port.host_port != 0);
    let ports = mapped.map(|(at, port)| {
        let numbers = (i64::from(port.container_port), i64::from(port.host_port));
        mapping(&format!("port_mappings[{at}]"), port.protocol, numbers, &port.host_ip)
    });
    let asked = Asked {
        default_route: name == FIRST,
        ports: ports.collect::<Checked<_>>()?,
        limits: bandwidth::or_annotated(Default::default(), &notes)?,
        ..Asked::default()
    };
    let asked = addresses::or_annotated(extra("network"), asked, &notes)?;
    Ok(Attach {
        call: call.clone(),
        dialect: Dialect::Kni,
        sandbox: Wished {
            id: id("id", &request.id)?,
            netns,
            machine,
            pod: word("name", &request.name)?,
            namespace: word("namespace", &request.namespace)?,
            uid: word("extradata.uid", extra("uid"))?,
            labels: request.labels.clone(),
        },
        interfaces: vec![(
            interface("extradata.ifname", name)?,
            word("extradata.network", extra("network"))?,
            asked,
        )],
        notes,
        fail_if_present: false,
        ticket: 0,
        began: 0,
    })
}

/// Where a detach of package kni says that the namespace is.
pub(super) fn kni_netns(request: &kni::DetachInterfaceRequest) -> Checked<String> {
    let extra = request.extradata.get("netns").map(String::as_str).unwrap_or_default();
    isolation::of_kni(&request.isolation.clone().unwrap_or_default(), extra).map(|(netns, _)| netns)
}

fn mapping(field: &str, protocol: i32, (container, host): (i64, i64), host_ip: &str) -> Checked<PortMapping> {
    let port = |field: String, number: i64| {
        let port = u16::try_from(number).ok().filter(|port| *port > 0);
        port.ok_or_else(|| invalid(&field, format!("{number} is no port: 1 to 65535")))
    };
    let protocol = match protocol {
        0 => "tcp",
        1 => "udp",
        2 => "sctp",
        other => return Err(invalid(&format!("{field}.protocol"), format!("there is no protocol {other}"))),
    };
    let host_ip = (!host_ip.is_empty()).then(|| host_ip.parse::<IpAddr>()).transpose();
    Ok(PortMapping {
        protocol: protocol.to_owned(),
        container_port: port(format!("{field}.container_port"), container)?,
        host_port: port(format!("{field}.host_port"), host)?,
        host_ip: host_ip.map_err(|_| invalid(&format!("{field}.host_ip"), "this is no address"))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_no_runtime_makes_are_refused_with_their_field() {
        for wrong in ["", "a/b", "..", "a b", "a\0b", "-a", &"a".repeat(300)] {
            let refusal = id("sandbox.id", wrong).unwrap_err();
            assert_eq!(refusal.reason(), Reason::InvalidValue, "{wrong:?}");
            assert!(refusal.message().contains("sandbox.id"), "{}", refusal.message());
        }
        assert!(id("id", &"a1".repeat(32)).is_ok());
    }

    #[test]
    fn a_made_namespace_has_a_path_that_asking_again_finds() {
        let one = domain_path("", "/run/knit/netns", ["ns", "pod", "uid"]).unwrap();
        assert_eq!(one, domain_path("/run/knit/netns/", "/x", ["ns", "pod", "uid"]).unwrap());
        assert!(one.starts_with("/run/knit/netns/knit-"));
        assert!(domain_path("../x", "/x", ["", "", ""]).is_err());
        assert!(domain_path("/x/../y", "/x", ["", "", ""]).is_err());
    }
}
