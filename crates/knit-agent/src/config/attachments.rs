//! NetworkAttachmentDefinitions: whether they are read, and which plugins may be run for them.

use knit_crds::attachments::Plugins;
use serde::{Deserialize, Serialize};

/// What the agent does about NetworkAttachmentDefinitions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AttachmentsConfig {
    /// Whether they, and the pods that name them, are read. Not beside Multus: one of the two does it.
    pub read: bool,
    /// Plugins that may be run for definitions whose type is no kind of Knit's, by their types, also those that give addresses.
    /// They run as root with whatever a definition says, so that none is run that is not named here.
    pub plugins: Vec<String>,
    /// Where plugins are looked for.
    pub plugin_dirs: Vec<String>,
    /// How long one plugin may take, 1 to 600 seconds.
    pub timeout_seconds: u64,
}

impl Default for AttachmentsConfig {
    fn default() -> Self {
        let plugin_dirs = ["/opt/cni/bin", "/usr/lib/cni"].map(str::to_owned).to_vec();
        Self { read: false, plugins: Vec::new(), plugin_dirs, timeout_seconds: 60 }
    }
}

impl AttachmentsConfig {
    /// Checks every value.
    pub(super) fn check(&self) -> Result<(), String> {
        let at = |key: &str, why: String| format!("networkAttachments.{key}: {why}");
        if !(1..=600).contains(&self.timeout_seconds) {
            return Err(at("timeoutSeconds", format!("{} is not between 1 and 600", self.timeout_seconds)));
        }
        if let Some(dir) = self.plugin_dirs.iter().find(|dir| !dir.starts_with('/')) {
            return Err(at("pluginDirs", format!("`{dir}` is no absolute path")));
        }
        let is_plugin = |kind: &&String| !kind.is_empty() && !kind.contains('/') && *kind != crate::cni::SHIM;
        match self.plugins.iter().find(|kind| !is_plugin(kind)) {
            Some(kind) => Err(at("plugins", format!("`{kind}` is no plugin that can be run here"))),
            None => Ok(()),
        }
    }

    /// Which plugins may be run.
    pub(crate) fn plugins(&self) -> Plugins {
        Plugins {
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
    fn what_is_no_plugin_is_named() {
        assert_eq!(AttachmentsConfig::default().check(), Ok(()));
        for wrong in ["", "../evil", "knit-cni"] {
            let config =
                AttachmentsConfig { plugins: vec![wrong.to_owned()], ..AttachmentsConfig::default() };
            assert!(config.check().unwrap_err().contains("networkAttachments.plugins"), "{wrong}");
        }
    }
}
