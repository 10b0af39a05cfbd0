//! Extensions: none is bypassed, and none is left with the configuration of a pod that is gone.

use knit_engine::Attachment;
use knit_engine::extension::{FailPolicy, HookPhase};
use knit_model::Sandbox;
use knit_model::report::InterfaceReport;

use crate::cluster::Cluster;
use crate::scenario::REQUIRED_EXTENSION;

impl Cluster {
    /// Every extension that has to take part in a completed attach has configured its interfaces.
    pub(crate) fn check_extensions(
        &mut self,
        node: usize,
        sandbox: &Sandbox,
        interfaces: &[(Attachment, InterfaceReport)],
    ) {
        let here = &self.nodes[node];
        if here.state.extensions.get(REQUIRED_EXTENSION).is_none() {
            let what = format!("sandbox {} is attached without the required extension", sandbox.id);
            return self.fail(&[node], what);
        }
        for one in here.state.extensions.in_order() {
            let takes_part = one.spec.phases.contains(&HookPhase::AfterAttach) && one.spec.selects(sandbox);
            if !takes_part || one.spec.fail == FailPolicy::Ignore {
                continue;
            }
            let is_configured = |attachment: &Attachment| {
                let key = (one.spec.name.clone(), sandbox.instance.cookie, attachment.interface.clone());
                here.extensions.configured.contains(&key)
            };
            if let Some((attachment, _)) =
                interfaces.iter().find(|(attachment, _)| !is_configured(attachment))
            {
                let what = format!(
                    "interface {} of sandbox {} is attached, but extension {} was bypassed",
                    attachment.interface, sandbox.id, one.spec.name
                );
                return self.fail(&[node], what);
            }
        }
    }

    /// A pod that was attached since the required extension was registered, and does not count as attached with it.
    pub(crate) fn without_extension(&self) -> Option<(usize, String)> {
        self.live.iter().find_map(|number| {
            let pod = &self.pods[*number as usize];
            let here = &self.nodes[pod.node];
            let registered = here.extensions.registered_at.get(REQUIRED_EXTENSION)?;
            let why = here.state.without_extension(pod.sandbox.as_ref()?, REQUIRED_EXTENSION)?;
            (pod.attached_at > *registered)
                .then(|| (pod.node, format!("pod-{number} is attached without its extension: {why}")))
        })
    }

    /// What is left at the extensions of a node.
    pub(crate) fn extension_leftovers(&self, node: usize) -> Option<String> {
        let here = &self.nodes[node];
        let pending = here.state.extensions.pending_notifications().next();
        let pending = pending.map(|one| format!("notification {} of {}", one.id, one.extension));
        let configured = here.extensions.configured.first();
        pending.or_else(|| {
            configured.map(|(name, cookie, interface)| format!("{interface} of sandbox s{cookie} at {name}"))
        })
    }
}
