//! The CRI v1 calls that start and stop a pod, over one connection, like a kubelet.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use prost::Message;
use tokio::runtime::Runtime;
use tonic::Request;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

const DEADLINE: Duration = Duration::from_secs(60);

#[derive(Clone, PartialEq, Message)]
struct RunRequest {
    #[prost(message, optional, tag = "1")]
    config: Option<PodConfig>,
}

#[derive(Clone, PartialEq, Message)]
struct PodConfig {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Metadata>,
    #[prost(btree_map = "string, string", tag = "6")]
    labels: BTreeMap<String, String>,
    #[prost(message, optional, tag = "8")]
    linux: Option<Linux>,
}

#[derive(Clone, PartialEq, Message)]
struct Metadata {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    uid: String,
    #[prost(string, tag = "3")]
    namespace: String,
}

#[derive(Clone, PartialEq, Message)]
struct Linux {
    #[prost(string, tag = "1")]
    cgroup_parent: String,
}

/// The response of `RunPodSandbox`, and the request for stopping, removing and status.
#[derive(Clone, PartialEq, Message)]
struct PodId {
    #[prost(string, tag = "1")]
    id: String,
}

#[derive(Clone, PartialEq, Message)]
struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<Status>,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    /// 0 is ready.
    #[prost(int32, tag = "3")]
    state: i32,
    #[prost(message, optional, tag = "5")]
    network: Option<Network>,
}

#[derive(Clone, PartialEq, Message)]
struct Network {
    #[prost(string, tag = "1")]
    ip: String,
}

#[derive(Clone, PartialEq, Message)]
struct Empty {}

/// A pod that is ready.
#[derive(Clone, Debug)]
pub struct Sandbox {
    /// Its id in the runtime.
    pub id: String,
    /// Its first address.
    pub address: IpAddr,
}

/// A connected client of a node's container runtime.
pub struct Cri {
    runtime: Runtime,
    connection: Connection,
}

/// Clones share the connection.
#[derive(Clone)]
struct Connection {
    channel: Channel,
    cgroup: String,
}

impl Cri {
    /// Connects; pods are created below this cgroup.
    pub fn connect(socket: &Path, cgroup: String) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?.timeout(DEADLINE);
        let channel = runtime
            .block_on(endpoint.connect())
            .with_context(|| format!("no runtime answers on {}", socket.display()))?;
        Ok(Self { runtime, connection: Connection { channel, cgroup } })
    }

    /// Starts a pod, and returns once the runtime reports that it is ready and has an address.
    pub fn run(&self, name: &str) -> Result<Sandbox> {
        self.runtime.block_on(self.connection.run(name, BTreeMap::new()))
    }

    /// The same with a label.
    pub fn run_labelled(&self, name: &str, label: (&str, &str)) -> Result<Sandbox> {
        let labels = BTreeMap::from([(label.0.to_owned(), label.1.to_owned())]);
        self.runtime.block_on(self.connection.run(name, labels))
    }

    /// Starts a pod and removes it; returns how long each took.
    pub fn time_sandbox(&self, name: &str) -> Result<(Duration, Duration)> {
        let start = Instant::now();
        let sandbox = self.run(name)?;
        let (started, start) = (start.elapsed(), Instant::now());
        self.remove(&sandbox.id)?;
        Ok((started, start.elapsed()))
    }

    /// The process that holds the namespaces of a running pod.
    pub fn process(&self, socket: &Path, id: &str) -> Result<u32> {
        let request = async {
            let (mut runtime, _) = knit_cri::RuntimeClient::connect(socket).await?;
            runtime.sandbox_process(id).await
        };
        match self.runtime.block_on(request)? {
            knit_cri::SandboxProcess::Pid(pid) => Ok(pid),
            other => bail!("sandbox {id} has no process: {other:?}"),
        }
    }

    /// Starts pods concurrently. Returns how long each took.
    pub fn run_all(&self, names: Vec<String>) -> Result<Vec<(Sandbox, Duration)>> {
        self.all(names, |connection, name| async move {
            let start = Instant::now();
            Ok((connection.run(&name, BTreeMap::new()).await?, start.elapsed()))
        })
    }

    /// Stops a pod and removes it.
    pub fn remove(&self, id: &str) -> Result<()> {
        self.runtime.block_on(self.connection.remove(id))
    }

    /// Stops and removes pods concurrently.
    pub fn remove_all(&self, ids: Vec<String>) -> Result<()> {
        self.all(ids, |connection, id| async move { connection.remove(&id).await }).map(drop)
    }

    fn all<T, F>(&self, items: Vec<String>, call: impl Fn(Connection, String) -> F) -> Result<Vec<T>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.runtime.block_on(async {
            let calls: Vec<_> =
                items.into_iter().map(|item| tokio::spawn(call(self.connection.clone(), item))).collect();
            let mut results = Vec::new();
            for call in calls {
                results.push(call.await??);
            }
            Ok(results)
        })
    }
}

impl Connection {
    async fn run(&self, name: &str, labels: BTreeMap<String, String>) -> Result<Sandbox> {
        let (name, namespace) = (name.to_owned(), "bench".to_owned());
        let metadata = Metadata { uid: format!("uid-{name}"), name, namespace };
        let linux = Linux { cgroup_parent: self.cgroup.clone() };
        let config = PodConfig { metadata: Some(metadata), labels, linux: Some(linux) };
        let created: PodId = self.call("RunPodSandbox", RunRequest { config: Some(config) }).await?;
        let response: StatusResponse = self.call("PodSandboxStatus", created.clone()).await?;
        let status = response.status.unwrap_or_default();
        let address = status.network.and_then(|network| network.ip.parse().ok());
        match address.filter(|_| status.state == 0) {
            Some(address) => Ok(Sandbox { id: created.id, address }),
            None => bail!("sandbox {} is not ready, or has no address", created.id),
        }
    }

    async fn remove(&self, id: &str) -> Result<()> {
        let _: Empty = self.call("StopPodSandbox", PodId { id: id.to_owned() }).await?;
        let _: Empty = self.call("RemovePodSandbox", PodId { id: id.to_owned() }).await?;
        Ok(())
    }

    async fn call<A, B>(&self, method: &str, message: A) -> Result<B>
    where
        A: Message + Send + Sync + 'static,
        B: Message + Default + Send + Sync + 'static,
    {
        let path = PathAndQuery::try_from(format!("/runtime.v1.RuntimeService/{method}"))?;
        let mut client = tonic::client::Grpc::new(self.channel.clone());
        client.ready().await.context("the container runtime does not answer")?;
        let codec = ProstCodec::<A, B>::default();
        let response = client.unary(Request::new(message), path, codec).await;
        Ok(response.map_err(|status| anyhow::anyhow!("{method}: {}", status.message()))?.into_inner())
    }
}
