//! Networks of chained CNI plugins: journal, rollback and garbage collection.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use crate::support::agent::{Agent, Machine, netns};
use crate::support::chain::{agent_with_plugins, attach_to_legacy, bridge, configure, leases};
use crate::support::cni::CniCall;
use knit_kni::{Error, v1};
use knit_testbed::{Dump, Pod, eventually};
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(10);

/// A test plugin: it records its input, then runs this script.
fn script(machine: &Machine, script: &str) -> Value {
    let folder = machine.path("plugins");
    fs::create_dir_all(&folder).unwrap();
    let (file, log) = (folder.join("scripted"), machine.path("asked"));
    let text = format!(
        "#!/bin/sh\ncat > {0}.config\necho $CNI_COMMAND $CNI_IFNAME >> {0}\n{script}\n",
        log.display()
    );
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    json!([{ "type": "scripted" }])
}

fn recorded_calls(machine: &Machine) -> Vec<String> {
    let text = fs::read_to_string(machine.path("asked")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn attach_pod_to_legacy(id: &str, pod: &Pod, name: &str) -> v1::AttachRequest {
    attach_to_legacy(id, &netns(pod), name)
}

fn interfaces(agent: &Agent<'_>, id: &str) -> Vec<String> {
    let pod = agent.pod(id).unwrap_or_default();
    pod.interfaces.into_iter().map(|interface| interface.name).collect()
}

#[test]
fn interfaces_of_chained_plugins_are_tracked_and_removed() {
    let machine = Machine::new("chain-bridge");
    let pod = machine.testbed.pod("one");
    let flag = configure(&machine, &bridge(&machine));
    let agent = agent_with_plugins(&machine, &[&flag]);
    let inside = Dump::settled(pod.namespace());
    agent.try_attach(attach_pod_to_legacy("sb1", &pod, "net1")).unwrap();
    let known = agent.pod("sb1").unwrap();
    let interface = &known.interfaces[0];
    assert_eq!((interface.name.as_str(), interface.kind.as_str()), ("net1", "cni"));
    assert_eq!((interface.network.as_str(), interface.ready), ("legacy", true));
    assert_eq!(interface.addresses[0].address, "10.89.0.2");
    assert!(!interface.host_link.is_empty() && !interface.mac.is_empty(), "{interface:?}");
    pod.ping("10.89.0.1").unwrap();
    // A repeated attach has the same result and no second lease.
    agent.try_attach(attach_pod_to_legacy("sb1", &pod, "net1")).unwrap();
    assert_eq!(leases(&machine), 1);
    // Together with an interface of Knit; each is detached separately.
    agent.attach("sb1", &pod);
    assert_eq!(interfaces(&agent, "sb1").len(), 2);
    assert_eq!(agent.detach("sb1", &["net1"]).detached, ["net1"]);
    assert_eq!((interfaces(&agent, "sb1"), leases(&machine)), (vec!["eth0".to_owned()], 0));
    pod.ping("10.75.0.1").unwrap();
    agent.try_attach(attach_pod_to_legacy("sb1", &pod, "net1")).unwrap();
    agent.delete("sb1");
    assert_eq!((agent.pod("sb1"), leases(&machine), agent.used_addresses()), (None, 0, 0));
    eventually("the namespace is as before", TIMEOUT, || {
        !pod.namespace().ip(&["-o", "link"]).contains("knit")
    });
    inside.assert_unchanged(pod.namespace());
}

#[test]
fn tuning_sets_network_sysctls_although_those_of_the_container_are_read_only() {
    let machine = Machine::new("chain-tuning");
    let pod = machine.testbed.pod("one");
    let mut plugins = bridge(&machine);
    let sysctls = json!({"net.ipv4.conf.net1.arp_notify": "1"});
    plugins.as_array_mut().unwrap().push(json!({"type": "tuning", "sysctl": sysctls}));
    let flag = configure(&machine, &plugins);
    let agent = agent_with_plugins(&machine, &[&flag]);
    agent.try_attach(attach_pod_to_legacy("sb1", &pod, "net1")).unwrap();
    assert_eq!(pod.sysctl("net.ipv4.conf.net1.arp_notify").unwrap(), "1");
    agent.delete("sb1");
    agent.stop();
}

#[test]
fn a_plugin_cannot_write_other_sysctls() {
    let machine = Machine::new("chain-sysctls");
    let pod = machine.testbed.pod("one");
    let write = "{ cat /proc/sys/kernel/core_pattern > /proc/sys/kernel/core_pattern; } 2>&1 && exit 0";
    let flag = configure(&machine, &script(&machine, &format!("{write}; exit 1")));
    let agent = agent_with_plugins(&machine, &[&flag]);
    let error = agent.try_attach(attach_pod_to_legacy("sb1", &pod, "net1")).unwrap_err();
    assert!(error.to_string().contains("exit status: 1"), "{error}");
    agent.stop();
}

#[test]
fn plugin_networks_work_through_cni_and_gc() {
    let machine = Machine::new("chain-shim");
    let pods = ["one", "two"].map(|name| machine.testbed.pod(name));
    let flag = configure(&machine, &bridge(&machine));
    let agent = agent_with_plugins(&machine, &[&flag]);
    let add = |id: &str, pod| CniCall::new(&machine, "ADD", id, &netns(pod)).with("network", "legacy");
    let result = add("c1", &pods[0]).succeeded();
    assert_eq!(result["ips"][0]["address"], "10.89.0.2/24", "{result}");
    add("c2", &pods[1]).succeeded();
    let (code, message) = add("c1", &pods[0]).failed();
    assert_eq!(code, 100, "{message}");
    CniCall { command: "DEL", started_at: knit_cni::boot_time_nanos(), ..add("c1", &pods[0]) }.succeeded();
    assert_eq!((agent.pod("c1"), leases(&machine)), (None, 1));
    CniCall::new(&machine, "GC", "", "").succeeded();
    assert_eq!((agent.pod("c2"), leases(&machine)), (None, 0));
    assert!(!pods[1].namespace().ip(&["-o", "link"]).contains("eth0"));
}

#[test]
fn del_runs_when_a_netns_disappears() {
    let machine = Machine::new("chain-gone");
    let flag = configure(&machine, &bridge(&machine));
    let agent = agent_with_plugins(&machine, &[&flag, "--sandbox-check-seconds", "1"]);
    let mut holder = std::process::Command::new("unshare").args(["--net", "sleep", "1000"]).spawn().unwrap();
    let path = format!("/proc/{}/ns/net", holder.id());
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    eventually("it has a namespace", TIMEOUT, || fs::read_link(&path).is_ok_and(|there| there != own));
    let attached = agent.try_attach(attach_to_legacy("sb1", &path, "eth0"));
    holder.kill().unwrap();
    holder.wait().unwrap();
    attached.unwrap();
    eventually("the lease is free", TIMEOUT, || leases(&machine) == 0);
    assert!(agent.pod("sb1").is_none());
}

#[test]
fn plugin_errors_are_reported_and_rolled_back() {
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
    let agent = agent_with_plugins(&machine, &[&flag]);
    let error = agent.try_attach(attach_pod_to_legacy("sb1", &pod, "eth0")).unwrap_err();
    let Error::Status { message, .. } = &error else { panic!("{error}") };
    for word in ["legacy", "scripted", "77", "no luck today"] {
        assert!(message.contains(word), "{message}");
    }
    assert_eq!(recorded_calls(&machine), ["ADD eth0", "DEL eth0"]);
    assert!(agent.pod("sb1").is_none());
}

#[test]
fn a_hanging_plugin_is_killed_and_blocks_no_other_call() {
    let machine = Machine::new("chain-hangs");
    let pods = ["one", "two"].map(|name| machine.testbed.pod(name));
    let flag = configure(&machine, &script(&machine, "[ $CNI_COMMAND = DEL ] || sleep 100"));
    let agent = agent_with_plugins(&machine, &[&flag]);
    std::thread::scope(|scope| {
        let hung =
            scope.spawn(|| agent.try_attach(attach_pod_to_legacy("sb1", &pods[0], "eth0")).unwrap_err());
        eventually("it hangs", TIMEOUT, || recorded_calls(&machine) == ["ADD eth0"]);
        let began = std::time::Instant::now();
        agent.attach("sb2", &pods[1]);
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
        let error = hung.join().unwrap().to_string();
        assert!(error.contains("5 s") && error.contains("killed"), "{error}");
    });
    assert_eq!(recorded_calls(&machine), ["ADD eth0", "DEL eth0"]);
}

#[test]
fn an_agent_killed_during_add_runs_del_after_its_restart() {
    let machine = Machine::new("chain-kill");
    let pod = machine.testbed.pod("one");
    let flag = configure(&machine, &script(&machine, "[ $CNI_COMMAND = DEL ] || sleep 1"));
    let agent = agent_with_plugins(&machine, &[&flag]);
    std::thread::scope(|scope| {
        let socket = agent.socket();
        let request = attach_pod_to_legacy("sb1", &pod, "eth0");
        let cut = scope.spawn(move || {
            crate::support::agent::runtime().block_on(async move {
                knit_kni::Client::connect(socket).await.unwrap().attach(request).await.is_err()
            })
        });
        eventually("the call is in progress", TIMEOUT, || recorded_calls(&machine) == ["ADD eth0"]);
        agent.crash();
        assert!(cut.join().unwrap());
    });
    let agent = agent_with_plugins(&machine, &[&flag]);
    eventually("the plugin is called", TIMEOUT, || recorded_calls(&machine) == ["ADD eth0", "DEL eth0"]);
    eventually("the pod is unknown", TIMEOUT, || agent.pod("sb1").is_none());
}

#[test]
fn a_failed_del_is_reported_and_retried() {
    let machine = Machine::new("chain-stuck");
    let pod = machine.testbed.pod("one");
    let stop = machine.path("stuck");
    fs::write(&stop, "").unwrap();
    let what = format!(
        "[ $CNI_COMMAND = ADD ] && echo '{{}}'\n[ $CNI_COMMAND = DEL ] && [ -e {} ] && exit 3; exit 0",
        stop.display()
    );
    let flag = configure(&machine, &script(&machine, &what));
    let agent = agent_with_plugins(&machine, &[&flag, "--resync-seconds", "1"]);
    agent.try_attach(attach_pod_to_legacy("sb1", &pod, "eth0")).unwrap();
    let request = v1::DetachRequest {
        pod: Some(crate::support::agent::reference("sb1")),
        interfaces: vec!["eth0".to_owned()],
        ..Default::default()
    };
    let error = agent.with(|mut client| async move { client.detach(request).await }).unwrap_err();
    assert!(error.to_string().contains("scripted"), "{error}");
    fs::remove_file(&stop).unwrap();
    eventually("it is retried", TIMEOUT, || interfaces(&agent, "sb1").is_empty());
}

#[test]
fn ranges_and_device_reach_plugins_with_the_capability() {
    let machine = Machine::new("chain-places");
    let pod = machine.testbed.pod("one");
    let mut plugins = script(&machine, "[ $CNI_COMMAND = ADD ] && echo '{}'; exit 0");
    plugins[0]["capabilities"] = json!({ "ipRanges": true, "deviceID": true });
    let flag = configure(&machine, &plugins);
    let _agent = agent_with_plugins(&machine, &[&flag]);
    // Only the plugin validates them: Knit has neither the range nor the device.
    let ranges = json!([[{"subnet": "10.89.0.0/24", "rangeStart": "10.89.0.9", "gateway": "10.89.0.1"}]]);
    let requested = json!({ "ipRanges": ranges, "deviceID": "0000:7f:1f.6" });
    let add = CniCall::new(&machine, "ADD", "c1", &netns(&pod)).with("network", "legacy");
    add.with("runtimeConfig", requested.clone()).succeeded();
    let config: Value = serde_json::from_slice(&fs::read(machine.path("asked.config")).unwrap()).unwrap();
    assert_eq!(config["runtimeConfig"], requested);
}
