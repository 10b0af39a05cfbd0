//! The kinds as a real API server sees them: accepted, explained, and refusing what cannot be, in words.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
}

use std::io::Write;
use std::process::Stdio;

use support::kubectl::{Namespace, command, kubectl, text};

/// Applies a manifest and returns what kubectl says, good or bad.
fn try_apply(namespace: &Namespace, manifest: &str) -> (bool, String) {
    let mut child = command(&["-n", &namespace.name, "apply", "-f", "-"]);
    let mut child =
        child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(manifest.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.success(), text(&output))
}

fn podconfig(name: &str, entry: &str) -> String {
    format!(
        "apiVersion: podconfig.opdev.io/v1alpha1\nkind: PodConfig\nmetadata: {{name: {name}}}\nspec:\n  networkAttachments:\n    - {entry}\n"
    )
}

#[test]
fn the_api_server_takes_the_kinds_explains_them_and_refuses_bad_values_in_words() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/crds");
    kubectl(&["apply", "--server-side", "-f", folder]);
    kubectl(&[
        "wait",
        "--for=condition=Established",
        "crd",
        "--timeout=60s",
        "-l",
        "app.kubernetes.io/part-of=knit",
    ]);

    let namespace = Namespace::new("crds");
    let good = "{name: pc0, linkType: veth, master: pcbr0, parent: pc0, cidr: 192.168.100.0/24}";
    let (accepted, said) = try_apply(&namespace, &podconfig("good", good));
    assert!(accepted, "{said}");
    assert!(namespace.kubectl(&["get", "knit"]).contains("good"));
    assert!(kubectl(&["explain", "podconfig.spec.networkAttachments.cidr"]).contains("DESCRIPTION"));

    let bad = [
        ("{name: farTooLongAName, linkType: veth, master: pcbr0, cidr: 192.168.100.0/24}", "7"),
        ("{name: pc0, linkType: nonsense, master: pcbr0, cidr: 192.168.100.0/24}", "nonsense"),
        ("{name: pc0, linkType: veth, master: pcbr0, cidr: 192.168.100.7/24}", "192.168.100"),
    ];
    for (entry, word) in bad {
        let (accepted, said) = try_apply(&namespace, &podconfig("bad", entry));
        assert!(!accepted, "{entry} was accepted");
        assert!(said.contains("networkAttachments[0]") && said.contains(word), "{entry}: {said}");
    }
}
