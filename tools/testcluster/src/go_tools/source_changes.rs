//! Changes to a program's source that are made while it is built. The source in Go's module cache stays as it is.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tempfile::TempDir;

use super::{Module, module_folder};

/// A change to one file.
pub struct SourceChange {
    /// The file, relative to the module.
    file: &'static str,
    /// A text that occurs once in the file.
    from: &'static str,
    /// What replaces it.
    pub to: &'static str,
}

/// Tests of several protocols also probe SCTP, and there is no option to leave that out. Without SCTP in the kernel every
/// such test would fail, whatever its TCP and UDP probes found.
const WITHOUT_SCTP_PROBES: SourceChange = SourceChange {
    file: "conformance/utils/kubernetes/helper.go",
    from: "\trequire.Eventually(t, func() bool {",
    to: "\tif protocol == \"sctp\" {\n\t\tt.Logf(\"not probed: the kernel does not have SCTP\")\n\t\treturn\n\t}\n\
         \trequire.Eventually(t, func() bool {",
};

/// The changes to the programs of a module.
pub fn of(module: Module) -> &'static [SourceChange] {
    match module {
        Module::NetworkPolicyApi => &[WITHOUT_SCTP_PROBES],
        _ => &[],
    }
}

/// Has go build the module with its changes. The directory must exist during the build.
pub fn apply(module: Module, go: &mut Command) -> Result<Option<TempDir>> {
    let changes = of(module);
    if changes.is_empty() {
        return Ok(None);
    }
    let source = module_folder(module)?;
    let folder = tempfile::tempdir().context("cannot create a directory for changed source files")?;
    let mut replaced = serde_json::Map::new();
    for (index, change) in changes.iter().enumerate() {
        let original = source.join(change.file);
        let text =
            fs::read_to_string(&original).with_context(|| format!("cannot read {}", original.display()))?;
        let changed = folder.path().join(format!("{index}.go"));
        fs::write(&changed, change.apply(&text)?)
            .with_context(|| format!("cannot write {}", changed.display()))?;
        replaced.insert(original.display().to_string(), json!(changed));
    }
    let overlay = folder.path().join("overlay.json");
    fs::write(&overlay, json!({ "Replace": replaced }).to_string())
        .with_context(|| format!("cannot write {}", overlay.display()))?;
    go.arg("-overlay").arg(&overlay);
    Ok(Some(folder))
}

impl SourceChange {
    fn apply(&self, text: &str) -> Result<String> {
        let found = text.matches(self.from).count();
        ensure!(found == 1, "{} contains {found} times, not once: {}", self.file, self.from);
        Ok(text.replace(self.from, self.to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_applies_only_where_its_text_occurs_once() {
        let change = SourceChange { file: "a.go", from: "old()", to: "new()" };
        assert_eq!(change.apply("{ old() }").unwrap(), "{ new() }");
        for text in ["{ }", "{ old(); old() }"] {
            assert!(change.apply(text).is_err(), "{text}");
        }
    }
}
