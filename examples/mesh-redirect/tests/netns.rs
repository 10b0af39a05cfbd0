//! The example with a real agent: pods are redirected, also if the extension is killed. Needs root, nft, and `knit` in the
//! directory of this program (`cargo build -p knit`).
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use knit_kni::{Client, Error, Reason, v1};
use knit_testbed::{Namespace, Pod, Testbed, eventually};
use tempfile::TempDir;

const PROXY: u16 = 15001;
/// An upper bound of the fault points in an attach and a detach.
const MAX_FAULT_POINTS: usize = 8;

struct Machine {
    testbed: Testbed,
    host: Namespace,
    folder: TempDir,
}

/// A process that is killed on drop.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Machine {
    fn new(test: &str) -> Self {
        let testbed = Testbed::new(test);
        let host = testbed.host();
        Self { testbed, host, folder: TempDir::new().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn agent(&self) -> Process {
        let knit = Path::new(env!("CARGO_BIN_EXE_mesh-redirect")).with_file_name("knit");
        assert!(knit.exists(), "{} is missing: cargo build -p knit", knit.display());
        let mut command = self.host.command(knit.to_str().unwrap());
        command.arg("agent").env("KNIT_METRICS_ADDR", "").env("KNIT_HEALTH_ADDR", "");
        for (flag, name) in [("--state-dir", "state"), ("--kni-socket", "kni.sock"), ("--netns-dir", "netns")]
        {
            command.arg(flag).arg(self.path(name));
        }
        let log = std::fs::File::create(self.path("log")).unwrap();
        let agent = Process(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
        eventually("the agent is ready", Duration::from_secs(30), || {
            let readiness =
                self.call(|mut client| async move { client.get_readiness(Default::default()).await });
            readiness.is_ok_and(|response| response.node.is_some_and(|node| node.ready))
        });
        agent
    }

    /// Starts the extension and waits until it is registered.
    fn mesh(&self, kill_at: Option<usize>) -> Process {
        let mut command = self.host.command(env!("CARGO_BIN_EXE_mesh-redirect"));
        for (flag, name) in
            [("--kni-socket", "kni.sock"), ("--socket", "mesh.sock"), ("--token-file", "token")]
        {
            command.arg(flag).arg(self.path(name));
        }
        if let Some(fault_point) = kill_at {
            command.env("MESH_REDIRECT_KILL_AT", fault_point.to_string());
        }
        let mut mesh = Process(command.stdout(Stdio::piped()).spawn().unwrap());
        let mut line = [0; 64];
        let read = mesh.0.stdout.as_mut().unwrap().read(&mut line).unwrap();
        let line = String::from_utf8_lossy(&line[..read]).into_owned();
        assert!(line.contains("registered, generation 1"), "{line}");
        mesh
    }

    fn call<T, F: Future<Output = Result<T, Error>>>(
        &self,
        work: impl FnOnce(Client) -> F,
    ) -> Result<T, Error> {
        let socket = self.path("kni.sock");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move { work(Client::connect(socket).await?).await })
    }

    fn attach(&self, id: &str, pod: &Pod) -> Result<v1::AttachResponse, Error> {
        let netns = format!("/proc/{}/ns/net", pod.pid());
        let isolation = v1::Isolation { domain: Some(v1::isolation::Domain::NetnsPath(netns)) };
        let sandbox = v1::SandboxSpec {
            id: id.to_owned(),
            name: id.to_owned(),
            namespace: "default".to_owned(),
            isolation: Some(isolation),
            ..Default::default()
        };
        let request = v1::AttachRequest { sandbox: Some(sandbox), ..Default::default() };
        self.call(|mut client| async move { client.attach(request).await })
    }

    fn delete(&self, id: &str) {
        let pod = Some(v1::PodRef { id: id.to_owned(), ..Default::default() });
        let request = v1::DeleteSandboxRequest { pod };
        self.call(|mut client| async move { client.delete_sandbox(request).await }).unwrap();
    }

    fn pods(&self) -> Vec<v1::Pod> {
        let list = self.call(|mut client| async move { client.list_pods(Default::default()).await });
        list.unwrap().pods.into_iter().filter(|pod| !pod.interfaces.is_empty()).collect()
    }

    fn status(&self) -> v1::ExtensionStatus {
        let request = v1::GetExtensionRequest { name: "mesh-redirect".to_owned() };
        let response = self.call(|mut client| async move { client.get_extension(request).await });
        response.unwrap().extension.unwrap()
    }
}

/// Whether the pod has the table of the redirect.
fn is_redirected(pod: &Pod) -> bool {
    pod.namespace().output("nft", &["list", "tables"]).unwrap().contains("mesh_")
}

#[test]
fn tcp_is_redirected_to_the_proxy_until_the_detach() {
    let machine = Machine::new("mesh-redirect");
    let pod = machine.testbed.pod("one");
    let _agent = machine.agent();
    let _mesh = machine.mesh(None);
    let response = machine.attach("sb1", &pod).unwrap();
    let receipts = response.pod.unwrap().extensions;
    let last = receipts.last().unwrap();
    assert_eq!((last.phase.as_str(), last.data["proxy-port"].as_str()), ("after-attach", "15001"));
    // The proxy of the pod accepts all connections of the pod.
    let proxy = pod.namespace().run(|| TcpListener::bind(("0.0.0.0", PROXY)).unwrap());
    let serving = std::thread::spawn(move || {
        for _ in 0..2 {
            proxy.accept().unwrap().0.write_all(b"proxy").unwrap();
        }
    });
    let limit = Duration::from_secs(5);
    let received = |mut stream: TcpStream| {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let connect = move |target: String| TcpStream::connect_timeout(&target.parse().unwrap(), limit).unwrap();
    let outgoing = pod.namespace().run(move || connect("10.75.0.1:80".to_owned()));
    assert_eq!(received(outgoing), "proxy");
    let incoming = machine.host.run(move || connect("10.75.0.2:80".to_owned()));
    assert_eq!(received(incoming), "proxy");
    serving.join().unwrap();
    machine.delete("sb1");
    eventually("the redirect is gone", Duration::from_secs(5), || !is_redirected(&pod));
}

#[test]
fn an_extension_killed_at_any_fault_point_leaves_no_partial_redirect() {
    let machine = Machine::new("mesh-killed");
    let pod = machine.testbed.pod("one");
    let _agent = machine.agent();
    for fault_point in 0..MAX_FAULT_POINTS {
        let mut mesh = machine.mesh(Some(fault_point));
        let result = machine.attach("sb1", &pod);
        match &result {
            Ok(_) => assert!(is_redirected(&pod), "fault point {fault_point}"),
            Err(error) => {
                assert_eq!(error.reason(), Some(Reason::ExtensionFailed), "{error}");
                assert!(machine.pods().is_empty(), "fault point {fault_point}");
                // The killed extension stays registered: no pod can be attached without it.
                mesh.0.wait().unwrap();
                assert!(machine.status().registered);
                let error = machine.attach("sb2", &pod).unwrap_err();
                assert_eq!(error.reason(), Some(Reason::ExtensionFailed), "{error}");
                assert!(machine.pods().is_empty(), "fault point {fault_point}");
            }
        }
        let attached = result.is_ok();
        machine.delete("sb1");
        // An extension that is killed after the detach is notified again after its restart.
        let alive = mesh.0.try_wait().unwrap().is_none();
        drop(mesh);
        let _mesh = machine.mesh(None);
        eventually("the redirect is removed", Duration::from_secs(30), || {
            machine.status().owed == 0 && !is_redirected(&pod)
        });
        if attached && alive && fault_point > 4 {
            return;
        }
    }
    panic!("the extension has fewer than {MAX_FAULT_POINTS} fault points");
}
