//! Extensions: their calls, and that no pod is attached without them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::agent::{Machine, addresses, attach, netns, ports, runtime};
use crate::support::chain::{agent_with_plugins, attach_to_legacy, bridge, configure, leases};
use crate::support::extension::{Extension, deregister, get, register};
use knit_kni::kni::knix_plugin_manager_client::KnixPluginManagerClient;
use knit_kni::{Client, Reason, kni, v1};
use knit_testbed::{Dump, Pod, eventually};

const TIMEOUT: Duration = Duration::from_secs(10);

#[test]
fn extensions_are_called_in_order_and_notified_of_detach() {
    let machine = Machine::new("ext-order");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let (first, second) =
        (Extension::start(machine.folder.path(), "zulu"), Extension::start(machine.folder.path(), "alpha"));
    register(&agent, v1::ExtensionSpec { order: 2, ..second.spec() }, "").unwrap();
    register(&agent, v1::ExtensionSpec { order: 1, ..first.spec() }, "").unwrap();
    let response = agent.attach("sb1", &pod);
    let given = addresses(&response, "eth0");
    assert_eq!(first.calls(), ["before-attach sb1", "after-attach sb1"]);
    let last = second.state.lock().unwrap().calls.last().unwrap().1.clone();
    let printed: Vec<&str> = last.earlier.iter().map(|receipt| receipt.data["said"].as_str()).collect();
    assert_eq!(printed, ["zulu before", "alpha before", "zulu after"]);
    let called_pod = last.pod.unwrap();
    assert_eq!((called_pod.netns_path, last.interfaces), (netns(&pod), vec!["eth0".to_owned()]));
    let eth0 = &called_pod.interfaces[0];
    assert_eq!(eth0.addresses.iter().map(|address| address.address.clone()).collect::<Vec<_>>(), given);
    assert!(eth0.ready && called_pod.netns_cookie > 0 && !eth0.routes.is_empty());

    // Receipts are in the response and in later queries.
    let receipts = agent.pod("sb1").unwrap().extensions;
    assert_eq!(receipts, response.pod.unwrap().extensions);
    let shown: Vec<String> = receipts
        .iter()
        .map(|receipt| {
            format!("{} {} {} {}", receipt.extension, receipt.phase, receipt.interface, receipt.generation)
        })
        .collect();
    assert_eq!(
        shown,
        [
            "zulu before-attach eth0 2",
            "alpha before-attach eth0 1",
            "zulu after-attach eth0 2",
            "alpha after-attach eth0 1"
        ]
    );
    // A repeated attach does not call extensions again.
    agent.attach("sb1", &pod);
    assert_eq!(first.calls().len(), 2);
    agent.delete("sb1");
    eventually("both are notified", Duration::from_secs(5), || {
        first.active().is_empty() && second.active().is_empty()
    });
    let gone = first.state.lock().unwrap().calls.last().unwrap().1.clone();
    assert_eq!(gone.pod.unwrap().interfaces[0].addresses[0].address, given[0]);
    assert_eq!(gone.earlier.last().unwrap().data["said"], "zulu after");
}

