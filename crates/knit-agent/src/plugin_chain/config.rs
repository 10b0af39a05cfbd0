//! Configured networks that chains of CNI plugins implement. Plugins run as root, so only the administrator configures them.

use std::path::PathBuf;

use knit_engine::plugin_chain::PluginChain;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};

/// A network implemented by existing CNI plugins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct CniNetwork {
    /// The path of the configuration list.
    pub conflist: PathBuf,
    /// Directories with CNI plugins.
    #[serde(default = "plugin_dirs")]
    pub plugin_dirs: Vec<String>,
    /// Timeout of one plugin, 1 to 600 seconds.
    #[serde(default = "timeout")]
    pub timeout_seconds: u64,
}

fn plugin_dirs() -> Vec<String> {
    vec!["/opt/cni/bin".to_owned(), "/usr/lib/cni".to_owned()]
}

fn timeout() -> u64 {
    60
}

impl CniNetwork {
    /// Validates every value. Does not read the file.
    pub fn check(&self, name: &str) -> Result<(), String> {
        let at = |key: &str, why: String| format!("cniNetworks.{name}.{key}: {why}");
        let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.');
        if name.is_empty() || name.len() > 63 || !name.chars().all(fits) || name == knit_engine::cluster::NAME
        {
            return Err(format!("cniNetworks: `{name}` is not a valid network name"));
        }
        if !(1..=600).contains(&self.timeout_seconds) {
            return Err(at("timeoutSeconds", format!("{} is not between 1 and 600", self.timeout_seconds)));
        }
        match self.plugin_dirs.iter().find(|dir| !dir.starts_with('/')) {
            Some(dir) => Err(at("pluginDirs", format!("`{dir}` is not an absolute path"))),
            None => Ok(()),
        }
    }

    /// Reads the chain from the file.
    pub fn read(&self, name: &str) -> Result<PluginChain> {
        let path = self.conflist.display().to_string();
        let conflist = std::fs::read_to_string(&self.conflist)
            .map_err(|source| Error::File { path: path.clone(), source })?;
        self.parse(conflist).map_err(|why| Error::Config { path, why: format!("network {name}: {why}") })
    }

    /// Validates a configuration list.
    pub fn parse(&self, conflist: String) -> Result<PluginChain, String> {
        let list: Value = serde_json::from_str(&conflist).map_err(|why| why.to_string())?;
        let plugins = list.get("plugins").and_then(Value::as_array).filter(|plugins| !plugins.is_empty());
        for plugin in plugins.ok_or("no `plugins` list")? {
            let kind = plugin.get("type").and_then(Value::as_str).unwrap_or_default();
            if kind.is_empty() || kind.contains('/') || kind == crate::cni::SHIM {
                return Err(format!("`{kind}` is not an allowed plugin type"));
            }
        }
        let timeout_seconds = self.timeout_seconds;
        Ok(PluginChain { conflist, plugin_dirs: self.plugin_dirs.clone(), timeout_seconds })
    }
}
