//! Package knit.v1.

use std::pin::Pin;

use knit_engine::call::{DetachRequest, DetachScope, GcRequest, GcResult, ManagedNetns};
use knit_engine::{CallId, CallResult, Event, State};
use knit_kni::v1::agent_server::Agent;
use knit_kni::{Reason, RpcError, v1};
use knit_model::problem::Problem;
use knit_model::{Sandbox, SandboxId};
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::request::{self, Checked};
use super::{Services, answer, check, nodes, pods, rejection};
use crate::node::Node;
use crate::standalone::local_api;

/// A response stream.
pub(super) type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Finds the sandbox that a request refers to.
pub(super) fn find(state: &State, pod: &v1::PodRef) -> Checked<Option<SandboxId>> {
    if pod.id.is_empty() && pod.name.is_empty() {
        let message = "pod: set its id, or its name and namespace";
        return Err(RpcError::new(Reason::InvalidValue, message).field("pod"));
    }
    let namespace = if pod.namespace.is_empty() { "default" } else { &pod.namespace };
    let is_match = |sandbox: &&Sandbox| {
        (pod.id.is_empty() || sandbox.id.0 == pod.id)
            && (pod.name.is_empty() || (sandbox.pod == pod.name && sandbox.namespace == namespace))
    };
    if !pod.id.is_empty() {
        let known = state.sandboxes.get(&SandboxId(pod.id.clone()));
        return Ok(known.filter(is_match).map(|sandbox| sandbox.id.clone()));
    }
    Ok(state.sandboxes.values().find(is_match).map(|sandbox| sandbox.id.clone()))
}

fn failed(problem: &Problem, call: &CallId, object: &str) -> Status {
    rejection(problem, call, object).into()
}

impl Services {
    /// Makes a call and waits for its result.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        call: &CallId,
        object: &str,
        event: Event,
        render: impl FnOnce(&Node, CallResult) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Status> {
        let rendered = self.handle.call(call.clone(), event, render).await;
        rendered.and_then(|rendered| rendered).map_err(|problem| failed(&problem, call, object))
    }

    /// The plan of an event, as a dry run.
    async fn dry_run(&self, call: &CallId, object: &str, event: Event) -> Result<v1::Plan, Status> {
        let result = self.handle.query(move |node| node.dry_run([event])).await;
        let result = result.map_err(|problem| failed(&problem, call, object))?;
        let (_, outcome) =
            result.map_err(|why| Status::from(RpcError::new(Reason::Internal, why.to_string())))?;
        for (_, answer) in outcome.answers {
            if let CallResult::Failed(problem) = answer {
                return Err(failed(&problem, call, object));
            }
        }
        Ok(local_api::plan(&local_api::merged(&outcome.plans)))
    }

    pub(super) async fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut Node) -> Checked<T> + Send + 'static,
    ) -> Result<T, Status> {
        let result = self.handle.query(query).await;
        let result =
            result.map_err(|problem| Status::from(rejection(&problem, &CallId(String::new()), "")))?;
        Ok(result?)
    }

    async fn find(&self, pod: Option<v1::PodRef>) -> Result<Option<SandboxId>, Status> {
        let pod = pod.unwrap_or_default();
        self.query(move |node| find(node.state(), &pod)).await
    }
}

#[tonic::async_trait]
impl Agent for Services {
    type WatchStream = Answers<v1::WatchEvent>;
    type LogsStream = Answers<v1::LogLine>;

