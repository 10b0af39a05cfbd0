//! The hands of a node: they look at the kernel and change it, one job at a time, and decide nothing.
//!
//! A node that works for one command has one pair of hands. A daemon has several, each on a thread of its own that
//! visits sandboxes' namespaces itself; so what is done for different units is done at the same time, up to the kernel's
//! own lock. A job carries all that it needs, and its result carries everything back.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use knit_engine::call::{DomainDone, Found};
use knit_engine::chain::{Chained, Verb};
use knit_engine::forward::Forwarding;
use knit_engine::{Applied, CallId, Event, Failure, Keys, Lack, Look, State, Unit};
use knit_kernel::apply::{Applied as AppliedPlan, ApplyError, Deletes, RollBack};
use knit_kernel::fault::{Fault, Observer};
use knit_kernel::netlink::Protocol;
use knit_kernel::observe::{Links, ScopeLook};
use knit_kernel::redirect::Redirect;
use knit_kernel::{Kernel, Netns, Places, Socket, memory};
use knit_model::plan::Planned;
use knit_model::problem::{Problem, Reason};
use knit_model::sandbox::Instance;
use knit_model::{IfName, KeyRef, NetState, Plan, Sandbox, Scope, Step};

use crate::error::{Error, Result};
use crate::forward::LastFilter;
use crate::keys::KeyFolder;
use crate::{announce, chain, forward};

/// Fault points that all hands of a node share.
pub type Faults = Arc<Mutex<Box<dyn Observer + Send>>>;

/// Asks the shared fault points before each step, and holds them no longer than that.
pub(crate) struct Shared(pub(crate) Faults);

impl Observer for Shared {
    fn before(&mut self, step: usize, planned: &Planned) -> Option<Fault> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).before(step, planned)
    }

    fn moment(&mut self, what: &'static str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).moment(what);
    }
}

/// What the hands are asked to do.
#[derive(Debug)]
pub enum Task {
    /// Look at what a unit is about.
    Observe {
        /// The unit.
        unit: Unit,
        /// What to look at.
        look: Look,
        /// Whether a key that is missing is made.
        make_keys: bool,
    },
    /// Carry out a plan, and verify it.
    Apply {
        /// The unit.
        unit: Unit,
        /// The plan.
        plan: Arc<Plan>,
    },
    /// Look at a namespace.
    Inspect {
        /// For this call.
        call: CallId,
        /// Where it is.
        path: String,
    },
    /// Make a namespace.
    MakeDomain {
        /// For this call.
        call: CallId,
        /// Where.
        path: String,
    },
    /// Remove a namespace.
    RemoveDomain {
        /// For this call.
        call: CallId,
        /// Where.
        path: String,
    },
    /// Have these ports of the node lead to pods, and no others.
    Forward(Forwarding),
    /// Run the plugins of a chain.
    Chain {
        /// What for.
        verb: Verb,
        /// The interface.
        chained: Box<Chained>,
    },
    /// Delete what was cut off.
    Reap(BTreeSet<Scope>),
    /// Say which of these sandboxes are gone.
    Census,
}

/// A task, with the sandboxes that it is about.
#[derive(Debug)]
pub struct Job {
    /// What to do.
    pub task: Task,
    /// The sandboxes that it may have to visit.
    pub sandboxes: Vec<Sandbox>,
    /// Namespaces that are at hand already.
    pub places: Places,
}

/// What came of a task.
#[derive(Debug, Default)]
pub struct Done {
    /// What the engine is told.
    pub events: Vec<Event>,
    /// The unit that it was for, with the namespaces that are at hand for its next task.
    pub places: Option<(Unit, Places)>,
    /// Where links wait to be deleted.
    pub to_reap: BTreeSet<Scope>,
    /// What is to go past the bridge from now on. Nobody has to wait for that: until then it takes the bridge.
    pub direct: Option<Box<Forwarding>>,
}

