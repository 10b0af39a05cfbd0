//! Package kni of the KNI proof of concept, with both generations of its method names.

use knit_engine::call::{DetachRequest, DetachScope, ManagedNetns};
use knit_engine::{CallId, CallResult, Event, State};
use knit_kni::kni::kni_server::Kni;
use knit_kni::{RpcError, kni};
use knit_model::{IfName, SandboxId};
use tonic::{Request, Response, Status};

use super::agent::ok;
use super::{Services, answer, nodes, pods, rejection, request};
use crate::node::Node;

impl Services {
    async fn kni_call<T: Send + 'static>(
        &self,
        call: &CallId,
        event: Event,
        render: impl FnOnce(&Node, CallResult) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let seen = move |node: &Node, answer| ok(answer).map(|answer| render(node, answer));
        let outcome = self.handle.call(call.clone(), event, seen).await.and_then(|outcome| outcome);
        outcome.map_err(|problem| rejection(&problem, call, "").into())
    }

    async fn kni_query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut Node) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let result = self.handle.query(query).await;
        result.map_err(|problem| rejection(&problem, &CallId(String::new()), "").into())
    }
}

/// The interfaces of a sandbox, by name.
pub(super) fn configs(state: &State, id: &SandboxId, only: Option<&IfName>) -> Vec<(String, kni::IpConfig)> {
    let Some(pod) = pods::pod(state, id) else { return Vec::new() };
    let is_requested = |name: &str| only.is_none_or(|only| only.as_str() == name);
    let interfaces = pod.interfaces.into_iter().filter(|one| !one.foreign && is_requested(&one.name));
    let config = |one: knit_kni::v1::Interface| {
        let list = |of: fn(&knit_kni::v1::Address) -> String| {
            one.addresses.iter().map(of).filter(|text| !text.is_empty()).collect::<Vec<_>>().join(",")
        };
        let mut extra = vec![
            ("network", one.network.clone()),
            ("mtu", one.mtu.to_string()),
            ("kind", one.kind.clone()),
            ("cidr", list(|address| format!("{}/{}", address.address, address.prefix_length))),
            ("gateway", list(|address| address.gateway.clone())),
            ("hostInterface", one.host_link.clone()),
        ];
        extra.retain(|(_, text)| !text.is_empty());
        let ip = one.addresses.iter().map(|address| address.address.clone()).collect();
        let extradata = extra.into_iter().map(|(key, text)| (key.to_owned(), text)).collect();
        (one.name.clone(), kni::IpConfig { ip, mac: one.mac.clone(), extradata })
    };
    interfaces.map(config).collect()
}

#[tonic::async_trait]
impl Kni for Services {
    async fn create_network(
        &self,
        request: Request<kni::CreateNetworkRequest>,
    ) -> Result<Response<kni::CreateNetworkResponse>, Status> {
        let call = self.call_id(request.metadata());
        let request = request.into_inner();
        if request.name.is_empty() {
            let message = "name: required";
            return Err(RpcError::new(knit_kni::Reason::InvalidValue, message).field("name").into());
        }
        let default = self.info.netns_dir.display().to_string();
        let of = [request.namespace.as_str(), request.name.as_str(), request.uid.as_str()];
        let path = request::netns_path_for(&request.netns_path_prefix, &default, of)?;
        let domain = ManagedNetns {
            path: path.clone(),
            pod: request.name,
            namespace: request.namespace,
            uid: request.uid,
        };
        self.kni_call(&call, Event::NetnsRequested { call: call.clone(), netns: domain }, |_, _| ()).await?;
        tracing::info!(call = %call, netns = %path, "created a network namespace");
        Ok(answer(&call, kni::CreateNetworkResponse { netns_path: path, ..Default::default() }))
    }

    async fn delete_network(
        &self,
        request: Request<kni::DeleteNetworkRequest>,
    ) -> Result<Response<kni::DeleteNetworkResponse>, Status> {
        let call = self.call_id(request.metadata());
        let kni::DeleteNetworkRequest { id, name, namespace, netns_path, .. } = request.into_inner();
        let machine = SandboxId(id.clone());
        let is_machine = {
            let id = machine.clone();
            let is_one = |sandbox: &knit_model::Sandbox| !sandbox.isolation.is_netns();
            self.kni_query(move |node| node.state().sandboxes.get(&id).is_some_and(is_one)).await?
        };
        if is_machine {
            let (netns, which) = (String::new(), DetachScope::Sandbox);
            let detach = DetachRequest {
                call: call.clone(),
                sandbox: machine,
                netns,
                scope: which,
                forget_sandbox: false,
                started_at: 0,
            };
            self.kni_call(&call, Event::DetachRequested(detach), |_, _| ()).await?;
            return Ok(answer(&call, kni::DeleteNetworkResponse {}));
        }
        let known = self
            .kni_query(move |node| {
                let state = node.state();
                let of_id = state.sandboxes.get(&SandboxId(id.clone())).map(|sandbox| sandbox.netns.clone());
                let of_name = || {
                    let mut domains = state.attachments.managed_netns();
                    let is_match = |one: &&ManagedNetns| {
                        !name.is_empty() && one.pod == name && one.namespace == namespace
                    };
                    domains.find(is_match).map(|one| one.path.clone())
                };
                let given = (!netns_path.is_empty()).then_some(netns_path);
                given.or(of_id).or_else(of_name)
            })
            .await?;
        if let Some(path) = known {
            let event = Event::NetnsRemovalRequested { call: call.clone(), path: path.clone() };
            self.kni_call(&call, event, |_, _| ()).await?;
            tracing::info!(call = %call, netns = %path, "deleted a network namespace");
        }
        Ok(answer(&call, kni::DeleteNetworkResponse {}))
    }

