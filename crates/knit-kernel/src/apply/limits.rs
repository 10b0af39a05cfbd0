//! Limits on the wire: a token bucket at the root of what leaves a link (tbf), with Knit's handle as its mark.
//!
//! A rate that changes does so in place: what waits in the queue is not lost.

use knit_model::link::{Limit, Link, Rate};
use knit_model::{IfName, Scope, marks};

use super::transaction::{Failure, Op, Tolerate, Transaction};
use crate::netlink::Message;
use crate::netlink::constants::*;
use crate::netlink::header::TrafficHeader;

/// What may wait beside the burst: so much as goes in a 40th of a second.
const WAITING: u64 = 40;

/// Limits a newborn link, which has no limit by itself.
pub(super) fn set_newborn(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    link: &Link,
) -> Result<(), Failure> {
    match link.attrs.limit {
        Some(limit @ Limit::To(_)) => set(transaction, step, scope, &link.name, limit),
        Some(Limit::Nothing) | None => Ok(()),
    }
}

/// Has packets leave a link so fast, or as fast as they come.
pub(super) fn set(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    name: &IfName,
    limit: Limit,
) -> Result<(), Failure> {
    let index = match transaction.backward {
        true => transaction.index(step, scope, name)?,
        false => Some(transaction.need(step, scope, name)?),
    };
    let Some(index) = index else { return Ok(()) };
    let header = TrafficHeader {
        index: index as i32,
        parent: TC_H_ROOT,
        handle: marks::LIMIT_HANDLE,
        ..Default::default()
    };
    let (message, tolerate) = match limit {
        Limit::To(rate) => {
            let context = format!("limit link {name} on {scope}");
            let mut message = Message::new(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, context);
            message.header(&header);
            put(&mut message, rate);
            (message, if transaction.backward { Tolerate::Absence } else { Tolerate::Nothing })
        }
        Limit::Nothing => {
            let mut message =
                Message::new(RTM_DELQDISC, 0, format!("take the limit of link {name} on {scope} away"));
            message.header(&header);
            (message, Tolerate::AnotherQueue)
        }
    };
    transaction.push(scope, Op::new(step, message, tolerate))
}

fn put(message: &mut Message, rate: Rate) {
    let bytes = rate.bits / 8;
    let low = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let mut parameters = ratespec(low(bytes)).to_vec();
    // No peak rate.
    parameters.extend([0; 12]);
    // The bytes that may wait; the burst as time and the largest packet of the peak rate are said otherwise, or not at all.
    for number in [low(rate.burst + bytes / WAITING), 0, 0] {
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
