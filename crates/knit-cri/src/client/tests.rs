//! Tests with a fake runtime. Its responses follow the documentation of containerd and CRI-O; they are not recorded.

use std::collections::BTreeMap;
use std::pin::Pin;

use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::*;
use crate::proto::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use crate::proto::*;

/// A runtime with four sandboxes.
struct FakeRuntime;

type Reply<T> = Result<Response<T>, Status>;

fn info(text: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("info".to_owned(), text.to_owned())])
}

#[tonic::async_trait]
impl RuntimeService for FakeRuntime {
    async fn version(&self, _: Request<VersionRequest>) -> Reply<VersionResponse> {
        Ok(Response::new(VersionResponse {
            runtime_name: "cri-o".to_owned(),
            runtime_version: "1.33.0".to_owned(),
            ..VersionResponse::default()
        }))
    }

    async fn list_pod_sandbox(&self, _: Request<ListPodSandboxRequest>) -> Reply<ListPodSandboxResponse> {
        let sandbox = |id: &str, state: PodSandboxState| PodSandbox {
            id: id.to_owned(),
            metadata: Some(PodSandboxMetadata {
                name: format!("pod-{id}"),
                uid: format!("uid-{id}"),
                namespace: "default".to_owned(),
                attempt: 1,
            }),
            state: state.into(),
        };
        let items = vec![
            sandbox("infra", PodSandboxState::SandboxReady),
            // Some runtimes ignore the filter.
            sandbox("ended", PodSandboxState::SandboxNotready),
        ];
        Ok(Response::new(ListPodSandboxResponse { items }))
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<PodSandboxStatusRequest>,
    ) -> Reply<PodSandboxStatusResponse> {
        let id = request.into_inner().pod_sandbox_id;
        let (state, network, text) = match id.as_str() {
            "infra" => (PodSandboxState::SandboxReady, NamespaceMode::Pod, r#"{"pid":4711}"#),
            "dropped" | "starting" => {
                (PodSandboxState::SandboxReady, NamespaceMode::Pod, r#"{"image":"","pid":0}"#)
            }
            "host" => (PodSandboxState::SandboxReady, NamespaceMode::Node, r#"{"pid":1}"#),
            "ended" => (PodSandboxState::SandboxNotready, NamespaceMode::Pod, r#"{"pid":4711}"#),
            _ => return Err(Status::not_found("no such sandbox")),
        };
        let options = Some(NamespaceOption { network: network.into() });
        let linux = Some(LinuxPodSandboxStatus { namespaces: Some(Namespace { options }) });
        let status = PodSandboxStatus { id, metadata: None, state: state.into(), linux };
        Ok(Response::new(PodSandboxStatusResponse { status: Some(status), info: info(text) }))
    }

    async fn list_containers(
        &self,
        request: Request<ListContainersRequest>,
    ) -> Reply<ListContainersResponse> {
        let pod_sandbox_id = request.into_inner().filter.unwrap_or_default().pod_sandbox_id;
        let container = |id: &str| Container {
            id: id.to_owned(),
            pod_sandbox_id: pod_sandbox_id.clone(),
            state: ContainerState::ContainerRunning.into(),
        };
        let containers =
            if pod_sandbox_id == "dropped" { vec![container("gone"), container("main")] } else { Vec::new() };
        Ok(Response::new(ListContainersResponse { containers }))
    }

    async fn container_status(
        &self,
        request: Request<ContainerStatusRequest>,
    ) -> Reply<ContainerStatusResponse> {
        match request.into_inner().container_id.as_str() {
            "main" => Ok(Response::new(ContainerStatusResponse {
                info: info(r#"{"sandboxID":"dropped","pid":815,"runtimeSpec":{}}"#),
            })),
            _ => Err(Status::not_found("the container exited")),
        }
    }

    type GetContainerEventsStream =
        Pin<Box<dyn tokio_stream::Stream<Item = Result<ContainerEventResponse, Status>> + Send>>;

    async fn get_container_events(
        &self,
        _: Request<GetEventsRequest>,
    ) -> Reply<Self::GetContainerEventsStream> {
        Ok(Response::new(Box::pin(tokio_stream::iter([Ok(ContainerEventResponse::default())]))))
    }
}

#[tokio::test]
async fn the_process_of_a_sandbox_is_found_in_itself_or_in_its_containers() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("crio.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = Server::builder().add_service(RuntimeServiceServer::new(FakeRuntime));
    let served = tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));

    let (mut runtime, version) = RuntimeClient::connect(&socket).await.unwrap();
    assert_eq!(version, "cri-o 1.33.0");
    let running = runtime.running_sandboxes().await.unwrap();
    assert_eq!(running.iter().map(|one| one.uid.as_str()).collect::<Vec<_>>(), ["uid-infra"]);
    for (sandbox, process) in [
        ("infra", SandboxProcess::Pid(4_711)),
        ("dropped", SandboxProcess::Pid(815)),
        ("starting", SandboxProcess::None),
        ("host", SandboxProcess::Host),
        ("ended", SandboxProcess::None),
        ("unknown", SandboxProcess::None),
    ] {
        assert_eq!(runtime.sandbox_process(sandbox).await.unwrap(), process, "{sandbox}");
    }
    let mut events = runtime.events().await.unwrap();
    assert_eq!(events.next().await.unwrap(), Some(()));
    assert_eq!(events.next().await.unwrap(), None);
    served.abort();

    let why = RuntimeClient::connect(&folder.path().join("missing.sock")).await.unwrap_err();
    assert!(why.to_string().contains("is it running?"), "{why}");
}