    async fn create_sandbox(
        &self,
        request: Request<v1::CreateSandboxRequest>,
    ) -> Result<Response<v1::CreateSandboxResponse>, Status> {
        let call = self.call_id(request.metadata());
        let v1::CreateSandboxRequest { sandbox, netns_dir, fail_if_present } = request.into_inner();
        let mut sandbox_request = request::sandbox(sandbox)?;
        let object = format!("sandbox {}", sandbox_request.id);
        let id = SandboxId(sandbox_request.id.clone());
        let known = {
            let id = id.clone();
            self.query(move |node| Ok(node.state().sandboxes.get(&id).cloned())).await?
        };
        if known.is_some() && fail_if_present {
            let message = format!("{object} already exists");
            return Err(RpcError::new(Reason::AlreadyPresent, message).about(object).call(&call.0).into());
        }
        let creates_netns =
            sandbox_request.netns.is_empty() && sandbox_request.machine.is_none() && known.is_none();
        if creates_netns {
            let default = self.info.netns_dir.display().to_string();
            let of = [
                sandbox_request.namespace.as_str(),
                sandbox_request.pod.as_str(),
                sandbox_request.id.as_str(),
            ];
            sandbox_request.netns = request::netns_path_for(&netns_dir, &default, of)?;
            let domain = ManagedNetns {
                path: sandbox_request.netns.clone(),
                pod: sandbox_request.pod.clone(),
                namespace: sandbox_request.namespace.clone(),
                uid: sandbox_request.uid.clone(),
            };
            let event = Event::NetnsRequested { call: call.clone(), netns: domain };
            self.call(&call, &object, event, |_, answer| ok(answer)).await?;
        }
        let path = sandbox_request.netns.clone();
        let attach = knit_engine::AttachRequest {
            call: call.clone(),
            dialect: knit_model::provenance::Dialect::Kni,
            sandbox: sandbox_request,
            interfaces: Vec::new(),
            metadata: Default::default(),
            fail_if_present: false,
            ticket: 0,
            started_at: 0,
        };
        let pod = {
            let id = id.clone();
            let seen = move |node: &Node, answer| ok(answer).map(|_| pods::pod(node.state(), &id));
            self.call(&call, &object, Event::AttachRequested(Box::new(attach)), seen).await
        };
        if pod.is_err() && creates_netns {
            let event = Event::NetnsRemovalRequested { call: call.clone(), path };
            self.call(&call, &object, event, |_, answer| ok(answer)).await?;
        }
        let message =
            v1::CreateSandboxResponse { pod: pod?, created: known.is_none(), call_id: call.0.clone() };
        Ok(answer(&call, message))
    }

    async fn delete_sandbox(
        &self,
        request: Request<v1::DeleteSandboxRequest>,
    ) -> Result<Response<v1::DeleteSandboxResponse>, Status> {
        let call = self.call_id(request.metadata());
        let found = self.find(request.into_inner().pod).await?;
        let deleted = found.is_some();
        if let Some(id) = found {
            let object = format!("sandbox {id}");
            let detach = DetachRequest {
                call: call.clone(),
                sandbox: id,
                netns: String::new(),
                scope: DetachScope::Sandbox,
                forget_sandbox: false,
                started_at: 0,
            };
            self.call(&call, &object, Event::DetachRequested(detach), |_, answer| ok(answer)).await?;
            tracing::info!(call = %call, %object, "deleted");
        }
        Ok(answer(&call, v1::DeleteSandboxResponse { deleted, call_id: call.0.clone() }))
    }

    async fn attach(
        &self,
        request: Request<v1::AttachRequest>,
    ) -> Result<Response<v1::AttachResponse>, Status> {
        let call = self.call_id(request.metadata());
        let dry_run = request.get_ref().dry_run;
        let attach = request::attach(&call, request.into_inner())?;
        let id = SandboxId(attach.sandbox.id.clone());
        let object = format!("sandbox {id}");
        let names: Vec<String> = attach.interfaces.iter().map(|(name, ..)| name.to_string()).collect();
        let event = Event::AttachRequested(Box::new(attach));
        if dry_run {
            let plan = Some(self.dry_run(&call, &object, event).await?);
            let pod = self.query(move |node| Ok(pods::pod(node.state(), &id))).await?;
            let (interfaces, call_id) = (names, call.0.clone());
            let message = v1::AttachResponse { pod, interfaces, plan, call_id, ..Default::default() };
            return Ok(answer(&call, message));
        }
        let mine = call.0.clone();
        let seen = move |node: &Node, answer| {
            let interfaces = match ok(answer)? {
                CallResult::Attached { interfaces, .. } => interfaces,
                CallResult::ChainAttached => return Ok((pods::pod(node.state(), &id), true)),
                _ => return Ok((None, false)),
            };
            let is_mine = |why: &knit_model::Provenance| why.call.as_deref() == Some(mine.as_str());
            let changed = interfaces.iter().any(|(attachment, _)| is_mine(&attachment.origin));
            Ok((pods::pod(node.state(), &id), changed))
        };
        let (pod, changed) = self.call(&call, &object, event, seen).await?;
        tracing::info!(call = %call, %object, ifname = %names.join(","), changed, "attached");
        let call_id = call.0.clone();
        let message =
            v1::AttachResponse { pod, interfaces: names, changed, plan: None, warnings: Vec::new(), call_id };
        Ok(answer(&call, message))
    }

