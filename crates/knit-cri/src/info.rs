//! What runtimes tell beside CRI's own fields: a JSON text below the key `info`, by which people debug.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The key that containerd and CRI-O both use.
const KEY: &str = "info";

#[derive(Deserialize)]
struct Info {
    #[serde(default)]
    pid: u32,
}

/// The process that holds the namespaces; `None` if the runtime names none. A CRI-O without infra containers has none for
/// a sandbox, only for its containers.
pub(crate) fn pid(info: &BTreeMap<String, String>) -> Option<u32> {
    let info: Info = serde_json::from_str(info.get(KEY)?).ok()?;
    (info.pid > 0).then_some(info.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(KEY.to_owned(), text.to_owned())])
    }

    #[test]
    fn the_process_is_read_from_what_each_runtime_says() {
        // As containerd writes it for a sandbox, shortened.
        let containerd = r#"{"pid":2841804,"processStatus":"running","netNamespaceClosed":false,"image":"registry.k8s.io/pause:3.10.2","runtimeHandler":"","runtimeType":"io.containerd.runc.v2"}"#;
        assert_eq!(pid(&said(containerd)), Some(2_841_804));
        // As CRI-O writes it for a container, shortened: written after its documentation, not recorded from one.
        let crio =
            r#"{"sandboxID":"5a7b","pid":4711,"runtimeSpec":{"ociVersion":"1.2.0"},"privileged":false}"#;
        assert_eq!(pid(&said(crio)), Some(4_711));
        // A CRI-O sandbox without infra container.
        assert_eq!(pid(&said(r#"{"image":"","pid":0}"#)), None);
        assert_eq!(pid(&said(r#"{"runtimeSpec":{}}"#)), None);
        assert_eq!(pid(&said("no JSON")), None);
        assert_eq!(pid(&BTreeMap::new()), None);
    }
}
