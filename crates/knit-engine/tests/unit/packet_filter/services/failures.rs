//! Changes of Services that fail: they are reported, and repeated after a while.

use super::*;

impl Node {
    /// Changes the endpoints of the Service `web`, and holds the plan back.
    pub(super) fn hold_endpoints(&mut self, endpoints: &[&str]) {
        self.held = Some(Unit::Services);
        self.send(ServiceEvent::SliceApplied(Box::new(slice("web", endpoints))));
    }

    /// The problems in the report of the cluster network, which are also those in the status of the node.
    fn problems(&self) -> Vec<String> {
        let texts = |problems: &[Problem]| problems.iter().map(|one| one.message.clone()).collect();
        let on_node = self.state.node_states();
        let on_node: Vec<String> =
            on_node.iter().flat_map(|one| &one.problems).map(|one| one.message.clone()).collect();
        let reported: Vec<String> = texts(&self.state.report(&cluster::key()).unwrap().problems);
        assert_eq!(on_node, reported);
        reported
    }

    fn retry_in(&self) -> Option<u64> {
        self.state.next_service_retry_in(Time(1))
    }
}

#[test]
fn a_failed_change_is_reported_until_it_is_repeated_successfully() {
    let mut node = Node::with_services();
    node.list_two();
    let before = node.journal.len();
    node.hold_endpoints(&["10.80.0.4"]);
    node.reject_held(false);
    assert_eq!(node.problems(), ["no memory"]);
    assert_eq!(node.replayed(), node.state.persistent());
    // The same failure again is neither recorded nor reported again, and waits longer each time.
    for wait in [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000] {
        assert_eq!(node.retry_in(), Some(wait));
        node.held = Some(Unit::Services);
        node.send(ServiceEvent::RetryTimer);
        assert_eq!(node.retry_in(), None, "it is in flight");
        node.reject_held(false);
    }
    assert_eq!(node.problems(), ["no memory"]);
    let is_of_services =
        |record: &&Record| matches!(record, Record::ChangeEnded(ended) if ended.unit == Unit::Services);
    assert_eq!(node.journal[before..].iter().filter(is_of_services).count(), 1);
    node.send(ServiceEvent::RetryTimer);
    assert!(node.backends()[1].ends_with("10.80.0.4 . 5353"), "{:?}", node.backends());
    assert_eq!((node.problems(), node.retry_in()), (vec![], None));
    assert_eq!(node.replayed(), node.state.persistent());
    // The next failure is the first one again.
    node.hold_endpoints(&["10.80.0.5"]);
    node.reject_held(false);
    assert_eq!(node.retry_in(), Some(1_000));
}

#[test]
fn a_problem_from_before_a_restart_stays_until_services_are_compared() {
    let mut node = Node::with_services();
    node.list_two();
    node.hold_endpoints(&["10.80.0.4"]);
    node.reject_held(false);
    node.restart();
    node.list_nodes();
    // An object that may help with a problem queues its unit.
    node.handle(Event::ObjectApplied(network_with_services()));
    assert_eq!(
        (node.problems(), node.backends()),
        (vec!["no memory".to_owned()], TWO.map(str::to_owned).into())
    );
    node.list_two();
    assert_eq!((node.problems(), node.backends()), (vec![], TWO.map(str::to_owned).into()));
}

/// The tables are restored with the elements from before the change.
#[test]
fn a_change_that_found_no_tables_is_repeated_with_all_elements() {
    let mut node = Node::with_services();
    node.list_two();
    node.hold_endpoints(&["10.80.0.4"]);
    node.ended.clear();
    node.kernel.flush_ruleset(&Scope::Host);
    node.reject_held(true);
    assert!(node.backends()[1].ends_with("10.80.0.4 . 5353"), "{:?}", node.backends());
    let client = |backend: &str| ("10.96.0.11:53".parse().unwrap(), backend.parse().unwrap());
    let is_ended = |node: &Node, backend: &str| {
        let (to, backend) = client(backend);
        node.ended.iter().any(|stale| stale.contains(to, true, backend))
    };
    assert!(is_ended(&node, "10.80.0.3:5353") && !is_ended(&node, "10.80.0.4:5353"));
    assert_eq!((node.problems(), node.retry_in()), (vec![], None));
    let before = node.kernel.filter(&Scope::Host).clone();
    node.handle(Event::Resync);
    assert_eq!(*node.kernel.filter(&Scope::Host), before);
}

#[test]
fn without_services_there_are_no_problems_of_them() {
    let mut node = Node::with_services();
    node.list_two();
    node.hold_endpoints(&["10.80.0.4"]);
    node.reject_held(false);
    node.handle(Event::ObjectApplied(network(true)));
    assert_eq!((node.problems(), node.retry_in()), (vec![], None));
    node.handle(Event::ObjectApplied(network_with_services()));
    assert_eq!(node.backends().len(), 2, "everything is compared again");
}
