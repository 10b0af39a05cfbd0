//! A host and a pod with an `eth0` that Knit did not make, and a state folder.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use knit_agent::{Error, Standalone};
use knit_crds::Object;
use knit_engine::ObjectKey;
use knit_testbed::{Dump, Namespace, Pod, Testbed, eventually};
use tempfile::TempDir;

/// A host, a pod, a state folder.
pub struct TestHost {
    _testbed: Testbed,
    pub netns: Namespace,
    pub pod: Pod,
    pub folder: TempDir,
}

/// HostDumps of the host and the pod.
pub struct HostDumps {
    host: Dump,
    pod: Dump,
}

impl TestHost {
    pub fn new(test: &str) -> Self {
        let testbed = Testbed::new(test);
        let host = testbed.host();
        let pod = testbed.pod("a");
        testbed.connect(&pod, "eth0", &host, "cni-a");
        host.address("cni-a", "10.9.0.1/24");
        pod.address("eth0", "10.9.0.2/24");
        // A NIC that can be moved into the pod, down.
        host.ip(&["link", "add", "nic0", "mtu", "1400", "type", "veth", "peer", "name", "cable0"]);
        host.ip(&["link", "set", "cable0", "up"]);
        Self { netns: host, pod, folder: TempDir::new().unwrap(), _testbed: testbed }
    }

    /// Runs a closure in the host's netns with the capabilities of the agent.
    pub fn on_host<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.netns.run_as_agent(work)
    }

    /// Opens the node, as a start of the agent does.
    pub fn open(&self) -> Standalone {
        reopen(self.folder.path())
    }

    /// Adds the pod, labelled `app: x`, to the node.
    pub fn add_pod(&self, node: &mut Standalone) {
        let labels = BTreeMap::from([("app".to_owned(), "x".to_owned())]);
        node.add_sandbox("default", "a", labels, self.pod.pid()).unwrap();
    }

    /// Asserts that host and pod match, at once or within the timeout: the kernel adds routes of an IPv6 address
    /// shortly after the lower link has carrier.
    pub fn assert_matches(&self, expected: &HostDumps, what: &str) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let difference = expected.difference(&self.dumps());
            if difference.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "{what}: {difference}");
        }
    }

    /// HostDumps host and pod once nothing changes any more.
    pub fn settled(&self) -> HostDumps {
        let mut dumps = self.dumps();
        eventually("nothing changes any more", Duration::from_secs(30), || {
            std::thread::sleep(Duration::from_millis(300));
            let before = std::mem::replace(&mut dumps, self.dumps());
            before.difference(&dumps).is_empty()
        });
        dumps
    }

    pub fn dumps(&self) -> HostDumps {
        HostDumps { host: Dump::take(&self.netns), pod: Dump::take(self.pod.namespace()) }
    }
}

impl HostDumps {
    fn difference(&self, other: &Self) -> String {
        let (host, pod) = (self.host.difference(&other.host), self.pod.difference(&other.pod));
        format!("{}{}", titled("the host differs", &host), titled("the pod differs", &pod))
    }
}

fn titled(title: &str, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{title}:\n{text}") }
}

/// Opens a node whose state folder may have been in use. Tests run in one process: a program that another test is
/// starting may hold a copy of the lock between fork and exec.
pub fn reopen(folder: &Path) -> Standalone {
    let mut opened = None;
    eventually("the journal lock is free", Duration::from_secs(20), || {
        opened = match Standalone::open(folder) {
            Err(Error::Store(knit_store::Error::Locked { .. })) => None,
            other => Some(other.unwrap()),
        };
        opened.is_some()
    });
    opened.unwrap()
}

pub fn objects(yaml: &str) -> Vec<Object> {
    Object::parse_all(yaml).unwrap()
}

pub fn keys(yaml: &str) -> Vec<ObjectKey> {
    let key = |object: &Object| {
        let object = object.object_ref();
        ObjectKey { kind: object.kind, namespace: object.namespace, name: object.name }
    };
    objects(yaml).iter().map(key).collect()
}

pub fn live_leases(node: &Standalone) -> usize {
    node.state().leases.iter().filter(|(_, _, lease)| lease.is_live()).count()
}

pub fn problems(node: &Standalone) -> String {
    let all = node.state().problems.values().flatten().map(|(_, problem)| problem.to_string());
    all.collect::<Vec<_>>().join("; ")
}
