//! Which of several controllers works: the one that holds a Lease.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use knit_kube::kube::api::PostParams;
use knit_kube::kube::{self, Api, Client};
use tokio::time::{sleep, timeout};

use crate::health::Health;

/// A holder that was silent for so long has lost it.
pub const DURATION: Duration = Duration::from_secs(15);
/// How often the holder says that it is there, and others look.
pub const RENEW: Duration = Duration::from_secs(3);
/// A holder that could not say so for this long stops before others begin.
pub const GIVE_UP: Duration = Duration::from_secs(10);
/// The Lease.
const NAME: &str = "knit-controller";

/// What a candidate does with a Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It takes it, or says that it still has it.
    Hold,
    /// It waits.
    Wait,
}

/// Decides by what is in the Lease and since when it has been so, by the candidate's own clock: clocks of others do not
/// count.
pub fn verdict(holder: Option<&str>, unchanged_for: Duration, me: &str) -> Verdict {
    match holder {
        Some(other) if !other.is_empty() && other != me && unchanged_for < DURATION => Verdict::Wait,
        _ => Verdict::Hold,
    }
}

/// One controller's way to the Lease.
pub struct Election {
    api: Api<Lease>,
    me: String,
    health: Health,
    /// What was seen last, and when it was first seen so.
    seen: Option<(Option<String>, Option<MicroTime>, Instant)>,
}

impl Election {
    /// A candidate.
    pub fn new(client: Client, namespace: &str, me: &str, health: Health) -> Self {
        Self { api: Api::namespaced(client, namespace), me: me.to_owned(), health, seen: None }
    }

    /// Waits until the Lease is this candidate's.
    pub async fn win(&mut self) {
        loop {
            match self.try_hold().await {
                Ok(true) => return,
                Ok(false) => {}
                Err(why) => tracing::warn!(%why, "the lease cannot be asked for"),
            }
            sleep(RENEW).await;
        }
    }

    /// Keeps the Lease, and returns when it is lost.
    pub async fn keep(&mut self) {
        let mut renewed = Instant::now();
        while renewed.elapsed() < GIVE_UP {
            sleep(RENEW).await;
            // An API server that only is slow must not hold up the decision to stop.
            match timeout(RENEW, self.try_hold()).await {
                Ok(Ok(true)) => renewed = Instant::now(),
                Ok(Ok(false)) => return,
                Ok(Err(why)) => tracing::warn!(%why, "the lease could not be renewed"),
                Err(_) => tracing::warn!("the API server takes too long to renew the lease"),
            }
        }
    }

    /// Gives it up, so that another need not wait.
    pub async fn release(&mut self) {
        let Ok(Some(mut lease)) = self.api.get_opt(NAME).await else { return };
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        if spec.holder_identity.as_deref() == Some(&self.me) {
            spec.holder_identity = Some(String::new());
            // It runs out by itself, only later.
            let _ = self.api.replace(NAME, &PostParams::default(), &lease).await;
        }
    }

    async fn try_hold(&mut self) -> kube::Result<bool> {
        let now = Instant::now();
        let found = self.api.get_opt(NAME).await?;
        self.health.reached();
        let Some(mut lease) = found else {
            let mut lease = Lease::default();
            lease.metadata.name = Some(NAME.to_owned());
            lease.spec = Some(self.spec(0));
            return taken(self.api.create(&PostParams::default(), &lease).await);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let (holder, renewed) = (spec.holder_identity.clone(), spec.renew_time.clone());
        let since = match &self.seen {
            Some((was, at, since)) if *was == holder && *at == renewed => *since,
            _ => now,
        };
        self.seen = Some((holder.clone(), renewed, since));
        if verdict(holder.as_deref(), now - since, &self.me) == Verdict::Wait {
            return Ok(false);
        }
        let changes = i32::from(holder.as_deref() != Some(&self.me));
        lease.spec = Some(self.spec(spec.lease_transitions.unwrap_or_default() + changes));
        // Whoever else does the same at this moment is refused: the version is part of the request.
        taken(self.api.replace(NAME, &PostParams::default(), &lease).await)
    }

    fn spec(&self, transitions: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.me.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            renew_time: Some(MicroTime(jiff::Timestamp::now())),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }
}

/// Another one was faster.
fn taken(result: kube::Result<Lease>) -> kube::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(why)) if why.code == 409 => Ok(false),
        Err(why) => Err(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_silent_holder_loses_it() {
        let (short, long) = (Duration::from_secs(14), Duration::from_secs(15));
        assert_eq!(verdict(None, short, "me"), Verdict::Hold);
        assert_eq!(verdict(Some(""), short, "me"), Verdict::Hold);
        assert_eq!(verdict(Some("me"), short, "me"), Verdict::Hold);
        assert_eq!(verdict(Some("other"), short, "me"), Verdict::Wait);
        assert_eq!(verdict(Some("other"), long, "me"), Verdict::Hold);
    }
}
