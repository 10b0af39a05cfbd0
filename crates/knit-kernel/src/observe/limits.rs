//! Limits of links. Whether a link has a token bucket is part of its own message, so that only one that has is asked about.

use knit_model::link::{BURST_GRAIN, Limit, Rate};
use knit_model::{Scope, marks};
use nix::errno::Errno;

use crate::error::{Error, Result};
use crate::kernel::{Room, absent_is_none};
use crate::netlink::constants::*;
use crate::netlink::header::TrafficHeader;
use crate::netlink::{Attributes, Header, Message};

/// The kernel counts a burst's time in these nanoseconds (`PSCHED_SHIFT` in the kernel's `include/net/pkt_sched.h`).
const TICK: u128 = 64;

/// The limit of a link whose own message says this of its queue.
pub(super) fn look(room: &mut Room<'_>, scope: &Scope, index: u32, queue: Option<&str>) -> Result<Limit> {
    if queue != Some(TBF) {
        return Ok(Limit::Nothing);
    }
    // Without the echo the kernel tells everyone who listens, and not whoever asks.
    let context = format!("look at the queue of link {index} on {scope}");
    let mut message = Message::new(RTM_GETQDISC, NLM_F_ECHO, context);
    message.header(&TrafficHeader { index: index as i32, parent: TC_H_ROOT, ..Default::default() });
    let found = room.socket(scope)?.request_reply(message, |_, body| Some(read(body)));
    let found = match found {
        // It has gone meanwhile, and the kernel does not tell of what it has by itself.
        Err(Error::Refused { errno: Errno::EINVAL, .. }) => None,
        found => absent_is_none(found)?,
    };
    Ok(found.flatten().map_or(Limit::Nothing, Limit::To))
}

/// The rate of a token bucket of Knit's; `None` for anything else.
fn read(body: &[u8]) -> Option<Rate> {
    let (header, attributes) = TrafficHeader::split(body)?;
    if header.handle != marks::LIMIT_HANDLE || attributes.first(TCA_KIND)?.str()? != TBF {
        return None;
    }
    let options: Attributes<'_> = attributes.first(TCA_OPTIONS)?.nested();
    let parameters = options.first(TCA_TBF_PARMS)?.value;
    let number = |at: usize| Some(u32::from_ne_bytes(parameters.get(at..at + 4)?.try_into().ok()?));
    let wide = options.first(TCA_TBF_RATE64).and_then(|rate| rate.u64());
    let bytes = wide.map_or_else(|| number(8).map(u64::from), Some)?;
    Some(Rate { bits: bytes.checked_mul(8)?, burst: burst(bytes, number(28)?)? })
}

/// The bytes that go at a rate in so many ticks, to the nearest burst that Knit would ask for.
fn burst(bytes: u64, ticks: u32) -> Option<u64> {
    let exact = u128::from(bytes) * u128::from(ticks) * TICK / 1_000_000_000;
    let grain = u128::from(BURST_GRAIN);
    u64::try_from((exact + grain / 2) / grain * grain).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_told_by_its_time() {
        // 10 Mbit/s, 28672 bytes: 22.9376 ms.
        assert_eq!(burst(1_250_000, 358_400), Some(28_672));
        assert_eq!(burst(1_250_000, 358_399), Some(28_672));
        assert_eq!(burst(125, u32::MAX), Some(32_768));
    }
}