#[test]
fn a_failing_slow_or_unreachable_extension_fails_the_attach() {
    let machine = Machine::new("ext-fail");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let (host, inside) = (Dump::settled(&machine.host), Dump::settled(pod.namespace()));
    let mut extension = Extension::start(machine.folder.path(), "mesh");
    register(&agent, v1::ExtensionSpec { deadline_millis: 1_500, ..extension.spec() }, "").unwrap();
    let assert_rejected = |expected: &str| {
        let started = Instant::now();
        let error = agent.try_attach(attach("sb1", &netns(&pod))).unwrap_err();
        assert_eq!(error.reason(), Some(Reason::ExtensionFailed), "{error}");
        assert!(
            error.to_string().contains("extension mesh") && error.to_string().contains(expected),
            "{error}"
        );
        assert!(error.may_retry() && started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
        assert!(agent.pod("sb1").is_none() && agent.used_addresses() == 0);
    };
    extension.state.lock().unwrap().fails = true;
    assert_rejected("failed by the test");
    extension.state.lock().unwrap().fails = false;
    extension.state.lock().unwrap().delay = Duration::from_secs(20);
    assert_rejected("within 1500 ms");
    extension.stop();
    assert_rejected("cannot connect to");
    eventually("the links are deleted", Duration::from_secs(20), || ports(&machine.host) == 0);
    host.assert_unchanged(&machine.host);
    inside.assert_unchanged(pod.namespace());
    let state = Arc::clone(&extension.state);
    state.lock().unwrap().delay = Duration::ZERO;
    let _again = Extension::start_with(&extension.socket, "mesh", state);
    eventually("it is notified of what it may have to undo", Duration::from_secs(5), || {
        get(&agent, "mesh").extension.unwrap().owed == 0
    });
    agent.attach("sb1", &pod);
}

#[test]
fn an_ignored_failure_is_recorded_in_the_receipt() {
    let machine = Machine::new("ext-ignore");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let extension = Extension::start(machine.folder.path(), "audit");
    let spec = v1::ExtensionSpec { fail_policy: v1::FailPolicy::Ignore.into(), ..extension.spec() };
    register(&agent, spec, "").unwrap();
    extension.state.lock().unwrap().fails = true;
    let response = agent.attach("sb1", &pod);
    let receipts = response.pod.unwrap().extensions;
    assert_eq!(receipts.len(), 2);
    assert!(receipts.iter().all(|receipt| receipt.ignored.contains("failed by the test")), "{receipts:?}");
    let missed = get(&agent, "audit").missed;
    assert!(missed.len() == 1 && missed[0].why.contains("ignored"), "{missed:?}");
    let request = v1::ListPodsRequest { without_extension: "audit".to_owned(), ..Default::default() };
    let list = agent.with(|mut client| async move { client.list_pods(request).await }).unwrap();
    assert_eq!(list.pods.iter().map(|pod| pod.id.as_str()).collect::<Vec<_>>(), ["sb1"]);
}

#[test]
fn a_registration_survives_restarts_and_only_its_owner_or_an_admin_removes_it() {
    let machine = Machine::new("ext-token");
    let pods = ["one", "two", "three"].map(|name| machine.testbed.pod(name));
    let agent = machine.agent();
    agent.attach("early", &pods[0]);
    let mut extension = Extension::start(machine.folder.path(), "mesh");
    let registered = extension.register(&agent);
    assert!(registered.changed && !registered.token.is_empty());
    assert_eq!(get(&agent, "mesh").missed[0].pod.as_ref().unwrap().id, "early");
    agent.crash();
    let agent = machine.agent();
    agent.attach("s2", &pods[1]);
    assert_eq!(extension.active(), ["s2/eth0"]);
    // A killed extension stays registered, so the next attach fails.
    extension.stop();
    assert!(agent.try_attach(attach("s3", &netns(&pods[2]))).is_err());
    let extension = Extension::start_with(&extension.socket, "mesh", Arc::clone(&extension.state));
    let again = extension.register(&agent);
    assert_eq!((again.changed, again.generation, again.token.as_str()), (false, registered.generation, ""));
    agent.attach("s3", &pods[2]);

    let other = v1::ExtensionSpec { order: 7, ..extension.spec() };
    for token in ["", "0123456789abcdef0123456789abcdef"] {
        let error = register(&agent, other.clone(), token).unwrap_err();
        assert_eq!(error.reason(), Some(Reason::NotAllowed), "{error}");
        let error = deregister(&agent, "mesh", token).unwrap_err();
        assert_eq!(error.reason(), Some(Reason::NotAllowed), "{error}");
    }
    let changed = register(&agent, other, &registered.token).unwrap();
    assert_eq!((changed.generation, &changed.token), (registered.generation + 1, &registered.token));
    assert!(deregister(&agent, "mesh", &registered.token).unwrap().removed);
    agent.stop();
    let agent = machine.agent();
    assert!(!deregister(&agent, "mesh", "").unwrap().removed, "it stays removed");
    let text = std::fs::read(machine.path("state").join("journal")).unwrap();
    assert!(!String::from_utf8_lossy(&text).contains(&registered.token), "a token is never written down");
}

#[test]
fn an_extension_is_called_only_for_selected_pods() {
    let machine = Machine::new("ext-select");
    let pods = ["one", "two", "three"].map(|name| machine.testbed.pod(name));
    let agent = machine.agent();
    let extension = Extension::start(machine.folder.path(), "mesh");
    let (labels, namespaces) = ([("mesh".to_owned(), "on".to_owned())].into(), vec!["shop".to_owned()]);
    register(&agent, v1::ExtensionSpec { labels, namespaces, ..extension.spec() }, "").unwrap();
    for (pod, id, namespace, label) in
        [(&pods[0], "a", "shop", "on"), (&pods[1], "b", "shop", "off"), (&pods[2], "c", "lab", "on")]
    {
        let mut request = attach(id, &netns(pod));
        let sandbox = request.sandbox.as_mut().unwrap();
        sandbox.namespace = namespace.to_owned();
        sandbox.labels = [("mesh".to_owned(), label.to_owned())].into();
        agent.try_attach(request).unwrap();
    }
    assert_eq!(extension.active(), ["a/eth0"]);
    assert!(get(&agent, "mesh").missed.is_empty());
}

#[test]
fn an_upgrade_during_attaches_leaves_no_gap() {
    let machine = Machine::new("ext-upgrade");
    let pods: Vec<Pod> = (0..8).map(|number| machine.testbed.pod(&format!("p{number}"))).collect();
    let agent = machine.agent();
    let mut old = Extension::start(&machine.path("old"), "mesh");
    let mut token = old.register(&agent).token;
    let stop = AtomicBool::new(false);
    let (socket, paths) = (agent.socket(), pods.iter().map(netns).collect::<Vec<_>>());
    std::thread::scope(|scope| {
        let workers: Vec<_> = paths
            .chunks(2)
            .enumerate()
            .map(|(worker, paths)| {
                let (socket, stop) = (socket.clone(), &stop);
                scope.spawn(move || runtime().block_on(churn(socket, worker, paths, stop)))
            })
            .collect();
        for round in 1..=5 {
            std::thread::sleep(Duration::from_millis(200));
            let new = Extension::start_with(
                &machine.path(&format!("new{round}")).join("mesh.sock"),
                "mesh",
                Arc::clone(&old.state),
            );
            let changed = register(&agent, new.spec(), &token).unwrap();
            assert_eq!(changed.generation, round + 1);
            token = changed.token;
            // The old process is killed during calls.
            old.stop();
            old = new;
        }
        std::thread::sleep(Duration::from_millis(200));
        stop.store(true, Ordering::SeqCst);
        let attached: usize = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        // More than one for each pod, also on a busy machine.
        assert!(attached > pods.len(), "only {attached} attaches");
    });
    eventually("all is reported", Duration::from_secs(10), || old.active().is_empty());
}

/// Attaches and deletes pods until stopped. Every attach succeeds with a receipt.
async fn churn(socket: std::path::PathBuf, worker: usize, paths: &[String], stop: &AtomicBool) -> usize {
    let mut client = Client::connect(socket).await.unwrap();
    let mut attached = 0;
    while !stop.load(Ordering::SeqCst) {
        for (at, path) in paths.iter().enumerate() {
            let id = format!("w{worker}-{at}");
            let response = client.attach(attach(&id, path)).await.unwrap();
            let receipts = response.pod.unwrap().extensions;
            assert!(receipts.iter().any(|receipt| receipt.phase == "after-attach"), "{receipts:?}");
            let pod = Some(crate::support::agent::reference(&id));
            client.delete_sandbox(v1::DeleteSandboxRequest { pod }).await.unwrap();
            attached += 1;
        }
    }
    attached
}

#[test]
fn a_missing_required_extension_blocks_new_pods() {
    let machine = Machine::new("ext-required");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let yaml = "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: Extension\nmetadata: {name: needed}\n\
                spec: {required: [mesh]}\n";
    std::fs::write(machine.path("objects").join("needed.yaml"), yaml).unwrap();
    let readiness =
        || agent.with(|mut client| async move { client.get_readiness(Default::default()).await }).unwrap();
    eventually("the node accepts no pods", Duration::from_secs(5), || !readiness().new_pods.unwrap().ready);
    let current = readiness();
    assert!(current.node.unwrap().ready);
    let expected = "extension mesh is required by extension/needed and is not registered on this node";
    assert_eq!(current.new_pods.unwrap().conditions[0].message, expected);
    let error = agent.try_attach(attach("sb1", &netns(&pod))).unwrap_err();
    assert_eq!(error.reason(), Some(Reason::NotReady));
    assert!(error.to_string().contains(expected), "{error}");
    let extension = Extension::start(machine.folder.path(), "mesh");
    let token = extension.register(&agent).token;
    assert!(readiness().new_pods.unwrap().ready);
    agent.attach("sb1", &pod);
    deregister(&agent, "mesh", &token).unwrap();
    assert!(!readiness().new_pods.unwrap().ready);
    assert!(agent.pod("sb1").is_some(), "running pods stay");
}

#[test]
fn a_knix_plugin_is_identified_by_its_socket() {
    let machine = Machine::new("ext-knix");
    let pods = ["one", "two"].map(|name| machine.testbed.pod(name));
    let agent = machine.agent();
    let manager = |client: &Client| KnixPluginManagerClient::new(client.channel());
    let error = agent.with(|client| async move {
        manager(&client).register_plugin(kni::RegisterPluginRequest {}).await.unwrap_err()
    });
    assert!(error.message().contains("does not listen on a socket"), "{error}");
    // The test listens and calls from one process, like a plugin.
    let plugin = Extension::start(&machine.path("plugins"), "poc");
    let names = agent.with(|client| async move {
        manager(&client).register_plugin(kni::RegisterPluginRequest {}).await.unwrap();
        manager(&client).register_plugin(kni::RegisterPluginRequest {}).await.unwrap();
        let response = manager(&client).list_plugins(kni::ListPluginsRequest {}).await.unwrap();
        response.metadata().get("knit-extensions").unwrap().to_str().unwrap().to_owned()
    });
    assert_eq!(names, "poc");
    let status = get(&agent, "poc").extension.unwrap();
    assert_eq!((status.service.as_str(), status.generation), ("kni.KNIX", 1));
    let response = agent.attach("sb1", &pods[0]);
    let call = plugin.state.lock().unwrap().knix[0].clone();
    assert_eq!(
        (call.name.as_str(), call.namespace.as_str(), call.netns_path),
        ("sb1", "default", netns(&pods[0]))
    );
    assert_eq!(call.prev_ipconfigs["eth0"].ip, addresses(&response, "eth0"));
    assert_eq!(response.pod.unwrap().extensions[0].data["said"], "poc knix");
    plugin.state.lock().unwrap().fails = true;
    let error = agent.try_attach(attach("sb2", &netns(&pods[1]))).unwrap_err();
    assert_eq!(error.reason(), Some(Reason::ExtensionFailed), "{error}");
    agent.with(|client| async move {
        manager(&client).deregister_plugin(kni::DeregisterPluginRequest {}).await.unwrap();
    });
    agent.attach("sb2", &pods[1]);
}

#[test]
fn the_command_lists_describes_and_removes_extensions() {
    let machine = Machine::new("ext-command");
    let pods = ["one", "two"].map(|name| machine.testbed.pod(name));
    let agent = machine.agent();
    let knit = |arguments: &[&str]| {
        let mut command = machine.host.command(env!("CARGO_BIN_EXE_knit"));
        let output = command.args(arguments).env("KNIT_KNI_SOCKET", agent.socket()).output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr),
        )
    };
    assert_eq!(knit(&["extensions"]), (Some(0), "no extensions\n".to_owned()));
    agent.attach("early", &pods[0]);
    let extension = Extension::start(machine.folder.path(), "mesh");
    let labels = [("mesh".to_owned(), "on".to_owned())].into();
    register(&agent, v1::ExtensionSpec { order: 7, labels, ..extension.spec() }, "").unwrap();
    let (_, table) = knit(&["extensions", "-o", "wide"]);
    assert!(table.contains("mesh  7") && table.contains("labels mesh=on"), "{table}");
    let (code, json) = knit(&["extensions", "-o", "json"]);
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((code, &value["extensions"][0]["spec"]["name"]), (Some(0), &"mesh".into()));
    assert_eq!(
        knit(&["extensions", "--missing", "mesh"]).1,
        "no pods\n",
        "the extension does not select that pod"
    );
    assert_eq!(knit(&["extensions", "remove", "mesh"]), (Some(0), "extension mesh removed\n".to_owned()));
    extension.register(&agent);
    let (_, described) = knit(&["extensions", "describe", "mesh"]);
    assert!(described.contains("Registered:  yes, generation 2"), "{described}");
    assert!(
        described.contains("default/early: it was attached before the extension was registered"),
        "{described}"
    );
    let (_, yaml) = knit(&["extensions", "describe", "mesh", "-o", "yaml"]);
    assert!(yaml.contains("generation: 2"), "{yaml}");
    let (code, printed) = knit(&["extensions", "describe", "other"]);
    assert!(code == Some(1) && printed.contains("extension other not found (NotFound)"), "{printed}");
    agent.attach("late", &pods[1]);
    let (_, shown) = knit(&["pod", "late"]);
    assert!(shown.contains("mesh"), "{shown}");
}

