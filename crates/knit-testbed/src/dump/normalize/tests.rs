//! Samples of `ip`, `tc` and `bridge` output, and what is compared of them.

use serde_json::json;

use super::*;

fn texts(lines: &[Line]) -> Vec<&str> {
    lines.iter().map(|line| line.text.as_str()).collect()
}

#[test]
fn volatile_link_fields_are_left_out() {
    let link = json!({
        "ifindex": 4, "link_index": 7, "link_netnsid": 0, "ifname": "eth0", "flags": ["UP", "NO-CARRIER"],
        "mtu": 1500, "operstate": "UP", "address": "02:00:00:00:00:01", "stats64": {"rx": {"bytes": 1}},
        "linkinfo": {"info_kind": "veth", "info_slave_data": {"state": "forwarding", "id": "0x8001", "cost": 2}},
    });
    assert_eq!(
        texts(&links(&[link])),
        [
            "eth0: info_kind veth, flags UP, mtu 1500, address 02:00:00:00:00:01",
            "eth0: linkinfo.info_slave_data.cost 2"
        ]
    );
}

#[test]
fn bridge_timers_are_left_out_and_settings_kept() {
    let data = json!({"hello_timer": 0.3, "gc_timer": 12.0, "ageing_time": 30000, "vlan_filtering": 0});
    let bridge = json!({"ifname": "br0", "linkinfo": {"info_kind": "bridge", "info_data": data}});
    assert_eq!(
        texts(&links(&[bridge])),
        [
            "br0: info_kind bridge",
            "br0: linkinfo.info_data.ageing_time 30000",
            "br0: linkinfo.info_data.vlan_filtering 0"
        ]
    );
}

fn with_addresses(flags: &[&str], addresses: Value) -> Value {
    json!({"ifname": "eth0", "flags": flags, "address": "fe:73:d7:22:ff:f8", "addr_info": addresses})
}

#[test]
fn kernel_link_local_address_is_left_out_and_a_configured_one_kept() {
    let derived =
        json!({"family": "inet6", "local": "fe80::fc73:d7ff:fe22:fff8", "prefixlen": 64, "scope": "link"});
    let configured = json!({"family": "inet6", "local": "fe80::1", "prefixlen": 64, "scope": "link"});
    let lines = addresses(&[with_addresses(&["UP"], json!([derived, configured]))]);
    assert_eq!(texts(&lines), ["eth0: fe80::1/64 scope link"]);
}

#[test]
fn lifetime_is_forever_or_limited() {
    let address = |time: u64| json!({"local": "10.0.0.1", "prefixlen": 24, "valid_life_time": time});
    let text = |time| texts(&addresses(&[with_addresses(&["UP"], json!([address(time)]))]))[0].to_owned();
    assert_eq!(text(4_294_967_295), "eth0: 10.0.0.1/24 valid_life_time forever");
    assert_eq!(text(3599), text(3598));
}

#[test]
fn address_settles_only_with_carrier() {
    let tentative = json!([{"local": "fd00::1", "prefixlen": 64, "tentative": true}]);
    assert!(has_unsettled_address(&[with_addresses(&["UP", "LOWER_UP"], tentative.clone())]));
    assert!(!has_unsettled_address(&[with_addresses(&["UP"], tentative)]));
    let failed = json!([{"local": "fd00::1", "prefixlen": 64, "tentative": true, "dadfailed": true}]);
    assert!(!has_unsettled_address(&[with_addresses(&["UP", "LOWER_UP"], failed)]));
}

#[test]
fn routes_are_sorted_and_kernel_link_local_ones_left_out() {
    let routes = [
        json!({"dst": "fe80::/64", "dev": "eth0", "protocol": "kernel"}),
        json!({"dst": "ff00::/8", "dev": "eth0", "protocol": "kernel", "table": "local"}),
        json!({"dst": "default", "gateway": "fe80::1", "dev": "eth0", "protocol": "static"}),
        json!({"dst": "10.0.0.0/24", "dev": "eth0", "protocol": "kernel", "table": "77", "flags": ["linkdown"]}),
    ];
    assert_eq!(
        texts(&super::routes(&routes)),
        [
            "table 77: 10.0.0.0/24 dev eth0 protocol kernel",
            "table main: default dev eth0 gateway fe80::1 protocol static"
        ]
    );
}

#[test]
fn next_hops_of_a_route_are_shown() {
    let hops = json!([{"gateway": "10.0.0.2", "weight": 1}, {"gateway": "10.0.0.3", "weight": 2}]);
    let route = json!({"dst": "default", "nexthops": hops});
    assert_eq!(
        texts(&super::routes(&[route])),
        ["table main: default nexthops [gateway 10.0.0.2 weight 1],[gateway 10.0.0.3 weight 2]"]
    );
}

#[test]
fn only_static_forwarding_entries_are_shown() {
    let entries = [
        json!({"mac": "33:33:00:00:00:01", "ifname": "br0", "state": "permanent"}),
        json!({"mac": "ea:04:ae:cc:7d:47", "ifname": "v0", "state": ""}),
        json!({"mac": "00:00:00:00:00:00", "ifname": "vxlan0", "dst": "10.0.0.9", "state": "permanent"}),
    ];
    assert_eq!(texts(&fdb(&entries)), ["dst 10.0.0.9 ifname vxlan0 mac 00:00:00:00:00:00 state permanent"]);
}

#[test]
fn noqueue_is_left_out() {
    let qdiscs = [
        json!({"kind": "noqueue", "dev": "eth0", "handle": "0:"}),
        json!({"kind": "clsact", "dev": "eth0", "handle": "ffff:", "refcnt": 2}),
    ];
    assert_eq!(texts(&super::qdiscs(&qdiscs)), ["dev eth0 handle ffff: kind clsact"]);
}

#[test]
fn program_id_is_left_out_and_tag_kept() {
    let filter = json!({"kind": "bpf", "options": {"prog": {"id": 9, "name": "knit", "tag": "abc"}}});
    assert_eq!(
        texts(&filters("eth0", "ingress", &[filter])),
        ["eth0 ingress: kind bpf options.prog.name knit options.prog.tag abc"]
    );
}
