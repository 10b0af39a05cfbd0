//! Renders pods for knit.v1.

use std::collections::BTreeMap;

use knit_engine::call::{ATTACHMENT_KIND, Attachment};
use knit_engine::{ObjectKey, State, Unit};
use knit_ipam::{Pool, Time};
use knit_kni::v1;
use knit_model::intent::{BandwidthLimits, IntentSpec, NetworkIntent, RateIntent};
use knit_model::problem::Problem;
use knit_model::provenance::{Dialect, Provenance};
use knit_model::report::InterfaceReport;
use knit_model::route::MAIN_TABLE;
use knit_model::sandbox::Isolation;
use knit_model::{Sandbox, SandboxId};

/// One pod; `None` if the sandbox is unknown.
pub(super) fn pod(state: &State, id: &SandboxId) -> Option<v1::Pod> {
    state.sandboxes.get(id).map(|sandbox| describe(state, sandbox))
}

/// A pod that is gone: only its identity.
pub(super) fn gone(sandbox: &Sandbox) -> v1::Pod {
    v1::Pod {
        id: sandbox.id.0.clone(),
        name: sandbox.pod.clone(),
        namespace: sandbox.namespace.clone(),
        uid: sandbox.uid.clone(),
        netns_path: sandbox.netns.clone(),
        isolation: match sandbox.isolation {
            Isolation::Netns => v1::IsolationKind::Netns.into(),
            Isolation::VirtualMachine(_) => v1::IsolationKind::Tap.into(),
        },
        netns_cookie: sandbox.instance.cookie,
        labels: sandbox.labels.clone(),
        ..v1::Pod::default()
    }
}

fn describe(state: &State, sandbox: &Sandbox) -> v1::Pod {
    let unit = Unit::Sandbox(sandbox.id.clone());
    let unit_state = state.units.get(&unit);
    let reports = unit_state.into_iter().flat_map(|unit_state| &unit_state.interfaces);
    let mut interfaces: Vec<v1::Interface> =
        reports.map(|(object, report)| interface(state, sandbox, object, report)).collect();
    let chained = state.attachments.all_chained().filter(|attachment| attachment.sandbox == sandbox.id);
    interfaces.extend(chained.map(super::plugin_chain::interface));
    let first = state.attachments.of(&sandbox.id).next();
    let chained_since = state.attachments.all_chained().filter(|attachment| attachment.sandbox == sandbox.id);
    let chained_since = chained_since.map(|attachment| attachment.since);
    let since =
        state.attachments.of(&sandbox.id).map(|attachment| attachment.since).chain(chained_since).min();
    let dns = first.map(|attachment| &attachment.metadata.dns).filter(|dns| !dns.is_empty());
    v1::Pod {
        netns_made: state.attachments.managed_netns().any(|domain| domain.path == sandbox.netns),
        annotations: first.map(|attachment| attachment.metadata.annotations.clone()).unwrap_or_default(),
        interfaces,
        dns: dns.map(|dns| v1::DnsConfig {
            servers: dns.servers.clone(),
            searches: dns.searches.clone(),
            options: dns.options.clone(),
        }),
        readiness: Some(readiness(state, sandbox)),
        extensions: super::extensions::receipts(state, &sandbox.id),
        since: since.map(timestamp),
        ..gone(sandbox)
    }
}

/// Whether a pod has its desired configuration.
pub(super) fn readiness(state: &State, sandbox: &Sandbox) -> v1::Readiness {
    let unit = Unit::Sandbox(sandbox.id.clone());
    let problems = state.problems.get(&unit).map_or(&[][..], Vec::as_slice);
    let mut conditions: Vec<v1::Condition> =
        problems.iter().map(|(object, problem)| condition(object, problem)).collect();
    let ready = conditions.is_empty() && !state.unfinished.contains_key(&unit);
    if conditions.is_empty() {
        let (reason, message) =
            if ready { ("Configured", "") } else { ("Configuring", "a change is in flight") };
        conditions.push(v1::Condition {
            r#type: "InterfacesReady".to_owned(),
            ok: ready,
            reason: reason.to_owned(),
            message: message.to_owned(),
            ..v1::Condition::default()
        });
    }
    v1::Readiness { ready, conditions }
}

fn condition(object: &ObjectKey, problem: &Problem) -> v1::Condition {
    v1::Condition {
        r#type: "InterfacesReady".to_owned(),
        ok: false,
        reason: problem.reason.name().to_owned(),
        message: problem.to_string(),
        object: object.to_string(),
        since: None,
    }
}

