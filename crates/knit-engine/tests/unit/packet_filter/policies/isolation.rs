//! Isolation on nodes without pods, and pods that start while not everything is known.

use super::*;

fn isolated(isolated: bool) -> PolicyNamespace {
    PolicyNamespace { isolated, ..PolicyNamespace::default() }
}

fn isolate(on: bool) -> Event {
    let namespace = Some(isolated(on));
    Event::Policies(PolicyEvent::NamespaceChanged { name: "shop".to_owned(), namespace })
}

impl Node {
    fn isolated_remote(&self) -> Vec<String> {
        self.elements("policy_remote_isolated4")
    }

    /// The sets and chains of policies in the kernel.
    fn names_of_policies(&self) -> Vec<String> {
        let filter = self.kernel.filter(&Scope::Host);
        let names = filter.tables.values().flat_map(|table| table.chains.keys().chain(table.sets.keys()));
        names.filter(|name| name.starts_with("policy")).cloned().collect()
    }
}

/// Whether other features need a table or not, changes and comparisons of everything succeed.
#[test]
fn a_node_without_pods_has_the_segments_of_the_cluster() {
    for masquerade in [false, true] {
        let mut node = Node::with_policies_and(masquerade);
        node.list(&[]);
        let before = node.kernel.filter(&Scope::Host).clone();
        assert_eq!(node.names_of_policies(), [""; 0]);
        node.handle(isolate(true));
        let [chain] = &node.policy_chains()[..] else { panic!("{:?}", node.policy_chains()) };
        let all = ["10.75.0.2", "10.75.0.3", "10.80.0.7"].map(|address| format!("{address} : jump {chain}"));
        assert_eq!(node.isolated_remote(), all);
        node.handle(changed(pod("new", "web", &["10.80.0.8"])));
        assert_eq!(node.isolated_remote().len(), 4);
        let isolated_before = node.kernel.filter(&Scope::Host).clone();
        for event in [Event::Resync, Event::PacketFilterChanged] {
            node.take_plans();
            node.handle(event);
            assert_eq!(node.take_plans(), []);
        }
        // After a start the rules are held first, and then compared.
        node.restart();
        assert_eq!(*node.kernel.filter(&Scope::Host), isolated_before);
        let namespaces = [("shop".to_owned(), isolated(true))].into();
        node.list(&[]);
        node.handle(Event::Policies(PolicyEvent::NamespacesListed(namespaces)));
        assert_eq!(node.isolated_remote(), all);
        node.handle(isolate(false));
        assert_eq!(*node.kernel.filter(&Scope::Host), before, "nothing of policies is left");
        assert!(node.state.problems.is_empty(), "{:?}", node.state.problems);
    }
}

#[test]
fn the_tables_of_policies_end_with_a_list_without_isolation() {
    let mut node = Node::with_policies_and(true);
    node.list(&[]);
    let before = node.kernel.filter(&Scope::Host).clone();
    node.handle(isolate(true));
    let namespaces = [("shop".to_owned(), isolated(false))].into();
    node.handle(Event::Policies(PolicyEvent::NamespacesListed(namespaces)));
    assert_eq!(*node.kernel.filter(&Scope::Host), before);
}

/// The first policy of a cluster is created: pods are not watched before. The tables lead to no policies yet.
#[test]
fn a_pod_starts_closed_before_pods_are_listed_for_the_first_policy() {
    for masquerade in [false, true] {
        let mut node = Node::with_policies_and(masquerade);
        node.list(&[]);
        node.handle(Event::Policies(PolicyEvent::PodsForgotten));
        node.handle(applied("db", &from_web()));
        node.attach_pod("a");
        assert_eq!(node.restricted(), ["10.75.0.2 : jump policy_closed"]);
        node.list(&[("db", from_web())]);
        let [chain] = &node.policy_chains()[..] else { panic!("{:?}", node.policy_chains()) };
        assert_eq!(node.restricted(), [format!("10.75.0.2 : jump {chain}")]);
        assert!(node.state.problems.is_empty(), "{:?}", node.state.problems);
    }
}
