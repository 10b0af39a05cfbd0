//! A network of Debian's CNI plugins.

use std::fs;

use knit_kni::v1;
use knit_testbed::{Confinement, Deployed};
use serde_json::{Value, json};

use super::agent::{Agent, Machine, attach};

/// Writes a configuration with one network `legacy` of these plugins, and returns the flag for it.
pub fn configure(machine: &Machine, plugins: &Value) -> String {
    let conflist = machine.path("legacy.conflist");
    let list = json!({ "cniVersion": "1.0.0", "name": "legacy", "plugins": plugins });
    fs::write(&conflist, list.to_string()).unwrap();
    let dirs = [machine.path("plugins").display().to_string(), "/usr/lib/cni".to_owned()];
    let config = json!({
        "cniNetworks": { "legacy": { "conflist": conflist, "pluginDirs": dirs, "timeoutSeconds": 5 } },
    });
    let path = machine.path("agent.yaml");
    fs::write(&path, config.to_string()).unwrap();
    format!("--config={}", path.display())
}

/// An agent that runs plugins is deployed with more privileges than others. Plugins of tests may be scripts.
pub fn confinement_with_plugins(machine: &Machine) -> Confinement {
    machine.confinement_as(Deployed::PrimaryWithAttachments).with_programs()
}

/// Starts such an agent and waits until it is ready.
pub fn agent_with_plugins<'a>(machine: &'a Machine, arguments: &[&str]) -> Agent<'a> {
    machine.confined_agent(&confinement_with_plugins(machine), arguments, &[])
}

/// Debian's bridge plugin, with leases in a temporary directory.
pub fn bridge(machine: &Machine) -> Value {
    json!([{
        "type": "bridge", "bridge": "legacy0", "isGateway": true,
        "ipam": {
            "type": "host-local", "dataDir": machine.path("leases"),
            "ranges": [[{ "subnet": "10.89.0.0/24" }]], "routes": [{ "dst": "10.0.0.0/8" }],
        },
    }])
}

/// A request for an interface on that network.
pub fn attach_to_legacy(id: &str, path: &str, name: &str) -> v1::AttachRequest {
    let to = Some(v1::interface_spec::To::Network("legacy".to_owned()));
    let interface = v1::InterfaceSpec { name: name.to_owned(), to, ..Default::default() };
    v1::AttachRequest { interfaces: vec![interface], ..attach(id, path) }
}

/// The number of leases of the plugin.
pub fn leases(machine: &Machine) -> usize {
    let files = fs::read_dir(machine.path("leases/legacy")).into_iter().flatten().flatten();
    files.filter(|file| file.file_name().to_string_lossy().starts_with("10.")).count()
}
