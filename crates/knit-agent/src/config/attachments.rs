//! NetworkAttachmentDefinitions: whether they are read, and which plugins they may run.

use knit_crds::attachments::AllowedPlugins;
use serde::{Deserialize, Serialize};

/// How the agent handles NetworkAttachmentDefinitions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AttachmentsConfig {
    /// Whether they and the pods that reference them are read. Do not enable it together with Multus.
    pub read: bool,
    /// Whether MultiNetworkPolicies are enforced on additional interfaces of pods.
    pub policies: bool,
    /// The types of plugins, IPAM plugins included, that may run for definitions of a type that Knit does not implement itself. Plugins
    /// run as root with the definition as input, so only listed ones run.
    pub plugins: Vec<String>,
    /// Directories with CNI plugins.
    pub plugin_dirs: Vec<String>,
    /// Timeout of one plugin, 1 to 600 seconds.
    pub timeout_seconds: u64,
}

impl Default for AttachmentsConfig {
    fn default() -> Self {
        let plugin_dirs = ["/opt/cni/bin", "/usr/lib/cni"].map(str::to_owned).to_vec();
        Self { read: false, policies: true, plugins: Vec::new(), plugin_dirs, timeout_seconds: 60 }
    }
}

impl AttachmentsConfig {
    /// Validates every value.
    pub(super) fn check(&self) -> Result<(), String> {
        let at = |key: &str, why: String| format!("networkAttachments.{key}: {why}");
        if !(1..=600).contains(&self.timeout_seconds) {
            return Err(at("timeoutSeconds", format!("{} is not between 1 and 600", self.timeout_seconds)));
        }
        if let Some(dir) = self.plugin_dirs.iter().find(|dir| !dir.starts_with('/')) {
            return Err(at("pluginDirs", format!("`{dir}` is not an absolute path")));
        }
        let is_plugin = |kind: &&String| !kind.is_empty() && !kind.contains('/') && *kind != crate::cni::SHIM;
        match self.plugins.iter().find(|kind| !is_plugin(kind)) {
            Some(kind) => Err(at("plugins", format!("`{kind}` is not an allowed plugin type"))),
            None => Ok(()),
        }
    }

    /// The plugins that may run.
    pub(crate) fn plugins(&self) -> AllowedPlugins {
        AllowedPlugins {
            types: self.plugins.clone(),
            dirs: self.plugin_dirs.clone(),
            timeout_seconds: self.timeout_seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_plugin_type_is_rejected() {
        assert_eq!(AttachmentsConfig::default().check(), Ok(()));
        for wrong in ["", "../evil", "knit-cni"] {
            let config =
                AttachmentsConfig { plugins: vec![wrong.to_owned()], ..AttachmentsConfig::default() };
            assert!(config.check().unwrap_err().contains("networkAttachments.plugins"), "{wrong}");
        }
    }
}
