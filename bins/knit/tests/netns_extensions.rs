//! Extensions of a running agent: what they are told, and that no pod is ever attached without them. Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod agent;
    pub mod chain;
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod extension;
}

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use knit_kni::kni::knix_plugin_manager_client::KnixPluginManagerClient;
use knit_kni::{Client, Reason, kni, v1};
use knit_testbed::{Dump, Pod, eventually};
use support::agent::{Machine, addresses, attach, netns, ports, runtime};
use support::chain::{bridge, configure, leases, on_legacy_at};
use support::extension::{Extension, deregister, get, register};

const SOON: Duration = Duration::from_secs(10);

#[test]
fn they_are_called_in_order_with_everything_and_told_when_it_goes() {
    let machine = Machine::new("ext-order");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let (first, second) =
        (Extension::start(machine.folder.path(), "zulu"), Extension::start(machine.folder.path(), "alpha"));
    register(&agent, v1::ExtensionSpec { order: 2, ..second.spec() }, "").unwrap();
    register(&agent, v1::ExtensionSpec { order: 1, ..first.spec() }, "").unwrap();
    let answer = agent.attach("sb1", &pod);
    let given = addresses(&answer, "eth0");
    assert_eq!(first.calls(), ["before-attach sb1", "after-attach sb1"]);
    let last = second.world.lock().unwrap().calls.last().unwrap().1.clone();
    let said: Vec<&str> = last.earlier.iter().map(|receipt| receipt.data["said"].as_str()).collect();
    assert_eq!(said, ["zulu before", "alpha before", "zulu after"]);
    let told = last.pod.unwrap();
    assert_eq!((told.netns_path, last.interfaces), (netns(&pod), vec!["eth0".to_owned()]));
    let eth0 = &told.interfaces[0];
    assert_eq!(eth0.addresses.iter().map(|address| address.address.clone()).collect::<Vec<_>>(), given);
    assert!(eth0.ready && told.netns_cookie > 0 && !eth0.routes.is_empty());

    // What they did is shown, with the answer and later.
    let receipts = agent.pod("sb1").unwrap().extensions;
    assert_eq!(receipts, answer.pod.unwrap().extensions);
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
    // The same attach again calls nobody again.
    agent.attach("sb1", &pod);
    assert_eq!(first.calls().len(), 2);
    agent.delete("sb1");
    eventually("both are told", Duration::from_secs(5), || first.has().is_empty() && second.has().is_empty());
    let gone = first.world.lock().unwrap().calls.last().unwrap().1.clone();
    assert_eq!(gone.pod.unwrap().interfaces[0].addresses[0].address, given[0]);
    assert_eq!(gone.earlier.last().unwrap().data["said"], "zulu after");
}

