//! The network state of a node or pod as text lines, without fields that change by themselves.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::Result;
use knit_kernel::Netns;

use crate::harness::KnitCluster;
use knit_dev::process;

/// The commands that print the state.
const COMMANDS: [&[&str]; 8] = [
    &["ip", "-o", "-d", "link"],
    &["ip", "-o", "addr"],
    &["ip", "-4", "route", "show", "table", "all"],
    &["ip", "-6", "route", "show", "table", "all"],
    &["ip", "-4", "rule"],
    &["ip", "-6", "rule"],
    &["tc", "qdisc"],
    &["nft", "--stateless", "list", "ruleset"],
];

/// Fields whose next word changes by itself.
const VOLATILE_FIELDS: [&str; 8] = [
    "hello_timer",
    "tcn_timer",
    "topology_change_timer",
    "gc_timer",
    "expires",
    "valid_lft",
    "preferred_lft",
    "promiscuity",
];

/// The lines of all commands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelSnapshot(BTreeSet<String>);

impl KernelSnapshot {
    /// The state of a node, without the ports of the main CNI plugin's bridge, which change with its pods.
    pub fn of_node(knit: &KnitCluster, node: u8) -> Result<Self> {
        let ports = knit.on_node(node, &["ip", "-br", "link", "show", "master", "cni0"])?;
        let ports = link_names(&ports);
        let mut lines = BTreeSet::new();
        for args in COMMANDS {
            lines.extend(parse(args, &knit.on_node(node, args)?, &ports));
        }
        Ok(Self(lines))
    }

    /// The state of a pod.
    pub fn of_pod(netns: &Netns) -> Result<Self> {
        let mut lines = BTreeSet::new();
        for args in COMMANDS {
            let mut command = Command::new(args[0]);
            command.args(&args[1..]);
            let text = netns.enter(|| process::output(&mut command))??;
            lines.extend(parse(args, &text, &[]));
        }
        Ok(Self(lines))
    }

    /// Lines that were added and lines that vanished since another snapshot.
    pub fn difference(&self, before: &Self) -> Vec<String> {
        let left = self.0.difference(&before.0).map(|line| format!("left behind: {line}"));
        let gone = before.0.difference(&self.0).map(|line| format!("gone: {line}"));
        left.chain(gone).collect()
    }

    /// The number of lines.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// The links that `ip -br link` lists.
pub fn link_names(text: &str) -> Vec<String> {
    let first = text.lines().filter_map(|line| line.split_whitespace().next());
    first.map(|name| name.split('@').next().unwrap_or(name).to_owned()).collect()
}

fn parse(args: &[&str], text: &str, excluded_links: &[String]) -> Vec<String> {
    let what = args.join(" ");
    let is_excluded = |line: &&str| {
        line.split([' ', '@', ':', '\t']).any(|word| excluded_links.iter().any(|name| name == word))
    };
    let lines = text.lines().filter(|line| !is_excluded(line));
    lines.map(|line| format!("{what}: {}", without_volatile_fields(line))).collect()
}

fn without_volatile_fields(line: &str) -> String {
    // `nft` names the program that owns a table, if the number of its socket is that of a process.
    let line = line.split(" # progname ").next().unwrap_or(line);
    let mut kept = Vec::new();
    let mut all = line.split_whitespace();
    while let Some(word) = all.next() {
        if VOLATILE_FIELDS.contains(&word) {
            all.next();
        } else {
            kept.push(word);
        }
    }
    kept.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volatile_fields_and_excluded_links_are_left_out() {
        let text = "2: cni0: <UP> mtu 1500 hello_timer 0.00 gc_timer 1.2\n9: veth1@if2: <UP> master cni0\n10: soakbr0: <UP>\n";
        let parsed = parse(&["ip", "link"], text, &["veth1".to_owned()]);
        assert_eq!(parsed, ["ip link: 2: cni0: <UP> mtu 1500", "ip link: 10: soakbr0: <UP>"]);
        let owned = parse(&["nft"], "table inet knit { # progname knit\n\tflags owner\n", &[]);
        assert_eq!(owned, ["nft: table inet knit {", "nft: flags owner"]);
        assert_eq!(link_names("veth1@if2 UP aa:bb\nlo UNKNOWN\n"), ["veth1", "lo"]);
    }

    #[test]
    fn a_difference_lists_added_and_removed_lines() {
        let before = KernelSnapshot(["a".to_owned()].into());
        let after = KernelSnapshot(["a".to_owned(), "b".to_owned()].into());
        assert_eq!(after.difference(&before), ["left behind: b"]);
        assert_eq!(before.difference(&after), ["gone: b"]);
    }
}
