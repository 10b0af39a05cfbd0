//! A host and a pod with an `eth0` of others, and a node's state in a folder.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use knit_agent::{Error, Standalone};
use knit_crds::Object;
use knit_engine::ObjectKey;
use knit_testbed::{Dump, Namespace, Pod, Testbed, eventually};
use tempfile::TempDir;

/// A host, a pod, a state folder.
pub struct World {
    _testbed: Testbed,
    pub host: Namespace,
    pub pod: Pod,
    pub folder: TempDir,
}

/// How the host and the pod look.
pub struct Dumps {
    host: Dump,
    pod: Dump,
}

impl World {
    pub fn new(test: &str) -> Self {
        let testbed = Testbed::new(test);
        let host = testbed.host();
        let pod = testbed.pod("a");
        testbed.connect(&pod, "eth0", &host, "cni-a");
        host.address("cni-a", "10.9.0.1/24");
        pod.address("eth0", "10.9.0.2/24");
        // A NIC that can be lent, down as it came.
        host.ip(&["link", "add", "nic0", "mtu", "1400", "type", "veth", "peer", "name", "cable0"]);
        host.ip(&["link", "set", "cable0", "up"]);
        Self { host, pod, folder: TempDir::new().unwrap(), _testbed: testbed }
    }

    /// Runs something on the host, as the node's program does.
    pub fn on_host(&self, work: impl FnOnce() + Send) {
        self.host.run(work);
    }

    /// Opens the node, as a start of its program does. A program that another test is just starting may have a copy of
    /// the lock for a moment, because all of them are one process here.
    pub fn open(&self) -> Standalone {
        let mut opened = None;
        eventually("the lock is free", Duration::from_secs(20), || {
            opened = match Standalone::open(self.folder.path()) {
                Err(Error::Store(knit_store::Error::Locked { .. })) => None,
                other => Some(other.unwrap()),
            };
            opened.is_some()
        });
        opened.unwrap()
    }

    /// Has the node know the pod, labelled `app: x`.
    pub fn add(&self, node: &mut Standalone) {
        let labels = BTreeMap::from([("app".to_owned(), "x".to_owned())]);
        node.add_sandbox("default", "a", labels, self.pod.pid()).unwrap();
    }

    /// The host and the pod look like this, at once or as soon as the kernel has followed: it adds routes of an IPv6
    /// address a moment after the link below has carrier.
    pub fn assert_like(&self, expected: &Dumps, what: &str) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let difference = expected.difference(&self.dumps());
            if difference.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "{what}: {difference}");
        }
    }

    /// How everything looks once the kernel has followed: nothing changes any more.
    pub fn settled(&self) -> Dumps {
        let mut dumps = self.dumps();
        eventually("nothing changes any more", Duration::from_secs(30), || {
            std::thread::sleep(Duration::from_millis(300));
            let before = std::mem::replace(&mut dumps, self.dumps());
            before.difference(&dumps).is_empty()
        });
        dumps
    }

    pub fn dumps(&self) -> Dumps {
        Dumps { host: Dump::take(&self.host), pod: Dump::take(self.pod.namespace()) }
    }
}

impl Dumps {
    fn difference(&self, other: &Self) -> String {
        let (host, pod) = (self.host.difference(&other.host), self.pod.difference(&other.pod));
        format!("{}{}", titled("the host differs", &host), titled("the pod differs", &pod))
    }
}

fn titled(title: &str, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{title}:\n{text}") }
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
