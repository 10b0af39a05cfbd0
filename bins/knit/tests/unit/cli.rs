//! The command line: help, exit codes, completion and manual pages.

use std::process::{Command, Output};

/// Commands in help, completion and manual pages.
const COMMANDS: [&str; 12] = [
    "doctor",
    "version",
    "completion",
    "pods",
    "pod",
    "networks",
    "policy",
    "ready",
    "capacity",
    "gc",
    "watch",
    "logs",
];

fn knit(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_knit")).args(arguments).output().unwrap()
}

fn output_text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn invalid_commands_and_flags_exit_with_2() {
    for arguments in [
        &["docter"][..],
        &["doctor", "--outptu", "json"],
        &["doctor", "-o", "xml"],
        &["completion"],
        &["completion", "tcsh"],
        &[],
    ] {
        let output = knit(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn help_lists_every_command() {
    let output = knit(&["help"]);
    assert!(output.status.success());
    for command in COMMANDS {
        assert!(output_text(&output).contains(command), "{command}");
    }
    assert!(output_text(&knit(&["doctor", "--help"])).contains("Exit code: 0 if"));
}

#[test]
fn version_prints_the_package_version() {
    let text = output_text(&knit(&["version"]));
    assert!(text.starts_with(concat!("knit ", env!("CARGO_PKG_VERSION"))), "{text}");
    let json: serde_json::Value = serde_json::from_slice(&knit(&["version", "-o", "json"]).stdout).unwrap();
    assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
    assert!(json.as_object().unwrap().contains_key("commit"));
}

#[test]
fn version_and_help_list_the_built_in_features() {
    let built_in: Vec<&str> =
        [("cluster", cfg!(feature = "cluster")), ("fast-path", cfg!(feature = "fast-path"))]
            .into_iter()
            .filter_map(|(name, is_built_in)| is_built_in.then_some(name))
            .collect();
    let json: serde_json::Value = serde_json::from_slice(&knit(&["version", "-o", "json"]).stdout).unwrap();
    assert_eq!(json["features"], serde_json::json!(built_in));
    let list = if built_in.is_empty() { "none".to_owned() } else { built_in.join(", ") };
    assert!(output_text(&knit(&["version"])).ends_with(&format!("features: {list}\n")));
    assert!(output_text(&knit(&["--help"])).contains(&format!("Built-in features: {list}")));
}

#[test]
fn commands_for_clusters_are_offered_only_with_cluster_support() {
    for command in ["controller", "preflight", "uninstall"] {
        let output = knit(&[command, "--help"]);
        assert_eq!(output.status.success(), cfg!(feature = "cluster"), "{command}");
    }
    let output = knit(&["agent", "--profile", "beside", "--node-name", "a", "--print-config"]);
    assert_eq!(output.status.success(), cfg!(feature = "cluster"));
    if !cfg!(feature = "cluster") {
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("`beside` needs cluster support"), "{text}");
    }
}

#[test]
#[cfg(feature = "cluster")]
fn an_agent_of_a_cluster_opens_few_ranges_to_tenants_by_default() {
    let opened = |arguments: &[&str]| -> Vec<String> {
        let cluster = ["agent", "--profile", "beside", "--node-name", "a", "--print-config"];
        let printed = output_text(&knit(&[&cluster[..], arguments].concat()));
        let config: serde_json::Value = serde_saphyr::from_str(&printed).unwrap();
        serde_json::from_value(config["tenantRanges"].clone()).unwrap()
    };
    assert_eq!(opened(&[]), ["192.168.96.0/19", "fd74:6b6e:6974::/48"]);
    assert_eq!(opened(&["--tenant-ranges", "10.0.0.0/8,fd00::/8"]), ["10.0.0.0/8", "fd00::/8"]);
    assert_eq!(opened(&["--tenant-ranges", ""]), [""; 0]);
    let wrong = knit(&["agent", "--tenant-ranges", "10.0.0.0"]);
    assert!(!wrong.status.success());
    let message = String::from_utf8(wrong.stderr).unwrap();
    assert!(message.contains("`10.0.0.0`"), "{message}");
}

#[test]
fn completion_scripts_have_all_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let output = knit(&["completion", shell]);
        assert!(output.status.success(), "{shell}");
        for command in COMMANDS {
            assert!(output_text(&output).contains(command), "{shell} {command}");
        }
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let man = folder.path().join("man1");
    assert!(knit(&["man", man.to_str().unwrap()]).status.success());
    let page = |name: &str| std::fs::read_to_string(man.join(name)).unwrap();
    for command in COMMANDS {
        assert!(page("knit.1").contains(&format!("knit\\-{command}(1)")), "{command}");
        assert!(page(&format!("knit-{command}.1")).contains(&format!("knit {command}")), "{command}");
    }
    assert!(page("knit-sandbox-add.1").contains("KEY=VALUE"));
    assert!(page("knit-policy-why.1").contains("Exit code: 0 if"));
    assert!(!man.join("knit-sandbox-hold.1").exists(), "hidden commands have no page");
}