    async fn detach(
        &self,
        request: Request<v1::DetachRequest>,
    ) -> Result<Response<v1::DetachResponse>, Status> {
        let call = self.call_id(request.metadata());
        let v1::DetachRequest { pod, interfaces, all, dry_run, netns_path, forget, began } =
            request.into_inner();
        let which = request::detach_scope(&interfaces, all).map_err(|refusal| refusal.call(&call.0))?;
        let call_id = call.0.clone();
        let netns = request::path("netns_path", &netns_path)?;
        // The detach also cancels an attach that is still to come.
        let named = pod.as_ref().map(|pod| pod.id.clone()).filter(|id| began > 0 && !id.is_empty());
        let Some(id) = self.find(pod).await?.or(named.map(SandboxId)) else {
            return Ok(answer(&call, v1::DetachResponse { call_id, ..Default::default() }));
        };
        let object = format!("sandbox {id}");
        let detached = {
            let (id, which) = (id.clone(), which.clone());
            let is_match = move |name: &knit_model::IfName| match &which {
                DetachScope::Interfaces(names) => names.contains(name),
                _ => true,
            };
            self.query(move |node| {
                let called = &node.state().attachments;
                let chained = called.all_chained().filter(|attachment| attachment.sandbox == id);
                let attachment = called.of(&id).map(|attachment| &attachment.interface);
                let attachment = attachment.chain(chained.map(|attachment| &attachment.interface));
                Ok(attachment.filter(|name| is_match(name)).map(ToString::to_string).collect::<Vec<_>>())
            })
            .await?
        };
        let detach = DetachRequest {
            call: call.clone(),
            sandbox: id,
            netns,
            scope: which,
            forget_sandbox: forget,
            started_at: began,
        };
        let event = Event::DetachRequested(detach);
        if dry_run {
            let plan = Some(self.dry_run(&call, &object, event).await?);
            return Ok(answer(&call, v1::DetachResponse { detached, plan, call_id }));
        }
        self.call(&call, &object, event, |_, answer| ok(answer)).await?;
        tracing::info!(call = %call, %object, ifname = %detached.join(","), "detached");
        Ok(answer(&call, v1::DetachResponse { detached, plan: None, call_id }))
    }

    async fn get_pod(
        &self,
        request: Request<v1::GetPodRequest>,
    ) -> Result<Response<v1::GetPodResponse>, Status> {
        let reference = request.into_inner().pod.unwrap_or_default();
        let pod = self
            .query(move |node| {
                let found = find(node.state(), &reference)?.and_then(|id| pods::pod(node.state(), &id));
                found.ok_or_else(|| unknown_pod(&reference, ""))
            })
            .await?;
        Ok(Response::new(v1::GetPodResponse { pod: Some(pod) }))
    }

    async fn check_pod(
        &self,
        request: Request<v1::CheckPodRequest>,
    ) -> Result<Response<v1::CheckPodResponse>, Status> {
        let pod = request.into_inner().pod.unwrap_or_default();
        let id = self.find(Some(pod.clone())).await?.ok_or_else(|| unknown_pod(&pod, ""))?;
        let differences = self.query(move |node| check::differences(node, &id)).await?;
        let in_sync = differences.is_empty();
        Ok(Response::new(v1::CheckPodResponse { in_sync, differences }))
    }

