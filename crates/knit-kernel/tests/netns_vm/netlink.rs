//! The netlink layer and namespace handles.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use knit_kernel::netlink::constants::*;
use knit_kernel::netlink::header::{AddressHeader, LinkHeader, RouteHeader};
use knit_kernel::netlink::{Header, Protocol, generic};
use knit_kernel::{Message, Netns, Socket};
use nix::errno::Errno;

/// The group of every link in these tests, to show that it is set at creation.
const GROUP: u32 = 4242;

/// A namespace with a unique name, which is removed on drop, also when a test fails.
struct Named {
    path: PathBuf,
    netns: Netns,
}

impl Named {
    fn create() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = PathBuf::from(format!("/run/netns/knit-wire-{}-{number}", std::process::id()));
        let netns = Netns::create(&path).expect("network namespaces can be created: run as root");
        Self { path, netns }
    }

    fn socket(&self) -> Socket {
        Socket::open_in(&self.netns, Protocol::Route).unwrap()
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        Netns::delete(&self.path).expect("the namespace's name can be removed");
    }
}

/// A veth pair in one message; the far end is created in `pod`.
fn veth(host_end: &str, pod: &Netns) -> Message {
    let mut message = Message::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, format!("add link {host_end}"));
    message.header(&LinkHeader::default()).put_str(IFLA_IFNAME, host_end).put_u32(IFLA_GROUP, GROUP);
    message.nest(IFLA_LINKINFO, |info| {
        info.put_str(IFLA_INFO_KIND, "veth").nest(IFLA_INFO_DATA, |data| {
            data.nest(VETH_INFO_PEER, |peer| {
                peer.header(&LinkHeader::default()).put_str(IFLA_IFNAME, "eth0").put_u32(IFLA_GROUP, GROUP);
                peer.put_u32(IFLA_NET_NS_FD, pod.as_fd().as_raw_fd() as u32);
            });
        });
    });
    message
}

fn up(name: &str) -> Message {
    let mut message = Message::new(RTM_NEWLINK, 0, format!("set link {name} up"));
    message.header(&LinkHeader { flags: IFF_UP, change: IFF_UP, ..Default::default() });
    message.put_str(IFLA_IFNAME, name);
    message
}

fn address(index: i32, address: &str, prefix_length: u8) -> Message {
    let ip: IpAddr = address.parse().unwrap();
    let family = if ip.is_ipv4() { AF_INET } else { AF_INET6 };
    let mut message = Message::new(
        RTM_NEWADDR,
        NLM_F_CREATE | NLM_F_EXCL,
        format!("add address {address}/{prefix_length}"),
    );
    message.header(&AddressHeader { family, prefix_length, index: index as u32, ..Default::default() });
    message.put_address(IFA_LOCAL, ip).put_address(IFA_ADDRESS, ip).put_u32(IFA_FLAGS, IFA_F_NODAD);
    message.put_u8(IFA_PROTO, 77);
    message
}

fn default_route(index: i32, gateway: &str) -> Message {
    let gateway: IpAddr = gateway.parse().unwrap();
    let mut message =
        Message::new(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, format!("add route via {gateway}"));
    message.header(&RouteHeader {
        family: if gateway.is_ipv4() { AF_INET } else { AF_INET6 },
        table: RT_TABLE_MAIN,
        protocol: RTPROT_STATIC,
        kind: RTN_UNICAST,
        ..Default::default()
    });
    message.put_address(RTA_GATEWAY, gateway).put_u32(RTA_OIF, index as u32);
    message
}

#[derive(Debug, PartialEq)]
struct Link {
    name: String,
    index: i32,
    group: Option<u32>,
    up: bool,
}

fn links(socket: &mut Socket) -> Vec<Link> {
    let mut message = Message::new(RTM_GETLINK, 0, "list links");
    message.header(&LinkHeader::default());
    let found = socket.dump(message, |kind, body| {
        assert_eq!(kind, RTM_NEWLINK);
        let (header, attributes) = LinkHeader::split(body)?;
        let name = attributes.first(IFLA_IFNAME)?.str()?.to_owned();
        let group = attributes.first(IFLA_GROUP)?.u32();
        Some(Link { name, index: header.index, group, up: header.flags & IFF_UP != 0 })
    });
    found.unwrap()
}

fn addresses(socket: &mut Socket) -> Vec<(IpAddr, Option<u8>)> {
    let mut message = Message::new(RTM_GETADDR, 0, "list addresses");
    message.header(&AddressHeader::default());
    let found = socket.dump(message, |_, body| {
        let (_, attributes) = AddressHeader::split(body)?;
        let protocol = attributes.first(IFA_PROTO).and_then(|protocol| protocol.u8());
        Some((attributes.first(IFA_ADDRESS)?.address()?, protocol))
    });
    found.unwrap()
}

