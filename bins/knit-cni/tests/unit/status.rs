//! STATUS: an agent that is unavailable for a while does not make the node NotReady.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use knit_cni::{AgentSocket, AgentTransport, CniError, Outcome, run};
use knit_kni::v1;
use prost::Message;
use serde_json::json;

/// An agent with this answer, and a memory of its own.
#[derive(Default)]
struct Agent {
    answer: Option<v1::Readiness>,
    last_ready: Option<u64>,
}

impl AgentTransport for Agent {
    fn call(
        &mut self,
        socket: &Path,
        timeout: Duration,
        call: v1::FramedCall,
    ) -> Result<v1::FramedReply, CniError> {
        let Some(new_pods) = self.answer.clone() else {
            // Nothing listens there.
            return AgentSocket.call(socket, timeout, call);
        };
        let node = v1::Readiness { ready: true, ..Default::default() };
        let response =
            v1::GetReadinessResponse { node: Some(node), new_pods: Some(new_pods), ..Default::default() };
        Ok(v1::FramedReply { response: response.encode_to_vec(), ..Default::default() })
    }

    fn last_ready(&mut self, _: &Path) -> Option<u64> {
        self.last_ready
    }

    fn set_last_ready(&mut self, _: &Path, at: u64) {
        self.last_ready = Some(at);
    }
}

impl Agent {
    /// STATUS at a time since boot, in seconds.
    fn status(&mut self, seconds: u64) -> Outcome {
        let config =
            json!({"cniVersion": "1.1.0", "name": "n", "type": "knit-cni", "socket": "/nonexistent/socket"});
        let variable = |name: &str| (name == "CNI_COMMAND").then(|| OsString::from("STATUS"));
        run(variable, Ok(config.to_string().into_bytes()), seconds * 1_000_000_000, self)
    }
}

fn ready() -> Option<v1::Readiness> {
    Some(v1::Readiness { ready: true, ..Default::default() })
}

fn not_ready(reason: &str) -> Option<v1::Readiness> {
    let condition = v1::Condition { ok: false, reason: reason.to_owned(), ..Default::default() };
    Some(v1::Readiness { ready: false, conditions: vec![condition] })
}

#[test]
fn an_unavailable_agent_leaves_the_node_ready_for_ten_minutes() {
    let mut agent = Agent::default();
    assert!(!agent.status(1).success, "it was never ready");
    agent.answer = ready();
    assert!(agent.status(100).success);
    agent.answer = None;
    let outcome = agent.status(400);
    assert!(outcome.success && outcome.warnings[0].ends_with("the node was ready 300 s ago"), "{outcome:?}");
    assert!(agent.status(699).success && !agent.status(700).success, "and no longer");
    assert!(!agent.status(50).success, "a time in the future says nothing");
}

#[test]
fn an_agent_that_starts_is_unavailable_and_other_reasons_count_at_once() {
    let mut agent = Agent { last_ready: Some(0), answer: not_ready("NotReady") };
    assert!(agent.status(10).success);
    agent.answer = not_ready("CniShadowed");
    let outcome = agent.status(10);
    assert!(!outcome.success && outcome.output.contains("CniShadowed"), "{outcome:?}");
    agent.answer = not_ready("AddressesExhausted");
    assert!(agent.status(10_000).success, "pods would be evicted");
}

#[test]
fn the_time_is_kept_beside_the_socket() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("knit.sock");
    assert_eq!(AgentSocket.last_ready(&socket), None);
    AgentSocket.set_last_ready(&socket, 77);
    AgentSocket.set_last_ready(&socket, 78);
    assert_eq!(AgentSocket.last_ready(&socket), Some(78));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
}
