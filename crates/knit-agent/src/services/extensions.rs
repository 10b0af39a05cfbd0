//! The registry of extensions: who registers, who is removed, who is there.

mod render;
mod token;

use std::collections::BTreeSet;

use knit_engine::extension::{ExtensionSpec, FailPolicy, Phase, Speaks};
use knit_engine::extensions::{Registration, Removal};
use knit_engine::{Answer, Event, State};
use knit_kni::v1::extension_registry_server::ExtensionRegistry;
use knit_kni::{Reason, Refusal, v1};
use tonic::{Request, Response, Status};

pub(crate) use render::outgoing;
pub(super) use render::{receipts, status, statuses};
pub(super) use token::{digest, fresh};

use super::agent::ok;
use super::request::{Checked, few, invalid, path};
use super::{Services, answer};

/// The longest name.
const LONGEST_NAME: usize = 63;
/// A socket's path has no room for more.
const LONGEST_SOCKET: usize = 107;
/// Milliseconds that a call may take, unless told otherwise, and at most.
const DEADLINE: u32 = 5_000;
const LONGEST_DEADLINE: u32 = 60_000;

/// An extension as it registers. Every value is checked here.
fn checked(spec: Option<v1::ExtensionSpec>) -> Checked<ExtensionSpec> {
    let Some(spec) = spec else { return Err(invalid("extension", "it is missing")) };
    let name = name("extension.name", &spec.name)?;
    let socket = path("extension.socket", &spec.socket)?;
    if socket.is_empty() || socket.len() > LONGEST_SOCKET {
        let message = format!("a socket has a path of 1 to {LONGEST_SOCKET} bytes");
        return Err(invalid("extension.socket", message));
    }
    few("extension.namespaces", spec.namespaces.len())?;
    few("extension.labels", spec.labels.len())?;
    let phases = spec.phases().map(|phase| match phase {
        v1::ExtensionPhase::Unspecified => Err(invalid("extension.phases", "there is no such phase")),
        v1::ExtensionPhase::BeforeAttach => Ok(Phase::BeforeAttach),
        v1::ExtensionPhase::AfterAttach => Ok(Phase::AfterAttach),
        v1::ExtensionPhase::AfterDetach => Ok(Phase::AfterDetach),
    });
    let phases = phases.collect::<Checked<BTreeSet<Phase>>>()?;
    if phases.is_empty() {
        return Err(invalid("extension.phases", "name at least one: it would never be called"));
    }
    let fail = match v1::FailPolicy::try_from(spec.fail_policy) {
        Ok(v1::FailPolicy::Fail) => FailPolicy::Fail,
        Ok(v1::FailPolicy::Ignore) => FailPolicy::Ignore,
        Err(_) => return Err(invalid("extension.fail_policy", "there is no such policy")),
    };
    let deadline = match spec.deadline_millis {
        0 => DEADLINE,
        millis if millis <= LONGEST_DEADLINE => millis,
        millis => {
            let message = format!("{millis} is more than {LONGEST_DEADLINE}");
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
        speaks: Speaks::Knit,
    })
}

/// An extension's name: it stands in receipts, metrics and file names.
pub(super) fn name(field: &str, name: &str) -> Checked<String> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_name = (1..=LONGEST_NAME).contains(&name.len())
        && name.bytes().all(fits)
        && !name.starts_with('-')
        && !name.ends_with('-');
    if is_name {
        return Ok(name.to_owned());
    }
    let message =
        format!("`{}` is no name: 1 to {LONGEST_NAME} small letters, digits and `-`", name.escape_debug());
    Err(invalid(field, message))
}

/// Pods that an extension was meant for and that were attached without it, each with why.
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
        let fresh = fresh().map_err(|why| Refusal::new(Reason::Internal, why.to_string()))?;
        let shown = (!token.is_empty()).then(|| digest(&token));
        let asked = Registration { call: call.clone(), spec, shown, fresh: digest(&fresh), admin: as_admin };
        let event = Event::ExtensionWanted(Box::new(asked));
        let done = self.carry(&call, &object, event, |_, answer| ok(answer)).await?;
        let Answer::Registered { generation, new_token, changed, .. } = done else {
            return Err(Refusal::new(Reason::Internal, "a registration without an answer").into());
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
        let v1::DeregisterRequest { name: asked, token, as_admin } = request.into_inner();
        let name = name("name", &asked)?;
        let object = format!("extension {name}");
        let shown = (!token.is_empty()).then(|| digest(&token));
        let event = Event::ExtensionUnwanted(Removal { call: call.clone(), name, shown, admin: as_admin });
        let done = self.carry(&call, &object, event, |_, answer| ok(answer)).await?;
        let removed = matches!(done, Answer::Removed { was_there: true });
        tracing::info!(call = %call, %object, removed, as_admin, "deregistered");
        Ok(answer(&call, v1::DeregisterResponse { removed, call_id: call.0.clone() }))
    }

    async fn list(
        &self,
        _request: Request<v1::ListExtensionsRequest>,
    ) -> Result<Response<v1::ListExtensionsResponse>, Status> {
        let extensions = self.see(|node| Ok(statuses(node.state()))).await?;
        Ok(Response::new(v1::ListExtensionsResponse { extensions }))
    }

    async fn get(
        &self,
        request: Request<v1::GetExtensionRequest>,
    ) -> Result<Response<v1::GetExtensionResponse>, Status> {
        let name = name("name", &request.into_inner().name)?;
        let message = self
            .see(move |node| {
                let state = node.state();
                let found = status(state, &name).ok_or_else(|| {
                    let message = format!("there is no extension {name}");
                    Refusal::new(Reason::NotFound, message).field("name")
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
    fn every_bad_value_is_refused_by_its_field() {
        assert_eq!(checked(Some(good())).map(|spec| spec.deadline), Ok(5_000));
        let bad: [(&str, fn(&mut v1::ExtensionSpec)); 9] = [
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
            let refused = checked(Some(spec)).unwrap_err();
            assert!(refused.message().starts_with(field), "{}", refused.message());
        }
    }
}
