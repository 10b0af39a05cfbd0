//! Objects of an API server, of files, and in annotations of pods.

use knit_crds::Object;
use knit_crds::attachments::{self, AllowedPlugins, Definition};
use knit_model::provenance::{Dialect, ObjectRef};
use serde_json::Value;

use super::engine::{NAMESPACE, Node, UID};
use super::parts;

/// A file with objects: parsed, written, parsed again, translated, and applied to a node.
pub(super) fn objects(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(objects) = Object::parse_all(text) else { return };
    let mut node = Node::default();
    for mut object in objects {
        let yaml = object.to_yaml();
        let again = Object::parse(&yaml).unwrap_or_else(|errors| panic!("{errors}: {yaml}"));
        assert_eq!(again, object, "{yaml}");
        assert!(object.check_change(&object).is_empty(), "{yaml}");
        object.metadata_mut().namespace.get_or_insert_with(|| NAMESPACE.to_owned());
        for dialect in [Dialect::Kubernetes, Dialect::File] {
            node.apply(&object, dialect);
        }
    }
}

/// Two parts: the annotation, and the configuration of every definition.
pub(super) fn attachments(data: &[u8]) {
    let [annotation, config] = parts(data).map(String::from_utf8_lossy);
    let pod = ObjectRef {
        kind: "Pod".to_owned(),
        namespace: NAMESPACE.to_owned(),
        name: "web".to_owned(),
        uid: UID.to_owned(),
        generation: 1,
    };
    let types = ["bridge", "tuning", "portmap", "bandwidth", "host-local", "static"].map(str::to_owned);
    let plugins =
        AllowedPlugins { types: types.into(), dirs: vec!["/opt/cni/bin".to_owned()], timeout_seconds: 60 };
    let find = |_: &str, _: &str| Some(Definition::Config(config.clone().into_owned()));
    let translated = attachments::translate(&pod, &annotation, find, &plugins);
    assert!(translated.intents.len() >= translated.attachments.len());
    Node::default().apply_intents(&pod, translated.intents, Value::Null);
}
