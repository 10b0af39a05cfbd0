//! Networks that existing CNI plugins make, under Knit's journal and garbage collection. Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod agent;
    pub mod chain;
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod cni;
}

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use knit_kni::{Error, v1};
use knit_testbed::{Dump, Pod, eventually};
use serde_json::{Value, json};
use support::agent::{Agent, Machine, netns};
use support::chain::{bridge, configure, leases, on_legacy_at};
use support::cni::Call;

const SOON: Duration = Duration::from_secs(10);

/// A plugin of the test's own: it writes down what it is asked, then does this.
fn script(machine: &Machine, what: &str) -> Value {
    let folder = machine.path("plugins");
    fs::create_dir_all(&folder).unwrap();
    let (file, log) = (folder.join("scripted"), machine.path("asked"));
    let text =
        format!("#!/bin/sh\ncat > {0}.config\necho $CNI_COMMAND $CNI_IFNAME >> {0}\n{what}\n", log.display());
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    json!([{ "type": "scripted" }])
}

fn asked(machine: &Machine) -> Vec<String> {
    let text = fs::read_to_string(machine.path("asked")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn on_legacy(id: &str, pod: &Pod, name: &str) -> v1::AttachRequest {
    on_legacy_at(id, &netns(pod), name)
}

fn interfaces(agent: &Agent<'_>, id: &str) -> Vec<String> {
    let pod = agent.pod(id).unwrap_or_default();
    pod.interfaces.into_iter().map(|interface| interface.name).collect()
}

#[test]
fn an_existing_plugin_makes_an_interface_that_knit_knows_and_takes_away() {
    let machine = Machine::new("chain-bridge");
    let pod = machine.testbed.pod("one");
    let flag = configure(&machine, &bridge(&machine));
    let agent = machine.agent_with(&[&flag], &[]);
    let inside = Dump::settled(pod.namespace());
    agent.try_attach(on_legacy("sb1", &pod, "net1")).unwrap();
    let known = agent.pod("sb1").unwrap();
    let interface = &known.interfaces[0];
    assert_eq!((interface.name.as_str(), interface.kind.as_str()), ("net1", "cni"));
    assert_eq!((interface.network.as_str(), interface.ready), ("legacy", true));
    assert_eq!(interface.addresses[0].address, "10.89.0.2");
    assert!(!interface.host_link.is_empty() && !interface.mac.is_empty(), "{interface:?}");
    pod.ping("10.89.0.1").unwrap();
    // The same again is the same answer, and no second lease.
    agent.try_attach(on_legacy("sb1", &pod, "net1")).unwrap();
    assert_eq!(leases(&machine), 1);
    // Beside one of Knit's own, and each goes alone.
    agent.attach("sb1", &pod);
    assert_eq!(interfaces(&agent, "sb1").len(), 2);
    assert_eq!(agent.detach("sb1", &["net1"]).detached, ["net1"]);
    assert_eq!((interfaces(&agent, "sb1"), leases(&machine)), (vec!["eth0".to_owned()], 0));
    pod.ping("10.75.0.1").unwrap();
    agent.try_attach(on_legacy("sb1", &pod, "net1")).unwrap();
    agent.delete("sb1");
    assert_eq!((agent.pod("sb1"), leases(&machine), agent.used()), (None, 0, 0));
    eventually("the namespace is as before", SOON, || !pod.namespace().ip(&["-o", "link"]).contains("knit"));
    inside.assert_unchanged(pod.namespace());
}

#[test]
fn a_runtime_reaches_it_through_the_shim_and_gc_takes_it_away() {
    let machine = Machine::new("chain-shim");
    let pods = ["one", "two"].map(|name| machine.testbed.pod(name));
    let flag = configure(&machine, &bridge(&machine));
    let agent = machine.agent_with(&[&flag], &[]);
    let add = |id: &str, pod| Call::new(&machine, "ADD", id, &netns(pod)).with("network", "legacy");
    let result = add("c1", &pods[0]).done();
    assert_eq!(result["ips"][0]["address"], "10.89.0.2/24", "{result}");
    add("c2", &pods[1]).done();
    let (code, message) = add("c1", &pods[0]).failed();
    assert_eq!(code, 100, "{message}");
    Call { command: "DEL", began: knit_cni::since_boot(), ..add("c1", &pods[0]) }.done();
    assert_eq!((agent.pod("c1"), leases(&machine)), (None, 1));
    Call::new(&machine, "GC", "", "").done();
    assert_eq!((agent.pod("c2"), leases(&machine)), (None, 0));
    assert!(!pods[1].namespace().ip(&["-o", "link"]).contains("eth0"));
}

#[test]
fn a_namespace_that_goes_is_told_to_the_plugins() {
    let machine = Machine::new("chain-gone");
    let flag = configure(&machine, &bridge(&machine));
    let agent = machine.agent_with(&[&flag, "--census-seconds", "1"], &[]);
    let mut holder = std::process::Command::new("unshare").args(["--net", "sleep", "1000"]).spawn().unwrap();
    let path = format!("/proc/{}/ns/net", holder.id());
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    eventually("it has a namespace", SOON, || fs::read_link(&path).is_ok_and(|there| there != own));
    let attached = agent.try_attach(on_legacy_at("sb1", &path, "eth0"));
    holder.kill().unwrap();
    holder.wait().unwrap();
    attached.unwrap();
    eventually("the lease is free", SOON, || leases(&machine) == 0);
    assert!(agent.pod("sb1").is_none());
}

#[test]
fn what_a_plugin_says_is_told_and_what_it_began_is_taken_back() {
    let machine = Machine::new("chain-fails");
    let pod = machine.testbed.pod("one");
    let flag = configure(
        &machine,
        &script(
            &machine,
            r#"[ $CNI_COMMAND = DEL ] && exit 0
echo '{"code": 77, "msg": "no luck today"}'; exit 1"#,
        ),
    );
    let agent = machine.agent_with(&[&flag], &[]);
    let why = agent.try_attach(on_legacy("sb1", &pod, "eth0")).unwrap_err();
    let Error::Refused { message, .. } = &why else { panic!("{why}") };
    for word in ["legacy", "scripted", "77", "no luck today"] {
        assert!(message.contains(word), "{message}");
    }
    assert_eq!(asked(&machine), ["ADD eth0", "DEL eth0"]);
    assert!(agent.pod("sb1").is_none());
}

#[test]
fn a_plugin_that_hangs_is_ended_and_nobody_else_waits_for_it() {
    let machine = Machine::new("chain-hangs");
    let pods = ["one", "two"].map(|name| machine.testbed.pod(name));
    let flag = configure(&machine, &script(&machine, "[ $CNI_COMMAND = DEL ] || sleep 100"));
    let agent = machine.agent_with(&[&flag], &[]);
    std::thread::scope(|scope| {
        let hung = scope.spawn(|| agent.try_attach(on_legacy("sb1", &pods[0], "eth0")).unwrap_err());
        eventually("it hangs", SOON, || asked(&machine) == ["ADD eth0"]);
        let began = std::time::Instant::now();
        agent.attach("sb2", &pods[1]);
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
        let why = hung.join().unwrap().to_string();
        assert!(why.contains("5 s") && why.contains("killed"), "{why}");
    });
    assert_eq!(asked(&machine), ["ADD eth0", "DEL eth0"]);
}

#[test]
fn killed_in_the_middle_of_an_add_the_next_agent_runs_the_del() {
    let machine = Machine::new("chain-kill");
    let pod = machine.testbed.pod("one");
    let flag = configure(&machine, &script(&machine, "[ $CNI_COMMAND = DEL ] || sleep 1"));
    let agent = machine.agent_with(&[&flag], &[]);
    std::thread::scope(|scope| {
        let socket = agent.socket();
        let request = on_legacy("sb1", &pod, "eth0");
        let cut = scope.spawn(move || {
            support::agent::runtime().block_on(async move {
                knit_kni::Client::connect(socket).await.unwrap().attach(request).await.is_err()
            })
        });
        eventually("it is under way", SOON, || asked(&machine) == ["ADD eth0"]);
        agent.crash();
        assert!(cut.join().unwrap());
    });
    let agent = machine.agent_with(&[&flag], &[]);
    eventually("the plugin is told", SOON, || asked(&machine) == ["ADD eth0", "DEL eth0"]);
    eventually("nothing is known of it", SOON, || agent.pod("sb1").is_none());
}

#[test]
fn a_del_that_fails_is_told_and_tried_again() {
    let machine = Machine::new("chain-stuck");
    let pod = machine.testbed.pod("one");
    let stop = machine.path("stuck");
    fs::write(&stop, "").unwrap();
    let what = format!(
        "[ $CNI_COMMAND = ADD ] && echo '{{}}'\n[ $CNI_COMMAND = DEL ] && [ -e {} ] && exit 3; exit 0",
        stop.display()
    );
    let flag = configure(&machine, &script(&machine, &what));
    let agent = machine.agent_with(&[&flag, "--resync-seconds", "1"], &[]);
    agent.try_attach(on_legacy("sb1", &pod, "eth0")).unwrap();
    let request = v1::DetachRequest {
        pod: Some(support::agent::reference("sb1")),
        interfaces: vec!["eth0".to_owned()],
        ..Default::default()
    };
    let why = agent.with(|mut client| async move { client.detach(request).await }).unwrap_err();
    assert!(why.to_string().contains("scripted"), "{why}");
    fs::remove_file(&stop).unwrap();
    eventually("it is tried again", SOON, || interfaces(&agent, "sb1").is_empty());
}

#[test]
fn a_plugin_that_can_do_it_is_told_the_ranges_and_the_device() {
    let machine = Machine::new("chain-places");
    let pod = machine.testbed.pod("one");
    let mut plugins = script(&machine, "[ $CNI_COMMAND = ADD ] && echo '{}'; exit 0");
    plugins[0]["capabilities"] = json!({ "ipRanges": true, "deviceID": true });
    let flag = configure(&machine, &plugins);
    let _agent = machine.agent_with(&[&flag], &[]);
    // They are the plugin's to judge: no network of Knit's has this range, and this node no such device.
    let ranges = json!([[{"subnet": "10.89.0.0/24", "rangeStart": "10.89.0.9", "gateway": "10.89.0.1"}]]);
    let asked = json!({ "ipRanges": ranges, "deviceID": "0000:7f:1f.6" });
    let add = Call::new(&machine, "ADD", "c1", &netns(&pod)).with("network", "legacy");
    add.with("runtimeConfig", asked.clone()).done();
    let told: Value = serde_json::from_slice(&fs::read(machine.path("asked.config")).unwrap()).unwrap();
    assert_eq!(told["runtimeConfig"], asked);
}
