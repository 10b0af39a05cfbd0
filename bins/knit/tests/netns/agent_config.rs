//! Configuration of the agent by flags, environment, file and directory; watch, logs, metrics and the support bundle.

use std::os::unix::fs::symlink;
use std::time::Duration;

use crate::support::agent::{Machine, attach, folder, netns, runtime};
use knit_kni::{Client, Reason, v1};
use knit_testbed::eventually;

const BRIDGE: &str = "apiVersion: podnetwork.opdev.io/v1alpha1
kind: Bridge
metadata: { name: extra }
spec: { name: extra0, cidr: 10.99.0.0/24 }
";

#[test]
fn flags_override_the_environment_which_overrides_the_file() {
    let machine = Machine::new("agent-flags");
    let file = machine.path("config.yaml");
    std::fs::write(&file, "logLevel: debug\nworkers: 2\nnodeName: from-file\n").unwrap();
    let print = |arguments: &[&str], environment: &[(&str, &str)]| {
        let mut command = machine.host.command(env!("CARGO_BIN_EXE_knit"));
        command.args(["agent", "--print-config", "--config"]).arg(&file).args(arguments);
        let output = command.envs(environment.iter().copied()).output().unwrap();
        (
            output.status.success(),
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
        )
    };
    let (ok, text) = print(&["--workers", "7"], &[("KNIT_WORKERS", "5"), ("KNIT_NODE_NAME", "from-env")]);
    assert!(ok && text.contains("workers: 7") && text.contains("nodeName: from-env"), "{text}");
    assert!(text.contains("logLevel: debug") && text.contains("10.75.0.0/16"), "{text}");
    std::fs::write(&file, "worker: 2\n").unwrap();
    let (ok, text) = print(&[], &[]);
    assert!(!ok && text.contains("worker"), "{text}");
    let (ok, text) = print(&["--cluster-ranges", "10.0.0.1/8"], &[]);
    assert!(!ok, "{text}");
}

#[test]
fn the_configuration_is_reloaded_and_an_invalid_one_is_rejected() {
    let machine = Machine::new("agent-config");
    let pod = machine.testbed.pod("one");
    // As the kubelet mounts a ConfigMap: the file is a symlink through a symlink, and the inner one is swapped.
    let mounted = folder(&machine.path("mounted"));
    let write = |version: &str, text: &str| {
        let data = folder(&mounted.join(version));
        std::fs::write(data.join("config.yaml"), text).unwrap();
        let _ = std::fs::remove_file(mounted.join("new"));
        symlink(version, mounted.join("new")).unwrap();
        std::fs::rename(mounted.join("new"), mounted.join("..data")).unwrap();
    };
    write("1", "clusterNetwork: { ranges: [10.1.0.0/16] }\n");
    symlink("..data/config.yaml", mounted.join("config.yaml")).unwrap();
    let file = mounted.join("config.yaml").display().to_string();
    let agent = machine.agent_with(&["--config", &file], &[]);
    let printed = |word: &str| {
        eventually(&format!("the log says {word}"), Duration::from_secs(10), || machine.log().contains(word));
    };
    write("2", "clusterNetwork: { ranges: [10.2.0.0/16] }\n");
    printed("configuration reloaded");
    write("3", "clusterNetwork: { ranges: [10.3.0.1/16] }\n");
    printed("the previous one stays in effect");
    let given = agent.attach("sb1", &pod).pod.unwrap().interfaces[0].addresses[0].address.clone();
    assert_eq!(given, "10.2.0.2");
    write("4", "clusterNetwork: { ranges: [10.4.0.0/16] }\n");
    printed("it cannot change while pods use it");
    write("5", "clusterNetwork: { ranges: [10.2.0.0/16] }\nworkers: 9\n");
    printed("some keys need a restart");
    pod.ping("10.2.0.1").unwrap();
}

