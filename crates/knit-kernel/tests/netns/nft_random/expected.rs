//! What `nft` lists for a table of the model, in the form of [`super::listing`].

use knit_model::filter::field::{DataType, Field, IpFamily, Value};
use knit_model::filter::rule::{
    Comparison, Expression, FilterRule, LookupResult, Register, RejectWith, Translation, Verdict,
};
use knit_model::filter::{
    BaseChain, ChainType, ElementData, Filter, FilterSet, Hook, KeyPart, MapData, TableKey,
};

use super::listing::{Description, ether_type};

/// The description of a table.
pub fn describe(filter: &Filter, key: &TableKey) -> Description {
    let table = &filter.tables[key];
    let mut all = Description::new();
    for name in &table.counters {
        all.insert(format!("counter {name}"), Vec::new());
    }
    for (name, set) in &table.sets {
        let elements = filter.elements.iter().filter(|(of, _)| of.table == *key && of.set == *name);
        let mut elements: Vec<String> = elements.map(|(of, data)| element(set, &of.key, data)).collect();
        elements.sort_unstable();
        all.insert(set_title(name, set), elements);
    }
    for (name, chain) in &table.chains {
        let base = chain.base.as_ref().map(base_title).unwrap_or_default();
        all.insert(format!("chain {name}{base}"), chain.rules.iter().map(rule).collect());
    }
    all
}

fn type_name(kind: &DataType) -> &'static str {
    match kind {
        DataType::Ipv4 => "ipv4_addr",
        DataType::Ipv6 => "ipv6_addr",
        DataType::Protocol => "inet_proto",
        DataType::Port => "inet_service",
        DataType::Mac => "ether_addr",
        DataType::Name => "ifname",
        DataType::Mark => "mark",
        DataType::NfProto => "nf_proto",
        DataType::EtherType => "ether_type",
        DataType::IcmpType => "icmp_type",
        DataType::TcpFlags => "tcp_flag",
        DataType::CtState => "ct_state",
        DataType::CtStatus => "ct_status",
        DataType::CtDirection => "ct_dir",
        DataType::AddressType => "fib_addrtype",
        DataType::Index => "iface_index",
    }
}

fn type_names(types: &[DataType]) -> String {
    types.iter().map(type_name).collect::<Vec<_>>().join(" . ")
}

fn set_title(name: &str, set: &FilterSet) -> String {
    let mut title = format!("set {name}: {}", type_names(&set.key));
    match &set.data {
        Some(MapData::Values(types)) => title += &format!(" : {}", type_names(types)),
        Some(MapData::Verdict) => title += " : verdict",
        None => {}
    }
    if set.intervals {
        title += " interval";
    }
    if let Some(timeout) = set.timeout {
        title += " timeout";
        if timeout > 0 {
            title += &format!(" {}s", timeout / 1000);
        }
    }
    title
}

fn base_title(base: &BaseChain) -> String {
    let kind = match base.chain_type {
        ChainType::Filter => "filter",
        ChainType::Nat => "nat",
        ChainType::Route => "route",
    };
    let hook = match base.hook {
        Hook::Prerouting => "prerouting",
        Hook::Input => "input",
        Hook::Forward => "forward",
        Hook::Output => "output",
        Hook::Postrouting => "postrouting",
        Hook::Ingress(_) => "ingress",
    };
    format!(" {kind} {hook} {}", base.priority)
}

fn element(set: &FilterSet, key: &[KeyPart], data: &ElementData) -> String {
    let part = |(part, kind): (&KeyPart, &DataType)| match part.bounds() {
        (first, last) if first == last => typed(*kind, first),
        (first, last) => format!("{}-{}", typed(*kind, first), typed(*kind, last)),
    };
    let key = key.iter().zip(&set.key).map(part).collect::<Vec<_>>().join(" . ");
    match (data, &set.data) {
        (ElementData::Values(values), Some(MapData::Values(types))) => {
            let values = values.iter().zip(types).map(|(value, kind)| typed(*kind, value));
            format!("{key} : {}", values.collect::<Vec<_>>().join(" . "))
        }
        (ElementData::Verdict(to), _) => format!("{key} : {}", verdict(to)),
        _ => key,
    }
}

fn typed(kind: DataType, of: &Value) -> String {
    match of {
        Value::Port(number) if kind == DataType::EtherType => ether_type(*number).to_string(),
        other => value(other),
    }
}

