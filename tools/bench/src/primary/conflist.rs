//! Calls the plugins of a CNI conflist like a container runtime: each with the result of the previous one.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// The directory of a node's plugins.
const PLUGINS: &str = "/opt/cni/bin";

/// The conflist of a node's container runtime.
pub struct Conflist {
    name: Value,
    version: Value,
    plugins: Vec<Value>,
}

impl Conflist {
    /// Reads the first conflist in a directory, which runtimes use.
    pub fn read(folder: &Path) -> Result<Self> {
        let entries =
            std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
        let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "conflist"));
        files.sort();
        let file = files.first().with_context(|| format!("no conflist in {}", folder.display()))?;
        let list: Value = serde_json::from_slice(&std::fs::read(file)?)
            .with_context(|| format!("cannot read {}", file.display()))?;
        let plugins = list["plugins"].as_array().cloned().unwrap_or_default();
        Ok(Self { name: list["name"].clone(), version: list["cniVersion"].clone(), plugins })
    }

    /// Connects a pod; returns the result of the last plugin. The calling thread is in the node's namespaces.
    pub fn add(&self, pod: &str, netns: &str) -> Result<Value> {
        let mut result = Value::Null;
        for plugin in &self.plugins {
            let output = self.call("ADD", plugin, pod, netns, &result)?;
            result = serde_json::from_slice(&output).context("a plugin's result is not JSON")?;
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
        let kind = plugin["type"].as_str().context("a plugin in the conflist has no type")?;
        let mut config = plugin.clone();
        config["name"] = self.name.clone();
        config["cniVersion"] = self.version.clone();
        if !result.is_null() {
            config["prevResult"] = result.clone();
        }
        let args = [
            ("IgnoreUnknown", "1"),
            ("K8S_POD_NAMESPACE", "bench"),
            ("K8S_POD_NAME", pod),
            ("K8S_POD_INFRA_CONTAINER_ID", pod),
            ("K8S_POD_UID", pod),
        ];
        let args: Vec<String> = args.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let mut running = Command::new(format!("{PLUGINS}/{kind}"))
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", pod)
            .env("CNI_NETNS", netns)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", PLUGINS)
            .env("CNI_ARGS", args.join(";"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start the plugin {kind}"))?;
        let mut stdin = running.stdin.take().context("the plugin's standard input is piped")?;
        stdin.write_all(json!(config).to_string().as_bytes())?;
        drop(stdin);
        let done = running.wait_with_output()?;
        if !done.status.success() {
            let output = [done.stdout, done.stderr].concat();
            bail!("{verb} of {kind} failed: {}", String::from_utf8_lossy(&output));
        }
        Ok(done.stdout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_conflist_of_a_directory_is_used() {
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
