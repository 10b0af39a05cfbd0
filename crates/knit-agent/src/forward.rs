//! Ports of the node that lead to pods, in Knit's own nftables table: maps and sets for each family, never a rule per pod.
//!
//! The whole table is replaced in one transaction, so that there is no moment with half of it. Nothing else in the packet
//! filter is touched.
//!
//! A port is open on the node's IPv4 loopback too. For that, packets of 127.0.0.0/8 may leave by the cluster's bridge, and
//! their answers come back by it (`route_localnet` of that bridge); a chain of its own keeps everything else that a pod
//! sends to the node's loopback out. So the chain is there before the sysctl, and goes after it.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::IpAddr;
use std::process::{Command, Stdio};

use ipnet::IpNet;
use knit_engine::forward::{Forward, Forwarding, Outside};
use knit_kernel::Kernel;
use knit_model::IfName;
use knit_model::problem::{Problem, Reason};

/// Has exactly these.
pub(crate) fn apply(kernel: &mut Kernel, all: &Forwarding) -> Result<(), Problem> {
    let Forwarding { forwards, bridge, .. } = all;
    if forwards.is_empty() {
        open_loopback(kernel, bridge.as_ref(), false)?;
        return replace(all);
    }
    replace(all)?;
    open_loopback(kernel, bridge.as_ref(), true)
}

/// Lets the node's loopback and the pods on a bridge talk, or not.
fn open_loopback(kernel: &mut Kernel, bridge: Option<&IfName>, open: bool) -> Result<(), Problem> {
    let Some(bridge) = bridge else { return Ok(()) };
    let key = format!("net/ipv4/conf/{bridge}/route_localnet");
    let written = kernel.write_host_sysctl(&key, if open { "1" } else { "0" });
    written.map_err(|why| failed(Reason::KernelRefused, &why.to_string()))
}

fn failed(reason: Reason, why: &str) -> Problem {
    let message = format!("ports of the node and the way out of the cluster cannot be changed: {why}");
    Problem { field: "port_mappings".to_owned(), reason, message }
}

fn replace(all: &Forwarding) -> Result<(), Problem> {
    let is_empty = all.forwards.is_empty() && all.outside.is_none();
    let mut command = Command::new("nft");
    command.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        // Where there is no nft, there is no table of Knit's to take away.
        Err(_) if is_empty => return Ok(()),
        Err(why) => return Err(failed(Reason::KernelLacks, &format!("nft: {why}"))),
        Ok(child) => child,
    };
    if let Some(mut input) = child.stdin.take() {
        // One that ended early says why on its standard error.
        let _ = input.write_all(render(all).as_bytes());
    }
    let output = child.wait_with_output().map_err(|why| failed(Reason::KernelRefused, &why.to_string()))?;
    if output.status.success() || is_empty {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ");
    Err(failed(Reason::KernelRefused, &said))
}

/// The table as nft reads it. The first two lines take an older one away, if there is one.
fn render(all: &Forwarding) -> String {
    let forwards = &all.forwards;
    let mut text = "table inet knit\ndelete table inet knit\n".to_owned();
    if forwards.is_empty() && all.outside.is_none() {
        return text;
    }
    text += "table inet knit {\n";
    if let Some(outside) = &all.outside {
        text += &leave(outside, all.bridge.as_ref());
    }
    if forwards.is_empty() {
        return text + "}\n";
    }
    let (mut jumps, mut returns) = (String::new(), String::new());
    for (family, word, kind) in [(4, "ip", "ipv4_addr"), (6, "ip6", "ipv6_addr")] {
        let of_family = |forward: &&Forward| forward.to.is_ipv4() == (family == 4);
        let (fixed, any): (Vec<&Forward>, Vec<&Forward>) =
            forwards.iter().filter(of_family).partition(|forward| forward.host_ip.is_some());
        let nfproto = if family == 4 { "ipv4" } else { "ipv6" };
        if let Some(bridge) = &all.bridge
            && !(fixed.is_empty() && any.is_empty())
        {
            let pods: BTreeSet<String> = fixed.iter().chain(&any).map(|forward| pod(forward)).collect();
            let pods = pods.into_iter().collect::<Vec<_>>().join(", ");
            text += &format!(
                "  set pods{family} {{\n    type inet_proto . {kind} . inet_service\n    elements = {{ {pods} }}\n  }}\n"
            );
            let to_pods = format!(
                "ct status dnat oifname \"{bridge}\" meta l4proto . {word} daddr . th dport @pods{family} masquerade"
            );
            if family == 4 {
                returns += &format!("    ip saddr 127.0.0.0/8 {to_pods}\n");
            }
            // The pod would answer its neighbour on the bridge, past the node.
            returns += &format!("    iifname \"{bridge}\" {to_pods}\n");
        }
        if !fixed.is_empty() {
            let elements = elements(&fixed);
            text +=
                &map(&format!("at{family}"), &format!("{kind} . inet_proto . inet_service"), kind, &elements);
            jumps += &format!(
                "    meta nfproto {nfproto} dnat {word} to {word} daddr . meta l4proto . th dport map @at{family}\n"
            );
        }
        if !any.is_empty() {
            text += &map(&format!("any{family}"), "inet_proto . inet_service", kind, &elements(&any));
            jumps += &format!(
                "    meta nfproto {nfproto} dnat {word} to meta l4proto . th dport map @any{family}\n"
            );
        }
    }
    text += &format!("  chain ports {{\n{jumps}  }}\n");
    for (chain, hook) in [("arriving", "prerouting"), ("leaving", "output")] {
        text += &format!(
            "  chain {chain} {{\n    type nat hook {hook} priority -100; policy accept;\n    fib daddr type local jump ports\n  }}\n"
        );
    }
    if let Some(bridge) = &all.bridge {
        text += &format!(
            "  chain guard {{\n    type filter hook prerouting priority -300; policy accept;\n    iifname \"{bridge}\" ip daddr 127.0.0.0/8 drop\n  }}\n"
        );
        text += &format!(
            "  chain returning {{\n    type nat hook postrouting priority 100; policy accept;\n{returns}  }}\n"
        );
    }
    text + "}\n"
}

