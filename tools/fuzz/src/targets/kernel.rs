//! Replies of the kernel.

use knit_kernel::decode;
use knit_model::filter::rule::Expression;
use knit_model::filter::{Filter, FilterStep};
use knit_model::plan::{Desired, Step, diff};
use knit_model::{NetState, Scope, ScopeState};

/// A datagram: decoded, and planned for as if everything owned had to be removed.
pub(super) fn netlink(data: &[u8]) {
    let _ = (decode::rejections(data), decode::wireguard(data));
    let observed = host(decode::routing(data));
    let text = serde_json::to_string(&observed).expect("state is plain data");
    assert_eq!(serde_json::from_str::<NetState>(&text).ok().as_ref(), Some(&observed), "{text}");
    let _ = diff(&Desired::default(), &observed).to_string();
}

/// A datagram: what it declares is planned for, encoded, and decoded again.
pub(super) fn nftables(data: &[u8]) {
    let filter = decode::packet_filter(data);
    let text = serde_json::to_string(&filter).expect("state is plain data");
    assert_eq!(serde_json::from_str::<Filter>(&text).ok().as_ref(), Some(&filter), "{text}");
    let desired = Desired {
        state: host(ScopeState { filter: filter.clone(), ..ScopeState::default() }),
        ..Desired::default()
    };
    let plan = diff(&desired, &NetState::default());
    let _ = plan.to_string();
    let steps: Vec<FilterStep> = plan
        .steps
        .into_iter()
        .filter_map(|planned| match planned.step {
            Step::Filter(step) => Some(step),
            _ => None,
        })
        .collect();
    let encoded = decode::packet_filter_messages(&steps);
    if is_writable(&filter) {
        assert_eq!(decode::packet_filter(&encoded), filter);
    }
}

/// Whether Knit could have written it: it writes no expression that it cannot read.
fn is_writable(filter: &Filter) -> bool {
    let chains = filter.tables.values().flat_map(|table| table.chains.values());
    let mut expressions = chains.flat_map(|chain| &chain.rules).flat_map(|rule| &rule.expressions);
    !expressions.any(|expression| matches!(expression, Expression::Foreign(_)))
}

fn host(state: ScopeState) -> NetState {
    NetState { scopes: [(Scope::Host, state)].into() }
}
