//! Requests of the runtime, and the plugin's responses.

use prost::Message as _;

use crate::proto::nri::{
    ConfigureRequest, ConfigureResponse, Empty, Event, PodSandbox as WirePodSandbox, PodSandboxRequest,
    StateChangeEvent, SynchronizeRequest, SynchronizeResponse,
};
use crate::proto::ttrpc::{Request, Response, Status};
use crate::{Error, PodSandbox, RuntimeInfo};

const SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";
/// `google.rpc.Code` of an unknown method.
const UNIMPLEMENTED: i32 = 12;
/// The maximum number of pods of a node.
const MAX_PODS: usize = 65_536;

/// A request of the runtime.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PluginRequest {
    /// The runtime accepted the plugin.
    Configure(RuntimeInfo),
    /// A batch of existing sandboxes, and whether more follow.
    Synchronize(Vec<PodSandbox>, bool),
    /// A sandbox runs, and the runtime waits.
    RunPodSandbox(PodSandbox),
    /// A sandbox was removed.
    RemovePodSandbox(PodSandbox),
    /// An event that is ignored.
    Ignored,
    /// An unknown method.
    Unknown(String),
}

impl PluginRequest {
    /// Parses a request.
    pub(crate) fn read(payload: &[u8]) -> Result<Self, Error> {
        let Request { service, method, payload } = decode("request", payload)?;
        if service != SERVICE {
            return Ok(Self::Unknown(format!("{service}/{method}")));
        }
        Ok(match method.as_str() {
            "Configure" => {
                let request: ConfigureRequest = decode(&method, &payload)?;
                let version = format!("{} {}", request.runtime_name, request.runtime_version);
                let timeout = u64::try_from(request.request_timeout).ok().filter(|millis| *millis > 0);
                let request_timeout = timeout.map(std::time::Duration::from_millis);
                Self::Configure(RuntimeInfo { version, request_timeout })
            }
            "Synchronize" => {
                let request: SynchronizeRequest = decode(&method, &payload)?;
                Self::Synchronize(request.pods.into_iter().map(PodSandbox::from).collect(), request.more)
            }
            "RunPodSandbox" => Self::RunPodSandbox(pod(&method, &payload)?),
            "RemovePodSandbox" => Self::RemovePodSandbox(pod(&method, &payload)?),
            "StateChange" => {
                let change: StateChangeEvent = decode(&method, &payload)?;
                match (change.event(), change.pod.map(PodSandbox::from)) {
                    (Event::RunPodSandbox, Some(pod)) => Self::RunPodSandbox(pod),
                    (Event::RemovePodSandbox, Some(pod)) => Self::RemovePodSandbox(pod),
                    _ => Self::Ignored,
                }
            }
            "Shutdown" => Self::Ignored,
            _ => Self::Unknown(method),
        })
    }
}

/// Collects the batches of `Synchronize`.
#[derive(Debug, Default)]
pub(crate) struct SynchronizeBatches(Vec<PodSandbox>);

impl SynchronizeBatches {
    /// All sandboxes, if this is the last batch.
    pub(crate) fn add(
        &mut self,
        pods: Vec<PodSandbox>,
        more: bool,
    ) -> Result<Option<Vec<PodSandbox>>, Error> {
        self.0.extend(pods);
        if self.0.len() > MAX_PODS {
            return Err(Error::InvalidMessage { what: format!("{} pods on one node", self.0.len()) });
        }
        Ok((!more).then(|| std::mem::take(&mut self.0)))
    }
}

/// The response to `Configure`: the subscribed events.
pub(crate) fn configure_response() -> Vec<u8> {
    let events = [Event::RunPodSandbox, Event::RemovePodSandbox];
    let events = events.into_iter().fold(0, |mask, event| mask | (1 << (event as i32 - 1)));
    success(&ConfigureResponse { events })
}

/// The response to `Synchronize`, which repeats `more`.
pub(crate) fn synchronize_response(more: bool) -> Vec<u8> {
    success(&SynchronizeResponse { more })
}

/// An empty response.
pub(crate) fn empty_response() -> Vec<u8> {
    success(&Empty {})
}

