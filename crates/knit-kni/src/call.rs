//! Call IDs: each call has an ID in the metadata of its request and response.
//!
//! A server adds [`CallIdLayer`] to its services: a call without an ID gets one, every response carries it, including
//! errors of the transport, and an [`RpcError`](crate::RpcError) created during the call contains it. Each call is one
//! tracing span, and a failed call is one log line.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tonic::codegen::http::{HeaderMap, HeaderValue, Request, Response};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};
use tower::{Layer, Service};
use tracing::Instrument;

use crate::detail;

/// The metadata key of the call ID.
pub const KEY: &str = "knit-call-id";

/// The maximum length of a call ID in bytes.
const MAX_LENGTH: usize = 64;

/// The call ID in the metadata, if it is valid: 1 to 64 letters, digits, `.`, `_` and `-`. It appears in logs and
/// names, so other values are ignored.
pub fn id(metadata: &MetadataMap) -> Option<&str> {
    metadata.get(KEY)?.to_str().ok().filter(|id| is_id(id))
}

/// Sets the call ID in the metadata. An invalid ID is ignored.
pub fn set_id(metadata: &mut MetadataMap, id: &str) {
    if let (true, Ok(value)) = (is_id(id), MetadataValue::try_from(id)) {
        metadata.insert(KEY, value);
    }
}

tokio::task_local! {
    static CURRENT: String;
}

/// Runs a call that does not pass through [`CallIdLayer`], with the same span and the same log line on failure.
pub async fn run_with_id<T>(
    id: &str,
    method: &str,
    call: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let span = tracing::debug_span!("rpc", method, call = id);
    let result = CURRENT.scope(id.to_owned(), call).instrument(span).await;
    if let Err(status) = &result {
        log_failure(id, method, status);
    }
    result
}

/// The ID of the current call; empty outside of a call.
pub fn current() -> String {
    CURRENT.try_with(Clone::clone).unwrap_or_default()
}

/// Adds an ID to every call.
#[derive(Clone, Debug)]
pub struct CallIdLayer {
    prefix: Arc<str>,
    next: Arc<AtomicU64>,
}

/// A service whose calls have IDs.
#[derive(Clone, Debug)]
pub struct CallIdService<S> {
    inner: S,
    layer: CallIdLayer,
}

impl CallIdLayer {
    /// Generates IDs from `prefix-0` on. The prefix distinguishes restarts of the server; invalid characters are
    /// removed.
    pub fn new(prefix: &str) -> Self {
        let prefix: String = prefix.chars().filter(|letter| is_id(&letter.to_string())).take(40).collect();
        Self { prefix: prefix.into(), next: Arc::default() }
    }

    fn id(&self, headers: &HeaderMap) -> String {
        self.id_or_new(headers.get(KEY).and_then(|value| value.to_str().ok()).unwrap_or_default())
    }

    /// The given ID if it is valid, otherwise a new one.
    pub fn id_or_new(&self, given: &str) -> String {
        Some(given).filter(|id| is_id(id)).map_or_else(
            || format!("{}-{}", self.prefix, self.next.fetch_add(1, Ordering::Relaxed)),
            str::to_owned,
        )
    }
}

impl<S> Layer<S> for CallIdLayer {
    type Service = CallIdService<S>;

    fn layer(&self, inner: S) -> CallIdService<S> {
        CallIdService { inner, layer: self.clone() }
    }
}

impl<S, B, A> Service<Request<B>> for CallIdService<S>
where
    S: Service<Request<B>, Response = Response<A>>,
    S::Future: Send + 'static,
{
    type Response = Response<A>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let id = self.layer.id(request.headers());
        let value = HeaderValue::from_str(&id).expect("an id is plain ASCII");
        request.headers_mut().insert(KEY, value.clone());
        let method = request.uri().path().to_owned();
        let span = tracing::debug_span!("rpc", method, call = id);
        let call = CURRENT.scope(id.clone(), self.inner.call(request)).instrument(span);
        Box::pin(async move {
            let mut response = call.await?;
            // A call that fails before its first message has its status in the headers.
            let status = Status::from_header_map(response.headers());
            if let Some(status) = status.filter(|status| status.code() != Code::Ok) {
                log_failure(&id, &method, &status);
            }
            response.headers_mut().insert(KEY, value);
            Ok(response)
        })
    }
}

fn log_failure(call: &str, method: &str, status: &Status) {
    let detail = detail::read(status).unwrap_or_default();
    let reason = if detail.reason.is_empty() { status.code().description() } else { &detail.reason };
    tracing::warn!(call, method, reason, object = detail.object, "call failed: {}", status.message());
}

fn is_id(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=MAX_LENGTH).contains(&text.len()) && text.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use tower::ServiceExt;

    use super::*;
    use crate::{Reason, RpcError};

    #[test]
    fn only_valid_ids_are_accepted() {
        let mut metadata = MetadataMap::new();
        set_id(&mut metadata, "a1.b_2-C");
        assert_eq!(id(&metadata), Some("a1.b_2-C"));
        for wrong in ["", "a b", "a/b", "ä", &"a".repeat(65)] {
            let mut metadata = MetadataMap::new();
            set_id(&mut metadata, wrong);
            assert_eq!(id(&metadata), None, "{wrong:?}");
        }
        let mut foreign = MetadataMap::new();
        foreign.insert(KEY, "a b".parse().unwrap());
        assert_eq!(id(&foreign), None);
    }

    /// The response of a service that fails every call.
    fn failed(request: Request<()>) -> Status {
        let service = tower::service_fn(|_: Request<()>| async {
            let status = Status::from(RpcError::new(Reason::NotFound, "pod not found"));
            Ok::<_, std::convert::Infallible>(status.into_http::<()>())
        });
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let response = runtime.block_on(CallIdLayer::new("life 1").layer(service).oneshot(request)).unwrap();
        Status::from_header_map(response.headers()).unwrap()
    }

    #[test]
    fn an_error_contains_the_id_of_its_call() {
        let named = Request::builder().header(KEY, "mine").body(()).unwrap();
        let unnamed = Request::new(());
        let bad = Request::builder().header(KEY, "a b").body(()).unwrap();
        for (request, expected) in [(named, "mine"), (unnamed, "life1-0"), (bad, "life1-0")] {
            let status = failed(request);
            assert_eq!(id(status.metadata()), Some(expected));
            assert_eq!(detail::read(&status).unwrap().call_id, expected);
        }
        assert_eq!(current(), "", "no ID outside of a call");
    }
}
