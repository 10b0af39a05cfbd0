//! A full node in one process, without a cluster: 128 sandboxes with 16 interfaces each.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use knit_agent::{Standalone, sandboxes, standalone};
use knit_engine::Event;
use knit_kernel::Netns;
use knit_model::{Sandbox, SandboxId};

use super::Report;
use crate::kni::path_of;

const SANDBOXES: usize = 128;
const INTERFACES: usize = 16;

/// Measures inside the calling thread's network namespace, which is the host.
pub fn measure(report: &mut Report) -> Result<()> {
    let folder = tempfile::tempdir().context("cannot create a temporary directory")?;
    let mut node = Standalone::open(&folder.path().join("state"))?;
    let pods = (0..SANDBOXES).map(|_| Netns::unnamed()).collect::<Result<Vec<_>, _>>()?;
    for (number, pod) in pods.iter().enumerate() {
        node.node().handle(Event::SandboxUpdated(sandbox(number, pod)?))?;
    }
    let manifest = folder.path().join("objects.yaml");
    std::fs::write(&manifest, objects(0..INTERFACES)).context("cannot write the objects")?;
    let all = standalone::read_objects(&manifest)?;
    let start = Instant::now();
    let changes = node.apply(all, "bench")?;
    let total = start.elapsed();
    let keys: Vec<_> = changes.into_iter().map(|change| change.key).collect();
    check(&node, SANDBOXES * INTERFACES)?;
    let count = (SANDBOXES * INTERFACES) as f64;
    let all = format!("{SANDBOXES} sandboxes x {INTERFACES} interfaces");
    report.add_value(&format!("{all}: created"), milliseconds(total), "ms", None);
    report.add_value(&format!("{all}: created, each"), milliseconds(total) * 1e3 / count, "µs", None);

    std::fs::write(&manifest, objects(INTERFACES..INTERFACES + 1)).context("cannot write the object")?;
    let more = standalone::read_objects(&manifest)?;
    let start = Instant::now();
    node.apply(more, "bench")?;
    let added = start.elapsed();
    check(&node, SANDBOXES * (INTERFACES + 1))?;
    report.add_value(&format!("one more interface on each of {SANDBOXES}"), milliseconds(added), "ms", None);

    let start = Instant::now();
    node.delete(&keys, "bench")?;
    report.add_value(&format!("{all}: removed"), milliseconds(start.elapsed()), "ms", None);
    check(&node, SANDBOXES)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Each object has its own bridge: a bridge has at most 1,023 ports.
fn objects(numbers: std::ops::Range<usize>) -> String {
    let object = |number: usize| {
        format!(
            "---\n{{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Veth, metadata: {{name: net{number}, namespace: bench}}, \
             spec: {{selector: {{matchLabels: {{full: 'yes'}}}}, interfaceName: net{number}, master: fullbr{number}, \
             cidr: 10.{number}.0.0/16}}}}\n"
        )
    };
    numbers.map(object).collect()
}

fn sandbox(number: usize, pod: &Netns) -> Result<Sandbox> {
    let instance = sandboxes::instance_of(pod)?;
    let name = format!("pod-{number}");
    Ok(Sandbox {
        id: SandboxId(format!("bench/{name}")),
        uid: format!("{}-{}", instance.boot, instance.cookie),
        instance,
        isolation: Default::default(),
        netns: path_of(pod),
        number: number as u32 + 1,
        pod: name,
        namespace: "bench".to_owned(),
        labels: [("full".to_owned(), "yes".to_owned())].into(),
        annotated_limits: None,
    })
}

/// Fails unless this many interfaces are ready.
fn check(node: &Standalone, number: usize) -> Result<()> {
    let state = node.state();
    let ready = state.units.values().flat_map(|made| &made.interfaces).filter(|(_, link)| link.ready).count();
    if ready != number {
        let problem = state.problems.values().flatten().next().map(|(_, problem)| problem.to_string());
        bail!("{ready} of {number} interfaces are ready: {}", problem.unwrap_or_default());
    }
    Ok(())
}