#[test]
fn one_that_fails_or_is_late_or_away_fails_the_attach_and_nothing_is_left() {
    let machine = Machine::new("ext-fail");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let (host, inside) = (Dump::settled(&machine.host), Dump::settled(pod.namespace()));
    let mut extension = Extension::start(machine.folder.path(), "mesh");
    register(&agent, v1::ExtensionSpec { deadline_millis: 1_500, ..extension.spec() }, "").unwrap();
    let refused = |expected: &str| {
        let began = Instant::now();
        let why = agent.try_attach(attach("sb1", &netns(&pod))).unwrap_err();
        assert_eq!(why.reason(), Some(Reason::ExtensionFailed), "{why}");
        assert!(why.to_string().contains("extension mesh") && why.to_string().contains(expected), "{why}");
        assert!(why.may_retry() && began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        assert!(agent.pod("sb1").is_none() && agent.used() == 0);
    };
    extension.world.lock().unwrap().refuses = true;
    refused("not today");
    extension.world.lock().unwrap().refuses = false;
    extension.world.lock().unwrap().slow = Duration::from_secs(20);
    refused("within 1500 ms");
    extension.end();
    refused("nobody answers");
    eventually("the links are reaped", Duration::from_secs(5), || ports(&machine.host) == 0);
    host.assert_unchanged(&machine.host);
    inside.assert_unchanged(pod.namespace());
    let world = Arc::clone(&extension.world);
    world.lock().unwrap().slow = Duration::ZERO;
    let _again = Extension::start_with(&extension.socket, "mesh", world);
    eventually("it is told what it may have to undo", Duration::from_secs(5), || {
        get(&agent, "mesh").extension.unwrap().owed == 0
    });
    agent.attach("sb1", &pod);
}

#[test]
fn one_that_may_be_ignored_leaves_a_receipt_that_says_so() {
    let machine = Machine::new("ext-ignore");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let extension = Extension::start(machine.folder.path(), "audit");
    let spec = v1::ExtensionSpec { fail_policy: v1::FailPolicy::Ignore.into(), ..extension.spec() };
    register(&agent, spec, "").unwrap();
    extension.world.lock().unwrap().refuses = true;
    let answer = agent.attach("sb1", &pod);
    let receipts = answer.pod.unwrap().extensions;
    assert_eq!(receipts.len(), 2);
    assert!(receipts.iter().all(|receipt| receipt.ignored.contains("not today")), "{receipts:?}");
    let missed = get(&agent, "audit").missed;
    assert!(missed.len() == 1 && missed[0].why.contains("ignored"), "{missed:?}");
    let request = v1::ListPodsRequest { without_extension: "audit".to_owned(), ..Default::default() };
    let list = agent.with(|mut client| async move { client.list_pods(request).await }).unwrap();
    assert_eq!(list.pods.iter().map(|pod| pod.id.as_str()).collect::<Vec<_>>(), ["sb1"]);
}

#[test]
fn a_registration_outlives_restarts_and_only_its_holder_or_an_admin_ends_it() {
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
    assert_eq!(extension.has(), ["s2/eth0"]);
    // The extension is killed: it stays registered, and so the next attach fails.
    extension.end();
    assert!(agent.try_attach(attach("s3", &netns(&pods[2]))).is_err());
    let extension = Extension::start_with(&extension.socket, "mesh", Arc::clone(&extension.world));
    let again = extension.register(&agent);
    assert_eq!((again.changed, again.generation, again.token.as_str()), (false, registered.generation, ""));
    agent.attach("s3", &pods[2]);

    let other = v1::ExtensionSpec { order: 7, ..extension.spec() };
    for token in ["", "0123456789abcdef0123456789abcdef"] {
        let refused = register(&agent, other.clone(), token).unwrap_err();
        assert_eq!(refused.reason(), Some(Reason::NotAllowed), "{refused}");
        let refused = deregister(&agent, "mesh", token).unwrap_err();
        assert_eq!(refused.reason(), Some(Reason::NotAllowed), "{refused}");
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
fn only_pods_that_it_selects_are_its_business() {
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
    assert_eq!(extension.has(), ["a/eth0"]);
    assert!(get(&agent, "mesh").missed.is_empty());
}

#[test]
fn an_upgrade_under_attaches_leaves_no_gap() {
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
                Arc::clone(&old.world),
            );
            let changed = register(&agent, new.spec(), &token).unwrap();
            assert_eq!(changed.generation, round + 1);
            token = changed.token;
            // The old process dies at once, with calls on their way to it.
            old.end();
            old = new;
        }
        std::thread::sleep(Duration::from_millis(200));
        stop.store(true, Ordering::SeqCst);
        let attached: usize = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        assert!(attached > 20, "only {attached} attaches");
    });
    eventually("all is told", Duration::from_secs(10), || old.has().is_empty());
}

/// Attaches and deletes pods until told to stop. Every attach succeeds, with a receipt.
async fn churn(socket: std::path::PathBuf, worker: usize, paths: &[String], stop: &AtomicBool) -> usize {
    let mut client = Client::connect(socket).await.unwrap();
    let mut attached = 0;
    while !stop.load(Ordering::SeqCst) {
        for (at, path) in paths.iter().enumerate() {
            let id = format!("w{worker}-{at}");
            let answer = client.attach(attach(&id, path)).await.unwrap();
            let receipts = answer.pod.unwrap().extensions;
            assert!(receipts.iter().any(|receipt| receipt.phase == "after-attach"), "{receipts:?}");
            let pod = Some(support::agent::reference(&id));
            client.delete_sandbox(v1::DeleteSandboxRequest { pod }).await.unwrap();
            attached += 1;
        }
    }
    attached
}

