//! The diagnosis for people: a row per feature, by area, and a verdict at the end.

use knit_kernel::features::{Feature, State};

use super::{Diagnosis, Tried};

/// How far the second line of a row is indented: under the feature's name.
const INDENT: &str = "           ";

/// The whole answer.
pub fn render(diagnosis: &Diagnosis) -> String {
    let Diagnosis { kernel, architecture, tried, features, .. } = diagnosis;
    let mut text = format!("Linux {kernel} ({architecture}), {}\n", rights(*tried));
    let width = features.iter().map(|feature| feature.name.len()).max().unwrap_or(0);
    let mut area = None;
    for feature in features {
        if area.replace(feature.area) != Some(feature.area) {
            text += &format!("\n{}\n", feature.area.title());
        }
        text += &row(feature, width);
    }
    text + "\n" + &verdict(diagnosis)
}

fn rights(tried: Tried) -> &'static str {
    match tried {
        Tried::AsRoot => "tried as root",
        Tried::InUserNamespace => "tried in a user namespace, without root",
        Tried::WithoutRights => "without root, and user namespaces are not allowed: little could be tried",
    }
}

fn row(feature: &Feature, width: usize) -> String {
    let (word, details) = match &feature.state {
        State::Present { note: None } => ("yes", vec![]),
        State::Present { note: Some(note) } => ("yes", vec![note.clone()]),
        State::Absent { why, hint } => ("no", vec![why.clone(), format!("to do: {hint}")]),
        State::Unknown { why, hint } => ("unknown", vec![why.clone(), format!("to do: {hint}")]),
    };
    let mut row = format!("  {word:<7}  {:<width$}  {}\n", feature.name, feature.needed_for);
    for detail in details {
        row += &format!("{INDENT}{detail}\n");
    }
    row
}

fn verdict(diagnosis: &Diagnosis) -> String {
    let names = |which: fn(&Feature) -> bool| {
        let names: Vec<_> =
            diagnosis.features.iter().filter(|feature| which(feature)).map(|feature| feature.name).collect();
        names
    };
    let present = names(|feature| feature.state.is_present());
    let unknown = names(|feature| matches!(feature.state, State::Unknown { .. }));
    let missing = names(|feature| feature.basic && matches!(feature.state, State::Absent { .. }));
    let untried = names(|feature| feature.basic && matches!(feature.state, State::Unknown { .. }));
    let mut text = format!("{} of {} features are there", present.len(), diagnosis.features.len());
    if !unknown.is_empty() {
        text += &format!(", {} could not be tried", unknown.len());
    }
    text += "\n";
    if diagnosis.basic {
        text += "Knit can do its basic job here: pods with interfaces and addresses on bridges\n";
    }
    if !missing.is_empty() {
        text += &format!("Knit cannot do its basic job here: {} missing\n", missing.join(", "));
    }
    if !untried.is_empty() {
        text += &format!(
            "Whether Knit can do its basic job here is not known: {} could not be tried; run `knit doctor` as root\n",
            untried.join(", ")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use knit_kernel::features::Area;

    use super::*;

    fn feature(name: &'static str, area: Area, basic: bool, state: State) -> Feature {
        Feature { name, area, needed_for: "tests", config: "CONFIG_NET", basic, state }
    }

    fn diagnosis(tried: Tried, features: Vec<Feature>) -> Diagnosis {
        let basic = features.iter().filter(|feature| feature.basic).all(|feature| feature.state.is_present());
        Diagnosis { kernel: "6.1".into(), architecture: "x86_64", tried, basic, features }
    }

    #[test]
    fn a_row_per_feature_by_area_with_what_to_do() {
        let absent = State::Absent {
            why: "this kernel has no WireGuard: CONFIG_WIREGUARD".into(),
            hint: "modprobe wireguard".into(),
        };
        let features = vec![
            feature("netns", Area::Namespaces, true, State::Present { note: None }),
            feature("wireguard", Area::Tunnels, false, absent),
            feature("gre", Area::Tunnels, false, State::Present { note: Some("loads on first use".into()) }),
        ];
        let expected = "\
Linux 6.1 (x86_64), tried as root

namespaces
  yes      netns      tests

tunnels
  no       wireguard  tests
           this kernel has no WireGuard: CONFIG_WIREGUARD
           to do: modprobe wireguard
  yes      gre        tests
           loads on first use

2 of 3 features are there
Knit can do its basic job here: pods with interfaces and addresses on bridges
";
        assert_eq!(render(&diagnosis(Tried::AsRoot, features)), expected);
    }

    #[test]
    fn what_could_not_be_tried_is_said_and_is_not_called_missing() {
        let unknown = State::Unknown { why: "this user may not".into(), hint: "run it as root".into() };
        let text = render(&diagnosis(
            Tried::WithoutRights,
            vec![
                feature("veth", Area::Links, true, unknown.clone()),
                feature("vlan", Area::Links, false, unknown),
            ],
        ));
        assert!(text.contains("user namespaces are not allowed"), "{text}");
        assert!(text.contains("0 of 2 features are there, 2 could not be tried"), "{text}");
        assert!(text.contains("not known: veth could not be tried; run `knit doctor` as root"), "{text}");
        assert!(!text.contains("cannot do"), "{text}");
    }

    #[test]
    fn a_missing_basic_feature_is_named_in_the_verdict() {
        let absent = State::Absent { why: "no".into(), hint: "yes".into() };
        let text = render(&diagnosis(Tried::AsRoot, vec![feature("bridge", Area::Links, true, absent)]));
        assert!(text.ends_with("Knit cannot do its basic job here: bridge missing\n"), "{text}");
    }
}
