//! Against a fake runtime. Its answers are written after what containerd and CRI-O document; no CRI-O was asked.

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
struct Fake;

type Answer<T> = Result<Response<T>, Status>;

fn info(text: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("info".to_owned(), text.to_owned())])
}

#[tonic::async_trait]
impl RuntimeService for Fake {
    async fn version(&self, _: Request<VersionRequest>) -> Answer<VersionResponse> {
        Ok(Response::new(VersionResponse {
            runtime_name: "cri-o".to_owned(),
            runtime_version: "1.33.0".to_owned(),
            ..VersionResponse::default()
        }))
    }

    async fn list_pod_sandbox(&self, _: Request<ListPodSandboxRequest>) -> Answer<ListPodSandboxResponse> {
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
            // A runtime that does not heed the filter.
            sandbox("ended", PodSandboxState::SandboxNotready),
        ];
        Ok(Response::new(ListPodSandboxResponse { items }))
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<PodSandboxStatusRequest>,
    ) -> Answer<PodSandboxStatusResponse> {
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
    ) -> Answer<ListContainersResponse> {
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
    ) -> Answer<ContainerStatusResponse> {
        match request.into_inner().container_id.as_str() {
            "main" => Ok(Response::new(ContainerStatusResponse {
                info: info(r#"{"sandboxID":"dropped","pid":815,"runtimeSpec":{}}"#),
            })),
            _ => Err(Status::not_found("it has just ended")),
        }
    }

    type GetContainerEventsStream =
        Pin<Box<dyn tokio_stream::Stream<Item = Result<ContainerEventResponse, Status>> + Send>>;

    async fn get_container_events(
        &self,
        _: Request<GetEventsRequest>,
    ) -> Answer<Self::GetContainerEventsStream> {
        Ok(Response::new(Box::pin(tokio_stream::iter([Ok(ContainerEventResponse::default())]))))
    }
}

#[tokio::test]
async fn a_sandboxs_process_is_found_in_itself_or_in_its_containers() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("crio.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = Server::builder().add_service(RuntimeServiceServer::new(Fake));
    let served = tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));

    let (mut runtime, version) = Runtime::connect(&socket).await.unwrap();
    assert_eq!(version, "cri-o 1.33.0");
    let running = runtime.running().await.unwrap();
    assert_eq!(running.iter().map(|one| one.uid.as_str()).collect::<Vec<_>>(), ["uid-infra"]);
    for (sandbox, process) in [
        ("infra", Process::Pid(4_711)),
        ("dropped", Process::Pid(815)),
        ("starting", Process::None),
        ("host", Process::Host),
        ("ended", Process::None),
        ("unknown", Process::None),
    ] {
        assert_eq!(runtime.process(sandbox).await.unwrap(), process, "{sandbox}");
    }
    let mut events = runtime.events().await.unwrap();
    assert_eq!(events.next().await.unwrap(), Some(()));
    assert_eq!(events.next().await.unwrap(), None);
    served.abort();

    let why = Runtime::connect(&folder.path().join("nobody.sock")).await.unwrap_err();
    assert!(why.to_string().contains("is it running?"), "{why}");
}