#[test]
fn a_required_one_that_is_missing_keeps_pods_away_in_words() {
    let machine = Machine::new("ext-required");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let yaml = "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: Extension\nmetadata: {name: needed}\n\
                spec: {required: [mesh]}\n";
    std::fs::write(machine.path("objects").join("needed.yaml"), yaml).unwrap();
    let readiness =
        || agent.with(|mut client| async move { client.get_readiness(Default::default()).await }).unwrap();
    eventually("the node takes no pods", Duration::from_secs(5), || !readiness().new_pods.unwrap().ready);
    let told = readiness();
    assert!(told.node.unwrap().ready);
    let why = "extension mesh is required by extension/needed and is not registered on this node";
    assert_eq!(told.new_pods.unwrap().conditions[0].message, why);
    let refused = agent.try_attach(attach("sb1", &netns(&pod))).unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::NotReady));
    assert!(refused.to_string().contains(why), "{refused}");
    let extension = Extension::start(machine.folder.path(), "mesh");
    let token = extension.register(&agent).token;
    assert!(readiness().new_pods.unwrap().ready);
    agent.attach("sb1", &pod);
    deregister(&agent, "mesh", &token).unwrap();
    assert!(!readiness().new_pods.unwrap().ready);
    assert!(agent.pod("sb1").is_some(), "running pods stay");
}

#[test]
fn a_plugin_of_the_proof_of_concept_is_known_by_its_socket() {
    let machine = Machine::new("ext-knix");
    let pods = ["one", "two"].map(|name| machine.testbed.pod(name));
    let agent = machine.agent();
    let manager = |client: &Client| KnixPluginManagerClient::new(client.channel());
    let refused = agent.with(|client| async move {
        manager(&client).register_plugin(kni::RegisterPluginRequest {}).await.unwrap_err()
    });
    assert!(refused.message().contains("listens on no socket"), "{refused}");
    // The test listens and calls from one process, as a plugin does.
    let plugin = Extension::start(&machine.path("plugins"), "poc");
    let names = agent.with(|client| async move {
        manager(&client).register_plugin(kni::RegisterPluginRequest {}).await.unwrap();
        manager(&client).register_plugin(kni::RegisterPluginRequest {}).await.unwrap();
        let answer = manager(&client).list_plugins(kni::ListPluginsRequest {}).await.unwrap();
        answer.metadata().get("knit-extensions").unwrap().to_str().unwrap().to_owned()
    });
    assert_eq!(names, "poc");
    let status = get(&agent, "poc").extension.unwrap();
    assert_eq!((status.service.as_str(), status.generation), ("kni.KNIX", 1));
    let answer = agent.attach("sb1", &pods[0]);
    let told = plugin.world.lock().unwrap().knix[0].clone();
    assert_eq!(
        (told.name.as_str(), told.namespace.as_str(), told.netns_path),
        ("sb1", "default", netns(&pods[0]))
    );
    assert_eq!(told.prev_ipconfigs["eth0"].ip, addresses(&answer, "eth0"));
    assert_eq!(answer.pod.unwrap().extensions[0].data["said"], "poc knix");
    plugin.world.lock().unwrap().refuses = true;
    let why = agent.try_attach(attach("sb2", &netns(&pods[1]))).unwrap_err();
    assert_eq!(why.reason(), Some(Reason::ExtensionFailed), "{why}");
    agent.with(|client| async move {
        manager(&client).deregister_plugin(kni::DeregisterPluginRequest {}).await.unwrap();
    });
    agent.attach("sb2", &pods[1]);
}