/// What pods say to the outside has the node's address; the rest keeps theirs.
fn leave(outside: &Outside, bridge: Option<&IfName>) -> String {
    let (mut sets, mut rules) = (String::new(), String::new());
    for (family, word, kind) in [(4, "ip", "ipv4_addr"), (6, "ip6", "ipv6_addr")] {
        let of_family = |range: &&IpNet| range.addr().is_ipv4() == (family == 4);
        let list = |ranges: &[IpNet]| {
            ranges.iter().filter(of_family).map(IpNet::to_string).collect::<Vec<_>>().join(", ")
        };
        let (pods, inside) = (list(&outside.pods), list(&outside.inside));
        if pods.is_empty() {
            continue;
        }
        for (name, ranges) in [("mine", pods), ("inside", inside)] {
            sets += &format!(
                "  set {name}{family} {{\n    type {kind}; flags interval; auto-merge;\n    elements = {{ {ranges} }}\n  }}\n"
            );
        }
        let not_back = bridge.map(|bridge| format!("oifname != \"{bridge}\" ")).unwrap_or_default();
        // Groups that were joined are neighbours'.
        let groups = if family == 4 { "224.0.0.0/4" } else { "ff00::/8" };
        rules += &format!(
            "    {not_back}{word} saddr @mine{family} {word} daddr != @inside{family} {word} daddr != {groups} masquerade random\n"
        );
    }
    format!(
        "{sets}  chain outside {{\n    type nat hook postrouting priority 100; policy accept;\n{rules}  }}\n"
    )
}

/// What arrives at a pod.
fn pod(Forward { protocol, to, port, .. }: &Forward) -> String {
    format!("{protocol} . {to} . {port}")
}

fn map(name: &str, key: &str, kind: &str, elements: &str) -> String {
    format!(
        "  map {name} {{\n    type {key} : {kind} . inet_service\n    elements = {{ {elements} }}\n  }}\n"
    )
}

fn elements(forwards: &[&Forward]) -> String {
    let element = |forward: &&Forward| {
        let at = forward.host_ip.map(|address: IpAddr| format!("{address} . ")).unwrap_or_default();
        let Forward { protocol, host_port, to, port, .. } = forward;
        format!("{at}{protocol} . {host_port} : {to} . {port}")
    };
    forwards.iter().map(element).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_map_for_each_family_and_no_rule_per_pod() {
        let forward = |host_ip: Option<&str>, host_port: u16, to: &str| Forward {
            protocol: "tcp".to_owned(),
            host_ip: host_ip.map(|text| text.parse().unwrap()),
            host_port,
            to: to.parse().unwrap(),
            port: 80,
        };
        let forwards = vec![
            forward(None, 8080, "10.75.0.2"),
            forward(None, 8080, "fd75::2"),
            forward(Some("192.0.2.1"), 8081, "10.75.0.3"),
        ];
        let bridge: IfName = "knit0".parse().unwrap();
        let text = render(&Forwarding { forwards, bridge: Some(bridge), outside: None });
        assert!(text.starts_with("table inet knit\ndelete table inet knit\ntable inet knit {\n"), "{text}");
        assert!(text.contains("elements = { tcp . 8080 : 10.75.0.2 . 80 }"), "{text}");
        assert!(text.contains("elements = { tcp . 8080 : fd75::2 . 80 }"), "{text}");
        assert!(text.contains("elements = { 192.0.2.1 . tcp . 8081 : 10.75.0.3 . 80 }"), "{text}");
        assert_eq!(text.matches(" dnat ip").count(), 3);
        assert!(text.contains("elements = { tcp . 10.75.0.2 . 80, tcp . 10.75.0.3 . 80 }"), "{text}");
        assert_eq!(text.matches("masquerade").count(), 3, "{text}");
        assert_eq!(render(&Forwarding::default()), "table inet knit\ndelete table inet knit\n");
    }

    #[test]
    fn only_what_leaves_the_cluster_gets_the_nodes_address() {
        let ranges = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let outside =
            Outside { pods: ranges(&["10.1.0.0/24"]), inside: ranges(&["10.1.0.0/16", "192.0.2.7/32"]) };
        let bridge: IfName = "knit0".parse().unwrap();
        let text = render(&Forwarding { forwards: Vec::new(), bridge: Some(bridge), outside: Some(outside) });
        assert!(text.contains("elements = { 10.1.0.0/16, 192.0.2.7/32 }"), "{text}");
        assert!(text.contains("oifname != \"knit0\" ip saddr @mine4 ip daddr != @inside4"), "{text}");
        assert!(!text.contains("mine6") && !text.contains("dnat"), "{text}");
    }
}
