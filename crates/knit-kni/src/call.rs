//! Call ids: one for each call, in metadata on the way there and back.
//!
//! A server puts [`Calls`] around its services: a call that comes without an id gets one, every answer carries it, also an
//! error that no service wrote, and a [`Refusal`](crate::Refusal) made while the call is worked on knows it. Work on a
//! call is one span, and a call that is refused is one line of the log.

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

/// The metadata key of a call's id, in requests and answers.
pub const KEY: &str = "knit-call-id";

/// At most so many bytes.
const LONGEST: usize = 64;

/// The id that the metadata carries, if it is one: 1 to 64 letters, digits, `.`, `_` and `-`. It goes into logs and
/// names, so nothing else is taken.
pub fn id(metadata: &MetadataMap) -> Option<&str> {
    metadata.get(KEY)?.to_str().ok().filter(|id| is_id(id))
}

/// Puts an id into metadata. What is no id is left out.
pub fn set_id(metadata: &mut MetadataMap, id: &str) {
    if let (true, Ok(value)) = (is_id(id), MetadataValue::try_from(id)) {
        metadata.insert(KEY, value);
    }
}

tokio::task_local! {
    static CURRENT: String;
}

/// Works on a call that came another way than through [`Calls`] as a layer: the same span, and the same line if it is
/// refused.
pub async fn work<T>(
    id: &str,
    method: &str,
    work: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let span = tracing::debug_span!("rpc", method, call = id);
    let done = CURRENT.scope(id.to_owned(), work).instrument(span).await;
    if let Err(status) = &done {
        log_refusal(id, method, status);
    }
    done
}

/// The id of the call that this task works on; empty outside of one.
pub fn current() -> String {
    CURRENT.try_with(Clone::clone).unwrap_or_default()
}

/// Gives every call an id.
#[derive(Clone, Debug)]
pub struct Calls {
    prefix: Arc<str>,
    next: Arc<AtomicU64>,
}

/// A service whose calls have ids.
#[derive(Clone, Debug)]
pub struct Called<S> {
    inner: S,
    calls: Calls,
}

impl Calls {
    /// Ids of `prefix-0` on. The prefix tells one life of the server from the next; what cannot be in an id is left out.
    pub fn new(prefix: &str) -> Self {
        let prefix: String = prefix.chars().filter(|letter| is_id(&letter.to_string())).take(40).collect();
        Self { prefix: prefix.into(), next: Arc::default() }
    }

    fn id(&self, headers: &HeaderMap) -> String {
        self.choose(headers.get(KEY).and_then(|value| value.to_str().ok()).unwrap_or_default())
    }

    /// The id that was given, if it is one; else a new one.
    pub fn choose(&self, given: &str) -> String {
        Some(given).filter(|id| is_id(id)).map_or_else(
            || format!("{}-{}", self.prefix, self.next.fetch_add(1, Ordering::Relaxed)),
            str::to_owned,
        )
    }
}

impl<S> Layer<S> for Calls {
    type Service = Called<S>;

    fn layer(&self, inner: S) -> Called<S> {
        Called { inner, calls: self.clone() }
    }
}

impl<S, B, A> Service<Request<B>> for Called<S>
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
        let id = self.calls.id(request.headers());
        let value = HeaderValue::from_str(&id).expect("an id is plain ASCII");
        request.headers_mut().insert(KEY, value.clone());
        let method = request.uri().path().to_owned();
        let span = tracing::debug_span!("rpc", method, call = id);
        let work = CURRENT.scope(id.clone(), self.inner.call(request)).instrument(span);
        Box::pin(async move {
            let mut response = work.await?;
            // What fails before its first answer has its status in front.
            let status = Status::from_header_map(response.headers());
            if let Some(status) = status.filter(|status| status.code() != Code::Ok) {
                log_refusal(&id, &method, &status);
            }
            response.headers_mut().insert(KEY, value);
            Ok(response)
        })
    }
}

fn log_refusal(call: &str, method: &str, status: &Status) {
    let detail = detail::read(status).unwrap_or_default();
    let reason = if detail.reason.is_empty() { status.code().description() } else { &detail.reason };
    tracing::warn!(call, method, reason, object = detail.object, "refused: {}", status.message());
}

fn is_id(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=LONGEST).contains(&text.len()) && text.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use tower::ServiceExt;

    use super::*;
    use crate::{Reason, Refusal};

    #[test]
    fn an_id_comes_back_and_anything_else_does_not() {
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

    /// What comes back from a service that refuses every call.
    fn refused(request: Request<()>) -> Status {
        let service = tower::service_fn(|_: Request<()>| async {
            let status = Status::from(Refusal::new(Reason::NotFound, "there is no pod"));
            Ok::<_, std::convert::Infallible>(status.into_http::<()>())
        });
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let response = runtime.block_on(Calls::new("life 1").layer(service).oneshot(request)).unwrap();
        Status::from_header_map(response.headers()).unwrap()
    }

    #[test]
    fn a_refusal_knows_the_call_that_it_ends() {
        let named = Request::builder().header(KEY, "mine").body(()).unwrap();
        let unnamed = Request::new(());
        let bad = Request::builder().header(KEY, "a b").body(()).unwrap();
        for (request, expected) in [(named, "mine"), (unnamed, "life1-0"), (bad, "life1-0")] {
            let status = refused(request);
            assert_eq!(id(status.metadata()), Some(expected));
            assert_eq!(detail::read(&status).unwrap().call_id, expected);
        }
        assert_eq!(current(), "", "outside of a call there is none");
    }
}