/// One pair of hands.
pub struct Hands {
    kernel: Kernel,
    keys: Arc<KeyFolder>,
    faults: Faults,
    /// This boot of the machine. A sandbox of another boot is gone, whatever its namespace's number says.
    boot: String,
    /// How packets go past the bridge. `None`: nobody looks after that.
    redirect: Option<Arc<Redirect>>,
    filter: LastFilter,
}

impl Task {
    /// The task as a job, with the sandboxes that the state knows.
    pub fn with(self, state: &State, places: Places) -> Job {
        let scopes: BTreeSet<Scope> = match &self {
            Self::Observe { look, .. } => look.sandbox.iter().cloned().map(Scope::Sandbox).collect(),
            Self::Apply { plan, .. } => plan.steps.iter().flat_map(scopes_of).collect(),
            Self::Reap(scopes) => scopes.clone(),
            Self::Census => state.sandboxes.keys().cloned().map(Scope::Sandbox).collect(),
            _ => BTreeSet::new(),
        };
        let sandboxes = scopes.into_iter().filter_map(|scope| match scope {
            Scope::Sandbox(id) => state.sandboxes.get(&id).cloned(),
            Scope::Host => None,
        });
        Job { sandboxes: sandboxes.collect(), task: self, places }
    }
}

impl Done {
    fn with(event: Event) -> Self {
        Self { events: vec![event], ..Self::default() }
    }
}

impl Hands {
    /// New hands, in the network namespace that counts as the host's. They belong to the calling thread.
    pub fn new(host: Netns, boot: String, keys: Arc<KeyFolder>, faults: Faults) -> Result<Self> {
        let kernel = Kernel::open(host)?.with_secrets(keys.clone());
        Ok(Self { kernel, keys, faults, boot, redirect: None, filter: LastFilter::default() })
    }

    /// More of the same, for another thread.
    pub(crate) fn another(&self) -> Result<Self> {
        let host = self.kernel.host().clone();
        let (keys, faults) = (Arc::clone(&self.keys), Arc::clone(&self.faults));
        let new = Self::new(host, self.boot.clone(), keys, faults)?;
        Ok(Self { redirect: self.redirect.clone(), filter: self.filter.clone(), ..new })
    }

    /// From here on they also look after packets that go past the bridge.
    pub(crate) fn set_redirect(&mut self, redirect: Option<Arc<Redirect>>) {
        self.redirect = redirect;
    }

    /// From here on they know what other hands told the packet filter.
    pub(crate) fn set_filter(&mut self, filter: LastFilter) {
        self.filter = filter;
    }

    pub(crate) fn redirect(&self) -> Option<&Arc<Redirect>> {
        self.redirect.as_ref()
    }

    /// The kernel, for what is no job.
    pub(crate) fn kernel(&mut self) -> &mut Kernel {
        &mut self.kernel
    }

    pub(crate) fn faults(&self) -> Faults {
        Arc::clone(&self.faults)
    }

    /// Does one job.
    pub fn work(&mut self, job: Job) -> Result<Done> {
        let Job { task, sandboxes, mut places } = job;
        match task {
            Task::Observe { unit, look, make_keys } => {
                let keys = self.look_at_keys(&look, make_keys);
                self.observe(unit, &look, keys, &sandboxes, places)
            }
            Task::Apply { unit, plan } => self.apply(unit, &plan, &sandboxes, places),
            Task::Inspect { call, path } => {
                let found = self.inspect(&path);
                Ok(Done::with(Event::Inspected { call, found }))
            }
            Task::MakeDomain { call, path } => {
                let result = make_domain(&path).map_err(|why| refused("netns_path_prefix", &why));
                Ok(Done::with(Event::DomainDone { call, result: result.map(|()| DomainDone::Made) }))
            }
            Task::RemoveDomain { call, path } => {
                let instance = self.inspect(&path).ok().map(|found| found.instance);
                let removed = Netns::delete(Path::new(&path)).map_err(|why| refused("netns_path", &why));
                let result = removed.map(|()| DomainDone::Removed(instance));
                Ok(Done::with(Event::DomainDone { call, result }))
            }
            Task::Forward(all) => {
                let done = forward::apply(&mut self.kernel, &self.filter, &all);
                if let Err(why) = &done {
                    tracing::error!(%why, "the node's part of the way to and from pods is not as it should be");
                }
                // What nobody guards must not be passed by.
                let direct = (done.is_ok() && self.redirect.is_some()).then(|| Box::new(all));
                Ok(Done { direct, ..Done::with(Event::Forwarded(done)) })
            }
            Task::Chain { verb, chained } => {
                let result = chain::run(verb, &chained);
                Ok(Done::with(Event::ChainDone { key: chained.key(), verb, result }))
            }
            Task::Reap(scopes) => {
                for scope in scopes {
                    self.reap(&scope, &sandboxes, &mut places)?;
                }
                Ok(Done::default())
            }
            Task::Census => {
                let gone = sandboxes.iter().filter(|sandbox| !self.is_there(sandbox));
                let events = gone.map(|sandbox| Event::SandboxGone(sandbox.id.clone())).collect();
                // It comes every few seconds, and nobody waits for it.
                memory::give_back();
                Ok(Done { events, ..Done::default() })
            }
        }
    }

