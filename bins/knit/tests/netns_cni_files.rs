//! The agent installs the CNI shim and its configuration, keeps them, and removes only its own. Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod agent;
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod cni;
}

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use knit_kni::frame::SHIM_MARK;
use knit_testbed::eventually;
use support::agent::{Agent, Machine, netns};
use support::cni::Call;

const SOON: Duration = Duration::from_secs(10);

struct Files {
    shim: PathBuf,
    conf: PathBuf,
    flags: Vec<String>,
}

/// Folders of the test's own, and something that passes for the shim.
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
    let answer = agent.with(|mut client| async move { client.get_readiness(Default::default()).await });
    let conditions = answer.unwrap().new_pods.unwrap().conditions;
    conditions.into_iter().filter(|condition| !condition.ok).map(|condition| condition.reason).collect()
}

#[test]
fn both_files_are_installed_kept_and_removed_when_they_are_no_longer_wanted() {
    let machine = Machine::new("cni-files");
    let files = files(&machine);
    let other = files.conf.with_file_name("20-other.conflist");
    fs::write(&other, "{}").unwrap();
    let agent = start(&machine, &files, true);
    let there = || files.shim.exists() && files.conf.exists();
    eventually("both are installed", SOON, there);
    let text = fs::read_to_string(&files.conf).unwrap();
    assert!(text.contains(&machine.path("cni.sock").display().to_string()), "{text}");
    assert_eq!(reasons(&agent), Vec::<String>::new());

    fs::remove_file(&files.conf).unwrap();
    fs::write(&files.shim, format!("{SHIM_MARK}, an older one")).unwrap();
    let whole = || files.conf.exists() && fs::read_to_string(&files.shim).unwrap().starts_with("#!");
    eventually("what is missing or old is put back", SOON, whole);
    assert_eq!(agent.stop(), Some(0));
    assert!(there(), "pods that live on are deleted through them");

    // No longer wanted, while a pod is there that was added through them.
    let pod = machine.testbed.pod("one");
    let agent = start(&machine, &files, true);
    Call::new(&machine, "ADD", "c1", &netns(&pod)).done();
    assert_eq!(agent.stop(), Some(0));
    let agent = start(&machine, &files, false);
    eventually("the configuration goes", SOON, || !files.conf.exists());
    std::thread::sleep(Duration::from_secs(3));
    assert!(files.shim.exists(), "the pod is deleted through it");
    Call::new(&machine, "DEL", "c1", &netns(&pod)).done();
    eventually("the shim goes", SOON, || !files.shim.exists());
    assert!(other.exists(), "it is someone else's");
    assert_eq!(agent.stop(), Some(0));
}

#[test]
fn a_configuration_that_runtimes_would_take_instead_is_said_and_keeps_new_pods_away() {
    let machine = Machine::new("cni-shadow");
    let files = files(&machine);
    let agent = start(&machine, &files, true);
    eventually("it is installed", SOON, || files.conf.exists());
    let other = files.conf.with_file_name("05-other.conf");
    fs::write(&other, "{}").unwrap();
    eventually("it is noticed", SOON, || reasons(&agent) == ["CniShadowed"]);
    let (code, message) = Call::new(&machine, "STATUS", "", "").failed();
    assert_eq!(code, 50);
    assert!(message.contains("05-other.conf"), "{message}");
    eventually("it is said", SOON, || machine.log().contains("05-other.conf"));
    fs::remove_file(&other).unwrap();
    eventually("it is forgotten", SOON, || reasons(&agent).is_empty());

    // Someone else's file has the name.
    fs::write(&files.conf, "{}").unwrap();
    eventually("it is said", SOON, || reasons(&agent) == ["CniNotInstalled"]);
    assert_eq!(fs::read_to_string(&files.conf).unwrap(), "{}");
}