#[test]
fn on_plugin_networks_extensions_are_called_around_add_and_del() {
    let machine = Machine::new("ext-chain");
    let pod = machine.testbed.pod("one");
    let flag = configure(&machine, &bridge(&machine));
    let agent = agent_with_plugins(&machine, &[&flag]);
    let mut extension = Extension::start(machine.folder.path(), "mesh");
    extension.register(&agent);
    let inside = Dump::settled(pod.namespace());
    let attach = || agent.try_attach(attach_to_legacy("sb1", &netns(&pod), "net1"));
    attach().unwrap();
    assert_eq!(extension.calls(), ["before-attach sb1", "after-attach sb1"]);
    let call = extension.state.lock().unwrap().calls[1].1.clone();
    let observed = call.pod.unwrap();
    assert_eq!((call.interfaces, observed.netns_path), (vec!["net1".to_owned()], netns(&pod)));
    let interface = observed.interfaces.iter().find(|interface| interface.name == "net1").unwrap();
    assert_eq!((interface.kind.as_str(), interface.addresses[0].address.as_str()), ("cni", "10.89.0.2"));
    let receipts = agent.pod("sb1").unwrap().extensions;
    assert_eq!((receipts.len(), receipts[1].interfaces.as_slice()), (2, &["net1".to_owned()][..]));
    agent.delete("sb1");
    eventually("it is notified", TIMEOUT, || extension.calls().len() == 3);
    let call = extension.state.lock().unwrap().calls[2].1.clone();
    assert_eq!(call.pod.unwrap().interfaces[0].addresses[0].address, "10.89.0.2");

    // The extension fails; then it is killed during either call.
    let clean = |what: &str| {
        assert_eq!((agent.pod("sb1"), leases(&machine)), (None, 0), "{what}");
        inside.assert_unchanged(pod.namespace());
    };
    extension.state.lock().unwrap().fails = true;
    assert_eq!(attach().unwrap_err().reason(), Some(Reason::ExtensionFailed));
    clean("refused");
    extension.state.lock().unwrap().fails = false;
    for (phase, slow, plugged) in [("before", 3_000, 0), ("after", 500, 1)] {
        let state = Arc::clone(&extension.state);
        eventually("no notification is pending", TIMEOUT, || {
            get(&agent, "mesh").extension.unwrap().owed == 0
        });
        state.lock().unwrap().delay = Duration::from_millis(slow);
        let error = std::thread::scope(|scope| {
            let waiting = scope.spawn(attach);
            // The second call starts after the plugin has finished.
            eventually("it is called", TIMEOUT, || leases(&machine) == plugged);
            std::thread::sleep(Duration::from_millis(100));
            extension.stop();
            waiting.join().unwrap().unwrap_err()
        });
        assert_eq!(error.reason(), Some(Reason::ExtensionFailed), "{phase}: {error}");
        assert!(error.to_string().contains(phase), "{phase}: {error}");
        clean(phase);
        state.lock().unwrap().delay = Duration::ZERO;
        extension = Extension::start_with(&extension.socket, "mesh", state);
    }
    attach().unwrap();
    assert_eq!(extension.active(), ["sb1/net1"]);
}