fn link(socket: &mut Socket, name: &str) -> Link {
    links(socket).into_iter().find(|link| link.name == name).expect("the link is there")
}

#[test]
fn one_message_creates_a_veth_across_two_namespaces_with_its_group() {
    let (host, pod) = (Named::create(), Named::create());
    let (mut outside, mut inside) = (host.socket(), pod.socket());
    outside.request(veth("h0", &pod.netns)).unwrap();
    let h0 = link(&mut outside, "h0");
    let eth0 = link(&mut inside, "eth0");
    assert_eq!((h0.group, eth0.group), (Some(GROUP), Some(GROUP)));
    assert!(!eth0.up);
}

#[test]
fn a_batch_configures_a_pods_interface() {
    let (host, pod) = (Named::create(), Named::create());
    host.socket().request(veth("h0", &pod.netns)).unwrap();
    let mut inside = pod.socket();
    let index = link(&mut inside, "eth0").index;
    let batch = [
        up("lo"),
        up("eth0"),
        address(index, "10.99.0.2", 24),
        address(index, "fd99::2", 64),
        default_route(index, "10.99.0.1"),
        default_route(index, "fd99::1"),
    ];
    inside.batch(&batch).unwrap();
    assert!(link(&mut inside, "eth0").up);
    assert!(link(&mut inside, "lo").up);
    let found = addresses(&mut inside);
    for expected in ["10.99.0.2", "fd99::2"] {
        assert!(found.contains(&(expected.parse().unwrap(), Some(77))), "{expected} is not in {found:?}");
    }
    let mut routes = Message::new(RTM_GETROUTE, 0, "list routes");
    routes.header(&RouteHeader { family: AF_INET, ..Default::default() });
    let gateways =
        inside.dump(routes, |_, body| RouteHeader::split(body)?.1.first(RTA_GATEWAY)?.address()).unwrap();
    assert_eq!(gateways, ["10.99.0.1".parse::<IpAddr>().unwrap()]);
}

#[test]
fn a_batch_error_lists_the_failed_and_the_applied_messages() {
    let pod = Named::create();
    let mut inside = pod.socket();
    let mut wrong = Message::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, "add link x0");
    wrong.header(&LinkHeader::default()).put_str(IFLA_IFNAME, "x0");
    wrong.nest(IFLA_LINKINFO, |info| {
        info.put_str(IFLA_INFO_KIND, "no-such-kind");
    });
    let batch = [up("lo"), address(1, "10.99.0.9", 32), wrong, up("x0"), address(1, "10.99.0.10", 32)];
    let error = inside.batch(&batch).unwrap_err();
    assert_eq!(error.index, 2);
    assert_eq!(error.error.errno(), Some(Errno::EOPNOTSUPP));
    let text = error.to_string();
    assert!(text.starts_with("message 3 of 5: add link x0: "), "{text}");
    assert!(text.contains("Unknown device type (EOPNOTSUPP"), "{text}");
    // The kernel continued after the failure, and the error reflects it.
    assert_eq!(error.applied, [0, 1, 4]);
    assert!(addresses(&mut inside).iter().any(|(ip, _)| ip.to_string() == "10.99.0.10"));
    // The socket remains usable.
    inside.batch(&[up("lo")]).unwrap();
}

#[test]
fn a_batch_may_span_several_datagrams() {
    let pod = Named::create();
    let mut inside = pod.socket();
    let batch: Vec<Message> =
        (0..300).map(|n| address(1, &format!("10.98.{}.{}", n / 250, n % 250), 32)).collect();
    inside.batch(&batch).unwrap();
    assert_eq!(addresses(&mut inside).len(), 300);
    let error = inside.batch(&batch[299..]).unwrap_err();
    assert_eq!(error.error.errno(), Some(Errno::EEXIST));
    assert!(error.error.to_string().contains("10.98.1.49/32"), "{error}");
}

#[test]
fn a_reply_is_decoded_and_a_missing_object_is_named() {
    let pod = Named::create();
    let mut inside = pod.socket();
    let get = |name: &str| {
        let mut message = Message::new(RTM_GETLINK, 0, format!("get link {name}"));
        message.header(&LinkHeader::default()).put_str(IFLA_IFNAME, name);
        message
    };
    let index = inside.request_reply(get("lo"), |_, body| Some(LinkHeader::decode(body)?.index)).unwrap();
    assert_eq!(index, 1);
    let error = inside.request_reply(get("nowhere0"), |_, body| LinkHeader::decode(body)).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::ENODEV));
    assert!(error.to_string().starts_with("get link nowhere0: "), "{error}");
    let mut control = Socket::open_in(&pod.netns, Protocol::Generic).unwrap();
    assert_eq!(generic::family(&mut control, "nlctrl").unwrap(), GENL_ID_CTRL);
    assert!(generic::family(&mut control, "no-such-family").is_err());
}

