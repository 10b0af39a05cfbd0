//! A measured node: a client pod, and two pods that are backends of Services.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use knit_kernel::Netns;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};

use super::objects::{ENDPOINT_PORT, Endpoint};
use crate::primary::node::Node;
use knit_soak::harness::{KnitCluster, wait_until};
use knit_testcluster::node_name;

/// How long the container runtime may take until it has read its configuration and started a pod.
const POD_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a connection that the client has may take until the backend has it.
const ACCEPT_TIMEOUT_MS: u16 = 5_000;
/// The range of cluster IPs. Without a route, what a proxy does not translate would leave the node.
const CLUSTER_IPS: &str = "10.96.0.0/16";

/// A node and its pods. The pods have no programs: both ends of a connection are sockets of this process.
pub struct ServiceNode {
    /// The node's number in the cluster.
    pub number: u8,
    /// The network namespace of the client's pod.
    pub client: Netns,
    /// The backends.
    pub backends: [Backend; 2],
}

/// A pod that listens.
pub struct Backend {
    /// The pod's address.
    pub address: IpAddr,
    listener: TcpListener,
    node: u8,
}

/// A connection that was answered.
pub struct Answer {
    /// The index of the backend.
    pub backend: usize,
    /// When the client had the connection.
    pub at: Instant,
}

impl ServiceNode {
    /// Starts the pods. The node has a CNI plugin.
    pub fn start(knit: &KnitCluster, number: u8) -> Result<Self> {
        knit.on_node(number, &["ip", "route", "add", "unreachable", CLUSTER_IPS])?;
        let node = Node::open(knit.cluster(), number)?;
        let start = |name: &str| -> Result<_> {
            let pod =
                wait_until(&format!("pod {name} starts on {}", node_name(number)), POD_TIMEOUT, || {
                    Ok(node.cri.run(name).map_err(|error| format!("{error:#}")))
                })?;
            Ok((node.netns_of(&pod)?, pod.address))
        };
        let backend = |name: &str| {
            let (netns, address) = start(name)?;
            let listener = netns.enter(|| TcpListener::bind((address, ENDPOINT_PORT)))?;
            let listener = listener.with_context(|| format!("cannot listen at {address}"))?;
            anyhow::Ok(Backend { address, listener, node: number })
        };
        let (client, _) = start("client")?;
        Ok(Self { number, client, backends: [backend("backend-a")?, backend("backend-b")?] })
    }

    /// Connects once, from the calling thread, which is in the client's network namespace. There is no answer if nothing
    /// translates the destination, or to a backend that does not exist.
    pub fn connect(&self, destination: SocketAddr, timeout: Duration) -> Result<Option<Answer>> {
        let connection = match TcpStream::connect_timeout(&destination, timeout) {
            Ok(connection) => connection,
            Err(error) => match error.kind() {
                ErrorKind::ConnectionRefused
                | ErrorKind::ConnectionReset
                | ErrorKind::HostUnreachable
                | ErrorKind::NetworkUnreachable
                | ErrorKind::PermissionDenied
                | ErrorKind::TimedOut => return Ok(None),
                _ => return Err(error).with_context(|| format!("cannot connect to {destination}")),
            },
        };
        let at = Instant::now();
        let backend = self.accept()?;
        reset(&connection)?;
        Ok(Some(Answer { backend, at }))
    }

    /// Which backend has the next connection.
    fn accept(&self) -> Result<usize> {
        let mut ready =
            self.backends.each_ref().map(|backend| PollFd::new(backend.listener.as_fd(), PollFlags::POLLIN));
        poll(&mut ready, PollTimeout::from(ACCEPT_TIMEOUT_MS)).context("cannot wait for a connection")?;
        let ready = ready.iter().position(|one| one.any() == Some(true));
        let Some(backend) = ready else { bail!("a connection was answered, but by no backend") };
        self.backends[backend].listener.accept().context("cannot accept a connection")?;
        Ok(backend)
    }
}

impl Backend {
    /// The pod as an endpoint of a Service.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint { address: self.address, node: node_name(self.node) }
    }

    /// Where the pod listens.
    pub fn destination(&self) -> SocketAddr {
        (self.address, ENDPOINT_PORT).into()
    }

    /// Where connections to the pod arrive.
    pub fn listener(&self) -> Result<TcpListener> {
        self.listener.try_clone().context("cannot copy a descriptor")
    }
}

/// Ends a connection without TIME_WAIT, which would use up the client's ports.
pub fn reset(connection: &TcpStream) -> Result<()> {
    let linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };
    setsockopt(connection, sockopt::Linger, &linger).context("cannot set SO_LINGER")
}