    /// Has packets go past the bridge, as far as they may.
    pub(crate) fn direct(&self, all: &Forwarding) {
        if let Some(redirect) = &self.redirect {
            forward::direct(redirect, &self.kernel, all);
        }
    }

    /// Whether a sandbox's namespace is there and still the one it was. A virtual machine has none, and is there as long as
    /// nobody says otherwise and the node has not begun anew.
    pub(crate) fn is_there(&mut self, sandbox: &Sandbox) -> bool {
        if !sandbox.isolation.is_netns() {
            return sandbox.instance.boot == self.boot;
        }
        let mut places = Places::new();
        let scopes = BTreeSet::from([Scope::Sandbox(sandbox.id.clone())]);
        self.reach(std::slice::from_ref(sandbox), &scopes, &mut places);
        places.contains(&sandbox.id)
    }

    /// Has the namespaces of these scopes' sandboxes at hand, those that are still there, and no others. A namespace that
    /// is at hand already is the same one still: it is held.
    pub(crate) fn reach(&self, sandboxes: &[Sandbox], scopes: &BTreeSet<Scope>, places: &mut Places) {
        places.keep(|id| scopes.contains(&Scope::Sandbox(id.clone())));
        for sandbox in sandboxes {
            let id = &sandbox.id;
            if places.contains(id) || !scopes.contains(&Scope::Sandbox(id.clone())) {
                continue;
            }
            let Ok(netns) = Netns::open_sandbox(Path::new(&sandbox.netns), self.kernel.host()) else {
                continue;
            };
            places.add(id.clone(), netns);
            let is_same = |cookie| sandbox.instance.boot == self.boot && sandbox.instance.cookie == cookie;
            if !matches!(places.cookie(id), Ok(Some(cookie)) if is_same(cookie)) {
                places.keep(|other| other != id);
            }
        }
    }

    /// Which public key belongs to each key that is there. One that cannot be used says why.
    fn look_at_keys(&self, look: &Look, may_make: bool) -> Keys {
        let found = look.keys.iter().filter_map(|key| {
            let found = match key {
                KeyRef::Made { id } if may_make => self.keys.make(id).map(Some),
                key => self.keys.find(key),
            };
            Some((key.clone(), found.transpose()?.map(|found| found.public())))
        });
        found.collect()
    }

