//! The packet filter in the commands of one machine: `plan` and `status` show it, `apply` repairs it, `undo` removes it.

use crate::support::machine::Machine;
use serde_json::Value;

const LABEL: &str = "app=x";

/// A bridge with an interface on it in each pod with the label.
fn network(name: &str, bridge: &str, range: &str) -> String {
    format!(
        "{{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Bridge, metadata: {{name: {name}}}, spec: {{name: {bridge}}}}}
---
{{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Veth, metadata: {{name: {name}}}, spec: {{
    selector: {{matchLabels: {{app: x}}}}, interfaceName: {name}, master: {bridge}, cidr: '{range}'}}}}"
    )
}

/// The steps of a printed plan that begin so, each with its origins. Steps are indented by two spaces, their details by six.
fn steps<'a>(plan: &'a str, prefix: &str) -> Vec<(&'a str, Vec<&'a str>)> {
    let mut steps: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in plan.lines() {
        match (line.strip_prefix("      "), line.strip_prefix("  ")) {
            (Some(detail), _) => {
                let origins = &mut steps.last_mut().unwrap().1;
                origins.extend(detail.strip_prefix("requested by "));
            }
            (None, Some(step)) => steps.push((step, Vec::new())),
            (None, None) => {}
        }
    }
    steps.retain(|(step, _)| step.starts_with(prefix));
    steps
}

/// The set and the key of an element in a plan: `+ element bridge knit @ports { port0 }`.
fn set_and_key(step: &str) -> (&str, &str) {
    let (_, element) = step.split_once('@').unwrap();
    let (set, key) = element.split_once(' ').unwrap();
    let (key, _) = key.split_once('}').unwrap();
    (set, key.trim_start_matches("{ ").trim())
}

fn ruleset(machine: &Machine) -> String {
    machine.host.output("nft", &["list", "ruleset"]).unwrap()
}

fn has_table(machine: &Machine) -> bool {
    machine.host.output("nft", &["list", "table", "bridge", "knit"]).is_ok()
}

/// The number of elements of all sets of the table.
fn listed_elements(machine: &Machine) -> usize {
    let listed = machine.host.output("nft", &["-j", "list", "table", "bridge", "knit"]).unwrap();
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let sets = listed["nftables"].as_array().unwrap().iter().filter_map(|item| item.get("set"));
    sets.map(|set| set["elem"].as_array().map_or(0, Vec::len)).sum()
}

/// Whether `nft` finds an element of a plan.
fn is_listed(machine: &Machine, step: &str) -> bool {
    let (set, key) = set_and_key(step);
    let key = format!("{{ {key} }}");
    machine.host.output("nft", &["get", "element", "bridge", "knit", set, &key]).is_ok()
}

#[test]
fn plan_shows_the_filter_of_a_port_with_its_origin_and_nft_lists_it_after_apply() {
    let machine = Machine::new("filter-plan");
    let pod = machine.registered_pod("a", 180, &[LABEL]);
    let before = machine.snapshot(&[&pod]);
    let file = machine.file("network.yaml", &network("net1", "br1", "10.1.0.0/24,fd00:1::/64"));
    let file = file.to_str().unwrap();
    let planned = machine.knit(&["plan", "-f", file]);
    assert_eq!(planned.code, Some(2), "{planned:?}");
    before.assert_unchanged();
    let plan = planned.out;

    let structure = ["+ table bridge knit", "+ set bridge knit", "+ chain bridge knit", "~ rules of chain"];
    for prefix in structure {
        let steps = steps(&plan, prefix);
        assert!(!steps.is_empty(), "{prefix} in {plan}");
        for (step, origins) in steps {
            assert_eq!(origins, ["Knit packet filter"], "{step}");
        }
    }
    let elements = steps(&plan, "+ element bridge knit");
    for (step, origins) in &elements {
        assert_eq!(origins[..], ["Knit packet filter of default/a"], "{step}");
    }
    let addresses = elements.iter().filter(|(step, _)| step.contains("@port_addresses"));
    let addresses: Vec<&str> = addresses.map(|(step, _)| set_and_key(step).1).collect();
    for address in ["10.1.0.2", "fd00:1::2", "fe80::"] {
        assert!(addresses.iter().any(|key| key.contains(address)), "{address} in {addresses:?}");
    }
    // The filter of a port is in place before the port.
    let line = |text: &str| plan.lines().position(|line| line.trim().starts_with(text)).unwrap();
    assert!(line("+ element bridge knit @guarded_ports") < line("+ veth net1"), "{plan}");

    machine.knit(&["apply", "-f", file]).ok();
    assert_eq!(listed_elements(&machine), elements.len(), "{}", ruleset(&machine));
    for (step, _) in &elements {
        assert!(is_listed(&machine, step), "{step} is not in\n{}", ruleset(&machine));
    }
    for (step, _) in steps(&plan, "+ set bridge knit") {
        let name = step.rsplit(' ').next().unwrap();
        machine.host.output("nft", &["list", "set", "bridge", "knit", name]).unwrap();
    }
    assert_eq!(machine.knit(&["plan", "-f", file]).ok(), "no changes\n");
    machine.assert_no_drift();
}