fn interface(
    state: &State,
    sandbox: &Sandbox,
    object: &ObjectKey,
    report: &InterfaceReport,
) -> v1::Interface {
    let attachment = (object.kind == ATTACHMENT_KIND).then(|| state.attachments.by_key(object)).flatten();
    let problems = state.problems.get(&Unit::Sandbox(sandbox.id.clone()));
    let mine = problems.into_iter().flatten().filter(|(asker, _)| asker == object);
    let (namespace, network) = network_of(state, sandbox, object, report, attachment);
    let known = networks_of(state, &namespace).find(|known| known.name == network);
    // A moved NIC is not a port of the network's bridge, which is the gateway.
    let device = attachment.and_then(|attachment| attachment.request.device.as_ref());
    let known = known.filter(|_| device.is_none());
    v1::Interface {
        name: report.name.to_string(),
        kind: report.kind.clone(),
        network_namespace: match network.as_str() {
            "" => String::new(),
            network => super::nodes::shown_namespace(state, &namespace, network).to_owned(),
        },
        mac: report.mac.map(|mac| mac.to_string()).unwrap_or_default(),
        mtu: report.mtu.unwrap_or_default(),
        addresses: report
            .addresses
            .iter()
            .map(|address| v1::Address {
                address: address.addr().to_string(),
                prefix_length: u32::from(address.prefix_len()),
                family: family(address.addr().is_ipv6()).into(),
                gateway: gateway(known, address).unwrap_or_default(),
            })
            .collect(),
        network,
        routes: routes(attachment, report, known),
        host_link: report.peer.as_ref().map(ToString::to_string).unwrap_or_default(),
        master: report.master.as_ref().map(ToString::to_string).unwrap_or_default(),
        bandwidth: attachment.and_then(|attachment| bandwidth(attachment.limits(sandbox))),
        port_mappings: attachment.map(ports).unwrap_or_default(),
        sysctls: attachment.map(sysctls).unwrap_or_default(),
        provenance: origin(state, object, report, attachment),
        ready: report.ready,
        problems: mine.map(|(object, problem)| condition(object, problem)).collect(),
        since: attachment.map(|attachment| timestamp(attachment.since)),
        group: attachment.map(|attachment| attachment.metadata.group.clone()).unwrap_or_default(),
        foreign: report.kind.is_empty(),
        device_id: device.map(|device| device.id.clone()).unwrap_or_default(),
    }
}

/// The namespace and name of an interface's network.
fn network_of(
    state: &State,
    sandbox: &Sandbox,
    object: &ObjectKey,
    report: &InterfaceReport,
    attachment: Option<&Attachment>,
) -> (String, String) {
    if let Some(attachment) = attachment {
        return (attachment.tenant.clone(), attachment.network.clone());
    }
    let stored = state.objects.get(object);
    let mut intents = stored.into_iter().flat_map(|stored| &stored.intents);
    let network =
        intents.find(|intent| intent.origin.field == report.field).and_then(|intent| match &intent.spec {
            IntentSpec::Interface(spec) => spec.network.clone(),
            _ => None,
        });
    (sandbox.namespace.clone(), network.unwrap_or_default())
}

fn networks_of<'a>(state: &'a State, namespace: &'a str) -> impl Iterator<Item = &'a NetworkIntent> {
    crate::capacity::networks(state).filter(move |(of, _)| *of == namespace).map(|(_, network)| network)
}

fn gateway(network: Option<&NetworkIntent>, address: &ipnet::IpNet) -> Option<String> {
    let network = network.filter(|network| !network.isolated)?;
    let range = network.ranges.iter().find(|range| range.contains(&address.addr()))?;
    Pool::with_gateway("", *range).gateway_address().map(|gateway| gateway.addr().to_string())
}

