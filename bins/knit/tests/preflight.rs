//! `knit preflight` where there is no cluster to ask.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

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
fn an_api_server_that_cannot_be_asked_is_exit_code_1_and_named() {
    // Port 1 of the loopback: nobody listens.
    let answer = preflight(&kubeconfig("http://127.0.0.1:1"));
    let said = String::from_utf8_lossy(&answer.stderr).into_owned();
    assert_eq!(answer.status.code(), Some(1), "{said}");
    assert!(said.starts_with("knit: cannot ask http://127.0.0.1:1/"), "{said}");
}

#[test]
fn a_kubeconfig_that_is_none_is_exit_code_1_and_named() {
    let answer = preflight("{nonsense");
    let said = String::from_utf8_lossy(&answer.stderr).into_owned();
    assert_eq!(answer.status.code(), Some(1), "{said}");
    assert!(said.starts_with("knit: kubeconfig /"), "{said}");
}
