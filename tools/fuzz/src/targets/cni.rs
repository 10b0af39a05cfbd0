//! The CNI shim, and CNI plugins that Knit runs.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::Duration;

use knit_agent::plugin_chain::CniNetwork;
use knit_agent::services::decode::chained_interface;
use knit_cni::{AgentTransport, CniError};
use knit_engine::plugin_chain::ChainedInterface;
use knit_kni::v1::{FramedCall, FramedReply};
use knit_model::SandboxId;
use knit_model::provenance::{Dialect, Provenance};
use prost::Message;
use serde_json::Value;

use super::parts;

/// An agent that always replies with the same bytes.
struct Replies<'a>(&'a [u8]);

impl AgentTransport for Replies<'_> {
    fn call(&mut self, _: &Path, _: Duration, call: FramedCall) -> Result<FramedReply, CniError> {
        assert!(!call.method.is_empty());
        // An invalid reply ends the call before the shim sees it.
        Ok(FramedReply::decode(self.0).unwrap_or_default())
    }
}

/// Three parts: the configuration, `CNI_ARGS`, and the agent's reply. Every command is run.
pub(super) fn shim(data: &[u8]) {
    let [input, args, reply] = parts(data);
    for command in ["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"] {
        let variable = |name: &str| -> Option<OsString> {
            Some(match name {
                "CNI_COMMAND" => command.into(),
                "CNI_CONTAINERID" => "s1".into(),
                "CNI_NETNS" => "/run/netns/s1".into(),
                "CNI_IFNAME" => "eth0".into(),
                "CNI_ARGS" => OsString::from_vec(args.to_vec()),
                _ => return None,
            })
        };
        let outcome = knit_cni::run(variable, Ok(input.to_vec()), 1, &mut Replies(reply));
        let is_json = serde_json::from_str::<Value>(&outcome.output).is_ok();
        assert!(is_json || (outcome.success && outcome.output.is_empty()), "{command}: {}", outcome.output);
    }
}

/// Two parts: the configuration list, and the result of an ADD.
pub(super) fn results(data: &[u8]) {
    let [conflist, result] = parts(data).map(String::from_utf8_lossy);
    let network = CniNetwork { conflist: "/x".into(), plugin_dirs: Vec::new(), timeout_seconds: 60 };
    let Ok(chain) = network.parse(conflist.into_owned()) else { return };
    let chained = ChainedInterface {
        sandbox: SandboxId("s1".to_owned()),
        interface: "eth0".parse().expect("the name is valid"),
        network: "blue".to_owned(),
        chain,
        netns: "/run/netns/s1".to_owned(),
        pod: Default::default(),
        request: Default::default(),
        metadata: Default::default(),
        origin: Provenance { dialect: Dialect::Cni, object: None, field: String::new(), call: None },
        since: Default::default(),
        ticket: 0,
        result: Some(result.into_owned()),
        removing: false,
        created_sandbox: false,
    };
    let interface = chained_interface(&chained);
    assert_eq!(interface.addresses.len(), chained.addresses().len());
}
