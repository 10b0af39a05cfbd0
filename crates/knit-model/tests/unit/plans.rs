//! Properties of plans, checked against a fake kernel that rejects what the real one rejects.

use std::collections::BTreeMap;
use std::net::IpAddr;

use knit_model::filter::field::DataType;
use knit_model::filter::rule::Verdict;
use knit_model::filter::{ElementData, Filter, FilterChain, FilterSet, FilterTable, TableFamily};
use knit_model::link::{Attrs, Bond, BondMode, Dummy, Master, OwnerId, Veth, Vrf, Vxlan};
use knit_model::plan::{Desired, Plan, PlannedStep, diff};
use knit_model::{Kind, Link, Mac, Neighbour, NetState, SandboxId, Scope, Step};
use proptest::prelude::*;

use crate::fake_kernel::{self, FakeKernel};
use crate::generate;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// A plan converges in one application; no step meets a missing dependency.
    #[test]
    fn an_applied_plan_leaves_an_empty_plan(first in generate::state(), second in generate::state()) {
        let mut kernel = FakeKernel::default();
        for state in [first, second] {
            let desired = Desired { state, ..Desired::default() };
            let plan = diff(&desired, &kernel.observe());
            prop_assert_eq!(&plan.problems, &vec![]);
            kernel.apply(&plan).map_err(|why| TestCaseError::fail(format!("{why}\n{plan}")))?;
            let again = diff(&desired, &kernel.observe());
            prop_assert!(again.is_empty(), "after\n{}\nstill to do\n{}", plan, again);
        }
    }

    /// The inverse of a plan restores the state before it.
    #[test]
    fn the_inverse_of_a_plan_restores_the_start(first in generate::state(), second in generate::state()) {
        let mut kernel = FakeKernel::default();
        let first = Desired { state: first, ..Desired::default() };
        kernel.apply(&diff(&first, &kernel.observe())).map_err(TestCaseError::fail)?;
        let start = kernel.observe();
        let plan = diff(&Desired { state: second, ..Desired::default() }, &start);
        kernel.apply(&plan).map_err(TestCaseError::fail)?;
        kernel.apply(&plan.inverse()).map_err(|why| TestCaseError::fail(format!("{why}\n{plan}")))?;
        prop_assert_eq!(kernel.observe(), start);
    }

    /// A rollback after any step restores the start.
    #[test]
    fn a_plan_can_be_rolled_back_from_every_step(first in generate::state(), second in generate::state()) {
        let mut kernel = FakeKernel::default();
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

    /// Items that Knit does not own are never changed or removed.
    #[test]
    fn foreign_items_are_never_touched(foreign in generate::state(), mine in generate::state()) {
        let foreign = generate::as_foreign(foreign);
        let mut kernel = FakeKernel::with_state(foreign.clone());
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

    /// A plan round-trips through JSON.
    #[test]
    fn a_plan_round_trips(state in generate::state()) {
        let plan = diff(&Desired { state, ..Desired::default() }, &NetState::default());
        let text = serde_json::to_string(&plan).unwrap();
        prop_assert_eq!(serde_json::from_str::<knit_model::Plan>(&text).unwrap(), plan);
    }

    /// A change of one field of an existing link changes only that field.
    #[test]
    fn one_changed_field_is_one_change(state in generate::state(), mtu in 1280u32..9000) {
        let mut kernel = FakeKernel::default();
        kernel.apply(&diff(&Desired { state: state.clone(), ..Desired::default() }, &kernel.observe())).map_err(TestCaseError::fail)?;
        let mut changed = state;
        let Some(link) = changed.scopes.values_mut().flat_map(|scope| scope.links.values_mut()).next() else { return Ok(()) };
        link.attrs.mtu = Some(mtu);
        let plan = diff(&Desired { state: changed, ..Desired::default() }, &kernel.observe());
        for planned in &plan.steps {
            let Step::ChangeLink { changes, .. } = &planned.step else { return Err(TestCaseError::fail(plan.to_string())) };
            prop_assert_eq!(changes.iter().map(|change| change.field.as_str()).collect::<Vec<_>>(), ["mtu"]);
        }
        // The kernel may lower children of the link with it.
        prop_assert!(plan.steps.iter().filter(|planned| !planned.implied).count() <= 1);
    }
}

#[test]
fn changing_an_immutable_field_recreates_the_link_with_a_note() {
    let mut kernel = FakeKernel::default();
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
          recreated: the kernel cannot make this change of `vni` on an existing vxlan
      + vxlan vx0 mtu 1450 port 4789 vni 8
      + address 10.9.0.1/24 dev vx0
    2 to add, 0 to change, 2 to remove
    ");
}

/// The note on the step that recreates a link, if it is recreated.
fn note_of(observed: &knit_model::Link, desired: &knit_model::Link) -> Option<String> {
    let scope = knit_model::Scope::Sandbox(knit_model::SandboxId("a".to_owned()));
    let state = |link: &knit_model::Link| {
        let mut state = NetState::default();
        state.scope(&scope).add_link(link.clone());
        state
    };
    let plan = diff(&Desired { state: state(desired), ..Desired::default() }, &state(observed));
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
fn a_parent_of_the_same_name_in_another_scope_is_another_parent() {
    use knit_model::link::{Link, Macvlan, OwnerId};
    let kind = Kind::Macvlan(Macvlan { parent: Some("nic0".parse().unwrap()), mode: None });
    let inside = Link { owner: Some(OwnerId::derived("m")), ..Link::new("mv0".parse().unwrap(), kind) };
    let on_host = Link { parent_scope: Some(knit_model::Scope::Host), ..inside.clone() };
    assert_eq!(note_of(&on_host, &inside).as_deref(), Some("its parent is in another scope"));
    assert_eq!(note_of(&on_host, &on_host), None);
}

/// Desired state that moves a host NIC into a sandbox, with this name and MTU.
fn moved_nic(name: &str, mtu: Option<u32>, kernel: &FakeKernel) -> Desired {
    use knit_model::link::{HostDevice, Link, MovedDevice, OwnerId};
    let kind =
        Kind::HostDevice(HostDevice(MovedDevice { device: Some("nic0".parse().unwrap()), original: None }));
    let mut link = Link { owner: Some(OwnerId::derived(name)), ..Link::new(name.parse().unwrap(), kind) };
    link.attrs.up = Some(true);
    link.attrs.mtu = mtu;
    let mut state = NetState::default();
    let scope = knit_model::Scope::Sandbox(knit_model::SandboxId("a".to_owned()));
    state.scope(&scope).add_link(link);
    knit_model::plan::fill_original_attrs(&mut state, &kernel.observe());
    Desired { state, ..Desired::default() }
}

fn host_with_nic() -> FakeKernel {
    use knit_model::link::{Attrs, Link, MovedDevice};
    let mut state = NetState::default();
    let mut nic = Link::new("nic0".parse().unwrap(), Kind::Other { name: String::new() });
    nic.attrs = Attrs { group: Some(7), ..MovedDevice::saved_attrs(&Attrs::full_for_tests()) };
    state.scope(&knit_model::Scope::Host).add_link(nic);
    FakeKernel::with_state(state)
}

#[test]
fn a_moved_nic_is_restored_from_every_step() {
    let mut kernel = host_with_nic();
    let untouched = kernel.observe();
    for (name, mtu) in [("net1", Some(1300)), ("net1", None), ("net2", Some(9000))] {
        let desired = moved_nic(name, mtu, &kernel);
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
        let again = diff(&moved_nic(name, mtu, &kernel), &kernel.observe());
        assert!(again.is_empty(), "{again}");
    }
    kernel.apply(&diff(&Desired::default(), &kernel.observe())).unwrap();
    assert_eq!(kernel.observe(), untouched);
}

#[test]
fn a_nic_that_the_host_needs_is_not_moved() {
    let problem = |edit: &dyn Fn(&mut NetState)| {
        let mut state = host_with_nic().observe();
        edit(&mut state);
        let kernel = FakeKernel::with_state(state);
        let plan = diff(&moved_nic("net1", None, &kernel), &kernel.observe());
        assert!(plan.steps.is_empty(), "{plan}");
        plan.problems.iter().map(|(_, problem)| problem.message.clone()).collect::<Vec<_>>().join("; ")
    };
    let host = knit_model::Scope::Host;
    let nic: knit_model::IfName = "nic0".parse().unwrap();
    assert_eq!(
        problem(&|state| {
            let address = knit_model::Address::new(nic.clone(), "10.0.0.7/24".parse().unwrap());
            state.scope(&host).add_address(knit_model::Address { owned: false, ..address });
        }),
        "link net1: NIC nic0 has the host's address 10.0.0.7/24, which would be lost"
    );
    let port = knit_model::link::Master::Link("br0".parse().unwrap());
    assert_eq!(
        problem(&|state| state.scope(&host).links.get_mut(&nic).unwrap().attrs.master = Some(port.clone())),
        "link net1: NIC nic0 is a port of br0"
    );
    assert_eq!(
        problem(&|state| drop(state.scope(&host).links.remove(&nic))),
        "link net1: NIC nic0 does not exist on the host"
    );
}

#[test]
fn neighbours_of_a_link_that_changes_its_vrf_are_removed_and_added_again() {
    let scope = Scope::Sandbox(SandboxId("a".to_owned()));
    let state = |master: &str| {
        let mut state = NetState::default();
        let links = [("red", Kind::Vrf(Vrf { table: 10 })), ("blue", Kind::Vrf(Vrf { table: 11 }))];
        for (name, kind) in links.into_iter().chain([("net1", Kind::Dummy(Dummy::default()))]) {
            let mut link = Link::new(name.parse().unwrap(), kind);
            link.owner = fake_kernel::owner(name);
            let master = if name == "net1" { Master::Link(master.parse().unwrap()) } else { Master::None };
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
    let position = |is_it: fn(&Step) -> bool| plan.steps.iter().position(|planned| is_it(&planned.step));
    let removed = position(|step| matches!(step, Step::RemoveNeighbour(_))).unwrap();
    let changed = position(|step| matches!(step, Step::ChangeLink { .. })).unwrap();
    let added = position(|step| matches!(step, Step::AddNeighbour(_))).unwrap();
    assert!(removed < changed && changed < added, "{plan}");
    assert!(diff(&Desired { state: state("red"), ..Desired::default() }, &state("red")).is_empty());
}

#[test]
fn a_member_of_a_bond_is_recreated_to_join_to_leave_and_with_the_bond() {
    let scope = Scope::Sandbox(SandboxId("a".to_owned()));
    let state = |mode: BondMode, master: Master| {
        let bond = Kind::Bond(Bond { mode: Some(mode), ..Bond::default() });
        let mut state = NetState::default();
        for (name, kind, master) in
            [("bond0", bond, Master::None), ("m1", Kind::Dummy(Dummy::default()), master)]
        {
            let mut link = Link::new(name.parse().unwrap(), kind);
            link.owner = fake_kernel::owner(name);
            link.attrs = Attrs { master: Some(master), up: Some(true), ..Attrs::default() };
            state.scope(&scope).add_link(link);
        }
        state
    };
    let member = || Master::Link("bond0".parse().unwrap());
    let (alone, joined) = (state(BondMode::Broadcast, Master::None), state(BondMode::Broadcast, member()));
    let other_mode = state(BondMode::ActiveBackup, member());
    let recreated = |to: &NetState, from: &NetState| {
        let plan = diff(&Desired { state: to.clone(), ..Desired::default() }, from);
        let names = plan.steps.iter().filter_map(|planned| match &planned.step {
            Step::DeleteLink { link, .. } => Some(format!("-{}", link.name)),
            Step::CreateLink { link, .. } => Some(format!("+{}", link.name)),
            _ => None,
        });
        names.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(recreated(&joined, &alone), "-m1 +m1");
    assert_eq!(recreated(&alone, &joined), "-m1 +m1");
    assert_eq!(recreated(&other_mode, &joined), "-m1 -bond0 +bond0 +m1");
    assert_eq!(recreated(&joined, &joined), "");
}

#[test]
fn deleting_a_veth_without_its_peer_is_irreversible() {
    let sandbox = Scope::Sandbox(SandboxId("gone".to_owned()));
    let end = |name: &str| Link::new(name.parse().unwrap(), Kind::Veth(Veth::default()));
    let delete = |peer| {
        let step = Step::DeleteLink { link: end("h1"), peer };
        let planned =
            PlannedStep { scope: Scope::Host, step, origins: Vec::new(), implied: false, note: None };
        Plan { steps: vec![planned], ..Plan::default() }
    };
    assert!(delete(None).inverse().is_empty());
    assert_eq!(delete(Some((sandbox, end("eth0")))).inverse().steps.len(), 1);
}

#[test]
fn a_set_is_removed_before_the_chains_that_its_verdicts_lead_to() {
    let table = TableFamily::Inet.table();
    let mut both = Filter::default();
    let structure = both.tables.entry(table.clone()).or_default();
    structure.chains.insert("target".to_owned(), FilterChain::default());
    structure.sets.insert("policies".to_owned(), FilterSet::verdicts(&[DataType::Mark]));
    let jump = ElementData::Verdict(Verdict::Jump("target".to_owned()));
    both.add(table.element("policies", vec![7u32.into()]), jump);
    let mut neither = Filter::default();
    neither.tables.insert(table, FilterTable::default());
    let desired = |filter: Filter| {
        let mut state = NetState::default();
        state.scope(&Scope::Host).filter = filter;
        Desired { state, ..Desired::default() }
    };
    let mut kernel = FakeKernel::default();
    kernel.apply(&diff(&desired(both.clone()), &kernel.observe())).unwrap();
    let plan = diff(&desired(neither.clone()), &kernel.observe());
    kernel.apply(&plan).unwrap();
    assert_eq!(*kernel.filter(&Scope::Host), neither);
    kernel.apply(&plan.inverse()).unwrap();
    assert_eq!(*kernel.filter(&Scope::Host), both);
}

#[test]
fn change_of_a_map_contains_only_the_entries_that_differ() {
    let table = |last: u8, extra: &[u8]| -> BTreeMap<Mac, IpAddr> {
        let numbers = (1..100).chain(extra.iter().copied());
        let mut all: BTreeMap<Mac, IpAddr> = numbers
            .map(|number| (Mac::derived(&number.to_string()), IpAddr::from([192, 0, 2, number])))
            .collect();
        all.insert(Mac::derived("moved"), IpAddr::from([192, 0, 2, last]));
        all
    };
    let state = |entries| {
        let vxlan = Vxlan::unicast(7, 4789, IpAddr::from([192, 0, 2, 250]), entries);
        let mut link = Link::new("vx0".parse().unwrap(), Kind::Vxlan(vxlan));
        link.owner = Some(OwnerId::derived("test"));
        let mut state = NetState::default();
        state.scope(&Scope::Host).add_link(link);
        state
    };
    let (before, after) = (state(table(201, &[111])), state(table(202, &[112])));
    let desired = Desired { state: after.clone(), ..Desired::default() };
    let plan = diff(&desired, &before);
    let [PlannedStep { step: Step::ChangeLink { changes, .. }, .. }] = &plan.steps[..] else {
        panic!("{plan}")
    };
    let [change] = &changes[..] else { panic!("{plan}") };
    assert!(change.entries);
    assert_eq!([&change.from, &change.to].map(|map| map.as_object().unwrap().len()), [2, 2], "{plan}");
    // Applied and rolled back entry by entry.
    let mut kernel = FakeKernel::with_state(before.clone());
    kernel.apply(&plan).unwrap();
    assert_eq!(kernel.observe(), after);
    kernel.apply(&plan.inverse()).unwrap();
    assert_eq!(kernel.observe(), before);
    let fields = |state: &NetState| state.link(&Scope::Host, &"vx0".parse().unwrap()).unwrap().kind.fields();
    assert!(change.is_applied_to(&fields(&after)["fdb"]));
    assert!(!change.is_applied_to(&fields(&before)["fdb"]));
}
