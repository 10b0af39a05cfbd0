//! What always holds of plans, checked against a small kernel made of plain data that refuses what the real one refuses.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    pub mod generate;
    #[allow(dead_code, reason = "shared with the engine's tests")]
    pub mod kernel;
}

use knit_model::link::{Attrs, Dummy, Master, Veth, Vrf};
use knit_model::plan::{Desired, Plan, Planned, diff};
use knit_model::{Kind, Link, Mac, Neighbour, NetState, SandboxId, Scope, Step};
use proptest::prelude::*;
use support::generate;
use support::kernel::Kernel;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Applying a plan and looking again leaves nothing to do; no step meets a missing dependency on the way.
    #[test]
    fn applying_a_plan_gives_an_empty_plan(first in generate::state(), second in generate::state()) {
        let mut kernel = Kernel::default();
        for state in [first, second] {
            let desired = Desired { state, ..Desired::default() };
            let plan = diff(&desired, &kernel.observe());
            prop_assert_eq!(&plan.problems, &vec![]);
            kernel.apply(&plan).map_err(|why| TestCaseError::fail(format!("{why}\n{plan}")))?;
            let again = diff(&desired, &kernel.observe());
            prop_assert!(again.is_empty(), "after\n{}\nstill to do\n{}", plan, again);
        }
    }

    /// Undoing a plan gives back the state before it, whatever the plan did.
    #[test]
    fn undoing_a_plan_gives_back_the_start(first in generate::state(), second in generate::state()) {
        let mut kernel = Kernel::default();
        let first = Desired { state: first, ..Desired::default() };
        kernel.apply(&diff(&first, &kernel.observe())).map_err(TestCaseError::fail)?;
        let start = kernel.observe();
        let plan = diff(&Desired { state: second, ..Desired::default() }, &start);
        kernel.apply(&plan).map_err(TestCaseError::fail)?;
        kernel.apply(&plan.inverse()).map_err(|why| TestCaseError::fail(format!("{why}\n{plan}")))?;
        prop_assert_eq!(kernel.observe(), start);
    }

    /// Stopping after any step and undoing what was done gives back the start as well.
    #[test]
    fn a_plan_can_be_taken_back_from_every_step(first in generate::state(), second in generate::state()) {
        let mut kernel = Kernel::default();
        let first = Desired { state: first, ..Desired::default() };
        kernel.apply(&diff(&first, &kernel.observe())).map_err(TestCaseError::fail)?;
        let start = kernel.clone();
        let plan = diff(&Desired { state: second, ..Desired::default() }, &kernel.observe());
        for done in 0..=plan.steps.len() {
            let mut kernel = start.clone();
            let mut half = plan.clone();
            half.steps.truncate(done);
            kernel.apply(&half).map_err(TestCaseError::fail)?;
            kernel.roll_back(&half).map_err(|why| TestCaseError::fail(format!("after {done}: {why}\n{plan}")))?;
            prop_assert_eq!(kernel.observe(), start.observe(), "after {} of\n{}", done, plan);
        }
    }

    /// Nothing without Knit's mark is changed or removed.
    #[test]
    fn what_is_not_knits_stays(foreign in generate::state(), mine in generate::state()) {
        let foreign = generate::as_foreign(foreign);
        let mut kernel = Kernel::holding(foreign.clone());
        let plan = diff(&Desired { state: mine, ..Desired::default() }, &kernel.observe());
        kernel.apply(&plan).map_err(|why| TestCaseError::fail(format!("{why}\n{plan}")))?;
        let after = kernel.observe();
        for (scope, state) in &foreign.scopes {
            let now = &after.scopes[scope];
            for (name, link) in &state.links {
                prop_assert_eq!(now.links.get(name), Some(link));
            }
            for (key, address) in &state.addresses {
                prop_assert_eq!(now.addresses.get(key), Some(address));
            }
            for (key, route) in &state.routes {
                prop_assert_eq!(now.routes.get(key), Some(route));
            }
        }
    }

    /// A plan survives being stored.
    #[test]
    fn a_plan_can_be_stored(state in generate::state()) {
        let plan = diff(&Desired { state, ..Desired::default() }, &NetState::default());
        let text = serde_json::to_string(&plan).unwrap();
        prop_assert_eq!(serde_json::from_str::<knit_model::Plan>(&text).unwrap(), plan);
    }

    /// One field of a living link changes as that field alone, unless the kind says that it cannot.
    #[test]
    fn one_field_changes_alone(state in generate::state(), mtu in 1280u32..9000) {
        let mut kernel = Kernel::default();
        kernel.apply(&diff(&Desired { state: state.clone(), ..Desired::default() }, &kernel.observe())).map_err(TestCaseError::fail)?;
        let mut changed = state;
        let Some(link) = changed.scopes.values_mut().flat_map(|scope| scope.links.values_mut()).next() else { return Ok(()) };
        link.attrs.mtu = Some(mtu);
        let plan = diff(&Desired { state: changed, ..Desired::default() }, &kernel.observe());
        for planned in &plan.steps {
            let Step::ChangeLink { changes, .. } = &planned.step else { return Err(TestCaseError::fail(plan.to_string())) };
            prop_assert_eq!(changes.iter().map(|change| change.field.as_str()).collect::<Vec<_>>(), ["mtu"]);
        }
        // What sits on the link may be lowered along with it, by the kernel.
        prop_assert!(plan.steps.iter().filter(|planned| !planned.implied).count() <= 1);
    }
}

