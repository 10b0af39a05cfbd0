//! The report as text: a row per feature, by area, and a summary at the end.

use knit_kernel::features::{Feature, FeatureState};

use super::{Privileges, Report};

/// Indents details to the column of the feature name.
const INDENT: &str = "           ";

/// Renders the report.
pub fn render(report: &Report) -> String {
    let Report { kernel, architecture, privileges, features, .. } = report;
    let mut text = format!("Linux {kernel} ({architecture}), {}\n", privileges_text(*privileges));
    let width = features.iter().map(|feature| feature.name.len()).max().unwrap_or(0);
    let mut area = None;
    for feature in features {
        if area.replace(feature.area) != Some(feature.area) {
            text += &format!("\n{}\n", feature.area.title());
        }
        text += &row(feature, width);
    }
    text + "\n" + &summary(report)
}

fn privileges_text(privileges: Privileges) -> &'static str {
    match privileges {
        Privileges::Root => "checked as root",
        Privileges::UserNamespace => "checked in a user namespace, without root",
        Privileges::None => {
            "checked without root; user namespaces are not allowed, so most checks are skipped"
        }
    }
}

fn row(feature: &Feature, width: usize) -> String {
    let (status, details) = match &feature.state {
        FeatureState::Present { note: None } => ("yes", vec![]),
        FeatureState::Present { note: Some(note) } => ("yes", vec![note.clone()]),
        FeatureState::Absent { reason: why, hint } => ("no", vec![why.clone(), format!("hint: {hint}")]),
        FeatureState::Unknown { reason: why, hint } => {
            ("unknown", vec![why.clone(), format!("hint: {hint}")])
        }
    };
    let mut row = format!("  {status:<7}  {:<width$}  {}\n", feature.name, feature.needed_for);
    for detail in details {
        row += &format!("{INDENT}{detail}\n");
    }
    row
}

fn summary(report: &Report) -> String {
    let names = |matches: fn(&Feature) -> bool| {
        let names: Vec<_> =
            report.features.iter().filter(|feature| matches(feature)).map(|feature| feature.name).collect();
        names
    };
    let present = names(|feature| feature.state.is_present());
    let unknown = names(|feature| matches!(feature.state, FeatureState::Unknown { .. }));
    let missing = names(|feature| feature.required && matches!(feature.state, FeatureState::Absent { .. }));
    let unchecked =
        names(|feature| feature.required && matches!(feature.state, FeatureState::Unknown { .. }));
    let mut text = format!("{} of {} features are available", present.len(), report.features.len());
    if !unknown.is_empty() {
        text += &format!(", {} could not be checked", unknown.len());
    }
    text += "\n";
    if report.required_present {
        text += "All required features are available\n";
    }
    if !missing.is_empty() {
        text += &format!("Required features are missing: {}\n", missing.join(", "));
    }
    if !unchecked.is_empty() {
        text += &format!(
            "Required features could not be checked: {}; run `knit doctor` as root\n",
            unchecked.join(", ")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use knit_kernel::features::Area;

    use super::*;

    fn feature(name: &'static str, area: Area, basic: bool, state: FeatureState) -> Feature {
        Feature { name, area, needed_for: "tests", config: "CONFIG_NET", required: basic, state }
    }

    fn report(privileges: Privileges, features: Vec<Feature>) -> Report {
        let required_present =
            features.iter().filter(|feature| feature.required).all(|feature| feature.state.is_present());
        Report { kernel: "6.1".into(), architecture: "x86_64", privileges, required_present, features }
    }

    #[test]
    fn features_are_grouped_by_area_with_hints() {
        let absent = FeatureState::Absent {
            reason: "this kernel has no WireGuard: CONFIG_WIREGUARD".into(),
            hint: "modprobe wireguard".into(),
        };
        let features = vec![
            feature("netns", Area::Namespaces, true, FeatureState::Present { note: None }),
            feature("wireguard", Area::Tunnels, false, absent),
            feature(
                "gre",
                Area::Tunnels,
                false,
                FeatureState::Present { note: Some("loads on first use".into()) },
            ),
        ];
        let expected = "\
Linux 6.1 (x86_64), checked as root

namespaces
  yes      netns      tests

tunnels
  no       wireguard  tests
           this kernel has no WireGuard: CONFIG_WIREGUARD
           hint: modprobe wireguard
  yes      gre        tests
           loads on first use

2 of 3 features are available
All required features are available
";
        assert_eq!(render(&report(Privileges::Root, features)), expected);
    }

    #[test]
    fn unchecked_features_are_not_reported_as_missing() {
        let unknown =
            FeatureState::Unknown { reason: "this user may not".into(), hint: "run it as root".into() };
        let text = render(&report(
            Privileges::None,
            vec![
                feature("veth", Area::Links, true, unknown.clone()),
                feature("vlan", Area::Links, false, unknown),
            ],
        ));
        assert!(text.contains("user namespaces are not allowed"), "{text}");
        assert!(text.contains("0 of 2 features are available, 2 could not be checked"), "{text}");
        assert!(text.contains("could not be checked: veth; run `knit doctor` as root"), "{text}");
        assert!(!text.contains("missing"), "{text}");
    }

    #[test]
    fn the_summary_names_missing_required_features() {
        let absent = FeatureState::Absent { reason: "no".into(), hint: "yes".into() };
        let text = render(&report(Privileges::Root, vec![feature("bridge", Area::Links, true, absent)]));
        assert!(text.ends_with("Required features are missing: bridge\n"), "{text}");
    }
}
