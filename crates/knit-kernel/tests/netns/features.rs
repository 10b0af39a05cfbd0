//! Feature probes.

use knit_kernel::features::{FeatureState, detect};

#[test]
fn required_features_are_present_and_others_have_a_reason() {
    let features = detect();
    for feature in &features {
        match &feature.state {
            FeatureState::Present { .. } => {}
            FeatureState::Absent { reason, hint } | FeatureState::Unknown { reason, hint } => {
                assert!(!feature.required, "{}: {reason}", feature.name);
                assert!(!reason.is_empty() && !hint.is_empty(), "{}", feature.name);
                assert!(!reason.contains("EOPNOTSUPP"), "{}: {reason}", feature.name);
            }
        }
    }
}

#[test]
fn probing_leaves_nothing_behind() {
    let links = || {
        let mut names: Vec<_> =
            std::fs::read_dir("/sys/class/net").unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.retain(|name| name.to_string_lossy().starts_with("probe"));
        names
    };
    let namespace = || std::fs::read_link("/proc/self/ns/net").unwrap();
    let before = namespace();
    detect();
    assert!(links().is_empty());
    assert_eq!(namespace(), before);
}

/// Compares the probes with the kernel's build options.
#[test]
fn probes_agree_with_the_kernels_build_options() {
    let options = build_options();
    for feature in detect() {
        let option = format!("{}=", feature.config);
        let built = options.lines().any(|line| line.starts_with(&option));
        if feature.state.is_present() {
            assert!(built, "{} is present, but {} is not set", feature.name, feature.config);
        } else if matches!(&feature.state, FeatureState::Absent { reason, .. } if reason.starts_with("this kernel has no"))
        {
            assert!(!built, "{} is absent, but {} is set", feature.name, feature.config);
        }
    }
}

fn build_options() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let file = format!("/boot/config-{}", release.trim());
    std::fs::read_to_string(&file).unwrap_or_else(|_| {
        let done = std::process::Command::new("zcat").arg("/proc/config.gz").output().unwrap();
        assert!(done.status.success(), "the build options are neither in {file} nor in /proc/config.gz");
        String::from_utf8(done.stdout).unwrap()
    })
}
