//! What the kernel offers, asked of the real one. Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

use knit_kernel::features::{State, detect};

#[test]
fn the_features_of_the_basic_job_are_seen_and_the_rest_is_told_in_words() {
    let features = detect();
    for feature in &features {
        match &feature.state {
            State::Present { .. } => {}
            State::Absent { why, hint } | State::Unknown { why, hint } => {
                assert!(!feature.basic, "{}: {why}", feature.name);
                assert!(!why.is_empty() && !hint.is_empty(), "{}", feature.name);
                assert!(!why.contains("EOPNOTSUPP"), "{}: {why}", feature.name);
            }
        }
    }
}

#[test]
fn looking_leaves_nothing() {
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

/// The kernel's own list of build options is the judge.
#[test]
fn what_is_said_agrees_with_the_kernels_build_options() {
    let options = build_options();
    for feature in detect() {
        let said = format!("{}=", feature.config);
        let built = options.lines().any(|line| line.starts_with(&said));
        if feature.state.is_present() {
            assert!(built, "{} was seen, but {} is not set", feature.name, feature.config);
        } else if matches!(&feature.state, State::Absent { why, .. } if why.starts_with("this kernel has no"))
        {
            assert!(!built, "{} was not seen, but {} is set", feature.name, feature.config);
        }
    }
}

fn build_options() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let beside = format!("/boot/config-{}", release.trim());
    std::fs::read_to_string(&beside).unwrap_or_else(|_| {
        let done = std::process::Command::new("zcat").arg("/proc/config.gz").output().unwrap();
        assert!(done.status.success(), "the build options are neither in {beside} nor in /proc/config.gz");
        String::from_utf8(done.stdout).unwrap()
    })
}
