//! The registry of extensions.

mod render;
mod token;

use std::collections::BTreeSet;

use knit_engine::extension::{ExtensionProtocol, ExtensionSpec, FailPolicy, HookPhase};
use knit_engine::extensions::{ExtensionRegistration, ExtensionRemoval};
use knit_engine::{CallResult, Event, State};
use knit_kni::v1::extension_registry_server::ExtensionRegistry;
use knit_kni::{Reason, RpcError, v1};
use tonic::{Request, Response, Status};

pub(crate) use render::outgoing_call;
pub(super) use render::{receipts, status, statuses};
pub(super) use token::{digest, fresh};

use super::agent::ok;
use super::request::{Checked, check_count, invalid, path};
use super::{Services, answer};

/// The longest name, in bytes.
const MAX_NAME: usize = 63;
/// The longest path of a unix socket.
const MAX_SOCKET_PATH: usize = 107;
/// The default and the longest deadline of a call, in milliseconds.
const DEFAULT_DEADLINE: u32 = 5_000;
const MAX_DEADLINE: u32 = 60_000;

/// Validates a registration.
pub(super) fn checked(spec: Option<v1::ExtensionSpec>) -> Checked<ExtensionSpec> {
    let Some(spec) = spec else { return Err(invalid("extension", "required")) };
    let name = name("extension.name", &spec.name)?;
    let socket = path("extension.socket", &spec.socket)?;
    if socket.is_empty() || socket.len() > MAX_SOCKET_PATH {
        let message = format!("must be a path of 1 to {MAX_SOCKET_PATH} bytes");
        return Err(invalid("extension.socket", message));
    }
    check_count("extension.namespaces", spec.namespaces.len())?;
    check_count("extension.labels", spec.labels.len())?;
    let phases = spec.phases().map(|phase| match phase {
        v1::ExtensionPhase::Unspecified => Err(invalid("extension.phases", "unknown phase")),
        v1::ExtensionPhase::BeforeAttach => Ok(HookPhase::BeforeAttach),
        v1::ExtensionPhase::AfterAttach => Ok(HookPhase::AfterAttach),
        v1::ExtensionPhase::AfterDetach => Ok(HookPhase::AfterDetach),
    });
    let phases = phases.collect::<Checked<BTreeSet<HookPhase>>>()?;
    if phases.is_empty() {
        return Err(invalid("extension.phases", "at least one is required"));
    }
    let fail = match v1::FailPolicy::try_from(spec.fail_policy) {
        Ok(v1::FailPolicy::Fail) => FailPolicy::Fail,
        Ok(v1::FailPolicy::Ignore) => FailPolicy::Ignore,
        Err(_) => return Err(invalid("extension.fail_policy", "unknown policy")),
    };
    let deadline = match spec.deadline_millis {
        0 => DEFAULT_DEADLINE,
        millis if millis <= MAX_DEADLINE => millis,
        millis => {
            let message = format!("{millis} is more than {MAX_DEADLINE}");
            return Err(invalid("extension.deadline_millis", message));
        }
    };
    Ok(ExtensionSpec {
        name,
        order: spec.order,
        socket,
        phases,
        namespaces: spec.namespaces.into_iter().collect(),
        labels: spec.labels,
        fail,
        deadline: u64::from(deadline),
        protocol: ExtensionProtocol::Knit,
    })
}

/// Validates an extension's name: it is used in receipts, metrics and file names.
pub(super) fn name(field: &str, name: &str) -> Checked<String> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_name = (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(fits)
        && !name.starts_with('-')
        && !name.ends_with('-');
    if is_name {
        return Ok(name.to_owned());
    }
    let message = format!(
        "`{}` is not a valid name: 1 to {MAX_NAME} lower-case letters, digits and `-`",
        name.escape_debug()
    );
    Err(invalid(field, message))
}

/// Pods that an extension applies to and that were attached without it, each with the reason.
pub(super) fn missed(state: &State, name: &str) -> Vec<v1::MissedPod> {
    let all = state.sandboxes.values().filter_map(|sandbox| {
        let why = state.without_extension(&sandbox.id, name)?;
        let pod = v1::PodRef {
            id: sandbox.id.0.clone(),
            name: sandbox.pod.clone(),
            namespace: sandbox.namespace.clone(),
        };
        Some(v1::MissedPod { pod: Some(pod), why })
    });
    all.collect()
}