#[test]
fn a_field_that_is_fixed_at_birth_makes_the_link_again_and_says_so() {
    let mut kernel = Kernel::default();
    let mut state = generate::one_vxlan(7);
    kernel.apply(&diff(&Desired { state: state.clone(), ..Desired::default() }, &kernel.observe())).unwrap();
    for scope in state.scopes.values_mut() {
        for link in scope.links.values_mut() {
            if let Kind::Vxlan(vxlan) = &mut link.kind {
                vxlan.vni = 8;
            }
        }
    }
    let plan = diff(&Desired { state, ..Desired::default() }, &kernel.observe());
    insta::assert_snapshot!(plan, @r"
    sandbox a
      - address 10.9.0.1/24 dev vx0
      - vxlan vx0 mtu 1450 port 4789 vni 7
          made again: the kernel does not make this change of `vni` on a living vxlan
      + vxlan vx0 mtu 1450 port 4789 vni 8
      + address 10.9.0.1/24 dev vx0
    2 to add, 0 to change, 2 to remove
    ");
}

/// The note on the step that makes a macvlan again, if it is made again.
fn note_of(seen: &knit_model::Link, want: &knit_model::Link) -> Option<String> {
    let scope = knit_model::Scope::Sandbox(knit_model::SandboxId("a".to_owned()));
    let state = |link: &knit_model::Link| {
        let mut state = NetState::default();
        state.scope(&scope).add_link(link.clone());
        state
    };
    let plan = diff(&Desired { state: state(want), ..Desired::default() }, &state(seen));
    plan.steps.into_iter().find_map(|planned| planned.note)
}

#[test]
fn a_macvlan_changes_its_mode_live_but_not_to_or_from_passthru() {
    use knit_model::link::{Link, Macvlan, MacvlanMode, OwnerId};
    let macvlan = |mode| {
        let kind = Kind::Macvlan(Macvlan { parent: Some("up0".parse().unwrap()), mode: Some(mode) });
        Link { owner: Some(OwnerId::derived("m")), ..Link::new("mv0".parse().unwrap(), kind) }
    };
    let (bridge, vepa, passthru) =
        (macvlan(MacvlanMode::Bridge), macvlan(MacvlanMode::Vepa), macvlan(MacvlanMode::Passthru));
    assert_eq!(note_of(&bridge, &vepa), None);
    let note = note_of(&bridge, &passthru).unwrap();
    assert!(note.contains("`mode`"), "{note}");
    assert!(note_of(&passthru, &vepa).is_some());
}

#[test]
fn a_parent_of_the_same_name_in_another_place_is_another_parent() {
    use knit_model::link::{Link, Macvlan, OwnerId};
    let kind = Kind::Macvlan(Macvlan { parent: Some("nic0".parse().unwrap()), mode: None });
    let inside = Link { owner: Some(OwnerId::derived("m")), ..Link::new("mv0".parse().unwrap(), kind) };
    let on_host = Link { born_from: Some(knit_model::Scope::Host), ..inside.clone() };
    assert_eq!(note_of(&on_host, &inside).as_deref(), Some("it sits on a link of another place"));
    assert_eq!(note_of(&on_host, &on_host), None);
}

/// A host with a NIC, and a sandbox that is to have it under this name and MTU.
fn lent(name: &str, mtu: Option<u32>, kernel: &Kernel) -> Desired {
    use knit_model::link::{HostDevice, Lent, Link, OwnerId};
    let kind = Kind::HostDevice(HostDevice(Lent { device: Some("nic0".parse().unwrap()), was: None }));
    let mut link = Link { owner: Some(OwnerId::derived(name)), ..Link::new(name.parse().unwrap(), kind) };
    link.attrs.up = Some(true);
    link.attrs.mtu = mtu;
    let mut state = NetState::default();
    let scope = knit_model::Scope::Sandbox(knit_model::SandboxId("a".to_owned()));
    state.scope(&scope).add_link(link);
    knit_model::plan::settle_devices(&mut state, &kernel.observe());
    Desired { state, ..Desired::default() }
}

fn host_with_nic() -> Kernel {
    use knit_model::link::{Attrs, Lent, Link};
    let mut state = NetState::default();
    let mut nic = Link::new("nic0".parse().unwrap(), Kind::Other { name: String::new() });
    nic.attrs = Attrs { group: Some(7), ..Lent::returned(&Attrs::full_for_tests()) };
    state.scope(&knit_model::Scope::Host).add_link(nic);
    Kernel::holding(state)
}

#[test]
fn a_nic_is_lent_renamed_and_comes_back_as_it_was_from_every_step() {
    let mut kernel = host_with_nic();
    let untouched = kernel.observe();
    for (name, mtu) in [("net1", Some(1300)), ("net1", None), ("net2", Some(9000))] {
        let desired = lent(name, mtu, &kernel);
        let plan = diff(&desired, &kernel.observe());
        assert_eq!(plan.problems, vec![], "{plan}");
        for done in 0..=plan.steps.len() {
            let (mut other, mut half) = (kernel.clone(), plan.clone());
            half.steps.truncate(done);
            other.apply(&half).unwrap();
            other.roll_back(&half).unwrap();
            assert_eq!(other.observe(), kernel.observe(), "after {done} of\n{plan}");
        }
        kernel.apply(&plan).unwrap();
        let again = diff(&lent(name, mtu, &kernel), &kernel.observe());
        assert!(again.is_empty(), "{again}");
    }
    kernel.apply(&diff(&Desired::default(), &kernel.observe())).unwrap();
    assert_eq!(kernel.observe(), untouched);
}

#[test]
fn a_nic_that_the_host_needs_is_not_lent() {
    let said = |edit: &dyn Fn(&mut NetState)| {
        let mut state = host_with_nic().observe();
        edit(&mut state);
        let kernel = Kernel::holding(state);
        let plan = diff(&lent("net1", None, &kernel), &kernel.observe());
        assert!(plan.steps.is_empty(), "{plan}");
        plan.problems.iter().map(|(_, problem)| problem.message.clone()).collect::<Vec<_>>().join("; ")
    };
    let host = knit_model::Scope::Host;
    let nic: knit_model::IfName = "nic0".parse().unwrap();
    assert_eq!(
        said(&|state| {
            let address = knit_model::Address::new(nic.clone(), "10.0.0.7/24".parse().unwrap());
            state.scope(&host).add_address(knit_model::Address { owned: false, ..address });
        }),
        "link net1: NIC nic0 has the host's address 10.0.0.7/24, which would be lost"
    );
    let port = knit_model::link::Master::Of("br0".parse().unwrap());
    assert_eq!(
        said(&|state| state.scope(&host).links.get_mut(&nic).unwrap().attrs.master = Some(port.clone())),
        "link net1: NIC nic0 is a port of br0"
    );
    assert_eq!(
        said(&|state| drop(state.scope(&host).links.remove(&nic))),
        "link net1: there is no NIC nic0 on the host"
    );
}

#[test]
fn neighbours_of_a_link_that_changes_its_vrf_go_before_and_come_back_after() {
    let scope = Scope::Sandbox(SandboxId("a".to_owned()));
    let state = |master: &str| {
        let mut state = NetState::default();
        let links = [("red", Kind::Vrf(Vrf { table: 10 })), ("blue", Kind::Vrf(Vrf { table: 11 }))];
        for (name, kind) in links.into_iter().chain([("net1", Kind::Dummy(Dummy::default()))]) {
            let mut link = Link::new(name.parse().unwrap(), kind);
            link.owner = support::kernel::owner(name);
            let master = if name == "net1" { Master::Of(master.parse().unwrap()) } else { Master::Nothing };
            link.attrs = Attrs { master: Some(master), up: Some(true), ..Attrs::default() };
            state.scope(&scope).add_link(link);
        }
        let mac = Some(Mac::from_bytes([2, 0, 0, 0, 0, 7]));
        let address = "10.0.0.7".parse().unwrap();
        let neighbour = Neighbour { link: "net1".parse().unwrap(), address, mac, owned: true };
        state.scope(&scope).add_neighbour(neighbour);
        state
    };
    let plan = diff(&Desired { state: state("blue"), ..Desired::default() }, &state("red"));
    let place = |wanted: fn(&Step) -> bool| plan.steps.iter().position(|planned| wanted(&planned.step));
    let goes = place(|step| matches!(step, Step::RemoveNeighbour(_))).unwrap();
    let changes = place(|step| matches!(step, Step::ChangeLink { .. })).unwrap();
    let comes = place(|step| matches!(step, Step::AddNeighbour(_))).unwrap();
    assert!(goes < changes && changes < comes, "{plan}");
    assert!(diff(&Desired { state: state("red"), ..Desired::default() }, &state("red")).is_empty());
}

#[test]
fn half_of_a_pair_that_was_cut_off_does_not_come_back() {
    let sandbox = Scope::Sandbox(SandboxId("gone".to_owned()));
    let end = |name: &str| Link::new(name.parse().unwrap(), Kind::Veth(Veth::default()));
    let delete = |peer| {
        let step = Step::DeleteLink { link: end("h1"), peer };
        let planned = Planned { scope: Scope::Host, step, because: Vec::new(), implied: false, note: None };
        Plan { steps: vec![planned], ..Plan::default() }
    };
    assert!(delete(None).inverse().is_empty());
    assert_eq!(delete(Some((sandbox, end("eth0")))).inverse().steps.len(), 1);
}
