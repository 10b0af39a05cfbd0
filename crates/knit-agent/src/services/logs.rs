//! Streams the agent's log.

use std::sync::Arc;

use knit_kni::{Reason, RpcError, v1};
use tokio::sync::{broadcast, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::agent::Answers;
use super::pods::timestamp;
use super::streams::StreamPermit;
use crate::log::{LogBuffer, LogRecord};

/// Buffered lines of a stream.
const STREAM_BUFFER: usize = 256;

pub(super) fn stream(
    lines: &LogBuffer,
    request: v1::LogsRequest,
    permit: StreamPermit,
) -> Result<Answers<v1::LogLine>, Status> {
    let filter = Filter::new(&request)?;
    let (mut recent, mut following) = lines.subscribe();
    recent.retain(|line| filter.matches(line));
    let tail = usize::try_from(request.tail).unwrap_or(usize::MAX);
    let surplus = if tail == 0 { 0 } else { recent.len().saturating_sub(tail) };
    recent.drain(..surplus);
    let (to, stream) = mpsc::channel(STREAM_BUFFER);
    tokio::spawn(async move {
        let _permit = permit;
        for line in recent {
            if to.send(Ok(message(&line))).await.is_err() {
                return;
            }
        }
        if !request.follow {
            return;
        }
        loop {
            let line = tokio::select! {
                line = following.recv() => line,
                () = to.closed() => return,
            };
            let outcome = match line {
                Ok(line) if filter.matches(&line) => to.send(Ok(message(&line))).await,
                Ok(_) => Ok(()),
                Err(broadcast::error::RecvError::Closed) => return,
                Err(broadcast::error::RecvError::Lagged(_)) => {
                    let refusal =
                        RpcError::new(Reason::SlowReader, "the reader is too slow, lines were lost");
                    to.send(Err(refusal.into())).await
                }
            };
            if outcome.is_err() {
                return;
            }
        }
    });
    Ok(Box::pin(ReceiverStream::new(stream)))
}

struct Filter {
    level: tracing::Level,
    call: String,
    sandbox: String,
}

impl Filter {
    fn new(request: &v1::LogsRequest) -> Result<Self, RpcError> {
        let name = if request.level.is_empty() { "info" } else { &request.level };
        let level = name.parse().map_err(|_| {
            let message = format!("level: `{name}` is not one of error, warn, info, debug, trace");
            RpcError::new(Reason::InvalidValue, message).field("level")
        })?;
        Ok(Self { level, call: request.call_id.clone(), sandbox: request.sandbox_id.clone() })
    }

    fn matches(&self, line: &LogRecord) -> bool {
        let has = |key: &str, expected: &str| {
            expected.is_empty() || line.fields.get(key).is_some_and(|value| value.contains(expected))
        };
        let about =
            has("sandbox", &self.sandbox) || has("object", &self.sandbox) || has("unit", &self.sandbox);
        line.level <= self.level && has("call", &self.call) && about
    }
}

fn message(line: &Arc<LogRecord>) -> v1::LogLine {
    v1::LogLine {
        time: Some(timestamp(line.at)),
        level: line.level.as_str().to_lowercase(),
        target: line.target.clone(),
        message: line.message.clone(),
        fields: line.fields.clone(),
    }
}
