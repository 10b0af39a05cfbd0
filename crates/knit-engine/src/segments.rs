//! Segments of the cluster network: VirtualNetworks that only show which pods reach each other. Isolation does not depend on
//! them ([`crate::policies`]), and nothing is created for them on a node.

use knit_model::intent::{IntentSpec, InterfaceIntent};
use knit_model::problem::Reason;

use crate::cluster;
use crate::state::{ObjectKey, State};

impl State {
    /// Whether the VirtualNetwork with this name is a segment of the cluster network.
    pub(crate) fn is_segment(&self, namespace: &str, name: &str) -> bool {
        let (kind, namespace, name) = (cluster::KIND.to_owned(), namespace.to_owned(), name.to_owned());
        let object = self.objects.get(&ObjectKey { kind, namespace, name });
        object.is_some_and(|object| {
            object.intents.iter().any(|intent| matches!(intent.spec, IntentSpec::Segment(_)))
        })
    }

    /// Whether an interface of an object refers to a segment, which has no bridge.
    pub(crate) fn is_on_segment(&self, namespace: &str, spec: &InterfaceIntent) -> bool {
        spec.network.as_ref().is_some_and(|name| self.is_segment(namespace, name))
    }

    /// Why no interface of a namespace can be on the network with this name.
    pub(crate) fn missing_network(&self, namespace: &str, name: &str) -> (Reason, String) {
        if self.is_segment(namespace, name) {
            let message = format!(
                "VirtualNetwork {name} in namespace {namespace} is a segment of the cluster network, which pods are on with \
                 eth0: no other interface can be attached to it"
            );
            return (Reason::NotAllowed, message);
        }
        (Reason::NotFound, format!("there is no VirtualNetwork {name} in namespace {namespace}"))
    }
}