#[test]
fn the_command_lists_describes_finds_and_removes() {
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
    assert_eq!(knit(&["extensions", "--missing", "mesh"]).1, "no pods\n", "it does not mean that pod");
    assert_eq!(knit(&["extensions", "remove", "mesh"]), (Some(0), "extension mesh removed\n".to_owned()));
    extension.register(&agent);
    let (_, told) = knit(&["extensions", "describe", "mesh"]);
    assert!(told.contains("Registered:  yes, generation 2"), "{told}");
    assert!(told.contains("default/early: it was attached before the extension was registered"), "{told}");
    let (_, yaml) = knit(&["extensions", "describe", "mesh", "-o", "yaml"]);
    assert!(yaml.contains("generation: 2"), "{yaml}");
    let (code, said) = knit(&["extensions", "describe", "other"]);
    assert!(code == Some(1) && said.contains("there is no extension other (NotFound)"), "{said}");
    agent.attach("late", &pods[1]);
    let (_, shown) = knit(&["pod", "late"]);
    assert!(shown.contains("mesh"), "{shown}");
}

#[test]
fn on_a_network_of_plugins_they_are_called_around_add_and_del() {
    let machine = Machine::new("ext-chain");
    let pod = machine.testbed.pod("one");
    let flag = configure(&machine, &bridge(&machine));
    let agent = machine.agent_with(&[&flag], &[]);
    let mut extension = Extension::start(machine.folder.path(), "mesh");
    extension.register(&agent);
    let inside = Dump::settled(pod.namespace());
    let attach = || agent.try_attach(on_legacy_at("sb1", &netns(&pod), "net1"));
    attach().unwrap();
    assert_eq!(extension.calls(), ["before-attach sb1", "after-attach sb1"]);
    let told = extension.world.lock().unwrap().calls[1].1.clone();
    let seen = told.pod.unwrap();
    assert_eq!((told.interfaces, seen.netns_path), (vec!["net1".to_owned()], netns(&pod)));
    let interface = seen.interfaces.iter().find(|interface| interface.name == "net1").unwrap();
    assert_eq!((interface.kind.as_str(), interface.addresses[0].address.as_str()), ("cni", "10.89.0.2"));
    let receipts = agent.pod("sb1").unwrap().extensions;
    assert_eq!((receipts.len(), receipts[1].interfaces.as_slice()), (2, &["net1".to_owned()][..]));
    agent.delete("sb1");
    eventually("it is told", SOON, || extension.calls().len() == 3);
    let told = extension.world.lock().unwrap().calls[2].1.clone();
    assert_eq!(told.pod.unwrap().interfaces[0].addresses[0].address, "10.89.0.2");

    // It refuses; then it is killed in the middle of either call.
    let clean = |what: &str| {
        assert_eq!((agent.pod("sb1"), leases(&machine)), (None, 0), "{what}");
        inside.assert_unchanged(pod.namespace());
    };
    extension.world.lock().unwrap().refuses = true;
    assert_eq!(attach().unwrap_err().reason(), Some(Reason::ExtensionFailed));
    clean("refused");
    extension.world.lock().unwrap().refuses = false;
    for (phase, slow, plugged) in [("before", 3_000, 0), ("after", 500, 1)] {
        let world = Arc::clone(&extension.world);
        eventually("nothing is owed", SOON, || get(&agent, "mesh").extension.unwrap().owed == 0);
        world.lock().unwrap().slow = Duration::from_millis(slow);
        let why = std::thread::scope(|scope| {
            let waiting = scope.spawn(attach);
            // The second call begins when the plugin is done.
            eventually("it is called", SOON, || leases(&machine) == plugged);
            std::thread::sleep(Duration::from_millis(100));
            extension.end();
            waiting.join().unwrap().unwrap_err()
        });
        assert_eq!(why.reason(), Some(Reason::ExtensionFailed), "{phase}: {why}");
        assert!(why.to_string().contains(phase), "{phase}: {why}");
        clean(phase);
        world.lock().unwrap().slow = Duration::ZERO;
        extension = Extension::start_with(&extension.socket, "mesh", world);
    }
    attach().unwrap();
    assert_eq!(extension.has(), ["sb1/net1"]);
}
