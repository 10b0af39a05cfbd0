//! Pods, and what a kubelet and its runtime do with them: a sandbox, an ADD, a DEL, and another try when one failed.

use std::collections::BTreeMap;

use knit_engine::call::{Asked, Attach, Notes, Which, Wished};
use knit_engine::pods::{Pod as ApiPod, Running};
use knit_engine::{Answer, CallId, Detach, Event};
use knit_model::provenance::Dialect;
use knit_model::{IfName, SandboxId, Scope};

use super::hands::{cookie_of, instance};
use super::{Cluster, Due};
use crate::node::{Call, PodNews};
use crate::queue::{MILLIS, Moment, SECOND};
use crate::trace::About;

/// A third of the pods on a tenant's node is the tenant's.
const TENANTS_SHARE: u64 = 33;
/// A kubelet waits at most so long before it tries again.
const LONGEST_PAUSE: Moment = 60 * SECOND;

/// How far a pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It is not on its node yet, or waits for the next try.
    Waits,
    /// Its sandbox is being attached.
    Starts,
    Runs,
    /// Its sandbox is being detached.
    Ends,
    Gone,
}

pub(crate) struct Pod {
    pub(crate) node: usize,
    pub(crate) tenant: Option<usize>,
    pub(crate) step: Step,
    /// Whether it should run.
    pub(crate) is_wanted: bool,
    pub(crate) sandbox: Option<SandboxId>,
    /// When the kubelet heard of it.
    pub(crate) since: Option<Moment>,
    /// When the last call for it began.
    pub(crate) called: Moment,
    tries: u32,
    has_second: bool,
    /// Its place among those that there are.
    place: usize,
}

impl Cluster {
    /// A new pod on some node.
    pub(crate) fn new_pod(&mut self) -> u32 {
        let number = self.pods.len() as u32;
        let nodes = self.nodes.len();
        let mut node = number as usize % nodes;
        if number as usize >= self.options.pods {
            node = self.dice.below(nodes as u64) as usize;
        }
        while self.nodes[node].is_gone {
            node = (node + 1) % nodes;
        }
        let here: Vec<usize> =
            (0..self.tenants.len()).filter(|tenant| self.tenants[*tenant].is_on(node, nodes)).collect();
        let is_tenants = !here.is_empty() && self.dice.chance(TENANTS_SHARE);
        let tenant = is_tenants.then(|| *self.dice.one(&here));
        self.counts.pods += 1;
        self.counts.tenant_pods += u64::from(tenant.is_some());
        self.pods.push(Pod {
            node,
            tenant,
            step: Step::Waits,
            is_wanted: true,
            sandbox: None,
            since: None,
            called: 0,
            tries: 0,
            has_second: false,
            place: self.live.len(),
        });
        self.live.push(number);
        number
    }

    fn namespace_of(&self, pod: u32) -> String {
        self.pods[pod as usize]
            .tenant
            .map_or_else(|| "apps".to_owned(), |tenant| self.tenants[tenant].namespace.clone())
    }

    /// A sandbox is made, and will be attached.
    pub(crate) fn start(&mut self, number: u32) {
        let node = self.pods[number as usize].node;
        let pod = &self.pods[number as usize];
        if pod.step != Step::Waits {
            return;
        }
        if !pod.is_wanted || self.nodes[node].is_gone {
            return self.pod_gone(number);
        }
        if pod.since.is_none() {
            let is_net = pod.tenant.is_some();
            let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
            let mut labels = BTreeMap::from([label("app", "web")]);
            labels.extend(is_net.then(|| label("net", "yes")));
            let api = ApiPod {
                uid: format!("uid-{number}"),
                namespace: self.namespace_of(number),
                name: format!("pod-{number}"),
                labels,
                ..ApiPod::default()
            };
            self.nodes[node].pod_news.push(PodNews::Applied(api));
            self.pods[number as usize].since = Some(self.queue.now());
        }
        self.tries += 1;
        let id = SandboxId(format!("s{}", self.tries));
        self.nodes[node].namespace_made(&id, number);
        let pod = &mut self.pods[number as usize];
        (pod.sandbox, pod.step, pod.called) = (Some(id), Step::Starts, self.queue.now());
        let delay = self.dice.between(MILLIS, 50 * MILLIS);
        self.queue.after(delay, Due::Add(number, self.tries));
    }