#[test]
fn a_directory_with_objects_is_watched() {
    let machine = Machine::new("agent-folder");
    let agent = machine.agent();
    let has = |name: &str| machine.host.output("ip", &["link", "show", "dev", name]).is_ok();
    let file = machine.path("objects").join("bridge.yaml");
    std::fs::write(&file, BRIDGE).unwrap();
    eventually("the bridge is there", Duration::from_secs(10), || has("extra0"));
    std::fs::write(&file, BRIDGE.replace("10.99", "10.98")).unwrap();
    let follows = || machine.host.ip(&["-o", "address", "show", "dev", "extra0"]).contains("10.98.0.1/24");
    eventually("it follows the file", Duration::from_secs(10), follows);
    std::fs::write(&file, "kind: Nonsense\n").unwrap();
    eventually("an error is reported", Duration::from_secs(10), || {
        machine.log().contains("the previous ones stay")
    });
    assert!(has("extra0"));
    std::fs::remove_file(&file).unwrap();
    eventually("the bridge is removed with its file", Duration::from_secs(10), || !has("extra0"));
    assert!(has("knit0"), "what Knit brings along is not the folder's");
    // A command with the same state directory is rejected.
    let mut command = machine.host.command(env!("CARGO_BIN_EXE_knit"));
    let output = command.arg("get").arg("--state-dir").arg(machine.path("state")).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && printed.contains(&agent.pid().to_string()), "{printed}");
}

#[test]
fn the_ranges_that_are_open_to_tenants_are_reloaded() {
    let machine = Machine::new("agent-ranges");
    let file = machine.path("config.yaml");
    let configure = |ranges: &str| std::fs::write(&file, format!("tenantRanges: {ranges}\n")).unwrap();
    configure("[]");
    let _agent = machine.agent_with(&["--config", file.to_str().unwrap()], &[]);
    std::fs::write(machine.path("objects").join("bridge.yaml"), BRIDGE).unwrap();
    eventually("the bridge is reported", Duration::from_secs(10), || {
        machine.log().contains("no range is open to tenants")
    });
    let has_gateway =
        || machine.host.ip(&["-o", "address", "show", "dev", "extra0"]).contains("10.99.0.1/24");
    assert!(!has_gateway());
    configure("[10.99.0.0/16]");
    eventually("the range is open", Duration::from_secs(10), has_gateway);
    configure("[10.98.0.0/16]");
    eventually("the range is closed", Duration::from_secs(10), || !has_gateway());
    assert!(machine.host.ip(&["-o", "address", "show", "dev", "knit0"]).contains("10.75.0.1/16"));
}

#[test]
fn a_recording_replays_to_the_same_decisions() {
    let machine = Machine::new("agent-record");
    let (pod, file) = (machine.testbed.pod("one"), machine.path("recording"));
    let replay = || {
        let output =
            machine.host.command(env!("CARGO_BIN_EXE_knit")).arg("replay").arg(&file).output().unwrap();
        let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.code(), printed)
    };
    let recorded = file.display().to_string();
    // The first agent leaves a journal with which the second one starts.
    machine.agent().attach("s1", &pod);
    let agent = machine.agent_with(&["--record", &recorded], &[]);
    std::fs::write(machine.path("objects").join("bridge.yaml"), BRIDGE).unwrap();
    let has = || machine.host.output("ip", &["link", "show", "dev", "extra0"]).is_ok();
    eventually("the bridge is there", Duration::from_secs(10), has);
    agent.detach("s1", &[]);
    agent.attach("s2", &pod);
    // Inputs are written after what they cause.
    let is_recorded = || std::fs::read_to_string(&file).is_ok_and(|text| text.contains("attachRequested"));
    eventually("the attach is recorded", Duration::from_secs(10), is_recorded);
    agent.crash();
    let (code, printed) = replay();
    assert_eq!(code, Some(0), "{printed}");
    for expected in ["1 objectApplied", "1 attachRequested", " 0 inputs with different decisions"] {
        assert!(printed.contains(expected), "{expected}: {printed}");
    }
    // The recording goes on after a restart, also if the agent was killed while it wrote.
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, &text[..text.len() - 20]).unwrap();
    let agent = machine.agent_with(&["--record", &recorded], &[]);
    agent.detach("s2", &[]);
    agent.crash();
    let (code, printed) = replay();
    assert_eq!(code, Some(0), "{printed}");
    for expected in ["1 attachRequested", "2 detachRequested", "2 restarted", "reached its limit: 1"] {
        assert!(printed.contains(expected), "{expected}: {printed}");
    }
    // An event that the agent did not handle like this.
    std::fs::write(&file, text.replacen("10.99.0.0/24", "10.97.0.0/24", usize::MAX)).unwrap();
    let (code, printed) = replay();
    assert_eq!(code, Some(2), "{printed}");
    assert!(printed.contains("objectApplied: different from the recorded decision"), "{printed}");
    std::fs::write(&file, text.replacen("{\"handled\"", "{\"handed\"", 1)).unwrap();
    let (code, printed) = replay();
    assert!(code == Some(1) && printed.contains("recording:3"), "{code:?} {printed}");
}