fn routes(
    attachment: Option<&Attachment>,
    report: &InterfaceReport,
    network: Option<&NetworkIntent>,
) -> Vec<v1::Route> {
    let Some(attachment) = attachment else { return Vec::new() };
    let gateways = || report.addresses.iter().filter_map(|address| gateway(network, address));
    let mut routes = Vec::new();
    if attachment.request.default_route {
        routes.extend(gateways().map(|gateway| v1::Route {
            destination: if gateway.contains(':') { "::/0" } else { "0.0.0.0/0" }.to_owned(),
            gateway,
            ..v1::Route::default()
        }));
    }
    let link = attachment.request.link.as_deref();
    routes.extend(link.into_iter().flat_map(|link| &link.gateways).map(|gateway| v1::Route {
        destination: if gateway.is_ipv6() { "::/0" } else { "0.0.0.0/0" }.to_owned(),
        gateway: gateway.to_string(),
        ..v1::Route::default()
    }));
    for route in attachment.request.routes.iter().chain(link.into_iter().flat_map(|link| &link.routes)) {
        let of_family = || gateways().find(|gateway| gateway.contains(':') == route.to.addr().is_ipv6());
        let hop = route.via.first();
        let gateway = hop.and_then(|hop| hop.gateway).map(|gateway| gateway.to_string());
        routes.push(v1::Route {
            destination: route.to.to_string(),
            gateway: gateway.or_else(of_family).unwrap_or_default(),
            source: route.source.map(|source| source.to_string()).unwrap_or_default(),
            metric: route.metric,
            table: if route.table == MAIN_TABLE { 0 } else { route.table },
            mtu: route.mtu.unwrap_or_default(),
            onlink: hop.is_some_and(|hop| hop.onlink),
        });
    }
    routes
}

fn sysctls(attachment: &Attachment) -> BTreeMap<String, String> {
    let of_link = attachment.request.link.iter().flat_map(|link| &link.sysctls);
    attachment
        .request
        .sysctls
        .iter()
        .chain(of_link)
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

fn bandwidth(limits: BandwidthLimits) -> Option<v1::Bandwidth> {
    let bits = |rate: Option<RateIntent>| rate.map_or(0, |rate| rate.bits);
    let burst = |rate: Option<RateIntent>| rate.and_then(|rate| rate.burst).unwrap_or_default();
    (!limits.is_empty()).then(|| v1::Bandwidth {
        ingress_bits: bits(limits.ingress),
        egress_bits: bits(limits.egress),
        ingress_burst_bytes: burst(limits.ingress),
        egress_burst_bytes: burst(limits.egress),
    })
}

fn ports(attachment: &Attachment) -> Vec<v1::PortMapping> {
    let protocol = |name: &str| match name {
        "udp" => v1::Protocol::Udp,
        "sctp" => v1::Protocol::Sctp,
        _ => v1::Protocol::Tcp,
    };
    let mappings = attachment.request.ports.iter().map(|port| v1::PortMapping {
        protocol: protocol(&port.protocol).into(),
        container_port: u32::from(port.container_port),
        host_port: u32::from(port.host_port),
        host_ip: port.host_ip.map(|address| address.to_string()).unwrap_or_default(),
    });
    mappings.collect()
}

fn origin(
    state: &State,
    object: &ObjectKey,
    report: &InterfaceReport,
    attachment: Option<&Attachment>,
) -> Option<v1::Provenance> {
    let stored = state.objects.get(object);
    let of_object = stored.and_then(|stored| {
        let mut intents = stored.intents.iter();
        intents.find(|intent| intent.origin.field == report.field).map(|intent| &intent.origin)
    });
    attachment.map(|attachment| &attachment.origin).or(of_object).map(provenance)
}

fn provenance(why: &Provenance) -> v1::Provenance {
    let dialect = match why.dialect {
        Dialect::Kubernetes => "kubernetes",
        Dialect::File => "file",
        Dialect::Kni => "kni",
        Dialect::Cni => "cni",
        Dialect::Annotation => "annotation",
        Dialect::Knit => "knit",
    };
    v1::Provenance {
        dialect: dialect.to_owned(),
        object: why.object.as_ref().map(|object| v1::ObjectRef {
            kind: object.kind.clone(),
            namespace: object.namespace.clone(),
            name: object.name.clone(),
            uid: object.uid.clone(),
            generation: object.generation,
        }),
        field: why.field.clone(),
        call_id: why.call.clone().unwrap_or_default(),
    }
}

pub(super) fn family(ipv6: bool) -> v1::Family {
    if ipv6 { v1::Family::Ipv6 } else { v1::Family::Ipv4 }
}

pub(super) fn timestamp(time: Time) -> prost_types::Timestamp {
    let seconds = i64::try_from(time.0 / 1_000).unwrap_or_default();
    let nanos = i32::try_from(time.0 % 1_000 * 1_000_000).unwrap_or_default();
    prost_types::Timestamp { seconds, nanos }
}