#[test]
fn drift_of_the_filter_is_reported_by_status_and_repaired_by_apply() {
    let machine = Machine::new("filter-drift");
    let pod = machine.registered_pod("a", 180, &[LABEL]);
    let objects = network("net1", "br1", "10.1.0.0/24");
    let plan = machine.knit_with(&["plan", "-f", "-"], &objects, &[]).out;
    let elements = steps(&plan, "+ element bridge knit");
    machine.apply(&objects).ok();
    let applied = machine.snapshot(&[&pod]);
    machine.assert_no_drift();

    let address = elements.iter().find(|(step, _)| step.contains("10.1.0.2")).unwrap();
    let (set, key) = set_and_key(address.0);
    let key = format!("{{ {key} }}");
    let chain = "~ rules of chain bridge knit prerouting: 0 -> 1";
    let cases: [(&[&str], usize, &[&str]); 3] = [
        (&["delete", "element", "bridge", "knit", set, &key], 1, &[address.0]),
        (&["flush", "chain", "bridge", "knit", "prerouting"], 1, &[chain]),
        (&["delete", "table", "bridge", "knit"], steps(&plan, "").len(), &["+ table bridge knit", address.0]),
    ];
    for (change, most, expected) in cases {
        machine.host.output("nft", change).unwrap();
        let changed = ruleset(&machine);
        let status = machine.knit(&["status"]);
        assert_eq!(status.code, Some(1), "{change:?}: {status:?}");
        let (_, drift) = status.out.split_once("drift; the next apply repairs it:\n").unwrap();
        for step in expected {
            let shown = steps(drift, step);
            assert_eq!(shown.len(), 1, "{step} in {drift}");
            assert!(!shown[0].1.is_empty(), "{step} has no origin in {drift}");
        }
        assert!(steps(drift, "").len() <= most, "{change:?}: {drift}");
        assert_eq!(ruleset(&machine), changed, "status changes nothing");

        let printed = machine.apply(&objects);
        printed.ok();
        assert!(printed.err.contains("drift repaired"), "{change:?}: {printed:?}");
        applied.assert_unchanged();
        machine.assert_no_drift();
    }
}

#[test]
fn undo_removes_the_elements_of_its_ports_and_the_tables_with_the_last_one() {
    let machine = Machine::new("filter-undo");
    let pod = machine.registered_pod("a", 180, &[LABEL]);
    let (before, rules_before) = (machine.snapshot(&[&pod]), ruleset(&machine));
    assert!(!has_table(&machine));

    machine.apply(&network("net1", "br1", "10.1.0.0/24")).ok();
    let (first, elements) = (machine.snapshot(&[&pod]), listed_elements(&machine));
    machine.apply(&network("net2", "br2", "10.2.0.0/24,fd00:2::/64")).ok();
    assert!(ruleset(&machine).contains("10.2.0.2"), "{}", ruleset(&machine));
    assert!(listed_elements(&machine) > elements, "{}", ruleset(&machine));

    machine.knit(&["undo"]).ok();
    assert!(!ruleset(&machine).contains("10.2.0.2"), "{}", ruleset(&machine));
    assert_eq!(listed_elements(&machine), elements);
    first.assert_unchanged();
    machine.assert_no_drift();

    machine.knit(&["undo"]).ok();
    assert!(!has_table(&machine));
    assert_eq!(ruleset(&machine), rules_before);
    before.assert_unchanged();
    machine.assert_no_drift();

    // Deleted by hand before, the elements cause no error.
    machine.apply(&network("net1", "br1", "10.1.0.0/24")).ok();
    machine.host.output("nft", &["delete", "table", "bridge", "knit"]).unwrap();
    machine.knit(&["undo"]).ok();
    assert_eq!(ruleset(&machine), rules_before);
    before.assert_unchanged();
}
