//! Translates CNI commands to requests to the agent.

use knit_kni::v1;

use crate::args::Args;
use crate::config::Config;
use crate::environment::Environment;
use crate::error::CniError;

/// The group of the attachments of one network configuration.
fn group(config: &Config) -> String {
    format!("cni:{}", config.name)
}

/// The name of the interface in the container.
pub(crate) fn interface(environment: &Environment, config: &Config) -> String {
    config.interface.clone().unwrap_or_else(|| environment.interface.clone())
}

/// The request of an ADD or CHECK.
pub(crate) fn attach(
    environment: &Environment,
    config: &Config,
    warnings: &mut Vec<String>,
) -> Result<v1::AttachRequest, CniError> {
    let args = Args::parse(&environment.args)?;
    let capabilities = config.capabilities.clone();
    warnings.extend(args.warnings);
    warnings.extend(capabilities.warnings);
    let first_set = |first: String, second: String| if first.is_empty() { second } else { first };
    let mut addresses = capabilities.addresses;
    if addresses.is_empty() && !args.address.is_empty() {
        addresses.push(args.address);
    }
    let mut annotations = capabilities.annotations;
    if !capabilities.aliases.is_empty() {
        annotations.insert("cni/aliases".to_owned(), capabilities.aliases.join(","));
    }
    let has_network = !config.network.is_empty();
    let interface = v1::InterfaceSpec {
        name: interface(environment, config),
        to: has_network.then(|| v1::interface_spec::To::Network(config.network.clone())),
        addresses,
        mac: first_set(capabilities.mac, args.mac),
        mtu: config.mtu,
        default_route: config.default_route,
        bandwidth: capabilities.bandwidth,
        port_mappings: capabilities.port_mappings,
        range_sets: capabilities.range_sets,
        device_id: capabilities.device_id,
        ..Default::default()
    };
    let domain = v1::isolation::Domain::NetnsPath(environment.netns.clone());
    let sandbox = v1::SandboxSpec {
        id: environment.container.clone(),
        name: args.pod,
        namespace: args.namespace,
        uid: args.uid,
        labels: capabilities.labels,
        annotations,
        isolation: Some(v1::Isolation { domain: Some(domain) }),
    };
    let no_dns = capabilities.dns == v1::DnsConfig::default();
    Ok(v1::AttachRequest {
        sandbox: Some(sandbox),
        interfaces: vec![interface],
        dns: (!no_dns).then_some(capabilities.dns),
        fail_if_present: true,
        dry_run: false,
        dialect: "cni".to_owned(),
        group: group(config),
        began: 0,
    })
}

/// The request of a DEL. It selects the sandbox by the container id: the next sandbox of the pod has the same name.
pub(crate) fn detach(environment: &Environment, config: &Config, started_at: u64) -> v1::DetachRequest {
    v1::DetachRequest {
        pod: Some(v1::PodRef { id: environment.container.clone(), ..Default::default() }),
        interfaces: vec![interface(environment, config)],
        netns_path: environment.netns.clone(),
        forget: true,
        began: started_at,
        ..Default::default()
    }
}

/// The request of a GC, limited to the attachments of this network configuration.
pub(crate) fn collect_garbage(config: &Config) -> v1::CollectGarbageRequest {
    let attachments: Vec<v1::Attachment> = config
        .valid_attachments
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