    async fn list_pods(
        &self,
        request: Request<v1::ListPodsRequest>,
    ) -> Result<Response<v1::ListPodsResponse>, Status> {
        let v1::ListPodsRequest { namespace, network, labels, without_extension } = request.into_inner();
        if !without_extension.is_empty() {
            super::extensions::name("without_extension", &without_extension)?;
        }
        let epoch = self.handle.epoch().to_owned();
        let message = self
            .query(move |node| {
                let state = node.state();
                let is_match = |sandbox: &&Sandbox| {
                    let has = |(key, value): (&String, &String)| sandbox.labels.get(key) == Some(value);
                    (namespace.is_empty() || sandbox.namespace == namespace) && labels.iter().all(has)
                };
                let mut listed: Vec<v1::Pod> = state
                    .sandboxes
                    .values()
                    .filter(is_match)
                    .filter(|sandbox| {
                        without_extension.is_empty()
                            || state.without_extension(&sandbox.id, &without_extension).is_some()
                    })
                    .filter_map(|sandbox| pods::pod(state, &sandbox.id))
                    .filter(|pod| {
                        network.is_empty() || pod.interfaces.iter().any(|one| one.network == network)
                    })
                    .collect();
                listed
                    .sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
                let position = Some(v1::Position { epoch, sequence: node.last_seq().0 });
                Ok(v1::ListPodsResponse { pods: listed, position })
            })
            .await?;
        Ok(Response::new(message))
    }

    async fn get_node(
        &self,
        _request: Request<v1::GetNodeRequest>,
    ) -> Result<Response<v1::GetNodeResponse>, Status> {
        let (about, epoch) = (self.info.clone(), self.handle.epoch().to_owned());
        let node = self.query(move |node| Ok(nodes::node(node, &about, &epoch))).await?;
        Ok(Response::new(v1::GetNodeResponse { node: Some(node) }))
    }

    async fn list_networks(
        &self,
        request: Request<v1::ListNetworksRequest>,
    ) -> Result<Response<v1::ListNetworksResponse>, Status> {
        let namespace = request.into_inner().namespace;
        let epoch = self.handle.epoch().to_owned();
        let message = self
            .query(move |node| {
                let is_match = |network: &v1::Network| {
                    namespace.is_empty() || network.namespace.is_empty() || network.namespace == namespace
                };
                let networks = nodes::all_networks(node.state()).into_iter().filter(is_match).collect();
                let position = Some(v1::Position { epoch, sequence: node.last_seq().0 });
                Ok(v1::ListNetworksResponse { networks, position })
            })
            .await?;
        Ok(Response::new(message))
    }

    async fn get_readiness(
        &self,
        request: Request<v1::GetReadinessRequest>,
    ) -> Result<Response<v1::GetReadinessResponse>, Status> {
        let requested = request.into_inner().pod;
        let mut message = self
            .query(move |node| {
                let state = node.state();
                let only = requested.map(|pod| find(state, &pod)).transpose()?;
                let is_match = |sandbox: &&Sandbox| match &only {
                    Some(id) => id.as_ref() == Some(&sandbox.id),
                    None => !pods::readiness(state, sandbox).ready,
                };
                let pods = state.sandboxes.values().filter(is_match).map(|sandbox| v1::PodReadiness {
                    pod: Some(v1::PodRef {
                        id: sandbox.id.0.clone(),
                        name: sandbox.pod.clone(),
                        namespace: sandbox.namespace.clone(),
                    }),
                    readiness: Some(pods::readiness(state, sandbox)),
                });
                let v1::NodeReadiness { node, new_pods } = nodes::readiness(state);
                Ok(v1::GetReadinessResponse { node, new_pods, pods: pods.collect() })
            })
            .await?;
        nodes::add_blockers(message.new_pods.get_or_insert_default(), &self.handle.readiness_blockers());
        Ok(Response::new(message))
    }

