//! The agent installs the CNI plugin and its configuration, repairs them, and removes only its own files.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::support::agent::{Agent, Machine, netns};
use crate::support::cni::CniCall;
use knit_kni::frame::SHIM_MARK;
use knit_testbed::eventually;

const TIMEOUT: Duration = Duration::from_secs(10);

struct Files {
    shim: PathBuf,
    conf: PathBuf,
    flags: Vec<String>,
}

/// Temporary directories, and a file that stands in for the plugin.
fn files(machine: &Machine) -> Files {
    let source = machine.path("source");
    fs::write(&source, format!("#!/bin/sh\n# {SHIM_MARK}\n")).unwrap();
    let (bin, net) = (machine.path("bin"), machine.path("net.d"));
    fs::create_dir_all(&bin).unwrap();
    fs::create_dir_all(&net).unwrap();
    let flag = |name: &str, path: &PathBuf| format!("--{name}={}", path.display());
    let flags = vec![flag("cni-bin-dir", &bin), flag("cni-conf-dir", &net), flag("cni-shim", &source)];
    Files { shim: bin.join("knit-cni"), conf: net.join("10-knit.conflist"), flags }
}

fn start<'a>(machine: &'a Machine, files: &Files, install: bool) -> Agent<'a> {
    let mut flags: Vec<&str> = files.flags.iter().map(String::as_str).collect();
    if install {
        flags.push("--cni-install");
    }
    machine.agent_with(&flags, &[])
}

fn reasons(agent: &Agent<'_>) -> Vec<String> {
    let response = agent.with(|mut client| async move { client.get_readiness(Default::default()).await });
    let conditions = response.unwrap().new_pods.unwrap().conditions;
    conditions.into_iter().filter(|condition| !condition.ok).map(|condition| condition.reason).collect()
}

#[test]
fn plugin_and_configuration_are_installed_repaired_and_removed() {
    let machine = Machine::new("cni-files");
    let files = files(&machine);
    let other = files.conf.with_file_name("20-other.conflist");
    fs::write(&other, "{}").unwrap();
    let agent = start(&machine, &files, true);
    let there = || files.shim.exists() && files.conf.exists();
    eventually("both are installed", TIMEOUT, there);
    let text = fs::read_to_string(&files.conf).unwrap();
    assert!(text.contains(&machine.path("cni.sock").display().to_string()), "{text}");
    assert_eq!(reasons(&agent), Vec::<String>::new());

    fs::remove_file(&files.conf).unwrap();
    fs::write(&files.shim, format!("{SHIM_MARK}, an older one")).unwrap();
    let whole = || files.conf.exists() && fs::read_to_string(&files.shim).unwrap().starts_with("#!");
    eventually("missing and outdated files are restored", TIMEOUT, whole);
    assert_eq!(agent.stop(), Some(0));
    assert!(there(), "pods that live on are deleted through them");

    // Installation disabled while a pod exists that was added through CNI.
    let pod = machine.testbed.pod("one");
    let agent = start(&machine, &files, true);
    CniCall::new(&machine, "ADD", "c1", &netns(&pod)).succeeded();
    assert_eq!(agent.stop(), Some(0));
    let agent = start(&machine, &files, false);
    eventually("the configuration is removed", TIMEOUT, || !files.conf.exists());
    std::thread::sleep(Duration::from_secs(3));
    assert!(files.shim.exists(), "the pod is deleted through it");
    CniCall::new(&machine, "DEL", "c1", &netns(&pod)).succeeded();
    eventually("the plugin is removed", TIMEOUT, || !files.shim.exists());
    assert!(other.exists(), "it is someone else's");
    assert_eq!(agent.stop(), Some(0));
}

#[test]
fn a_shadowing_configuration_is_reported_and_blocks_new_pods() {
    let machine = Machine::new("cni-shadow");
    let files = files(&machine);
    let agent = start(&machine, &files, true);
    eventually("it is installed", TIMEOUT, || files.conf.exists());
    let other = files.conf.with_file_name("05-other.conf");
    fs::write(&other, "{}").unwrap();
    eventually("it is detected", TIMEOUT, || reasons(&agent) == ["CniShadowed"]);
    let (code, message) = CniCall::new(&machine, "STATUS", "", "").failed();
    assert_eq!(code, 50);
    assert!(message.contains("05-other.conf"), "{message}");
    eventually("it is reported", TIMEOUT, || machine.log().contains("05-other.conf"));
    fs::remove_file(&other).unwrap();
    eventually("it is removed", TIMEOUT, || reasons(&agent).is_empty());

    // A foreign file has the name.
    fs::write(&files.conf, "{}").unwrap();
    eventually("it is reported", TIMEOUT, || reasons(&agent) == ["CniNotInstalled"]);
    assert_eq!(fs::read_to_string(&files.conf).unwrap(), "{}");
}
