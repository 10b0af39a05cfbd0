//! A node with sandboxes for tests of plans: its kernel, and the output of `ip` about it.

use std::sync::Arc;
use std::time::Duration;

use knit_kernel::fault::{FaultInjector, NoFaults};
use knit_kernel::nft::FilterQuery;
use knit_kernel::private_keys::NoPrivateKeys;
use knit_kernel::{
    AppliedPlan, ApplyError, DeleteMode, Kernel, Netns, PrivateKeySource, SandboxNamespaces, ScopeQuery,
    StateQuery,
};
use knit_model::plan::{Desired, Plan, diff};
use knit_model::{NetState, SandboxId, Scope};
use knit_testbed::{Dump, Namespace, Testbed, eventually};

use super::coverage;

/// The node of one test.
pub struct TestNode {
    pub host: Namespace,
    pub sandboxes: Vec<Namespace>,
    sysctls: Vec<(Scope, String)>,
    filters: Vec<(Scope, FilterQuery)>,
    key_source: Arc<dyn PrivateKeySource>,
    records_coverage: bool,
    _testbed: Testbed,
}

/// The scope of a sandbox.
pub fn sandbox(id: &str) -> Scope {
    Scope::Sandbox(SandboxId(id.to_owned()))
}

impl TestNode {
    /// A host and these sandboxes.
    pub fn new(test: &str, sandboxes: &[&str]) -> Self {
        crate::prepare_kernel();
        let testbed = Testbed::new(test);
        let host = testbed.host();
        let sandboxes = sandboxes.iter().map(|label| testbed.namespace(label)).collect();
        let key_source = Arc::new(NoPrivateKeys);
        Self {
            host,
            sandboxes,
            sysctls: Vec::new(),
            filters: Vec::new(),
            key_source,
            records_coverage: true,
            _testbed: testbed,
        }
    }

    /// Does not record coverage, for random states.
    pub fn without_coverage(self) -> Self {
        Self { records_coverage: false, ..self }
    }

    /// Every observation of this node includes this sysctl.
    pub fn observe_sysctl(&mut self, scope: &Scope, key: &str) {
        self.sysctls.push((scope.clone(), key.to_owned()));
    }

    /// Every observation of this node includes this part of the packet filter.
    pub fn observe_filter(&mut self, scope: &Scope, query: FilterQuery) {
        self.filters.push((scope.clone(), query));
    }

    /// Sets the source of private keys.
    pub fn set_key_source(&mut self, key_source: Arc<dyn PrivateKeySource>) {
        self.key_source = key_source;
    }

    /// The kernel layer, as a new process opens it.
    pub fn kernel(&self) -> Kernel {
        Kernel::open(Netns::open(self.host.path()).unwrap()).unwrap().with_key_source(self.key_source.clone())
    }

    /// The sandboxes, as one transaction uses them.
    pub fn namespaces(&self) -> SandboxNamespaces {
        let mut namespaces = SandboxNamespaces::new();
        for namespace in &self.sandboxes {
            namespaces.add(SandboxId(namespace.label().to_owned()), Netns::open(namespace.path()).unwrap());
        }
        namespaces
    }

    /// Observes everything.
    pub fn observe(&self) -> NetState {
        let mut query = StateQuery::default().with_scope(Scope::Host, ScopeQuery::everything());
        for namespace in &self.sandboxes {
            query = query.with_scope(sandbox(namespace.label()), ScopeQuery::everything());
        }
        for (scope, key) in &self.sysctls {
            query.scopes.get_mut(scope).unwrap().sysctls.insert(key.clone());
        }
        for (scope, filter) in &self.filters {
            query.scopes.get_mut(scope).unwrap().filter = filter.clone();
        }
        self.kernel().observe(&query, &mut self.namespaces()).unwrap()
    }

    /// The plan to the desired state.
    pub fn plan(&self, desired: &NetState) -> Plan {
        let plan = diff(&Desired { state: desired.clone(), ..Desired::default() }, &self.observe());
        assert!(plan.problems.is_empty(), "{plan}");
        plan
    }

    /// Applies a plan.
    pub fn apply_with(
        &self,
        plan: &Plan,
        delete_mode: DeleteMode,
        injector: &mut dyn FaultInjector,
    ) -> Result<AppliedPlan, Box<ApplyError>> {
        self.kernel().apply(plan, delete_mode, &mut self.namespaces(), injector)
    }

    /// Applies the plan to the desired state and checks that it verifies and leaves nothing to do. Returns the plan.
    #[track_caller]
    pub fn converge(&self, desired: &NetState) -> Plan {
        let plan = self.plan(desired);
        if let Err(error) = self.apply_with(&plan, DeleteMode::Immediate, &mut NoFaults) {
            panic!("{error}\n{plan}");
        }
        let missing = self.kernel().verify(&plan, &mut self.namespaces()).unwrap();
        assert!(missing.is_empty(), "{missing:?}\n{plan}");
        let rest = self.plan(desired);
        assert!(rest.is_empty(), "after\n{plan}\nstill to do\n{rest}");
        if self.records_coverage {
            coverage::record(&plan);
        }
        plan
    }

    /// Dumps every namespace with `ip` and others, once the kernel has settled.
    pub fn dumps(&self) -> Vec<(String, Dump)> {
        // Full dumps are slow in an emulated machine: poll only what the kernel changes with a delay.
        let delayed = || {
            let routes = |namespace: &Namespace| namespace.ip(&["-6", "route", "show", "table", "all"]);
            self.all().map(|namespace| routes(namespace) + &namespace.ip(&["address"])).collect::<Vec<_>>()
        };
        let mut observed = delayed();
        eventually("the kernel has settled", Duration::from_secs(20), || {
            std::thread::sleep(Duration::from_millis(100));
            let before = std::mem::replace(&mut observed, delayed());
            before == observed
        });
        self.dumps_now()
    }

    fn dumps_now(&self) -> Vec<(String, Dump)> {
        self.all().map(|namespace| (namespace.label().to_owned(), Dump::take(namespace))).collect()
    }

    fn all(&self) -> impl Iterator<Item = &Namespace> {
        std::iter::once(&self.host).chain(&self.sandboxes)
    }

    /// Checks that every namespace is unchanged. The kernel adds some IPv6 routes with a delay.
    #[track_caller]
    pub fn assert_unchanged(&self, before: &[(String, Dump)], when: &str) {
        let mut difference = String::new();
        for _ in 0..200 {
            difference = self.difference(before);
            if difference.is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("{when}: {difference}");
    }

    fn difference(&self, before: &[(String, Dump)]) -> String {
        let mut all = String::new();
        for ((label, before), (_, after)) in before.iter().zip(self.dumps_now()) {
            let difference = before.difference(&after);
            if !difference.is_empty() {
                all.push_str(&format!("{label} differs:\n{difference}\n"));
            }
        }
        all
    }
}
