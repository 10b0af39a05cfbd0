//! Leader election by a Lease.
//!
//! A Lease expires on the candidate's own monotonic clock, every write carries the `resourceVersion` that it is based
//! on, and a holder that cannot reach the API server stops before others can acquire the Lease.
//!
//! This is own code because no library guarantees that. kube has no leader election, and of the libraries for it only
//! `kube-lease-manager` (0.13.1) builds with kube 5. There a holder without an API server stays the leader, because
//! failed renewals are only logged; expiry compares `renewTime` with the candidate's wall clock, so clock skew makes
//! two leaders; an expired Lease is released by a patch without `resourceVersion`, which can remove a holder that has
//! just acquired it; and responses of the API server, which [`Health`] needs on a standby, are not reported.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use knit_kube::kube::api::PostParams;
use knit_kube::kube::{self, Api, Client};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::health::Health;

/// A holder that does not renew the lease for this long loses it.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
/// The interval of renewals and of acquisition attempts.
pub const RENEW_INTERVAL: Duration = Duration::from_secs(3);
/// A holder that cannot renew the lease for this long stops, before others can acquire it.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// The name of the Lease.
const NAME: &str = "knit-controller";

/// What a candidate does with the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseDecision {
    /// Acquire or renew it.
    Hold,
    /// Wait.
    Wait,
}

/// Decides by the holder and by how long the Lease has been unchanged on the candidate's own clock; clocks of other
/// machines are not compared.
pub fn decide(holder: Option<&str>, unchanged_for: Duration, identity: &str) -> LeaseDecision {
    match holder {
        Some(other) if !other.is_empty() && other != identity && unchanged_for < LEASE_DURATION => {
            LeaseDecision::Wait
        }
        _ => LeaseDecision::Hold,
    }
}

/// A candidate in the leader election.
pub struct Election {
    api: Api<Lease>,
    identity: String,
    health: Health,
    /// The last observed Lease, and since when it is unchanged.
    observed: Option<(Option<String>, Option<MicroTime>, Instant)>,
}

impl Election {
    /// A candidate.
    pub fn new(client: Client, namespace: &str, identity: &str, health: Health) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            identity: identity.to_owned(),
            health,
            observed: None,
        }
    }

    /// Waits until this candidate acquires the Lease.
    pub async fn acquire(&mut self) {
        loop {
            match self.try_hold().await {
                Ok(true) => return,
                Ok(false) => {}
                Err(why) => tracing::warn!(%why, "cannot acquire the lease"),
            }
            sleep(RENEW_INTERVAL).await;
        }
    }

    /// Renews the Lease, and returns when it is lost.
    pub async fn renew_until_lost(&mut self) {
        let mut deadline = Instant::now() + RENEW_DEADLINE;
        loop {
            let started = Instant::now() + RENEW_INTERVAL;
            if started >= deadline {
                return sleep_until(deadline).await;
            }
            sleep_until(started).await;
            // A slow API server must not delay the decision to stop.
            match timeout_at(deadline.min(started + RENEW_INTERVAL), self.try_hold()).await {
                Ok(Ok(true)) => deadline = started + RENEW_DEADLINE,
                Ok(Ok(false)) => return,
                Ok(Err(why)) => tracing::warn!(%why, "cannot renew the lease"),
                Err(_) => tracing::warn!("timeout while renewing the lease"),
            }
        }
    }

    /// Releases the Lease, so that another candidate need not wait.
    pub async fn release(&mut self) {
        let Ok(Some(mut lease)) = self.api.get_opt(NAME).await else { return };
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        if spec.holder_identity.as_deref() == Some(&self.identity) {
            spec.holder_identity = Some(String::new());
            // Otherwise it expires.
            let _ = self.api.replace(NAME, &PostParams::default(), &lease).await;
        }
    }

    async fn try_hold(&mut self) -> kube::Result<bool> {
        let now = Instant::now();
        let found = self.api.get_opt(NAME).await?;
        self.health.record_api_response();
        let Some(mut lease) = found else {
            let mut lease = Lease::default();
            lease.metadata.name = Some(NAME.to_owned());
            lease.spec = Some(self.spec(0));
            return is_acquired(self.api.create(&PostParams::default(), &lease).await);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let (holder, renewed) = (spec.holder_identity.clone(), spec.renew_time.clone());
        let since = match &self.observed {
            Some((was, at, since)) if *was == holder && *at == renewed => *since,
            _ => now,
        };
        self.observed = Some((holder.clone(), renewed, since));
        if decide(holder.as_deref(), now - since, &self.identity) == LeaseDecision::Wait {
            return Ok(false);
        }
        let changes = i32::from(holder.as_deref() != Some(&self.identity));
        lease.spec = Some(self.spec(spec.lease_transitions.unwrap_or_default() + changes));
        // The resourceVersion makes concurrent attempts fail with a conflict.
        is_acquired(self.api.replace(NAME, &PostParams::default(), &lease).await)
    }

    fn spec(&self, transitions: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            renew_time: Some(MicroTime(jiff::Timestamp::now())),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }
}

/// A conflict means that another candidate was faster.
fn is_acquired(result: kube::Result<Lease>) -> kube::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(why)) if why.code == 409 => Ok(false),
        Err(why) => Err(why),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response, StatusCode};
    use knit_kube::kube::client::Body;

    use super::*;

    /// A candidate with an API server that responds after this time with an internal error.
    fn candidate(delay: Duration) -> Election {
        let respond = move |_: Request<Body>| async move {
            sleep(delay).await;
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            Ok::<_, Infallible>(response)
        };
        let client = Client::new(tower::service_fn(respond), "knit");
        Election::new(client, "knit", "me", Health::default())
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_that_cannot_renew_stops_at_the_deadline() {
        for delay in [Duration::ZERO, Duration::from_secs(2), Duration::from_secs(3600)] {
            let start = Instant::now();
            candidate(delay).renew_until_lost().await;
            let elapsed = start.elapsed();
            let latest = RENEW_DEADLINE + Duration::from_millis(10);
            assert!((RENEW_DEADLINE - RENEW_INTERVAL..=latest).contains(&elapsed), "{delay:?}: {elapsed:?}");
        }
    }

    #[test]
    fn only_an_expired_lease_is_acquired() {
        let (short, long) = (Duration::from_secs(14), Duration::from_secs(15));
        assert_eq!(decide(None, short, "me"), LeaseDecision::Hold);
        assert_eq!(decide(Some(""), short, "me"), LeaseDecision::Hold);
        assert_eq!(decide(Some("me"), short, "me"), LeaseDecision::Hold);
        assert_eq!(decide(Some("other"), short, "me"), LeaseDecision::Wait);
        assert_eq!(decide(Some("other"), long, "me"), LeaseDecision::Hold);
    }
}