#[tonic::async_trait]
impl ExtensionRegistry for Services {
    async fn register(
        &self,
        request: Request<v1::RegisterRequest>,
    ) -> Result<Response<v1::RegisterResponse>, Status> {
        let call = self.call_id(request.metadata());
        let v1::RegisterRequest { extension, token, as_admin } = request.into_inner();
        let spec = checked(extension)?;
        let object = format!("extension {}", spec.name);
        let fresh = fresh().map_err(|why| RpcError::new(Reason::Internal, why.to_string()))?;
        let shown = (!token.is_empty()).then(|| digest(&token));
        let requested = ExtensionRegistration {
            call: call.clone(),
            spec,
            token_digest: shown,
            new_token_digest: digest(&fresh),
            admin: as_admin,
        };
        let event = Event::ExtensionRegistrationRequested(Box::new(requested));
        let done = self.call(&call, &object, event, |_, answer| ok(answer)).await?;
        let CallResult::Registered { generation, new_token, changed, .. } = done else {
            return Err(RpcError::new(Reason::Internal, "unexpected result of a registration").into());
        };
        tracing::info!(call = %call, %object, generation, changed, "registered");
        let token = if new_token { fresh } else { token };
        let call_id = call.0.clone();
        Ok(answer(&call, v1::RegisterResponse { generation, token, changed, call_id }))
    }

    async fn deregister(
        &self,
        request: Request<v1::DeregisterRequest>,
    ) -> Result<Response<v1::DeregisterResponse>, Status> {
        let call = self.call_id(request.metadata());
        let v1::DeregisterRequest { name: requested, token, as_admin } = request.into_inner();
        let name = name("name", &requested)?;
        let object = format!("extension {name}");
        let shown = (!token.is_empty()).then(|| digest(&token));
        let event = Event::ExtensionRemovalRequested(ExtensionRemoval {
            call: call.clone(),
            name,
            token_digest: shown,
            admin: as_admin,
        });
        let done = self.call(&call, &object, event, |_, answer| ok(answer)).await?;
        let removed = matches!(done, CallResult::Removed { was_there: true });
        tracing::info!(call = %call, %object, removed, as_admin, "deregistered");
        Ok(answer(&call, v1::DeregisterResponse { removed, call_id: call.0.clone() }))
    }

    async fn list(
        &self,
        _request: Request<v1::ListExtensionsRequest>,
    ) -> Result<Response<v1::ListExtensionsResponse>, Status> {
        let extensions = self.query(|node| Ok(statuses(node.state()))).await?;
        Ok(Response::new(v1::ListExtensionsResponse { extensions }))
    }

    async fn get(
        &self,
        request: Request<v1::GetExtensionRequest>,
    ) -> Result<Response<v1::GetExtensionResponse>, Status> {
        let name = name("name", &request.into_inner().name)?;
        let message = self
            .query(move |node| {
                let state = node.state();
                let found = status(state, &name).ok_or_else(|| {
                    let message = format!("extension {name} not found");
                    RpcError::new(Reason::NotFound, message).field("name")
                })?;
                let missed = missed(state, &name);
                Ok(v1::GetExtensionResponse { extension: Some(found), missed })
            })
            .await?;
        Ok(Response::new(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> v1::ExtensionSpec {
        v1::ExtensionSpec {
            name: "mesh".to_owned(),
            socket: "/run/mesh.sock".to_owned(),
            phases: vec![v1::ExtensionPhase::AfterAttach.into()],
            ..Default::default()
        }
    }

    #[test]
    fn every_invalid_value_is_rejected_with_its_field() {
        assert_eq!(checked(Some(good())).map(|spec| spec.deadline), Ok(5_000));
        type Change = fn(&mut v1::ExtensionSpec);
        let bad: [(&str, Change); 9] = [
            ("extension.name", |spec| spec.name = "Mesh".to_owned()),
            ("extension.name", |spec| spec.name = "-mesh".to_owned()),
            ("extension.name", |spec| spec.name = "m".repeat(64)),
            ("extension.socket", |spec| spec.socket = "mesh.sock".to_owned()),
            ("extension.socket", |spec| spec.socket = format!("/{}", "x".repeat(107))),
            ("extension.phases", |spec| spec.phases.clear()),
            ("extension.phases", |spec| spec.phases = vec![9]),
            ("extension.fail_policy", |spec| spec.fail_policy = 7),
            ("extension.deadline_millis", |spec| spec.deadline_millis = 60_001),
        ];
        for (field, change) in bad {
            let mut spec = good();
            change(&mut spec);
            let rejected = checked(Some(spec)).unwrap_err();
            assert!(rejected.message().starts_with(field), "{}", rejected.message());
        }
    }
}
