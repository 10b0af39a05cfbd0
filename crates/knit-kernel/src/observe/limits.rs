//! Observes rate limits. The link message names the root qdisc, so that only links with a token bucket filter (tbf)
//! are queried.

use knit_model::link::{BURST_GRANULARITY, RateLimit, TokenBucket};
use knit_model::{Scope, kernel_ids};
use nix::errno::Errno;

use crate::error::{Error, Result};
use crate::kernel::{Session, absent_is_none};
use crate::netlink::constants::*;
use crate::netlink::header::TrafficHeader;
use crate::netlink::{Attributes, Header, Message};

/// Nanoseconds per scheduler tick (`PSCHED_SHIFT` in include/net/pkt_sched.h).
const TICK: u128 = 64;

/// The limit of a link with this root qdisc.
pub(super) fn observe(
    session: &mut Session<'_>,
    scope: &Scope,
    index: u32,
    queue: Option<&str>,
) -> Result<RateLimit> {
    if queue != Some(TBF) {
        return Ok(RateLimit::Unlimited);
    }
    // Without NLM_F_ECHO the kernel notifies subscribers and does not reply.
    let context = format!("get the root qdisc of link {index} on {scope}");
    let mut message = Message::new(RTM_GETQDISC, NLM_F_ECHO, context);
    message.header(&TrafficHeader { index: index as i32, parent: TC_H_ROOT, ..Default::default() });
    let found = session.socket(scope)?.request_reply(message, |_, body| Some(read(body)));
    let found = match found {
        // It was removed meanwhile, and the kernel does not report its default qdisc.
        Err(Error::Rejected { errno: Errno::EINVAL, .. }) => None,
        found => absent_is_none(found)?,
    };
    Ok(found.flatten().map_or(RateLimit::Unlimited, RateLimit::Limited))
}

/// The rate of a tbf qdisc of Knit's; `None` for any other qdisc.
pub(crate) fn read(body: &[u8]) -> Option<TokenBucket> {
    let (header, attributes) = TrafficHeader::split(body)?;
    if header.handle != kernel_ids::LIMIT_HANDLE || attributes.first(TCA_KIND)?.str()? != TBF {
        return None;
    }
    let options: Attributes<'_> = attributes.first(TCA_OPTIONS)?.nested();
    let parameters = options.first(TCA_TBF_PARMS)?.value;
    let number = |at: usize| Some(u32::from_ne_bytes(parameters.get(at..at + 4)?.try_into().ok()?));
    let wide = options.first(TCA_TBF_RATE64).and_then(|rate| rate.u64());
    let bytes = wide.map_or_else(|| number(8).map(u64::from), Some)?;
    Some(TokenBucket { bits: bytes.checked_mul(8)?, burst: burst(bytes, number(28)?)? })
}

/// The bytes sent at a rate in this many ticks, rounded to the burst sizes that Knit uses.
fn burst(bytes: u64, ticks: u32) -> Option<u64> {
    let exact = u128::from(bytes) * u128::from(ticks) * TICK / 1_000_000_000;
    let grain = u128::from(BURST_GRANULARITY);
    u64::try_from((exact + grain / 2) / grain * grain).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_computed_from_its_duration() {
        // 10 Mbit/s, 28672 bytes: 22.9376 ms.
        assert_eq!(burst(1_250_000, 358_400), Some(28_672));
        assert_eq!(burst(1_250_000, 358_399), Some(28_672));
        assert_eq!(burst(125, u32::MAX), Some(32_768));
    }
}
