//! Copies the manifests below `deploy/` into the Helm chart, so that each object is defined once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use knit_dev::places;

/// Directories of `deploy/` and their targets in the chart, without files for kustomize only.
const FOLDERS: [(&str, &str); 6] = [
    ("deploy/crds", "charts/knit/crds"),
    ("deploy/beside", "charts/knit/files/beside"),
    ("deploy/primary", "charts/knit/files/primary"),
    ("deploy/admission", "charts/knit/files/admission"),
    ("deploy/placement", "charts/knit/files/placement"),
    ("deploy/alerts", "charts/knit/files/alerts"),
];
/// A CRD among the policies: helm installs the CRDs in `crds/` before everything else.
const ADMISSION_CRD: (&str, &str) =
    ("deploy/admission/clusterranges.yaml", "charts/knit/crds/podnetwork.opdev.io_clusterranges.yaml");

/// Every copy. A generated file is copied in its new state, not from the disk.
pub fn copies(generated: &[(PathBuf, String)]) -> Vec<(PathBuf, String)> {
    let mut copies = Vec::new();
    for (folder, target) in FOLDERS {
        for (path, text) in manifests(Path::new(folder), generated) {
            let name = path.file_name().expect("a directory entry has a name");
            let target = if path == Path::new(ADMISSION_CRD.0) {
                ADMISSION_CRD.1.into()
            } else {
                Path::new(target).join(name)
            };
            copies.push((target, text));
        }
    }
    copies
}

/// Files in the chart's target directories that are no longer copies.
pub fn stale(files: &[(PathBuf, String)]) -> Vec<PathBuf> {
    let folders = FOLDERS.iter().map(|(_, target)| Path::new(target));
    let existing = folders.flat_map(|folder| {
        let entries = std::fs::read_dir(places::workspace().join(folder)).into_iter().flatten().flatten();
        entries.map(move |entry| folder.join(entry.file_name()))
    });
    existing.filter(|path| !files.iter().any(|(copy, _)| copy == path)).collect()
}

/// The manifests of a directory.
fn manifests(folder: &Path, generated: &[(PathBuf, String)]) -> BTreeMap<PathBuf, String> {
    let on_disk = std::fs::read_dir(places::workspace().join(folder)).into_iter().flatten().flatten();
    let mut texts: BTreeMap<PathBuf, String> = on_disk
        .filter_map(|entry| {
            Some((folder.join(entry.file_name()), std::fs::read_to_string(entry.path()).ok()?))
        })
        .collect();
    texts.extend(generated.iter().filter(|(path, _)| path.parent() == Some(folder)).cloned());
    texts.retain(|path, _| {
        path.extension().is_some_and(|ending| ending == "yaml") && !path.ends_with("kustomization.yaml")
    });
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crds_are_copied_to_crds_and_kustomizations_are_not_copied() {
        let generated = vec![(PathBuf::from("deploy/crds/new.yaml"), "new state".to_owned())];
        let copies = copies(&generated);
        let text = |path: &str| {
            copies.iter().find(|(copy, _)| copy == Path::new(path)).map(|(_, text)| text.as_str())
        };
        assert_eq!(text("charts/knit/crds/new.yaml"), Some("new state"));
        assert!(text(ADMISSION_CRD.1).is_some_and(|text| text.contains("CustomResourceDefinition")));
        assert!(text("charts/knit/files/admission/ranges.yaml").is_some());
        assert!(
            copies
                .iter()
                .all(|(path, text)| !text.contains("kind: Kustomization")
                    && !path.ends_with("kustomization.yaml")),
            "{copies:?}"
        );
    }
}