#[test]
fn a_watch_has_all_changes_and_can_be_resumed() {
    let machine = Machine::new("agent-watch");
    let pods = ["one", "two"].map(|name| machine.testbed.pod(name));
    let agent = machine.agent();
    agent.attach("s1", &pods[0]);
    let paths = [netns(&pods[0]), netns(&pods[1])];
    let position = runtime().block_on(async {
        let mut client = Client::connect(agent.socket()).await.unwrap();
        let mut watch = client.watch(v1::WatchRequest::default()).await.unwrap();
        let mut known = Vec::new();
        loop {
            let event = watch.next().await.unwrap().unwrap();
            match (event.change(), event.object) {
                (v1::Change::Synced, _) => break,
                (v1::Change::Added | v1::Change::Modified, Some(object)) => known.push(object),
                other => panic!("{other:?}"),
            }
        }
        let is_pod = |object: &&v1::watch_event::Object| matches!(object, v1::watch_event::Object::Pod(_));
        assert_eq!(known.iter().filter(is_pod).count(), 1);
        assert!(known.len() >= 3, "a network and the readiness are there, too: {known:?}");
        let mut other = client.clone().with_call_id("my-call");
        other.attach(attach("s2", &paths[1])).await.unwrap();
        loop {
            let event = watch.next().await.unwrap().unwrap();
            if let Some(v1::watch_event::Object::Pod(pod)) = &event.object
                && event.call_id == "my-call"
            {
                assert_eq!(pod.id, "s2");
                return event.position;
            }
        }
    });
    agent.delete("s1");
    agent.crash();
    let agent = machine.agent();
    runtime().block_on(async {
        let mut client = Client::connect(agent.socket()).await.unwrap();
        let after = v1::WatchRequest { after: position.clone(), ..Default::default() };
        let mut watch = client.watch(after).await.unwrap();
        let mut gone = Vec::new();
        loop {
            let event = watch.next().await.unwrap().unwrap();
            match (event.change(), event.object) {
                (v1::Change::Bookmark, _) => break,
                (v1::Change::Deleted, Some(v1::watch_event::Object::Pod(pod))) => gone.push(pod.id),
                _ => {}
            }
        }
        assert_eq!(gone, ["s1"], "what happened while nobody watched is told");
        let lost = v1::Position { epoch: "another".to_owned(), ..position.unwrap() };
        let error = client.watch(v1::WatchRequest { after: Some(lost), ..Default::default() }).await;
        assert_eq!(error.err().unwrap().reason(), Some(Reason::PositionGone));
    });
}

