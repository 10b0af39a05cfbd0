//! Intents of the sample objects.

use knit_crds::Object;
use knit_model::provenance::Dialect;

use crate::SAMPLES;

#[test]
fn samples_become_intents() {
    for (name, yaml) in SAMPLES {
        let mut output = String::new();
        for object in Object::parse_all(yaml).unwrap() {
            let translation =
                object.intents(Dialect::File).unwrap_or_else(|problems| panic!("{name}: {problems}"));
            for intent in &translation.intents {
                let spec = serde_saphyr::to_string(&intent.spec).unwrap();
                output.push_str(&format!("# {}\n{spec}\n", intent.origin));
            }
            for warning in &translation.warnings {
                output.push_str(&format!("# {} warns: {warning}\n\n", object.object_ref()));
            }
        }
        insta::assert_snapshot!(*name, output);
    }
}

#[test]
fn a_sample_deployment_in_a_file_is_a_warning() {
    let object = Object::parse(SAMPLES[0].1).unwrap();
    assert!(object.intents(Dialect::Kubernetes).unwrap().warnings.is_empty());
    assert_eq!(
        object.intents(Dialect::File).unwrap().warnings,
        ["spec.sampleDeployment: Deployment cnf-example-a is not created outside a cluster"]
    );
}

#[test]
fn the_parent_of_a_veth_is_the_interface_itself() {
    let other = SAMPLES[0].1.replace("parent: pc0", "parent: eth0").replace("create: true", "create: false");
    let translation = Object::parse(&other).unwrap().intents(Dialect::File).unwrap();
    assert_eq!(
        translation.warnings,
        [
            "spec.networkAttachments[0].parent: `eth0` is ignored: the parent of a veth is the interface itself"
        ]
    );
    assert_eq!(translation.intents.len(), 2);
}
