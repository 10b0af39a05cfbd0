//! What the kernel has, in words: of a node or of a pod, without what changes by itself.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::Result;
use knit_kernel::Netns;

use crate::harness::Beside;
use knit_dev::process;

/// What is looked at, by the part of the picture it is.
const QUESTIONS: [&[&str]; 8] = [
    &["ip", "-o", "-d", "link"],
    &["ip", "-o", "addr"],
    &["ip", "-4", "route", "show", "table", "all"],
    &["ip", "-6", "route", "show", "table", "all"],
    &["ip", "-4", "rule"],
    &["ip", "-6", "rule"],
    &["tc", "qdisc"],
    &["nft", "--stateless", "list", "ruleset"],
];

/// The words after which something follows that changes by itself.
const CHANGING: [&str; 8] = [
    "hello_timer",
    "tcn_timer",
    "topology_change_timer",
    "gc_timer",
    "expires",
    "valid_lft",
    "preferred_lft",
    "promiscuity",
];

/// One line for each thing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picture(BTreeSet<String>);

impl Picture {
    /// Of a node, without the ports of the main CNI plugin's bridge: its pods come and go.
    pub fn of_node(beside: &Beside, node: u8) -> Result<Self> {
        let ports = beside.on_node(node, &["ip", "-br", "link", "show", "master", "cni0"])?;
        let ports = names(&ports);
        let mut lines = BTreeSet::new();
        for words in QUESTIONS {
            lines.extend(read(words, &beside.on_node(node, words)?, &ports));
        }
        Ok(Self(lines))
    }

    /// Of a pod.
    pub fn of_pod(netns: &Netns) -> Result<Self> {
        let mut lines = BTreeSet::new();
        for words in QUESTIONS {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]);
            let text = netns.enter(|| process::output(&mut command))??;
            lines.extend(read(words, &text, &[]));
        }
        Ok(Self(lines))
    }

    /// What is here and was not there before, and the reverse.
    pub fn difference(&self, before: &Self) -> Vec<String> {
        let left = self.0.difference(&before.0).map(|line| format!("left behind: {line}"));
        let gone = before.0.difference(&self.0).map(|line| format!("gone: {line}"));
        left.chain(gone).collect()
    }

    /// How many things it shows.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// The links that `ip -br link` lists.
pub fn names(text: &str) -> Vec<String> {
    let first = text.lines().filter_map(|line| line.split_whitespace().next());
    first.map(|name| name.split('@').next().unwrap_or(name).to_owned()).collect()
}

fn read(words: &[&str], text: &str, without: &[String]) -> Vec<String> {
    let what = words.join(" ");
    let is_foreign =
        |line: &&str| line.split([' ', '@', ':', '\t']).any(|word| without.iter().any(|name| name == word));
    let lines = text.lines().filter(|line| !is_foreign(line));
    lines.map(|line| format!("{what}: {}", steady(line))).collect()
}

fn steady(line: &str) -> String {
    let mut words = Vec::new();
    let mut all = line.split_whitespace();
    while let Some(word) = all.next() {
        if CHANGING.contains(&word) {
            all.next();
        } else {
            words.push(word);
        }
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_by_itself_and_what_is_others_is_not_seen() {
        let text = "2: cni0: <UP> mtu 1500 hello_timer 0.00 gc_timer 1.2\n9: veth1@if2: <UP> master cni0\n10: soakbr0: <UP>\n";
        let seen = read(&["ip", "link"], text, &["veth1".to_owned()]);
        assert_eq!(seen, ["ip link: 2: cni0: <UP> mtu 1500", "ip link: 10: soakbr0: <UP>"]);
        assert_eq!(names("veth1@if2 UP aa:bb\nlo UNKNOWN\n"), ["veth1", "lo"]);
    }

    #[test]
    fn a_link_that_is_left_is_named() {
        let before = Picture(["a".to_owned()].into());
        let after = Picture(["a".to_owned(), "b".to_owned()].into());
        assert_eq!(after.difference(&before), ["left behind: b"]);
        assert_eq!(before.difference(&after), ["gone: b"]);
    }
}