fn value(value: &Value) -> String {
    match value {
        Value::Number(number) => number.to_string(),
        other => other.to_string(),
    }
}

fn verdict(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Accept => "accept".to_owned(),
        Verdict::Drop => "drop".to_owned(),
        Verdict::Return => "return".to_owned(),
        Verdict::Jump(chain) => format!("jump {chain}"),
        Verdict::Goto(chain) => format!("goto {chain}"),
    }
}

fn rule(rule: &FilterRule) -> String {
    let mut parts = Vec::new();
    // The field in the first register, and how the value there was computed.
    let (mut field, mut computed) = (None, String::new());
    for expression in &rule.expressions {
        match expression {
            Expression::Load { field: loaded, to: Register::FIRST } => {
                (field, computed) = (Some(*loaded), String::new());
            }
            Expression::Load { .. } => {}
            Expression::Mask { .. } => field = None,
            Expression::Number { modulus, offset, random, .. } => {
                let mode = if *random { "random" } else { "inc" };
                (field, computed) = (None, format!("numgen {mode} {modulus} {offset} "));
            }
            Expression::Hash { modulus, seed, offset, .. } => {
                (field, computed) = (None, format!("jhash {modulus} {seed} {offset} "));
            }
            Expression::Lookup { set, to: LookupResult::Load(_), .. } => {
                (field, computed) = (None, format!("{computed}map @{set} "));
            }
            other => parts.extend(statement(other, field, &computed)),
        }
    }
    parts.extend(rule.comment.iter().map(|comment| format!("comment {comment}")));
    parts.join("; ")
}

fn statement(expression: &Expression, field: Option<Field>, computed: &str) -> Option<String> {
    let described = match expression {
        Expression::Compare { is, value: to } => {
            let left = match field {
                Some(Field::IifName) => "iifname",
                Some(Field::OifName) => "oifname",
                Some(Field::Mark) => "mark",
                Some(Field::CtMark) => "ct mark",
                None if !computed.is_empty() => "",
                _ => return None,
            };
            let op = if *is == Comparison::Equal { "==" } else { "!=" };
            format!("{computed}{left} {op} {}", value(to))
        }
        Expression::Lookup { set, to: LookupResult::Verdict, .. } => format!("{computed}vmap @{set}"),
        Expression::Lookup { set, negated, .. } => {
            format!("{computed}{} @{set}", if *negated { "!=" } else { "==" })
        }
        Expression::SetMark => format!("mark set {computed}"),
        Expression::SetCtMark => format!("ct mark set {computed}"),
        Expression::Learn { set, renew, timeout, .. } => {
            let timeout = timeout.map(|timeout| format!(" timeout {}s", timeout / 1000)).unwrap_or_default();
            format!("{} @{set}{timeout}", if *renew { "update" } else { "add" })
        }
        Expression::Count => "counter".to_owned(),
        Expression::CountIn(name) => format!("counter {name}"),
        Expression::Limit { packets, seconds, burst } => {
            let units = [(1, "second"), (60, "minute"), (3_600, "hour"), (86_400, "day"), (604_800, "week")];
            let (_, unit) = units.into_iter().find(|(length, _)| length == seconds)?;
            format!("limit {packets}/{unit} burst {burst}")
        }
        Expression::Log { prefix, group } => {
            let group = group.map(|group| format!(" group {group}")).unwrap_or_default();
            format!("log {prefix:?}{group}")
        }
        Expression::Reject(RejectWith::TcpReset) => "reject tcp reset null".to_owned(),
        Expression::Reject(RejectWith::PortUnreachable) => "reject icmpx 1".to_owned(),
        Expression::Reject(RejectWith::Prohibited) => "reject icmpx 3".to_owned(),
        Expression::NoTrack => "notrack".to_owned(),
        Expression::Masquerade { random } => {
            format!("masquerade {}", if *random { "\"random\"" } else { "null" })
        }
        Expression::Nat { translates, family, .. } => {
            let kind = if *translates == Translation::Source { "snat" } else { "dnat" };
            let family = if *family == IpFamily::V4 { "ip" } else { "ip6" };
            format!("{kind} {family} {computed}")
        }
        Expression::Verdict(to) => verdict(to),
        _ => return None,
    };
    Some(described)
}
