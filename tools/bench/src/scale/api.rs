//! Requests to the API server, as many at a time as it handles.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Method, Request};
use knit_kube::kube::{self, Client};
use serde_json::Value;
use tokio::task::JoinSet;

use super::manifests::Create;
use knit_soak::harness::KnitCluster;

/// The number of concurrent requests that create objects.
const CONCURRENT: usize = 48;
/// The number of attempts of a request.
const ATTEMPTS: usize = 5;
/// How often the progress is printed.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(15);
/// The media type of an object's metadata without the rest.
const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// Creates objects concurrently. Prints the progress.
pub fn create_all(
    knit: &KnitCluster,
    what: &str,
    number: usize,
    object: impl Fn(usize) -> Create + Send + Sync + 'static,
) -> Result<Duration> {
    let start = Instant::now();
    let (object, next) = (Arc::new(object), Arc::new(AtomicUsize::new(0)));
    let mut tasks = JoinSet::<Result<()>>::new();
    for _ in 0..CONCURRENT {
        let (client, object, next) = (knit.client().clone(), Arc::clone(&object), Arc::clone(&next));
        let create = async move {
            loop {
                let current = next.fetch_add(1, Ordering::Relaxed);
                if current >= number {
                    return Ok(());
                }
                create(&client, object(current)).await?;
            }
        };
        tasks.spawn_on(create, knit.runtime().handle());
    }
    knit.block_on(async {
        let mut progress =
            tokio::time::interval_at(tokio::time::Instant::now() + PROGRESS_INTERVAL, PROGRESS_INTERVAL);
        loop {
            tokio::select! {
                done = tasks.join_next() => match done {
                    // Dropping the others ends them.
                    Some(done) => done?.with_context(|| format!("cannot create {what}"))?,
                    None => return Ok(start.elapsed()),
                },
                _ = progress.tick() => {
                    let done = next.load(Ordering::Relaxed).min(number);
                    let rate = done as f64 / start.elapsed().as_secs_f64();
                    eprintln!("  ...  {done} of {number} {what}, {rate:.0} per second");
                }
            }
        }
    })
}

/// Creates an object. An API server under full load may reject or lose a request.
async fn create(client: &Client, Create { path, body }: Create) -> Result<()> {
    let body = serde_json::to_vec(&body)?;
    for attempt in 1.. {
        let request = request(Method::POST, &path, "application/json", body.clone())?;
        match client.request_text(request).await {
            Ok(_) => return Ok(()),
            // The response to an earlier attempt was lost.
            Err(kube::Error::Api(why)) if why.code == 409 && attempt > 1 => return Ok(()),
            Err(_) if attempt < ATTEMPTS => tokio::time::sleep(Duration::from_millis(200)).await,
            Err(why) => return Err(why).context(path),
        }
    }
    unreachable!("the last attempt returns")
}

/// Changes an object.
pub async fn patch(client: &Client, path: &str, media_type: &str, patch: &Value) -> Result<()> {
    let request = request(Method::PATCH, path, media_type, serde_json::to_vec(patch)?)?;
    client.request_text(request).await.with_context(|| format!("cannot change {path}"))?;
    Ok(())
}

/// The size in bytes of an object as the API server sends it, and of its metadata alone.
pub fn sizes(knit: &KnitCluster, path: &str) -> Result<(usize, usize)> {
    let get = |accept: &str| -> Result<usize> {
        let request = Request::get(path).header(ACCEPT, accept).body(Vec::new())?;
        let text = knit.block_on(knit.client().request_text(request));
        Ok(text.with_context(|| format!("cannot read {path}"))?.len())
    };
    Ok((get("application/json")?, get(METADATA_ONLY)?))
}

fn request(method: Method, path: &str, media_type: &str, body: Vec<u8>) -> Result<Request<Vec<u8>>> {
    let request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, media_type);
    // The response is not used: the smallest one.
    Ok(request.header(ACCEPT, METADATA_ONLY).body(body)?)
}
