//! From a runtime's words to the agent's.

use knit_kni::v1;

use crate::args::Args;
use crate::config::Config;
use crate::environment::Environment;
use crate::failure::Failure;

/// Tells what one configuration made from what others did.
fn group(config: &Config) -> String {
    format!("cni:{}", config.name)
}

/// The interface that is meant.
pub(crate) fn interface(environment: &Environment, config: &Config) -> String {
    config.interface.clone().unwrap_or_else(|| environment.interface.clone())
}

/// An ADD, or a look at what an ADD would still have to do.
pub(crate) fn attach(
    environment: &Environment,
    config: &Config,
    words: &mut Vec<String>,
) -> Result<v1::AttachRequest, Failure> {
    let args = Args::parse(&environment.args)?;
    let asked = config.asked.clone();
    words.extend(args.words);
    words.extend(asked.words);
    let or = |one: String, other: String| if one.is_empty() { other } else { one };
    let mut addresses = asked.addresses;
    if addresses.is_empty() && !args.address.is_empty() {
        addresses.push(args.address);
    }
    let mut annotations = asked.annotations;
    if !asked.aliases.is_empty() {
        annotations.insert("cni/aliases".to_owned(), asked.aliases.join(","));
    }
    let named = !config.network.is_empty();
    let interface = v1::InterfaceSpec {
        name: interface(environment, config),
        to: named.then(|| v1::interface_spec::To::Network(config.network.clone())),
        addresses,
        mac: or(asked.mac, args.mac),
        mtu: config.mtu,
        default_route: config.default_route,
        bandwidth: asked.bandwidth,
        port_mappings: asked.ports,
        range_sets: asked.sets,
        device_id: asked.device,
        ..Default::default()
    };
    let domain = v1::isolation::Domain::NetnsPath(environment.netns.clone());
    let sandbox = v1::SandboxSpec {
        id: environment.container.clone(),
        name: args.pod,
        namespace: args.namespace,
        uid: args.uid,
        labels: asked.labels,
        annotations,
        isolation: Some(v1::Isolation { domain: Some(domain) }),
    };
    let no_dns = asked.dns == v1::DnsConfig::default();
    Ok(v1::AttachRequest {
        sandbox: Some(sandbox),
        interfaces: vec![interface],
        dns: (!no_dns).then_some(asked.dns),
        fail_if_present: true,
        dry_run: false,
        dialect: "cni".to_owned(),
        group: group(config),
        began: 0,
    })
}

/// A DEL. The container's id says which sandbox is meant, never the pod's name: its next sandbox has the same one.
pub(crate) fn detach(environment: &Environment, config: &Config, began: u64) -> v1::DetachRequest {
    v1::DetachRequest {
        pod: Some(v1::PodRef { id: environment.container.clone(), ..Default::default() }),
        interfaces: vec![interface(environment, config)],
        netns_path: environment.netns.clone(),
        forget: true,
        began,
        ..Default::default()
    }
}

/// A garbage collection: only what this configuration made.
pub(crate) fn collect(config: &Config) -> v1::CollectGarbageRequest {
    let attachments: Vec<v1::Attachment> = config
        .living
        .iter()
        .map(|(container, interface)| v1::Attachment {
            sandbox_id: container.clone(),
            interface: config.interface.clone().unwrap_or_else(|| interface.clone()),
        })
        .collect();
    let living = v1::Living { none: attachments.is_empty(), attachments };
    v1::CollectGarbageRequest {
        garbage: Some(v1::collect_garbage_request::Garbage::Living(living)),
        group: group(config),
        dry_run: false,
    }
}
