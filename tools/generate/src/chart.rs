//! The chart's copies of the manifests below `deploy/`, so that there is one place where each object is written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use knit_dev::places;

/// Where the files of a folder of `deploy/` go in the chart. What kustomize alone reads does not.
const FOLDERS: [(&str, &str); 6] = [
    ("deploy/crds", "charts/knit/crds"),
    ("deploy/beside", "charts/knit/files/beside"),
    ("deploy/primary", "charts/knit/files/primary"),
    ("deploy/admission", "charts/knit/files/admission"),
    ("deploy/placement", "charts/knit/files/placement"),
    ("deploy/alerts", "charts/knit/files/alerts"),
];
/// A definition among the policies: helm makes definitions before everything else, if it finds them here.
const DEFINITION: (&str, &str) =
    ("deploy/admission/clusterranges.yaml", "charts/knit/crds/podnetwork.opdev.io_clusterranges.yaml");

/// Every copy. A file that is generated is taken as it is now, not as it lies on the disk.
pub fn copies(generated: &[(PathBuf, String)]) -> Vec<(PathBuf, String)> {
    let mut copies = Vec::new();
    for (folder, target) in FOLDERS {
        for (path, text) in manifests(Path::new(folder), generated) {
            let name = path.file_name().expect("a file of a folder has a name");
            let target = if path == Path::new(DEFINITION.0) {
                DEFINITION.1.into()
            } else {
                Path::new(target).join(name)
            };
            copies.push((target, text));
        }
    }
    copies
}

/// Files in the chart's folders of copies that are no copy of anything any more.
pub fn strays(files: &[(PathBuf, String)]) -> Vec<PathBuf> {
    let folders = FOLDERS.iter().map(|(_, target)| Path::new(target));
    let there = folders.flat_map(|folder| {
        let entries = std::fs::read_dir(places::workspace().join(folder)).into_iter().flatten().flatten();
        entries.map(move |entry| folder.join(entry.file_name()))
    });
    there.filter(|path| !files.iter().any(|(copy, _)| copy == path)).collect()
}

/// The manifests of a folder.
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
    fn definitions_go_where_helm_looks_for_them_and_kustomizations_nowhere() {
        let generated = vec![(PathBuf::from("deploy/crds/new.yaml"), "as it is now".to_owned())];
        let copies = copies(&generated);
        let text = |path: &str| {
            copies.iter().find(|(copy, _)| copy == Path::new(path)).map(|(_, text)| text.as_str())
        };
        assert_eq!(text("charts/knit/crds/new.yaml"), Some("as it is now"));
        assert!(text(DEFINITION.1).is_some_and(|text| text.contains("CustomResourceDefinition")));
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
