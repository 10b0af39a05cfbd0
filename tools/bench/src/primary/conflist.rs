//! A list of CNI plugins, called as a container runtime calls it: each plugin in turn, handed what the one before
//! answered.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// Where a node has its plugins.
const PLUGINS: &str = "/opt/cni/bin";

/// The list that a node's container runtime calls.
pub struct Conflist {
    name: Value,
    version: Value,
    plugins: Vec<Value>,
}

impl Conflist {
    /// The first list in a folder, which is the one that runtimes take.
    pub fn read(folder: &Path) -> Result<Self> {
        let entries =
            std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
        let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "conflist"));
        files.sort();
        let file = files.first().with_context(|| format!("no list of plugins is in {}", folder.display()))?;
        let list: Value = serde_json::from_slice(&std::fs::read(file)?)
            .with_context(|| format!("cannot read {}", file.display()))?;
        let plugins = list["plugins"].as_array().cloned().unwrap_or_default();
        Ok(Self { name: list["name"].clone(), version: list["cniVersion"].clone(), plugins })
    }

    /// Connects a pod, and returns what the last plugin answered. The calling thread is in the node.
    pub fn add(&self, pod: &str, netns: &str) -> Result<Value> {
        let mut result = Value::Null;
        for plugin in &self.plugins {
            let answer = self.call("ADD", plugin, pod, netns, &result)?;
            result = serde_json::from_slice(&answer).context("a plugin's answer is no JSON")?;
        }
        Ok(result)
    }

    /// Disconnects a pod.
    pub fn del(&self, pod: &str, netns: &str, result: &Value) -> Result<()> {
        for plugin in self.plugins.iter().rev() {
            self.call("DEL", plugin, pod, netns, result)?;
        }
        Ok(())
    }

    fn call(&self, verb: &str, plugin: &Value, pod: &str, netns: &str, result: &Value) -> Result<Vec<u8>> {
        let kind = plugin["type"].as_str().context("a plugin has a type")?;
        let mut config = plugin.clone();
        config["name"] = self.name.clone();
        config["cniVersion"] = self.version.clone();
        if !result.is_null() {
            config["prevResult"] = result.clone();
        }
        let about = [
            ("IgnoreUnknown", "1"),
            ("K8S_POD_NAMESPACE", "bench"),
            ("K8S_POD_NAME", pod),
            ("K8S_POD_INFRA_CONTAINER_ID", pod),
            ("K8S_POD_UID", pod),
        ];
        let about: Vec<String> = about.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let mut running = Command::new(format!("{PLUGINS}/{kind}"))
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", pod)
            .env("CNI_NETNS", netns)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", PLUGINS)
            .env("CNI_ARGS", about.join(";"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start the plugin {kind}"))?;
        let mut stdin = running.stdin.take().context("the plugin has a standard input")?;
        stdin.write_all(json!(config).to_string().as_bytes())?;
        drop(stdin);
        let done = running.wait_with_output()?;
        if !done.status.success() {
            let said = [done.stdout, done.stderr].concat();
            bail!("{verb} of {kind} failed: {}", String::from_utf8_lossy(&said));
        }
        Ok(done.stdout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_list_of_a_folder_is_the_one_that_counts() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Conflist::read(folder.path()).is_err());
        for (file, name) in [("20-b.conflist", "b"), ("10-a.conflist", "a"), ("05-c.txt", "c")] {
            let list = json!({"name": name, "cniVersion": "1.0.0", "plugins": [{"type": "bridge"}]});
            std::fs::write(folder.path().join(file), list.to_string()).unwrap();
        }
        let list = Conflist::read(folder.path()).unwrap();
        assert_eq!((list.name, list.plugins.len()), (json!("a"), 1));
    }
}
