//! Ports of the node that lead to pods, in Knit's own nftables table: two maps for each family, never a rule per pod.
//!
//! The whole table is replaced in one transaction, so that there is no moment with half of it. Nothing else in the packet
//! filter is touched.

use std::io::Write as _;
use std::net::IpAddr;
use std::process::{Command, Stdio};

use knit_engine::forward::Forward;
use knit_model::problem::{Problem, Reason};

/// Has exactly these.
pub(crate) fn apply(forwards: &[Forward]) -> Result<(), Problem> {
    let failed = |reason, why: String| {
        let message = format!("ports of the node cannot be opened: {why}");
        Problem { field: "port_mappings".to_owned(), reason, message }
    };
    let mut command = Command::new("nft");
    command.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        // Where there is no nft, there is no table of Knit's to take away.
        Err(_) if forwards.is_empty() => return Ok(()),
        Err(why) => return Err(failed(Reason::KernelLacks, format!("nft: {why}"))),
        Ok(child) => child,
    };
    if let Some(mut input) = child.stdin.take() {
        // One that ended early says why on its standard error.
        let _ = input.write_all(render(forwards).as_bytes());
    }
    let output = child.wait_with_output().map_err(|why| failed(Reason::KernelRefused, why.to_string()))?;
    if output.status.success() || forwards.is_empty() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ");
    Err(failed(Reason::KernelRefused, said))
}

/// The table as nft reads it. The first two lines take an older one away, if there is one.
fn render(forwards: &[Forward]) -> String {
    let mut text = "table inet knit\ndelete table inet knit\n".to_owned();
    if forwards.is_empty() {
        return text;
    }
    text += "table inet knit {\n";
    let mut jumps = String::new();
    for (family, word, kind) in [(4, "ip", "ipv4_addr"), (6, "ip6", "ipv6_addr")] {
        let of_family = |forward: &&Forward| forward.to.is_ipv4() == (family == 4);
        let (fixed, any): (Vec<&Forward>, Vec<&Forward>) =
            forwards.iter().filter(of_family).partition(|forward| forward.host_ip.is_some());
        let nfproto = if family == 4 { "ipv4" } else { "ipv6" };
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
    text + "}\n"
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
        let text = render(&[
            forward(None, 8080, "10.75.0.2"),
            forward(None, 8080, "fd75::2"),
            forward(Some("192.0.2.1"), 8081, "10.75.0.3"),
        ]);
        assert!(text.starts_with("table inet knit\ndelete table inet knit\ntable inet knit {\n"), "{text}");
        assert!(text.contains("elements = { tcp . 8080 : 10.75.0.2 . 80 }"), "{text}");
        assert!(text.contains("elements = { tcp . 8080 : fd75::2 . 80 }"), "{text}");
        assert!(text.contains("elements = { 192.0.2.1 . tcp . 8081 : 10.75.0.3 . 80 }"), "{text}");
        assert_eq!(text.matches("dnat").count(), 3);
        assert_eq!(render(&[]), "table inet knit\ndelete table inet knit\n");
    }
}