#[test]
fn notifications_arrive_for_subscribed_groups() {
    let pod = Named::create();
    let mut notifications = pod.socket();
    notifications.subscribe(RTNLGRP_LINK).unwrap();
    assert!(
        !notifications.recv_notification(Duration::ZERO, |_, _| panic!("nothing has happened yet")).unwrap()
    );
    pod.socket().request(up("lo")).unwrap();
    let mut observed = Vec::new();
    assert!(notifications.recv_notification(Duration::from_secs(5), |kind, _| observed.push(kind)).unwrap());
    assert_eq!(observed, [RTM_NEWLINK]);
}

#[test]
fn paths_that_are_not_a_sandboxs_namespace_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("file"), "").unwrap();
    nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let pod = Named::create();
    std::os::unix::fs::symlink(&pod.path, at("link")).unwrap();
    let host = Netns::current().unwrap();
    for (path, expected) in [
        (at("file"), "regular file"),
        (at("fifo"), "FIFO"),
        (at("link"), "symbolic link"),
        (at("gone"), "no such file"),
        (folder.path().to_owned(), "directory"),
        ("/dev/null".into(), "device"),
        ("/proc/self/ns/uts".into(), "another kind"),
        ("/proc/self/ns/net".into(), "host's network namespace"),
        ("/proc/self/exe".into(), "regular file"),
    ] {
        let error = Netns::open_sandbox(&path, &host).unwrap_err();
        assert_eq!(error.reason(), "NotANetworkNamespace");
        let text = error.to_string();
        assert!(text.contains(expected) && text.contains(path.to_str().unwrap()), "{text}");
    }
    Netns::open_sandbox(&pod.path, &host).unwrap();
}

#[test]
fn delete_removes_only_the_name_of_a_namespace() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("precious");
    std::fs::write(&path, "data").unwrap();
    assert!(Netns::delete(&path).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"data");
    Netns::delete(Path::new("/run/netns/knit-never-made")).unwrap();
    let taken = Named::create();
    assert_eq!(Netns::create(&taken.path).unwrap_err().errno(), Some(Errno::EEXIST));
    assert!(Netns::open(&taken.path).is_ok(), "the existing namespace keeps its name");
}

#[test]
fn cookies_are_unique_and_stable() {
    let (one, other) = (Named::create(), Named::create());
    let cookie = one.netns.cookie().unwrap();
    assert_ne!(cookie, other.netns.cookie().unwrap());
    assert_eq!(cookie, Netns::open(&one.path).unwrap().cookie().unwrap());
    assert_eq!(cookie, one.socket().netns_cookie().unwrap());
}

#[test]
fn entering_a_namespace_moves_only_a_new_thread() {
    let home = Netns::current().unwrap();
    let pod = Netns::unnamed().unwrap();
    let inside = pod.enter(Netns::current).unwrap().unwrap();
    assert!(inside.is_same(&pod).unwrap());
    for _ in 0..20 {
        assert_eq!(links(&mut Socket::open_in(&pod, Protocol::Route).unwrap()).len(), 1, "only lo");
    }
    assert!(Netns::current().unwrap().is_same(&home).unwrap());
    // The switching thread is back in its namespace; threads of other tests may be in others.
    let mut switching_threads = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if name.trim() == "knit-netns-sw" {
            wait_until_home(&task.path().join("ns/net"), &home);
            switching_threads += 1;
        }
    }
    assert!(switching_threads > 0, "the namespace was entered by another thread");
}

/// The thread may be serving a request of another test.
fn wait_until_home(namespace: &Path, home: &Netns) {
    let is_home = (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(1));
        Netns::open(namespace).is_ok_and(|found| found.is_same(home).unwrap_or(false))
    });
    assert!(is_home, "the switching thread is in the process's namespace between requests");
}

#[test]
fn the_namespace_of_a_process_is_found_until_it_ends() {
    let home = Netns::current().unwrap();
    assert!(Netns::of_process(std::process::id()).unwrap().is_same(&home).unwrap());
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = child.id();
    child.wait().unwrap();
    let error = Netns::of_process(pid).unwrap_err();
    assert!(error.to_string().contains("gone") || error.to_string().contains("no such file"), "{error}");
}
