//! A host namespace with a bridge and pods, configured by bare netlink messages.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::Result;
use knit_kernel::netlink::header::LinkHeader;
use knit_kernel::netlink::{Header, Protocol};
use knit_kernel::{Message, Netns, Socket};

use super::messages::{self, Queues};

const BRIDGE: &str = "bench0";

/// A host with a bridge, and pods to attach to it. The calling thread is in the host's namespace.
pub struct NetlinkHost {
    socket: Socket,
    bridge: i32,
    pods: Vec<Netns>,
    queues: Queues,
}

impl NetlinkHost {
    pub fn new(host: &Netns, pods: usize) -> Result<Self> {
        let mut socket = Socket::open_in(host, Protocol::Route)?;
        socket.batch(&[messages::up("lo"), messages::bridge(BRIDGE)])?;
        let bridge = index_of(&mut socket, BRIDGE)?;
        socket.request(messages::address(bridge, gateway(), 16, 0))?;
        let pods = (0..pods).map(|_| Netns::unnamed()).collect::<Result<_, _>>()?;
        Ok(Self { socket, bridge, pods, queues: Queues::Default })
    }

    /// Creates veth pairs with one queue, as Knit does.
    pub fn with_one_queue(self) -> Self {
        Self { queues: Queues::One, ..self }
    }

    pub fn pod(&self, pod: usize) -> &Netns {
        &self.pods[pod]
    }

    /// Replaces the namespace of a pod; returns the old one.
    pub fn replace_pod(&mut self, pod: usize, netns: Netns) -> Netns {
        std::mem::replace(&mut self.pods[pod], netns)
    }

    pub fn pod_socket(&self, pod: usize) -> Result<Socket> {
        Ok(Socket::open_in(&self.pods[pod], Protocol::Route)?)
    }

    /// The smallest request and its response.
    pub fn round_trip(&mut self) -> Result<()> {
        index_of(&mut self.socket, "lo").map(drop)
    }

    /// Creates a veth pair with its peer in the pod.
    pub fn create_veth(&mut self, pod: usize) -> Result<()> {
        let netns = Some(&self.pods[pod]);
        Ok(self.socket.request(messages::veth(&host_end(pod), "eth0", netns, self.queues))?)
    }

    /// Creates a veth pair with both ends in the host.
    pub fn create_veth_in_host(&mut self, pod: usize) -> Result<()> {
        Ok(self.socket.request(messages::veth(&host_end(pod), &peer_name(pod), None, self.queues))?)
    }

    /// Moves the peer from the host into the pod.
    pub fn move_into(&mut self, pod: usize) -> Result<()> {
        let index = index_of(&mut self.socket, &peer_name(pod))?;
        Ok(self.socket.request(messages::move_to(index, &self.pods[pod], "eth0"))?)
    }

    /// Adds the host end to the bridge and sets it up.
    pub fn enslave(&mut self, pod: usize) -> Result<()> {
        Ok(self.socket.request(messages::enslave(&host_end(pod), self.bridge))?)
    }

    /// The messages that configure `eth0` in the pod.
    pub fn configuration(&self, pod: usize) -> Result<Vec<Message>> {
        let index = index_of(&mut self.pod_socket(pod)?, "eth0")?;
        Ok(Self::configuration_messages(pod, index))
    }

    /// A complete attach of a new namespace.
    pub fn attach(&mut self, pod: usize) -> Result<()> {
        self.connect(pod, &Self::configuration_messages)
    }

    /// The same for a namespace in use, where `lo` is already up.
    pub fn attach_to_running(&mut self, pod: usize) -> Result<()> {
        self.connect(pod, &|pod, index| Self::configuration_messages(pod, index).split_off(1))
    }

    fn connect(&mut self, pod: usize, configuration: &dyn Fn(usize, i32) -> Vec<Message>) -> Result<()> {
        self.create_veth(pod)?;
        self.enslave(pod)?;
        let mut socket = self.pod_socket(pod)?;
        let index = index_of(&mut socket, "eth0")?;
        Ok(socket.batch(&configuration(pod, index))?)
    }

    /// Connects every pod's link to the bridge, in two datagrams.
    pub fn connect_all(&mut self) -> Result<()> {
        let pods = self.pods.iter().enumerate();
        let veths: Vec<_> = pods
            .map(|(pod, netns)| messages::veth(&host_end(pod), "eth0", Some(netns), self.queues))
            .collect();
        self.socket.batch(&veths)?;
        let enslaves: Vec<_> =
            (0..self.pods.len()).map(|pod| messages::enslave(&host_end(pod), self.bridge)).collect();
        Ok(self.socket.batch(&enslaves)?)
    }

    pub fn delete(&mut self, pod: usize) -> Result<()> {
        Ok(self.socket.request(messages::delete(&host_end(pod)))?)
    }

    /// Deletes the links of all pods at once.
    pub fn delete_group(&mut self) -> Result<()> {
        Ok(self.socket.request(messages::delete_group())?)
    }

    fn configuration_messages(pod: usize, index: i32) -> Vec<Message> {
        let [a, b, _, _] = GATEWAY;
        let address = Ipv4Addr::new(a, b, (pod / 250) as u8 + 1, (pod % 250) as u8 + 1);
        vec![
            messages::up("lo"),
            messages::up("eth0"),
            messages::address(index, address.into(), 16, 0),
            messages::default_route(index, gateway()),
        ]
    }
}

/// The index of a link.
pub fn index_of(socket: &mut Socket, name: &str) -> Result<i32> {
    Ok(socket.request_reply(messages::get(name), |_, body| Some(LinkHeader::decode(body)?.index))?)
}

const GATEWAY: [u8; 4] = [10, 88, 0, 1];

fn gateway() -> IpAddr {
    GATEWAY.into()
}

fn host_end(pod: usize) -> String {
    format!("h{pod}")
}

fn peer_name(pod: usize) -> String {
    format!("p{pod}")
}
