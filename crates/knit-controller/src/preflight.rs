//! `knit preflight`: what would not work on a cluster, and why, before anything is installed. It only reads.

use std::fmt;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use knit_kube::kube::api::{ListParams, PostParams};
use knit_kube::kube::{self, Api, Client, ResourceExt};

/// Kubernetes of this minor version has all that Knit asks of it.
const OLDEST: u32 = 33;
/// Groups of Knit's kinds.
const GROUPS: [&str; 2] = ["podnetwork.opdev.io", "podconfig.opdev.io"];
/// What an admin has to be allowed to make.
const NEEDED: [(&str, &str); 7] = [
    ("", "namespaces"),
    ("apps", "daemonsets"),
    ("apps", "deployments"),
    ("rbac.authorization.k8s.io", "clusterroles"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"),
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
];

/// What was found in a cluster.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Its version: major, minor, and as it says it itself.
    pub version: (String, String, String),
    /// Its nodes.
    pub nodes: Vec<NodeFacts>,
    /// Definitions in Knit's groups that are not Knit's.
    pub foreign: Vec<String>,
    /// What this user may not make.
    pub forbidden: Vec<String>,
}

/// What was found of a node.
#[derive(Clone, Debug, Default)]
pub struct NodeFacts {
    /// Its name.
    pub name: String,
    /// `linux`, hopefully.
    pub system: String,
    /// Its processor.
    pub architecture: String,
    /// Its container runtime, such as `containerd://2.4.2`.
    pub runtime: String,
    /// Its kernel.
    pub kernel: String,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Whether it is well.
    pub ok: bool,
    /// What, and why.
    pub words: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:<5} {}", if self.ok { "ok" } else { "WRONG" }, self.words)
    }
}

/// Looks at a cluster.
pub async fn look(client: &Client) -> kube::Result<Facts> {
    let version = client.apiserver_version().await?;
    let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await?;
    let nodes = nodes.items.into_iter().map(|node| {
        let name = node.name_any();
        let info = node.status.and_then(|status| status.node_info).unwrap_or_default();
        NodeFacts {
            name,
            system: info.operating_system,
            architecture: info.architecture,
            runtime: info.container_runtime_version,
            kernel: info.kernel_version,
        }
    });
    let definitions =
        Api::<CustomResourceDefinition>::all(client.clone()).list(&ListParams::default()).await?;
    let is_mine = |definition: &CustomResourceDefinition| {
        definition.labels().get("app.kubernetes.io/part-of").is_some_and(|part| part == "knit")
    };
    let foreign =
        definitions.items.iter().filter(|one| GROUPS.contains(&one.spec.group.as_str()) && !is_mine(one));
    let mut facts = Facts {
        version: (version.major, version.minor, version.git_version),
        nodes: nodes.collect(),
        foreign: foreign.map(ResourceExt::name_any).collect(),
        forbidden: Vec::new(),
    };
    for (group, resource) in NEEDED {
        if !may_create(client, group, resource).await? {
            facts.forbidden.push(resource.to_owned());
        }
    }
    Ok(facts)
}

async fn may_create(client: &Client, group: &str, resource: &str) -> kube::Result<bool> {
    let attributes = ResourceAttributes {
        group: Some(group.to_owned()),
        resource: Some(resource.to_owned()),
        verb: Some("create".to_owned()),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let answer =
        Api::<SelfSubjectAccessReview>::all(client.clone()).create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// What the facts mean.
pub fn judge(facts: &Facts) -> Vec<Finding> {
    let (major, minor, version) = &facts.version;
    let digits: String = minor.chars().take_while(char::is_ascii_digit).collect();
    let is_new = major != "1" || digits.parse::<u32>().is_ok_and(|minor| minor >= OLDEST);
    let mut findings = vec![Finding {
        ok: is_new,
        words: format!("Kubernetes {version}{}", if is_new { "" } else { ": 1.33 or newer is needed" }),
    }];
    findings.push(match &facts.forbidden[..] {
        [] => Finding { ok: true, words: "you may install it".to_owned() },
        all => Finding { ok: false, words: format!("you may not create {}: ask an admin", all.join(", ")) },
    });
    findings.extend(facts.foreign.iter().map(|name| Finding {
        ok: false,
        words: format!(
            "{name} is defined already, and not by Knit: delete it with its objects, or its owner's program"
        ),
    }));
    findings.extend(facts.nodes.iter().map(node));
    findings
}

fn node(node: &NodeFacts) -> Finding {
    let NodeFacts { name, system, architecture, runtime, kernel } = node;
    let known = ["containerd://", "cri-o://"].iter().any(|known| runtime.starts_with(known));
    let why = if system != "linux" {
        format!(": it runs {system}, Knit needs Linux")
    } else if architecture != "amd64" {
        format!(": its processor is {architecture}, the image is for amd64")
    } else if !known {
        format!(": {runtime} is neither containerd nor CRI-O, so that pods cannot be found")
    } else if runtime.starts_with("cri-o://") {
        format!(": mount /run/crio in place of /run/containerd, see docs/operator.md ({runtime})")
    } else {
        return Finding { ok: true, words: format!("node {name}: {runtime}, kernel {kernel}") };
    };
    Finding { ok: false, words: format!("node {name}{why}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(runtime: &str) -> NodeFacts {
        NodeFacts {
            name: "n".to_owned(),
            system: "linux".to_owned(),
            architecture: "amd64".to_owned(),
            runtime: runtime.to_owned(),
            kernel: "6.1".to_owned(),
        }
    }

    fn wrong(facts: &Facts) -> Vec<String> {
        judge(facts).into_iter().filter(|finding| !finding.ok).map(|finding| finding.words).collect()
    }

    #[test]
    fn a_good_cluster_has_nothing_wrong_and_each_lack_is_named() {
        let version = |minor: &str| ("1".to_owned(), minor.to_owned(), format!("v1.{minor}.0"));
        let good =
            Facts { version: version("36"), nodes: vec![node("containerd://2.4.2")], ..Facts::default() };
        assert_eq!(wrong(&good), [""; 0]);
        let bad = Facts {
            version: version("29+"),
            nodes: vec![
                node("docker://19.3.1"),
                node("cri-o://1.33.0"),
                NodeFacts { system: "windows".to_owned(), ..node("") },
            ],
            foreign: vec!["bridges.podnetwork.opdev.io".to_owned()],
            forbidden: vec!["daemonsets".to_owned()],
        };
        let wrong = wrong(&bad);
        for (finding, word) in
            wrong.iter().zip(["1.33", "daemonsets", "not by Knit", "docker", "/run/crio", "windows"])
        {
            assert!(finding.contains(word), "{word} in {finding}");
        }
        assert_eq!(wrong.len(), 6);
    }
}
