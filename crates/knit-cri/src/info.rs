//! Verbose runtime information beyond the CRI fields: a JSON text under the key `info`.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The key that containerd and CRI-O use.
const KEY: &str = "info";

#[derive(Deserialize)]
struct Info {
    #[serde(default)]
    pid: u32,
}

/// The process that holds the namespaces; `None` if the runtime reports none. CRI-O without infra containers reports
/// none for a sandbox, only for its containers.
pub(crate) fn pid(info: &BTreeMap<String, String>) -> Option<u32> {
    let info: Info = serde_json::from_str(info.get(KEY)?).ok()?;
    (info.pid > 0).then_some(info.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(text: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(KEY.to_owned(), text.to_owned())])
    }

    #[test]
    fn the_pid_is_parsed_from_the_info_of_each_runtime() {
        // As containerd writes it for a sandbox, shortened.
        let containerd = r#"{"pid":2841804,"processStatus":"running","netNamespaceClosed":false,"image":"registry.k8s.io/pause:3.10.2","runtimeHandler":"","runtimeType":"io.containerd.runc.v2"}"#;
        assert_eq!(pid(&info(containerd)), Some(2_841_804));
        // As CRI-O documents it for a container, shortened; not recorded from a running CRI-O.
        let crio =
            r#"{"sandboxID":"5a7b","pid":4711,"runtimeSpec":{"ociVersion":"1.2.0"},"privileged":false}"#;
        assert_eq!(pid(&info(crio)), Some(4_711));
        // A CRI-O sandbox without infra container.
        assert_eq!(pid(&info(r#"{"image":"","pid":0}"#)), None);
        assert_eq!(pid(&info(r#"{"runtimeSpec":{}}"#)), None);
        assert_eq!(pid(&info("no JSON")), None);
        assert_eq!(pid(&BTreeMap::new()), None);
    }
}
