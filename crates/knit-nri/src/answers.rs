//! What the runtime asks the plugin, and what it is answered.

use prost::Message as _;

use crate::proto::nri::{
    ConfigureRequest, ConfigureResponse, Empty, Event, PodSandbox, PodSandboxRequest, StateChangeEvent,
    SynchronizeRequest, SynchronizeResponse,
};
use crate::proto::ttrpc::{Request, Response, Status};
use crate::{Error, Pod, Runtime};

const SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";
/// The code for a method that is not there (`google.rpc.Code`).
const UNIMPLEMENTED: i32 = 12;
/// More pods than any node has.
const MOST_PODS: usize = 65_536;

/// What the runtime wants.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// It has taken the plugin.
    Configure(Runtime),
    /// It tells of some of its pods; whether more follow.
    Synchronize(Vec<Pod>, bool),
    /// A sandbox runs, and it waits.
    Starts(Pod),
    /// A sandbox is gone.
    Removed(Pod),
    /// It tells something that nothing follows from.
    Nothing,
    /// It asks for what is not there.
    Unknown(String),
}

impl Asked {
    /// What a request asks for.
    pub(crate) fn read(payload: &[u8]) -> Result<Self, Error> {
        let Request { service, method, payload } = decode("request", payload)?;
        if service != SERVICE {
            return Ok(Self::Unknown(format!("{service}/{method}")));
        }
        Ok(match method.as_str() {
            "Configure" => {
                let asked: ConfigureRequest = decode(&method, &payload)?;
                let title = format!("{} {}", asked.runtime_name, asked.runtime_version);
                let waits = u64::try_from(asked.request_timeout).ok().filter(|millis| *millis > 0);
                Self::Configure(Runtime { title, waits: waits.map(std::time::Duration::from_millis) })
            }
            "Synchronize" => {
                let asked: SynchronizeRequest = decode(&method, &payload)?;
                Self::Synchronize(asked.pods.into_iter().map(Pod::from).collect(), asked.more)
            }
            "RunPodSandbox" => Self::Starts(pod(&method, &payload)?),
            "RemovePodSandbox" => Self::Removed(pod(&method, &payload)?),
            "StateChange" => {
                let told: StateChangeEvent = decode(&method, &payload)?;
                match (told.event(), told.pod.map(Pod::from)) {
                    (Event::RunPodSandbox, Some(pod)) => Self::Starts(pod),
                    (Event::RemovePodSandbox, Some(pod)) => Self::Removed(pod),
                    _ => Self::Nothing,
                }
            }
            "Shutdown" => Self::Nothing,
            _ => Self::Unknown(method),
        })
    }
}

/// Pods that came in part, until the last of them has come.
#[derive(Debug, Default)]
pub(crate) struct Gathered(Vec<Pod>);

impl Gathered {
    /// All pods, if these are the last.
    pub(crate) fn add(&mut self, pods: Vec<Pod>, more: bool) -> Result<Option<Vec<Pod>>, Error> {
        self.0.extend(pods);
        if self.0.len() > MOST_PODS {
            return Err(Error::Unclear { what: format!("{} pods of one node", self.0.len()) });
        }
        Ok((!more).then(|| std::mem::take(&mut self.0)))
    }
}

/// The answer to `Configure`: what the plugin wants to be told.
pub(crate) fn configured() -> Vec<u8> {
    let events = [Event::RunPodSandbox, Event::RemovePodSandbox];
    let events = events.into_iter().fold(0, |mask, event| mask | (1 << (event as i32 - 1)));
    answered(&ConfigureResponse { events })
}

/// The answer to `Synchronize`: whether more may follow is said back.
pub(crate) fn synchronized(more: bool) -> Vec<u8> {
    answered(&SynchronizeResponse { more })
}

/// The answer where there is nothing to say.
pub(crate) fn done() -> Vec<u8> {
    answered(&Empty {})
}

/// The answer to what is not there. A runtime asks in its older words then.
pub(crate) fn unknown(method: &str) -> Vec<u8> {
    let status = Status { code: UNIMPLEMENTED, message: format!("{method} is not there") };
    Response { status: Some(status), payload: Vec::new() }.encode_to_vec()
}

/// What the runtime answered a call of ours.
pub(crate) fn outcome(payload: &[u8]) -> Result<(), Error> {
    let Response { status, .. } = decode("response", payload)?;
    match status.filter(|status| status.code != 0) {
        Some(status) => Err(Error::Refused { why: status.message }),
        None => Ok(()),
    }
}

fn answered(message: &impl prost::Message) -> Vec<u8> {
    Response { status: None, payload: message.encode_to_vec() }.encode_to_vec()
}

fn pod(method: &str, payload: &[u8]) -> Result<Pod, Error> {
    let asked: PodSandboxRequest = decode(method, payload)?;
    asked.pod.map(Pod::from).ok_or_else(|| Error::Unclear { what: format!("{method} without a pod") })
}

fn decode<T: prost::Message + Default>(what: &str, payload: &[u8]) -> Result<T, Error> {
    T::decode(payload).map_err(|why| Error::Unclear { what: format!("{what}: {why}") })
}

impl From<PodSandbox> for Pod {
    fn from(pod: PodSandbox) -> Self {
        let PodSandbox { id, name, uid, namespace, labels, annotations, pid } = pod;
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
    fn older_runtimes_tell_the_same_by_a_change_of_state() {
        let pod = PodSandbox { id: "s1".to_owned(), pid: 7, ..PodSandbox::default() };
        let read = |method: &str, payload| Asked::read(&request(SERVICE, method, payload)).unwrap();
        let asked = PodSandboxRequest { pod: Some(pod.clone()) }.encode_to_vec();
        let told = |event: i32| StateChangeEvent { event, pod: Some(pod.clone()) }.encode_to_vec();
        let said = Pod::from(pod.clone());
        assert_eq!(read("RunPodSandbox", asked.clone()), Asked::Starts(said.clone()));
        assert_eq!(read("StateChange", told(1)), Asked::Starts(said.clone()));
        assert_eq!(read("RemovePodSandbox", asked), Asked::Removed(said.clone()));
        assert_eq!(read("StateChange", told(3)), Asked::Removed(said));
        // An event of which Knit knows nothing.
        assert_eq!(read("StateChange", told(40)), Asked::Nothing);
    }

    #[test]
    fn what_is_not_there_is_told_from_what_cannot_be_understood() {
        let unknown = Asked::read(&request(SERVICE, "CreateContainer", Vec::new())).unwrap();
        assert_eq!(unknown, Asked::Unknown("CreateContainer".to_owned()));
        assert!(matches!(Asked::read(&request("other", "Configure", Vec::new())), Ok(Asked::Unknown(_))));
        assert!(Asked::read(&request(SERVICE, "RunPodSandbox", Vec::new())).is_err(), "no pod");
        assert!(Asked::read(&request(SERVICE, "RunPodSandbox", vec![0xff; 9])).is_err());
        assert!(Asked::read(&[0xff; 40]).is_err());
    }

    #[test]
    fn pods_that_come_in_part_are_told_together_and_there_is_an_end() {
        let mut gathered = Gathered::default();
        let some = |number: usize| vec![Pod::default(); number];
        assert_eq!(gathered.add(some(2), true).unwrap(), None);
        assert_eq!(gathered.add(some(1), false).unwrap().map(|all| all.len()), Some(3));
        assert_eq!(gathered.add(some(1), false).unwrap().map(|all| all.len()), Some(1));
        assert!(gathered.add(some(MOST_PODS + 1), true).is_err());
    }
}