    async fn create_isolation_domain(
        &self,
        request: Request<kni::CreateNetworkRequest>,
    ) -> Result<Response<kni::CreateNetworkResponse>, Status> {
        self.create_network(request).await
    }

    async fn delete_isolation_domain(
        &self,
        request: Request<kni::DeleteNetworkRequest>,
    ) -> Result<Response<kni::DeleteNetworkResponse>, Status> {
        self.delete_network(request).await
    }

    async fn attach_interface(
        &self,
        request: Request<kni::AttachInterfaceRequest>,
    ) -> Result<Response<kni::AttachInterfaceResponse>, Status> {
        let call = self.call_id(request.metadata());
        let attach = request::kni_attach(&call, request.into_inner())?;
        let id = SandboxId(attach.sandbox.id.clone());
        let object = format!("sandbox {id}");
        let event = Event::AttachRequested(Box::new(attach));
        let seen = move |node: &Node, answer| {
            let CallResult::Attached { interfaces, .. } = answer else { return Default::default() };
            let only = interfaces.first().map(|(there, _)| there.interface.clone());
            configs(node.state(), &id, only.as_ref()).into_iter().collect()
        };
        let ipconfigs = self.kni_call(&call, event, seen).await?;
        tracing::info!(call = %call, %object, "attached");
        Ok(answer(&call, kni::AttachInterfaceResponse { ipconfigs, ..Default::default() }))
    }

    async fn detach_interface(
        &self,
        request: Request<kni::DetachInterfaceRequest>,
    ) -> Result<Response<kni::DetachInterfaceResponse>, Status> {
        let call = self.call_id(request.metadata());
        let detach = request::kni_detach(&call, &request.into_inner())?;
        let object = format!("sandbox {}", detach.sandbox);
        self.kni_call(&call, Event::DetachRequested(detach), |_, _| ()).await?;
        tracing::info!(call = %call, %object, "detached");
        Ok(answer(&call, kni::DetachInterfaceResponse {}))
    }

    async fn attach_network(
        &self,
        request: Request<kni::AttachInterfaceRequest>,
    ) -> Result<Response<kni::AttachInterfaceResponse>, Status> {
        self.attach_interface(request).await
    }

    async fn detach_network(
        &self,
        request: Request<kni::DetachInterfaceRequest>,
    ) -> Result<Response<kni::DetachInterfaceResponse>, Status> {
        self.detach_interface(request).await
    }

    async fn query_pod_network(
        &self,
        request: Request<kni::QueryPodNetworkRequest>,
    ) -> Result<Response<kni::QueryPodNetworkResponse>, Status> {
        let kni::QueryPodNetworkRequest { name, id, namespace } = request.into_inner();
        let message = self
            .kni_query(move |node| {
                let state = node.state();
                let named = || {
                    let mut all = state.sandboxes.values();
                    all.find(|one| id.is_empty() && one.pod == name && one.namespace == namespace)
                };
                let sandbox = state.sandboxes.get(&SandboxId(id.clone())).or_else(named);
                // An unknown id returns an empty response, as existing clients expect.
                let Some(sandbox) = sandbox else { return kni::QueryPodNetworkResponse::default() };
                let ipconfigs = configs(state, &sandbox.id, None).into_iter().collect();
                let extradata = [("netns".to_owned(), sandbox.netns.clone())].into();
                kni::QueryPodNetworkResponse { ipconfigs, extradata }
            })
            .await?;
        Ok(Response::new(message))
    }

    async fn setup_node_network(
        &self,
        _request: Request<kni::SetupNodeNetworkRequest>,
    ) -> Result<Response<kni::SetupNodeNetworkResponse>, Status> {
        // The agent has configured the node since its start: only its readiness is reported.
        let ready = self.kni_query(|node| nodes::readiness(node.state())).await?;
        let node = ready.node.unwrap_or_default();
        match node.conditions.into_iter().find(|condition| !condition.ok) {
            None => Ok(Response::new(kni::SetupNodeNetworkResponse {})),
            Some(bad) => Err(RpcError::new(knit_kni::Reason::NotReady, bad.message).into()),
        }
    }

    async fn query_node_networks(
        &self,
        _request: Request<kni::QueryNodeNetworksRequest>,
    ) -> Result<Response<kni::QueryNodeNetworksResponse>, Status> {
        let networks = self.kni_query(|node| nodes::all_networks(node.state())).await?;
        let networks = networks.into_iter().map(|one| {
            let free = one.capacity.iter().map(|capacity| capacity.free).min().unwrap_or_default();
            let extradata = [
                ("namespace".to_owned(), one.namespace),
                ("ranges".to_owned(), one.ranges.join(",")),
                ("free".to_owned(), free.to_string()),
            ];
            let ready = one.readiness.is_some_and(|readiness| readiness.ready) && free > 0;
            kni::Network { name: one.name, ready, extradata: extradata.into() }
        });
        let message = kni::QueryNodeNetworksResponse { networks: networks.collect(), ..Default::default() };
        Ok(Response::new(message))
    }
}
