//! Changes to a program's source that are made while it is built. The source in Go's module cache stays as it is.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use knit_dev::process;
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

/// Cyclonus can have each pod probe all others with one command, but its option for that is commented out. Otherwise each of
/// the 324 probes of a step is a command in a container of its own, which takes five times as long.
const PROBES_IN_BATCHES: SourceChange = SourceChange {
    file: "pkg/cli/generate.go",
    from: "batchJobs := false // args.BatchJobs",
    to: "batchJobs := true",
};

/// The changes to the programs of a module.
pub fn of(module: Module) -> &'static [SourceChange] {
    match module {
        Module::Cyclonus => &[PROBES_IN_BATCHES],
        Module::NetworkPolicyApi => &[WITHOUT_SCTP_PROBES],
        _ => &[],
    }
}

/// Has go build a changed copy of the module. The directory must exist during the build.
pub fn apply(module: Module, go: &mut Command) -> Result<Option<TempDir>> {
    let changes = of(module);
    if changes.is_empty() {
        return Ok(None);
    }
    let folder = tempfile::tempdir().context("cannot create a directory for changed source files")?;
    let copy = folder.path().join("module");
    // The files in Go's module cache are read-only.
    let mut cp = Command::new("cp");
    process::output(cp.args(["-r", "--no-preserve=mode"]).arg(module_folder(module)?).arg(&copy))?;
    for change in changes {
        let file = copy.join(change.file);
        let text = read(&file)?;
        write(&file, &change.apply(&text)?)?;
    }
    // go does not replace single files of the module cache, only whole modules.
    let replace = format!("\nreplace {} => {}\n", module.path(), copy.display());
    let replaced = folder.path().join("replaced.mod");
    write(&replaced, &(read(&module.source().join("go.mod"))? + &replace))?;
    write(&replaced.with_extension("sum"), &read(&module.source().join("go.sum"))?)?;
    go.arg("-modfile").arg(&replaced);
    Ok(Some(folder))
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
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
