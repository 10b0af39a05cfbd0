//! Tables that somebody else changed, and restarts.

use super::*;

#[test]
fn flushed_ruleset_is_restored_on_resync() {
    let mut node = Node::new(true);
    node.attach_with_ports("lab", "a", vec![host_port(8080)]);
    node.attach_in("lab", "b");
    let before = node.kernel.filter(&Scope::Host).clone();
    let events = [
        Event::Resync,
        // Only the tables are known to differ.
        Event::ResyncUnits([Unit::PacketFilter].into()),
        Event::ResyncUnits([Unit::PacketFilter, sandbox("a")].into()),
    ];
    for event in events {
        node.kernel.flush_ruleset(&Scope::Host);
        node.handle(event.clone());
        assert_eq!(*node.kernel.filter(&Scope::Host), before, "{event:?}");
        node.take_plans();
        node.handle(event);
        assert_eq!(node.take_plans(), [], "nothing differs any more");
    }
    // A set with another declaration: its table is recreated, with the elements of pods.
    let mut changed = node.kernel.observe();
    let tables = &mut changed.scope(&Scope::Host).filter.tables;
    let sets = &mut tables.get_mut(&TableFamily::Bridge.table()).unwrap().sets;
    sets.insert("guarded_ports".to_owned(), FilterSet::default());
    node.kernel = FakeKernel::with_state(changed);
    node.handle(Event::Resync);
    assert_eq!(*node.kernel.filter(&Scope::Host), before);
    assert!(node.state.problems.is_empty(), "{:?}", node.state.problems);
}

#[test]
fn attach_after_a_flush_restores_the_tables() {
    let mut node = Node::new(true);
    node.attach("a");
    node.kernel.flush_ruleset(&Scope::Host);
    node.attach_results();
    // The first one fails for lack of the tables, which are compared with the kernel then.
    node.expects_rejections = true;
    for result in [false, true] {
        node.attach("b");
        assert_eq!(node.attach_results(), [("b".to_owned(), result)]);
    }
    assert_eq!(node.guarded_addresses(), ["10.75.0.2", "10.75.0.3"]);
    node.check_owners();
}

#[test]
fn restart_changes_nothing_and_restores_what_is_missing() {
    let mut node = Node::new(true);
    node.attach_with_ports("lab", "a", vec![host_port(8080)]);
    let before = node.kernel.filter(&Scope::Host).clone();
    node.take_plans();
    node.restart();
    assert_eq!(node.take_plans(), []);
    assert_eq!(node.fast_path_addresses(), ["10.75.0.2".to_owned()].into());
    node.kernel.flush_ruleset(&Scope::Host);
    node.restart();
    assert_eq!(*node.kernel.filter(&Scope::Host), before);
    assert!(node.state.problems.is_empty(), "{:?}", node.state.problems);
}

#[test]
fn a_start_repairs_no_tables_before_the_resync() {
    let mut node = Node::new(true);
    node.attach_with_ports("lab", "a", vec![host_port(8080)]);
    let before = node.kernel.filter(&Scope::Host).clone();
    node.kernel.flush_ruleset(&Scope::Host);
    node.take_plans();
    node.state = node.replayed();
    node.handle(Event::Restarted);
    assert_eq!(node.take_plans(), []);
    // An attach that comes first fails, and restores the tables for all pods.
    node.expects_rejections = true;
    node.attach("b");
    node.detach("b");
    assert_eq!(*node.kernel.filter(&Scope::Host), before);
}
