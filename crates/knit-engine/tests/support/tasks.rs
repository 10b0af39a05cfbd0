//! What the engine asks to be done, done by a kernel made of plain data.

use knit_engine::call::{DomainDone, Found};
use knit_engine::{Applied, Effect, Event, Failure, StoredObject, cluster};
use knit_model::intent::{IntentSpec, NetworkIntent};
use knit_model::link::Veth;
use knit_model::problem::{Problem, Reason};
use knit_model::sandbox::Instance;
use knit_model::{Kind, Link, NetState, Scope};

use super::kernel::Kernel;
use super::node::{bridge, object, scope};

/// Does a task of the kernel's, and says what came of it. In a broken kernel plans fail. What others have to do comes back.
pub fn carry_out(kernel: &mut Kernel, task: Effect, is_broken: bool) -> Result<Event, Box<Effect>> {
    Ok(match task {
        Effect::Observe { unit, look } => {
            let mut seen = kernel.observe();
            seen.scopes.retain(|scope, _| match scope {
                Scope::Host => true,
                Scope::Sandbox(id) => look.sandbox.as_ref() == Some(id),
            });
            Event::Observed { unit, seen, keys: Default::default() }
        }
        Effect::Apply { unit, plan } => {
            let result = if is_broken { Err("it is broken".to_owned()) } else { kernel.apply(&plan) };
            let failure = |message| Failure {
                problem: Problem { field: String::new(), reason: Reason::KernelRefused, message },
                taken_back: true,
                lacks: None,
            };
            Event::Applied(Applied { unit, result: result.map_err(failure) })
        }
        Effect::Inspect { call, path } => Event::Inspected { call, found: Ok(found(&path)) },
        Effect::Forward(_) => Event::Forwarded(Ok(())),
        Effect::MakeDomain { call, .. } => Event::DomainDone { call, result: Ok(DomainDone::Made) },
        Effect::RemoveDomain { call, path } => {
            let instance = Some(found(&path).instance);
            Event::DomainDone { call, result: Ok(DomainDone::Removed(instance)) }
        }
        other => return Err(Box::new(other)),
    })
}

/// A namespace is known by its path here.
pub fn found(path: &str) -> Found {
    let cookie = path.bytes().map(u64::from).sum();
    Found { instance: Instance { boot: "boot".to_owned(), cookie }, number: 1 }
}

/// Sandboxes as they are born: with `lo`, which is down.
pub fn newborn(sandboxes: &[&str]) -> NetState {
    let mut state = NetState::default();
    for name in sandboxes {
        let mut lo = Link::new("lo".parse().unwrap(), Kind::Veth(Veth::default()));
        lo.attrs.up = Some(false);
        state.scope(&scope(name)).add_link(lo);
    }
    state
}

/// The cluster's network.
pub fn cluster_network(range: &str) -> StoredObject {
    let network = NetworkIntent {
        name: cluster::NAME.to_owned(),
        ranges: vec![range.parse().unwrap()],
        isolated: false,
        mtu: None,
        span: None,
    };
    let wants = vec![IntentSpec::Network(network), bridge("knit0", range)];
    object(cluster::KIND, cluster::NAMESPACE, cluster::NAME, wants)
}