    /// The runtime calls ADD.
    pub(crate) fn add(&mut self, number: u32, sandbox: u64) {
        let pod = &self.pods[number as usize];
        let Some(id) = pod.sandbox.clone().filter(|id| cookie_of(id) == sandbox) else { return };
        let (node, namespace) = (pod.node, self.namespace_of(number));
        if pod.step != Step::Starts {
            return;
        }
        if !self.nodes[node].is_up {
            return self.end_soon(number);
        }
        let call = CallId(format!("add-{}", id.0));
        self.nodes[node].calls.insert(call.clone(), Call::Add(number));
        let asked = Asked { default_route: true, ..Asked::default() };
        let attach = Attach {
            call,
            dialect: Dialect::Cni,
            sandbox: Wished {
                netns: format!("/run/netns/{}", id.0),
                id: id.0,
                pod: format!("pod-{number}"),
                namespace,
                uid: format!("uid-{number}"),
                ..Wished::default()
            },
            interfaces: vec![(first(), String::new(), asked)],
            notes: Notes { group: "knit".to_owned(), ..Notes::default() },
            fail_if_present: true,
            ticket: sandbox,
            began: self.queue.now(),
        };
        self.note(node, "attaches", About::Pod(number));
        self.hear(node, Event::AttachRequested(Box::new(attach)));
    }

    /// The runtime calls DEL.
    pub(crate) fn del(&mut self, number: u32) {
        let pod = &self.pods[number as usize];
        let (node, id) = (pod.node, pod.sandbox.clone());
        if pod.step != Step::Ends || self.nodes[node].is_gone {
            return;
        }
        let Some(id) = id else { return self.sandbox_ended(number) };
        if !self.nodes[node].is_up {
            return self.queue.after(SECOND, Due::Del(number));
        }
        self.tries += 1;
        let call = CallId(format!("del-{}-{}", id.0, self.tries));
        self.nodes[node].calls.insert(call.clone(), Call::Del(number));
        let netns = format!("/run/netns/{}", id.0);
        let which = Which::These([first()].into());
        let detach = Detach { call, sandbox: id, netns, which, forget: true, began: self.queue.now() };
        self.note(node, "detaches", About::Pod(number));
        self.hear(node, Event::DetachRequested(detach));
    }

    /// A call is answered.
    pub(crate) fn answered(&mut self, node: usize, call: &CallId, answer: Answer) {
        let Some(called) = self.nodes[node].calls.remove(call) else { return };
        match (called, answer) {
            (Call::Add(number), Answer::Attached { interfaces, .. }) => {
                let has_address = interfaces.iter().all(|(_, report)| !report.addresses.is_empty());
                if !has_address {
                    self.fail(
                        &[node],
                        format!("pod-{number} is told that it is attached, and has no address"),
                    );
                }
                self.note(node, "has attached", About::Pod(number));
                let now = self.queue.now();
                let pod = &mut self.pods[number as usize];
                (pod.step, pod.tries) = (Step::Runs, 0);
                self.counts.attach.add(now - pod.since.unwrap_or(now));
                self.feed_soon(node);
                if !self.pods[number as usize].is_wanted {
                    self.end_soon(number);
                }
            }
            (Call::Add(number), answer) => {
                self.counts.refused += 1;
                let why = match answer {
                    Answer::Failed(problem) => problem.message,
                    other => format!("{other:?}"),
                };
                self.note(node, "could not attach", About::Name(format!("pod-{number}: {why}")));
                self.end_soon(number);
            }
            (Call::Del(number), Answer::Detached) => self.sandbox_ended(number),
            (Call::Del(number), _) => self.queue.after(SECOND, Due::Del(number)),
        }
    }

    /// The connection of a call broke: what came of it is not known.
    pub(crate) fn call_lost(&mut self, call: Call) {
        match call {
            Call::Add(number) => self.end_soon(number),
            Call::Del(number) => self.queue.after(SECOND, Due::Del(number)),
        }
    }

