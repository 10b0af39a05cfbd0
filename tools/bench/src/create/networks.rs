//! The same additional networks as objects of Knit and as delegates of Multus.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use knit_testcluster::go_tools::{self, Tool};
use knit_testcluster::runtime_nodes::RuntimeNodes;

/// The label of a pod that Knit adds interfaces to; its value is the object's name.
pub const LABEL: &str = "podconfig";

/// The name of the object with this many interfaces.
pub fn name(number: usize) -> String {
    format!("many-{number}")
}

/// A bridge and a range for each interface.
fn networks(number: usize) -> impl Iterator<Item = (String, String)> {
    (0..number).map(move |index| (format!("x{number}br{index}"), format!("10.{}.{index}.0/24", 100 + number)))
}

/// One object for each number of interfaces.
pub fn objects(numbers: &[usize]) -> String {
    let object = |number: &usize| {
        let attachments: Vec<Value> = networks(*number)
            .enumerate()
            .map(|(index, (bridge, range))| {
                json!({"name": format!("x{index}"), "linkType": "veth", "master": bridge, "cidr": range})
            })
            .collect();
        let object = json!({
            "apiVersion": "podconfig.opdev.io/v1alpha1",
            "kind": "PodConfig",
            "metadata": {"name": name(*number), "namespace": "bench"},
            "spec": {"networkAttachments": attachments},
        });
        object.to_string()
    };
    numbers.iter().map(object).collect::<Vec<_>>().join("\n---\n")
}

/// Multus, built if it is not in the cache.
pub fn multus() -> Result<PathBuf> {
    Ok(go_tools::ensure(&[Tool::Multus])?.path(Tool::Multus).to_owned())
}

/// Configures Multus on a node: the first delegate is the main network, each further one an additional network.
pub fn delegate(nodes: &RuntimeNodes, node: u8, multus: &Path, number: usize) -> Result<()> {
    let installed = nodes.folder(node, "opt/cni/bin").join("multus");
    if !installed.exists() {
        symlink(multus, &installed).with_context(|| format!("cannot install {}", installed.display()))?;
    }
    let folder = nodes.folder(node, "etc/cni/net.d");
    let main = fs::read(folder.join("10-reference.conflist"))?;
    let mut delegates: Vec<Value> = vec![serde_json::from_slice(&main)?];
    delegates.extend(networks(number).map(|(bridge, range)| {
        json!({
            "cniVersion": "1.0.0",
            "name": bridge,
            "type": "bridge",
            "bridge": bridge,
            "isGateway": true,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": range}]]},
        })
    }));
    let plugin = json!({"type": "multus", "name": "multus", "delegates": delegates});
    let list = json!({"cniVersion": "1.0.0", "name": "multus", "plugins": [plugin]});
    // The runtime watches the directory: it must never read a partial file. It uses the first file by name.
    let unfinished = folder.join(".multus");
    fs::write(&unfinished, serde_json::to_vec_pretty(&list)?)?;
    fs::rename(unfinished, folder.join("00-multus.conflist"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_have_the_same_networks() {
        let objects = objects(&[1, 4]);
        for (bridge, range) in networks(4) {
            assert!(objects.contains(&bridge) && objects.contains(&range), "{objects}");
        }
        assert_eq!(objects.matches("linkType").count(), 5);
    }
}
