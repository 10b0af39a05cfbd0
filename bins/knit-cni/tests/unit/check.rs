//! CHECK: compares the interface with its ADD by the plan of a dry run.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use knit_cni::{AgentTransport, CniError, Outcome, run};
use knit_kni::v1;
use prost::Message;
use serde_json::{Value, json};

struct Agent(v1::AttachResponse);

impl AgentTransport for Agent {
    fn call(&mut self, _: &Path, _: Duration, call: v1::FramedCall) -> Result<v1::FramedReply, CniError> {
        assert!(v1::AttachRequest::decode(call.request.as_slice()).unwrap().dry_run);
        Ok(v1::FramedReply { response: self.0.encode_to_vec(), ..Default::default() })
    }
}

/// CHECK of eth0, which has `fd00::2/64`, against a result with this address.
fn check(address: &str, plan: v1::Plan) -> Outcome {
    let config = json!({
        "cniVersion": "1.0.0", "name": "n", "type": "knit-cni",
        "prevResult": {
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "eth0", "sandbox": "/run/netns/a"}],
            "ips": [{"interface": 0, "address": address}],
        },
    });
    let variable = |name: &str| {
        let value = match name {
            "CNI_COMMAND" => "CHECK",
            "CNI_CONTAINERID" => "c1",
            "CNI_IFNAME" => "eth0",
            "CNI_NETNS" => "/run/netns/a",
            _ => return None,
        };
        Some(OsString::from(value))
    };
    let leased = v1::Address { address: "fd00::2".to_owned(), prefix_length: 64, ..Default::default() };
    let interface = v1::Interface { name: "eth0".to_owned(), addresses: vec![leased], ..Default::default() };
    let pod = v1::Pod { interfaces: vec![interface], ..Default::default() };
    let response = v1::AttachResponse { pod: Some(pod), plan: Some(plan), ..Default::default() };
    run(variable, Ok(config.to_string().into_bytes()), 1, &mut Agent(response))
}

fn message(outcome: &Outcome) -> String {
    let error: Value = serde_json::from_str(&outcome.output).unwrap();
    error["msg"].as_str().unwrap().to_owned()
}

#[test]
fn a_plan_with_steps_fails_and_its_text_is_not_read() {
    // The text has lines that look like steps, and the plan has none.
    let text = "host\n  + link eth9\n  - link eth8\n".to_owned();
    let plan = v1::Plan { text: text.clone(), ..Default::default() };
    assert!(check("fd00::2/64", plan).success);
    let step_texts = vec!["+ route 10.9.0.0/16 dev eth0".to_owned(), "~ link eth0".to_owned()];
    let outcome = check("fd00::2/64", v1::Plan { text, steps: 2, step_texts, ..Default::default() });
    assert!(!outcome.success);
    let found = message(&outcome);
    assert!(found.ends_with("required steps: + route 10.9.0.0/16 dev eth0; ~ link eth0"), "{found}");
}

#[test]
fn addresses_are_compared_by_value() {
    assert!(check("fd00:0:0::2/64", v1::Plan::default()).success);
    for other in ["fd00::3/64", "fd00::2/65", "fd00::2", "nonsense/64"] {
        let outcome = check(other, v1::Plan::default());
        assert!(!outcome.success && message(&outcome).contains("has no lease of"), "{other}");
    }
}
