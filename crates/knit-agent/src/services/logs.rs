//! The agent's recent log lines, and those that follow.

use std::sync::Arc;

use knit_kni::{Reason, Refusal, v1};
use tokio::sync::{broadcast, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::agent::Answers;
use super::pods::timestamp;
use crate::log::{Line, Lines};

/// So many lines wait for a reader.
const QUEUE: usize = 256;

pub(super) fn stream(lines: &Lines, request: v1::LogsRequest) -> Result<Answers<v1::LogLine>, Status> {
    let filter = Filter::new(&request)?;
    let (mut recent, mut following) = lines.since_now();
    recent.retain(|line| filter.wants(line));
    let tail = usize::try_from(request.tail).unwrap_or(usize::MAX);
    let surplus = if tail == 0 { 0 } else { recent.len().saturating_sub(tail) };
    recent.drain(..surplus);
    let (to, stream) = mpsc::channel(QUEUE);
    tokio::spawn(async move {
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
                Ok(line) if filter.wants(&line) => to.send(Ok(message(&line))).await,
                Ok(_) => Ok(()),
                Err(broadcast::error::RecvError::Closed) => return,
                Err(broadcast::error::RecvError::Lagged(_)) => {
                    let refusal = Refusal::new(Reason::SlowReader, "the reader is too slow: lines are lost");
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
    fn new(request: &v1::LogsRequest) -> Result<Self, Refusal> {
        let word = if request.level.is_empty() { "info" } else { &request.level };
        let level = word.parse().map_err(|_| {
            let message = format!("level: `{word}` is none of error, warn, info, debug and trace");
            Refusal::new(Reason::InvalidValue, message).field("level")
        })?;
        Ok(Self { level, call: request.call_id.clone(), sandbox: request.sandbox_id.clone() })
    }

    fn wants(&self, line: &Line) -> bool {
        let has = |key: &str, wanted: &str| {
            wanted.is_empty() || line.fields.get(key).is_some_and(|value| value.contains(wanted))
        };
        let about =
            has("sandbox", &self.sandbox) || has("object", &self.sandbox) || has("unit", &self.sandbox);
        line.level <= self.level && has("call", &self.call) && about
    }
}

fn message(line: &Arc<Line>) -> v1::LogLine {
    v1::LogLine {
        time: Some(timestamp(line.at)),
        level: line.level.as_str().to_lowercase(),
        target: line.target.clone(),
        message: line.message.clone(),
        fields: line.fields.clone(),
    }
}