    /// Looks at what a unit is about. A sandbox whose namespace is gone, or is another by now, is reported as gone.
    fn observe(
        &mut self,
        unit: Unit,
        look: &Look,
        keys: Keys,
        sandboxes: &[Sandbox],
        mut places: Places,
    ) -> Result<Done> {
        let mut wanted = knit_kernel::observe::Look::default();
        let mut host =
            ScopeLook::named(look.host_links.iter().chain(&look.host_parents).chain(&look.ways).cloned());
        (host.addresses, host.routes) = (!look.links_only, !look.links_only);
        host.rules = look.host_rules;
        host.dead_ends = look.dead_ends;
        host.neighbours = look.host_neighbours;
        host.vlans = look.vlans;
        if look.ports_of.is_some() || !look.lent.is_empty() {
            // Who its ports are, or where a NIC came to lie, only all links can tell. That is asked when a bridge goes, or
            // when a sandbox ended with a NIC, which is rare.
            host.links = Links::All;
        }
        match &look.sandbox {
            None => host.sysctls.clone_from(&look.sysctls),
            Some(id) => {
                let scope = Scope::Sandbox(id.clone());
                self.reach(sandboxes, &BTreeSet::from([scope.clone()]), &mut places);
                if !places.contains(id) {
                    return Ok(Done::with(Event::SandboxGone(id.clone())));
                }
                let inside = match look.links_only {
                    true => ScopeLook { links: Links::All, ..ScopeLook::nothing() },
                    false => ScopeLook {
                        sysctls: look.sysctls.clone(),
                        only_if_marked: look.is_new,
                        ..ScopeLook::everything()
                    },
                };
                wanted.scopes.insert(scope, inside);
            }
        }
        wanted.scopes.insert(Scope::Host, host);
        let seen: NetState = self.kernel.observe(&wanted, &mut places)?;
        let places = Some((unit.clone(), places));
        Ok(Done { places, ..Done::with(Event::Observed { unit, seen, keys }) })
    }

    fn apply(&mut self, unit: Unit, plan: &Plan, sandboxes: &[Sandbox], mut places: Places) -> Result<Done> {
        let scopes: BTreeSet<Scope> = plan.steps.iter().flat_map(scopes_of).collect();
        self.reach(sandboxes, &scopes, &mut places);
        if let Some(redirect) = &self.redirect {
            redirect.forget(&host_links(plan));
        }
        let mut faults = Shared(Arc::clone(&self.faults));
        let applied = self.kernel.apply(plan, Deletes::Deferred, &mut places, &mut faults);
        let (result, to_reap) = match applied {
            Ok(AppliedPlan { to_reap }) => {
                let held = self.verify(&unit, plan, &mut places);
                if held.is_ok() && unit == Unit::NodeRoutes {
                    announce::arrived(self.kernel.host(), plan);
                }
                if held.is_ok() && !plan.announced.is_empty() {
                    announce::came(&places, plan);
                }
                (held, to_reap)
            }
            Err(error) if error.roll_back == RollBack::Left => {
                return Err(Error::Stopped { unit: unit.to_string() });
            }
            // What was cut off and came back came back as a new link: the old one still waits.
            Err(error) => (Err(failure(&error, plan)), scopes),
        };
        Ok(Done { to_reap, ..Done::with(Event::Applied(Applied { unit, result })) })
    }

    /// An answer is given only once the kernel shows what was asked for; otherwise it is taken back.
    fn verify(&mut self, unit: &Unit, plan: &Plan, places: &mut Places) -> Result<(), Failure> {
        let missing = match self.kernel.verify(plan, places) {
            Ok(missing) if missing.is_empty() => return Ok(()),
            Ok(missing) => missing.join("; "),
            Err(error) => error.to_string(),
        };
        let left = self.kernel.take_back(plan, places);
        let message = format!("{unit}: the kernel took it, but does not show it: {missing}");
        Err(Failure {
            problem: Problem { field: String::new(), reason: Reason::KernelRefused, message },
            taken_back: left.is_empty(),
            lacks: None,
        })
    }

    /// Takes back whatever part of a plan was carried out. Says what could not be.
    pub(crate) fn take_back(&mut self, plan: &Plan, sandboxes: &[Sandbox]) -> (Vec<String>, BTreeSet<Scope>) {
        let scopes: BTreeSet<Scope> = plan.steps.iter().flat_map(scopes_of).collect();
        let mut places = Places::new();
        self.reach(sandboxes, &scopes, &mut places);
        (self.kernel.take_back(plan, &mut places), scopes)
    }

