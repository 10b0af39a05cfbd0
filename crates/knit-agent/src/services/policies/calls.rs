//! The calls about policies.

use std::sync::Arc;

use knit_kni::v1;
use tonic::Status;

use super::drops::{count_chains, count_policies};
use super::explain::{connection_query, explain};
use crate::services::Services;
use crate::services::agent::{find, unknown_pod};

impl Services {
    /// The policies that restrict pods of this node.
    pub(in crate::services) async fn policies_of_node(
        &self,
        request: v1::ListPoliciesRequest,
    ) -> Result<v1::ListPoliciesResponse, Status> {
        let (namespace, info) = (request.namespace, Arc::clone(&self.info));
        let (mut status, list, rules) = self
            .query(move |node| {
                let state = node.state();
                let status = super::status(state, &info.profile);
                Ok((status, state.policy_list(), state.policy_drop_rules()))
            })
            .await?;
        let drops = count_policies(rules, &mut status).await;
        let mut policies = super::entries(&list, drops.as_ref());
        policies.retain(|one| super::is_of(one, &namespace));
        Ok(v1::ListPoliciesResponse { status: Some(status), policies })
    }

    /// What restricts a pod of this node.
    pub(in crate::services) async fn policies_of_pod(
        &self,
        request: v1::GetPodPoliciesRequest,
    ) -> Result<v1::GetPodPoliciesResponse, Status> {
        let (pod, info) = (request.pod.unwrap_or_default(), Arc::clone(&self.info));
        let found = self
            .query(move |node| {
                let state = node.state();
                let found = find(state, &pod)?.and_then(|id| super::pod(state, &info.profile, &id));
                found.ok_or_else(|| unknown_pod(&pod, " on this node"))
            })
            .await?;
        Ok(count_chains(found).await)
    }

    /// Why a connection is allowed or denied.
    pub(in crate::services) async fn explained_connection(
        &self,
        request: v1::ExplainConnectionRequest,
    ) -> Result<v1::ExplainConnectionResponse, Status> {
        let (query, info) = (connection_query(request)?, Arc::clone(&self.info));
        self.query(move |node| explain(node.state(), &info.node, &info.profile, &query)).await
    }
}
