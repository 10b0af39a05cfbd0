//! How the agent is deployed: its container in the manifests below `deploy/`, which the [confinement](crate::Confinement) of
//! tests follows. The manifests are part of the test programs, so that a change of them changes what tests may do.

mod manifest;

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use rustix::thread::CapabilitySet;
use serde::Deserialize;
use serde_json::Value;

/// Comma-separated capabilities that confined agents do not get, to see which tests need them.
const WITHOUT_CAPABILITIES: &str = "KNIT_TESTBED_WITHOUT_CAPABILITIES";

/// Which manifests are installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deployed {
    /// `deploy/beside`: additional networks.
    Beside,
    /// `deploy/primary`: the cluster network.
    Primary,
    /// `deploy/primary` with the patch of `deploy/attachments`: the agent also runs CNI plugins.
    PrimaryWithAttachments,
}

/// What the agent's container may do.
#[derive(Clone, Debug)]
pub(crate) struct Container {
    /// Its only capabilities.
    pub capabilities: CapabilitySet,
    pub no_new_privileges: bool,
    /// Whether it has the runtime's seccomp profile.
    pub is_seccomp_filtered: bool,
    pub has_read_only_root: bool,
    pub mounts: Vec<Mount>,
    /// Environment variables with a value in the manifest.
    pub environment: Vec<(String, String)>,
}

/// A directory of the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    pub place: PathBuf,
    /// The directory of the node; `None` for files that Kubernetes provides.
    pub host_path: Option<PathBuf>,
    pub is_read_only: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    #[serde(default, rename = "hostPID")]
    host_pid: bool,
    #[serde(default)]
    host_network: bool,
    #[serde(default)]
    security_context: PodSecurity,
    containers: Vec<ContainerSpec>,
    volumes: Vec<Volume>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSecurity {
    seccomp_profile: Option<SeccompProfile>,
}

#[derive(Deserialize)]
struct SeccompProfile {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerSpec {
    #[serde(default)]
    env: Vec<Variable>,
    security_context: ContainerSecurity,
    volume_mounts: Vec<VolumeMount>,
}

#[derive(Deserialize)]
struct Variable {
    name: String,
    value: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ContainerSecurity {
    run_as_user: u32,
    #[serde(default)]
    read_only_root_filesystem: bool,
    #[serde(default = "escalation_is_allowed")]
    allow_privilege_escalation: bool,
    capabilities: Capabilities,
}

#[derive(Deserialize)]
struct Capabilities {
    drop: Vec<String>,
    #[serde(default)]
    add: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VolumeMount {
    name: String,
    mount_path: PathBuf,
    #[serde(default)]
    read_only: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    name: String,
    host_path: Option<HostPath>,
}

#[derive(Deserialize)]
struct HostPath {
    path: PathBuf,
}

/// The default of Kubernetes.
fn escalation_is_allowed() -> bool {
    true
}

impl Container {
    /// The agent's container in these manifests, without the capabilities that `KNIT_TESTBED_WITHOUT_CAPABILITIES` names.
    #[track_caller]
    pub fn of(deployed: Deployed) -> Self {
        static PARSED: Mutex<Vec<(Deployed, Container)>> = Mutex::new(Vec::new());
        let mut parsed = PARSED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, container)) = parsed.iter().find(|(known, _)| *known == deployed) {
            return container.clone();
        }
        let mut container = Self::parse(manifest::pod_spec(deployed));
        let without = std::env::var(WITHOUT_CAPABILITIES).unwrap_or_default();
        let names: Vec<_> = without.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        container.capabilities -= capability_set(&names);
        parsed.push((deployed, container.clone()));
        container
    }