/// The response to an unknown method. The runtime then uses `StateChange`.
pub(crate) fn unimplemented_response(method: &str) -> Vec<u8> {
    let status = Status { code: UNIMPLEMENTED, message: format!("{method} is not implemented") };
    Response { status: Some(status), payload: Vec::new() }.encode_to_vec()
}

/// Checks the runtime's response to a call.
pub(crate) fn check_response(payload: &[u8]) -> Result<(), Error> {
    let Response { status, .. } = decode("response", payload)?;
    match status.filter(|status| status.code != 0) {
        Some(status) => Err(Error::Rejected { why: status.message }),
        None => Ok(()),
    }
}

fn success(message: &impl prost::Message) -> Vec<u8> {
    Response { status: None, payload: message.encode_to_vec() }.encode_to_vec()
}

fn pod(method: &str, payload: &[u8]) -> Result<PodSandbox, Error> {
    let request: PodSandboxRequest = decode(method, payload)?;
    request
        .pod
        .map(PodSandbox::from)
        .ok_or_else(|| Error::InvalidMessage { what: format!("{method} without a pod") })
}

fn decode<T: prost::Message + Default>(what: &str, payload: &[u8]) -> Result<T, Error> {
    T::decode(payload).map_err(|why| Error::InvalidMessage { what: format!("{what}: {why}") })
}

impl From<WirePodSandbox> for PodSandbox {
    fn from(pod: WirePodSandbox) -> Self {
        let WirePodSandbox { id, name, uid, namespace, labels, annotations, pid } = pod;
        Self { id, uid, namespace, name, labels, annotations, pid }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(service: &str, method: &str, payload: Vec<u8>) -> Vec<u8> {
        Request { service: service.to_owned(), method: method.to_owned(), payload }.encode_to_vec()
    }

    #[test]
    fn state_changes_of_older_runtimes_are_equivalent() {
        let pod = WirePodSandbox { id: "s1".to_owned(), pid: 7, ..WirePodSandbox::default() };
        let read = |method: &str, payload| PluginRequest::read(&request(SERVICE, method, payload)).unwrap();
        let request_payload = PodSandboxRequest { pod: Some(pod.clone()) }.encode_to_vec();
        let change = |event: i32| StateChangeEvent { event, pod: Some(pod.clone()) }.encode_to_vec();
        let expected = PodSandbox::from(pod.clone());
        assert_eq!(
            read("RunPodSandbox", request_payload.clone()),
            PluginRequest::RunPodSandbox(expected.clone())
        );
        assert_eq!(read("StateChange", change(1)), PluginRequest::RunPodSandbox(expected.clone()));
        assert_eq!(
            read("RemovePodSandbox", request_payload),
            PluginRequest::RemovePodSandbox(expected.clone())
        );
        assert_eq!(read("StateChange", change(3)), PluginRequest::RemovePodSandbox(expected));
        // An unknown event.
        assert_eq!(read("StateChange", change(40)), PluginRequest::Ignored);
    }

    #[test]
    fn unknown_methods_are_distinguished_from_invalid_messages() {
        let unknown = PluginRequest::read(&request(SERVICE, "CreateContainer", Vec::new())).unwrap();
        assert_eq!(unknown, PluginRequest::Unknown("CreateContainer".to_owned()));
        assert!(matches!(
            PluginRequest::read(&request("other", "Configure", Vec::new())),
            Ok(PluginRequest::Unknown(_))
        ));
        assert!(PluginRequest::read(&request(SERVICE, "RunPodSandbox", Vec::new())).is_err(), "no pod");
        assert!(PluginRequest::read(&request(SERVICE, "RunPodSandbox", vec![0xff; 9])).is_err());
        assert!(PluginRequest::read(&[0xff; 40]).is_err());
    }

    #[test]
    fn batches_of_pods_are_joined_and_limited() {
        let mut batches = SynchronizeBatches::default();
        let some = |number: usize| vec![PodSandbox::default(); number];
        assert_eq!(batches.add(some(2), true).unwrap(), None);
        assert_eq!(batches.add(some(1), false).unwrap().map(|all| all.len()), Some(3));
        assert_eq!(batches.add(some(1), false).unwrap().map(|all| all.len()), Some(1));
        assert!(batches.add(some(MAX_PODS + 1), true).is_err());
    }
}