#[test]
fn logs_metrics_and_health_are_served() {
    let machine = Machine::new("agent-tells");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent_with(
        &["--metrics-addr", "127.0.0.1:9475", "--health-addr", "127.0.0.1:9476", "--log-format", "text"],
        &[],
    );
    let response = agent.attach("sb1", &pod);
    assert!(agent.try_attach(attach("sb1", "/nonexistent")).is_err());
    let get = |port, path| machine.get(port, path);
    let metrics = get(9475, "/metrics");
    for line in [
        "knit_call_duration_seconds_count{call=\"attach\",result=\"ok\"} 1",
        "knit_call_duration_seconds_count{call=\"attach\",result=\"failed\"} 1",
        "knit_errors_total{reason=\"InvalidValue\"} 1",
        "knit_leases 2",
        "knit_sandboxes 1",
        "application/openmetrics-text",
        "# EOF",
    ] {
        assert!(metrics.contains(line), "{line} is missing:\n{metrics}");
    }
    assert!(get(9476, "/livez").contains("200 OK") && get(9476, "/readyz").contains("200 OK"));
    let lines = runtime().block_on(async {
        let mut client = Client::connect(agent.socket()).await.unwrap();
        let request = v1::LogsRequest { call_id: response.call_id.clone(), ..Default::default() };
        let mut logs = client.logs(request).await.unwrap();
        let mut lines = Vec::new();
        while let Some(line) = logs.next().await.unwrap() {
            lines.push(line.message);
        }
        lines
    });
    assert_eq!(lines, ["attached"]);
    assert_eq!(agent.stop(), Some(0));
    assert!(!machine.path("kni.sock").exists(), "the socket goes with the agent");
}

#[test]
fn exhausted_addresses_block_new_pods_but_keep_the_node_ready() {
    let machine = Machine::new("agent-full");
    let pods = ["one", "two"].map(|name| machine.testbed.pod(name));
    let agent = machine.agent_with(&["--cluster-ranges", "10.5.0.0/30"], &[]);
    let capacity =
        || agent.with(|mut client| async move { client.get_capacity(Default::default()).await }).unwrap();
    assert!(!capacity().no_more_pods);
    agent.attach("s1", &pods[0]);
    let full = capacity();
    assert!(full.no_more_pods && full.networks[0].exhausted, "{full:?}");
    let ready =
        agent.with(|mut client| async move { client.get_readiness(Default::default()).await }).unwrap();
    assert!(ready.node.unwrap().ready && !ready.new_pods.unwrap().ready);
    let error = agent.try_attach(attach("s2", &netns(&pods[1]))).unwrap_err();
    assert_eq!(error.reason(), Some(Reason::AddressesExhausted), "{error}");
    pods[0].ping("10.5.0.1").unwrap();
    agent.delete("s1");
    agent.attach("s2", &pods[1]);
}

#[test]
fn the_support_bundle_has_state_and_kernel_configuration_but_no_secrets() {
    let machine = Machine::new("agent-support");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let mut request = attach("sb1", &netns(&pod));
    request.sandbox.as_mut().unwrap().annotations = [("note".to_owned(), "hush-hush".to_owned())].into();
    agent.try_attach(request).unwrap();
    let file = machine.path("bundle.tar.gz");
    let mut command = machine.host.command(env!("CARGO_BIN_EXE_knit"));
    command.arg("support-bundle").arg(&file).env("KNIT_KNI_SOCKET", agent.socket());
    let output = command.env("KNIT_STATE_DIR", machine.path("state")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Standard tar must be able to read the archive.
    let unpacked = folder(&machine.path("unpacked"));
    machine.host.output("tar", &["-xzf", file.to_str().unwrap(), "-C", unpacked.to_str().unwrap()]).unwrap();
    let read = |name: &str| std::fs::read_to_string(unpacked.join(name)).unwrap();
    assert!(read("pods.json").contains("10.75.0.2") && read("logs.txt").contains("attached"));
    assert!(
        read("host/network.json").contains("knit0") && read("pods/sb1/network.json").contains("10.75.0.2/16")
    );
    assert!(read("state/journal").contains("sb1") && read("version.json").contains("version"));
    let printed = machine.host.output("grep", &["-r", "hush-hush", unpacked.to_str().unwrap()]);
    assert!(printed.is_err(), "an annotation is in the bundle: {printed:?}");
}
