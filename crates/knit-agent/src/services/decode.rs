//! Requests as bytes, decoded and translated as the services do it, but without an agent. Fuzz tests call this module.

use knit_engine::call::{DetachRequest, GcRequest};
use knit_engine::extensions::ExtensionRegistration;
use knit_engine::plugin_chain::ChainedInterface;
use knit_engine::{CallId, Event};
use knit_kni::v1::FramedCall;
use knit_kni::{Reason, RpcError, frame, kni, v1};
use knit_model::SandboxId;
use prost::Message;
use tonic::Status;

use super::{extensions, plugin_chain, request};

/// The methods that [`event`] translates: those of package kni with its name, those of knit.v1 without.
pub const METHODS: [&str; 8] = [
    "Attach",
    "Detach",
    "CollectGarbage",
    "CreateSandbox",
    "Register",
    "kni.AttachInterface",
    "kni.DetachInterface",
    "kni.CreateNetwork",
];

/// The event of a request. Requests that name a sandbox in several forms have to name it by its id.
pub fn event(method: &str, bytes: &[u8]) -> Result<Event, Status> {
    let call = CallId("decode".to_owned());
    Ok(match method {
        "Attach" => Event::AttachRequested(Box::new(request::attach(&call, message(bytes)?)?)),
        "Detach" => {
            let v1::DetachRequest { pod, interfaces, all, netns_path, forget, began, .. } = message(bytes)?;
            Event::DetachRequested(DetachRequest {
                call,
                sandbox: SandboxId(pod.unwrap_or_default().id),
                netns: request::path("netns_path", &netns_path)?,
                scope: request::detach_scope(&interfaces, all)?,
                forget_sandbox: forget,
                started_at: began,
            })
        }
        "CollectGarbage" => {
            let v1::CollectGarbageRequest { garbage, group, .. } = message(bytes)?;
            let alive = request::living(garbage)?.unwrap_or_default();
            Event::GcRequested(GcRequest { call, alive, group })
        }
        "CreateSandbox" => {
            let v1::CreateSandboxRequest { sandbox, .. } = message(bytes)?;
            let attach = v1::AttachRequest { sandbox, ..Default::default() };
            Event::AttachRequested(Box::new(request::attach(&call, attach)?))
        }
        "Register" => {
            let v1::RegisterRequest { extension, as_admin, .. } = message(bytes)?;
            let spec = extensions::checked(extension)?;
            Event::ExtensionRegistrationRequested(Box::new(ExtensionRegistration {
                call,
                spec,
                token_digest: None,
                new_token_digest: String::new(),
                admin: as_admin,
            }))
        }
        "kni.AttachInterface" => {
            Event::AttachRequested(Box::new(request::kni_attach(&call, message(bytes)?)?))
        }
        "kni.DetachInterface" => Event::DetachRequested(request::kni_detach(&call, &message(bytes)?)?),
        "kni.CreateNetwork" => {
            let kni::CreateNetworkRequest { name, namespace, uid, netns_path_prefix, .. } = message(bytes)?;
            let path = request::netns_path_for(&netns_path_prefix, "/run/netns", [&namespace, &name, &uid])?;
            let netns = knit_engine::call::ManagedNetns { path, pod: name, namespace, uid };
            Event::NetnsRequested { call, netns }
        }
        other => {
            let why = format!("unknown method `{}`", other.escape_debug());
            return Err(RpcError::new(Reason::Unsupported, why).into());
        }
    })
}

/// The event of a call on the socket of the CNI shim: a length prefix, then the call.
pub fn framed(bytes: &[u8]) -> Result<Event, Status> {
    let invalid = |why: &str| Status::from(RpcError::new(Reason::InvalidValue, why));
    let (header, rest) = bytes.split_first_chunk().ok_or_else(|| invalid("no length"))?;
    let length =
        frame::payload_len(*header, super::MAX_REQUEST).ok_or_else(|| invalid("the call is too long"))?;
    let call: FramedCall = message(rest.get(..length).ok_or_else(|| invalid("the call is not complete"))?)?;
    event(&call.method, &call.request)
}

/// An interface that CNI plugins created, as clients see it.
pub fn chained_interface(chained: &ChainedInterface) -> v1::Interface {
    plugin_chain::interface(chained)
}

fn message<T: Message + Default>(bytes: &[u8]) -> Result<T, Status> {
    T::decode(bytes)
        .map_err(|why| RpcError::new(Reason::InvalidValue, format!("invalid request: {why}")).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_method_is_known() {
        for method in METHODS {
            let known =
                event(method, &[]).map_or_else(|status| !status.message().contains("unknown"), |_| true);
            assert!(known, "{method}");
        }
        assert!(event("Other", &[]).unwrap_err().message().contains("unknown method `Other`"));
    }

    #[test]
    fn a_framed_call_is_translated_like_a_request() {
        let detach = v1::DetachRequest {
            pod: Some(v1::PodRef { id: "a".to_owned(), ..Default::default() }),
            all: true,
            ..Default::default()
        };
        let bytes = frame::encode(&frame::call("Detach", &detach, 0));
        let translated = framed(&bytes).unwrap();
        assert!(matches!(translated, Event::DetachRequested(detach) if detach.sandbox.0 == "a"));
        assert!(framed(&bytes[..bytes.len() - 1]).is_err());
    }
}
