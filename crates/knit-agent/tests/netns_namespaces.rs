//! What admins say about namespaces and pools holds for running pods, with real packets. Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use knit_agent::Standalone;
use knit_agent::daemon::Cluster;
use knit_engine::call::{Asked, Notes, Wished};
use knit_engine::namespaces::{Namespaces, Terms};
use knit_engine::{Answer, Attach, CallId, Event, StoredObject};
use knit_model::intent::{AddressPoolIntent, Intent, IntentSpec, NodeRoutesIntent};
use knit_model::provenance::{Dialect, ObjectRef, Provenance};
use knit_testbed::{Namespace, Pod, Testbed, eventually};
use tempfile::TempDir;

const RANGES: [&str; 2] = ["10.75.0.0/24", "fd75:6b6e:6974::/64"];
/// Where a pod's own addresses begin, without the last number.
const BEGIN: [&str; 2] = ["10.75.0.", "fd75:6b6e:6974::"];
const NODE: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
const WORLD: [&str; 2] = ["192.0.2.9", "2001:db8::9"];
const PATIENCE: Duration = Duration::from_secs(10);

/// A node with a pod in each of two namespaces, and a host outside of the cluster that knows the way to pods.
struct World {
    world: Namespace,
    host: Namespace,
    lab: Pod,
    shop: Pod,
    node: Option<Standalone>,
    folder: TempDir,
    _testbed: Testbed,
}

impl World {
    fn new(test: &str) -> Self {
        let testbed = Testbed::new(test);
        let (host, world) = (testbed.host(), testbed.namespace("world"));
        testbed.connect(&host, "eth0", &world, "eth0");
        for (at, length) in [24, 64].into_iter().enumerate() {
            host.address("eth0", &format!("{}/{length}", NODE[at]));
            world.address("eth0", &format!("{}/{length}", WORLD[at]));
            world.ip(&["route", "add", RANGES[at], "via", NODE[at], "dev", "eth0"]);
        }
        host.set_sysctl("net.ipv4.ip_forward", "1");
        host.set_sysctl("net.ipv6.conf.all.forwarding", "1");
        let (lab, shop) = (testbed.pod("lab"), testbed.pod("shop"));
        let folder = TempDir::new().unwrap();
        let node = host.run(|| Standalone::open(folder.path()).unwrap());
        Self { world, host, lab, shop, node: Some(node), folder, _testbed: testbed }
    }

    fn hear(&mut self, event: Event) -> Vec<(CallId, Answer)> {
        let node = self.node.as_mut().unwrap();
        self.host.run(|| node.node().hear(event).unwrap().answers)
    }

    fn have(&mut self, ways: NodeRoutesIntent) {
        let ranges = RANGES.map(|text| text.parse().unwrap());
        let cluster = Cluster::new(&ranges, &"knit0".parse().unwrap(), Some(1500), &ways);
        self.hear(cluster.applied());
    }

    fn attach_both(&mut self) {
        for (namespace, pid) in [("lab", self.lab.pid()), ("shop", self.shop.pid())] {
            let asked = Asked { default_route: true, ..Asked::default() };
            let netns = format!("/proc/{pid}/ns/net");
            let (id, namespace) = (namespace.to_owned(), namespace.to_owned());
            let answers = self.hear(Event::AttachRequested(Box::new(Attach {
                call: CallId(id.clone()),
                dialect: Dialect::Kni,
                sandbox: Wished { id, netns, namespace, ..Wished::default() },
                interfaces: vec![("eth0".parse().unwrap(), String::new(), asked)],
                notes: Notes::default(),
                fail_if_present: false,
                ticket: 1,
                began: 0,
            })));
            assert!(matches!(&answers[..], [(_, Answer::Attached { .. })]), "{answers:?}");
        }
    }

    fn say(&mut self, namespace: &str, terms: Terms) {
        self.hear(Event::Namespaces(Namespaces::from([(namespace.to_owned(), terms)])));
    }

    /// The program ends, and begins anew. Nobody tells it what admins say.
    fn restart(&mut self) {
        self.node = None;
        let folder = self.folder.path();
        self.node = Some(self.host.run(|| Standalone::open(folder).unwrap()));
        self.hear(Event::Restarted);
        self.hear(Event::Reforward);
    }

    /// The addresses that the host outside sees a pod have, one of each family.
    fn seen(&self, pod: &Pod) -> Vec<String> {
        WORLD.iter().map(|to| seen(&self.world, pod, to).to_string()).collect()
    }
}

/// The address that one who listens there sees. A neighbour that is new may take a moment to answer.
fn seen(world: &Namespace, pod: &Pod, to: &str) -> IpAddr {
    let listener = world.run(|| UdpSocket::bind((to, 0)).unwrap());
    listener.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let at = listener.local_addr().unwrap();
    let any = if at.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let mut from = None;
    eventually("a packet of the pod arrives", PATIENCE, || {
        let sent: io::Result<usize> = pod.namespace().run(|| UdpSocket::bind(any)?.send_to(b"hello", at));
        from = sent.and_then(|_| listener.recv_from(&mut [0; 16])).ok();
        from.is_some()
    });
    from.unwrap().1.ip()
}

