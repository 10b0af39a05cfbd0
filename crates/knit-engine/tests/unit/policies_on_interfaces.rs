//! Policies about additional interfaces: when a pod has a table, and when it stays.

use knit_engine::Event;
use knit_engine::policies::PolicyEvent;
use knit_policy::{
    PodKey, PodNetworks, PolicyId, PolicyKind, PolicyNamespace, PolicyPod, multi_network_policy,
};
use serde_json::json;

use crate::support::node::{Node, object, sandbox, scope, veth, with_eth0};

const NETWORK: &str = "Bridge/shop/lanbr0";

fn lan() -> Event {
    Event::ObjectApplied(object("Veth", "shop", "lan", vec![veth("x", "lan", "lanbr0", "10.44.0.0/24")]))
}

/// A node with pod `a` on a bridge of its namespace.
fn node() -> Node {
    let mut node = Node::with_kernel(with_eth0(&["a"]));
    node.handle(Event::SandboxUpdated(sandbox("a", 1, "shop", "x")));
    node
}

impl Node {
    fn policy_event(&mut self, event: PolicyEvent) {
        self.handle(Event::Policies(event));
    }

    /// Everything that policies follow from is listed: one policy, about all pods of the namespace.
    fn list_policies(&mut self) {
        let id = PolicyId::multi_network("shop", "closed");
        let spec = json!({"podSelector": {}, "policyTypes": ["Ingress"]});
        let (policy, warnings) = multi_network_policy::translate(id, Some(NETWORK), &spec);
        assert_eq!(warnings, [""; 0]);
        let key = PodKey { namespace: "shop".to_owned(), name: "a".to_owned() };
        let uid = "uid-a".to_owned();
        let networks: PodNetworks = [(NETWORK.to_owned(), vec!["10.44.0.2".parse().unwrap()])].into();
        let pod = PolicyPod { uid: uid.clone(), ..PolicyPod::default() };
        self.policy_event(PolicyEvent::PoliciesListed(PolicyKind::MultiNetworkPolicy, vec![policy]));
        let namespaces = [("shop".to_owned(), PolicyNamespace::default())].into();
        self.policy_event(PolicyEvent::NamespacesListed(namespaces));
        self.policy_event(PolicyEvent::PodsListed(vec![(key.clone(), pod)]));
        self.policy_event(PolicyEvent::PodNetworksListed(vec![(key, (uid, networks))]));
    }

    fn restart(&mut self) {
        self.state = self.state.persistent();
        self.handle(Event::Restarted);
        self.handle(Event::Resync);
    }

    /// The chains that the interfaces of the pod lead to.
    fn chains(&self) -> Vec<String> {
        let observed = self.kernel.observe();
        let Some(state) = observed.scopes.get(&scope("a")) else { return Vec::new() };
        let of_maps = state.filter.elements.iter().filter(|(key, _)| key.set.ends_with("gress"));
        of_maps.map(|(key, data)| format!("{} {data:?}", key.set)).collect()
    }

    fn has_table(&self) -> bool {
        let observed = self.kernel.observe();
        observed.scopes.get(&scope("a")).is_some_and(|state| !state.filter.tables.is_empty())
    }
}

#[test]
fn a_pod_has_a_table_while_policies_are_about_its_interfaces() {
    let mut node = node();
    node.policy_event(PolicyEvent::OnInterfaces(true));
    node.handle(lan());
    let closed = node.chains();
    assert!(closed.len() == 2 && closed.iter().all(|chain| chain.contains("policy_closed")), "{closed:?}");
    node.list_policies();
    let [chain] = &node.chains()[..] else { panic!("{:?}", node.chains()) };
    assert!(chain.contains("policy_ingress_shop_"), "{chain}");
    node.policy_event(PolicyEvent::PolicyDeleted(PolicyId::multi_network("shop", "closed")));
    assert!(!node.has_table());
}

#[test]
fn a_table_stays_across_a_restart_until_policies_are_known() {
    let mut node = node();
    node.policy_event(PolicyEvent::OnInterfaces(true));
    node.handle(lan());
    node.list_policies();
    let chains = node.chains();
    node.restart();
    assert_eq!(node.chains(), chains, "whether policies are enforced is not known yet");
    node.policy_event(PolicyEvent::OnInterfaces(true));
    node.handle(Event::Resync);
    assert_eq!(node.chains(), chains);
    // The policy was deleted meanwhile.
    node.policy_event(PolicyEvent::PoliciesListed(PolicyKind::MultiNetworkPolicy, Vec::new()));
    assert!(!node.has_table());
}

#[test]
fn a_table_is_removed_with_the_last_interface_and_with_the_setting() {
    for turned_off in [false, true] {
        let mut node = node();
        node.policy_event(PolicyEvent::OnInterfaces(true));
        node.handle(lan());
        node.list_policies();
        node.restart();
        assert!(node.has_table());
        match turned_off {
            true => node.policy_event(PolicyEvent::OnInterfaces(false)),
            false => {
                let Event::ObjectApplied(object) = lan() else { unreachable!("it applies an object") };
                node.handle(Event::ObjectDeleted(object.key()));
            }
        }
        assert!(!node.has_table(), "{turned_off}");
    }
}
