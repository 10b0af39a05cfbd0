//! A kind of link that this kernel may not have: the object's report says so in words.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

use knit_agent::Standalone;
use knit_crds::Object;
use knit_kernel::features::detect;
use knit_model::problem::Reason;
use knit_model::report::{Phase, Report};
use knit_testbed::{Dump, Testbed};

const GENEVE: &str = "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Geneve
metadata: {name: overlay}
spec: {interfaceName: gnv0, vni: 42, remote: 192.0.2.2, addresses: [10.70.0.1/30]}
";

#[test]
fn an_object_of_a_kind_that_the_kernel_lacks_says_so_with_the_build_option() {
    let has_geneve = detect().iter().any(|feature| feature.name == "geneve" && feature.state.is_present());
    let testbed = Testbed::new("lacks");
    let (pod, folder) = (testbed.pod("a"), tempfile::tempdir().unwrap());
    let before = Dump::take(pod.namespace());
    let report = testbed.host().run(|| -> Report {
        let mut node = Standalone::open(folder.path()).unwrap();
        let labels = [("podnetwork.opdev.io/geneve".to_owned(), "overlay".to_owned())].into();
        node.add_sandbox("default", "a", labels, pod.pid()).unwrap();
        let changes = node.apply(Object::parse_all(GENEVE).unwrap(), "a test").unwrap();
        node.state().report(&changes[0].key).unwrap()
    });
    if has_geneve {
        assert_eq!((report.phase, report.problems), (Phase::Configured, Vec::new()));
        return;
    }
    let [problem] = report.problems.as_slice() else { panic!("{report:?}") };
    assert_eq!(problem.reason, Reason::KernelLacks, "{}", problem.message);
    assert!(problem.message.contains("this kernel has no geneve: CONFIG_GENEVE"), "{}", problem.message);
    let difference = before.difference(&Dump::take(pod.namespace()));
    assert!(difference.is_empty(), "{difference}");
}