fn pods(number: u8) -> [String; 2] {
    BEGIN.map(|begin| format!("{begin}{number}"))
}

/// Whether a pod gets an answer with an address that is not its own.
fn answers_to(pod: &Pod, forged: &str, neighbour: &str) -> bool {
    pod.output("ping", &["-n", "-c", "1", "-w", "1", "-I", forged, neighbour]).is_ok()
}

#[test]
fn a_grant_lets_the_pods_of_its_namespace_speak_for_others_and_goes_at_once() {
    let mut world = World::new("ns-guard");
    world.have(NodeRoutesIntent { anti_spoofing: true, ..NodeRoutesIntent::default() });
    world.attach_both();
    let (lab, shop) = (world.lab.clone(), world.shop.clone());
    for (pod, number) in [(&lab, 77), (&shop, 78)] {
        let [four, six] = pods(number);
        pod.namespace().ip(&["addr", "add", &format!("{four}/32"), "dev", "eth0"]);
        pod.namespace().ip(&["addr", "add", &format!("{six}/128"), "dev", "eth0", "nodad"]);
    }
    let forged = |from: &Pod, number: u8, to: u8| {
        let (forged, to) = (pods(number), pods(to));
        [0, 1].map(|family| answers_to(from, &forged[family], &to[family]))
    };
    let both = |what: &str, from: &Pod, number: u8, to: u8| {
        eventually(what, PATIENCE, || forged(from, number, to) == [true; 2]);
    };
    assert_eq!(forged(&lab, 77, 3), [false; 2], "nothing was granted");
    world.say("lab", Terms { unguarded: true, masquerade: None });
    both("a granted pod speaks for another", &lab, 77, 3);
    assert_eq!(forged(&shop, 78, 2), [false; 2], "the other namespace has no grant");
    world.restart();
    both("also after a restart", &lab, 77, 3);
    world.say("other", Terms { unguarded: true, masquerade: None });
    assert_eq!(forged(&lab, 77, 3), [false; 2], "the grant is gone");
    both("in its own name it speaks as ever", &lab, 2, 3);
}

fn pool(masquerade: Option<bool>, generation: i64) -> Event {
    let object = ObjectRef {
        kind: "PodAddressPool".to_owned(),
        namespace: String::new(),
        name: "pool".to_owned(),
        uid: "1".to_owned(),
        generation,
    };
    let range = "10.75.0.0/16".parse().unwrap();
    let want = IntentSpec::AddressPool(AddressPoolIntent {
        name: "pool".to_owned(),
        range,
        block: 24,
        namespaces: Vec::new(),
        masquerade,
    });
    let origin = Provenance {
        dialect: Dialect::Kubernetes,
        object: Some(object.clone()),
        field: "spec".to_owned(),
        call: None,
    };
    Event::ObjectApplied(StoredObject {
        object,
        intents: vec![Intent { origin, spec: want }],
        warnings: Vec::new(),
        manifest: serde_json::Value::Null,
        since: 0,
        file: None,
    })
}

#[test]
fn the_outside_sees_the_address_that_namespace_pool_and_agent_chose() {
    let mut world = World::new("ns-leave");
    world.have(NodeRoutesIntent { masquerade: true, ..NodeRoutesIntent::default() });
    world.attach_both();
    let (lab, shop) = (world.lab.clone(), world.shop.clone());
    assert_eq!(
        (world.seen(&lab), world.seen(&shop)),
        (NODE.map(String::from).into(), NODE.map(String::from).into())
    );
    world.say("lab", Terms { unguarded: false, masquerade: Some(false) });
    assert_eq!(world.seen(&lab), pods(2));
    assert_eq!(world.seen(&shop), NODE, "the other namespace as before");
    world.restart();
    assert_eq!((world.seen(&lab), world.seen(&shop)), (pods(2).into(), NODE.map(String::from).into()));
    // The pool has IPv4 alone.
    world.hear(pool(Some(false), 1));
    assert_eq!(world.seen(&shop), [pods(3)[0].as_str(), NODE[1]]);
    world.say("shop", Terms { unguarded: false, masquerade: Some(true) });
    assert_eq!(world.seen(&shop), NODE, "a namespace comes before a pool");
    assert_eq!(world.seen(&lab), [pods(2)[0].as_str(), NODE[1]]);
    // Whatever is chosen, pods see each other as they are.
    let (own, peer) = (pods(3), pods(2));
    for family in [0, 1] {
        assert_eq!(seen(lab.namespace(), &shop, &peer[family]).to_string(), own[family]);
    }
    world.have(NodeRoutesIntent { masquerade: false, ..NodeRoutesIntent::default() });
    assert_eq!((world.seen(&shop), world.seen(&lab)), (NODE.map(String::from).into(), pods(2).into()));
    world.hear(pool(Some(true), 2));
    assert_eq!(world.seen(&lab), [NODE[0], pods(2)[1].as_str()]);
    world.hear(pool(None, 3));
    world.hear(Event::Namespaces(Namespaces::new()));
    assert_eq!((world.seen(&shop), world.seen(&lab)), (pods(3).into(), pods(2).into()));
    let table = world.host.output("nft", &["list", "table", "inet", "knit"]);
    assert!(table.is_err(), "nothing is left: {table:?}");
}