    /// Deletes what was cut off in a scope. What is cut off in a sandbox that is gone by now went with it.
    fn reap(&mut self, scope: &Scope, sandboxes: &[Sandbox], places: &mut Places) -> Result<()> {
        let scopes = BTreeSet::from([scope.clone()]);
        self.reach(sandboxes, &scopes, places);
        let reaped = match self.kernel.reap(&scopes, places) {
            Err(knit_kernel::Error::NoNamespace { .. }) => Ok(()),
            reaped => reaped,
        };
        *places = Places::new();
        Ok(reaped?)
    }

    /// Which life of a sandbox is at a path; without one, of a virtual machine.
    fn inspect(&self, path: &str) -> Result<Found, Problem> {
        if path.is_empty() {
            let instance = Instance { boot: self.boot.clone(), cookie: 0 };
            return Ok(Found { instance, number: 0 });
        }
        let open = || -> Result<u64> {
            let netns = Netns::open_sandbox(Path::new(path), self.kernel.host())?;
            Ok(netns.cookie()?)
        };
        let cookie = open().map_err(|why| refused("isolation.path", &why))?;
        let instance = Instance { boot: self.boot.clone(), cookie };
        Ok(Found { instance, number: number(path, cookie) })
    }
}

/// The process that a path is of, or a number that stands for the namespace.
fn number(path: &str, cookie: u64) -> u32 {
    let process = path.strip_prefix("/proc/").and_then(|rest| rest.split('/').next()?.parse().ok());
    // With seven digits a name's prefix and the number still fit.
    process.unwrap_or_else(|| u32::try_from(cookie % 10_000_000).unwrap_or_default())
}

/// Makes a namespace with `lo` up, unless it is there.
fn make_domain(path: &str) -> Result<()> {
    let path = Path::new(path);
    if Netns::open(path).is_ok() {
        return Ok(());
    }
    // An empty file is what a crash or a reboot leaves.
    Netns::delete(path)?;
    let netns = Netns::create(path)?;
    let up = Socket::open_in(&netns, Protocol::Route)
        .and_then(|mut socket| knit_kernel::netns::bring_up_loopback(&mut socket));
    if let Err(why) = up {
        Netns::delete(path)?;
        return Err(why.into());
    }
    Ok(())
}

fn refused(field: &str, why: &impl std::fmt::Display) -> Problem {
    Problem { field: field.to_owned(), reason: Reason::InvalidValue, message: why.to_string() }
}

pub(crate) fn scopes_of(planned: &Planned) -> Vec<Scope> {
    let mut scopes = vec![planned.scope.clone()];
    if let Step::CreateLink { link, peer } | Step::DeleteLink { link, peer } = &planned.step {
        scopes.extend(link.born_from.clone());
        scopes.extend(peer.as_ref().map(|(scope, _)| scope.clone()));
    }
    scopes
}

/// Links of the host that a plan makes or deletes.
fn host_links(plan: &Plan) -> BTreeSet<&IfName> {
    let changed = plan.steps.iter().filter_map(|planned| match &planned.step {
        Step::CreateLink { link, peer } | Step::DeleteLink { link, peer } => Some((planned, link, peer)),
        _ => None,
    });
    let ends = changed.flat_map(|(planned, link, peer)| {
        let far = peer.as_ref().map(|(scope, link)| (scope, &link.name));
        [(&planned.scope, &link.name)].into_iter().chain(far)
    });
    ends.filter(|(scope, _)| **scope == Scope::Host).map(|(_, name)| name).collect()
}

fn failure(error: &ApplyError, plan: &Plan) -> Failure {
    let lack = error.error.lack();
    let reason = match &error.error {
        _ if lack.is_some() => Reason::KernelLacks,
        other if other.reason() == "NotFound" => Reason::NotFound,
        _ => Reason::KernelRefused,
    };
    let lacks = match (lack, plan.steps.get(error.step).map(|planned| &planned.step)) {
        (Some(words), Some(Step::CreateLink { link, .. })) => {
            Some(Lack { kind: link.kind.name().to_owned(), words })
        }
        _ => None,
    };
    let problem = Problem { field: String::new(), reason, message: error.to_string() };
    Failure { problem, taken_back: matches!(error.roll_back, RollBack::Complete), lacks }
}
