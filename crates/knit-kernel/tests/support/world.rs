//! A node with sandboxes for tests of plans: its kernel, and what `ip` shows of it.

use std::sync::Arc;
use std::time::Duration;

use knit_kernel::fault::{Observer, Unobserved};
use knit_kernel::secrets::NoSecrets;
use knit_kernel::{Applied, ApplyError, Deletes, Kernel, Look, Netns, Places, ScopeLook, Secrets};
use knit_model::plan::{Desired, Plan, diff};
use knit_model::{NetState, SandboxId, Scope};
use knit_testbed::{Dump, Namespace, Testbed, eventually};

use super::seen;

/// The world of one test.
pub struct World {
    pub host: Namespace,
    pub sandboxes: Vec<Namespace>,
    sysctls: Vec<(Scope, String)>,
    secrets: Arc<dyn Secrets>,
    is_noted: bool,
    _testbed: Testbed,
}

/// The scope of a sandbox.
pub fn sandbox(id: &str) -> Scope {
    Scope::Sandbox(SandboxId(id.to_owned()))
}

impl World {
    /// A host and these sandboxes.
    pub fn new(test: &str, sandboxes: &[&str]) -> Self {
        let testbed = Testbed::new(test);
        let host = testbed.host();
        let sandboxes = sandboxes.iter().map(|label| testbed.namespace(label)).collect();
        let secrets = Arc::new(NoSecrets);
        Self { host, sandboxes, sysctls: Vec::new(), secrets, is_noted: true, _testbed: testbed }
    }

    /// What is done in this world differs from run to run, so it is not noted.
    pub fn at_random(self) -> Self {
        Self { is_noted: false, ..self }
    }

    /// Every look of this world also reads this sysctl.
    pub fn look_at_sysctl(&mut self, scope: &Scope, key: &str) {
        self.sysctls.push((scope.clone(), key.to_owned()));
    }

    /// Every kernel of this world asks here for keys.
    pub fn keep_secrets(&mut self, secrets: Arc<dyn Secrets>) {
        self.secrets = secrets;
    }

    /// The kernel room as a new process has it.
    pub fn kernel(&self) -> Kernel {
        Kernel::open(Netns::open(self.host.path()).unwrap()).unwrap().with_secrets(self.secrets.clone())
    }

    /// The sandboxes, as one transaction has them.
    pub fn places(&self) -> Places {
        let mut places = Places::new();
        for namespace in &self.sandboxes {
            places.add(SandboxId(namespace.label().to_owned()), Netns::open(namespace.path()).unwrap());
        }
        places
    }

    /// Everything there is.
    pub fn observe(&self) -> NetState {
        let mut look = Look::default().at(Scope::Host, ScopeLook::everything());
        for namespace in &self.sandboxes {
            look = look.at(sandbox(namespace.label()), ScopeLook::everything());
        }
        for (scope, key) in &self.sysctls {
            look.scopes.get_mut(scope).unwrap().sysctls.insert(key.clone());
        }
        self.kernel().observe(&look, &mut self.places()).unwrap()
    }

    /// What there is to do.
    pub fn plan(&self, desired: &NetState) -> Plan {
        let plan = diff(&Desired { state: desired.clone(), ..Desired::default() }, &self.observe());
        assert!(plan.problems.is_empty(), "{plan}");
        plan
    }

    /// Carries out a plan as it is.
    pub fn apply_with(
        &self,
        plan: &Plan,
        deletes: Deletes,
        observer: &mut dyn Observer,
    ) -> Result<Applied, Box<ApplyError>> {
        self.kernel().apply(plan, deletes, &mut self.places(), observer)
    }

    /// Makes it so: the plan goes through, verifies, and leaves nothing to do. Returns the plan.
    #[track_caller]
    pub fn make(&self, desired: &NetState) -> Plan {
        let plan = self.plan(desired);
        if let Err(error) = self.apply_with(&plan, Deletes::Now, &mut Unobserved) {
            panic!("{error}\n{plan}");
        }
        let missing = self.kernel().verify(&plan, &mut self.places()).unwrap();
        assert!(missing.is_empty(), "{missing:?}\n{plan}");
        let again = self.plan(desired);
        assert!(again.is_empty(), "after\n{plan}\nstill to do\n{again}");
        if self.is_noted {
            seen::note(&plan);
        }
        plan
    }

    /// What `ip` and the others show of every namespace, once the kernel has followed what was done.
    pub fn dumps(&self) -> Vec<(String, Dump)> {
        // Looking at everything is slow in an emulated machine: these are what comes a moment later.
        let followed = || {
            let look = |namespace: &Namespace| namespace.ip(&["-6", "route", "show", "table", "all"]);
            self.all().map(|namespace| look(namespace) + &namespace.ip(&["address"])).collect::<Vec<_>>()
        };
        let mut seen = followed();
        eventually("the kernel has followed", Duration::from_secs(20), || {
            std::thread::sleep(Duration::from_millis(100));
            let before = std::mem::replace(&mut seen, followed());
            before == seen
        });
        self.dumps_now()
    }

    fn dumps_now(&self) -> Vec<(String, Dump)> {
        self.all().map(|namespace| (namespace.label().to_owned(), Dump::take(namespace))).collect()
    }

    fn all(&self) -> impl Iterator<Item = &Namespace> {
        std::iter::once(&self.host).chain(&self.sandboxes)
    }

    /// Every namespace looks as it did. The kernel adds some IPv6 routes a moment after their address.
    #[track_caller]
    pub fn assert_as_before(&self, before: &[(String, Dump)], when: &str) {
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
