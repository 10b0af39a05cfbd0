//! NetworkAttachmentDefinitions and the annotations of pods that reference them: translated by the real dialect, and
//! changed while pods run.

use std::cell::RefCell;
use std::collections::BTreeSet;

use knit_crds::attachments::{self, AllowedPlugins, Attachment, PodAttachments, translate};
use knit_engine::pod_annotations::{NetworksRequest, TranslatedNetworks};
use knit_engine::pods::PodEvent;
use knit_engine::{Event, State, StoredObject};
use serde_json::json;

use super::kubelet::PodPhase;
use super::{Cluster, ScheduledEvent};
use crate::api_server::PlantedFault;
use crate::queue::{MINUTE, SECOND};
use crate::scenario::Definition;
use crate::trace::TraceSubject;

/// The MTU of definitions, before and after a change.
const MTUS: [u32; 2] = [1_500, 1_400];

/// The networks in the annotation of a pod. Their interfaces are `net1` and `net2`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Annotation {
    #[default]
    None,
    Shared,
    Both,
}

impl Annotation {
    const ALL: [Self; 3] = [Self::None, Self::Shared, Self::Both];

    /// Its definitions, in order.
    pub(crate) fn definitions(self) -> &'static [Definition] {
        match self {
            Self::None => &[],
            Self::Shared => &[Definition::Shared],
            Self::Both => &[Definition::Shared, Definition::Layer2],
        }
    }

    /// Its text.
    pub(crate) fn text(self) -> Option<String> {
        let titles: Vec<&str> = self.definitions().iter().map(|definition| definition.title()).collect();
        (!titles.is_empty()).then(|| titles.join(","))
    }
}

impl Cluster {
    /// Writes the definitions of all tenants.
    pub(crate) fn create_definitions(&mut self) {
        for tenant in 0..self.tenants.len() {
            for definition in Definition::ALL {
                let config = definition.config(tenant, MTUS[0]);
                self.api.set_definition(tenant, definition, Some(config.into()));
            }
        }
    }

    /// The annotation of a new tenant pod.
    pub(crate) fn new_annotation(&mut self) -> Annotation {
        match self.rng.below(100) {
            0..25 => Annotation::Shared,
            25..35 => Annotation::Both,
            _ => Annotation::None,
        }
    }

    /// Changes a definition, or deletes one that is created again later.
    pub(crate) fn change_definition(&mut self) {
        if !self.is_busy() {
            return;
        }
        let per_minute = (self.tenants.len() as u64 / 20).max(4);
        let delay = self.rng.between(0, 2 * MINUTE / per_minute);
        self.queue.schedule(delay, ScheduledEvent::ChangeDefinition);
        let tenant = self.rng.below(self.tenants.len() as u64) as usize;
        self.stats.definitions_changed += 1;
        if self.rng.chance(50) {
            let mtu = *self.rng.choose(&MTUS);
            let config = Definition::Shared.config(tenant, mtu);
            self.api.set_definition(tenant, Definition::Shared, Some(config.into()));
        } else {
            self.api.set_definition(tenant, Definition::Layer2, None);
            let delay = self.rng.between(SECOND, MINUTE);
            self.queue.schedule(delay, ScheduledEvent::RestoreDefinition(tenant));
        }
        self.propagate_changes();
    }

    /// Creates a deleted definition again.
    pub(crate) fn restore_definition(&mut self, tenant: usize) {
        let mtu = *self.rng.choose(&MTUS);
        let config = Definition::Layer2.config(tenant, mtu);
        self.api.set_definition(tenant, Definition::Layer2, Some(config.into()));
        self.propagate_changes();
    }

    /// Changes the annotation of a running tenant pod.
    pub(crate) fn change_annotation(&mut self) {
        if !self.is_busy() {
            return;
        }
        let per_minute = (self.options.pods as u64 / 100).max(6);
        let delay = self.rng.between(0, 2 * MINUTE / per_minute);
        self.queue.schedule(delay, ScheduledEvent::ChangeAnnotation);
        if self.live.is_empty() {
            return;
        }
        let number = self.live[self.rng.below(self.live.len() as u64) as usize];
        let pod = &mut self.pods[number as usize];
        if pod.tenant.is_none() || pod.phase != PodPhase::Active {
            return;
        }
        pod.annotation = *self.rng.choose(&Annotation::ALL);
        self.stats.annotations_changed += 1;
        let node = pod.node;
        self.record_trace(node, "annotation changes of", TraceSubject::Pod(number));
        let changed = PodEvent::Applied(Box::new(self.api_pod(number)));
        self.nodes[node].pending_pod_events.push(changed);
        self.schedule_pod_sync(node);
    }

    /// Translates an annotation with the definitions that the node knows, as the agent does. A deleted definition is
    /// remembered for the pods that use it.
    pub(crate) fn translate_networks(&self, node: usize, request: NetworksRequest) -> Event {
        let NetworksRequest { object, networks } = request;
        let state: &State = &self.nodes[node].state;
        let before = state.pod_annotation_object(&object.namespace, &object.name, &object.uid);
        let remembered = before.map(attachments).unwrap_or_default();
        let referenced = RefCell::new(BTreeSet::new());
        let definition = |namespace: &str, name: &str| {
            let of = (namespace.to_owned(), name.to_owned());
            referenced.borrow_mut().insert(of.clone());
            let current = state.pod_networks.definition(&of, &object.namespace);
            attachments::Definition::find(current, &remembered, namespace, name)
        };
        let PodAttachments { mut intents, warnings, attachments } =
            translate(&object, &networks, definition, &AllowedPlugins::default());
        if self.options.fault == Some(PlantedFault::SkippedNetworks) {
            intents.truncate(1);
        }
        let manifest = json!({ "attachments": attachments });
        let object = StoredObject { object, intents, warnings, manifest, since: 0, file: None };
        let definitions = referenced.into_inner();
        Event::NetworksTranslated(Box::new(TranslatedNetworks { object, definitions }))
    }
}

/// The recorded attachments of a pod.
fn attachments(stored: &StoredObject) -> Vec<Attachment> {
    let attachments = stored.manifest.get("attachments").cloned().unwrap_or_default();
    serde_json::from_value(attachments).unwrap_or_default()
}