    /// Panics if the manifest has a setting that tests cannot follow.
    #[track_caller]
    fn parse(spec: Value) -> Self {
        let spec: PodSpec = serde_json::from_value(spec).expect("the agent's pod in the manifest");
        assert!(spec.host_pid && spec.host_network, "tests run agents with hostPID and hostNetwork");
        let [container] = <[ContainerSpec; 1]>::try_from(spec.containers).ok().expect("one container");
        let security = container.security_context;
        assert_eq!(security.run_as_user, 0, "tests run agents as root");
        assert_eq!(security.capabilities.drop, ["ALL"], "all other capabilities are dropped");
        let kind =
            spec.security_context.seccomp_profile.map_or("Unconfined".to_owned(), |profile| profile.kind);
        assert!(["RuntimeDefault", "Unconfined"].contains(&kind.as_str()), "seccomp profile {kind}");
        let mounts = container.volume_mounts.into_iter().map(|mount| {
            let volume = spec.volumes.iter().find(|volume| volume.name == mount.name);
            let volume = volume.unwrap_or_else(|| panic!("no volume {}", mount.name));
            let host_path = volume.host_path.as_ref().map(|host| host.path.clone());
            Mount { place: mount.mount_path, is_read_only: mount.read_only || host_path.is_none(), host_path }
        });
        Self {
            capabilities: capability_set(&security.capabilities.add),
            no_new_privileges: !security.allow_privilege_escalation,
            is_seccomp_filtered: kind == "RuntimeDefault",
            has_read_only_root: security.read_only_root_filesystem,
            mounts: mounts.collect(),
            environment: container.env.into_iter().filter_map(|one| Some((one.name, one.value?))).collect(),
        }
    }
}

/// The set of capabilities with these names, such as `NET_ADMIN`.
#[track_caller]
fn capability_set(names: &[String]) -> CapabilitySet {
    let find =
        |name: &String| CapabilitySet::from_name(name).unwrap_or_else(|| panic!("unknown capability {name}"));
    names.iter().map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_container_is_that_of_the_manifests() {
        let beside = Container::parse(manifest::pod_spec(Deployed::Beside));
        assert!(beside.capabilities.contains(CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW));
        assert!(!beside.capabilities.contains(CapabilitySet::DAC_OVERRIDE));
        assert!(beside.no_new_privileges && beside.is_seccomp_filtered && beside.has_read_only_root);
        let sysctls = ("KNIT_SYSCTL_DIR".to_owned(), "/host/proc/sys".to_owned());
        assert!(beside.environment.contains(&sysctls), "{:?}", beside.environment);
        let find = |container: &Container, place: &str| {
            container.mounts.iter().find(|mount| mount.place == Path::new(place)).cloned()
        };
        let devices = find(&beside, "/dev/net").unwrap();
        assert!(devices.is_read_only && devices.host_path == Some("/dev/net".into()), "{devices:?}");
        assert_eq!(find(&beside, "/sys/fs/bpf"), None);
    }

    #[test]
    fn patches_are_merged_as_kustomize_merges_them() {
        let primary = Container::parse(manifest::pod_spec(Deployed::Primary));
        let beside = Container::parse(manifest::pod_spec(Deployed::Beside));
        assert_eq!(primary.capabilities, beside.capabilities);
        assert!(beside.mounts.iter().all(|mount| primary.mounts.contains(mount)));
        let config = primary.mounts.iter().find(|mount| mount.place == Path::new("/etc/knit")).unwrap();
        assert!(config.is_read_only && config.host_path.is_none(), "{config:?}");
        let profiles = primary.environment.iter().filter(|(name, _)| name == "KNIT_PROFILE");
        assert_eq!(profiles.map(|(_, value)| value.as_str()).collect::<Vec<_>>(), ["primary"]);
        let attachments = Container::parse(manifest::pod_spec(Deployed::PrimaryWithAttachments));
        assert_eq!(attachments.capabilities, primary.capabilities | CapabilitySet::DAC_OVERRIDE);
        let plugins = attachments.mounts.iter().filter(|mount| mount.place == Path::new("/opt/cni/bin"));
        assert_eq!(plugins.count(), 1, "the mount with the same place is replaced");
    }

    #[test]
    #[should_panic(expected = "unknown capability NET_RAWR")]
    fn an_unknown_capability_is_not_ignored() {
        capability_set(&["NET_RAWR".to_owned()]);
    }
}