    async fn get_capacity(
        &self,
        request: Request<v1::GetCapacityRequest>,
    ) -> Result<Response<v1::GetCapacityResponse>, Status> {
        let v1::GetCapacityRequest { network, namespace } = request.into_inner();
        let message = self
            .query(move |node| {
                let state = node.state();
                let all = crate::capacity::NetworkAddresses::all(state);
                let networks = all.iter().map(|one| nodes::capacity(state, one)).filter(|one| {
                    (network.is_empty() || one.network == network)
                        && (namespace.is_empty() || one.namespace == namespace)
                });
                let reasons = nodes::exhaustion(state);
                let no_more_pods = !reasons.is_empty();
                Ok(v1::GetCapacityResponse { networks: networks.collect(), no_more_pods, reasons })
            })
            .await?;
        Ok(Response::new(message))
    }

    async fn collect_garbage(
        &self,
        request: Request<v1::CollectGarbageRequest>,
    ) -> Result<Response<v1::CollectGarbageResponse>, Status> {
        let call = self.call_id(request.metadata());
        let v1::CollectGarbageRequest { garbage, group, dry_run } = request.into_inner();
        let listed = request::living(garbage).map_err(|refusal| refusal.call(&call.0))?;
        let (living, why) = match listed {
            Some(living) => (living, "not in the list of living attachments"),
            None => {
                let found = self.query(move |node| node.live_attachments().map_err(internal)).await?;
                (found, "its namespace is gone")
            }
        };
        let event = Event::GcRequested(GcRequest { call: call.clone(), alive: living, group });
        let collected: Vec<GcResult> = if dry_run {
            let result = self.query(move |node| node.dry_run([event]).map_err(internal)).await?;
            result.1.answers.into_iter().flat_map(|(_, answer)| collected(answer)).collect()
        } else {
            self.call(&call, "garbage", event, |_, answer| ok(answer).map(collected)).await?
        };
        for one in collected.iter().filter(|_| !dry_run) {
            tracing::info!(call = %call, sandbox = %one.sandbox, interfaces = ?one.interfaces, error = %why, "collected");
        }
        let collected = collected.into_iter().map(|one| v1::Collected {
            sandbox_id: one.sandbox.0,
            name: one.pod.1,
            namespace: one.pod.0,
            interfaces: one.interfaces.iter().map(ToString::to_string).collect(),
            addresses: one.addresses.iter().map(ToString::to_string).collect(),
            why: why.to_owned(),
        });
        let (collected, call_id) = (collected.collect(), call.0.clone());
        Ok(answer(&call, v1::CollectGarbageResponse { collected, plan: None, call_id }))
    }

    async fn list_policies(
        &self,
        request: Request<v1::ListPoliciesRequest>,
    ) -> Result<Response<v1::ListPoliciesResponse>, Status> {
        self.policies_of_node(request.into_inner()).await.map(Response::new)
    }

    async fn get_pod_policies(
        &self,
        request: Request<v1::GetPodPoliciesRequest>,
    ) -> Result<Response<v1::GetPodPoliciesResponse>, Status> {
        self.policies_of_pod(request.into_inner()).await.map(Response::new)
    }

    async fn explain_connection(
        &self,
        request: Request<v1::ExplainConnectionRequest>,
    ) -> Result<Response<v1::ExplainConnectionResponse>, Status> {
        self.explained_connection(request.into_inner()).await.map(Response::new)
    }

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        self.start_watch(request.into_inner()).await.map(Response::new)
    }

    async fn logs(&self, request: Request<v1::LogsRequest>) -> Result<Response<Self::LogsStream>, Status> {
        Ok(Response::new(super::logs::stream(&self.log, request.into_inner(), self.streams.open()?)?))
    }
}

pub(super) fn unknown_pod(pod: &v1::PodRef, place: &str) -> RpcError {
    let name = if pod.id.is_empty() { &pod.name } else { &pod.id };
    RpcError::new(Reason::NotFound, format!("pod {name} not found{place}")).field("pod")
}

/// The result, or the problem of a failed call.
pub(super) fn ok(answer: CallResult) -> Result<CallResult, Problem> {
    match answer {
        CallResult::Failed(problem) => Err(problem),
        done => Ok(done),
    }
}

fn collected(answer: CallResult) -> Vec<GcResult> {
    if let CallResult::Collected(collected) = answer { collected } else { Vec::new() }
}

fn internal(why: crate::error::Error) -> RpcError {
    RpcError::new(Reason::Internal, why.to_string())
}
