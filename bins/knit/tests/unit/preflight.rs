//! `knit preflight` without a cluster.

use std::process::{Command, Output};

fn preflight(kubeconfig: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    std::fs::write(&path, kubeconfig).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_knit"));
    command.arg("preflight").arg("--kubeconfig").arg(&path).output().unwrap()
}

fn kubeconfig(server: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: '{server}'}}}}]\n\
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{token: t}}}}]\n"
    )
}

#[test]
fn an_unreachable_api_server_exits_with_1() {
    // Nothing listens on port 1 of the loopback.
    let response = preflight(&kubeconfig("http://127.0.0.1:1"));
    let printed = String::from_utf8_lossy(&response.stderr).into_owned();
    assert_eq!(response.status.code(), Some(1), "{printed}");
    assert!(printed.starts_with("knit: cannot reach http://127.0.0.1:1/"), "{printed}");
}

#[test]
fn an_invalid_kubeconfig_exits_with_1() {
    let response = preflight("{nonsense");
    let printed = String::from_utf8_lossy(&response.stderr).into_owned();
    assert_eq!(response.status.code(), Some(1), "{printed}");
    assert!(printed.starts_with("knit: kubeconfig /"), "{printed}");
}