    /// A pod is to end.
    pub(crate) fn stop(&mut self, number: u32) {
        let pod = &mut self.pods[number as usize];
        pod.is_wanted = false;
        match pod.step {
            Step::Runs => self.end_soon(number),
            Step::Waits => self.pod_gone(number),
            // An ADD is always waited for.
            Step::Starts | Step::Ends | Step::Gone => {}
        }
    }

    fn end_soon(&mut self, number: u32) {
        let pod = &mut self.pods[number as usize];
        (pod.step, pod.called) = (Step::Ends, self.queue.now());
        let delay = self.dice.between(MILLIS, 20 * MILLIS);
        self.queue.after(delay, Due::Del(number));
    }

    /// The sandbox is detached: its namespace goes. The pod is tried again, or goes, too.
    fn sandbox_ended(&mut self, number: u32) {
        let pod = &mut self.pods[number as usize];
        let node = pod.node;
        if let Some(id) = pod.sandbox.take() {
            self.namespace_died(node, &id);
        }
        self.feed_soon(node);
        let pod = &mut self.pods[number as usize];
        pod.step = Step::Waits;
        if !pod.is_wanted {
            return self.pod_gone(number);
        }
        pod.tries += 1;
        let pause = (SECOND << pod.tries.min(6)).min(LONGEST_PAUSE);
        self.queue.after(pause, Due::Start(number));
    }

    pub(crate) fn namespace_died(&mut self, node: usize, id: &SandboxId) {
        let here = &mut self.nodes[node];
        here.netns.remove(id);
        here.kernel.died(&Scope::Sandbox(id.clone()));
        self.look_at_addresses(node, id);
    }

    /// The pod's object is gone, and what belongs to it.
    pub(crate) fn pod_gone(&mut self, number: u32) {
        let pod = &mut self.pods[number as usize];
        if std::mem::replace(&mut pod.step, Step::Gone) == Step::Gone {
            return;
        }
        let (node, place) = (pod.node, pod.place);
        self.live.swap_remove(place);
        if let Some(moved) = self.live.get(place) {
            self.pods[*moved as usize].place = place;
        }
        if self.api.pod_states.remove(&number) {
            self.controller.forget_pod((self.namespace_of(number), format!("pod-{number}")));
            self.controller_soon();
        }
        if !self.nodes[node].is_gone {
            self.nodes[node].pod_news.push(PodNews::Deleted(format!("uid-{number}")));
            self.feed_soon(node);
        }
    }

    /// The pod's second interface stands.
    pub(crate) fn has_second(&mut self, node: usize, id: &SandboxId) {
        let Some(number) = self.nodes[node].netns.get(id) else { return };
        let pod = &mut self.pods[*number as usize];
        if !std::mem::replace(&mut pod.has_second, true) {
            self.counts.second.add(self.queue.now() - pod.since.unwrap_or_default());
        }
    }

    pub(crate) fn feed_soon(&mut self, node: usize) {
        if !std::mem::replace(&mut self.nodes[node].due.feed, true) {
            let delay = self.dice.between(20 * MILLIS, 300 * MILLIS);
            let life = self.nodes[node].life;
            self.queue.after(delay, Due::Feed(node, life));
        }
    }

    /// The agent looks at what API server and runtime say about pods.
    pub(crate) fn feed(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.due.feed = false;
        if !node.is_cut {
            for news in node.pod_news.drain(..) {
                match news {
                    PodNews::Applied(pod) => node.pods.apply(pod),
                    PodNews::Deleted(uid) => node.pods.delete(&uid),
                }
            }
        }
        let runs = node.netns.iter().filter(|(_, pod)| self.pods[**pod as usize].step == Step::Runs);
        let running = runs.map(|(id, pod)| {
            let cookie = cookie_of(id);
            let running = Running {
                uid: format!("uid-{pod}"),
                instance: instance(cookie),
                netns: format!("/run/netns/{}", id.0),
                number: (cookie % 10_000_000) as u32,
            };
            (id.clone(), running)
        });
        node.pods.run(running.collect(), knit_ipam::Time(0));
        let events = node.pods.events(&node.state);
        for event in events {
            self.hear(at, event);
        }
        // What was written about a pod that is gone goes.
        self.write_soon(at);
    }
}

/// The interface that a pod has first.
fn first() -> IfName {
    IfName::new("eth0").expect("a short name")
}
