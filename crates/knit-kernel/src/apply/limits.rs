//! Encodes rate limits: a token bucket filter (tbf) as root qdisc, identified by Knit's handle.
//!
//! A rate changes in place: queued packets are not lost.

use knit_model::link::{Link, RateLimit, TokenBucket};
use knit_model::{IfName, Scope, kernel_ids};

use super::transaction::{Failure, Op, Tolerate, Transaction};
use crate::netlink::Message;
use crate::netlink::constants::*;
use crate::netlink::header::TrafficHeader;

/// The queue holds, beyond the burst, what the rate sends in 1/40 s.
const QUEUE_FRACTION: u64 = 40;

/// Sets the limit of a new link, which has none by default.
pub(super) fn set_initial(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    link: &Link,
) -> Result<(), Failure> {
    match link.attrs.limit {
        Some(limit @ RateLimit::Limited(_)) => set(transaction, step, scope, &link.name, limit),
        Some(RateLimit::Unlimited) | None => Ok(()),
    }
}

/// Sets or removes the egress limit of a link.
pub(super) fn set(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    name: &IfName,
    limit: RateLimit,
) -> Result<(), Failure> {
    let index = match transaction.rolling_back {
        true => transaction.find_index(step, scope, name)?,
        false => Some(transaction.require_index(step, scope, name)?),
    };
    let Some(index) = index else { return Ok(()) };
    let header = TrafficHeader {
        index: index as i32,
        parent: TC_H_ROOT,
        handle: kernel_ids::LIMIT_HANDLE,
        ..Default::default()
    };
    let (message, tolerate) = match limit {
        RateLimit::Limited(rate) => {
            let context = format!("set the rate limit of link {name} on {scope}");
            let mut message = Message::new(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, context);
            message.header(&header);
            put(&mut message, rate);
            (message, if transaction.rolling_back { Tolerate::Absence } else { Tolerate::Nothing })
        }
        RateLimit::Unlimited => {
            let mut message =
                Message::new(RTM_DELQDISC, 0, format!("remove the rate limit of link {name} on {scope}"));
            message.header(&header);
            (message, Tolerate::ForeignQdisc)
        }
    };
    transaction.push(scope, Op::new(step, message, tolerate))
}

fn put(message: &mut Message, rate: TokenBucket) {
    let bytes = rate.bits / 8;
    let low = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let mut parameters = ratespec(low(bytes)).to_vec();
    // No peak rate.
    parameters.extend([0; 12]);
    // The queue limit in bytes; the burst is a separate attribute and the maximum packet size of the peak rate is
    // unused.
    for number in [low(rate.burst + bytes / QUEUE_FRACTION), 0, 0] {
        parameters.extend(number.to_ne_bytes());
    }
    message.put_str(TCA_KIND, TBF);
    message.nest(TCA_OPTIONS, |options| {
        options.put_bytes(TCA_TBF_PARMS, &parameters);
        options.put_u32(TCA_TBF_BURST, low(rate.burst));
        if u32::try_from(bytes).is_err() {
            options.put_u64(TCA_TBF_RATE64, bytes);
        }
    });
}

/// `struct tc_ratespec`.
fn ratespec(bytes: u32) -> [u8; 12] {
    let mut spec = [0; 12];
    spec[1] = TC_LINKLAYER_ETHERNET;
    spec[8..].copy_from_slice(&bytes.to_ne_bytes());
    spec
}
